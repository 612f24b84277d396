//! Limits of the system that would end the process.

/// A write beyond the limit on the size of files (`ulimit -f`) fails like one to a full disk, instead of ending the
/// process without a word: the signal is caught, and the write returns an error.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) fn survive_file_size_limit() {
    use tokio::signal::unix::{SignalKind, signal};
    const SIGXFSZ: i32 = 25;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let caught =
        runtime.and_then(|runtime| runtime.block_on(async { signal(SignalKind::from_raw(SIGXFSZ)).map(drop) }));
    if let Err(error) = caught {
        tracing::debug!("SIGXFSZ cannot be caught: {error}");
    }
}

/// Other systems have no such signal, or number it otherwise.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn survive_file_size_limit() {}

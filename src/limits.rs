//! System limits that would end the process.

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error, like a full disk, instead of killing
/// the process: catches the signal.
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

/// Other systems have no such signal, or use another number.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn survive_file_size_limit() {}

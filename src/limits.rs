//! System limits that would end the process.

use crate::display;

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error, like a full disk, instead of killing
/// the process: catches the signal.
#[cfg(any(target_os = "linux", target_os = "macos"))]
pub(crate) fn survive_file_size_limit() {
    use tokio::signal::unix::{SignalKind, signal};
    const SIGXFSZ: i32 = 25;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    // The handler stays when the runtime and the stream of the signal are gone.
    let caught = runtime.and_then(|runtime| runtime.block_on(async { signal(SignalKind::from_raw(SIGXFSZ)) }));
    if let Err(error) = caught {
        tracing::debug!("SIGXFSZ cannot be caught: {error}");
    }
}

/// Ends the process with a message and exit code 5 if the system gives it no more threads. The libraries below (tokio,
/// rayon, DataFusion) panic then, each in a thread of its own, and a run would wait for what never started. Ending at once
/// loses nothing: a run resumes as after `kill -9`.
pub(crate) fn report_lack_of_threads() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(is_lack_of_threads) {
            display::no_threads();
        }
        otherwise(panic);
    }));
}

/// Whether the message of a panic is about a thread that could not be started.
fn is_lack_of_threads(message: &str) -> bool {
    // Texts of EAGAIN and ENOMEM, the errors of starting a thread: a panic carries no error code.
    let lacks = ["Resource temporarily unavailable", "Cannot allocate memory"].iter().any(|why| message.contains(why));
    message.contains("thread") && lacks
}

/// Other systems have no such signal, or use another number.
#[cfg(not(any(target_os = "linux", target_os = "macos")))]
pub(crate) fn survive_file_size_limit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_about_threads_are_known() {
        let error = std::io::Error::from_raw_os_error(11);
        assert!(is_lack_of_threads(&format!("failed to spawn thread: {error:?}")));
        assert!(is_lack_of_threads(&format!("OS can't spawn worker thread: {error}")));
        let rayon = format!(
            "The global thread pool has not been initialized.: ThreadPoolBuildError {{ kind: IOError({error:?}) }}"
        );
        assert!(is_lack_of_threads(&rayon));
        assert!(!is_lack_of_threads("a thread panicked") && !is_lack_of_threads(&error.to_string()));
    }
}

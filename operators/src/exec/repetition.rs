//! Runs a program again after a failure. Its output counts only after it has succeeded.

use searchmill_engine::operator::{Blame, Context, OperatorError};

/// Makes attempts until one succeeds or the node's attempts run out.
///
/// # Errors
/// The last failure.
pub(super) fn repeat<T>(
    context: &Context,
    mut run: impl FnMut() -> Result<T, OperatorError>,
) -> Result<T, OperatorError> {
    let retry = context.retry();
    let mut attempt = 1;
    loop {
        let failure = match run() {
            Ok(made) => return Ok(made),
            // A node with one attempt needs no count of them in the message.
            Err(failure) if failure.blame == Blame::Cancelled || retry.max_attempts <= 1 => return Err(failure),
            Err(failure) => failure,
        };
        if attempt >= retry.max_attempts {
            let message = format!("after {attempt} attempts: {}", failure.message);
            return Err(OperatorError { message, ..failure });
        }
        attempt += 1;
        let wait = retry.wait(attempt, None);
        let (of, seconds) = (retry.max_attempts, wait.as_secs_f64());
        // One line per attempt in the log; a program's message may have several.
        let what = failure.message.lines().next().unwrap_or_default().trim_end_matches(':');
        context.progress().log(&format!("{what}; attempt {attempt} of {of} in {seconds:.1} s"));
        if !context.block_on(context.pause(wait)) {
            return Err(OperatorError::cancelled());
        }
    }
}

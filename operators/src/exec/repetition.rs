//! Runs a program that may run again after a failure. Its output counts only after it has succeeded.

use std::fs::File;
use std::io::Seek;

use searchmill_data::program::Program;
use searchmill_engine::operator::{Blame, Context, OperatorError, RowsInput};

use super::conversation::converse;

/// Runs the program until it succeeds or the node's attempts run out. Returns the output of the successful attempt.
///
/// # Errors
/// The last failure.
pub(super) fn output(
    program: &Program<'_>,
    input: Option<&RowsInput>,
    context: &Context,
) -> Result<File, OperatorError> {
    std::fs::create_dir_all(context.scratch())?;
    repeat(context, || {
        // Without a name, so that the program cannot replace it.
        let mut output = tempfile::tempfile_in(context.scratch())?;
        converse(program, input, context, |stdout| Ok(std::io::copy(stdout, &mut output).map(drop)?))?;
        output.rewind()?;
        Ok(output)
    })
}

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

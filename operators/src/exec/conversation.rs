//! Data exchange between `exec` and its program: writes rows to stdin while reading rows from stdout.

use std::io::{BufReader, BufWriter, ErrorKind, Write};
use std::process::{ChildStdin, Stdio};
use std::thread;

use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use searchmill_data::program::{Log, Pipe, Program};
use searchmill_engine::operator::{Context, OperatorError, RowsInput};

/// Writes the rows while `receive` reads the output, so neither side waits for the other.
///
/// # Errors
/// The first that applies: interrupted, timed out, non-zero exit code, unreadable rows, or an error from `receive`.
pub(super) fn converse(
    program: &Program<'_>,
    input: Option<&RowsInput>,
    context: &Context,
    receive: impl FnOnce(&mut BufReader<Pipe>) -> Result<(), OperatorError>,
) -> Result<(), OperatorError> {
    let mut running = program.start(Stdio::piped(), context)?;
    let (Some(stdin), Some((stdout, stderr))) = (running.process.stdin.take(), running.outputs()) else {
        return Err(OperatorError::engine("the program was started without pipes"));
    };
    let (log, mut stdout) = (Log::new(context), BufReader::new(stdout));
    let (fed, received) = running.watched(context, &log, |process| {
        thread::scope(|threads| {
            let feeder = threads.spawn(|| feed(stdin, input));
            let listener = threads.spawn(|| log.listen(stderr));
            let received = receive(&mut stdout);
            // A program that fails midway must be able to exit, so that its own message is reported: it would wait for a
            // reader of what it still writes.
            let drained = std::io::copy(&mut stdout, &mut std::io::sink()).map_or_else(held_open, |_| Ok(()));
            let ended = drained.and_then(|()| process.wait());
            let fed = joined(feeder.join()).and_then(|fed| joined(listener.join()).and(fed));
            Ok((ended?, (fed, received)))
        })
    })?;
    fed?;
    received
}

/// A stream that is complete is no worse for a process that holds its pipe open.
pub(super) fn held_open(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::TimedOut { Ok(()) } else { Err(error) }
}

fn joined<T>(result: thread::Result<T>) -> Result<T, OperatorError> {
    result.map_err(|_| OperatorError::engine("a thread for the program's pipes panicked"))
}

/// Writes the rows. It is not an error if the program stops reading early.
fn feed(stdin: ChildStdin, input: Option<&RowsInput>) -> Result<(), OperatorError> {
    let Some(input) = input else { return Ok(()) };
    let mut writer = match StreamWriter::try_new(BufWriter::new(stdin), &input.schema) {
        Ok(writer) => writer,
        Err(error) => return pipe_failed(error),
    };
    for batch in input.batches() {
        if let Err(error) = writer.write(&batch?) {
            return pipe_failed(error);
        }
    }
    if let Err(error) = writer.finish() {
        return pipe_failed(error);
    }
    // The buffer's own flush, when it is dropped, would hide an error.
    writer.get_mut().flush().or_else(|error| pipe_failed(error.into()))
}

fn pipe_failed(error: ArrowError) -> Result<(), OperatorError> {
    match error {
        ArrowError::IoError(_, error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        error => Err(OperatorError::machine(format!("cannot write to the program: {error}"))),
    }
}

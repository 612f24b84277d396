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
            // A program that failed midway must be able to exit, so that its own message is reported.
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
    let mut batches = input.batches();
    match write_stream(stdin, input, &mut batches) {
        Ok(()) => Ok(()),
        Err(Fed::Rows(error)) => Err(error),
        Err(Fed::Pipe(ArrowError::IoError(_, error))) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(Fed::Pipe(error)) => Err(OperatorError::machine(format!("cannot write to the program: {error}"))),
    }
}

/// Error while writing rows.
enum Fed {
    Rows(OperatorError),
    Pipe(ArrowError),
}

fn write_stream(
    stdin: ChildStdin,
    input: &RowsInput,
    batches: &mut dyn Iterator<Item = Result<arrow::array::RecordBatch, OperatorError>>,
) -> Result<(), Fed> {
    let mut writer = StreamWriter::try_new(BufWriter::new(stdin), &input.schema).map_err(Fed::Pipe)?;
    for batch in batches {
        writer.write(&batch.map_err(Fed::Rows)?).map_err(Fed::Pipe)?;
    }
    writer.finish().map_err(Fed::Pipe)?;
    writer.get_mut().flush().map_err(|error| Fed::Pipe(error.into()))
}

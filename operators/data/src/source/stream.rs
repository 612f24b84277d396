//! Opens a source file as plain bytes or as text.

use std::io::{Cursor, Read};

use bytes::{Buf, Bytes};
use futures::StreamExt;
use object_store::{GetResultPayload, ObjectStoreExt};
use searchmill_engine::operator::{Context, OperatorError};

use super::format::{Compression, Format, Reading, decompressed};
use super::location::{Place, SourceFile};
use super::record::Unreadable;
use super::store;

/// Bytes at the start of a file that show what it is.
const START: u64 = 4096;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Opens the decompressed bytes of a file.
///
/// # Errors
/// Fails if it cannot be opened.
pub fn bytes(file: &SourceFile, compression: Compression, context: &Context) -> Result<Reading, OperatorError> {
    let opened = match &file.place {
        Place::Local(path) => context.block_on(store::local_file(path)),
        Place::Remote(store, path) => context.block_on(store.get(path)),
    };
    let opened = opened.map_err(|error| store::failed(&file.shown, error))?;
    let raw: Reading = match opened.payload {
        // A watched file that changes while it is read fails the node: its key names the old content.
        GetResultPayload::File(opened, _) => match &file.place {
            Place::Local(path) => context.watched(path, Box::new(opened)),
            Place::Remote(..) => Box::new(opened),
        },
        GetResultPayload::Stream(stream) => {
            Box::new(StreamReader { stream, chunk: Bytes::new(), context: context.clone() })
        }
    };
    decompressed(raw, compression).map_err(|error| broken(file, &error))
}

/// Opens the text of a file in this format, without a byte order mark.
///
/// # Errors
/// Fails if it cannot be opened, is not UTF-8, or begins as another format.
pub(crate) fn text(
    file: &SourceFile,
    format: Format,
    compression: Compression,
    context: &Context,
) -> Result<Reading, OperatorError> {
    let reader = bytes(file, compression, context)?;
    checked(reader, &file.name, format).map_err(|error| broken(file, &error))
}

fn checked(mut reader: Reading, name: &str, format: Format) -> std::io::Result<Reading> {
    let mut start = Vec::new();
    reader.by_ref().take(START).read_to_end(&mut start)?;
    if start.is_empty() && Compression::of_name(name) != Compression::None {
        return Err(Unreadable::error("it is empty: a compressed file has at least a header", "fetch it again"));
    }
    super::recognised::check_start(&start, format)?;
    if start.starts_with(BYTE_ORDER_MARK) {
        start.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(Box::new(Read::chain(Cursor::new(start), reader)))
}

/// Converts an interrupted or undecodable stream to a user error.
pub fn broken(file: &SourceFile, error: &std::io::Error) -> OperatorError {
    let shown = &file.shown;
    if let Some(Unreadable { message, help }) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return OperatorError::data(format!("cannot read `{shown}`: {message}")).with_help(help);
    }
    if !is_damage(error) {
        return OperatorError::machine(format!("cannot read `{shown}`: {error}"));
    }
    OperatorError::data(format!("`{shown}` is damaged or cut short: {error}"))
        .with_help("fetch the file again, or set `compression:` to its actual compression")
}

/// Whether a stream cannot be read by its content.
pub(crate) fn is_damage(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), InvalidData | InvalidInput | UnexpectedEof)
}

struct StreamReader {
    stream: futures::stream::BoxStream<'static, object_store::Result<Bytes>>,
    chunk: Bytes,
    context: Context,
}

impl Read for StreamReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.chunk.is_empty() {
            match self.context.block_on(self.stream.next()) {
                Some(chunk) => self.chunk = chunk.map_err(std::io::Error::other)?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        buffer[..length].copy_from_slice(&self.chunk[..length]);
        self.chunk.advance(length);
        Ok(length)
    }
}

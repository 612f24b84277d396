//! Frames between searchmill and a Python process.

use std::io::{Read, Write};
use std::process::{ChildStdin, ChildStdout};
use std::sync::mpsc::Receiver;

/// Largest frame in bytes. The script's own limits are smaller.
const LARGEST: u64 = 3 << 30;

/// What the process sends.
pub(super) struct Frame {
    /// The letter of its kind; 0: something that is no frame.
    pub(super) kind: u8,
    pub(super) payload: Vec<u8>,
}

/// Returns a frame as bytes.
pub(super) fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(payload.len() + 9);
    frame.push(kind);
    frame.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Writes requests until there are no more, or the process stops reading.
pub(super) fn feed(mut stdin: ChildStdin, requests: &Receiver<Vec<u8>>) {
    for request in requests {
        if stdin.write_all(&request).is_err() {
            return;
        }
    }
}

/// Reads frames to the end of the pipe, or to something that is no frame.
pub(super) fn read_frames(mut stdout: ChildStdout, mut pass_on: impl FnMut(Frame) -> bool) {
    let mut head = [0; 9];
    while stdout.read_exact(&mut head).is_ok() {
        let mut length = [0; 8];
        length.copy_from_slice(&head[1..]);
        let length = u64::from_le_bytes(length);
        let mut payload = Vec::new();
        // Text that a function printed reads as a length beyond all limits.
        let kind = if length > LARGEST { 0 } else { head[0] };
        let read = stdout.by_ref().take(length.min(LARGEST)).read_to_end(&mut payload);
        let whole = read.is_ok() && payload.len() as u64 == length.min(LARGEST);
        if !whole || !pass_on(Frame { kind, payload }) || kind == 0 {
            return;
        }
    }
}

//! Why a PDF file cannot be read.

use lopdf::{DecompressError, Error};

use super::super::content::{damaged, too_large};
use crate::source::record::Fault;

/// A file that needs a password.
pub(super) fn encrypted() -> Fault {
    let message = "the file is encrypted and needs a password; remove it, for example with `qpdf --decrypt`";
    Fault { kind: "encrypted", message: message.to_owned() }
}

/// Converts an error of the library to a reject.
pub(super) fn fault(error: &Error, limit: u64) -> Fault {
    match error {
        Error::InvalidPassword | Error::Decryption(_) | Error::UnsupportedSecurityHandler(_) => encrypted(),
        Error::Decompress(DecompressError::MemoryLimitExceeded { .. }) => {
            too_large("a part of the file, unpacked,", limit)
        }
        other => damaged(format!("the PDF file cannot be read: {other}")),
    }
}

//! BLAKE3-256 digests.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::operator::open_regular;

/// The algorithm's name in external formats.
pub const DIGEST_NAME: &str = "blake3";

/// A BLAKE3-256 digest, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Wraps raw bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the raw bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the first 8 bytes as a number, little-endian.
    pub(crate) fn prefix(&self) -> u64 {
        self.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns 64 hexadecimal digits.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }

    /// Returns the first ten digits, for display.
    pub fn short(&self) -> String {
        self.hex()[..10].to_owned()
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(hex: &str) -> Option<Self> {
        blake3::Hash::from_hex(hex).ok().map(|hash| Self(*hash.as_bytes()))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.short())
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let hex = String::deserialize(deserializer)?;
        Self::parse(&hex).ok_or_else(|| serde::de::Error::custom(format!("`{hex}` is not a BLAKE3 digest")))
    }
}

/// Hashes bytes.
pub fn hash_bytes(bytes: &[u8]) -> Digest {
    Digest(*blake3::hash(bytes).as_bytes())
}

/// Hashes everything that a reader returns.
///
/// # Errors
/// Fails if reading fails.
pub(crate) fn hash_reader(reader: impl Read) -> std::io::Result<Digest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(reader)?;
    Ok(Digest(*hasher.finalize().as_bytes()))
}

/// Hashes a file's content.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn hash_file(path: &Path) -> std::io::Result<Digest> {
    hash_reader(open_regular(path)?)
}

//! BLAKE3-256 digests. SHA-256 for attestations, which other tools verify: nothing inside searchmill is identified by it.

use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

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

/// Returns the SHA-256 of bytes, as 64 hexadecimal digits.
pub(crate) fn sha256_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the SHA-256 of a file's content, as 64 hexadecimal digits.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn sha256_file(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_string_has_its_known_digest() {
        // FIPS 180-4, and the first test of most other implementations.
        assert_eq!(sha256_bytes(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abc".repeat(50_000)).unwrap();
        assert_eq!(sha256_file(file.path()).unwrap(), sha256_bytes(&b"abc".repeat(50_000)));
    }
}

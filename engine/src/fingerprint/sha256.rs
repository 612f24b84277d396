//! SHA-256 for attestations, which other tools verify. Nothing inside searchmill is identified by it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of bytes, as 64 hexadecimal digits.
pub(crate) fn sha256_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Returns the SHA-256 of a file's content, as 64 hexadecimal digits.
///
/// # Errors
/// Fails if the file cannot be read.
pub(crate) fn sha256_file(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
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

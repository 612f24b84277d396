//! Checksums of the ledger and of other small records. The last member of every JSON object, `check`, is the digest of all text before it.
//!
//! Objects without it were written by earlier versions.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fingerprint::hash_bytes;
use crate::store::error::StoreError;

const MEMBER: &str = ",\"check\":\"";
const DIGITS: usize = 16;

/// The result of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// It matches.
    Whole,
    /// There is none.
    Missing,
    /// The text was changed.
    Broken,
}

/// Adds the checksum to the text of a JSON object.
pub(crate) fn seal(mut text: Vec<u8>) -> Vec<u8> {
    if text.len() > 2 && text.pop_if(|last| *last == b'}').is_some() {
        text.extend(format!("{MEMBER}{}\"}}", digits_of(&text, DIGITS)).into_bytes());
    }
    text
}

/// Returns a value as a line of JSON with its checksum.
pub(crate) fn sealed_line(value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut line = seal(serde_json::to_vec(value)?);
    line.push(b'\n');
    Ok(line)
}

/// Verifies the checksum of an object.
pub(crate) fn look(text: &str) -> Seal {
    match parts(text) {
        None => Seal::Missing,
        Some((before, check)) if digits_of(before.as_bytes(), DIGITS) == check => Seal::Whole,
        Some(_) => Seal::Broken,
    }
}

/// Reads a JSON object; `None` if it was changed or is no such object. Those of earlier versions have no checksum.
pub(crate) fn sealed_json<T: DeserializeOwned>(text: &[u8]) -> Option<T> {
    if look(std::str::from_utf8(text).ok()?) == Seal::Broken { None } else { serde_json::from_slice(text).ok() }
}

/// Reads a file of one JSON object; `None` if there is none, or if it was changed.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    sealed_json(&std::fs::read(path).ok()?)
}

/// Returns the object without its checksum.
pub(super) fn unsealed(text: &str) -> String {
    parts(text).map_or_else(|| text.to_owned(), |(before, _)| format!("{before}}}"))
}

/// Returns the first digits of a text's digest.
pub(super) fn digits_of(text: &[u8], count: usize) -> String {
    let mut digits = hash_bytes(text).hex();
    digits.truncate(count);
    digits
}

fn parts(text: &str) -> Option<(&str, &str)> {
    let (rest, check) = text.trim_end().strip_suffix("\"}")?.rsplit_once(MEMBER)?;
    if check.len() == DIGITS && !check.contains('"') { Some((rest, check)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_is_seen_and_objects_stay_objects() {
        let line = r#"{"node":"a","error":"say \",\"check\":\"0123456789abcdef\"}"}"#;
        let sealed = String::from_utf8(seal(line.as_bytes().to_vec())).unwrap();
        assert_eq!((look(&sealed), look(line)), (Seal::Whole, Seal::Missing));
        assert_eq!(unsealed(&sealed), line);
        let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!(value["node"], "a");
        for place in 0..line.len() - 1 {
            let mut bytes = sealed.clone().into_bytes();
            bytes[place] ^= 1;
            assert_eq!(String::from_utf8(bytes).map(|text| look(&text)), Ok(Seal::Broken), "byte {place}");
        }
        assert_eq!(seal(b"{}".to_vec()), b"{}");
    }
}

//! JSON as servers write it: strict JSON first, and if that fails, without what serialisers of other languages get wrong:
//! halves of characters, bytes that are not UTF-8, raw line breaks in texts, NaN, fields that are there twice, a text of
//! JSON in place of JSON.

use std::fmt::Write;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Stands before a byte that is no whole character: a noncharacter of Unicode, which no text contains.
const MARK: char = '\u{fdd0}';
/// Added to such a byte, to write it as a character.
const BYTE: u32 = 0xe000;

/// Parses JSON. Halves of characters in its texts are marked, so that [`completed`] can join them with the other halves,
/// which may come in another piece of a stream.
///
/// # Errors
/// If it is not JSON of this type.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let strict = match serde_json::from_slice(json) {
        Ok(parsed) => return Ok(parsed),
        Err(strict) => strict,
    };
    let mended = mended(json);
    // A struct refuses a field that is there twice; a `Value` takes the last one.
    let lenient = serde_json::from_str(&mended).or_else(|_| match serde_json::from_str::<Value>(&mended)? {
        Value::String(inner) => serde_json::from_str(&inner),
        value => serde_json::from_value(value),
    });
    // The strict error tells what the server wrote wrongly.
    lenient.map_err(|_| strict)
}

/// Joins the marked halves of characters in a text. A half without its other half becomes U+FFFD.
pub(super) fn completed(text: &mut String) {
    if !text.contains(MARK) {
        return;
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let marked = chars.peek().and_then(|next| u8::try_from((*next as u32).checked_sub(BYTE)?).ok());
        match marked.filter(|_| char == MARK) {
            Some(byte) => {
                bytes.push(byte);
                chars.next();
            }
            None => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    *text = String::from_utf8_lossy(&with_pairs(&bytes)).into_owned();
}

/// Joins surrogates that follow each other, each in three bytes as UTF-8 would have them. One alone becomes U+FFFD.
fn with_pairs(bytes: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        // These three bytes encode a surrogate (as in CESU-8); valid UTF-8 has none of them.
        let taken = match *rest {
            [0xed, high @ 0xa0..=0xaf, a @ 0x80..=0xbf, 0xed, low @ 0xb0..=0xbf, b @ 0x80..=0xbf, ..] => {
                joined.extend(String::from_utf16_lossy(&[surrogate(high, a), surrogate(low, b)]).into_bytes());
                6
            }
            [0xed, 0xa0..=0xbf, 0x80..=0xbf, ..] => {
                joined.extend("\u{fffd}".as_bytes());
                3
            }
            _ => {
                joined.push(*first);
                1
            }
        };
        rest = &rest[taken..];
    }
    joined
}

/// The surrogate in the last two bytes of three.
fn surrogate(middle: u8, last: u8) -> u16 {
    0xd000 | u16::from(middle & 0x3f) << 6 | u16::from(last & 0x3f)
}

/// Returns JSON text in which serde_json finds what the server meant.
fn mended(json: &[u8]) -> String {
    let mut text = String::with_capacity(json.len() + 16);
    for chunk in json.utf8_chunks() {
        // A mark of the server's own would be taken for one of these.
        text.extend(chunk.valid().chars().map(|char| if char == MARK { char::REPLACEMENT_CHARACTER } else { char }));
        chunk.invalid().iter().for_each(|byte| push_marked(&mut text, *byte));
    }
    let mut mended = String::with_capacity(text.len() + 16);
    // A byte order mark is no JSON, but parsers may ignore it (RFC 8259, section 8.1).
    let mut rest = text.trim_start_matches('\u{feff}');
    let mut in_text = false;
    while let Some(char) = rest.chars().next() {
        let taken = match char {
            '"' => {
                in_text = !in_text;
                mended.push(char);
                1
            }
            // Whole: an escaped quote does not end the text.
            '\\' if in_text => escape(rest, &mut mended),
            '\0'..='\x1f' if in_text => {
                write!(mended, "\\u{:04x}", char as u32).ok();
                1
            }
            'N' | 'I' if !in_text => word(rest, &mut mended),
            _ => {
                mended.push(char);
                char.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    mended
}

fn push_marked(text: &mut String, byte: u8) {
    text.push(MARK);
    text.extend(char::from_u32(BYTE + u32::from(byte)));
}

/// The unit of an escape `\uXXXX` at the beginning of a text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    // A sign would be parsed as well.
    if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) { u16::from_str_radix(digits, 16).ok() } else { None }
}

/// Copies an escape at the beginning of `rest`; a surrogate without its other half is marked. Returns its length.
fn escape(rest: &str, mended: &mut String) -> usize {
    let taken = match (unit(rest), rest.get(6..).and_then(unit)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
        (Some(half @ 0xd800..=0xdfff), _) => {
            let [middle, last] = [half >> 6 & 0x3f | 0x80, half & 0x3f | 0x80].map(|byte| byte as u8);
            for byte in [0xed, middle, last] {
                push_marked(mended, byte);
            }
            return 6;
        }
        (Some(_), _) => 6,
        (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
    };
    mended.push_str(&rest[..taken]);
    taken
}

/// Writes `null` for a number that JSON does not have. Returns the length of the word.
fn word(rest: &str, mended: &mut String) -> usize {
    let Some(word) = ["NaN", "Infinity"].into_iter().find(|word| rest.starts_with(word)) else {
        mended.extend(rest.chars().next());
        return 1;
    };
    // `-null` would be no JSON.
    if mended.ends_with('-') {
        mended.pop();
    }
    mended.push_str("null");
    word.len()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct One {
        a: u32,
    }

    fn texts(pieces: &[&[u8]]) -> String {
        let piece = |piece: &&[u8]| parse::<String>(piece).expect("a text");
        let mut text: String = pieces.iter().map(piece).collect();
        completed(&mut text);
        text
    }

    #[test]
    fn halves_of_characters_are_joined_wherever_they_were_cut() {
        assert_eq!(texts(&[br#""a\ud83d\ude00b""#]), "a😀b");
        assert_eq!(texts(&[br#""a\ud83d""#, br#""\ude00b""#]), "a😀b");
        assert_eq!(texts(&[br#""a\uD83D""#, br#""""#, br#""\uDE00b""#]), "a😀b");
        assert_eq!(texts(&[br#""a\ud83d""#, br#""b""#]), "a\u{fffd}b");
        assert_eq!(texts(&[br#""\ude00\ud83d""#]), "\u{fffd}\u{fffd}");
        assert_eq!(texts(&[br#""\ud83d\ud83d\ude00""#]), "\u{fffd}😀");
        assert_eq!(texts(&[b"\"\xff\""]), "\u{fffd}");
        let face = "😀é".as_bytes();
        for cut in 0..=face.len() {
            let part = |bytes: &[u8]| [b"\"", bytes, b"\""].concat();
            assert_eq!(texts(&[&part(&face[..cut]), &part(&face[cut..])]), "😀é", "{cut}");
        }
        assert_eq!(texts(&[br#""\\ud83d\u00e9\"""#]), "\\ud83dé\"", "an escaped backslash begins no escape");
    }

    #[test]
    fn slips_of_serialisers_are_mended_and_nothing_else_is() {
        let value = |text: &str| parse::<Value>(text.as_bytes()).map_err(|error| error.to_string());
        for (text, wanted) in [
            ("\u{feff}{\"a\": 1}", json!({"a": 1})),
            (
                "{\"a\": NaN, \"b\": [-Infinity, Infinity], \"c\": \"NaN\"}",
                json!({"a": null, "b": [null, null], "c": "NaN"}),
            ),
            ("{\"a\": \"one\ntwo\"}", json!({"a": "one\ntwo"})),
            ("{\"a\": \"\\ud83d\", \"a\": 2}", json!({"a": 2})),
        ] {
            assert_eq!(value(text), Ok(wanted), "{text}");
        }
        assert_eq!(parse::<One>(b"{\"a\": 1, \"a\": 2}").expect("the last one"), One { a: 2 });
        assert_eq!(parse::<One>(br#""{\"a\": 3}""#).expect("a text of JSON"), One { a: 3 });
        for wrong in ["", "{", "{\"a\": ", "nan", "{'a': 1}", "[1,]", "\"a", "{\"a\": \"\\ud83d}"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }
}

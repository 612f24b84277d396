//! JSON values as they are written: a key that stands twice is a fault, and so is a whole number beyond 64 bits. The
//! constants that Python's tools write where JSON has no number (`NaN`, `Infinity`, `-Infinity`) are null.

use searchmill_text::unambiguous::Unambiguous;
use serde::Deserialize;
use serde_json::Value;

use super::record::Fault;

/// Fewest digits of a whole number that may be beyond 64 bits.
const MANY_DIGITS: usize = 19;

/// Words that Python's `json.dumps` writes for numbers that JSON lacks.
const CONSTANTS: [&[u8]; 3] = [b"NaN", b"Infinity", b"-Infinity"];

/// Reads a value.
///
/// # Errors
/// Fails if the text is no JSON, repeats a key in an object, or has a whole number beyond 64 bits.
pub(crate) fn value(record: &[u8]) -> Result<Value, Fault> {
    let mut parser = serde_json::Deserializer::from_slice(record);
    let Unambiguous(value) = Unambiguous::deserialize(&mut parser)?;
    parser.end()?;
    check_numbers(record)?;
    Ok(value)
}

/// Fails if valid JSON has a whole number beyond 64 bits: the parser would round it.
pub(crate) fn check_numbers(record: &[u8]) -> Result<(), Fault> {
    // A run of that many digits covers one of these places.
    let mut index = MANY_DIGITS - 1;
    while let Some(byte) = record.get(index) {
        if byte.is_ascii_digit()
            && let Some((number, end)) = whole_number(record, index)
        {
            let fits = number.parse::<i64>().is_ok() || number.parse::<u64>().is_ok();
            if !fits && !is_in_string(record, index) {
                let message = format!("the whole number {number} is beyond 64 bits: write it as a text, in quotes");
                return Err(Fault::row(message));
            }
            index = end;
        }
        index += MANY_DIGITS;
    }
    Ok(())
}

/// Returns the number around a digit and where it ends, if it is whole and long.
fn whole_number(record: &[u8], index: usize) -> Option<(&str, usize)> {
    let before = record[..index].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let from_there = record[index..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (mut start, end) = (index - before, index + from_there);
    if end - start < MANY_DIGITS || matches!(record.get(end), Some(b'.' | b'e' | b'E')) {
        return None;
    }
    match record[..start].last() {
        // Digits behind a point or of an exponent.
        Some(b'.' | b'+' | b'e' | b'E') => return None,
        Some(b'-') => start -= 1,
        _ => {}
    }
    Some((std::str::from_utf8(&record[start..end]).ok()?, end))
}

fn is_in_string(record: &[u8], index: usize) -> bool {
    let (mut at, mut inside) = (0, false);
    while let Some(found) = memchr::memchr2(b'"', b'\\', &record[at..index]) {
        inside ^= record[at + found] == b'"';
        // The character behind a backslash is escaped.
        at = index.min(at + found + if record[at + found] == b'\\' { 2 } else { 1 });
    }
    inside
}

/// Reads a record. If it is no JSON because of constants of Python, they count as null; returns whether that was so.
///
/// # Errors
/// Why the record cannot be read.
pub fn with_constants<T>(record: &[u8], mut read: impl FnMut(&[u8]) -> Result<T, Fault>) -> Result<(T, bool), Fault> {
    match read(record) {
        Ok(read) => Ok((read, false)),
        Err(fault) if fault.kind != "bad_line" => Err(fault),
        // Only now: nearly all records are JSON, and looking for constants costs as much as reading.
        Err(fault) => match without_constants(record) {
            Some(mended) => Ok((read(&mended)?, true)),
            None => Err(fault),
        },
    }
}

/// Returns the record with `null` for each constant outside of texts; `None` if it has none.
fn without_constants(record: &[u8]) -> Option<Vec<u8>> {
    let (mut mended, mut at, mut inside) = (Vec::with_capacity(record.len()), 0, false);
    let mut found = false;
    while let Some(byte) = record.get(at) {
        // `NaN` in a text is a text.
        let constant = CONSTANTS.iter().find(|word| !inside && record[at..].starts_with(word));
        if let Some(word) = constant {
            mended.extend_from_slice(b"null");
            at += word.len();
            found = true;
            continue;
        }
        if inside && *byte == b'\\' {
            let end = record.len().min(at + 2);
            mended.extend_from_slice(&record[at..end]);
            at = end;
            continue;
        }
        inside ^= *byte == b'"';
        mended.push(*byte);
        at += 1;
    }
    if found { Some(mended) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fault(text: &str) -> String {
        value(text.as_bytes()).unwrap_err().message
    }

    #[test]
    fn a_key_that_stands_twice_is_a_fault_at_any_depth() {
        assert_eq!(fault(r#"{"a": 1, "b": 2, "a": 1}"#), "the field `a` is there twice");
        assert!(fault(r#"[{"x": [{"k": 1, "k": null}]}]"#).contains("`k`"));
        let text = r#"{"a": {"a": [1, -2, 1.5, null, true, "é"]}, "b": {}}"#;
        assert_eq!(value(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn whole_numbers_beyond_64_bits_are_faults_wherever_they_stand() {
        for pad in 0..40 {
            let blank = " ".repeat(pad);
            for number in ["18446744073709551616", "-9223372036854775809", "100000000000000000000000000000"] {
                assert!(fault(&format!("{{\"n\":{blank}{number}}}")).contains(number), "{pad} {number}");
            }
            for fine in
                ["18446744073709551615", "-9223372036854775808", "1e40", "0.12345678901234567890123", "1.5e-300"]
            {
                assert!(value(format!("[{blank}{fine}]").as_bytes()).is_ok(), "{pad} {fine}");
            }
            let text = format!("[{blank}\"12345678901234567890123\\\"\", \"\\\\\", 1]");
            assert!(value(text.as_bytes()).is_ok(), "{text}");
        }
    }

    #[test]
    fn constants_of_python_are_null_outside_of_texts() {
        let read = |text: &str| with_constants(text.as_bytes(), value).map_err(|fault| fault.message);
        let (found, mended) = read(r#"{"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" NaN"}"#).unwrap();
        assert_eq!((found, mended), (json!({"a": null, "b": [null, null], "c": "NaN \" NaN"}), true));
        assert_eq!(read(r#"{"a": "NaN"}"#).unwrap(), (json!({"a": "NaN"}), false));
        assert!(read(r#"{"a": NaNa}"#).is_err() && read(r#"{"a": nan}"#).is_err() && read("{\"a\": ").is_err());
    }
}

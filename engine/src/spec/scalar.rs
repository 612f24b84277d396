//! Plain scalars by YAML 1.2's core schema (<https://yaml.org/spec/1.2.2/#103-core-schema>).

use super::value::Value;

/// Returns the value of a plain scalar. `no`, `1_000` and dates are strings; `007` is 7 unless a string is required
/// later.
pub(super) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => return Value::Float(f64::NAN),
        _ => {}
    }
    if text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.')) {
        // A whole number beyond `i64` becomes a float.
        if let Some(number) = integer(text).map(Value::Int).or_else(|| number(text).map(Value::Float)) {
            return number;
        }
    }
    Value::String(text.to_owned())
}

/// Parses an integer of the core schema (`12`, `-3`, `0x1f`, `0o17`) that fits `i64`.
pub(super) fn integer(text: &str) -> Option<i64> {
    if let Some(digits) = text.strip_prefix("0x") {
        return unsigned(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return unsigned(digits, 8);
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) { None } else { text.parse().ok() }
}

fn unsigned(digits: &str, radix: u32) -> Option<i64> {
    // `from_str_radix` takes a sign; the core schema allows none here.
    if digits.starts_with(['+', '-']) { None } else { i64::from_str_radix(digits, radix).ok() }
}

/// Parses a number of the core schema (`1e-4`, `.5`, `-.inf`, `12`).
pub(super) fn number(text: &str) -> Option<f64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if matches!(digits, ".inf" | ".Inf" | ".INF") {
        return Some(if text.starts_with('-') { f64::NEG_INFINITY } else { f64::INFINITY });
    }
    // Rust also parses `inf` and `nan`, which are words in YAML.
    let shaped = digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    if shaped && digits.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        text.parse().ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_schema() {
        for (text, value) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("True", Value::Bool(true)),
            ("no", Value::String("no".into())),
            ("12", Value::Int(12)),
            ("+12", Value::Int(12)),
            ("007", Value::Int(7)),
            ("0o17", Value::Int(15)),
            ("0x1F", Value::Int(31)),
            ("0x-1", Value::String("0x-1".into())),
            ("1_000", Value::String("1_000".into())),
            ("1e-4", Value::Float(1e-4)),
            ("12e03", Value::Float(12000.0)),
            (".5", Value::Float(0.5)),
            ("1.", Value::Float(1.0)),
            (".", Value::String(".".into())),
            ("-", Value::String("-".into())),
            ("1-2", Value::String("1-2".into())),
            ("2026-01-01", Value::String("2026-01-01".into())),
            ("-.inf", Value::Float(f64::NEG_INFINITY)),
            ("infinity", Value::String("infinity".into())),
            ("99999999999999999999", Value::Float(1e20)),
        ] {
            assert_eq!(resolve(text), value, "{text:?}");
        }
    }
}

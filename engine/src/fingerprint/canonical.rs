//! Encodes values canonically: typed, length-prefixed, keys sorted. Only equal values have equal encodings.

use std::collections::BTreeMap;

use serde_json::Value;

/// Returns the canonical encoding: a type letter, then a length or fixed-width value, then the content. Integers and
/// floats never have equal encodings. Floats are encoded by their IEEE bits, so `-0.0` differs from `0.0`.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    append(value, &mut out);
    out
}

fn append(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.push(b'n'),
        Value::Bool(flag) => out.extend([b'b', u8::from(*flag)]),
        Value::Number(number) => {
            let (tag, bytes) = match (number.as_i64(), number.as_u64()) {
                (Some(signed), _) => (b'i', signed.to_be_bytes()),
                (None, Some(unsigned)) => (b'u', unsigned.to_be_bytes()),
                (None, None) => (b'f', number.as_f64().unwrap_or(f64::NAN).to_be_bytes()),
            };
            out.push(tag);
            out.extend(bytes);
        }
        Value::String(text) => append_text(text, out),
        Value::Array(items) => {
            append_length(b'l', items.len(), out);
            for item in items {
                append(item, out);
            }
        }
        Value::Object(map) => {
            append_length(b'm', map.len(), out);
            // Keys in one order, whatever features of serde_json another crate turns on.
            for (key, value) in map.iter().collect::<BTreeMap<_, _>>() {
                append_text(key, out);
                append(value, out);
            }
        }
    }
}

fn append_text(text: &str, out: &mut Vec<u8>) {
    append_length(b's', text.len(), out);
    out.extend(text.as_bytes());
}

fn append_length(tag: u8, length: usize, out: &mut Vec<u8>) {
    out.push(tag);
    out.extend((length as u64).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::encode;

    #[test]
    fn key_order_does_not_matter_and_types_do() {
        let one: serde_json::Value = serde_json::from_str(r#"{"a":1,"b":[1,2]}"#).unwrap();
        let two: serde_json::Value = serde_json::from_str(r#"{"b":[1,2],"a":1}"#).unwrap();
        assert_eq!(encode(&one), encode(&two));
        assert_ne!(encode(&json!(1)), encode(&json!(1.0)));
        assert_ne!(encode(&json!("1")), encode(&json!(1)));
        assert_ne!(encode(&json!(["ab", "c"])), encode(&json!(["a", "bc"])));
        assert_ne!(encode(&json!([[], []])), encode(&json!([[[]]])));
        assert_ne!(encode(&json!(-0.0)), encode(&json!(0.0)), "an operator may tell them apart");
    }
}

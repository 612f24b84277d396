//! Templates of requests: `{name}` stands for an argument of the model's call.
//!
//! URLs follow RFC 6570, section 3.2: `{name}` is percent-encoded, `{+name}` keeps reserved characters.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::tool::plain;

/// A part of a template.
#[derive(Debug, PartialEq)]
enum Piece<'t> {
    Text(&'t str),
    Argument { name: &'t str, reserved: bool },
}

/// Splits a template. A brace that encloses no name is text.
fn pieces(template: &str) -> Vec<Piece<'_>> {
    let (mut found, mut text, mut at) = (Vec::new(), 0, 0);
    while let Some(before) = template[at..].find('{') {
        let open = at + before;
        let Some(length) = template[open..].find('}') else { break };
        let close = open + length;
        let inside = &template[open + 1..close];
        let name = inside.strip_prefix('+').unwrap_or(inside);
        if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            found.push(Piece::Text(&template[text..open]));
            found.push(Piece::Argument { name, reserved: name != inside });
            (text, at) = (close + 1, close + 1);
        } else {
            at = open + 1;
        }
    }
    found.push(Piece::Text(&template[text..]));
    found
}

/// Names of the arguments in a text.
pub(super) fn names(template: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for piece in pieces(template) {
        if let Piece::Argument { name, .. } = piece {
            names.insert(name);
        }
    }
    names
}

/// Names of the arguments in the texts of a JSON template.
pub(super) fn names_in(template: &Value) -> BTreeSet<&str> {
    match template {
        Value::String(text) => names(text),
        Value::Array(items) => items.iter().flat_map(names_in).collect(),
        Value::Object(fields) => fields.values().flat_map(names_in).collect(),
        _ => BTreeSet::new(),
    }
}

/// Splits a URL after its host. The address of a service (`${service.NAME}`) is a host.
pub(super) fn at_path(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |place| place + 3);
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |place| start + place);
    url.split_at(end)
}

/// Whether arguments stand before the path of a URL: the model would choose the host.
pub(super) fn chooses_host(url: &str) -> bool {
    !names(at_path(url).0).is_empty()
}

/// Fills a URL; an argument that is missing is empty.
pub(super) fn url(template: &str, arguments: &Map<String, Value>) -> String {
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Argument { name, reserved } => {
                encode(&arguments.get(name).map(plain).unwrap_or_default(), reserved, &mut filled);
            }
        }
    }
    filled
}

/// Percent-encodes all but unreserved characters (RFC 3986, section 2.3), and reserved ones if asked.
fn encode(text: &str, reserved: bool, filled: &mut String) {
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        // `%` stays as well: what is encoded already is not encoded twice (RFC 6570, section 3.2.3).
        if plain || (reserved && b":/?#[]@!$&'()*+,;=%".contains(&byte)) {
            filled.push(char::from(byte));
        } else {
            filled.push_str(&format!("%{byte:02X}"));
        }
    }
}

/// Fills a JSON template. A text that is one argument becomes its value, with its type; a field or item whose argument
/// is missing is left out.
pub(super) fn body(template: &Value, arguments: &Map<String, Value>) -> Option<Value> {
    Some(match template {
        Value::String(text) => match pieces(text).as_slice() {
            [Piece::Text(""), Piece::Argument { name, .. }, Piece::Text("")] => arguments.get(*name)?.clone(),
            pieces => Value::String(pieces.iter().map(|piece| text_of(piece, arguments)).collect()),
        },
        Value::Array(items) => items.iter().filter_map(|item| body(item, arguments)).collect(),
        Value::Object(fields) => {
            let fields = fields.iter();
            fields.filter_map(|(name, value)| Some((name.clone(), body(value, arguments)?))).collect()
        }
        other => other.clone(),
    })
}

fn text_of(piece: &Piece<'_>, arguments: &Map<String, Value>) -> String {
    match piece {
        Piece::Text(text) => (*text).to_owned(),
        Piece::Argument { name, .. } => arguments.get(*name).map(plain).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn arguments(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn urls_are_filled_and_encoded() {
        let given = arguments(json!({"q": "a b&c/ü", "k": 3, "page": "https://x.org/a?b=c d"}));
        assert_eq!(url("https://h/s?q={q}&k={k}&z={z}", &given), "https://h/s?q=a%20b%26c%2F%C3%BC&k=3&z=");
        assert_eq!(url("https://r/{+page}", &given), "https://r/https://x.org/a?b=c%20d");
        assert_eq!(url("https://h/{ }/{}", &given), "https://h/{ }/{}");
    }

    #[test]
    fn bodies_keep_the_types_of_arguments() {
        let given = arguments(json!({"q": "Rome", "k": 3, "tags": ["a"]}));
        let template = json!({"query": "{q}", "n": "{k}", "t": "{tags}", "none": "{none}", "more": ["x: {q} {k}", 7]});
        let filled = body(&template, &given).expect("a body");
        assert_eq!(filled, json!({"query": "Rome", "n": 3, "t": ["a"], "more": ["x: Rome 3", 7]}));
        assert_eq!(names_in(&template).into_iter().collect::<Vec<_>>(), ["k", "none", "q", "tags"]);
    }

    #[test]
    fn what_an_argument_contains_is_not_filled_again() {
        let given = arguments(json!({"q": "{k}", "k": "secret"}));
        assert_eq!(body(&json!("{q}!"), &given), Some(json!("{k}!")));
        assert_eq!(url("https://h/{q}", &given), "https://h/%7Bk%7D");
    }

    #[test]
    fn the_model_never_chooses_the_host() {
        for bad in ["{+url}", "https://{host}/x", "https://h{x}", "{scheme}://h/x"] {
            assert!(chooses_host(bad), "{bad}");
        }
        assert!(!chooses_host("https://h:80/{+url}") && !chooses_host("https://h?q={q}"));
    }
}

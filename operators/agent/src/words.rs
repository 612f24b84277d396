//! What a server says of a failure: the text of its response, reduced to one short line without secrets and control
//! characters.

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, RETRY_AFTER, SERVER, WWW_AUTHENTICATE};
use searchmill_engine::operator::Redactor;
use serde_json::Value;

/// Maximum length of a server's words in a message, in characters.
const MOST_CHARS: usize = 300;

/// Number of errors read of a list (at most).
const MOST_ERRORS: usize = 3;

/// Headers that say why a request failed.
const REASONS: [HeaderName; 2] = [WWW_AUTHENTICATE, RETRY_AFTER];

/// Headers that name the request in the server's log. They differ from call to call.
const NAMES: [&str; 4] = ["x-request-id", "request-id", "x-error-code", "cf-ray"];

/// The words of a server.
#[derive(Debug)]
pub(crate) struct Words {
    /// The whole text of the body.
    pub(crate) text: String,
    /// One short line for a message; empty if the server says nothing.
    pub(crate) line: String,
    /// Headers that name the request.
    pub(crate) names: String,
}

impl Words {
    /// Reads the words of a response. Secrets are struck out before anything is cut off: a truncated secret would not be
    /// recognised.
    pub(crate) fn of(headers: &HeaderMap, body: &[u8], redactor: &Redactor) -> Self {
        let body = redactor.strike(&String::from_utf8_lossy(body)).into_owned();
        let is_page = is_page(headers, body.as_bytes());
        // What stood escaped in JSON or was cut by tags may be a secret now.
        let text = redactor.strike(&if is_page { page(&body) } else { text(&body) }).into_owned();
        let mut reasons = listed(headers, &REASONS, redactor);
        // A page or an empty body often comes from a proxy: its name says who answered.
        if is_page || text.trim().is_empty() {
            reasons.extend(listed(headers, &[SERVER], redactor));
        }
        let reasons = reasons.join(", ");
        let mut line = one_line(&text);
        if line.is_empty() && !reasons.is_empty() {
            line = one_line(&format!("({reasons})"));
        } else if !reasons.is_empty() {
            line = format!("{line} ({})", one_line(&reasons));
        }
        let names = listed(headers, &NAMES.map(HeaderName::from_static), redactor);
        Self { text, line, names: one_line(&names.join(", ")) }
    }

    /// Returns the words as the end of a message: `: WORDS`, or nothing.
    pub(crate) fn ending(&self) -> String {
        if self.line.is_empty() { String::new() } else { format!(": {}", self.line) }
    }
}

/// Returns those of the headers that were sent, each as `name: value`.
fn listed(headers: &HeaderMap, names: &[HeaderName], redactor: &Redactor) -> Vec<String> {
    let sent = names.iter().filter_map(|name| Some((name, headers.get(name)?.to_str().ok()?)));
    sent.map(|(name, value)| format!("{name}: {}", redactor.strike(value))).collect()
}

/// Returns the words of a body without headers, for a message.
pub(crate) fn brief(body: &str) -> String {
    one_line(&if is_page(&HeaderMap::new(), body.as_bytes()) { page(body) } else { text(body) })
}

/// Whether a body is a page for people.
pub(crate) fn is_page(headers: &HeaderMap, body: &[u8]) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.trim_ascii_start();
    let start = body[..body.len().min(15)].to_ascii_lowercase();
    kind.to_ascii_lowercase().contains("html") || start.starts_with(b"<!doctype html") || start.starts_with(b"<html")
}

/// Returns the beginning of a text on one line, control characters and direction marks written out.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (count, ch) in text.split_whitespace().flat_map(|word| word.chars().chain([' '])).enumerate() {
        if count == MOST_CHARS {
            line.truncate(line.trim_end().len());
            line.push('…');
            return line;
        }
        // A server's words must not move the cursor or turn the text of a terminal.
        if ch.is_control()
            || matches!(ch, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            line.push_str(&format!("\\u{:04x}", u32::from(ch)));
        } else {
            line.push(ch);
        }
    }
    line.truncate(line.trim_end().len());
    line
}

/// Returns the title and the first words of a page.
fn page(body: &str) -> String {
    let lower = body.to_ascii_lowercase();
    let (mut text, mut at) = (String::new(), 0);
    while let Some(found) = lower[at..].find('<') {
        let open = at + found;
        text.push_str(&body[at..open]);
        text.push(' ');
        // What stands in a style or a script is no text.
        let end = match &lower[open + 1..] {
            hidden if hidden.starts_with("style") => "</style>",
            hidden if hidden.starts_with("script") => "</script>",
            _ => ">",
        };
        at = match lower[open..].find(end) {
            Some(found) => open + found + end.len(),
            // A tag that does not end hides the rest.
            None => body.len(),
        };
    }
    text.push_str(&body[at..]);
    text
}

/// Returns the message of an error in JSON, or the text itself.
fn text(body: &str) -> String {
    let body = body.trim();
    // An event of a stream.
    let json = body.strip_prefix("data:").map_or(body, str::trim);
    if let Ok(value) = serde_json::from_str(json)
        && let Some(message) = message(&value)
    {
        return message;
    }
    body.to_owned()
}

/// Returns the message of an error object, in the forms that servers use.
fn message(value: &Value) -> Option<String> {
    const MESSAGES: [&str; 8] = ["error", "message", "detail", "msg", "error_description", "errors", "reason", "title"];
    match value {
        Value::String(text) if text.trim().is_empty() => None,
        Value::String(text) => Some(text.clone()),
        Value::Array(errors) => {
            let found: Vec<String> = errors.iter().take(MOST_ERRORS).filter_map(message).collect();
            if found.is_empty() { None } else { Some(found.join("; ")) }
        }
        Value::Object(object) => {
            let mut found = MESSAGES.iter().filter_map(|name| object.get(*name)).find_map(message)?;
            // FastAPI names the field.
            if let Some(Value::Array(place)) = object.get("loc") {
                let place: Vec<String> = place.iter().map(crate::tool::plain).collect();
                found = format!("{}: {found}", place.join("."));
            }
            for name in ["code", "type"] {
                let code = object.get(name).and_then(Value::as_str).unwrap_or_default();
                // Such codes name the failure (`insufficient_quota`): `remedy` knows many of them.
                if code.contains('_') && !found.contains(code) {
                    found.push_str(&format!(" [{code}]"));
                    break;
                }
            }
            Some(found)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    fn line(body: &str) -> String {
        Words::of(&HeaderMap::new(), body.as_bytes(), &Redactor::default()).line
    }

    #[test]
    fn errors_are_read_in_the_forms_that_servers_use() {
        for (body, said) in [
            (
                r#"{"error": {"message": "no such model", "code": "model_not_found"}}"#,
                "no such model [model_not_found]",
            ),
            (
                r#"{"object": "error", "message": "The model `nope` does not exist.", "code": 404}"#,
                "The model `nope` does not exist.",
            ),
            (r#"{"detail": "Not Found"}"#, "Not Found"),
            (
                r#"{"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs", "type": "extra_forbidden"}]}"#,
                "body.seed: Extra inputs [extra_forbidden]",
            ),
            (
                r#"{"error": "model \"nope\" not found, try pulling it first"}"#,
                "model \"nope\" not found, try pulling it first",
            ),
            (r#"{"error": "Tool error", "error_type": "template_error"}"#, "Tool error"),
            ("data: {\"error\": {\"message\": \"busy\"}}\n\n", "busy"),
            ("upstream\n connect error", "upstream connect error"),
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("", ""),
        ] {
            assert_eq!(line(body), said, "{body}");
        }
    }

    #[test]
    fn a_page_becomes_its_text() {
        let page = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>h1 {a: b}</style></head><body>\
                    <h1>502 Bad Gateway</h1><script>alert('<p>')</script><hr>nginx</body></html>";
        let mut headers = HeaderMap::new();
        headers.insert(SERVER, HeaderValue::from_static("nginx/1.27"));
        let said = Words::of(&headers, page.as_bytes(), &Redactor::default());
        assert_eq!(said.line, "502 Bad Gateway 502 Bad Gateway nginx (server: nginx/1.27)");
        assert!(Words::of(&headers, b"", &Redactor::default()).line.contains("nginx"));
        assert_eq!(line("<html><p"), "");
    }

    #[test]
    fn secrets_control_characters_and_length_are_no_matter() {
        let redactor = Redactor::default();
        redactor.learn("KEY", "sk-live-5f3a/ü");
        let long = format!("{}sk-live-5f3a/ü", "x".repeat(MOST_CHARS - 4));
        let cut = Words::of(&HeaderMap::new(), long.as_bytes(), &redactor).line;
        assert!(!cut.contains("sk-l") && cut.ends_with('…'), "{cut}");
        let escaped = br#"{"error": "bad \u0073k-live-5f3a\/\u00fc \u001b[2J\u202e"}"#;
        assert_eq!(Words::of(&HeaderMap::new(), escaped, &redactor).line, "bad [secret KEY] \\u001b[2J\\u202e");
        let mut headers = HeaderMap::new();
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
        headers.insert("x-request-id", HeaderValue::from_static("sk-live-5f3a"));
        redactor.learn("OTHER", "sk-live-5f3a");
        let said = Words::of(&headers, b"", &redactor);
        assert_eq!(said.line, "(www-authenticate: Bearer error=\"invalid_token\")");
        assert_eq!(said.names, "x-request-id: [secret OTHER]");
    }
}

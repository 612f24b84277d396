//! Redacts secrets in stored or shown text.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Shorter values are not redacted: they occur in ordinary words.
const SHORTEST: usize = 6;

/// Name endings of environment variables with credentials (HF_TOKEN, AWS_SECRET_ACCESS_KEY). Numbers and values shorter
/// than [`SHORTEST_CREDENTIAL`] do not count.
const CREDENTIALS: [&str; 4] = ["TOKEN", "SECRET", "PASSWORD", "_KEY"];
const SHORTEST_CREDENTIAL: usize = 8;

/// The secrets of a run, each in the forms in which servers and programs repeat it: as is, escaped in JSON, HTML or a
/// URL, and in base64 (also within longer text, as in basic authentication). Cheap to clone; clones share what they
/// learn.
#[derive(Clone, Default)]
pub struct Redactor(Arc<RwLock<Vec<Form>>>);

struct Form {
    text: String,
    instead: String,
}

impl Redactor {
    /// Creates a redactor with the credentials from the environment.
    pub fn of_environment() -> Self {
        let redactor = Self::default();
        for (name, value) in std::env::vars_os() {
            let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
            // Numbers and short words occur in ordinary text.
            let long = value.trim().chars().count() >= SHORTEST_CREDENTIAL && value.trim().parse::<f64>().is_err();
            if long && CREDENTIALS.iter().any(|end| name.ends_with(end)) {
                redactor.learn(&name, &value);
            }
        }
        redactor
    }

    /// Adds the value of a secret, which is then shown as `[secret NAME]`. Values of fewer than 6 characters are
    /// ignored.
    pub fn learn(&self, name: &str, value: &str) {
        let value = value.trim();
        if value.chars().count() < SHORTEST {
            return;
        }
        let instead = format!("[secret {name}]");
        let mut forms = self.0.write().unwrap_or_else(PoisonError::into_inner);
        for text in forms_of(value) {
            // Two secrets with one value are shown by the name that came first.
            if forms.iter().all(|form| form.text != text) {
                forms.push(Form { text, instead: instead.clone() });
            }
        }
        // Longest first, so that a secret contained in another one is redacted after it.
        forms.sort_by(|one, other| other.text.len().cmp(&one.text.len()).then_with(|| one.text.cmp(&other.text)));
    }

    /// Adds the value of an environment variable that a program gets, whatever its name; settings are no secrets.
    pub fn learn_variable(&self, name: &str) {
        if let Ok(value) = std::env::var(name)
            && !is_setting(&value)
        {
            self.learn(name, &value);
        }
    }

    /// Returns the text without secrets.
    pub fn strike<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let forms = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (mut struck, mut rest) = (String::new(), text);
        loop {
            let matches = forms.iter().filter_map(|form| Some((rest.find(&form.text)?, form)));
            // Of two matches at one position, the longer one, which is first in the list.
            let Some((at, form)) = matches.min_by_key(|(at, _)| *at) else { break };
            struck.push_str(&rest[..at]);
            struck.push_str(&form.instead);
            rest = &rest[at + form.text.len()..];
        }
        if struck.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(struck + rest) }
    }

    /// Redacts a text in place.
    pub fn clean(&self, text: &mut String) {
        if let Cow::Owned(struck) = self.strike(text) {
            *text = struck;
        }
    }

    /// Redacts several texts in place.
    pub fn clean_all<'t>(&self, texts: impl IntoIterator<Item = &'t mut String>) {
        texts.into_iter().for_each(|text| self.clean(text));
    }

    /// Whether no secrets are known.
    pub fn is_empty(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Whether the value of an environment variable can be no secret: a short number, or paths that exist.
pub fn is_setting(value: &str) -> bool {
    let is_short = value.len() < SHORTEST_CREDENTIAL;
    if is_short && value.chars().all(|ch| ch.is_ascii_digit() || "., -".contains(ch)) {
        return true;
    }
    let mut parts = value.split(':').filter(|part| !part.is_empty()).map(Path::new).peekable();
    parts.peek().is_some() && parts.all(|part| part.is_absolute() && part.exists())
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

fn forms_of(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    forms.extend(in_json(value));
    forms.extend(in_html(value));
    // Libraries differ in the characters they leave as is and in the case of hexadecimal digits.
    for kept in ["", "-_.~", "-_.~!*'()"] {
        forms.extend([in_url(value, kept, false), in_url(value, kept, true)]);
    }
    for before in 0..3 {
        forms.extend([STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|encoding| within_base64(value, before, &encoding)));
    }
    forms.retain(|form| form.len() >= SHORTEST);
    forms
}

/// Returns the value as JSON libraries of common languages write it. Some escape HTML characters (Go, Ruby, Gson, .NET,
/// PHP's `JSON_HEX_…`), some the slash (PHP), some all non-ASCII (Python, PHP, .NET), with hexadecimal digits of either
/// case.
fn in_json(value: &str) -> Vec<String> {
    let mut forms = Vec::new();
    for marks in ["", "<>&", "<>&'", "<>&'=", "<>&'\"", "<>&'\"+`"] {
        for bits in 0..16 {
            let [ascii, slash, upper_mark, upper] = [1, 2, 4, 8].map(|bit| bits & bit > 0);
            let mut form = String::new();
            for ch in value.chars() {
                match ch {
                    '/' if slash => form.push_str("\\/"),
                    _ if marks.contains(ch) => form.push_str(&in_utf16(ch, upper_mark)),
                    _ if ascii && !ch.is_ascii() => form.push_str(&in_utf16(ch, upper)),
                    _ => {
                        let quoted = serde_json::Value::from(ch.to_string()).to_string();
                        form.push_str(&quoted[1..quoted.len() - 1]);
                    }
                }
            }
            forms.push(form);
        }
    }
    forms
}

fn in_utf16(ch: char, upper: bool) -> String {
    let mut units = [0; 2];
    let units = ch.encode_utf16(&mut units).iter();
    units.map(|unit| if upper { format!("\\u{unit:04X}") } else { format!("\\u{unit:04x}") }).collect()
}

/// Returns the value as HTML text; libraries differ in quotes, and some escape slashes or plus signs.
fn in_html(value: &str) -> Vec<String> {
    let quotes = [("&quot;", "&#39;"), ("&#34;", "&#39;"), ("&quot;", "&#x27;"), ("&quot;", "&#039;"), ("\"", "'")];
    let mut forms = Vec::new();
    for (double, single) in quotes {
        for (slash, plus) in [("/", "+"), ("&#x2F;", "+"), ("/", "&#43;")] {
            let text = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let text = text.replace('"', double).replace('\'', single);
            forms.push(text.replace('/', slash).replace('+', plus));
        }
    }
    forms
}

/// Percent-encodes everything except letters, digits and `kept`.
fn in_url(value: &str, kept: &str, lower: bool) -> String {
    let mut text = String::new();
    for byte in value.bytes() {
        match byte {
            _ if byte.is_ascii_alphanumeric() || kept.as_bytes().contains(&byte) => text.push(char::from(byte)),
            _ if lower => text.push_str(&format!("%{byte:02x}")),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Returns the base64 characters that depend on the value alone, if `before` bytes (modulo 3) precede it.
fn within_base64(value: &str, before: usize, encoding: &impl Engine) -> String {
    let bytes = [&vec![0; before], value.as_bytes()].concat();
    // The characters at either end also depend on the bytes around the value.
    let (start, end) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
    encoding.encode(&bytes)[start..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-Zo\"7/é+9?kkq";

    #[test]
    fn every_form_of_a_secret_is_struck() {
        let redactor = Redactor::default();
        redactor.learn("KEY", &format!(" {KEY}\n"));
        let url: String = url::form_urlencoded::byte_serialize(KEY.as_bytes()).collect();
        let json = serde_json::json!({"error": format!("bad key {KEY}!")}).to_string();
        for text in [KEY.to_owned(), format!("Bearer {KEY}."), format!("?key={url}&x=1"), json] {
            let struck = redactor.strike(&text).into_owned();
            assert!(struck.contains("[secret KEY]"), "{struck}");
            assert!(!struck.contains("7/") && !struck.contains("9%3F") && !struck.contains("kkq"), "{struck}");
        }
        for user in ["", "u", "me", "you", "user@host"] {
            let basic = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{KEY}"));
            let struck = redactor.strike(&basic).into_owned();
            assert!(struck.contains("[secret KEY]"), "{basic} {struck}");
            let rest: String = struck.split("[secret KEY]").collect();
            assert!(rest.len() < user.len() * 2 + 8, "{basic} {struck}");
        }
    }

    #[test]
    fn escaped_secrets_are_struck() {
        let redactor = Redactor::default();
        redactor.learn("KEY", "sk/<a>&'b'+\"é\\n😀");
        let escaped = [
            ("Python", r#"sk/<a>&'b'+\"\u00e9\\n\ud83d\ude00"#),
            ("PHP", r#"sk\/<a>&'b'+\"\u00e9\\n\ud83d\ude00"#),
            ("PHP, hexadecimal", r"sk\/\u003Ca\u003E\u0026\u0027b\u0027+\u0022\u00e9\\n\ud83d\ude00"),
            ("Go", r#"sk/\u003ca\u003e\u0026'b'+\"é\\n😀"#),
            (".NET", r"sk/\u003Ca\u003E\u0026\u0027b\u0027\u002B\u0022\u00E9\\n\uD83D\uDE00"),
            ("HTML", r"sk/&lt;a&gt;&amp;&#39;b&#39;+&quot;é\n😀"),
            ("HTML of Python", r"sk/&lt;a&gt;&amp;&#x27;b&#x27;+&quot;é\n😀"),
            ("HTML of Go", r"sk/&lt;a&gt;&amp;&#39;b&#39;&#43;&#34;é\n😀"),
        ];
        for (library, text) in escaped {
            assert_eq!(redactor.strike(&format!("a {text} b")), "a [secret KEY] b", "{library}");
        }
    }

    #[test]
    fn longer_secrets_go_first_and_short_ones_stay() {
        let redactor = Redactor::default();
        assert!(redactor.is_empty());
        redactor.learn("SHORT", "abc");
        redactor.learn("PART", "secret");
        redactor.learn("WHOLE", "secret-and-more");
        assert_eq!(redactor.strike("abc secret-and-more secret"), "abc [secret WHOLE] [secret PART]");
        assert!(matches!(redactor.strike("nothing here"), Cow::Borrowed(_)));
    }

    #[test]
    fn clones_share_what_they_learn() {
        let redactor = Redactor::default();
        let other = redactor.clone();
        redactor.learn("KEY", "123456");
        let mut text = "key 123456".to_owned();
        other.clean(&mut text);
        assert_eq!(text, "key [secret KEY]");
    }
}

//! User names and passwords in URLs. URLs appear in results, runs and messages, so credentials must not appear in URLs.

use std::ops::Range;

/// Whether a text is a URL with user info (`https://user:password@host/…`), or contains one with a password. In `abfs`
/// URLs the name before the `@` is a container.
pub fn has_user_info(text: &str) -> bool {
    credentials(text, false).next().is_some()
}

/// Replaces user info in URLs by `…`, for messages.
pub fn without_user_info(text: &str) -> String {
    let (mut shown, mut end) = (String::new(), 0);
    for user in credentials(text, true) {
        shown.push_str(&text[end..user.start]);
        shown.push('…');
        end = user.end;
    }
    shown + &text[end..]
}

/// Returns the positions of credentials; with `all`, also of names without a password within longer text.
fn credentials(text: &str, all: bool) -> impl Iterator<Item = Range<usize>> {
    text.match_indices("://").filter_map(move |(at, found)| {
        let start = at + found.len();
        let mut before = text[..at].rsplit(|ch: char| !ch.is_ascii_alphanumeric() && !"+-.".contains(ch));
        let scheme = before.next().unwrap_or_default();
        let authority = text[start..].split(|ch: char| ch.is_whitespace() || "/?#\"'`<>()".contains(ch)).next()?;
        // The last one: passwords may contain the sign.
        let (user, _) = authority.rsplit_once('@')?;
        let whole = (all || scheme.len() == at) && !scheme.to_ascii_lowercase().starts_with("abfs");
        let tells = user.contains(':') || (whole && !user.is_empty());
        (!scheme.is_empty() && tells).then_some(start..start + user.len())
    })
}

#[cfg(test)]
mod tests {
    use super::{has_user_info, without_user_info};

    #[test]
    fn credentials_in_urls_are_seen() {
        for text in [
            "https://user:pass@host/v1",
            "https://user@host",
            "s3://key:secret@bucket/x",
            "http://:pass@host",
            "--url=https://u:p@h/x",
            "abfss://box:key@account.dfs.core.windows.net/x",
            "https://u:${secret:PASS}@h",
        ] {
            assert!(has_user_info(text), "{text}");
        }
        for text in [
            "https://host/v1@2",
            "hf://datasets/org/name/train.parquet@main",
            "abfss://box@account.dfs.core.windows.net/x",
            "https://host?q=a@b",
            "url LIKE 'https://a@b'",
            "me@host",
            "://a:b@c",
            "a: b@c",
        ] {
            assert!(!has_user_info(text), "{text}");
        }
    }

    #[test]
    fn credentials_are_left_out() {
        let text = "path: ['https://me:hunter2@host/x', https://host/y@z, s3://:k@b, http://me@c]";
        assert_eq!(without_user_info(text), "path: ['https://…@host/x', https://host/y@z, s3://…@b, http://…@c]");
    }
}

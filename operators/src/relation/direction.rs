//! Keys with a direction, such as `reward desc`.

/// Splits `reward desc` into the key and whether it descends.
pub(crate) fn directed(text: &str) -> Option<(&str, bool)> {
    let (key, direction) = text.trim().rsplit_once(char::is_whitespace)?;
    let descends = direction.eq_ignore_ascii_case("desc");
    (descends || direction.eq_ignore_ascii_case("asc")).then(|| (key.trim_end(), descends))
}

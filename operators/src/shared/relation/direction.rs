//! Keys with a direction, such as `reward desc`.

use searchmill_engine::spec::closest;

/// Splits `reward desc` into the key and whether it descends.
pub(crate) fn directed(text: &str) -> Option<(&str, bool)> {
    let (key, direction) = text.trim().rsplit_once(char::is_whitespace)?;
    let descends = direction.eq_ignore_ascii_case("desc");
    (descends || direction.eq_ignore_ascii_case("asc")).then(|| (key.trim_end(), descends))
}

/// Advises on a key without a direction: `reward dsc` and `reward descending` mean `reward desc`.
pub(crate) fn direction_advice(text: &str) -> String {
    let both = |key: &str| format!("write `{key} desc` (higher is better) or `{key} asc` (lower is better)");
    let Some((key, last)) = text.trim().rsplit_once(char::is_whitespace) else { return both(text.trim()) };
    let key = key.trim_end();
    match closest(last, ["desc", "asc", "descending", "ascending"]) {
        Some(meant) if meant.starts_with('d') => format!("write `{key} desc` (higher is better)"),
        Some(_) => format!("write `{key} asc` (lower is better)"),
        None => both(text.trim()),
    }
}

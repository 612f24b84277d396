//! Keys with a direction, such as `reward desc`.

use searchmill_engine::spec::closest;

/// Splits `reward desc` into the key and whether it descends.
pub(crate) fn directed(text: &str) -> Option<(&str, bool)> {
    let (key, direction) = text.trim().rsplit_once(char::is_whitespace)?;
    let descends = direction.eq_ignore_ascii_case("desc");
    if !descends && !direction.eq_ignore_ascii_case("asc") {
        return None;
    }
    Some((key.trim_end(), descends))
}

/// Advises on a key without a direction: `reward dsc` and `reward descending` mean `reward desc`.
pub(crate) fn direction_advice(text: &str) -> String {
    let text = text.trim();
    if let Some((key, last)) = text.rsplit_once(char::is_whitespace)
        && let Some(meant) = closest(last, ["desc", "asc", "descending", "ascending"])
    {
        let (direction, better) = if meant.starts_with('d') { ("desc", "higher") } else { ("asc", "lower") };
        return format!("write `{} {direction}` ({better} is better)", key.trim_end());
    }
    format!("write `{text} desc` (higher is better) or `{text} asc` (lower is better)")
}

//! Fills templates and adjusts words.

/// Replaces each `{key}` in `template` by its text. Unknown keys stay unchanged.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::with_capacity(template.len() + 48);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        text.push_str(before);
        let (key, tail) = after.split_once('}').unwrap_or((after, ""));
        match values.iter().find(|(name, _)| *name == key) {
            Some((_, value)) => text.push_str(value),
            None => text.extend(["{", key, "}"]),
        }
        rest = tail;
    }
    text.push_str(rest);
    text
}

/// Capitalises the first letter.
pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns `a` or `an`, by the first letter.
pub(crate) fn article(noun: &str) -> &'static str {
    if noun.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_filled_and_letters_raised() {
        assert_eq!(fill("{s} und {o}{s}", &[("s", "Zoé"), ("o", "{s}")]), "Zoé und {s}Zoé");
        assert_eq!(fill("{x} {", &[]), "{x} {}");
        assert_eq!((capitalised("éa"), capitalised("")), ("Éa".to_owned(), String::new()));
        assert_eq!((article("opera"), article("novel")), ("an", "a"));
    }
}

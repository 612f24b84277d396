//! Fills templates and adjusts words.

use std::borrow::Cow;

/// Replaces each `{key}` in `template` by its text. Unknown keys stay unchanged.
pub(crate) fn fill(template: &str, values: &[(&str, &str)]) -> String {
    fill_by(template, |key| match values.iter().find(|(name, _)| *name == key) {
        Some((_, value)) => (*value).into(),
        None => format!("{{{key}}}").into(),
    })
}

/// Replaces each `{key}` in `template` by the word for it.
pub(crate) fn fill_by<'a>(template: &str, mut word: impl FnMut(&str) -> Cow<'a, str>) -> String {
    let mut text = String::with_capacity(template.len() + 48);
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (key, tail) = after.split_once('}').unwrap_or((after, ""));
        text.push_str(before);
        text.push_str(&word(key));
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

//! How a text protocol shows passages.

use std::borrow::Cow;

use schemars::JsonSchema;
use searchmill_retrieval::Found;
use serde::{Deserialize, Serialize};

/// Template of the results of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case", default)]
pub struct Passages {
    /// Template of a passage. `{rank}` is its number from 1, `{contents}` its text as indexed, `{title}` its title,
    /// `{text}` its text without the title, `{id}` the id of the chunk, `{score}` its score.
    pub each: String,
    /// Text between two passages.
    pub between: String,
    /// Text of a search that found nothing.
    pub none: String,
}

impl Default for Passages {
    fn default() -> Self {
        let (each, none) = ("[{rank}] {contents}".to_owned(), "No passages were found.".to_owned());
        Self { each, between: "\n\n".to_owned(), none }
    }
}

impl Passages {
    /// The text that shows these passages.
    pub(super) fn text(&self, found: &[Found]) -> String {
        if found.is_empty() {
            return self.none.clone();
        }
        let numbered = found.iter().enumerate();
        numbered.map(|(index, passage)| self.one(index + 1, passage)).collect::<Vec<_>>().join(&self.between)
    }

    /// The first place of the template that has no value.
    pub(super) fn unknown_place(&self) -> Option<&str> {
        let known = ["rank", "contents", "title", "text", "id", "score"];
        for part in self.each.split('{').skip(1) {
            let Some((name, _)) = part.split_once('}') else { continue };
            let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if is_name && !known.contains(&name) {
                return Some(name);
            }
        }
        None
    }

    fn one(&self, rank: usize, passage: &Found) -> String {
        let (title, text) = passage.parts();
        filled(&self.each, |name| match name {
            "rank" => Some(rank.to_string().into()),
            "contents" => Some(passage.contents.trim().into()),
            "title" => Some(title.into()),
            "text" => Some(text.into()),
            "id" => Some(passage.chunk_id.as_str().into()),
            "score" => Some(passage.score.to_string().into()),
            _ => None,
        })
    }
}

/// Fills the places `{name}` of a template. A value that contains such a place is not filled again.
pub(super) fn filled<'v>(template: &str, value: impl Fn(&str) -> Option<Cow<'v, str>>) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        if let Some((value, next)) = after.split_once('}').and_then(|(name, next)| Some((value(name)?, next))) {
            filled.push_str(&value);
            rest = next;
        } else {
            filled.push('{');
            rest = after;
        }
    }
    filled.push_str(rest);
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(title: Option<&str>, contents: &str) -> Found {
        Found {
            chunk_id: "d#0".to_owned(),
            document_id: "d".to_owned(),
            title: title.map(str::to_owned),
            contents: contents.to_owned(),
            score: 1.5,
            sources: Vec::new(),
        }
    }

    #[test]
    fn passages_fill_the_template_once() {
        let format = |each: &str| Passages { each: each.to_owned(), ..Passages::default() };
        let rome = found(Some("Rome"), "Rome\nA {title} city.");
        assert_eq!(
            format("({rank}){title}   {text}").text(&[rome.clone(), rome.clone()]),
            "(1)Rome   A {title} city.\n\n(2)Rome   A {title} city."
        );
        assert_eq!(format("{x} {id} {score} {").text(std::slice::from_ref(&rome)), "{x} d#0 1.5 {");
        assert_eq!(format("{title}|{text}").text(&[found(None, "\"Rome\"\nA city.")]), "\"Rome\"|A city.");
        assert_eq!(
            format("{title}|{text}").text(&[found(Some("Rome"), "Another line\nA city.")]),
            "Rome|Another line\nA city."
        );
        assert_eq!(format("{title}").text(&[]), "No passages were found.");
    }
}

//! Passages out of the text that shows them: what a template fills in is known from a record, but for their texts.

use std::collections::BTreeMap;

use searchmill_retrieval::Found;
use searchmill_schemas::Observation;

use super::passage::Passages;
use crate::tool::passage;

/// A part of a text that shows passages.
enum Part {
    /// What must stand there.
    Known(String),
    /// What is not known of the passage with this index: `text`, `contents`, or the `title` of one without.
    Open(usize, &'static str),
}

/// Returns the passages that a text shows: the first of `observations`; `None` if they cannot be told.
pub(super) fn read_back(template: &Passages, text: &str, observations: &[Observation]) -> Option<Vec<Found>> {
    if text == template.none {
        return Some(Vec::new());
    }
    for count in (1..=observations.len()).rev() {
        if let Some(found) = passages(template, text, &observations[..count])
            && template.text(&found) == text
        {
            return Some(found);
        }
    }
    None
}

/// Returns the passages of these observations in a text; `None` if it does not show them. Where a passage holds what
/// also stands before the next one, it ends there: shown again, the text is the same.
fn passages(template: &Passages, text: &str, observations: &[Observation]) -> Option<Vec<Found>> {
    let mut parts = Vec::new();
    for (index, observation) in observations.iter().enumerate() {
        if index > 0 {
            parts.push(Part::Known(template.between.clone()));
        }
        parts.extend(parts_of(&template.each, index, observation));
    }
    let values = values(text, parts)?;
    let mut found = Vec::new();
    for (index, observation) in observations.iter().enumerate() {
        let known = observation.title.as_deref().map(str::trim);
        let title = values.get(&(index, "title")).copied().or(known).unwrap_or_default();
        let contents = match (values.get(&(index, "contents")), values.get(&(index, "text"))) {
            (Some(contents), _) => (*contents).to_owned(),
            (None, Some(text)) if title.is_empty() => (*text).to_owned(),
            (None, Some(text)) => format!("{title}\n{text}"),
            // The template shows no text.
            (None, None) => title.to_owned(),
        };
        found.push(passage(observation, contents));
    }
    Some(found)
}

/// Splits the template of a passage into what is known of it and what is not.
fn parts_of(template: &str, index: usize, observation: &Observation) -> Vec<Part> {
    let title = observation.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        parts.push(Part::Known(before.to_owned()));
        let (name, next) = after.split_once('}').unwrap_or_default();
        let part = match (name, title) {
            ("rank", _) => Part::Known((index + 1).to_string()),
            ("id", _) => Part::Known(observation.chunk_id.clone()),
            ("score", _) => Part::Known(observation.score.to_string()),
            ("title", Some(title)) => Part::Known(title.to_owned()),
            ("title", None) => Part::Open(index, "title"),
            ("text", _) => Part::Open(index, "text"),
            ("contents", _) => Part::Open(index, "contents"),
            // No place of a passage: it stands in the text as it is.
            _ => {
                parts.push(Part::Known("{".to_owned()));
                rest = after;
                continue;
            }
        };
        parts.push(part);
        rest = next;
    }
    parts.push(Part::Known(rest.to_owned()));
    parts
}

/// What stands in a text at the parts that are not known, by the index of the passage and the name.
type Values<'t> = BTreeMap<(usize, &'static str), &'t str>;

/// Finds these texts. Where a template names one twice, the first counts: rendering again tells whether both agree.
fn values(text: &str, parts: Vec<Part>) -> Option<Values<'_>> {
    let mut values = Values::new();
    let (mut rest, mut known) = (text, String::new());
    let mut open: Option<(usize, &'static str)> = None;
    for part in parts {
        let (index, name) = match part {
            Part::Known(more) => {
                known.push_str(&more);
                continue;
            }
            Part::Open(index, name) => (index, name),
        };
        match open {
            None => rest = rest.strip_prefix(known.as_str())?,
            // Two values without a text between them cannot be told apart.
            Some(_) if known.is_empty() => return None,
            Some((index, name)) => {
                let (value, after) = rest.split_once(known.as_str())?;
                values.entry((index, name)).or_insert(value);
                rest = after;
            }
        }
        known.clear();
        open = Some((index, name));
    }
    match open {
        None => (rest == known).then_some(values),
        Some((index, name)) => {
            // The last one reaches to what ends the text.
            values.entry((index, name)).or_insert(rest.strip_suffix(known.as_str())?);
            Some(values)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(title: Option<&str>, contents: &str) -> Found {
        Found {
            chunk_id: "https://r".to_owned(),
            document_id: "https://r".to_owned(),
            title: title.map(str::to_owned),
            contents: contents.to_owned(),
            score: 0.5,
            sources: Vec::new(),
        }
    }

    #[test]
    fn what_was_shown_is_read_back_to_the_byte() {
        let lists = [
            vec![],
            vec![found(Some("Rome"), "Rome\nA city.")],
            vec![found(Some("Rome"), "Rome\nA {title} city.\n\n[2] not a heading"), found(None, "No title here")],
            vec![found(None, "First line\nSecond."), found(Some("Rome"), "Rome\nA.\nB.\n\nDoc 2 (Title: Rome)\nC")],
            vec![found(Some("Rome"), "no heading"), found(Some("Rome"), "Rome\n")],
        ];
        let formats = [
            "[{rank}] {contents}",
            "Doc {rank} (Title: {title})\n{text}",
            "({rank}){title}\n{text} ({id})",
            "{x}{ {text} {score}",
        ];
        let mut read = 0;
        for each in formats {
            let format = Passages { each: each.to_owned(), ..Passages::default() };
            for list in &lists {
                let text = format.text(list);
                let observations: Vec<Observation> =
                    list.iter().cloned().map(super::super::tool_call::observation).collect();
                let again = read_back(&format, &text, &observations).unwrap_or_else(|| panic!("{each}: {text}"));
                assert_eq!((again.len(), format.text(&again)), (list.len(), text.clone()), "{each}");
                read += 1;
            }
        }
        assert_eq!(read, formats.len() * lists.len());
        let format = Passages::default();
        let one = [super::super::tool_call::observation(found(None, "x"))];
        for other in ["", "[2] x", "No passages were found", "x"] {
            assert_eq!(read_back(&format, other, &one), None, "{other}");
        }
    }
}

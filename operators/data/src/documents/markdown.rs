//! Markdown: the text as it is, its title and its sections.

use searchmill_text::markdown::headings;
use serde_json::{Map, Value, json};

use super::content::{Content, no_text};
use crate::source::record::Fault;

/// Most sections that are noted: metadata stays smaller than the text.
const MAX_SECTIONS: usize = 10_000;

/// Reads a Markdown text. Its title is that of the front matter, else its first heading of level 1.
pub(super) fn read(text: &str) -> Result<Content, Fault> {
    let (front, text) = front_matter(text);
    if text.trim().is_empty() {
        return Err(no_text("the file has no text"));
    }
    let mut details = Map::new();
    let sections = sections(text, &mut details);
    let title = front.and_then(title_of).or(sections);
    if let Some(front) = front {
        details.insert("front_matter".to_owned(), front.into());
    }
    Ok(Content { title, text: text.to_owned(), details })
}

/// Notes the sections of a Markdown text in `details`. Returns its first heading of level 1.
pub(super) fn sections(text: &str, details: &mut Map<String, Value>) -> Option<String> {
    let found = headings(text);
    if found.len() > MAX_SECTIONS {
        details.insert("sections_cut".to_owned(), true.into());
    }
    let mut sections = Vec::new();
    for heading in found.iter().take(MAX_SECTIONS) {
        sections.push(json!({"level": heading.level, "title": heading.title, "start": heading.range.start}));
    }
    if !sections.is_empty() {
        details.insert("sections".to_owned(), sections.into());
    }
    let first = found.into_iter().find(|heading| heading.level == 1)?;
    if first.title.is_empty() { None } else { Some(first.title) }
}

/// Splits off a block between two lines `---` at the start.
fn front_matter(text: &str) -> (Option<&str>, &str) {
    let Some(inner) = text.strip_prefix("---\n") else { return (None, text) };
    let Some((front, rest)) = inner.split_once("\n---\n") else { return (None, text) };
    // A thematic break followed by prose is no front matter.
    let is_yaml =
        front.lines().all(|line| line.is_empty() || line.starts_with([' ', '\t', '#', '-']) || line.contains(':'));
    if is_yaml { (Some(front), rest) } else { (None, text) }
}

fn title_of(front: &str) -> Option<String> {
    let value = front.lines().find_map(|line| line.strip_prefix("title:"))?.trim();
    let inner = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    let title = inner.unwrap_or(value).trim();
    if title.is_empty() { None } else { Some(title.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_come_from_the_front_matter_or_the_first_heading() {
        let made = read("---\ntitle: \"Salt: a history\"\ntags: [a]\n---\n# Other\n\ntext\n## Sub\n").unwrap();
        assert_eq!(made.title.as_deref(), Some("Salt: a history"));
        assert_eq!(made.text, "# Other\n\ntext\n## Sub\n");
        assert_eq!(made.details["front_matter"], "title: \"Salt: a history\"\ntags: [a]");
        let wanted = json!([{"level": 1, "title": "Other", "start": 0}, {"level": 2, "title": "Sub", "start": 14}]);
        assert_eq!(made.details["sections"], wanted);
        assert_eq!(read("## a\n# b\n").unwrap().title.as_deref(), Some("b"));
        assert_eq!(read("plain").unwrap(), Content { title: None, text: "plain".to_owned(), details: Map::new() });
        assert_eq!(read("---\nprose\n---\nx").unwrap().text, "---\nprose\n---\nx");
        assert_eq!(read(" \n").unwrap_err().kind, "no_text");
    }
}

//! Sections of a Markdown text: parts that begin with a heading, each with the headings above it.

use crate::markdown::{Heading, headings};

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Byte range.
    pub range: std::ops::Range<usize>,
    /// Titles of the headings above its text, outermost first.
    pub path: Vec<String>,
}

/// Cuts a text before its headings. No text is lost: a heading without text of its own stays with the section that
/// follows, and is in its path if it is above it.
pub fn sections(text: &str) -> Vec<Section> {
    let mut found = Vec::new();
    let mut above: Vec<Heading> = Vec::new();
    let mut start = 0;
    // The end of the headings that the open section begins with.
    let mut begun = 0;
    for heading in headings(text) {
        if !text[begun..heading.range.start].trim().is_empty() {
            found.push(Section { range: start..heading.range.start, path: path(&above) });
            start = heading.range.start;
        }
        begun = heading.range.end;
        above.retain(|outer| outer.level < heading.level);
        above.push(heading);
    }
    if start < text.len() {
        found.push(Section { range: start..text.len(), path: path(&above) });
    }
    found
}

fn path(above: &[Heading]) -> Vec<String> {
    above.iter().map(|heading| heading.title.clone()).filter(|title| !title.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(text: &str) -> Vec<(String, String)> {
        sections(text).into_iter().map(|section| (section.path.join(" > "), text[section.range].to_owned())).collect()
    }

    #[test]
    fn every_section_has_the_headings_above_it() {
        let text = "before\n# A\n## B\nb\n### C\nc\n## D\nd\n# E\ne\n";
        let wanted = [
            ("", "before\n"),
            ("A > B", "# A\n## B\nb\n"),
            ("A > B > C", "### C\nc\n"),
            ("A > D", "## D\nd\n"),
            ("E", "# E\ne\n"),
        ];
        assert_eq!(told(text), wanted.map(|(path, text)| (path.to_owned(), text.to_owned())));
        assert_eq!(told("no heading"), [(String::new(), "no heading".to_owned())]);
        assert_eq!(told(""), []);
        assert_eq!(told("# A\n# B\n"), [("B".to_owned(), "# A\n# B\n".to_owned())], "a heading without text");
    }

    proptest! {
        #[test]
        fn nothing_is_lost(parts in prop::collection::vec("(#{1,3} [a-z]{0,3}\n|[a-z]{0,4}\n|---\n|```\n|> # q\n)", 0..40)) {
            let text = parts.concat();
            let whole: String = sections(&text).into_iter().map(|section| text[section.range].to_owned()).collect();
            prop_assert_eq!(whole, text);
        }
    }
}

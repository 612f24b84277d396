//! Headings and links of Markdown (CommonMark with tables).

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// A heading of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heading {
    /// 1 to 6.
    pub level: u8,
    /// Its text, without markup.
    pub title: String,
    /// Its lines in the text, in bytes.
    pub range: Range<usize>,
}

fn parser(text: &str) -> pulldown_cmark::OffsetIter<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH).into_offset_iter()
}

/// Returns the headings outside of quotes and lists, in text order. Lines in code blocks are no headings.
pub fn headings(text: &str) -> Vec<Heading> {
    let mut found: Vec<Heading> = Vec::new();
    let (mut depth, mut inside) = (0_u32, false);
    for (event, range) in parser(text) {
        match event {
            Event::Start(Tag::BlockQuote(_) | Tag::List(_)) => depth += 1,
            Event::End(TagEnd::BlockQuote(_) | TagEnd::List(_)) => depth = depth.saturating_sub(1),
            Event::Start(Tag::Heading { level, .. }) if depth == 0 => {
                inside = true;
                found.push(Heading { level: level as u8, title: String::new(), range });
            }
            Event::End(TagEnd::Heading(_)) => inside = false,
            Event::Text(part) | Event::Code(part) if inside => push(&mut found, &part),
            Event::SoftBreak | Event::HardBreak if inside => push(&mut found, " "),
            _ => {}
        }
    }
    for heading in &mut found {
        heading.title = heading.title.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    found
}

fn push(found: &mut [Heading], part: &str) {
    if let Some(last) = found.last_mut() {
        last.title.push_str(part);
    }
}

/// Returns the text without images, and with links replaced by their texts.
pub fn without_links(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut open: Vec<(Range<usize>, bool, Option<Range<usize>>)> = Vec::new();
    let mut from = 0;
    for (event, range) in parser(text) {
        match event {
            Event::Start(Tag::Image { .. }) => open.push((range.clone(), true, None)),
            Event::Start(Tag::Link { .. }) => open.push((range.clone(), false, None)),
            Event::End(TagEnd::Image | TagEnd::Link) => {
                let Some((outer, is_image, inner)) = open.pop() else { continue };
                // A link inside an image, or an image inside a link, goes with the outer one.
                if open.is_empty() {
                    result.push_str(&text[from..outer.start.max(from)]);
                    if let (false, Some(inner)) = (is_image, inner) {
                        result.push_str(&text[inner]);
                    }
                    from = outer.end.max(from);
                }
            }
            _ => {
                // The range of what a link contains, of its outermost parts.
                if let [(outer, _, inner)] = open.as_mut_slice()
                    && outer.start < range.start
                    && range.end <= outer.end
                {
                    let whole = inner.get_or_insert_with(|| range.clone());
                    whole.end = whole.end.max(range.end);
                }
            }
        }
    }
    result.push_str(&text[from..]);
    result
}

/// Returns the text without the backslashes before punctuation, except in code and where a line would begin otherwise.
pub fn unescaped(text: &str) -> String {
    let code = parser(text).filter_map(|(event, range)| match event {
        Event::Code(_) | Event::Start(Tag::CodeBlock(_) | Tag::HtmlBlock) | Event::InlineHtml(_) => Some(range),
        _ => None,
    });
    let mut code = code.peekable();
    let bytes = text.as_bytes();
    let (mut result, mut from) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices('\\') {
        while code.next_if(|range| range.end <= at).is_some() {}
        let is_code = code.peek().is_some_and(|range| range.contains(&at));
        // Without its backslash, a backtick could begin code, and a backslash escape what follows.
        let escapes = bytes.get(at + 1).is_some_and(|next| next.is_ascii_punctuation() && !b"`\\".contains(next));
        let begins_line = text[..at].bytes().rev().take_while(|byte| *byte != b'\n').all(|byte| byte == b' ');
        if at >= from && escapes && !is_code && !begins_line {
            result.push_str(&text[from..at]);
            from = at + 1;
        }
    }
    result.push_str(&text[from..]);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<(u8, String, String)> {
        let all = headings(text).into_iter();
        all.map(|heading| (heading.level, heading.title, text[heading.range].to_owned())).collect()
    }

    #[test]
    fn headings_of_both_styles_and_none_in_code_quotes_and_lists() {
        let text =
            "# One `x`\n\nText\n\nTwo\n---\n```\n# code\n```\n> # quoted\n\n- # item\n\n### Three\\* *it*\nend\n";
        let wanted = [(1, "One x", "# One `x`\n"), (2, "Two", "Two\n---\n"), (3, "Three* it", "### Three\\* *it*\n")];
        assert_eq!(told(text), wanted.map(|(level, title, line)| (level, title.to_owned(), line.to_owned())));
        assert_eq!(told("#hash is no heading\n"), []);
    }

    #[test]
    fn links_keep_their_texts_and_images_go() {
        assert_eq!(without_links("a [b **c**](http://x.y \"t\") d"), "a b **c** d");
        assert_eq!(without_links("![alt](x.png)[![in](y.png)](z) end [`code`](q)"), " end `code`");
        assert_eq!(without_links("no links, [brackets] and a_b"), "no links, [brackets] and a_b");
    }

    #[test]
    fn escapes_go_where_they_mean_nothing() {
        let text = "is\\_it a\\*b\\! `c\\_d`\n\n    code\\_block\n\n```\na\\.b\n```\n\n\\# no heading \\#\n\n  \\- x \\\\ y\\`\\`";
        let wanted =
            "is_it a*b! `c\\_d`\n\n    code\\_block\n\n```\na\\.b\n```\n\n\\# no heading #\n\n  \\- x \\\\ y\\`\\`";
        assert_eq!(unescaped(text), wanted);
    }

    #[test]
    fn deep_and_broken_markup_ends() {
        for text in ["[".repeat(50_000), ">".repeat(20_000), "* ".repeat(20_000), "![[](".repeat(10_000)] {
            assert_eq!(headings(&text), []);
            assert!(without_links(&text).len() <= text.len());
            assert_eq!(unescaped(&text), text);
        }
    }
}

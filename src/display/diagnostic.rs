//! Formats diagnostics as text: message, location, excerpt with carets, notes and help.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{Annotation, AnnotationKind, Level, Renderer, Snippet};
use searchmill_engine::diagnostic::{Diagnostic, FileId, Label, SourceMap};
use searchmill_engine::operator::without_user_info;

/// Maximum length of an excerpt line, in characters.
const LINE: usize = 120;
/// Characters shown before the mark in a longer line.
const BEFORE: usize = 40;
/// Maximum length of a message, in characters.
const MESSAGE: usize = 600;
/// Maximum distance in lines between two labels of the same excerpt.
const NEAR: usize = 6;

/// Formats one finding, ending in a line break.
pub fn render(diagnostic: &Diagnostic, sources: &SourceMap, color: bool) -> String {
    let excerpts = excerpts(diagnostic, sources);
    let group = Level::ERROR.primary_title(tame(&diagnostic.message)).id(diagnostic.code);
    let group = group.elements(excerpts.iter().map(Excerpt::snippet));
    let group = group.elements(diagnostic.notes.iter().map(|note| Level::NOTE.message(tame(note))));
    let group = group.elements(diagnostic.help.iter().map(|help| Level::HELP.message(tame(help))));
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut text = renderer.decor_style(DecorStyle::Ascii).term_width(LINE * 2).render(&[group]);
    // Restores the columns of the original file lines.
    for excerpt in &excerpts {
        excerpt.mend_columns(&mut text);
    }
    // An excerpt may show an address with a password.
    without_user_info(&text) + "\n"
}

/// Cleans user text for a message: replaces control characters, limits the length.
fn tame(text: &str) -> String {
    let shown = text.chars().take(MESSAGE).map(|ch| if ch.is_control() { '\u{fffd}' } else { ch });
    let cut = if text.chars().nth(MESSAGE).is_some() { "…" } else { "" };
    shown.collect::<String>() + cut
}

/// A label on a line.
struct Mark {
    line: usize,
    column: usize,
    /// Byte range in the line.
    range: Range<usize>,
    message: String,
    primary: bool,
}

/// Adjacent lines of a file with their marks.
struct Excerpt {
    file: FileId,
    path: String,
    marks: Vec<Mark>,
    /// From the first marked line to the last one.
    lines: Vec<String>,
}

fn excerpts(diagnostic: &Diagnostic, sources: &SourceMap) -> Vec<Excerpt> {
    let mut excerpts: Vec<Excerpt> = Vec::new();
    for (position, label) in diagnostic.labels.iter().enumerate() {
        let file = label.span.file;
        let Some((path, _)) = sources.get(file) else { continue };
        let mark = mark(label, sources, position == 0);
        let near = excerpts.iter_mut().find(|excerpt| {
            excerpt.file == file && excerpt.marks.iter().any(|other| other.line.abs_diff(mark.line) <= NEAR)
        });
        match near {
            Some(excerpt) => excerpt.marks.push(mark),
            None => {
                excerpts.push(Excerpt { file, path: path.display().to_string(), marks: vec![mark], lines: Vec::new() });
            }
        }
    }
    for excerpt in &mut excerpts {
        excerpt.fill(sources, diagnostic.code == "secret-literal");
    }
    excerpts
}

/// Position of a label. A label over several lines is marked on its first line.
fn mark(label: &Label, sources: &SourceMap, primary: bool) -> Mark {
    let span = label.span;
    let (line, column) = sources.line_col(span.file, span.start);
    let whole = sources.line_span(span.file, line).unwrap_or(span);
    let start = span.start.saturating_sub(whole.start);
    let end = span.end.min(whole.end).saturating_sub(whole.start).max(start);
    Mark { line, column, range: start..end, message: tame(&label.message), primary }
}

impl Excerpt {
    fn first_line(&self) -> usize {
        self.marks.iter().map(|mark| mark.line).min().unwrap_or(1)
    }

    fn fill(&mut self, sources: &SourceMap, masked: bool) {
        let last = self.marks.iter().map(|mark| mark.line).max().unwrap_or(1);
        for line in self.first_line()..=last {
            let span = sources.line_span(self.file, line).unwrap_or_default();
            let mut text = sources.text(span).trim_end_matches('\r').to_owned();
            let mut marks: Vec<_> = self.marks.iter_mut().filter(|mark| mark.line == line).collect();
            // A secret is not printed again. Before the line is cropped: the mark still counts in the whole line.
            if masked {
                // The first label is the secret; the others explain.
                for mark in marks.iter().filter(|mark| mark.primary) {
                    if let Some(secret) = text.get(mark.range.clone()) {
                        let stars = "*".repeat(secret.len());
                        text.replace_range(mark.range.clone(), &stars);
                    }
                }
            }
            crop(&mut text, &mut marks);
            self.lines.push(text);
        }
    }

    fn snippet(&self) -> Snippet<'_, Annotation<'_>> {
        let snippet = Snippet::source(self.lines.join("\n")).line_start(self.first_line()).path(self.path.as_str());
        snippet.annotations(self.marks.iter().map(|mark| self.annotation(mark)))
    }

    /// Corrects the columns: the renderer counts them in the lines it gets, which may be cropped.
    fn mend_columns(&self, text: &mut String) {
        for mark in &self.marks {
            let line = &self.lines[mark.line - self.first_line()];
            let shown = line[..mark.range.start].chars().count() + 1;
            if shown != mark.column {
                let place = format!("{}:{}", self.path, mark.line);
                *text = text.replacen(&format!("{place}:{shown}"), &format!("{place}:{}", mark.column), 1);
            }
        }
    }

    fn annotation(&self, mark: &Mark) -> Annotation<'_> {
        let before: usize = self.lines[..mark.line - self.first_line()].iter().map(|line| line.len() + 1).sum();
        let kind = if mark.primary { AnnotationKind::Primary } else { AnnotationKind::Context };
        let annotation = kind.span(before + mark.range.start..before + mark.range.end);
        if mark.message.is_empty() { annotation } else { annotation.label(mark.message.clone()) }
    }
}

/// Crops a long line around its first mark.
fn crop(text: &mut String, marks: &mut [&mut Mark]) {
    let Some((end, _)) = text.char_indices().nth(LINE) else { return };
    let first = marks.iter().map(|mark| mark.range.start).min().unwrap_or(0);
    let start = if first < end / 2 {
        0
    } else {
        // Some characters before the mark.
        text[..first].char_indices().rev().nth(BEFORE.saturating_sub(1)).map_or(0, |(at, _)| at)
    };
    let rest = &text[start..];
    let length = rest.char_indices().nth(LINE).map_or(rest.len(), |(at, _)| at);
    let (left, right) = (if start > 0 { "…" } else { "" }, if length < rest.len() { "…" } else { "" });
    let cropped = format!("{left}{}{right}", &rest[..length]);
    for mark in marks {
        for end in [&mut mark.range.start, &mut mark.range.end] {
            // A mark outside of what is left is at its edge.
            *end = left.len() + end.saturating_sub(start).min(length);
        }
    }
    *text = cropped;
}

#[cfg(test)]
mod tests {
    use searchmill_engine::diagnostic::Span;

    use super::*;

    fn rendered(text: &str, spans: &[(usize, usize, &str)]) -> String {
        let mut sources = SourceMap::new();
        let file = sources.add("a.yaml", text);
        let mut fault = Diagnostic::error("some-code", "it is wrong").note("a fact").help("mend it");
        for (start, end, message) in spans {
            fault = fault.at(Span::new(file, *start, *end), *message);
        }
        render(&fault, &sources, false)
    }

    #[test]
    fn the_excerpt_shows_the_place() {
        let text = rendered("name: a\nnodes:\n  é: [b]\n", &[(21, 24, "a list"), (8, 13, "in here")]);
        let wanted = "error[some-code]: it is wrong\n --> a.yaml:3:6\n  |\n2 | nodes:\n  | ----- in here\n3 |   é: [b]\n  |      \
                      ^^^ a list\n  |\n  = note: a fact\n  = help: mend it\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_long_line_is_cut_around_the_mark() {
        let line = "x".repeat(100_000);
        let text = rendered(&line, &[(50_000, 50_003, "here")]);
        assert!(text.contains("--> a.yaml:1:50001\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() < LINE + 20), "{text}");
        assert!(text.contains("^^^ here"), "{text}");
    }

    #[test]
    fn distant_places_are_two_excerpts() {
        let text = rendered(&"a: b\n".repeat(100), &[(450, 451, "again"), (0, 1, "first")]);
        assert!(text.contains("91 | a: b\n") && text.contains("::: a.yaml:1:1\n"), "{text}");
        assert!(text.lines().count() < 14, "{text}");
    }

    #[test]
    fn a_span_of_many_lines_is_marked_on_its_first() {
        let text = rendered("a:\n  b: c\n  d: e\n", &[(0, 17, "a map")]);
        assert!(text.contains("1 | a:\n  | ^^ a map\n"), "{text}");
    }
}

//! Diagnostics of a pipeline with their locations: data only, rendered elsewhere.

use std::path::{Path, PathBuf};

/// A file in a [`SourceMap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A byte range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The range from `start` to `end`.
    pub fn new(file: FileId, start: usize, end: usize) -> Self {
        Self { file, start, end: end.max(start) }
    }

    /// Returns the range from the start of this span to the end of another span of the same file.
    #[must_use]
    pub fn to(self, other: Self) -> Self {
        // Text that was inserted from another file has no span in common with this one.
        if self.file == other.file { Self::new(self.file, self.start, other.end.max(self.end)) } else { self }
    }

    /// Returns the bytes `start..end` of this span, clamped to it.
    #[must_use]
    pub fn part(self, start: usize, end: usize) -> Self {
        let start = self.start.saturating_add(start).min(self.end);
        Self::new(self.file, start, self.start.saturating_add(end).min(self.end))
    }
}

/// A location with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The location.
    pub span: Span,
    /// The message; may be empty.
    pub message: String,
}

/// A word of a text param that an error is about: its place in the source is found by [`SourceMap::narrow`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word as the param has it.
    pub text: String,
    /// How many times the word stands before this place.
    pub before: usize,
}

impl Word {
    /// The first place of a word.
    pub fn first(text: impl Into<String>) -> Self {
        Self { text: text.into(), before: 0 }
    }

    /// The word that stands at a byte of a text; none if there is no word.
    pub fn at(text: &str, offset: usize) -> Option<Self> {
        let word = text.get(offset..)?.split(|c: char| !is_of_word(c)).next().filter(|word| !word.is_empty())?;
        let before = places(text, word).position(|place| place == offset)?;
        Some(Self { text: word.to_owned(), before })
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Offsets of a whole word in a text.
fn places<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word).map(|(place, _)| place).filter(move |place| {
        let before = text[..*place].chars().next_back();
        let after = text[place + word.len()..].chars().next();
        !word.is_empty() && !before.is_some_and(is_of_word) && !after.is_some_and(is_of_word)
    })
}

/// One diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// A stable kebab-case name (`unknown-key`).
    pub code: &'static str,
    /// The message, one line.
    pub message: String,
    /// Locations; the first one is the primary location.
    pub labels: Vec<Label>,
    /// Additional facts.
    pub notes: Vec<String>,
    /// How to fix it.
    pub help: Option<String>,
    /// Word inside the primary location.
    pub word: Option<Box<Word>>,
}

impl Diagnostic {
    /// An error without a location yet.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, message, labels: Vec::new(), notes: Vec::new(), help: None, word: None }
    }

    /// Adds a location; the first one is the primary location.
    #[must_use]
    pub fn at(mut self, span: Span, message: impl Into<String>) -> Self {
        self.labels.push(Label { span, message: message.into() });
        self
    }

    /// Adds a location that may be unknown.
    #[must_use]
    pub fn at_some(mut self, span: Option<Span>, message: &str) -> Self {
        self.labels.extend(span.map(|span| Label { span, message: message.to_owned() }));
        self
    }

    /// Adds the place of the `${…}` that inserted a value, if it was written elsewhere.
    #[must_use]
    pub fn used_at(self, via: Option<Span>) -> Self {
        self.at_some(via, "used here")
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Says how to fix it, if that is known.
    #[must_use]
    pub fn help_some(mut self, help: Option<impl Into<String>>) -> Self {
        self.help = help.map(Into::into).or(self.help);
        self
    }

    /// Says how to fix it.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Returns the primary location.
    pub fn span(&self) -> Option<Span> {
        self.labels.first().map(|label| label.span)
    }
}

/// One file's text.
#[derive(Clone, Debug)]
struct SourceFile {
    path: PathBuf,
    text: String,
    /// Byte offsets of line starts.
    lines: Vec<usize>,
}

/// All texts that spans refer to.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
}

impl SourceMap {
    /// A map without files.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file. The path may also name a command-line argument (`--set a=1`).
    pub fn add(&mut self, path: impl Into<PathBuf>, text: impl Into<String>) -> FileId {
        let text = text.into();
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self.files.push(SourceFile { path: path.into(), text, lines });
        FileId(u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX))
    }

    /// Moves the primary location of a diagnostic to its word, if the source has it there.
    pub fn narrow(&self, diagnostic: &mut Diagnostic) {
        let (Some(word), Some(label)) = (diagnostic.word.take(), diagnostic.labels.first_mut()) else { return };
        let text = self.get(label.span.file).and_then(|(_, text)| text.get(label.span.start..label.span.end));
        let place = text.and_then(|text| places(text, &word.text).nth(word.before));
        if let Some(place) = place {
            label.span = label.span.part(place, place + word.text.len());
        }
    }

    /// Returns the path and text of a file.
    pub fn get(&self, file: FileId) -> Option<(&Path, &str)> {
        self.file(file).map(|file| (file.path.as_path(), file.text.as_str()))
    }

    /// Returns the file of that path.
    pub fn find(&self, path: &Path) -> Option<FileId> {
        u32::try_from(self.files.iter().position(|file| file.path == path)?).ok().map(FileId)
    }

    /// Returns the paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| file.path.as_path())
    }

    /// Returns the text of a span; empty if the span is invalid.
    pub fn text(&self, span: Span) -> &str {
        self.file(span.file).and_then(|file| file.text.get(span.start..span.end)).unwrap_or_default()
    }

    /// Returns the line and column of a byte (both from 1, columns in characters).
    pub fn line_col(&self, file: FileId, offset: usize) -> (usize, usize) {
        let Some(source) = self.file(file) else { return (1, 1) };
        let line = source.lines.partition_point(|start| *start <= offset).max(1);
        let start = source.lines[line - 1];
        let before = source.text.get(start..offset.min(source.text.len())).unwrap_or_default();
        (line, before.chars().count() + 1)
    }

    /// Returns a finding as one line: `FILE:LINE:COLUMN: message (help)`.
    pub fn line(&self, finding: &Diagnostic) -> String {
        let place = finding.span().and_then(|span| {
            let (path, _) = self.get(span.file)?;
            let (line, column) = self.line_col(span.file, span.start);
            Some(format!("{}:{line}:{column}: ", path.display()))
        });
        let help = finding.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        format!("{}{}{help}", place.unwrap_or_default(), finding.message)
    }

    /// Returns the span of a line (from 1) without its line break.
    pub fn line_span(&self, file: FileId, line: usize) -> Option<Span> {
        let source = self.file(file)?;
        let start = *source.lines.get(line.checked_sub(1)?)?;
        let end = source.lines.get(line).map_or(source.text.len(), |next| next - 1);
        Some(Span::new(file, start, end))
    }

    fn file(&self, file: FileId) -> Option<&SourceFile> {
        self.files.get(file.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_count_from_one_in_characters() {
        let mut sources = SourceMap::new();
        let file = sources.add("a.yaml", "a: é: b\nc\n");
        assert_eq!(sources.line_col(file, 0), (1, 1));
        assert_eq!(sources.line_col(file, 6), (1, 6));
        assert_eq!(sources.line_col(file, 9), (2, 1));
        assert_eq!(sources.line_col(file, 11), (3, 1));
        assert_eq!(sources.line_col(FileId(7), 11), (1, 1));
        assert_eq!(sources.text(sources.line_span(file, 2).unwrap()), "c");
    }
}

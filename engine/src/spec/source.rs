//! Reads the text of a pipeline file: of limited size, UTF-8, printable.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::diagnostic::{Diagnostic, FileId, SourceMap, Span};
use crate::operator::open_regular;

/// Code of the error about a file that does not exist.
pub(crate) const FILE_NOT_FOUND: &str = "file-not-found";

/// Limit of a file's size in bytes.
pub(super) const MAX_BYTES: usize = 4 << 20;

/// Reads a file into the map. `asked` is the location that names it, if any.
pub(super) fn read(path: &Path, asked: Option<Span>, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    let mut bytes = Vec::new();
    // The user's own file may be a pipe (`searchmill run <(…)`); what a pipeline names may not: it could wait for ever.
    let file = if asked.is_some() { open_regular(path) } else { File::open(path) };
    // One byte more than allowed shows that the file is too large, whatever its size is said to be.
    let read = file.and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        let (code, why) = match error.kind() {
            std::io::ErrorKind::NotFound => (FILE_NOT_FOUND, "no such file".to_owned()),
            std::io::ErrorKind::IsADirectory => ("unreadable-file", "it is a folder".to_owned()),
            _ => ("unreadable-file", error.to_string()),
        };
        let message = format!("cannot read `{}`: {why}", path.display());
        return Err(Diagnostic::error(code, message).at_some(asked, "named here"));
    }
    if bytes.len() > MAX_BYTES {
        return Err(too_large(&path.display().to_string()).at_some(asked, "named here"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => admit(path, text, sources),
        Err(error) => {
            // Shown with replacement characters: the bytes before it are as in the file.
            let at = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(at).copied().unwrap_or_default();
            let utf16 = at == 0 && matches!(error.as_bytes(), [0xff, 0xfe, ..] | [0xfe, 0xff, ..]);
            let file = sources.add(path, String::from_utf8_lossy(error.as_bytes()));
            let found = Diagnostic::error("not-utf8", format!("`{}` is not UTF-8 text", path.display()))
                .at(Span::new(file, at, at + '\u{fffd}'.len_utf8()), format!("the byte 0x{byte:02x}"));
            Err(found.help(if utf16 { "it looks like UTF-16: save it as UTF-8" } else { "save the file as UTF-8" }))
        }
    }
}

/// Accepts a text from memory.
pub(super) fn take(path: &Path, text: String, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    if text.len() > MAX_BYTES { Err(too_large(&path.display().to_string())) } else { admit(path, text, sources) }
}

fn too_large(shown: &str) -> Diagnostic {
    Diagnostic::error("file-too-large", format!("`{shown}` is larger than {} MiB", MAX_BYTES >> 20))
        .help("keep data in separate files and refer to them by path")
}

fn admit(path: &Path, text: String, sources: &mut SourceMap) -> Result<FileId, Diagnostic> {
    let control = UNPRINTABLE.find(&text).and_then(|found| Some((found.start(), found.as_str().chars().next()?)));
    let blank = !CONTENT.is_match(&text);
    // The error shows a line of the text: it is added first.
    let file = sources.add(path, text);
    if let Some((at, ch)) = control {
        let code = ch as u32;
        let message = format!("the control character U+{code:04X} is not allowed in YAML");
        let fault = Diagnostic::error("control-character", message).at(Span::new(file, at, at + ch.len_utf8()), "here");
        return Err(fault.help(format!("inside double quotes, write `\\u{code:04x}`")));
    }
    if blank {
        let fault = Diagnostic::error("empty-file", format!("`{}` is empty", path.display()));
        return Err(fault.at(Span::new(file, 0, 0), "").help("a pipeline has at least `name:` and `nodes:`"));
    }
    Ok(file)
}

/// Characters that YAML does not allow (<https://yaml.org/spec/1.2.2/#51-character-set>).
static UNPRINTABLE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"[^\t\n\r -~\x{85}\x{a0}-\x{d7ff}\x{e000}-\x{fffd}\x{10000}-\x{10ffff}]"));
/// A line that is neither blank nor a comment.
static CONTENT: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\x{feff}?[ \t\r]*[^ \t\r\n#\x{feff}]"));

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is constant")
}

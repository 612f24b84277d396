//! Raw tables for `method: external`: which files the arguments of a program name, and how they are written.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use searchmill_data::destination::encode;
use searchmill_data::source::format::{Compression, Format};
use searchmill_engine::operator::{Context, OperatorError, RowsInput};

/// Names of the input `rows` in arguments: as Parquet, and as JSON lines.
pub(crate) const ROWS: [&str; 2] = ["{rows}", "{rows_jsonl}"];
/// Names of the input `eval` in arguments, likewise.
pub(crate) const EVAL: [&str; 2] = ["{eval}", "{eval_jsonl}"];

/// Whether an argument contains one of the names.
pub(crate) fn names(arguments: &[String], wanted: &[&str]) -> bool {
    arguments.iter().any(|argument| wanted.iter().any(|name| argument.contains(name)))
}

/// Writes a table in the formats that the arguments name. Returns these names with the paths of the files.
pub(super) fn write(
    rows: &RowsInput,
    [parquet, jsonl]: [&'static str; 2],
    arguments: &[String],
    folder: &Path,
    context: &Context,
) -> Result<Vec<(&'static str, PathBuf)>, OperatorError> {
    let stem = parquet.trim_matches(['{', '}']);
    let mut files = Vec::new();
    for (name, ending, is_parquet) in [(parquet, "parquet", true), (jsonl, "jsonl", false)] {
        // A table may be large: only the format that the program reads is written.
        if !names(arguments, &[name]) {
            continue;
        }
        let path = folder.join(format!("{stem}.{ending}"));
        let target = BufWriter::with_capacity(1 << 20, fs_err::File::create(&path)?);
        let mut target = if is_parquet {
            encode::parquet(rows, Compression::Auto, target, context)?
        } else {
            encode::text(rows, Format::Jsonl, Compression::None, target, context)?
        };
        target.flush()?;
        files.push((name, path));
    }
    Ok(files)
}

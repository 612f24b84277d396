//! Formats tables, sizes, durations and rows.

use std::sync::Arc;

use anstyle::Style;
use arrow::array::{ArrayRef, AsArray, RecordBatch, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use arrow::json::LineDelimitedWriter;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use searchmill_schemas::{RecordKind, bytes_as_text, unfit_for_json, with_bytes_as_text};

use super::safe::plain;

/// Maximum width of a preview cell.
const CELL: usize = 60;
/// Space between two columns.
const GAP: &str = "  ";

/// Formats a table in columns; cuts the last column to `width`.
pub(crate) fn text_table(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> String {
    TextTable::new(width).lines(&with_header(header, rows))
}

fn with_header(header: &[&str], rows: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut all = vec![header.iter().map(|&name| name.to_owned()).collect()];
    all.extend_from_slice(rows);
    all
}

/// Formats a table like [`text_table`], with the words of one column in the style that belongs to them.
pub(super) fn coloured_table(
    header: &[&str],
    rows: &[Vec<String>],
    width: Option<usize>,
    column: usize,
    style: fn(&str) -> Style,
) -> String {
    let mut table = TextTable::new(width);
    let mut lines = table.each_line(&with_header(header, rows));
    let start: usize = table.widths.iter().take(column).map(|width| width + GAP.len()).sum();
    for (line, row) in lines.iter_mut().skip(1).zip(rows) {
        // A cell that was cut stays plain.
        if let Some(cell) = row.get(column)
            && let Some((begin, _)) = line.char_indices().nth(start)
            && let Some(after) = line[begin..].strip_prefix(cell)
        {
            let (before, style) = (&line[..begin], style(cell));
            *line = format!("{before}{style}{cell}{style:#}{after}");
        }
    }
    lines.join("\n")
}

/// A table that is formatted block by block. A column is as wide as its widest cell so far.
pub(crate) struct TextTable {
    widths: Vec<usize>,
    width: Option<usize>,
}

impl TextTable {
    /// Starts a table whose lines are cut to `width`.
    pub(crate) fn new(width: Option<usize>) -> Self {
        Self { widths: Vec::new(), width }
    }

    /// Formats the next rows.
    pub(crate) fn lines(&mut self, rows: &[Vec<String>]) -> String {
        self.each_line(rows).join("\n")
    }

    fn each_line(&mut self, rows: &[Vec<String>]) -> Vec<String> {
        for row in rows {
            self.widths.resize(self.widths.len().max(row.len()), 0);
            for (cell, width) in row.iter().zip(&mut self.widths) {
                // Characters, not columns: East Asian ones are two columns wide, and their lines do not align.
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut lines = Vec::with_capacity(rows.len());
        for row in rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&self.widths).enumerate() {
                if column > 0 {
                    line.push_str(GAP);
                }
                line.push_str(cell);
                line.push_str(&" ".repeat(width.saturating_sub(cell.chars().count())));
            }
            let mut line = line.trim_end().to_owned();
            if let Some(width) = self.width
                && line.chars().count() > width
            {
                // One character less, for the `…`.
                line = line.chars().take(width.saturating_sub(1)).collect();
                line.push('…');
            }
            lines.push(line);
        }
        lines
    }
}

/// Formats a number of bytes.
pub(crate) fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Formats a number of seconds.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        // From 0.0995 s on, milliseconds would be rounded to `100 ms`: seconds are shown.
        s if s < 0.0995 => format!("{:.0} ms", s * 1000.0),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{}:{:02} min", s as u64 / 60, s as u64 % 60),
        s => format!("{}:{:02} h", s as u64 / 3600, s as u64 / 60 % 60),
    }
}

/// Returns a plain word unchanged and quotes anything else: for `key=value` lines and copyable commands.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = text.chars().all(|ch| ch.is_alphanumeric() || "-_./:=,@+%#".contains(ch));
    if !text.is_empty() && is_plain { text.to_owned() } else { format!("{text:?}") }
}

/// Formats rows as JSON, one object per line. Fails if a column holds bytes that are no text.
pub(crate) fn json_lines(batch: &RecordBatch) -> Result<Vec<String>, String> {
    let batch = match with_bytes_as_text(batch) {
        Ok(batch) => batch,
        Err((column, _)) => {
            return Err(format!(
                "the column `{column}` holds bytes that are not UTF-8 text: write the rows to a Parquet file with `-o FILE`"
            ));
        }
    };
    if let Some((column, reason)) = unfit_for_json(&batch) {
        return Err(format!(
            "the column `{column}` has {reason}, which JSON cannot say: write the rows to a Parquet file with `-o FILE`"
        ));
    }
    let mut text = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut text);
    writer.write(&batch).map_err(|error| error.to_string())?;
    writer.finish().map_err(|error| error.to_string())?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns the values of the columns that a kind does not have, a JSON object for each row; empty without such columns.
pub(crate) fn added_columns(batch: &RecordBatch, kind: RecordKind) -> Result<Vec<String>, String> {
    let (known, schema) = (kind.schema(), batch.schema());
    let mut added: Vec<usize> = (0..schema.fields().len()).collect();
    added.retain(|column| known.column_with_name(schema.field(*column).name()).is_none());
    if added.is_empty() {
        return Ok(Vec::new());
    }
    json_lines(&batch.project(&added).map_err(|error| error.to_string())?)
}

/// Returns the cells of a preview, one line each. Long values are cut, unless `full`.
pub(crate) fn preview(batch: &RecordBatch, full: bool) -> Vec<Vec<String>> {
    const OPTIONS: FormatOptions<'static> = FormatOptions::new();
    let columns: Vec<ArrayRef> = batch.columns().iter().map(readable).collect();
    let width = if full { usize::MAX } else { CELL };
    let mut rows = vec![Vec::with_capacity(columns.len()); batch.num_rows()];
    for column in &columns {
        // A value that cannot be formatted is an empty cell: a preview never fails.
        let format = ArrayFormatter::try_new(column.as_ref(), &OPTIONS).ok();
        for (row, cells) in rows.iter_mut().enumerate() {
            let text = format.as_ref().and_then(|format| format.value(row).try_to_string().ok());
            cells.push(cut(&text.unwrap_or_default(), width));
        }
    }
    rows
}

/// Returns a column of bytes as text. Values that are no text are shown as their length.
fn readable(column: &ArrayRef) -> ArrayRef {
    if let Ok(text) = bytes_as_text(column) {
        return text;
    }
    let Ok(bytes) = cast(column, &DataType::LargeBinary) else { return Arc::clone(column) };
    let mut shown = StringBuilder::new();
    for value in bytes.as_binary::<i64>() {
        match value.map(|bytes| (std::str::from_utf8(bytes), bytes.len())) {
            None => shown.append_null(),
            Some((Ok(text), _)) => shown.append_value(text),
            Some((Err(_), length)) => shown.append_value(format!("<{}>", self::bytes(length as u64))),
        }
    }
    Arc::new(shown.finish())
}

/// Returns a text as one line of at most `width` characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    let line = plain(text).replace(['\n', '\r', '\t'], " ");
    match line.char_indices().nth(width) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(bytes(12), "12 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(duration(0.0123), "12 ms");
        assert_eq!(duration(75.0), "1:15 min");
        assert_eq!([quoted("out/a-1.jsonl"), quoted("a b"), quoted("")], ["out/a-1.jsonl", "\"a b\"", "\"\""]);
        let table = text_table(&["a", "long"], &[vec!["xyz".into(), "é".into()]], None);
        assert_eq!(table, "a    long\nxyz  é");
        let mut table = TextTable::new(Some(9));
        let cells = |cells: [&str; 2]| vec![cells.map(str::to_owned).to_vec()];
        let blocks = [["a", "b"], ["xyz", "1"], ["x", "12345"]].map(|row| table.lines(&cells(row)));
        assert_eq!(blocks, ["a  b", "xyz  1", "x    123…"]);
    }
}

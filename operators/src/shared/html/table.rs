//! Tables of figures, for the terminal and for pages.

use std::fmt::Write;

use super::plot::{Estimate, escape};

/// Placeholder for a missing figure.
pub(crate) const NOTHING: &str = "–";

/// A titled table of text cells.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) header: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &str, header: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            header: header.iter().map(|cell| (*cell).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Renders the table with box-drawing lines: the first column left-aligned, the others right-aligned.
    pub(crate) fn render(&self) -> String {
        let mut widths = vec![0; self.header.len()];
        for row in std::iter::once(&self.header).chain(&self.rows) {
            for (wide, cell) in widths.iter_mut().zip(row) {
                *wide = width(cell).max(*wide);
            }
        }
        let bars: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        let mut out = format!("{}\n┌{}┐\n", self.title, bars.join("┬"));
        out.push_str(&line(&self.header, &widths));
        writeln!(out, "├{}┤", bars.join("┼")).ok();
        for row in &self.rows {
            out.push_str(&line(row, &widths));
        }
        writeln!(out, "└{}┘", bars.join("┴")).ok();
        out
    }

    /// Renders the table for a page.
    pub(crate) fn html(&self) -> String {
        fn push_row(out: &mut String, row: &[String], tag: &str) {
            out.push_str("<tr>");
            for cell in row {
                write!(out, "<{tag}>{}</{tag}>", escape(cell)).ok();
            }
            out.push_str("</tr>");
        }
        let wide = if self.header.len() > 4 { " wide" } else { "" };
        let mut out = format!("<section class=\"table{wide}\"><h3>{}</h3><div><table><thead>", escape(&self.title));
        push_row(&mut out, &self.header, "th");
        out.push_str("</thead><tbody>");
        for row in &self.rows {
            push_row(&mut out, row, "td");
        }
        out + "</tbody></table></div></section>"
    }
}

/// Width of a text in terminal columns: wide East Asian characters take two.
pub(crate) fn width(text: &str) -> usize {
    let mut width = 0;
    for c in text.chars() {
        let is_wide = matches!(c, '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' | '\u{1f300}'..='\u{1faff}');
        width += if is_wide { 2 } else { 1 };
    }
    width
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut out = String::from("│");
    for (column, (cell, wide)) in cells.iter().zip(widths).enumerate() {
        let gap = " ".repeat(wide.saturating_sub(width(cell)));
        let (before, after) = if column == 0 { ("", gap.as_str()) } else { (gap.as_str(), "") };
        write!(out, " {before}{cell}{after} │").ok();
    }
    out.push('\n');
    out
}

/// Formats an estimate as value and interval.
pub(crate) fn estimate_cells(estimate: Option<Estimate>) -> [String; 2] {
    let Some(estimate) = estimate else { return [NOTHING.into(), NOTHING.into()] };
    [format!("{:.3}", estimate.value), estimate.interval().unwrap_or_else(|| NOTHING.to_owned())]
}

/// Formats the value of an estimate.
pub(crate) fn value_cell(estimate: Option<Estimate>) -> String {
    let [value, _] = estimate_cells(estimate);
    value
}

/// Formats a number with at most four decimals.
pub(crate) fn number(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e12).contains(&value.abs()) {
        return format!("{value:.3e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats `95 %`, `99.5 %`.
pub(crate) fn percent(share: f64) -> String {
    // Rounded: 0.07 · 100 is 7.000000000000001.
    format!("{} %", (share * 1e6).round() / 1e4)
}

/// Formats `12.5%` of a whole; a dash if the whole is 0.
pub(crate) fn share(part: usize, whole: usize) -> String {
    if whole == 0 { NOTHING.to_owned() } else { format!("{:.1}%", part as f64 / whole as f64 * 100.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up_with_wide_characters() {
        let mut table = Table::new("Title", &["name", "n"]);
        table.row(["谷歌".into(), "1".into()]);
        table.row(["x".into(), "12".into()]);
        let expected =
            "Title\n┌──────┬────┐\n│ name │  n │\n├──────┼────┤\n│ 谷歌 │  1 │\n│ x    │ 12 │\n└──────┴────┘\n";
        assert_eq!(table.render(), expected);
    }

    #[test]
    fn there_is_no_share_of_nothing() {
        assert_eq!((share(0, 0).as_str(), share(0, 8).as_str(), share(1, 8).as_str()), ("–", "0.0%", "12.5%"));
        let numbers = [0.0, 0.25, -1.5, 1234.56789, 2e-6, 1e15].map(number);
        assert_eq!(numbers, ["0", "0.25", "-1.5", "1234.5679", "2.000e-6", "1.000e15"]);
        assert_eq!((percent(0.95).as_str(), percent(0.995).as_str()), ("95 %", "99.5 %"));
    }
}

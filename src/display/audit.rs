//! Formats an audit report: text, Markdown, HTML, JSON.

use searchmill_engine::lineage::{Finding, Report, Severity};
use serde_json::{Value, json};

use super::safe::safe;
use super::style::{ERROR, GOOD, STRONG, WARN};
use super::table::{bytes, text_table};

/// Maximum number of unchecked items named in the last line.
const NAMED: usize = 3;

/// An audit report and its target.
pub(crate) struct Page<'a> {
    pub(crate) target: String,
    /// Seed of the sampled rows, if rows were sampled.
    pub(crate) seed: Option<u64>,
    pub(crate) report: &'a Report,
}

impl Page<'_> {
    /// What was checked, as (what, result).
    fn checked(&self) -> Vec<(&'static str, String)> {
        let report = self.report;
        let mut lines = vec![
            ("result records", format!("{}: checksums, keys", report.records)),
            ("artifacts", format!("{}, {} files, {} read", report.artifacts, report.files, bytes(report.bytes))),
            ("sources", format!("{}, {} of them present and unchanged", report.sources, report.sources_unchanged)),
        ];
        if let Some(seed) = self.seed {
            lines.push(("rows drawn with", format!("--seed {seed}")));
        }
        lines
    }

    /// Formats the outcome, and `2 of 7 not checked: replay of chunks (its source changed), …` if something was not
    /// checked.
    fn ending(&self) -> Vec<String> {
        let (differences, missing) = (self.report.differences(), &self.report.unchecked);
        let notes = match self.report.findings.len() - differences {
            0 => String::new(),
            1 => ", 1 note".to_owned(),
            count => format!(", {count} notes"),
        };
        let mut lines = vec![match differences {
            0 if missing.is_empty() => format!("everything checked is as recorded{notes}"),
            0 => format!("what was checked is as recorded{notes}"),
            1 => format!("1 difference{notes}"),
            count => format!("{count} differences{notes}"),
        }];
        if !missing.is_empty() {
            let named = missing.iter().take(NAMED).map(|one| format!("{} ({})", one.what, one.why));
            let mut line = named.collect::<Vec<_>>().join(", ");
            if missing.len() > NAMED {
                line.push_str(&format!(", and {} more", missing.len() - NAMED));
            }
            lines.push(format!("{} of {} not checked: {line}", missing.len(), self.report.asked()));
        }
        lines
    }

    fn nodes(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        for node in &self.report.nodes {
            let (check, outcome) = (node.check.to_owned(), node.outcome.to_owned());
            rows.push(vec![node.node.to_string(), check, outcome, node.detail.clone()]);
        }
        rows
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{STRONG}audit of {}{STRONG:#}\n", self.target);
        for (what, result) in self.checked() {
            text.push_str(&format!("  {what:<16} {result}\n"));
        }
        if !self.report.nodes.is_empty() {
            let table = text_table(&["node", "check", "outcome", ""], &self.nodes(), None);
            text.push_str(&format!("\n{table}\n"));
        }
        if !self.report.findings.is_empty() {
            text.push('\n');
        }
        for finding in &self.report.findings {
            let (style, word) = match finding.severity {
                Severity::Difference => (ERROR, "difference"),
                Severity::Note => (WARN, "note"),
            };
            text.push_str(&format!("{style}{word}{style:#} {}: {}\n", place(finding), finding.message));
        }
        let style = match self.report.differences() {
            0 if self.report.unchecked.is_empty() => GOOD,
            0 => WARN,
            _ => ERROR,
        };
        text.push('\n');
        for line in self.ending() {
            text.push_str(&format!("{style}{line}{style:#}\n"));
        }
        text
    }

    pub(crate) fn json(&self) -> Value {
        let complete = self.report.unchecked.is_empty();
        let ok = complete && self.report.differences() == 0;
        let (asked, ending) = (self.report.asked(), self.ending());
        json!({
            "target": self.target, "ok": ok, "complete": complete, "asked": asked, "ending": ending,
            "seed": self.seed, "report": self.report,
        })
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("# Audit of {}\n\n**{}**\n\n", self.target, self.ending().join(". "));
        for (header, rows) in self.tables() {
            let line = vec!["---"; header.len()].join(" | ");
            text.push_str(&format!("| {} |\n| {line} |\n", header.join(" | ")));
            for row in rows {
                // A `|` or a line break would begin another cell or row.
                let cells = row.iter().map(|cell| cell.replace('|', "\\|").replace(['\n', '\r'], " "));
                text.push_str(&format!("| {} |\n", cells.collect::<Vec<_>>().join(" | ")));
            }
            text.push('\n');
        }
        safe(&text).into_owned()
    }

    /// Returns the tables of a page: headers and rows.
    fn tables(&self) -> Vec<(&'static [&'static str], Vec<Vec<String>>)> {
        let checked = self.checked().into_iter().map(|(what, result)| vec![what.to_owned(), result]).collect();
        let mut findings = Vec::new();
        for finding in &self.report.findings {
            let word = if finding.severity == Severity::Difference { "difference" } else { "note" };
            findings.push(vec![word.to_owned(), finding.check.to_owned(), place(finding), finding.message.clone()]);
        }
        let mut tables: Vec<(&[&str], _)> = vec![(&["checked", ""], checked)];
        tables.push((&["node", "check", "outcome", "detail"], self.nodes()));
        tables.push((&["", "check", "where", "what"], findings));
        tables.retain(|(_, rows): &(_, Vec<_>)| !rows.is_empty());
        tables
    }

    pub(crate) fn html(&self) -> String {
        let whole = self.report.differences() == 0 && self.report.unchecked.is_empty();
        let class = if whole { "good" } else { "bad" };
        let mut body = format!("<h1>Audit of {}</h1>\n", escape(&self.target));
        for line in self.ending() {
            body.push_str(&format!("<p class=\"{class}\">{}</p>\n", escape(&line)));
        }
        for (header, rows) in self.tables() {
            body.push_str("<table>\n<tr>");
            for cell in header {
                body.push_str(&format!("<th>{}</th>", escape(cell)));
            }
            for row in rows {
                body.push_str("</tr>\n<tr>");
                for cell in row {
                    body.push_str(&format!("<td>{}</td>", escape(&cell)));
                }
            }
            body.push_str("</tr>\n</table>\n");
        }
        let title = escape(&self.target);
        let page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Audit of {title}</title>\n\
             <style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
        );
        // Texts of data turn no direction on a page either.
        safe(&page).into_owned()
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.3rem;overflow-wrap:anywhere}table{border-collapse:collapse;margin:1rem 0;width:100%}\
td,th{border:1px solid #8886;padding:.3rem .6rem;text-align:left;vertical-align:top;overflow-wrap:anywhere}\
.good{color:#176d2b;font-weight:600}.bad{color:#b3151f;font-weight:600}";

/// Location of a finding: the node, then its details.
fn place(finding: &Finding) -> String {
    match &finding.place {
        Some(place) => format!("{}, {place}", finding.node),
        None => finding.node.to_string(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_cannot_break_out_of_the_report() {
        let mut report = Report::default();
        let message = "recorded \"<script>\" | computed \"x\" \u{202e}gpj";
        report.find(Severity::Difference, "replay", "swift", Some("row 1\n2".to_owned()), message);
        let page = Page { target: "node <b>".to_owned(), seed: Some(7), report: &report };
        assert!(!page.html().contains("<script>") && page.html().contains("&lt;script&gt;"));
        assert!([page.html(), page.markdown()].iter().all(|page| page.contains("\\u202egpj")));
        assert!(
            page.markdown().contains("| difference | replay | swift, row 1 2 | recorded \"<script>\" \\| computed")
        );
        assert!(page.text().contains("1 difference") && page.text().contains("--seed 7"));
        assert_eq!(page.json()["ok"], false);
    }

    #[test]
    fn what_was_not_looked_at_is_the_last_word() {
        let mut report = Report { artifacts: 4, sources: 1, ..Report::default() };
        report.note_node("chunks", "replay", "same", "all".to_owned());
        let page = |report: &Report| Page { target: "run".to_owned(), seed: None, report }.text();
        assert!(page(&report).contains("everything checked is as recorded"));
        report.note_node("made", "replay", "not checked", "its source changed".to_owned());
        let text = anstream::adapter::strip_str(&page(&report)).to_string();
        assert!(!text.contains("everything"), "{text}");
        assert!(text.trim_end().ends_with("\n1 of 7 not checked: replay of made (its source changed)"), "{text}");
    }
}

//! Outcomes of the tests of a pipeline.

use searchmill_engine::Verdict;
use serde_json::json;

use super::Terminal;
use super::style::{ERROR, GOOD, HELP};
use crate::pipeline_test::Refused;

/// Differences shown per test (at most).
const SHOWN: usize = 20;

/// A test that ran.
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// Requests that the script does not answer.
    pub(crate) refused: Vec<Refused>,
    /// Answers of the script that were not asked for.
    pub(crate) unused: Vec<String>,
}

impl Trial {
    pub(crate) fn passed(&self) -> bool {
        self.refused.is_empty()
            && self.unused.is_empty()
            && self.verdict.failures.is_empty()
            && self.verdict.mismatches.is_empty()
    }
}

/// Shows a test: its name if it passed, and what differs if not.
pub(crate) fn show(terminal: &Terminal, trial: &Trial) {
    let Trial { name, verdict, refused, unused } = trial;
    if terminal.is_json() {
        let failures = verdict.failures.iter().map(|(node, message)| json!({"node": node, "message": message}));
        let refused = refused.iter().map(|refused| {
            json!({"path": refused.path, "request": refused.text, "answers": refused.answers, "last": refused.last})
        });
        let rejects = verdict.rejects.iter().map(|(node, message)| json!({"node": node, "message": message}));
        return terminal.json(&json!({
            "test": name, "passed": trial.passed(), "failures": failures.collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(), "unused": unused, "mismatches": verdict.mismatches,
            "rejects": rejects.collect::<Vec<_>>(),
        }));
    }
    if trial.passed() {
        return terminal.line(&format!("{GOOD}passed{GOOD:#} {name}"));
    }
    terminal.line(&format!("{ERROR}failed{ERROR:#} {name}"));
    for (node, message) in &verdict.failures {
        let node = if node.is_empty() { String::new() } else { format!("{node}: ") };
        terminal.line(&format!("  {node}{message}"));
    }
    let quote = |text: &str| text.lines().for_each(|line| terminal.line(&format!("    {line}")));
    for refused in refused {
        let which = if refused.answers == 0 { "answer" } else { "further answer" };
        terminal.line(&format!("  the script has no {which} to a request to {}:", refused.path));
        quote(&refused.text);
        if let Some(last) = &refused.last {
            let count =
                if refused.answers == 1 { "1 answer".to_owned() } else { format!("{} answers", refused.answers) };
            terminal.line(&format!("  its last message, after {count} of the script:"));
            quote(last);
        }
    }
    let help = |text: &str| terminal.line(&format!("  {HELP}help{HELP:#}: {text}"));
    if refused.iter().any(|refused| refused.answers == 0) {
        help("add `- {when: TEXT OF THE PROMPT, answer: …}` to `model:`");
    }
    if refused.iter().any(|refused| refused.answers > 0) {
        help("give all answers of the conversation: `answers: [FIRST, SECOND]`");
    }
    // The reason for a missing row. Those of requests without an answer are above.
    for (node, message) in verdict.rejects.iter().filter(|_| refused.is_empty()) {
        terminal.line(&format!("  {node}: {message}"));
    }
    for unused in unused {
        terminal.line(&format!("  {unused}"));
    }
    if !unused.is_empty() {
        terminal.line(&format!("  {HELP}help{HELP:#}: remove it from `model:`, or change its `when:`"));
    }
    for mismatch in verdict.mismatches.iter().take(SHOWN) {
        terminal.line(&format!("  {mismatch}"));
    }
    let more = verdict.mismatches.len().saturating_sub(SHOWN);
    if more > 0 {
        terminal.line(&format!("  … and {more} more differences"));
    }
}

/// Shows how many tests passed.
pub(crate) fn balance(terminal: &Terminal, all: usize, failed: usize) {
    if terminal.is_json() {
        return;
    }
    let passed = all - failed;
    let rest = if failed > 0 { format!(", {ERROR}{failed} failed{ERROR:#}") } else { String::new() };
    terminal.line(&format!("{passed} of {all} tests passed{rest}"));
}

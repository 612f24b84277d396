//! Outcomes of the tests of a pipeline.

use searchmill_engine::Verdict;
use serde_json::json;

use super::Terminal;
use super::style::{ERROR, GOOD, HELP};
use crate::testing::Refused;

/// Differences shown per test (at most).
const SHOWN: usize = 20;

/// A test that ran.
pub(crate) struct Trial {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    /// Requests that the script does not answer.
    pub(crate) refused: Vec<Refused>,
}

impl Trial {
    pub(crate) fn passed(&self) -> bool {
        self.refused.is_empty() && self.verdict.failures.is_empty() && self.verdict.mismatches.is_empty()
    }
}

/// Shows a test: its name if it passed, and what differs if not.
pub(crate) fn show(terminal: &Terminal, trial: &Trial) {
    let Trial { name, verdict, refused } = trial;
    if terminal.is_json() {
        let failures = verdict.failures.iter().map(|(node, message)| json!({"node": node, "message": message}));
        let refused = refused.iter().map(|refused| json!({"path": refused.path, "request": refused.text}));
        return terminal.json(&json!({
            "test": name, "passed": trial.passed(), "failures": failures.collect::<Vec<_>>(),
            "refused": refused.collect::<Vec<_>>(), "mismatches": verdict.mismatches,
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
    for refused in refused {
        terminal.line(&format!("  the script has no answer to a request to {}:", refused.path));
        refused.text.lines().for_each(|line| terminal.line(&format!("    {line}")));
    }
    if !refused.is_empty() {
        terminal.line(&format!("  {HELP}help{HELP:#}: add `- {{when: TEXT OF THE PROMPT, answer: …}}` to `model:`"));
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

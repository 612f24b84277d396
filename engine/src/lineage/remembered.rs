//! Verifies the memos of a closure: whether paid rows and answers are still stored.

use std::collections::BTreeMap;

use super::closure::{Closure, Step};
use super::findings::{Report, Severity};
use crate::fingerprint::Digest;
use crate::operator::DRAWN;
use crate::store::{Memo, Store};

/// Verifies the memos of a closure. Damage to paid content makes the audit fail. Missing content counts as unchecked,
/// since `gc --memo` may have removed it.
pub(super) fn memos(store: &Store, closure: &Closure, report: &mut Report) {
    let mut seen: BTreeMap<Digest, Vec<&Step>> = BTreeMap::new();
    for step in &closure.steps {
        for base in step.result.memos() {
            seen.entry(base).or_default().push(step);
        }
    }
    for (base, steps) in seen {
        let Some(first) = steps.first() else { continue };
        let what = match &first.result {
            result if result.asked == Some(base) => "answers",
            result if result.observed.contains(&base) => "observations",
            _ => "rows",
        };
        match Memo::open(store, &base) {
            Ok(memo) if memo.damage().lost > 0 => {
                let paid = first.result.asked.is_some() || what == "observations";
                let severity = if paid { Severity::Difference } else { Severity::Note };
                report.find(severity, "memo", first.name(), None, memo.damage().text(what));
            }
            Ok(mut memo) => {
                for step in steps {
                    // Older records have the same keys but did not count: they do not replace missing ones.
                    memo = memo.since(step.result.since());
                    if let Some(missing) = missing(store, step, &memo, what) {
                        report.miss(format!("{missing} of {}", step.name()), "they are gone from the store");
                    }
                }
            }
            Err(error) => report.miss(format!("cached {what} of {}", first.name()), error.to_string()),
        }
    }
}

/// Returns how many rows or answers that a result must have stored are missing. The expected number is a lower bound,
/// so that results are never called incomplete without reason.
fn missing(store: &Store, step: &Step, memo: &Memo, what: &str) -> Option<String> {
    let result = &step.result;
    if result.asked.is_none() && result.observed.is_empty() && result.calls == 0 {
        return None;
    }
    // An archive may carry results without their cached rows.
    if memo.is_empty() && store.is_imported(&result.run) {
        return None;
    }
    let failed = result.rejects() + result.dropped;
    // Calls of rejected rows are counted but not stored; an observation may have been made for another node.
    let calls = if failed == 0 && result.observed.is_empty() { result.calls } else { 0 };
    let records = match what {
        "rows" => {
            // A result that was drawn up to a goal says how many samples it has.
            let rows = match result.figures.get(DRAWN) {
                Some(samples) => *samples as u64,
                None => input_rows(store, step),
            };
            rows.saturating_sub(failed)
        }
        // Tools may have been called by no row at all.
        "observations" => 0,
        _ => u64::from(result.calls > 0 && result.rows() > 0),
    };
    let known = memo.len() as u64;
    if known < records && (what == "rows" || calls == 0) {
        return Some(format!("{} of {records} cached {what}", records - known));
    }
    // A record stands for one call or more.
    let known = if known < calls { memo.calls() } else { calls };
    if known >= calls {
        return None;
    }
    Some(match what {
        "rows" => format!("the rows of {} of {calls} calls", calls - known),
        _ => format!("{} of {calls} cached answers", calls - known),
    })
}

/// Returns the rows of the smallest input table: a node has a result for each row of its main input and each sample.
fn input_rows(store: &Store, step: &Step) -> u64 {
    let tables = step.inputs.iter().filter(|input| input.artifact_type.ends_with(" rows"));
    tables.map(|input| store.artifact(&input.id).map_or(0, |artifact| artifact.rows())).min().unwrap_or(0)
}

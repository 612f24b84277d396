//! Reads the memos behind a closure: is what was paid for still remembered?

use std::collections::BTreeMap;

use super::closure::{Closure, Step};
use super::findings::{Report, Severity};
use crate::fingerprint::Digest;
use crate::store::{Memo, Store};

/// Reads the memos behind a closure. Where something was paid for, damage makes the audit fail; what is gone was not
/// checked, since `gc --memo` may be why.
pub(super) fn memos(store: &Store, closure: &Closure, report: &mut Report) {
    let mut seen: BTreeMap<Digest, Vec<&Step>> = BTreeMap::new();
    for step in &closure.steps {
        step.result.memos().for_each(|base| seen.entry(base).or_default().push(step));
    }
    for (base, steps) in seen {
        let Some(first) = steps.first() else { continue };
        let what = if first.result.asked == Some(base) { "answers" } else { "rows" };
        match Memo::open(store, &base) {
            Ok(memo) if memo.damage().lost > 0 => {
                let paid = first.result.asked.is_some();
                let severity = if paid { Severity::Difference } else { Severity::Note };
                report.find(severity, "memo", first.name(), None, memo.damage().told(what));
            }
            Ok(mut memo) => {
                for step in steps {
                    // Older ones have the same keys and did not count for it: they do not stand for what is gone.
                    memo = memo.since(step.result.since());
                    if let Some(missing) = missing(store, step, &memo, what) {
                        report.miss(format!("{missing} of {}", step.name()), "they are gone from the store");
                    }
                }
            }
            Err(error) => report.miss(format!("remembered {what} of {}", first.name()), error.to_string()),
        }
    }
}

/// How many of the rows or answers that a result must have left in a memo are not there. What is counted is the least that
/// can have been left: results are never called incomplete without need.
fn missing(store: &Store, step: &Step, memo: &Memo, what: &str) -> Option<String> {
    let result = &step.result;
    if result.asked.is_none() && result.calls == 0 {
        return None;
    }
    // An archive carries results with what is remembered of them or without.
    if memo.is_empty() && store.is_imported(&result.run) {
        return None;
    }
    let failed = result.rejects() + result.dropped;
    // What rejected rows called is counted and not kept.
    let calls = if failed == 0 { result.calls } else { 0 };
    let records = match what {
        "rows" => input_rows(store, step).saturating_sub(failed),
        _ => u64::from(result.calls > 0 && made_rows(step) > 0),
    };
    let known = memo.len() as u64;
    if known < records && (what == "rows" || calls == 0) {
        return Some(format!("{} of {records} remembered {what}", records - known));
    }
    // A record is one call or more.
    let known = if known < calls { memo.calls() } else { calls };
    (known < calls).then(|| match what {
        "rows" => format!("the rows of {} of {calls} calls", calls - known),
        _ => format!("{} of {calls} remembered answers", calls - known),
    })
}

/// Rows of the smallest table that a node took: it has a result for each row of its main input, and for each sample.
fn input_rows(store: &Store, step: &Step) -> u64 {
    let tables = step.inputs.iter().filter(|input| input.artifact_type.ends_with(" rows"));
    tables.map(|input| store.artifact(&input.id).map_or(0, |artifact| artifact.rows())).min().unwrap_or(0)
}

fn made_rows(step: &Step) -> u64 {
    let outputs = step.result.outputs.iter().filter(|(port, _)| *port != "rejects");
    outputs.map(|(_, output)| output.rows).sum()
}

//! Verifies that the records, artifacts, memos and sources of a closure are as written. Read-only.
//!
//! A later run may have replaced a result under the same key: by `--force`, or by retrying rejected rows. Of an earlier
//! run's record of such a node, only files can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use indexmap::IndexMap;
use rayon::prelude::*;
use serde_json::Value;

use super::catalog::{Catalog, Collected};
use super::closure::{Closure, Step};
use super::findings::{Report, Severity};
use super::trace::{GraphSource, Roots, sources};
use crate::fingerprint::{Digest, NodeKey, Reason, hash_file};
use crate::node_id::NodeId;
use crate::operator::{DRAWN, Repeatability};
use crate::store::{
    Artifact, ArtifactId, Damage, Memo, NodeOutcome, NodeResult, NodeRun, OutputRecord, Part, Release, Store,
};

/// The state of a recorded source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The recorded content.
    Unchanged,
    /// Different content.
    Changed,
    /// The file is missing.
    Gone,
    /// Identified by name or address, not by content.
    Named,
    /// Its path was not recorded.
    Unplaced,
}

/// Compares a source with its record. Reads the whole file.
pub fn source_state(source: &GraphSource) -> SourceState {
    match &source.path {
        _ if !source.is_file() => SourceState::Named,
        None => SourceState::Unplaced,
        Some(path) => match hash_file(Path::new(path)) {
            Ok(digest) if digest.hex() == source.content => SourceState::Unchanged,
            Ok(_) => SourceState::Changed,
            Err(_) => SourceState::Gone,
        },
    }
}

/// Verifies everything behind `roots`: checksums and keys of records, agreement with the ledger (`ledger`: the run's
/// nodes), digests of all files, and sources as far as they exist. A changed source is a note, or a difference with
/// `strict`.
pub fn verify(
    store: &Store,
    catalog: &Catalog,
    roots: &Roots,
    closure: &Closure,
    ledger: &[NodeRun],
    strict: bool,
) -> Report {
    let mut report = Report::default();
    let mut replaced = of_ledger(store, catalog, roots.run.as_deref(), ledger);
    // What a later run replaced differs from its record for a reason.
    let mut rest: Vec<&NodeRun> = ledger.iter().collect();
    rest.retain(|node| !replaced.iter().any(|replaced| replaced.is_of(node)));
    for key in &roots.keys {
        if catalog.claim(key).is_some() {
            continue;
        }
        let node = ledger.iter().find(|node| node.key == Some(*key)).map_or("unknown node", |node| node.node.as_str());
        let state = if catalog.is_damaged(key) { "cannot be read" } else { "is gone from the store" };
        report.differs("record", node, Some(key_place(key)), format!("its result record {state}"));
    }
    for step in &closure.steps {
        report.records += 1;
        record(step, &mut report);
        let unnamed = behind(store, catalog, step);
        for input in &step.inputs {
            if input.maker.is_none() && !unnamed.iter().any(|replaced| replaced.gave(&input.id)) {
                let place = format!("input `{}`, artifact {}", input.port, input.id.digest().short());
                report.differs("lineage", step.name(), Some(place), "no record in the store shows its origin");
            }
        }
        replaced.extend(unnamed);
        step_sources(step, strict, &mut report);
    }
    for replaced in &replaced {
        replaced.note(&mut report);
    }
    for node in rest {
        ledger_agrees(catalog, node, &mut report);
    }
    artifacts(store, closure, roots, &replaced, &mut report);
    memos(store, closure, &mut report);
    report
}

fn key_place(key: &NodeKey) -> String {
    format!("key {}", key.0.short())
}

fn record(step: &Step, report: &mut Report) {
    let (name, place) = (step.name(), Some(key_place(&step.key)));
    if step.damaged {
        report.differs("record", name, place.clone(), "its result record was changed: the checksum does not fit");
    }
    if NodeKey::of(&step.result.preimage) != step.key {
        let message = "the operator, params, inputs and seed in its record do not give its key";
        report.differs("record", name, place.clone(), message);
    }
    let Some(origin) = &step.result.origin else { return };
    // The origin has more params than the key: those that change no bytes.
    for path in disagreeing(&step.preimage.params, &origin.params) {
        let message = format!("param `{path}` of the key differs from the one recorded for the node");
        report.differs("record", name, place.clone(), message);
    }
}

/// Returns the paths of values in `part` that differ in `whole`, which may contain more.
fn disagreeing(part: &Value, whole: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![(String::new(), part, whole)];
    while let Some((path, part, whole)) = pending.pop() {
        match (part, whole) {
            (Value::Object(part), Value::Object(whole)) => {
                for (name, value) in part {
                    let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    pending.push((below, value, whole.get(name).unwrap_or(&Value::Null)));
                }
            }
            (Value::Array(part), Value::Array(whole)) if part.len() == whole.len() => {
                for (index, (part, whole)) in part.iter().zip(whole).enumerate() {
                    pending.push((format!("{path}.{index}"), part, whole));
                }
            }
            _ if part != whole => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

fn step_sources(step: &Step, strict: bool, report: &mut Report) {
    let changed = if strict { Severity::Difference } else { Severity::Note };
    for source in sources(step) {
        report.sources += 1;
        let shown = source.path.clone().unwrap_or_else(|| source.name.clone());
        let what = format!("source {shown} of {}", step.name());
        let place = Some(shown);
        match source_state(&source) {
            SourceState::Unchanged => report.sources_unchanged += 1,
            SourceState::Changed => {
                report.find(changed, "source", step.name(), place, "the file changed since it was read");
            }
            SourceState::Gone => {
                report.find(changed, "source", step.name(), place, "the file no longer exists");
                report.pass_over(what, "the file no longer exists");
            }
            SourceState::Unplaced => {
                report.find(Severity::Note, "source", step.name(), place, "the file's path was not recorded");
                report.pass_over(what, "the file's path was not recorded");
            }
            // Its value is in the key: there is no content to compare.
            SourceState::Named if source.name == "--limit" => report.sources_unchanged += 1,
            SourceState::Named => {
                let message = "it is identified by name or address: its content was not checked";
                report.find(Severity::Note, "source", step.name(), place, message);
                if source.name.contains("://") {
                    report.pass_over(what, "it is identified by address");
                }
            }
        }
    }
}

fn ledger_agrees(catalog: &Catalog, node: &NodeRun, report: &mut Report) {
    let Some(result) = node.key.and_then(|key| catalog.claim(&key).cloned()) else { return };
    for port in node.outputs.keys().chain(result.outputs.keys()).collect::<BTreeSet<_>>() {
        let outputs = [node.outputs.get(port), result.outputs.get(port)];
        // A node without outputs in the history has no result of that run to compare.
        if !node.outputs.is_empty() && outputs[0] != outputs[1] {
            let ids = outputs.map(|output| output.map(|output| output.id.digest().short()));
            let [given, recorded] = ids.map(|id| id.unwrap_or_else(|| "nothing".to_owned()));
            let message = format!("the run gave {given}, the result record says {recorded}");
            report.differs("ledger", &node.node, Some(format!("output `{port}`")), message);
        }
    }
}

/// An artifact, and what records say about it.
struct Expected<'a> {
    id: ArtifactId,
    node: NodeId,
    port: String,
    /// The descriptions in all records, with their nodes and ports.
    claims: Vec<(&'a str, &'a str, &'a OutputRecord)>,
    collected: Option<&'a Collected>,
    /// The run that replaced its result; no record names the artifact any more.
    replaced: Option<&'a str>,
}

impl Expected<'_> {
    fn new(id: ArtifactId, node: &str, port: &str) -> Self {
        let (node, port) = (node.into(), port.to_owned());
        Self { id, node, port, claims: Vec::new(), collected: None, replaced: None }
    }
}

fn artifacts(store: &Store, closure: &Closure, roots: &Roots, replaced: &[Replaced], report: &mut Report) {
    let mut expected: BTreeMap<ArtifactId, Expected<'_>> = BTreeMap::new();
    for step in &closure.steps {
        for (port, output) in &step.result.outputs {
            let (id, name, collected) = (output.id, step.name(), step.collected.as_ref());
            let known = expected.entry(id).or_insert_with(|| Expected { collected, ..Expected::new(id, name, port) });
            // Files may be missing only if every result that has the artifact was collected.
            known.collected = known.collected.and(collected);
            known.claims.push((name, port, output));
        }
    }
    for one in replaced {
        for (port, output) in &one.outputs {
            let (id, replaced) = (output.id, Some(one.by.as_str()));
            let known =
                expected.entry(id).or_insert_with(|| Expected { replaced, ..Expected::new(id, &one.name, port) });
            known.claims.push((&one.name, port, output));
        }
    }
    for step in &closure.steps {
        for input in &step.inputs {
            expected.entry(input.id).or_insert_with(|| Expected::new(input.id, step.name(), ""));
        }
    }
    for id in &roots.artifacts {
        expected.entry(*id).or_insert_with(|| Expected::new(*id, "artifact", ""));
    }
    for expected in expected.values() {
        let before = report.differences();
        artifact(store, expected, report);
        if report.differences() > before {
            report.damaged.insert(expected.id);
        }
    }
}

fn artifact(store: &Store, expected: &Expected<'_>, report: &mut Report) {
    let folder = store.artifact_folder(&expected.id);
    let mut label = format!("artifact {}", expected.id.digest().short());
    if !expected.port.is_empty() {
        label = format!("output {}, {label}", expected.port);
    }
    report.artifacts += 1;
    // Files of a shared store are compared as they arrive: damaged ones are never here.
    if store.is_shared()
        && let Err(damage) = store.bring(&expected.id)
        && store.artifact(&expected.id).is_some()
    {
        let fault = match damage {
            Damage::Missing => "one of its files is missing in the shared store",
            Damage::Corrupt | Damage::Released => "one of its files in the shared store is damaged",
        };
        report.differs("artifact", &expected.node, Some(label), fault);
        return;
    }
    let Some(artifact) = store.artifact(&expected.id) else {
        if let Some(note) = store.release_of(&expected.id) {
            released(expected, &label, &note, report);
            return;
        }
        if let Some(collected) = expected.collected.filter(|_| !folder.exists()) {
            let message = format!("it was {collected}: its content cannot be checked");
            report.pass_over(format!("{label} of {}", expected.node), format!("it was {collected}"));
            report.find(Severity::Note, "artifact", &expected.node, Some(label), message);
            return;
        }
        if let Some(by) = expected.replaced.filter(|_| !folder.exists()) {
            let why = format!("its result was replaced by run {by}, and it is gone from the store");
            report.pass_over(format!("{label} of {}", expected.node), why.as_str());
            report.find(Severity::Note, "artifact", &expected.node, Some(label), why);
            return;
        }
        let message = if folder.exists() {
            "its description does not give its id: it was changed"
        } else {
            "it is gone from the store"
        };
        report.differs("artifact", &expected.node, Some(label), message);
        return;
    };
    claims_fit(expected, &artifact, report);
    report.files += artifact.parts.len() as u64;
    report.bytes += artifact.bytes();
    let checked: Vec<Option<String>> = artifact.parts.par_iter().map(|part| file_fault(&folder, part)).collect();
    for (part, fault) in artifact.parts.iter().zip(checked) {
        if let Some(fault) = fault {
            report.differs("artifact", &expected.node, Some(format!("{label}, file {}", part.name)), fault);
        }
    }
    for extra in store.strangers(&expected.id, &artifact) {
        let described = artifact.parts.iter().any(|part| part.name == extra);
        let added = "the file was added: the artifact does not have it";
        let fault = if described { "it was replaced: it is not a regular file" } else { added };
        report.differs("artifact", &expected.node, Some(format!("{label}, file {extra}")), fault);
    }
}

fn claims_fit(expected: &Expected<'_>, artifact: &Artifact, report: &mut Report) {
    for (node, port, _) in expected.claims.iter().filter(|(.., output)| !output.fits(artifact)) {
        let place = format!("output {port}, artifact {}", expected.id.digest().short());
        let message = "the result record gives another type, other rows or other bytes than the artifact has";
        report.differs("record", node, Some(place), message);
    }
}

/// Notes an artifact whose files were released: its description is known by its id, its files cannot be read.
fn released(expected: &Expected<'_>, label: &str, note: &Release, report: &mut Report) {
    claims_fit(expected, &note.artifact, report);
    let what = format!("{label} of {}", expected.node);
    report.pass_over(what.as_str(), "it was released");
    report.released.insert(expected.id, what);
    let message = "it was released: its files are not here, and were not looked at (--replay makes it again)";
    report.find(Severity::Note, "artifact", &expected.node, Some(label.to_owned()), message);
}

fn file_fault(folder: &Path, part: &Part) -> Option<String> {
    match hash_file(&folder.join(&part.name)) {
        Ok(digest) if digest == part.digest => None,
        Ok(digest) => {
            let (found, written) = (digest.short(), part.digest.short());
            Some(format!("its content was changed: it has digest {found}, written was {written}"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("it is gone".to_owned()),
        Err(error) => Some(format!("it cannot be read: {error}")),
    }
}

/// A result as recorded by an earlier run, and its replacement.
struct Replaced {
    /// The node's name in the earlier run.
    name: NodeId,
    key: NodeKey,
    /// The run that replaced the result.
    by: String,
    /// Outputs that differ from the current record.
    outputs: IndexMap<String, OutputRecord>,
}

impl Replaced {
    /// Returns `node` as recorded by `run` if a later run replaced its result. That run's ledger must say so, it must
    /// have been asked to, and the key must allow different bytes. Any other disagreement is a difference.
    fn of(store: &Store, catalog: &Catalog, run: &str, node: &NodeRun) -> Option<Self> {
        let key = node.key?;
        let result = catalog.result(&key)?;
        // Bytes that depend on a server or on the kind of processor may differ under one key; others may not.
        let computed = result.origin.as_ref().and_then(|origin| origin.computed.as_ref());
        if computed.is_some_and(|computed| computed.repeats == Repeatability::Everywhere) {
            return None;
        }
        let mut outputs = node.outputs.clone();
        outputs.retain(|port, output| result.outputs.get(port) != Some(output));
        if outputs.is_empty() {
            return None;
        }
        for by in store.run_ids().into_iter().rev() {
            // Ids of runs sort by time. What a run after that of the current record says is of no concern.
            let is_later = by.as_str() > run && by <= result.run;
            if is_later && store.run_nodes(&by).iter().any(|node| produced_current(&by, node, result)) {
                return Some(Self { name: node.node.clone(), key, by, outputs });
            }
        }
        None
    }

    /// Whether the result produced that artifact, which no record names any more.
    fn gave(&self, id: &ArtifactId) -> bool {
        self.outputs.iter().any(|(_, output)| output.id == *id)
    }

    /// Whether a ledger line describes this result.
    fn is_of(&self, node: &NodeRun) -> bool {
        node.key == Some(self.key)
            && node.node == self.name
            && self.outputs.iter().all(|(port, output)| node.outputs.get(port) == Some(output))
    }

    /// Records, once per result, that it could not be checked.
    fn note(&self, report: &mut Report) {
        if report.replaced.insert(self.key, self.by.clone()).is_none() {
            let why = format!("replaced by run {}: only its files were compared", self.by);
            let place = Some(format!("key {}", self.key.0.short()));
            report.find(Severity::Note, "record", &self.name, place, why.as_str());
            report.miss(format!("result of {}", self.name), why);
        }
    }
}

/// Whether this node of a run produced the currently recorded result because it was run again on request.
fn produced_current(run: &str, node: &NodeRun, result: &NodeResult) -> bool {
    use Reason::{CacheOff, ForceUnfinished, Forced, RejectsRetried};
    let fits = match node.outcome {
        NodeOutcome::Finished | NodeOutcome::HeldBack | NodeOutcome::CheckFailed => node.outputs == result.outputs,
        // A run that was killed right after it recorded the result does not name the outputs.
        NodeOutcome::Begun => result.run == run,
        NodeOutcome::Cached | NodeOutcome::Failed | NodeOutcome::Skipped | NodeOutcome::Ended => false,
    };
    let mut reasons = node.reasons.iter();
    node.key == Some(result.key)
        && fits
        && reasons.any(|reason| matches!(reason, Forced | CacheOff | ForceUnfinished | RejectsRetried { .. }))
}

/// Returns the replaced results among the nodes of a run's ledger.
fn of_ledger(store: &Store, catalog: &Catalog, run: Option<&str>, ledger: &[NodeRun]) -> Vec<Replaced> {
    let Some(run) = run else { return Vec::new() };
    ledger.iter().filter_map(|node| Replaced::of(store, catalog, run, node)).collect()
}

/// Returns the replaced results behind inputs of a step without a recorded maker: the run of the step knows them.
fn behind(store: &Store, catalog: &Catalog, step: &Step) -> Vec<Replaced> {
    let missing: Vec<ArtifactId> =
        step.inputs.iter().filter(|input| input.maker.is_none()).map(|input| input.id).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let mut nodes = store.run_nodes(&step.result.run);
    nodes.retain(|node| node.outputs.values().any(|output| missing.contains(&output.id)));
    of_ledger(store, catalog, Some(&step.result.run), &nodes)
}

/// Verifies the memos of a closure. Damage to paid content makes the audit fail. Missing content counts as unchecked,
/// since `gc --memo` may have removed it.
fn memos(store: &Store, closure: &Closure, report: &mut Report) {
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
            let drawn = result.figures.get(DRAWN);
            let rows = drawn.map_or_else(|| input_rows(store, step), |samples| *samples as u64);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn params_that_were_changed_are_named() {
        let whole = json!({"policy": {"endpoint": {"model": "m", "url": "u"}}, "list": [1, 2], "size": 3});
        assert!(disagreeing(&json!({"policy": {"endpoint": {"model": "m"}}, "size": 3}), &whole).is_empty());
        let part = json!({"policy": {"endpoint": {"model": "n"}}, "list": [1, 5], "size": 3, "more": true});
        assert_eq!(disagreeing(&part, &whole), ["list.1", "more", "policy.endpoint.model"]);
    }
}

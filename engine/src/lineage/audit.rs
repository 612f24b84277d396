//! Verifies a closure: records, artifacts and sources are what was written. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rayon::prelude::*;
use serde::Serialize;
use serde_json::Value;

use super::catalog::{Catalog, Collected};
use super::closure::{Closure, Step};
use super::trace::{GraphSource, Roots, sources};
use crate::fingerprint::{Digest, Preimage, hash_file};
use crate::store::{Artifact, ArtifactId, Damage, Memo, NodeRun, OutputRecord, Part, Store};

/// The outcome of a node that nothing was compared of.
pub const NOT_CHECKED: &str = "not checked";

/// Does a finding make an audit fail?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something is not what was recorded.
    Difference,
    /// Worth knowing; nothing recorded is wrong.
    Note,
}

/// Something that an audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Does it make the audit fail?
    pub severity: Severity,
    /// What was checked: `record`, `ledger`, `artifact`, `lineage`, `source`, `memo`, `replay`, `recheck`, `answers`.
    pub check: &'static str,
    /// The node.
    pub node: String,
    /// Artifact, file, row or column, where there is one.
    pub place: Option<String>,
    /// What is wrong.
    pub message: String,
}

/// A node that was computed or derived again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCheck {
    /// The node.
    pub node: String,
    /// `replay`, `recheck` or `answers`.
    pub check: &'static str,
    /// `same`, `differs` or `not checked`.
    pub outcome: &'static str,
    /// How much was compared, or why nothing was.
    pub detail: String,
}

/// Something that was to be checked and was not looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    /// What: a node, an artifact, a source.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What was checked and what was found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Result records.
    pub records: u64,
    /// Artifacts.
    pub artifacts: u64,
    /// Their files.
    pub files: u64,
    /// Bytes of these files, all of them read.
    pub bytes: u64,
    /// Outside files and identities.
    pub sources: u64,
    /// Of these, local files that are there with the recorded content.
    pub sources_unchanged: u64,
    /// Nodes that were computed or derived again.
    pub nodes: Vec<NodeCheck>,
    /// What was to be checked and was not looked at.
    pub unchecked: Vec<Unchecked>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// Artifacts that are not what was written.
    #[serde(skip)]
    pub damaged: BTreeSet<ArtifactId>,
}

impl Report {
    /// Findings that make the audit fail.
    #[must_use]
    pub fn differences(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Difference).count()
    }

    /// How many things were to be checked: artifacts, sources, nodes that were to be computed or derived again.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.artifacts + self.sources + self.nodes.len() as u64
    }

    /// Notes that something was not looked at.
    pub fn pass_over(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unchecked.push(Unchecked { what: what.into(), why: why.into() });
    }

    /// Notes what came of computing or deriving a node again.
    pub fn note_node(&mut self, node: &str, check: &'static str, outcome: &'static str, detail: String) {
        if outcome == NOT_CHECKED {
            self.pass_over(format!("{check} of {node}"), detail.clone());
        }
        self.nodes.push(NodeCheck { node: node.to_owned(), check, outcome, detail });
    }

    /// Adds a finding.
    pub fn find(
        &mut self,
        severity: Severity,
        check: &'static str,
        node: &str,
        place: Option<String>,
        message: impl Into<String>,
    ) {
        let (node, message) = (node.to_owned(), message.into());
        self.findings.push(Finding { severity, check, node, place, message });
    }

    fn differs(&mut self, check: &'static str, node: &str, place: Option<String>, message: impl Into<String>) {
        self.find(Severity::Difference, check, node, place, message);
    }
}

/// What is found where a source was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// The recorded content.
    Unchanged,
    /// Other content.
    Changed,
    /// No file.
    Gone,
    /// It is identified by name or address, not by content.
    Named,
    /// Its place was not recorded.
    Unplaced,
}

/// What is found where a source was read. Reads the whole file.
#[must_use]
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

/// Verifies everything behind `roots`: checksums and keys of records, the ledger's word (`ledger`: what the nodes of the
/// run came to), digests of all files, and sources, as far as they are still there. A source that changed since is a
/// note; with `strict` it is a difference.
#[must_use]
pub fn verify(
    store: &Store,
    catalog: &Catalog,
    roots: &Roots,
    closure: &Closure,
    ledger: &[NodeRun],
    strict: bool,
) -> Report {
    let mut report = Report::default();
    missing_records(catalog, roots, ledger, &mut report);
    for step in &closure.steps {
        report.records += 1;
        record(step, &mut report);
        gaps(step, &mut report);
        step_sources(step, strict, &mut report);
    }
    for node in ledger {
        ledger_agrees(catalog, node, &mut report);
    }
    artifacts(store, closure, roots, &mut report);
    memos(store, closure, &mut report);
    report
}

/// Reads the memos behind a closure. Where something was paid for, damage makes the audit fail.
fn memos(store: &Store, closure: &Closure, report: &mut Report) {
    let mut seen: BTreeMap<Digest, &Step> = BTreeMap::new();
    for step in &closure.steps {
        step.result.memos().for_each(|base| {
            seen.entry(base).or_insert(step);
        });
    }
    for (base, step) in seen {
        let what = if step.result.asked == Some(base) { "answers" } else { "rows" };
        match Memo::open(store, &base) {
            Ok(memo) if memo.damage().lost > 0 => {
                let paid = step.result.asked.is_some();
                let severity = if paid { Severity::Difference } else { Severity::Note };
                report.find(severity, "memo", step.name(), None, memo.damage().told(what));
            }
            Ok(_) => {}
            Err(error) => report.pass_over(format!("remembered {what} of {}", step.name()), error.to_string()),
        }
    }
}

fn missing_records(catalog: &Catalog, roots: &Roots, ledger: &[NodeRun], report: &mut Report) {
    for key in roots.keys.iter().filter(|key| catalog.claim(key).is_none()) {
        let node = ledger.iter().find(|node| node.key == Some(*key)).map(|node| node.node.as_str());
        let state = if catalog.is_damaged(key) { "cannot be read" } else { "is gone from the store" };
        let place = Some(format!("key {}", key.0.short()));
        report.differs("record", node.unwrap_or("unknown node"), place, format!("its result record {state}"));
    }
}

fn record(step: &Step, report: &mut Report) {
    let place = || Some(format!("key {}", step.key.0.short()));
    if step.damaged {
        report.differs("record", step.name(), place(), "its result record was changed: the checksum does not fit");
    }
    let stored = &step.result.preimage;
    if Preimage::key(stored) != step.key && !has_long_number(stored) {
        let message = "what its record says of operator, params, inputs and seed does not give its key";
        report.differs("record", step.name(), place(), message);
    }
    let Some(origin) = &step.result.origin else { return };
    for path in disagreeing(&step.preimage.params, &origin.params) {
        let message = format!("param `{path}` of the key is not the one that the node is recorded to have run with");
        report.differs("record", step.name(), place(), message);
    }
}

/// A number of more than 15 digits may have lost its last bit on the way through the record's text.
fn has_long_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64() && number.to_string().bytes().filter(u8::is_ascii_digit).count() > 15,
        Value::Array(items) => items.iter().any(has_long_number),
        Value::Object(map) => map.values().any(has_long_number),
        _ => false,
    }
}

/// Paths of the values of `part` that `whole` holds otherwise. (`whole` may hold more.)
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
                let items = part.iter().zip(whole).enumerate();
                pending.extend(items.map(|(place, (part, whole))| (format!("{path}.{place}"), part, whole)));
            }
            _ if part != whole => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

fn gaps(step: &Step, report: &mut Report) {
    for input in step.inputs.iter().filter(|input| input.maker.is_none()) {
        let place = Some(format!("input `{}`, artifact {}", input.port, input.id.digest().short()));
        report.differs("lineage", step.name(), place, "no record in the store says what made it");
    }
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
                report.find(changed, "source", step.name(), place, "the file is no longer there");
                report.pass_over(what, "the file is no longer there");
            }
            SourceState::Unplaced => {
                report.find(Severity::Note, "source", step.name(), place, "where the file lay was not recorded");
                report.pass_over(what, "where the file lay was not recorded");
            }
            SourceState::Named if source.name == "--limit" => report.sources_unchanged += 1,
            SourceState::Named => {
                let message = "it is known by its name or address: its content was not checked";
                report.find(Severity::Note, "source", step.name(), place, message);
                if source.name.contains("://") {
                    report.pass_over(what, "it is known by its address");
                }
            }
        }
    }
}

fn ledger_agrees(catalog: &Catalog, node: &NodeRun, report: &mut Report) {
    let Some(result) = node.key.and_then(|key| catalog.claim(&key).cloned()) else { return };
    let ports: BTreeSet<&String> = node.outputs.keys().chain(result.outputs.keys()).collect();
    for port in ports {
        let (told, recorded) = (node.outputs.get(port), result.outputs.get(port));
        if !node.outputs.is_empty() && told != recorded {
            let id = |output: Option<&OutputRecord>| {
                output.map_or_else(|| "nothing".to_owned(), |output| output.id.digest().short())
            };
            let message = format!("the run gave {}, the result record says {}", id(told), id(recorded));
            report.differs("ledger", &node.node, Some(format!("output `{port}`")), message);
        }
    }
}

/// Checks the records of runs line by line. Runs that are not there and that no collection forgot are told.
pub fn verify_ledger(store: &Store, runs: &BTreeSet<String>, report: &mut Report) {
    let there: BTreeSet<String> = store.run_ids().into_iter().collect();
    let forgotten: BTreeSet<String> = store.collections().into_iter().flat_map(|collection| collection.runs).collect();
    for run in runs.iter().filter(|run| !there.contains(*run) && !forgotten.contains(*run)) {
        let why = "its record is gone, and `gc` did not forget it: it was deleted, or results came without it";
        report.find(Severity::Note, "ledger", "run", Some(format!("runs/{run}")), why);
        report.pass_over(format!("ledger of run {run}"), "its record is gone");
    }
    for damage in runs.iter().flat_map(|run| store.ledger_damage(run)) {
        let place = format!("runs/{}/{}, line {}", damage.run, damage.file, damage.line);
        let killed = store.run(&damage.run).is_some_and(|run| run.finished.is_none());
        let severity = if damage.torn && killed { Severity::Note } else { Severity::Difference };
        report.find(severity, "ledger", "run", Some(place), format!("the line {}", damage.what));
    }
}

/// An artifact, and what the records say of it.
struct Expected<'a> {
    id: ArtifactId,
    node: String,
    port: String,
    output: Option<&'a OutputRecord>,
    collected: Option<&'a Collected>,
    asked: bool,
}

fn artifacts(store: &Store, closure: &Closure, roots: &Roots, report: &mut Report) {
    let mut expected: BTreeMap<ArtifactId, Expected<'_>> = BTreeMap::new();
    for step in &closure.steps {
        for (port, output) in &step.result.outputs {
            let (node, port) = (step.name().to_owned(), port.clone());
            let (collected, asked) = (step.collected.as_ref(), roots.artifacts.contains(&output.id));
            let made = Expected { id: output.id, node, port, output: Some(output), collected, asked };
            expected
                .entry(output.id)
                .and_modify(|known| known.collected = known.collected.and(collected))
                .or_insert(made);
        }
    }
    let used = closure.steps.iter().flat_map(|step| step.inputs.iter().map(move |input| (input.id, step.name())));
    let asked = roots.artifacts.iter().map(|id| (*id, "artifact"));
    for (id, name) in used.chain(asked) {
        let (node, port) = (name.to_owned(), String::new());
        expected.entry(id).or_insert(Expected { id, node, port, output: None, collected: None, asked: true });
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
    let name = format!("{}{}", if expected.port.is_empty() { "" } else { "output " }, expected.port);
    let label = format!("{name}{}artifact {}", if name.is_empty() { "" } else { ", " }, expected.id.digest().short());
    report.artifacts += 1;
    if store.is_shared()
        && let Err(damage) = store.bring(&expected.id)
        && store.artifact(&expected.id).is_some()
    {
        let fault = match damage {
            Damage::Missing => "a file of it is gone from the shared store",
            Damage::Corrupt => "a file of it in the shared store is not what was written",
        };
        report.differs("artifact", &expected.node, Some(label), fault);
        return;
    }
    let Some(artifact) = store.artifact(&expected.id) else {
        if let Some(collected) = expected.collected.filter(|_| !folder.exists()) {
            let message = format!("it was {collected}: its content cannot be checked");
            // What was asked for and is not there is no note.
            let severity = if expected.asked { Severity::Difference } else { Severity::Note };
            if !expected.asked {
                report.pass_over(format!("{label} of {}", expected.node), format!("it was {collected}"));
            }
            report.find(severity, "artifact", &expected.node, Some(label), message);
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
    if let Some(output) = expected.output
        && (output.rows, output.bytes) != (artifact.rows(), artifact.bytes())
    {
        let message = "the result record gives other rows or bytes than the artifact has";
        report.differs("record", &expected.node, Some(label.clone()), message);
    }
    report.files += artifact.parts.len() as u64;
    report.bytes += artifact.bytes();
    let checked: Vec<Option<String>> = artifact.parts.par_iter().map(|part| file_fault(&folder, part)).collect();
    for (part, fault) in artifact.parts.iter().zip(checked) {
        if let Some(fault) = fault {
            report.differs("artifact", &expected.node, Some(format!("{label}, file {}", part.name)), fault);
        }
    }
    for extra in undescribed(&folder, &artifact) {
        let place = Some(format!("{label}, file {extra}"));
        report.differs("artifact", &expected.node, place, "the file was added: the artifact does not have it");
    }
}

fn file_fault(folder: &Path, part: &Part) -> Option<String> {
    let path = folder.join(&part.name);
    match hash_file(&path) {
        Ok(digest) if digest == part.digest => None,
        Ok(digest) => Some(format!(
            "its content was changed: it has digest {}, written was {}",
            digest.short(),
            part.digest.short()
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("it is gone".to_owned()),
        Err(error) => Some(format!("it cannot be read: {error}")),
    }
}

/// Files in an artifact's folder that its description does not have.
fn undescribed(folder: &Path, artifact: &Artifact) -> Vec<String> {
    let known: BTreeSet<&str> = artifact.parts.iter().map(|part| part.name.as_str()).collect();
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        for entry in std::fs::read_dir(&current).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            if path.is_dir() {
                pending.push(path);
            } else if name != "artifact.json" && !known.contains(name.as_str()) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
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
        assert!(has_long_number(&json!({"a": [0.123_456_789_012_345_67]})) && !has_long_number(&json!([0.1, 1e-5, 7])));
    }
}

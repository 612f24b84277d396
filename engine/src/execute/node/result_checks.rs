//! Evaluates the checks of a node's result. They change neither the result nor its key.

use std::path::PathBuf;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::util::display::array_value_to_string;
use indexmap::IndexMap;

use super::job::{KnownResult, Run, Upstream};
use super::reject_share::RejectShares;
use crate::error::{Blame, OperatorError};
use crate::execute::decide::Known;
use crate::execute::kernels::query::run_query;
use crate::operator::{Context, InputArtifact, Inputs, OutputSink};
use crate::plan::{Node, NodeIndex, Offenders, ROWS, unfit_column};
use crate::spec::{Check, CheckSpec, Rule, percent};
use crate::store::{ArtifactId, CheckOutcome, Damage, OutputRecord, Store};

/// Characters of a value in a message (at most).
const VALUE: usize = 60;

/// Version of the evaluation. Increase it when a check could find something else in the same table.
const VERSION: u32 = 1;

/// Evaluates the checks of a node, and strikes secrets out of the outcomes; or returns how its table is damaged.
///
/// # Errors
/// Fails if the run is stopped, or the machine fails. Neither that nor damage says anything about the data.
pub(super) fn evaluate(
    run: &Run,
    index: NodeIndex,
    result: &KnownResult,
    upstream: &Upstream,
) -> Result<Result<Vec<CheckOutcome>, Damage>, OperatorError> {
    let (node, store, directory) = (run.node(index), &run.store, &run.options.directory);
    // Not all nodes before it: one that delivers may have thousands of them.
    let mut known = Known::new();
    for input in &node.inputs {
        if let Some(outputs) = upstream.known.get(&input.node) {
            known.insert(input.node, outputs.clone());
        }
    }
    known.insert(index, result.outputs.clone());
    let keys = result.key.map(|key| (index, key)).into_iter().collect();
    let shares = RejectShares { plan: &run.plan, known: &known, keys: &keys, store, directory };
    let before = run.history.last(&run.plan, store, node.id());
    let subject = Subject {
        node,
        outputs: &result.outputs,
        lost: shares.lost(index),
        before: before.map_or(&[], |last| last.checks.as_slice()),
        store,
        context: &run.bare_context(node),
    };
    let mut outcomes = Vec::with_capacity(node.spec.checks.len());
    for spec in &node.spec.checks {
        match subject.one(spec)? {
            Ok(outcome) => outcomes.push(outcome),
            Err(damage) => return Ok(Err(damage)),
        }
    }
    run.endpoints.redactor.clean_all(outcomes.iter_mut().map(|outcome| &mut outcome.found));
    Ok(Ok(outcomes))
}

/// The result of a node to be checked.
struct Subject<'a> {
    node: &'a Node,
    outputs: &'a IndexMap<String, OutputRecord>,
    /// Rows that the node lost, of how many.
    lost: (u64, u64),
    /// The outcomes of the node's last run.
    before: &'a [CheckOutcome],
    store: &'a Store,
    context: &'a Context,
}

impl Subject<'_> {
    /// Evaluates a check. An outcome of the last run counts if neither the check nor the table changed.
    fn one(&self, spec: &CheckSpec) -> Result<Result<CheckOutcome, Damage>, OperatorError> {
        let check = &spec.check;
        let port = check.port.as_deref().or(self.node.default_output()).unwrap_or_default();
        let output = self.outputs.get(port);
        let (query, output) = match (&check.rule, output) {
            (Rule::Rejects { max }, _) => {
                let (lost, of) = self.lost;
                let share = lost as f64 / of.max(1) as f64;
                return Ok(Ok(outcome(check, share <= *max, format!("{lost} of {of} rows ({})", percent(share)))));
            }
            (_, None) => return Ok(Ok(outcome(check, false, format!("the node has no output `{port}`")))),
            (Rule::Rows { min, max }, Some(output)) => {
                let rows = output.rows;
                let passed = min.is_none_or(|min| rows >= min) && max.is_none_or(|max| rows <= max);
                return Ok(Ok(outcome(check, passed, format!("{rows} rows"))));
            }
            (rule, Some(output)) => match Offenders::of(rule) {
                Some(query) => (query, output),
                None => return Ok(Ok(outcome(check, true, String::new()))),
            },
        };
        if let Some(known) = self.before.iter().find(|known| is_same(known, check, output.id)) {
            return Ok(Ok(known.clone()));
        }
        // A damaged table would say something about the disk, not about the data.
        if let Err(damage) = self.store.intact_once(&output.id)? {
            return Ok(Err(damage));
        }
        let (passed, found, fleeting) = match self.offenders(spec, &query, output) {
            Ok(found) if found.rows == 0 => (true, String::new(), false),
            Ok(found) => (false, found.words(), false),
            Err(error) if matches!(error.blame, Blame::Cancelled | Blame::Machine) => return Err(error),
            // A check that cannot be evaluated never passes.
            Err(error) => (false, format!("it cannot be evaluated: {}", error.text()), true),
        };
        let fleeting = fleeting || query.is_fleeting();
        Ok(Ok(CheckOutcome { artifact: Some(output.id), fleeting, ..outcome(check, passed, found) }))
    }

    fn offenders(&self, spec: &CheckSpec, query: &Offenders, output: &OutputRecord) -> Result<Found, OperatorError> {
        let InputArtifact::Rows(rows) = self.store.open_input(&output.id)? else {
            return Err(OperatorError::pipeline("the output is a folder"));
        };
        for (column, _) in &spec.columns {
            if let Some((message, help)) = unfit_column(&spec.check.rule, column, &rows.schema) {
                return Err(OperatorError::pipeline(message).with_help(help));
            }
        }
        let mut inputs = Inputs::new();
        inputs.bind(ROWS, InputArtifact::Rows(rows));
        let mut found = Found::default();
        self.context.block_on(run_query(query, &inputs, &mut found, self.context))?;
        Ok(found)
    }
}

/// An outcome that is of no table: the check is evaluated in every run.
fn outcome(check: &Check, passed: bool, found: String) -> CheckOutcome {
    CheckOutcome { check: check.clone(), artifact: None, passed, found, version: VERSION, fleeting: false }
}

/// Whether an outcome holds for a check of a table: the table, the check and the code that evaluates it are the same.
fn is_same(known: &CheckOutcome, check: &Check, table: ArtifactId) -> bool {
    known.version == VERSION && known.check == *check && known.artifact == Some(table) && !known.fleeting
}

/// Rows that break a rule: their number, and the first one.
#[derive(Default)]
struct Found {
    rows: u64,
    first: Option<RecordBatch>,
}

impl Found {
    /// `3 rows, the first: id q7, f1 1.5`.
    fn words(&self) -> String {
        let number = if self.rows == 1 { "1 row".to_owned() } else { format!("{} rows, the first", self.rows) };
        let Some(first) = &self.first else { return number };
        let schema = first.schema();
        let mut values = Vec::new();
        for (column, field) in first.columns().iter().zip(schema.fields()) {
            values.push(format!("{} {}", field.name(), shown(column)));
        }
        format!("{number}: {}", values.join(", "))
    }
}

/// Formats the first value of a column on one line.
fn shown(column: &ArrayRef) -> String {
    if column.is_null(0) {
        return "null".to_owned();
    }
    let text = array_value_to_string(column, 0).unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let cut: String = line.chars().take(VALUE).collect();
    let more = if cut.len() < line.len() { "…" } else { "" };
    if line.is_empty() { "''".to_owned() } else { format!("{cut}{more}") }
}

impl OutputSink for Found {
    fn write(&mut self, _port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.rows += batch.num_rows() as u64;
        if self.first.is_none() && batch.num_rows() > 0 {
            self.first = Some(batch.slice(0, 1));
        }
        Ok(())
    }

    fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
        Err(OperatorError::engine("checks output rows"))
    }

    fn figure(&mut self, _name: &str, _value: f64) {}

    fn summary(&mut self, _text: &str) {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fingerprint::hash_bytes;

    #[test]
    fn an_outcome_of_other_code_is_evaluated_again() {
        let table = ArtifactId::from(hash_bytes(b"table"));
        let record = |version| json!({"unique": ["id"], "on_failure": "fail", "artifact": table, "passed": true, "version": version});
        let known: CheckOutcome = serde_json::from_value(record(VERSION)).expect("an outcome");
        assert!(is_same(&known, &known.check, table));
        assert!(!is_same(&known, &known.check, ArtifactId::from(hash_bytes(b"other"))));
        let other: CheckOutcome = serde_json::from_value(record(VERSION + 1)).expect("an outcome");
        assert!(!is_same(&other, &known.check, table));
        let mut earlier = record(VERSION);
        earlier.as_object_mut().expect("a record").remove("version");
        let earlier: CheckOutcome = serde_json::from_value(earlier).expect("an outcome");
        assert!(!is_same(&earlier, &known.check, table), "records of earlier versions have none");
    }
}

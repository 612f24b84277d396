//! Evaluates the checks of a node's result. They change neither the result nor its key.

use std::path::PathBuf;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::util::display::array_value_to_string;
use indexmap::IndexMap;

use super::query::run_query;
use crate::operator::{Context, InputArtifact, Inputs, OperatorError, OutputSink};
use crate::plan::{Node, Offenders, ROWS, unfit_column};
use crate::spec::{Check, CheckSpec, Rule, percent};
use crate::store::{CheckOutcome, Damage, OutputRecord, Store};

/// Characters of a value in a message (at most).
const VALUE: usize = 60;

/// The result of a node to be checked.
pub(super) struct Subject<'a> {
    pub(super) node: &'a Node,
    pub(super) outputs: &'a IndexMap<String, OutputRecord>,
    /// Rows that the node lost, of how many.
    pub(super) lost: (u64, u64),
    /// The outcomes of the node's last run.
    pub(super) before: &'a [CheckOutcome],
    pub(super) store: &'a Store,
    pub(super) context: &'a Context,
}

impl Subject<'_> {
    /// Evaluates all checks. An outcome of the last run counts if neither the check nor the table changed.
    ///
    /// # Errors
    /// Fails with the damage if a table cannot be read.
    pub(super) fn evaluate(&self) -> Result<Vec<CheckOutcome>, Damage> {
        self.node.spec.checks.iter().map(|spec| self.one(spec)).collect()
    }

    fn one(&self, spec: &CheckSpec) -> Result<CheckOutcome, Damage> {
        let check = &spec.check;
        let outcome = |passed, found: String| CheckOutcome {
            check: check.clone(),
            artifact: None,
            passed,
            found,
            fleeting: false,
        };
        let port = check.port.as_deref().or(self.node.default_output()).unwrap_or_default();
        let output = self.outputs.get(port);
        let query = match (&check.rule, output) {
            (Rule::Rejects { max }, _) => {
                let (lost, of) = self.lost;
                let share = lost as f64 / of.max(1) as f64;
                return Ok(outcome(share <= *max, format!("{lost} of {of} rows ({})", percent(share))));
            }
            (_, None) => return Ok(outcome(false, format!("the node has no output `{port}`"))),
            (Rule::Rows { min, max }, Some(output)) => {
                let rows = output.rows;
                let passed = min.is_none_or(|min| rows >= min) && max.is_none_or(|max| rows <= max);
                return Ok(outcome(passed, format!("{rows} rows")));
            }
            (rule, Some(_)) => Offenders::of(rule),
        };
        let (Some(query), Some(output)) = (query, output) else { return Ok(outcome(true, String::new())) };
        if let Some(known) = self.remembered(check, output) {
            return Ok(known.clone());
        }
        if let Ok(Err(damage)) = self.store.intact_once(&output.id) {
            return Err(damage);
        }
        let (passed, found) = match self.offenders(spec, &query, output) {
            Ok(found) if found.rows == 0 => (true, String::new()),
            Ok(found) => (false, found.words()),
            // A check that cannot be evaluated never passes.
            Err(error) => (false, format!("it cannot be evaluated: {}", error.told())),
        };
        let fleeting = query.is_fleeting() || found.starts_with("it cannot");
        Ok(CheckOutcome { artifact: Some(output.id), fleeting, ..outcome(passed, found) })
    }

    fn remembered(&self, check: &Check, output: &OutputRecord) -> Option<&CheckOutcome> {
        let same =
            |known: &&CheckOutcome| known.check == *check && known.artifact == Some(output.id) && !known.fleeting;
        self.before.iter().find(same)
    }

    fn offenders(&self, spec: &CheckSpec, query: &Offenders, output: &OutputRecord) -> Result<Found, OperatorError> {
        let InputArtifact::Rows(rows) = self.store.open_input(&output.id)? else {
            return Err(OperatorError::pipeline("the output is a folder"));
        };
        let unfit = |(column, _): &(String, _)| unfit_column(&spec.check.rule, column, &rows.schema);
        if let Some((message, help)) = spec.columns.iter().find_map(unfit) {
            return Err(OperatorError::pipeline(message).with_help(help));
        }
        let mut inputs = Inputs::new();
        inputs.bind(ROWS, InputArtifact::Rows(rows));
        let mut found = Found::default();
        self.context.block_on(run_query(query, &inputs, &mut found, self.context))?;
        Ok(found)
    }
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
        let columns = first.columns().iter().zip(schema.fields());
        let values: Vec<String> =
            columns.map(|(column, field)| format!("{} {}", field.name(), shown(column))).collect();
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

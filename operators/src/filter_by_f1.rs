//! `filter-by-f1`: keeps the rollouts whose answer is right and, optionally, grounded in what was retrieved.

use std::sync::Arc;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::{filter_record_batch, not};
use schemars::JsonSchema;
use searchmill_agent::grounding::{Demand, grounded, shows_evidence};
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator, OperatorError, ParamIssue, Ports,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch};
use searchmill_text::answer_metrics::answer_scores;
use serde::{Deserialize, Serialize};

/// Keeps the rollouts whose prediction reaches a token F1 against the golden answers (the best over all of them, as
/// in FlashRAG). With `grounded`, the tool results must also show the evidence: F1 alone keeps lucky guesses on yes/no
/// questions. Of the question whether two towns lie on one river, with a gold document for each, `true` asks for a chunk of one
/// of them, `all` for a chunk of both, `facts` for the two sentences that name the rivers. All columns pass unchanged, in order;
/// the other rollouts go to the port `dropped`.
pub(crate) struct FilterByF1;

/// Parameters of `filter-by-f1`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct FilterByF1Params {
    /// Minimum F1 to keep a rollout, from 0 to 1.
    #[serde(default = "success")]
    pub(crate) threshold: f64,
    /// Also require that the tool results show the evidence. `true`: one gold document (any chunk of it), one gold fact or the
    /// answer; `all`: of each piece of evidence the document or the fact; `facts`: the text of each fact.
    #[serde(default)]
    pub(crate) grounded: Grounded,
}

/// What the tool results must show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected `true`, `false`, `all` or `facts`")]
pub(crate) enum Grounded {
    /// `true`: one gold document, one gold fact or the answer; `false`: nothing.
    Any(bool),
    /// All of the evidence.
    Whole(Demand),
}

impl Default for Grounded {
    fn default() -> Self {
        Self::Any(false)
    }
}

/// Success threshold of DeepSearch-RL (ninehills/deepsearch-rl).
fn success() -> f64 {
    0.8
}

impl Operator for FilterByF1 {
    type Params = FilterByF1Params;
    const NAME: &'static str = "filter-by-f1";
    const VERSION: u32 = 2;
    const ABOUT: &'static str =
        "Keeps the rollouts whose answer is right and, optionally, grounded in what was retrieved.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "The success criterion of DeepSearch-RL", yaml: "good: {op: filter-by-f1, from: rollouts}" },
        Example {
            title: "Only exact answers whose whole evidence was retrieved",
            yaml: "good: {op: filter-by-f1, from: rollouts, with: {threshold: 1.0, grounded: all}}",
        },
    ];

    fn declare(params: &FilterByF1Params) -> Declaration {
        let ports = Ports::new()
            .rows_in("trajectories", &[RecordKind::Trajectory], "rollouts")
            .same_out("kept", "trajectories", "rollouts that pass")
            .same_out("dropped", "trajectories", "rollouts that do not");
        let is_wrong = !(0.0..=1.0).contains(&params.threshold);
        let issue = ParamIssue::new("threshold", format!("F1 is between 0 and 1, found {}", params.threshold));
        Declaration::pure(ports).issues(is_wrong.then_some(issue)).gives_plain_columns()
    }

    fn open(params: &FilterByF1Params, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Map(Arc::new(params.clone())))
    }
}

impl MapKernel for FilterByF1Params {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let passes: BooleanArray = from_batch::<Trajectory>(batch)?.iter().map(|row| Some(self.passes(row))).collect();
        output.push("kept", filter_record_batch(batch, &passes)?);
        output.push("dropped", filter_record_batch(batch, &not(&passes)?)?);
        Ok(())
    }
}

impl FilterByF1Params {
    fn passes(&self, row: &Trajectory) -> bool {
        answer_scores(&row.prediction, &row.golden_answers).f1 >= self.threshold
            && match self.grounded {
                Grounded::Any(wanted) => !wanted || grounded(row),
                Grounded::Whole(demand) => shows_evidence(row, demand),
            }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array};
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
    use searchmill_schemas::to_batch;
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn run_in(batch_rows: usize, rows: &[Trajectory], params: Value) -> Result<Outcome, OperatorError> {
        let mut harness = Harness::new();
        harness.batch_rows = batch_rows;
        harness.run(&entry::<FilterByF1>(), params, &inputs([("trajectories", rows_input(rows))]))
    }

    /// Answers with F1 1, 0.8, 2/3 and 0, and an empty answer.
    fn rows() -> Vec<Trajectory> {
        let mut rows = trajectories(5);
        let predictions = ["the ANSWER, 0!", "Answer 1 it", "answer 2 or so", "東", ""];
        for (row, prediction) in rows.iter_mut().zip(predictions) {
            prediction.clone_into(&mut row.prediction);
        }
        rows
    }

    #[test]
    fn the_threshold_itself_passes_and_nothing_is_lost() {
        let outcome = run_in(8192, &rows(), json!({})).expect("runs");
        let (kept, dropped): (Vec<Trajectory>, Vec<Trajectory>) = (outcome.read("kept"), outcome.read("dropped"));
        assert_eq!(kept, rows()[..2], "F1 1 and F1 0.8, nested columns and all");
        assert_eq!(dropped, rows()[2..]);
        let kept: Vec<Trajectory> = run_in(8192, &rows(), json!({"threshold": 0.81})).expect("runs").read("kept");
        assert_eq!(ids(&kept), ["q0@0"]);
        let kept: Vec<Trajectory> = run_in(8192, &rows(), json!({"threshold": 0})).expect("runs").read("kept");
        assert_eq!(kept.len(), 5);
    }

    #[test]
    fn grounded_demands_that_the_evidence_was_seen() {
        let mut rows = rows();
        rows[0].evidence[0].title = Some("Elsewhere".to_owned());
        rows[0].golden_answers = vec!["yes".to_owned()];
        "yes".clone_into(&mut rows[0].prediction);
        let kept = |params| run_in(8192, &rows, params).expect("runs").read::<Trajectory>("kept");
        assert_eq!(ids(&kept(json!({}))), ["q0@0", "q1@0"]);
        assert_eq!(ids(&kept(json!({"grounded": true}))), ["q1@0"], "a lucky yes is dropped");
        assert_eq!(ids(&kept(json!({"grounded": "all"}))), ["q1@0"]);
        let message = run_in(8192, &rows, json!({"grounded": "most"})).expect_err("no such demand").message;
        assert_eq!(message, "grounded: expected `true`, `false`, `all` or `facts`");
    }

    #[test]
    fn batches_extra_columns_and_edges() {
        let rows: Vec<_> = rows().into_iter().cycle().take(40).collect();
        let whole = run_in(8192, &rows, json!({})).expect("runs");
        for batch_rows in [1, 7, 8192] {
            let cut = run_in(batch_rows, &rows, json!({})).expect("runs");
            assert_eq!(cut.batch("kept"), whole.batch("kept"));
            assert_eq!(cut.batch("dropped"), whole.batch("dropped"));
        }
        assert!(run_in(7, &[], json!({})).expect("runs").rows.is_empty());
        let message = run_in(7, &[], json!({"threshold": 80})).expect_err("percent").message;
        assert_eq!(message, "threshold: F1 is between 0 and 1, found 80");
    }

    #[test]
    fn columns_beyond_the_kind_pass() {
        let batch = to_batch(&rows()).expect("rows");
        let extra: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5]));
        let mut named: Vec<(String, ArrayRef)> =
            batch.schema().fields().iter().map(|field| field.name().clone()).zip(batch.columns().to_vec()).collect();
        named.push(("extra".to_owned(), Arc::clone(&extra)));
        let batch = RecordBatch::try_from_iter(named).expect("a batch");
        let bound = inputs([("trajectories", batch_input(RecordKind::Trajectory, batch))]);
        let outcome = Harness::new().run(&entry::<FilterByF1>(), json!({}), &bound).expect("runs");
        assert_eq!(outcome.batch("kept").column_by_name("extra").expect("kept"), &extra.slice(0, 2));
    }
}

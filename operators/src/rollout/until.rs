//! `until` of a rollout: the columns of its predicate, those of a trajectory and its answer metrics.

use std::sync::Arc;

use arrow::array::{BooleanArray, Int32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use searchmill_agent::grounding::grounded;
use searchmill_engine::operator::{OperatorError, RowOutput};
use searchmill_schemas::{CutObservations, RecordKind, RecordedTokens, Trajectory, from_batch};
use searchmill_text::answer_metrics::AnswerScores;

use crate::shared::answered::{with_metric_fields, with_metrics};
use crate::shared::columns::{TOOL_ERRORS, with_all, with_columns, with_fields};
use crate::shared::until::Passing;

const GROUNDED: &str = "grounded";

/// Which columns rollouts have beyond those of a trajectory.
#[derive(Clone, Copy)]
pub(super) struct More {
    pub(super) tools: bool,
    pub(super) cuts: bool,
    pub(super) tokens: bool,
}

/// Returns the columns of the predicate.
pub(super) fn schema(more: More) -> Result<SchemaRef, OperatorError> {
    let grounded = Field::new(GROUNDED, DataType::Boolean, false);
    let own = columns(more)?;
    Ok(with_metric_fields(&with_fields(&own, &[grounded])))
}

/// Returns the columns of rollouts, without those of their questions.
pub(super) fn columns(more: More) -> Result<SchemaRef, OperatorError> {
    let none = RecordBatch::new_empty(RecordKind::Trajectory.schema());
    let (errors, cuts, tokens) = (more.tools.then(Vec::new), more.cuts.then(Vec::new), more.tokens.then(Vec::new));
    Ok(with_more(none, errors, cuts, tokens)?.schema())
}

/// Adds what rollouts have beyond the columns of a trajectory. `errors`: the calls that services failed to answer.
pub(super) fn with_more(
    mut rollouts: RecordBatch,
    errors: Option<Vec<i32>>,
    cuts: Option<Vec<CutObservations>>,
    tokens: Option<Vec<RecordedTokens>>,
) -> Result<RecordBatch, OperatorError> {
    if let Some(errors) = errors {
        let field = Field::new(TOOL_ERRORS, DataType::Int32, false);
        rollouts = with_columns(&rollouts, vec![(field, Arc::new(Int32Array::from(errors)))])?;
    }
    if let Some(cuts) = cuts {
        rollouts = with_all(&rollouts, &CutObservations::to_batch(&cuts)?)?;
    }
    if let Some(tokens) = tokens {
        rollouts = with_all(&rollouts, &RecordedTokens::to_batch(&tokens)?)?;
    }
    Ok(rollouts)
}

/// Counts the rollouts of a result that match the predicate.
///
/// # Errors
/// Fails if the predicate cannot be computed.
pub(super) fn count(passing: &Passing, output: &RowOutput) -> Result<u64, OperatorError> {
    output.batches.iter().map(|(_, rollouts)| passing.count(&scored(rollouts)?)).sum()
}

/// Returns rollouts with the columns of the predicate. A column of the questions that is named like a metric is none.
fn scored(rollouts: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let schema = rollouts.schema();
    let places: Vec<usize> = (0..schema.fields().len())
        .filter(|place| !AnswerScores::NAMES.contains(&schema.field(*place).name().as_str()))
        .collect();
    let read = from_batch::<Trajectory>(rollouts)?;
    let is_grounded: BooleanArray = read.iter().map(|rollout| Some(grounded(rollout))).collect();
    let field = Field::new(GROUNDED, DataType::Boolean, false);
    with_columns(&with_metrics(&rollouts.project(&places)?)?, vec![(field, Arc::new(is_grounded))])
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::Usage;
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::to_batch;
    use serde_json::json;

    use super::*;
    use crate::shared::until::Until;

    fn until(predicate: &str) -> Until {
        serde_json::from_value(json!({"rows": 1, "where": predicate})).expect("params")
    }

    fn open(predicate: &str) -> Passing {
        let none = More { tools: false, cuts: false, tokens: false };
        until(predicate).open(&schema(none).expect("columns")).expect("a predicate")
    }

    #[test]
    fn a_predicate_knows_the_columns_that_the_params_add() {
        let all = More { tools: true, cuts: true, tokens: true };
        let none = More { tools: false, cuts: false, tokens: false };
        let predicate =
            "tool_errors = 0 AND array_length(tokens) > 0 AND array_length(cut_observations) = 0 AND grounded";
        assert_eq!(until(predicate).column_issue(&schema(all).expect("columns")), None);
        let issue = until(predicate).column_issue(&schema(none).expect("columns")).expect("an issue");
        assert_eq!((issue.path.as_str(), issue.message.contains("there is no column `")), ("until.where", true));
    }

    #[test]
    fn rollouts_are_counted_by_their_metrics() {
        let rows = [trajectory("q", 0, "Rome", "Rome"), trajectory("q", 1, "Paris", "Rome")];
        let batches = vec![("trajectories".to_owned(), to_batch(&rows).expect("rows"))];
        let output = RowOutput { batches, usage: Usage::default() };
        let counted = |predicate: &str| count(&open(predicate), &output).expect("a count");
        let mut unanswered = trajectory("r", 0, "Rome", "Rome");
        unanswered.golden_answers.clear();
        let batches = vec![("trajectories".to_owned(), to_batch(&[unanswered]).expect("rows"))];
        let unknown = RowOutput { batches, usage: Usage::default() };
        for (predicate, matching) in [("f1 < 0.5", 0), ("f1 >= 0", 0), ("f1 IS NULL", 1)] {
            assert_eq!(count(&open(predicate), &unknown).expect("a count"), matching, "{predicate}");
        }
        assert_eq!((counted("f1 >= 0.8"), counted("em < 1 AND sample_index = 1"), counted("acc >= 0")), (1, 1, 2));
    }
}

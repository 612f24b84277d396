//! Columns of rollouts: those that params add to a trajectory, those that the predicate of `until` knows beside them, and
//! those copied from the question, which are copied again if only they changed. Also the model's messages, for audits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use searchmill_agent::grounding::grounded;
use searchmill_engine::operator::{OperatorError, RowOutput};
use searchmill_schemas::{CutObservations, Message, RecordKind, RecordedTokens, Trajectory, from_batch, text_column};
use searchmill_text::answer_metrics::AnswerScores;
use serde_json::json;

use crate::shared::answered::{with_metric_fields, with_metrics};
use crate::shared::columns::{TOOL_ERRORS, carried, with_all, with_columns, with_fields};
use crate::shared::until::Passing;

const GROUNDED: &str = "grounded";

/// Columns of a trajectory that are copied from its question.
const COPIED: [&str; 4] = ["golden_answers", "question_type", "evidence", "metadata"];

/// Columns that some rollouts have beyond the kind ([`RecordedTokens`], [`CutObservations`]).
const RESERVED: [&str; 4] = [TOOL_ERRORS, "tokens", "sampling", "cut_observations"];

/// Which columns rollouts have beyond those of a trajectory.
#[derive(Clone, Copy)]
pub(super) struct More {
    pub(super) tools: bool,
    pub(super) cuts: bool,
    pub(super) tokens: bool,
}

/// Returns the columns of rollouts, without those of their questions.
pub(super) fn rollout_columns(more: More) -> Result<SchemaRef, OperatorError> {
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

/// Returns the columns of the predicate.
pub(super) fn predicate_columns(more: More) -> Result<SchemaRef, OperatorError> {
    let grounded = Field::new(GROUNDED, DataType::Boolean, false);
    let own = rollout_columns(more)?;
    Ok(with_metric_fields(&with_fields(&own, &[grounded])))
}

/// Counts the rollouts of a result that match the predicate.
///
/// # Errors
/// Fails if the predicate cannot be computed.
pub(super) fn passing_rollouts(passing: &Passing, output: &RowOutput) -> Result<u64, OperatorError> {
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

/// Returns the rollout with the labels of `row`; `None` if the rollout is not of this question and sample.
pub(super) fn labelled(row: &RecordBatch, sample: u32, output: RowOutput) -> Option<RowOutput> {
    let [(port, rollout)] = <[_; 1]>::try_from(output.batches).ok()?;
    let drawn = rollout.column_by_name("sample_index")?.as_any().downcast_ref::<Int32Array>()?;
    if text(&rollout, "question")? != text(row, "question")? || drawn.value(0) != i32::try_from(sample).ok()? {
        return None;
    }
    let id = text(row, "id")?;
    let rollout_id: ArrayRef = Arc::new(StringArray::from(vec![format!("{id}@{sample}")]));
    let mut labels = vec![("id", rollout_id), ("question_id", Arc::new(StringArray::from(vec![id])))];
    for name in COPIED {
        labels.push((name, Arc::clone(row.column_by_name(name)?)));
    }
    let mut columns = rollout.columns().to_vec();
    let schema = rollout.schema();
    for (name, values) in labels {
        let index = schema.index_of(name).ok()?;
        columns[index] = cast(&values, schema.field(index).data_type()).ok()?;
    }
    // The question may have lost columns since the rollout was recorded.
    let own = RecordKind::Trajectory.schema();
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    kept.retain(|at| own.field_with_name(schema.field(*at).name()).is_ok() || is_reserved(schema.field(*at)));
    let rollout = RecordBatch::try_new(schema, columns).ok()?.project(&kept).ok()?;
    let rollout = with_extra(&rollout, row).ok()?;
    Some(RowOutput { batches: vec![(port, rollout)], usage: output.usage })
}

/// Returns the text in a table of one row.
fn text(batch: &RecordBatch, name: &str) -> Option<String> {
    let column = text_column(batch, name).ok()?;
    if column.len() == 1 && column.is_valid(0) { Some(column.value(0).to_owned()) } else { None }
}

/// Adds the extra columns of its question to a rollout. Columns with the name of one that a rollout has, or may have, are
/// left out.
pub(super) fn with_extra(rollout: &RecordBatch, row: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let schema = row.schema();
    let places: Vec<usize> = (0..schema.fields().len()).filter(|place| !is_reserved(schema.field(*place))).collect();
    carried(rollout, &row.project(&places)?, RecordKind::Question, vec![0])
}

/// Returns the columns of questions that may ride along.
pub(super) fn unreserved(questions: &Schema) -> Schema {
    Schema::new(questions.fields().iter().filter(|field| !is_reserved(field)).cloned().collect::<Vec<_>>())
}

fn is_reserved(field: &Field) -> bool {
    RESERVED.contains(&field.name().as_str())
}

/// Returns the model's name and messages of recorded rollouts, by rollout id.
pub(super) fn said(rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
    let rollouts: Vec<Trajectory> = from_batch(rows)?;
    let mut said = Vec::with_capacity(rollouts.len());
    for mut rollout in rollouts {
        rollout.messages.retain(Message::is_model);
        said.push((rollout.id, json!([rollout.policy, rollout.model, rollout.messages]).to_string()));
    }
    Ok(said)
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
        until(predicate).open(&predicate_columns(none).expect("columns")).expect("a predicate")
    }

    #[test]
    fn a_predicate_knows_the_columns_that_the_params_add() {
        let all = More { tools: true, cuts: true, tokens: true };
        let none = More { tools: false, cuts: false, tokens: false };
        let predicate =
            "tool_errors = 0 AND array_length(tokens) > 0 AND array_length(cut_observations) = 0 AND grounded";
        assert_eq!(until(predicate).column_issue(&predicate_columns(all).expect("columns")), None);
        let issue = until(predicate).column_issue(&predicate_columns(none).expect("columns")).expect("an issue");
        assert_eq!((issue.path.as_str(), issue.message.contains("there is no column `")), ("until.where", true));
    }

    #[test]
    fn rollouts_are_counted_by_their_metrics() {
        let rows = [trajectory("q", 0, "Rome", "Rome"), trajectory("q", 1, "Paris", "Rome")];
        let batches = vec![("trajectories".to_owned(), to_batch(&rows).expect("rows"))];
        let output = RowOutput { batches, usage: Usage::default() };
        let counted = |predicate: &str| passing_rollouts(&open(predicate), &output).expect("a count");
        let mut unanswered = trajectory("r", 0, "Rome", "Rome");
        unanswered.golden_answers.clear();
        let batches = vec![("trajectories".to_owned(), to_batch(&[unanswered]).expect("rows"))];
        let unknown = RowOutput { batches, usage: Usage::default() };
        for (predicate, matching) in [("f1 < 0.5", 0), ("f1 >= 0", 0), ("f1 IS NULL", 1)] {
            assert_eq!(passing_rollouts(&open(predicate), &unknown).expect("a count"), matching, "{predicate}");
        }
        assert_eq!((counted("f1 >= 0.8"), counted("em < 1 AND sample_index = 1"), counted("acc >= 0")), (1, 1, 2));
    }

    #[test]
    fn all_columns_that_a_rollout_may_have_are_reserved() {
        let cuts = CutObservations::to_batch(&[]).expect("a table").schema();
        let tokens = RecordedTokens::to_batch(&[]).expect("a table").schema();
        let fields: Vec<_> = cuts.fields().iter().chain(tokens.fields()).cloned().collect();
        assert_eq!(fields.len(), 3);
        assert!(fields.iter().all(|field| is_reserved(field)), "{fields:?}");
    }
}

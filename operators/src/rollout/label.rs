//! Relabels a cached rollout if only the labels of its question changed: keeps the conversation, copies the labels
//! again. Also extracts the model's messages, for audits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{Field, Schema};
use searchmill_engine::operator::{OperatorError, RowOutput};
use searchmill_schemas::{Message, RecordKind, Trajectory, from_batch, text_column};
use serde_json::json;

use crate::shared::columns::{TOOL_ERRORS, carried};

/// Columns of a trajectory that are copied from its question.
const COPIED: [&str; 4] = ["golden_answers", "question_type", "evidence", "metadata"];

/// Columns that some rollouts have beyond the kind ([`RecordedTokens`], [`CutObservations`]).
///
/// [`RecordedTokens`]: searchmill_schemas::RecordedTokens
/// [`CutObservations`]: searchmill_schemas::CutObservations
const RESERVED: [&str; 4] = [TOOL_ERRORS, "tokens", "sampling", "cut_observations"];

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
    use searchmill_schemas::{CutObservations, RecordedTokens};

    use super::*;

    #[test]
    fn all_columns_that_a_rollout_may_have_are_reserved() {
        let cuts = CutObservations::to_batch(&[]).expect("a table").schema();
        let tokens = RecordedTokens::to_batch(&[]).expect("a table").schema();
        let fields: Vec<_> = cuts.fields().iter().chain(tokens.fields()).cloned().collect();
        assert_eq!(fields.len(), 3);
        assert!(fields.iter().all(|field| is_reserved(field)), "{fields:?}");
    }
}

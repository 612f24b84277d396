//! Relabels a cached rollout if only the labels of its question changed: keeps the conversation, copies the labels
//! again. Also extracts the model's messages, for audits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::compute::cast;
use searchmill_engine::operator::{OperatorError, RowOutput};
use searchmill_schemas::{Trajectory, from_batch, text_column};
use serde_json::json;

/// Columns of a trajectory that are copied from its question.
const COPIED: [&str; 4] = ["golden_answers", "question_type", "evidence", "metadata"];

/// Returns the rollout with the labels of `row`; `None` if the rollout is not of this question and sample.
pub(super) fn labelled(row: &RecordBatch, sample: u32, output: RowOutput) -> Option<RowOutput> {
    let [(port, rollout)] = <[_; 1]>::try_from(output.batches).ok()?;
    let text = |batch: &RecordBatch, name: &str| {
        let column = text_column(batch, name).ok()?;
        (column.len() == 1 && column.is_valid(0)).then(|| column.value(0).to_owned())
    };
    let drawn = rollout.column_by_name("sample_index")?.as_any().downcast_ref::<Int32Array>()?;
    if text(&rollout, "question")? != text(row, "question")? || drawn.value(0) != i32::try_from(sample).ok()? {
        return None;
    }
    let id = text(row, "id")?;
    let mut columns = rollout.columns().to_vec();
    let schema = rollout.schema();
    let mut put = |name: &str, values: ArrayRef| -> Option<()> {
        let place = schema.index_of(name).ok()?;
        columns[place] = cast(&values, schema.field(place).data_type()).ok()?;
        Some(())
    };
    put("id", Arc::new(StringArray::from(vec![format!("{id}@{sample}")])))?;
    put("question_id", Arc::new(StringArray::from(vec![id])))?;
    for name in COPIED {
        put(name, Arc::clone(row.column_by_name(name)?))?;
    }
    let rollout = RecordBatch::try_new(schema, columns).ok()?;
    Some(RowOutput { batches: vec![(port, rollout)], usage: output.usage })
}

/// Returns the model's name and messages of recorded rollouts, by rollout id.
pub(super) fn said(rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
    let rollouts: Vec<Trajectory> = from_batch(rows)?;
    let said = |rollout: Trajectory| {
        let messages: Vec<_> = rollout.messages.iter().filter(|message| message.is_model()).collect();
        let said = json!([rollout.policy, rollout.model, messages]).to_string();
        (rollout.id, said)
    };
    Ok(rollouts.into_iter().map(said).collect())
}

//! Reads what a node decided about its loop.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use indexmap::IndexMap;

use crate::error::OperatorError;
use crate::node_id::Round;
use crate::operator::{ENDED, HANDS_ON, InputArtifact};
use crate::plan::{NodeIndex, Plan};
use crate::store::{OutputRecord, Store};

/// What a node decided about its loop.
pub(crate) struct LoopDecision {
    /// Why the loop ends, if it does.
    pub(crate) ended: Option<String>,
    /// The round that it hands on.
    pub(crate) hands_on: Round,
}

/// Reads the decision of a node from its outputs. The last row counts.
pub(crate) fn read_decision(
    plan: &Plan,
    store: &Store,
    index: NodeIndex,
    outputs: &IndexMap<String, OutputRecord>,
) -> Result<LoopDecision, OperatorError> {
    let mut last = None;
    if let Some((_, record)) = outputs.first()
        && let InputArtifact::Rows(rows) = store.open_input(&record.id)?
    {
        for batch in rows.batches() {
            let batch = batch?;
            if batch.num_rows() > 0 {
                last = Some(batch);
            }
        }
    }
    match last.as_ref().and_then(last_row) {
        Some(decision) => Ok(decision),
        None => Err(OperatorError::engine(format!("what `{}` decided cannot be read", plan[index].id()))),
    }
}

/// Reads the last row; `None` if it has not the columns of a decision.
fn last_row(batch: &RecordBatch) -> Option<LoopDecision> {
    let row = batch.num_rows().checked_sub(1)?;
    let ended = batch.column_by_name(ENDED)?.as_string_opt::<i32>()?;
    let ended = if ended.is_valid(row) { Some(ended.value(row).to_owned()) } else { None };
    let hands_on = batch.column_by_name(HANDS_ON)?.as_primitive_opt::<Int64Type>()?;
    // A damaged table may have a null or a negative number there.
    if hands_on.is_null(row) {
        return None;
    }
    Some(LoopDecision { ended, hands_on: Round(usize::try_from(hands_on.value(row)).ok()?) })
}

/// Whether a node decides about a loop of which it is not known how it ends.
pub(crate) fn is_open(plan: &Plan, index: NodeIndex) -> bool {
    plan.decides(index).is_some_and(|repeats| repeats.end.is_none())
}

/// Returns the plan once the outputs of a node say how its loop ends; `None`: it decides about no loop, or the loop goes on.
pub(crate) fn settled(
    plan: &Plan,
    store: &Store,
    index: NodeIndex,
    outputs: &IndexMap<String, OutputRecord>,
) -> Result<Option<Plan>, OperatorError> {
    if !is_open(plan, index) {
        return Ok(None);
    }
    let decision = read_decision(plan, store, index, outputs)?;
    plan.settled(index, decision.ended, decision.hands_on)
}

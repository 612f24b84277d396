//! Reads what a node decided about its loop.

use arrow::array::{Array, AsArray};
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
    let unreadable = || OperatorError::engine(format!("what `{}` decided cannot be read", plan[index].id()));
    let (_, record) = outputs.first().ok_or_else(unreadable)?;
    let InputArtifact::Rows(rows) = store.open_input(&record.id)? else { return Err(unreadable()) };
    let mut last = None;
    for batch in rows.batches() {
        last = Some(batch?).filter(|batch| batch.num_rows() > 0).or(last);
    }
    let batch = last.ok_or_else(unreadable)?;
    let row = batch.num_rows() - 1;
    let ended = batch.column_by_name(ENDED).and_then(|column| column.as_string_opt::<i32>()).ok_or_else(unreadable)?;
    let hands_on = batch.column_by_name(HANDS_ON).and_then(|column| column.as_primitive_opt::<Int64Type>());
    let hands_on = hands_on.filter(|column| column.is_valid(row)).and_then(|column| column.value(row).try_into().ok());
    let ended = ended.is_valid(row).then(|| ended.value(row).to_owned());
    Ok(LoopDecision { ended, hands_on: Round(hands_on.ok_or_else(unreadable)?) })
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

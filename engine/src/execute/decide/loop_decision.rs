//! Reads what a node decided about its loop.

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use indexmap::IndexMap;

use crate::error::OperatorError;
use crate::operator::{ENDED, HANDS_ON, InputArtifact};
use crate::plan::Plan;
use crate::store::{OutputRecord, Store};

/// What a decision says: why the loop ends, if it does, and the round that it hands on.
pub(crate) type Verdict = (Option<String>, usize);

/// Reads the verdict of a node from its outputs.
pub(crate) fn verdict(
    plan: &Plan,
    store: &Store,
    place: usize,
    outputs: &IndexMap<String, OutputRecord>,
) -> Result<Verdict, OperatorError> {
    let unreadable = || OperatorError::engine(format!("what `{}` decided cannot be read", plan.nodes[place].id()));
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
    let why = ended.is_valid(row).then(|| ended.value(row).to_owned());
    Ok((why, hands_on.ok_or_else(unreadable)?))
}

/// Whether a node decides about a loop of which it is not known how it ends.
pub(crate) fn is_open(plan: &Plan, place: usize) -> bool {
    plan.decides(place).is_some_and(|repeats| repeats.end.is_none())
}

/// Returns the plan once the outputs of a node say how its loop ends; `None`: it decides about no loop, or the loop goes on.
pub(crate) fn settled(
    plan: &Plan,
    store: &Store,
    place: usize,
    outputs: &IndexMap<String, OutputRecord>,
) -> Result<Option<Plan>, OperatorError> {
    if !is_open(plan, place) {
        return Ok(None);
    }
    let (why, hands_on) = verdict(plan, store, place, outputs)?;
    plan.settled(place, why, hands_on)
}

//! Chooses rows of a table: the first, those that match, one by its id.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, AsArray, ListArray, RecordBatch, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::DataType;
use searchmill_engine::operator::RowsInput;
use searchmill_engine::{Failure, Session};
use searchmill_schemas::text_column;
use serde_json::json;

use crate::args::ShowArgs;

/// Rows shown without `-n`.
const FIRST: usize = 10;

/// What was chosen.
pub(super) struct Chosen {
    /// Number of rows.
    pub(super) rows: usize,
    /// Whether there may be more that match.
    pub(super) stopped: bool,
    /// Whether they had to match `--where`.
    pub(super) matched: bool,
}

/// Calls `each` with the chosen rows, batch by batch, while the table is read.
pub(super) fn each_chosen(
    session: &Session,
    rows: &RowsInput,
    args: &ShowArgs,
    each: &mut (dyn FnMut(&RecordBatch) -> Result<(), Failure> + Send),
) -> Result<Chosen, Failure> {
    let limit = limit(args);
    let mut chosen = Chosen { rows: 0, stopped: false, matched: args.condition.is_some() };
    let mut receive = |batch: &RecordBatch| {
        let batch = match &args.row {
            None => batch.slice(0, batch.num_rows().min(limit - chosen.rows)),
            Some(id) => match text_column(batch, "id").ok().and_then(|ids| ids.iter().position(|at| at == Some(id))) {
                Some(place) => batch.slice(place, 1),
                None => return Ok(ControlFlow::Continue(())),
            },
        };
        chosen.rows += batch.num_rows();
        if args.no_system {
            each(&without_system(&batch)?)?;
        } else {
            each(&batch)?;
        }
        chosen.stopped = chosen.rows >= limit || args.row.is_some();
        Ok(if chosen.stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    if let Some(sql) = &args.condition {
        session.pass("filter", json!({"where": sql}), rows, &mut receive)?;
    } else {
        for batch in rows.batches() {
            if receive(&batch.map_err(|error| Failure::Other(error.to_string()))?)?.is_break() {
                break;
            }
        }
    }
    match &args.row {
        Some(id) if chosen.rows == 0 => Err(Failure::usage(format!("no row has the id `{id}`"))),
        _ => Ok(chosen),
    }
}

/// Returns the maximum number of rows.
fn limit(args: &ShowArgs) -> usize {
    let default = if args.output.is_some() { 0 } else { FIRST };
    match args.rows.unwrap_or(default) {
        0 => usize::MAX,
        rows => rows,
    }
}

/// Whether all rows are chosen, unchanged.
pub(super) fn is_whole(args: &ShowArgs) -> bool {
    args.condition.is_none() && args.row.is_none() && !args.no_system && limit(args) == usize::MAX
}

/// Removes the messages with the role `system`.
fn without_system(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    let absent = || Failure::usage("`--no-system` is for trajectories: these rows have no `messages` with a `role`");
    let schema = batch.schema();
    let (place, _) = schema.column_with_name("messages").ok_or_else(absent)?;
    let lists = batch.column(place).as_list_opt::<i32>().ok_or_else(absent)?;
    let messages = lists.values().as_struct_opt().ok_or_else(absent)?;
    let roles = messages.column_by_name("role").and_then(|roles| roles.as_string_opt::<i32>()).ok_or_else(absent)?;
    let DataType::List(item) = lists.data_type() else { return Err(absent()) };
    let (mut kept, mut lengths) = (Vec::new(), Vec::new());
    for bounds in lists.value_offsets().windows(2) {
        let before = kept.len();
        kept.extend((bounds[0]..bounds[1]).map(|at| at as u64).filter(|at| roles.value(*at as usize) != "system"));
        lengths.push(kept.len() - before);
    }
    let wrong = |error: arrow::error::ArrowError| Failure::Other(error.to_string());
    let values = take(lists.values(), &UInt64Array::from(kept), None).map_err(wrong)?;
    let offsets = OffsetBuffer::from_lengths(lengths);
    let shorter = ListArray::try_new(Arc::clone(item), offsets, values, lists.nulls().cloned()).map_err(wrong)?;
    let mut columns = batch.columns().to_vec();
    columns[place] = Arc::new(shorter);
    RecordBatch::try_new(schema, columns).map_err(wrong)
}

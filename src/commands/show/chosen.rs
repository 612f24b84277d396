//! Chooses rows of a table: the first, those that match, one by its id; and their columns.

use std::sync::Arc;

use arrow::array::{Array, AsArray, ListArray, RecordBatch, StringArray, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, FieldRef};
use arrow::error::ArrowError;
use searchmill_engine::{Choice, Failure, Order, Rows, Session, Table};
use serde_json::json;

use crate::args::ShowArgs;

/// Rows shown without `-n`.
const FIRST: usize = 10;

/// Rows that are read together.
const BLOCK: usize = 1000;

/// What was chosen.
pub(super) struct Chosen {
    /// Number of rows.
    pub(super) rows: usize,
    /// Number of rows that match `--where`, if it was given.
    pub(super) matched: Option<u64>,
}

/// Calls `each` with the chosen rows, batch by batch, while the table is read.
pub(super) fn each_chosen(
    session: &Session,
    table: &Table,
    args: &ShowArgs,
    each: &mut dyn FnMut(&RecordBatch) -> Result<(), Failure>,
) -> Result<Chosen, Failure> {
    let pass = args.condition.as_ref().map(|sql| ("filter".to_owned(), json!({"where": sql})));
    let order = args.sort.iter().map(|key| Order::written(key)).collect();
    let rows = session.store().choose(table, &Choice { pass, order, limit: None })?;
    // A count of all rows would say nothing of a condition.
    let matched = args.condition.as_ref().map(|_| rows.count());
    let mut shown = 0;
    let mut show = |batch: &RecordBatch| {
        shown += batch.num_rows();
        if args.no_system { each(&without_system(batch)?) } else { each(batch) }
    };
    if let Some(id) = &args.row {
        // With `--where`, a row that does not match counts as absent.
        let position = table.position(id)?.filter(|position| rows.place(*position, None).is_some());
        let position = position.ok_or_else(|| Failure::usage(format!("no row has the id `{id}`")))?;
        show(&table.read(&[position], &columns(table, args))?)?;
    } else if matches!(rows, Rows::All(_)) && args.columns.is_none() {
        // As the rows are stored, with all columns: batch by batch, no row is looked up by number.
        let mut left = limit(args);
        for batch in table.rows.batches() {
            let batch = batch.map_err(|error| Failure::Other(error.to_string()))?;
            let batch = batch.slice(0, batch.num_rows().min(left));
            left -= batch.num_rows();
            show(&batch)?;
            if left == 0 {
                break;
            }
        }
    } else {
        let columns = columns(table, args);
        for block in rows.page(0..limit(args) as u64).chunks(BLOCK) {
            show(&table.read(block, &columns)?)?;
        }
    }
    Ok(Chosen { rows: shown, matched })
}

/// Returns the columns to show: those asked for, or else those of the table, and those scores by which rows are chosen.
pub(super) fn columns(table: &Table, args: &ShowArgs) -> Vec<String> {
    if let Some(columns) = &args.columns {
        return columns.iter().map(|name| name.trim().to_owned()).collect();
    }
    let mut columns = Vec::new();
    for field in table.columns() {
        let is_own = table.rows.schema.index_of(field.name()).is_ok();
        let mut asked = args.condition.iter().chain(&args.sort);
        if is_own || asked.any(|sql| names(sql, field.name())) {
            columns.push(field.name().clone());
        }
    }
    columns
}

/// Whether a name stands in an SQL text as a word.
fn names(sql: &str, name: &str) -> bool {
    sql.split(|character: char| !character.is_alphanumeric() && character != '_').any(|word| word == name)
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
    let chosen = args.condition.is_some() || args.row.is_some() || args.columns.is_some() || !args.sort.is_empty();
    !chosen && !args.no_system && limit(args) == usize::MAX
}

/// Removes the messages with the role `system`.
fn without_system(batch: &RecordBatch) -> Result<RecordBatch, Failure> {
    let schema = batch.schema();
    if let Some((index, _)) = schema.column_with_name("messages")
        && let Some(lists) = batch.column(index).as_list_opt::<i32>()
        && let DataType::List(item) = lists.data_type()
        && let Some(messages) = lists.values().as_struct_opt()
        && let Some(roles) = messages.column_by_name("role")
        && let Some(roles) = roles.as_string_opt::<i32>()
    {
        let shorter = without_role(lists, item, roles, "system").map_err(|error| Failure::Other(error.to_string()))?;
        let mut columns = batch.columns().to_vec();
        columns[index] = Arc::new(shorter);
        return RecordBatch::try_new(schema, columns).map_err(|error| Failure::Other(error.to_string()));
    }
    Err(Failure::usage("`--no-system` is for trajectories: these rows have no `messages` with a `role`"))
}

/// Removes the messages with a role from the lists.
fn without_role(lists: &ListArray, item: &FieldRef, roles: &StringArray, role: &str) -> Result<ListArray, ArrowError> {
    let (mut others, mut lengths) = (Vec::new(), Vec::new());
    for bounds in lists.value_offsets().windows(2) {
        let before = others.len();
        for message in bounds[0]..bounds[1] {
            if roles.value(message as usize) != role {
                others.push(message as u64);
            }
        }
        lengths.push(others.len() - before);
    }
    let values = take(lists.values(), &UInt64Array::from(others), None)?;
    ListArray::try_new(Arc::clone(item), OffsetBuffer::from_lengths(lengths), values, lists.nulls().cloned())
}

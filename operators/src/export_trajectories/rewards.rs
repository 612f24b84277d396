//! Rewards of the rows, as the operator `reward` writes them.

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::OperatorError;

use crate::reward::Rewarded;
use crate::shared::numbers::finite;

/// Returns the rewards of the rows; `None` without a column `reward`, and for null.
pub(super) fn of_rows(batch: &RecordBatch) -> Result<Vec<Option<Rewarded>>, OperatorError> {
    let Some(column) = batch.column_by_name("reward") else { return Ok(vec![None; batch.num_rows()]) };
    let kind = column.data_type();
    if !kind.is_numeric() {
        return Err(OperatorError::pipeline(format!("the column `reward` is {kind}, not numbers"))
            .with_help("connect the output of `reward`, or rename the column"));
    }
    let values = cast(column, &DataType::Float64)?;
    let values = values.as_primitive::<Float64Type>();
    let mut rewards = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        rewards.push(finite(values, row).map(|value| {
            // Rewards of another node have no parts: the whole is the only one.
            let parts = parts(batch, row).unwrap_or_else(|| vec![("reward".to_owned(), value)]);
            Rewarded { value, parts }
        }));
    }
    Ok(rewards)
}

/// The list `{name, value}` of `reward_parts`, if there is one.
fn parts(batch: &RecordBatch, row: usize) -> Option<Vec<(String, f64)>> {
    let lists = batch.column_by_name("reward_parts")?.as_list_opt::<i32>()?;
    let list = lists.value(row);
    let fields = list.as_struct_opt()?;
    let names = fields.column_by_name("name")?.as_string_opt::<i32>()?;
    let values = fields.column_by_name("value")?.as_primitive_opt::<Float64Type>()?;
    let mut parts = Vec::new();
    for (name, value) in names.iter().zip(values) {
        parts.push((name?.to_owned(), value?));
    }
    if parts.is_empty() { None } else { Some(parts) }
}

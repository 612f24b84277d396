//! Labels of the values of a column that rows are grouped by.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use searchmill_engine::operator::OperatorError;

/// Label of null and of empty text.
pub(crate) const UNKNOWN: &str = "unknown";

/// A value as text. Numbers sort as numbers, before null; `true` sorts before `false`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Label {
    /// Order of numbers and of booleans; that of all texts is the same.
    pub(crate) order: i64,
    /// The value.
    pub(crate) text: String,
}

impl Label {
    /// Labels a text.
    pub(crate) fn of_text(text: &str) -> Self {
        Self { order: 0, text: text.to_owned() }
    }
}

/// Most groups of one column.
pub(crate) const GROUPS: usize = 1000;

/// Fails if a column to group by, the `place`th of `group_by`, has too many values.
pub(crate) fn require_few_groups(found: usize, place: usize, key: &str) -> Result<(), OperatorError> {
    if found <= GROUPS {
        return Ok(());
    }
    let message = format!("`group_by.{place}`: `{key}` has more than {GROUPS} values");
    Err(OperatorError::pipeline(message).with_help("group by fewer values, for example with `round(x)`"))
}

/// Returns the label of each value.
pub(crate) fn labels(column: &ArrayRef) -> Result<Vec<Label>, OperatorError> {
    let options = FormatOptions::default();
    let written = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let numbers = match column.data_type() {
        kind if kind.is_numeric() => Some(cast(column, &DataType::Float64)?),
        _ => None,
    };
    let numbers = numbers.as_ref().map(AsArray::as_primitive::<Float64Type>);
    let mut labels = Vec::with_capacity(column.len());
    for row in 0..column.len() {
        let text = if column.is_null(row) { String::new() } else { written.value(row).try_to_string()? };
        let order = match numbers {
            Some(numbers) if column.is_valid(row) => {
                // Whole numbers in the order of the numbers, as `f64::total_cmp` compares them.
                let bits = numbers.value(row).to_bits() as i64;
                bits ^ (((bits >> 63) as u64) >> 1) as i64
            }
            Some(_) => i64::MAX,
            None => i64::from(*column.data_type() == DataType::Boolean && text != "true"),
        };
        labels.push(Label { order, text: if text.is_empty() { UNKNOWN.to_owned() } else { text } });
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Float64Array, Int32Array, StringArray};

    use super::*;

    fn sorted(column: ArrayRef) -> Vec<String> {
        let mut found = labels(&column).expect("labels");
        found.sort();
        found.into_iter().map(|label| label.text).collect()
    }

    #[test]
    fn numbers_sort_as_numbers_and_nulls_are_unknown() {
        assert_eq!(
            sorted(Arc::new(Int32Array::from(vec![Some(10), None, Some(-3), Some(9)]))),
            ["-3", "9", "10", "unknown"]
        );
        assert_eq!(
            sorted(Arc::new(Float64Array::from(vec![2.5, -0.5, -1.5, f64::NAN]))),
            ["-1.5", "-0.5", "2.5", "NaN"]
        );
        assert_eq!(sorted(Arc::new(BooleanArray::from(vec![false, true]))), ["true", "false"]);
        assert_eq!(
            sorted(Arc::new(StringArray::from(vec![Some("b"), None, Some(""), Some("a")]))),
            ["a", "b", "unknown", "unknown"]
        );
    }
}

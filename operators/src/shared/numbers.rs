//! Columns as numbers.

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::OperatorError;

/// Returns a column of numbers or booleans as numbers; `None` for a column of another type.
pub(crate) fn numbers(column: &ArrayRef) -> Result<Option<Float64Array>, OperatorError> {
    let kind = column.data_type();
    if !kind.is_numeric() && !matches!(kind, DataType::Boolean | DataType::Null) {
        return Ok(None);
    }
    // Booleans become 0 and 1, so that a mean of them is a share.
    Ok(Some(cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone()))
}

/// Returns the number of a row, unless it is null, infinite or no number.
pub(crate) fn finite(numbers: &Float64Array, row: usize) -> Option<f64> {
    let value = numbers.value(row);
    if numbers.is_valid(row) && value.is_finite() { Some(value) } else { None }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Int32Array, NullArray, StringArray};

    use super::*;

    #[test]
    fn numbers_booleans_and_nulls_are_numbers() {
        let of = |column: ArrayRef| numbers(&column).unwrap();
        let flags = of(Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))).unwrap();
        assert_eq!([0, 1, 2].map(|row| finite(&flags, row)), [Some(1.0), None, Some(0.0)]);
        assert_eq!(of(Arc::new(Int32Array::from(vec![7]))).unwrap().values(), &[7.0]);
        assert_eq!(finite(&of(Arc::new(NullArray::new(1))).unwrap(), 0), None);
        assert_eq!(finite(&Float64Array::from(vec![f64::NAN, f64::INFINITY]), 1), None);
        assert_eq!(of(Arc::new(StringArray::from(vec!["7"]))), None);
    }
}

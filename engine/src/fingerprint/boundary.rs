//! Chooses where a table is cut: after rows selected by their first column, so that a change affects only its own part.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Int32Type, Int64Type, UInt32Type, UInt64Type};

use crate::operator::spread;

/// One row in this many ends a part, once the part is long enough.
const ONE_IN: u64 = 4096;

/// Whether a row ends a part, by the table's first column. Texts and integers decide; other types never end a part.
pub(crate) fn is_boundary(first_column: &ArrayRef, row: usize) -> bool {
    if first_column.is_null(row) {
        return false;
    }
    let number = match first_column.data_type() {
        DataType::Utf8 => return chosen(first_column.as_string::<i32>().value(row).as_bytes()),
        DataType::Int32 => i64::from(first_column.as_primitive::<Int32Type>().value(row)) as u64,
        DataType::Int64 => first_column.as_primitive::<Int64Type>().value(row) as u64,
        DataType::UInt32 => u64::from(first_column.as_primitive::<UInt32Type>().value(row)),
        DataType::UInt64 => first_column.as_primitive::<UInt64Type>().value(row),
        _ => return false,
    };
    chosen(&number.to_le_bytes())
}

fn chosen(bytes: &[u8]) -> bool {
    mark(bytes).is_multiple_of(ONE_IN)
}

/// FNV-1a with the finaliser of SplitMix64: fast, and evenly distributed in all bits. Different bytes may have equal
/// marks, so a mark identifies nothing.
pub(crate) fn mark(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    spread(hash)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Int64Array, StringArray};

    use super::*;

    #[test]
    fn about_one_row_in_4096_is_chosen_by_its_first_column_alone() {
        let rows = 1 << 20;
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("doc-{row}"))));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        for column in [&texts, &numbers] {
            let chosen = (0..column.len()).filter(|row| is_boundary(column, *row)).count();
            assert!((200..320).contains(&chosen), "{chosen} of {rows}");
            let sliced = column.slice(1000, 10_000);
            assert!((0..10_000).all(|row| is_boundary(&sliced, row) == is_boundary(column, row + 1000)));
        }
        let other: ArrayRef = Arc::new(BooleanArray::from(vec![true; 10_000]));
        assert!((0..10_000).all(|row| !is_boundary(&other, row)));
    }
}

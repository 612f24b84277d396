//! Seeded randomness that is stable across library versions: ChaCha8's keystream, read by position.

use std::sync::Arc;

use arrow::array::{AsArray, UInt64Array};
use arrow::datatypes::{DataType, UInt64Type};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Returns a number from 0 to `limit - 1` (multiply-shift; its bias is below `limit / 2^64`).
pub(crate) fn below(random: &mut ChaCha8Rng, limit: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(limit)) >> 64) as u64
}

/// An SQL function from row number to a random 64-bit number, determined by the seed and the row number.
pub(crate) fn row_random(seed: u64) -> ScalarUDF {
    create_udf(
        "row_random",
        vec![DataType::UInt64],
        DataType::UInt64,
        Volatility::Immutable,
        Arc::new(move |arguments: &[ColumnarValue]| {
            let rows = arguments[0].to_array(1)?;
            Ok(ColumnarValue::Array(Arc::new(draw_rows(seed, rows.as_primitive::<UInt64Type>()))))
        }),
    )
}

fn draw_rows(seed: u64, rows: &UInt64Array) -> UInt64Array {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut next = 0;
    UInt64Array::from_iter_values(rows.values().iter().map(|&row| {
        // Rows of a batch mostly follow each other: then the keystream is at the right word. A number takes two words.
        if row != next {
            random.set_word_pos(u128::from(row) * 2);
        }
        next = row + 1;
        random.next_u64()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_draws_the_same_number_in_whatever_batch() {
        let all = draw_rows(7, &UInt64Array::from_iter_values(0..100));
        let one = draw_rows(7, &UInt64Array::from(vec![42]));
        let two = draw_rows(7, &UInt64Array::from(vec![3, 99, 4]));
        assert_eq!(all.value(42), one.value(0));
        assert_eq!([all.value(3), all.value(99), all.value(4)], [two.value(0), two.value(1), two.value(2)]);
        assert_ne!(all.value(42), draw_rows(8, &UInt64Array::from(vec![42])).value(0));
    }

    #[test]
    fn draws_below_a_limit_are_even() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0_u32; 5];
        for _ in 0..10_000 {
            counts[below(&mut random, 5) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (1_850..2_150).contains(&count)), "{counts:?}");
    }
}

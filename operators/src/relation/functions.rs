//! SQL functions of texts, for every query and predicate.

use std::sync::Arc;

use arrow::array::{AsArray, Float64Array};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use searchmill_text::minhash;
use searchmill_text::words::Words;

/// Adds `ngram_jaccard(a, b, n)` to a session.
pub(crate) fn register(session: &SessionContext) {
    session.register_udf(ngram_jaccard());
}

/// Jaccard similarity of the sets of word n-grams of two texts, with the words of `near` in `dedup` (lower case, without
/// punctuation). A text with fewer than n words has one n-gram. Null if a text is null.
fn ngram_jaccard() -> ScalarUDF {
    let types = vec![DataType::Utf8, DataType::Utf8, DataType::Int64];
    let run = |args: &[ColumnarValue]| {
        let values = ColumnarValue::values_to_arrays(args)?;
        let [a, b, n] = values.as_slice() else {
            return Err(DataFusionError::Execution("ngram_jaccard takes two texts and a number".to_owned()));
        };
        let rows = a.as_string::<i32>().iter().zip(b.as_string::<i32>()).zip(n.as_primitive::<Int64Type>());
        let of_row = |((a, b), n): ((Option<&str>, Option<&str>), Option<i64>)| {
            let (Some(a), Some(b), Some(n)) = (a, b, n) else { return Ok(None) };
            similarity(a, b, n).map(Some)
        };
        let values: Float64Array = rows.map(of_row).collect::<Result<_>>()?;
        Ok(ColumnarValue::Array(Arc::new(values)))
    };
    create_udf("ngram_jaccard", types, DataType::Float64, Volatility::Immutable, Arc::new(run))
}

fn similarity(a: &str, b: &str, n: i64) -> Result<f64> {
    let n = usize::try_from(n).ok().filter(|n| *n > 0);
    let n = n.ok_or_else(|| DataFusionError::Execution("ngram_jaccard needs n-grams of at least 1 word".to_owned()))?;
    let set = |text| minhash::set(Words::normalized(text).grams(n));
    Ok(minhash::jaccard(&set(a), &set(b)))
}

//! SQL functions of texts, for every query and predicate.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use datafusion::prelude::SessionContext;
use searchmill_text::words::Words;
use searchmill_text::{minhash, unicode};

/// Adds `ngram_jaccard(a, b, n)` and `nfkc(text)` to a session.
pub(crate) fn register(session: &SessionContext) {
    session.register_udf(nfkc());
    session.register_udf(ngram_jaccard());
}

/// A text in one Unicode form and in lower case, for comparisons. Null if the text is null.
pub(crate) fn folded() -> ScalarUDF {
    ScalarUDF::from(OfText::Folded)
}

/// A text, or each text of a list, in NFKC and without invisible code points. Null if it is null.
fn nfkc() -> ScalarUDF {
    ScalarUDF::from(OfText::Nfkc)
}

/// A function from text to text, of texts and of lists of texts.
#[derive(Debug, PartialEq, Eq, Hash)]
enum OfText {
    Folded,
    Nfkc,
}

/// `any`, because a text and a list of texts are both accepted; `return_type` checks the type.
static ANY: LazyLock<Signature> = LazyLock::new(|| Signature::any(1, Volatility::Immutable));

impl OfText {
    fn converted(&self, values: &ArrayRef) -> Result<ArrayRef> {
        if let DataType::List(item) = values.data_type() {
            let list = values.as_list::<i32>();
            let texts = self.converted(list.values())?;
            let item = Arc::new(item.as_ref().clone().with_data_type(texts.data_type().clone()));
            return Ok(Arc::new(ListArray::try_new(item, list.offsets().clone(), texts, list.nulls().cloned())?));
        }
        let texts = cast(values, &DataType::Utf8)?;
        let texts = texts.as_string::<i32>().iter();
        Ok(match self {
            Self::Folded => Arc::new(texts.map(|text| text.map(unicode::folded)).collect::<StringArray>()),
            Self::Nfkc => Arc::new(texts.map(|text| text.map(unicode::nfkc)).collect::<StringArray>()),
        })
    }
}

impl ScalarUDFImpl for OfText {
    fn name(&self) -> &str {
        if *self == Self::Folded { "folded" } else { "nfkc" }
    }

    fn signature(&self) -> &Signature {
        &ANY
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [kind] if kind.is_null() || kind.is_string() => Ok(DataType::Utf8),
            [DataType::List(item)] if item.data_type().is_null() || item.data_type().is_string() => {
                Ok(DataType::List(Arc::new(item.as_ref().clone().with_data_type(DataType::Utf8))))
            }
            _ => Err(DataFusionError::Plan(format!("{} takes a text or a list of texts", self.name()))),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let values = ColumnarValue::values_to_arrays(&args.args)?;
        let [values] = values.as_slice() else {
            return Err(DataFusionError::Execution(format!("{} takes one text", self.name())));
        };
        Ok(ColumnarValue::Array(self.converted(values)?))
    }
}

/// Jaccard similarity of the sets of word n-grams of two texts, with the words of `near` in `dedup` (lower case, without
/// punctuation), but for Unicode forms, which differ: `nfkc` makes them equal. A text with fewer than n words has one n-gram. Null if a text is null.
fn ngram_jaccard() -> ScalarUDF {
    let types = vec![DataType::Utf8, DataType::Utf8, DataType::Int64];
    create_udf("ngram_jaccard", types, DataType::Float64, Volatility::Immutable, Arc::new(similarities))
}

fn similarities(args: &[ColumnarValue]) -> Result<ColumnarValue> {
    let values = ColumnarValue::values_to_arrays(args)?;
    let [a, b, n] = values.as_slice() else {
        return Err(DataFusionError::Execution("ngram_jaccard takes two texts and a number".to_owned()));
    };
    let mut similarities = Vec::with_capacity(a.len());
    for ((a, b), n) in a.as_string::<i32>().iter().zip(b.as_string::<i32>()).zip(n.as_primitive::<Int64Type>()) {
        let (Some(a), Some(b), Some(n)) = (a, b, n) else {
            similarities.push(None);
            continue;
        };
        let n = match usize::try_from(n) {
            Ok(n) if n > 0 => n,
            _ => return Err(DataFusionError::Execution("ngram_jaccard needs n-grams of at least 1 word".to_owned())),
        };
        let (a, b) = (minhash::set(Words::normalized(a).grams(n)), minhash::set(Words::normalized(b).grams(n)));
        similarities.push(Some(minhash::jaccard(&a, &b)));
    }
    Ok(ColumnarValue::Array(Arc::new(Float64Array::from(similarities))))
}

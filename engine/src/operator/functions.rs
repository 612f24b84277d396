//! SQL functions beside DataFusion's: JSON.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, StringBuilder};
use arrow::datatypes::{DataType, Field};
use arrow::json::EncoderOptions;
use arrow::json::writer::make_encoder;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast,
};
use datafusion::prelude::DataFrame;
use datafusion_functions_json::functions::json_union_to_text;
use searchmill_schemas::bytes_as_text;

/// Adds `json_get…`, `->`, `->>` (datafusion-functions-json) and `to_json`.
pub(super) fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    datafusion_functions_json::register_all(registry)?;
    registry.register_udf(Arc::new(ScalarUDF::from(ToJson { signature: Signature::any(1, Volatility::Immutable) })))?;
    Ok(())
}

/// Replaces values of `->` in a result by their JSON text: Parquet has no type for them.
///
/// # Errors
/// If the columns cannot be selected.
pub(crate) fn storable(frame: DataFrame) -> Result<DataFrame> {
    let (mut columns, mut has_union) = (Vec::new(), false);
    for (table, field) in frame.schema().iter() {
        let column = datafusion::common::Column::new(table.cloned(), field.name());
        let mut column = datafusion::logical_expr::Expr::Column(column);
        if matches!(field.data_type(), DataType::Union(..)) {
            has_union = true;
            column = cast(json_union_to_text(column), DataType::Utf8).alias(field.name());
        }
        columns.push(column);
    }
    // Most queries have no such values: their plan stays as it is.
    if has_union { frame.select(columns) } else { Ok(frame) }
}

/// `to_json(value)`: a value of any type as JSON text; null stays null.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ToJson {
    signature: Signature,
}

impl ScalarUDFImpl for ToJson {
    fn name(&self) -> &'static str {
        "to_json"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let values = ColumnarValue::values_to_arrays(&args.args)?;
        let [values] = values.as_slice() else {
            return Err(DataFusionError::Execution("to_json takes one value".to_owned()));
        };
        let values = bytes_as_text(values).map_err(|_| {
            let message = "to_json takes text, not bytes: use `encode(…, 'base64')`";
            DataFusionError::Execution(message.to_owned())
        })?;
        Ok(ColumnarValue::Array(texts(&values)?))
    }
}

fn texts(values: &ArrayRef) -> Result<ArrayRef> {
    let field = Arc::new(Field::new("value", values.data_type().clone(), true));
    // By default, arrow leaves out fields that are null.
    let options = EncoderOptions::default().with_explicit_nulls(true);
    let mut encoder = make_encoder(&field, values.as_ref(), &options)?;
    let mut texts = StringBuilder::with_capacity(values.len(), values.len() * 16);
    let mut text = Vec::new();
    for place in 0..values.len() {
        if encoder.is_null(place) {
            texts.append_null();
            continue;
        }
        text.clear();
        encoder.encode(place, &mut text);
        let text = std::str::from_utf8(&text).map_err(|error| DataFusionError::Execution(error.to_string()))?;
        texts.append_value(text);
    }
    Ok(Arc::new(texts.finish()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array, RecordBatch, StringArray};

    use super::super::tables::query_session;
    use super::*;

    /// Runs a query over a table `t` with JSON in `m` and numbers in `n`, and returns the texts of the first column.
    fn asked(query: &str) -> Vec<Option<String>> {
        let m = StringArray::from(vec![Some(r#"{"lang": "pl", "n": 7, "list": [1, "b"]}"#), None, Some("no json")]);
        let n = Int64Array::from(vec![Some(1), None, Some(3)]);
        let columns: [(&str, ArrayRef); 2] = [("m", Arc::new(m)), ("n", Arc::new(n))];
        let session = query_session().unwrap();
        session.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let batches = runtime.block_on(async {
            let frame = storable(session.sql(query).await.unwrap()).unwrap();
            frame.collect().await.unwrap()
        });
        let column = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        let column = arrow::compute::cast(column.column(0), &DataType::Utf8).unwrap();
        column.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn json_is_read_and_stored() {
        assert_eq!(asked("SELECT m->>'lang' FROM t"), [Some("pl".to_owned()), None, None]);
        assert_eq!(asked("SELECT json_get_int(m, 'n') + n FROM t"), [Some("8".to_owned()), None, None]);
        assert_eq!(asked("SELECT m->'list' AS l FROM t"), [Some(r#"[1, "b"]"#.to_owned()), None, None]);
        assert_eq!(asked("SELECT m->'lang' FROM t"), [Some("\"pl\"".to_owned()), None, None]);
        assert_eq!(asked("SELECT n FROM t WHERE (m->>'lang') = 'pl'"), [Some("1".to_owned())]);
    }

    #[test]
    fn values_become_json() {
        let object = asked("SELECT to_json(named_struct('n', n, 'words', ['a', 'ż\"'])) FROM t");
        assert_eq!(object[0], Some("{\"n\":1,\"words\":[\"a\",\"ż\\\"\"]}".to_owned()));
        assert_eq!(object[1], Some("{\"n\":null,\"words\":[\"a\",\"ż\\\"\"]}".to_owned()));
        assert_eq!(asked("SELECT to_json(n) FROM t"), [Some("1".to_owned()), None, Some("3".to_owned())]);
        assert_eq!(asked("SELECT to_json('a')"), [Some("\"a\"".to_owned())]);
        assert_eq!(asked("SELECT to_json([NULL, 2.5])"), [Some("[null,2.5]".to_owned())]);
    }

    #[test]
    fn texts_are_hashed() {
        assert_eq!(asked("SELECT md5('a')"), [Some("0cc175b9c0f1b6a831c399e269772661".to_owned())]);
        let sha256 = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(asked("SELECT encode(sha256('a'), 'hex')"), [Some(sha256.to_owned())]);
    }
}

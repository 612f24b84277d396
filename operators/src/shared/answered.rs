//! Answer metrics as columns of rows that have a prediction and golden answers.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rayon::prelude::*;
use searchmill_engine::operator::OperatorError;
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};

const PREDICTION: &str = "prediction";
const GOLDEN: &str = "golden_answers";

/// Returns the answer metrics that rows of these columns lack and can have.
fn lacking(schema: &Schema) -> Vec<(usize, Field)> {
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let of_texts = |kind: &DataType| match kind {
        DataType::List(item) | DataType::LargeList(item) => is_text(item.data_type()),
        _ => false,
    };
    let has = |name: &str, fits: &dyn Fn(&DataType) -> bool| {
        schema.field_with_name(name).is_ok_and(|field| fits(field.data_type()))
    };
    if !has(PREDICTION, &is_text) || !has(GOLDEN, &of_texts) {
        return Vec::new();
    }
    let names = AnswerScores::NAMES.into_iter().enumerate();
    let names = names.filter(|(_, name)| schema.field_with_name(name).is_err());
    names.map(|(place, name)| (place, Field::new(name, DataType::Float64, true))).collect()
}

/// Returns the columns with those of the answer metrics that [`with_metrics`] adds.
pub(crate) fn with_metric_fields(schema: &SchemaRef) -> SchemaRef {
    let new = lacking(schema).into_iter().map(|(_, field)| Arc::new(field));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain(new).collect::<Vec<_>>()))
}

/// Adds the answer metrics (FlashRAG's) to rows with the columns `prediction` and `golden_answers`, unless they have
/// columns of these names. They are null for rows without golden answers.
pub(crate) fn with_metrics(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let new = lacking(&batch.schema());
    if new.is_empty() {
        return Ok(batch.clone());
    }
    let text = |name: &str, kind: &DataType| Ok::<_, OperatorError>(cast(column(batch, name)?, kind)?);
    let predictions = text(PREDICTION, &DataType::Utf8)?;
    let golden = text(GOLDEN, &DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))))?;
    let (predictions, golden) = (predictions.as_string::<i32>(), golden.as_list::<i32>());
    let scores: Vec<Option<AnswerScores>> =
        (0..batch.num_rows()).into_par_iter().map(|row| scores_of(predictions, golden, row)).collect();
    let (mut fields, mut columns) = (batch.schema().fields().to_vec(), batch.columns().to_vec());
    for (place, field) in new {
        let values: Float64Array = scores.iter().map(|scores| scores.map(|scores| scores.values()[place])).collect();
        fields.push(Arc::new(field));
        columns.push(Arc::new(values));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, OperatorError> {
    batch.column_by_name(name).ok_or_else(|| OperatorError::engine(format!("the column `{name}` is gone")))
}

fn scores_of(predictions: &StringArray, golden: &ListArray, row: usize) -> Option<AnswerScores> {
    let answers = golden.is_valid(row).then(|| golden.value(row))?;
    let answers: Vec<String> = answers.as_string::<i32>().iter().flatten().map(str::to_owned).collect();
    let prediction = if predictions.is_valid(row) { predictions.value(row) } else { "" };
    (!answers.is_empty()).then(|| answer_scores(prediction, &answers))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Float64Type;
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::{RecordKind, to_batch};

    use super::*;
    use crate::shared::columns::with_columns;

    #[test]
    fn rows_with_answers_get_the_metrics_that_they_lack() {
        let mut rows = [("a", "x y", "x"), ("b", "x", "x"), ("c", "x", "")].map(|(id, g, p)| trajectory(id, 0, g, p));
        rows[2].golden_answers.clear();
        let batch = to_batch(&rows).expect("rows");
        let own: ArrayRef = Arc::new(Float64Array::from(vec![7.0, 8.0, 9.0]));
        let batch = with_columns(&batch, vec![(Field::new("em", DataType::Float64, true), own)]).expect("a column");
        let scored = with_metrics(&batch).expect("metrics");
        assert_eq!(scored.schema(), with_metric_fields(&batch.schema()));
        let values = |name: &str| scored.column_by_name(name).expect(name).as_primitive::<Float64Type>().clone();
        assert_eq!(values("em"), Float64Array::from(vec![7.0, 8.0, 9.0]), "a column of the rows stays");
        assert_eq!(values("f1"), Float64Array::from(vec![Some(2.0 / 3.0), Some(1.0), None]));
        assert_eq!(with_metrics(&scored).expect("nothing lacks"), scored);
        let documents = RecordBatch::new_empty(RecordKind::Document.schema());
        assert_eq!(with_metrics(&documents).expect("no answers").num_columns(), 4);
    }
}

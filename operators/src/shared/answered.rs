//! Answer metrics as columns of rows that have a prediction and golden answers.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rayon::prelude::*;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::text_value;
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};

use super::columns::{with_columns, with_fields};

const PREDICTION: &str = "prediction";
const GOLDEN: &str = "golden_answers";

/// Returns the answer metrics that rows of these columns lack and can have.
fn lacking(schema: &Schema) -> Vec<Field> {
    let mut new = Vec::new();
    let (Ok(prediction), Ok(golden)) = (schema.field_with_name(PREDICTION), schema.field_with_name(GOLDEN)) else {
        return new;
    };
    let (DataType::List(answer) | DataType::LargeList(answer)) = golden.data_type() else { return new };
    if prediction.data_type().is_string() && answer.data_type().is_string() {
        for name in AnswerScores::NAMES {
            if schema.field_with_name(name).is_err() {
                new.push(Field::new(name, DataType::Float64, true));
            }
        }
    }
    new
}

/// Returns the columns with those of the answer metrics that [`with_metrics`] adds.
pub(crate) fn with_metric_fields(schema: &SchemaRef) -> SchemaRef {
    with_fields(schema, &lacking(schema))
}

/// Adds the answer metrics (FlashRAG's) to rows with the columns `prediction` and `golden_answers`, unless they have
/// columns of these names. They are null for rows without golden answers.
pub(crate) fn with_metrics(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let new = lacking(&batch.schema());
    if new.is_empty() {
        return Ok(batch.clone());
    }
    // `lacking` has found both columns.
    let predictions = cast(&batch[PREDICTION], &DataType::Utf8)?;
    let golden = cast(&batch[GOLDEN], &DataType::List(Arc::new(Field::new("item", DataType::Utf8, true))))?;
    let (predictions, golden) = (predictions.as_string::<i32>(), golden.as_list::<i32>());
    let scores: Vec<Option<AnswerScores>> =
        (0..batch.num_rows()).into_par_iter().map(|row| scores_of(predictions, golden, row)).collect();
    let mut columns = Vec::new();
    for (metric, name) in AnswerScores::NAMES.into_iter().enumerate() {
        if let Some(field) = new.iter().find(|field| field.name() == name) {
            let values = scores.iter().map(|scores| Some(scores.as_ref()?.values()[metric]));
            columns.push((field.clone(), Arc::new(values.collect::<Float64Array>()) as ArrayRef));
        }
    }
    with_columns(batch, columns)
}

fn scores_of(predictions: &StringArray, golden: &ListArray, row: usize) -> Option<AnswerScores> {
    if golden.is_null(row) {
        return None;
    }
    let answers = golden.value(row);
    let answers: Vec<String> = answers.as_string::<i32>().iter().flatten().map(str::to_owned).collect();
    if answers.is_empty() {
        return None;
    }
    // A rollout without an answer is a wrong one: its F1 is 0, not null.
    Some(answer_scores(text_value(predictions, row).unwrap_or_default(), &answers))
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Float64Type;
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::{RecordKind, to_batch};

    use super::*;

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

//! The tables: a row for each question, and the figures.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use searchmill_engine::operator::{OperatorError, Outputs};
use searchmill_schemas::{RecordKind, to_batch};

use super::figures::Comparison;
use super::matched::{Matching, Means};
use super::params::{By, CompareParams, METRICS, QUESTIONS};
use super::side::{Question, Side};
use crate::shared::columns::with_fields;
use crate::shared::statistics::metric_rows;

fn fields(of: &[(&str, DataType, bool)]) -> Vec<Field> {
    of.iter().map(|(name, kind, nullable)| Field::new(*name, kind.clone(), *nullable)).collect()
}

/// Columns of `questions`.
pub(super) fn question_schema() -> SchemaRef {
    Arc::new(Schema::new(fields(&[
        ("question_id", DataType::Utf8, false),
        ("system", DataType::Utf8, false),
        ("metric", DataType::Utf8, false),
        ("base_value", DataType::Float64, true),
        ("value", DataType::Float64, true),
        ("delta", DataType::Float64, true),
        ("outcome", DataType::Utf8, false),
        ("base_samples", DataType::Int64, false),
        ("samples", DataType::Int64, false),
    ])))
}

/// Columns of `metrics` beside those of the kind.
fn further() -> Vec<Field> {
    fields(&[
        ("system", DataType::Utf8, false),
        ("metric", DataType::Utf8, false),
        ("base_value", DataType::Float64, false),
        ("system_value", DataType::Float64, false),
        ("wins", DataType::Int64, false),
        ("losses", DataType::Int64, false),
        ("ties", DataType::Int64, false),
        ("p_value", DataType::Float64, true),
        ("p_holm", DataType::Float64, true),
        ("exact", DataType::Boolean, true),
    ])
}

/// Columns of `metrics`.
pub(super) fn metric_schema() -> SchemaRef {
    with_fields(&RecordKind::Metric.schema(), &further())
}

/// A question of one or both systems.
struct Row<'a> {
    id: &'a str,
    base: Option<&'a Question>,
    side: Option<&'a Question>,
}

/// Writes the rows of one system: the questions of the baseline in its order, then those of the system alone.
pub(super) fn write_questions(
    base: &Side,
    side: &Side,
    matching: &Matching,
    by: &[By],
    outputs: &mut Outputs,
) -> Result<(), OperatorError> {
    let mut rows = Vec::with_capacity(base.questions.len() + matching.side_only.len());
    for (id, question) in &base.questions {
        rows.push(Row { id, base: Some(question), side: side.questions.get(id) });
    }
    for index in &matching.side_only {
        if let Some((id, question)) = side.questions.get_index(*index) {
            rows.push(Row { id, base: None, side: Some(question) });
        }
    }
    // In parts of the size of a batch: with many systems and metrics, the whole table may be large.
    for rows in rows.chunks(8192) {
        let (mut ids, mut metrics, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut base_values, mut values, mut deltas) = (Vec::new(), Vec::new(), Vec::new());
        let (mut base_samples, mut samples) = (Vec::new(), Vec::new());
        for row in rows {
            for (metric, by) in by.iter().enumerate() {
                let means = match (row.base, row.side) {
                    (Some(base), Some(side)) => Means::of(base, side, metric),
                    _ => None,
                };
                ids.push(row.id);
                metrics.push(by.key.as_str());
                base_values.push(row.base.and_then(|question| question.mean(metric)));
                values.push(row.side.and_then(|question| question.mean(metric)));
                deltas.push(means.map(Means::delta));
                outcomes.push(match means.map(|means| means.gain(by.higher)) {
                    None => "unmatched",
                    Some(gain) if gain > 0.0 => "win",
                    Some(gain) if gain < 0.0 => "loss",
                    Some(_) => "tie",
                });
                base_samples.push(row.base.map_or(0, |question| i64::from(question.samples)));
                samples.push(row.side.map_or(0, |question| i64::from(question.samples)));
            }
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(ids)),
            Arc::new(StringArray::from(vec![side.name.as_str(); metrics.len()])),
            Arc::new(StringArray::from(metrics)),
            Arc::new(Float64Array::from(base_values)),
            Arc::new(Float64Array::from(values)),
            Arc::new(Float64Array::from(deltas)),
            Arc::new(StringArray::from(outcomes)),
            Arc::new(Int64Array::from(base_samples)),
            Arc::new(Int64Array::from(samples)),
        ];
        outputs.write(QUESTIONS, &RecordBatch::try_new(question_schema(), columns)?)?;
    }
    // Later nodes may refer to the columns.
    if rows.is_empty() {
        outputs.write(QUESTIONS, &RecordBatch::new_empty(question_schema()))?;
    }
    Ok(())
}

/// Writes a row for each group, system and metric that has questions.
pub(super) fn write_metrics(
    params: &CompareParams,
    comparisons: &[Comparison],
    outputs: &mut Outputs,
) -> Result<(), OperatorError> {
    let by = params.by();
    let (mut rows, mut systems, mut metrics, mut figures) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for comparison in comparisons {
        for group in &comparison.groups {
            for (figure, by) in group.figures.iter().zip(&by) {
                if figure.delta.count > 0 {
                    let name = format!("{}/{}", comparison.system, by.key);
                    rows.extend(metric_rows(&group.name(params), &[(name, figure.delta)]));
                    systems.push(comparison.system.as_str());
                    metrics.push(by.key.as_str());
                    figures.push(figure);
                }
            }
        }
    }
    let mut columns = to_batch(&rows)?.columns().to_vec();
    columns.extend([
        Arc::new(StringArray::from(systems)) as ArrayRef,
        Arc::new(StringArray::from(metrics)),
        Arc::new(Float64Array::from_iter_values(figures.iter().map(|figure| figure.base))),
        Arc::new(Float64Array::from_iter_values(figures.iter().map(|figure| figure.side))),
        Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.wins as i64))),
        Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.losses as i64))),
        Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.ties as i64))),
        Arc::new(figures.iter().map(|figure| Some(figure.test?.p)).collect::<Float64Array>()),
        Arc::new(figures.iter().map(|figure| figure.holm).collect::<Float64Array>()),
        Arc::new(figures.iter().map(|figure| Some(figure.test?.exact)).collect::<BooleanArray>()),
    ]);
    outputs.write(METRICS, &RecordBatch::try_new(metric_schema(), columns)?)
}

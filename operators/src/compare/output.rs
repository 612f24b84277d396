//! The tables: a row for each question, and the figures.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use searchmill_engine::operator::{OperatorError, Tables};
use searchmill_schemas::to_batch;

use super::figures::Comparison;
use super::matched::{Matching, Means};
use super::params::{By, CompareParams, METRICS, QUESTIONS};
use super::side::{Question, Side};
use crate::shared::columns::with_all;
use crate::shared::statistics::metric_rows;

/// Columns of both tables.
pub(super) fn columns() -> Result<Tables, OperatorError> {
    let metrics = metrics(&CompareParams::default(), &[])?.schema();
    Ok([(QUESTIONS.to_owned(), questions("", &[], &[])?.schema()), (METRICS.to_owned(), metrics)].into())
}

/// A question of one or both systems.
pub(super) struct Row<'a> {
    id: &'a str,
    base: Option<&'a Question>,
    side: Option<&'a Question>,
}

/// Returns the questions of the baseline in its order, then those of a system alone.
pub(super) fn rows<'a>(base: &'a Side, side: &'a Side, matching: &Matching) -> Vec<Row<'a>> {
    let mut rows = Vec::with_capacity(base.questions.len() + matching.side_only.len());
    for (id, question) in &base.questions {
        rows.push(Row { id, base: Some(question), side: side.questions.get(id) });
    }
    for index in &matching.side_only {
        if let Some((id, question)) = side.questions.get_index(*index) {
            rows.push(Row { id, base: None, side: Some(question) });
        }
    }
    rows
}

/// Returns a row for each question and metric.
pub(super) fn questions(system: &str, rows: &[Row], by: &[By]) -> Result<RecordBatch, OperatorError> {
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
    let columns: [(&str, ArrayRef, bool); 9] = [
        ("question_id", Arc::new(StringArray::from(ids)), false),
        ("system", Arc::new(StringArray::from(vec![system; metrics.len()])), false),
        ("metric", Arc::new(StringArray::from(metrics)), false),
        ("base_value", Arc::new(Float64Array::from(base_values)), true),
        ("value", Arc::new(Float64Array::from(values)), true),
        ("delta", Arc::new(Float64Array::from(deltas)), true),
        ("outcome", Arc::new(StringArray::from(outcomes)), false),
        ("base_samples", Arc::new(Int64Array::from(base_samples)), false),
        ("samples", Arc::new(Int64Array::from(samples)), false),
    ];
    Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
}

/// Returns a row for each group, system and metric that has questions.
pub(super) fn metrics(params: &CompareParams, comparisons: &[Comparison]) -> Result<RecordBatch, OperatorError> {
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
    let further: [(&str, ArrayRef, bool); 10] = [
        ("system", Arc::new(StringArray::from(systems)), false),
        ("metric", Arc::new(StringArray::from(metrics)), false),
        ("base_value", Arc::new(Float64Array::from_iter_values(figures.iter().map(|figure| figure.base))), false),
        ("system_value", Arc::new(Float64Array::from_iter_values(figures.iter().map(|figure| figure.side))), false),
        ("wins", Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.wins as i64))), false),
        ("losses", Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.losses as i64))), false),
        ("ties", Arc::new(Int64Array::from_iter_values(figures.iter().map(|figure| figure.ties as i64))), false),
        ("p_value", Arc::new(figures.iter().map(|figure| Some(figure.test?.p)).collect::<Float64Array>()), true),
        ("p_holm", Arc::new(figures.iter().map(|figure| figure.holm).collect::<Float64Array>()), true),
        ("exact", Arc::new(figures.iter().map(|figure| Some(figure.test?.exact)).collect::<BooleanArray>()), true),
    ];
    with_all(&to_batch(&rows)?, &RecordBatch::try_from_iter_with_nullable(further)?)
}

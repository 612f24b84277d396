//! The tables: a row for each question, and the figures.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use searchmill_engine::operator::{OperatorError, Outputs};
use searchmill_schemas::{Metric, RecordKind, to_batch};

use super::figures::{Comparison, Figure};
use super::matched::{Matching, Means};
use super::params::{By, CompareParams, METRICS, QUESTIONS};
use super::side::{Question, Side};
use crate::shared::columns::with_fields;

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

impl Row<'_> {
    fn outcome(&self, by: &By, metric: usize) -> &'static str {
        let means = self.base.zip(self.side).and_then(|(base, side)| Means::of(base, side, metric));
        match means.map(|means| means.gain(by.higher)) {
            None => "unmatched",
            Some(gain) if gain > 0.0 => "win",
            Some(gain) if gain < 0.0 => "loss",
            Some(_) => "tie",
        }
    }

    fn delta(&self, metric: usize) -> Option<f64> {
        Means::of(self.base?, self.side?, metric).map(Means::delta)
    }
}

/// Writes the rows of one system: the questions of the baseline in its order, then those of the system alone.
pub(super) fn write_questions(
    base: &Side,
    side: &Side,
    matching: &Matching,
    by: &[By],
    outputs: &mut Outputs,
) -> Result<(), OperatorError> {
    let of_base = base.questions.iter().map(|(id, base)| Row { id, base: Some(base), side: side.questions.get(id) });
    let alone = matching.side_only.iter().filter_map(|place| side.questions.get_index(*place));
    let alone = alone.map(|(id, side)| Row { id, base: None, side: Some(side) });
    let rows: Vec<Row> = of_base.chain(alone).collect();
    for rows in rows.chunks(8192) {
        let cells: Vec<(&Row, usize)> =
            rows.iter().flat_map(|row| (0..by.len()).map(move |metric| (row, metric))).collect();
        let text = |text: &dyn Fn(&Row, usize) -> String| -> ArrayRef {
            Arc::new(StringArray::from_iter_values(cells.iter().map(|(row, metric)| text(row, *metric))))
        };
        let number = |number: &dyn Fn(&Row, usize) -> Option<f64>| -> ArrayRef {
            Arc::new(cells.iter().map(|(row, metric)| number(row, *metric)).collect::<Float64Array>())
        };
        let samples = |question: &dyn Fn(&Row) -> u32| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(cells.iter().map(|(row, _)| i64::from(question(row)))))
        };
        let columns = vec![
            text(&|row, _| row.id.to_owned()),
            text(&|_, _| side.name.clone()),
            text(&|_, metric| by[metric].key.clone()),
            number(&|row, metric| row.base?.mean(metric)),
            number(&|row, metric| row.side?.mean(metric)),
            number(&|row, metric| row.delta(metric)),
            text(&|row, metric| row.outcome(&by[metric], metric).to_owned()),
            samples(&|row| row.base.map_or(0, |question| question.samples)),
            samples(&|row| row.side.map_or(0, |question| question.samples)),
        ];
        outputs.write(QUESTIONS, &RecordBatch::try_new(question_schema(), columns)?)?;
    }
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
    let mut found: Vec<(Metric, &str, &str, &Figure)> = Vec::new();
    for comparison in comparisons {
        for group in &comparison.groups {
            let figures = group.figures.iter().zip(&by).filter(|(figure, _)| figure.delta.count > 0);
            found.extend(figures.map(|(figure, by)| {
                let (group, name) = (group.name(params), format!("{}/{}", comparison.system, by.key));
                let (delta, id) = (figure.delta, format!("{group}/{name}"));
                let count = delta.count as i64;
                let metric = Metric { id, name, group, value: delta.value, low: delta.low, high: delta.high, count };
                (metric, comparison.system.as_str(), by.key.as_str(), figure)
            }));
        }
    }
    let figures = || found.iter().map(|(.., figure)| *figure);
    let number = |number: &dyn Fn(&Figure) -> Option<f64>| -> ArrayRef {
        Arc::new(figures().map(number).collect::<Float64Array>())
    };
    let whole = |whole: &dyn Fn(&Figure) -> usize| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(figures().map(|figure| whole(figure) as i64)))
    };
    let mut columns =
        to_batch(&found.iter().map(|(metric, ..)| metric.clone()).collect::<Vec<_>>())?.columns().to_vec();
    columns.extend([
        Arc::new(StringArray::from_iter_values(found.iter().map(|(_, system, ..)| system))) as ArrayRef,
        Arc::new(StringArray::from_iter_values(found.iter().map(|(_, _, metric, _)| metric))),
        number(&|figure| Some(figure.base)),
        number(&|figure| Some(figure.side)),
        whole(&|figure| figure.wins),
        whole(&|figure| figure.losses),
        whole(&|figure| figure.ties),
        number(&|figure| figure.test.map(|test| test.p)),
        number(&|figure| figure.holm),
        Arc::new(figures().map(|figure| figure.test.map(|test| test.exact)).collect::<BooleanArray>()),
    ]);
    outputs.write(METRICS, &RecordBatch::try_new(metric_schema(), columns)?)
}

//! The user's own measures, and the columns that scores are broken down by: columns or SQL expressions over the
//! trajectories and their scores.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use searchmill_schemas::{RecordKind, Score, to_batch};
use serde::{Deserialize, Serialize};

use super::scored::Scored;
use crate::shared::columns::{carried_fields, extra, with_all, with_columns, with_fields};
use crate::shared::html::plot::Estimate;
use crate::shared::numbers::{finite, numbers};
use crate::shared::relation::{Keys, Label, check_key, labels, unknown_key, unknown_keys};
use crate::shared::statistics::{Bootstrap, Measure, intervals, quantile};

/// A measure of the user: a column or an SQL expression over the trajectories and their scores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum OwnMeasure {
    /// Mean of a number.
    Mean(String),
    /// Share of rows for which this is true.
    Share(String),
    /// Quantile of a number.
    Quantile(QuantileOf),
}

/// A quantile of a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QuantileOf {
    /// Column or SQL expression.
    pub of: String,
    /// Which quantile, from 0 to 1 (0.5: the median). Between two values it is interpolated.
    pub at: f64,
}

/// Measures of the user by name.
pub(crate) type OwnMeasures = BTreeMap<String, OwnMeasure>;

impl OwnMeasure {
    fn key(&self) -> &str {
        match self {
            Self::Mean(key) | Self::Share(key) => key,
            Self::Quantile(quantile) => &quantile.of,
        }
    }

    fn path(&self, name: &str) -> String {
        let kind = match self {
            Self::Mean(_) => "mean",
            Self::Share(_) => "share",
            Self::Quantile(_) => "quantile.of",
        };
        format!("measures.{name}.{kind}")
    }

    /// Says what is measured.
    pub(crate) fn about(&self) -> String {
        match self {
            Self::Mean(key) => format!("mean of {key}"),
            Self::Share(key) => format!("share of {key}"),
            Self::Quantile(QuantileOf { of, at }) => format!("{at} quantile of {of}"),
        }
    }
}

/// Checks the measures; `is_taken` tells the names of other figures.
pub(crate) fn issues(measures: &OwnMeasures, is_taken: fn(&str) -> bool) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (name, measure) in measures {
        let path = format!("measures.{name}");
        if let Some(message) = name_fault(name, is_taken) {
            let help = "choose a name without `/` and `@` that `evaluate` does not use itself";
            issues.push(ParamIssue::new(&path, message).with_help(help));
        }
        issues.extend(check_key(&measure.path(name), measure.key()));
        if let OwnMeasure::Quantile(QuantileOf { at, .. }) = measure
            && !(0.0..=1.0).contains(at)
        {
            issues.push(ParamIssue::new(format!("{path}.quantile.at"), "must be between 0 and 1"));
        }
    }
    issues
}

/// Returns why no measure can have this name.
fn name_fault(name: &str, is_taken: fn(&str) -> bool) -> Option<String> {
    if name.is_empty() {
        return Some("a measure without a name".to_owned());
    }
    for letter in ['/', '@'] {
        if name.contains(letter) {
            return Some(format!("names with `{letter}` are those of `evaluate` itself"));
        }
    }
    if is_taken(name) {
        return Some(format!("`evaluate` has a figure `{name}`"));
    }
    // Measures are columns of `scores`, which must not replace those of the kind.
    RecordKind::Score.schema().field_with_name(name).is_ok().then(|| format!("`scores` has a column `{name}`"))
}

/// Returns what does not fit the columns of the trajectories.
pub(crate) fn column_issues(schema: &SchemaRef, group_by: &[String], measures: &OwnMeasures) -> Vec<ParamIssue> {
    let schema = scored_schema(schema);
    let mut issues = unknown_keys(&schema, "group_by", group_by);
    for (name, measure) in measures {
        issues.extend(unknown_key(&schema, &measure.path(name), measure.key()));
    }
    if issues.is_empty() {
        for (name, measure) in measures {
            // Each alone, so that every measure of a wrong type has its issue.
            let alone = OwnMeasures::from([(name.clone(), measure.clone())]);
            issues.extend(Own::new(&schema, &[], &alone).err().map(ParamIssue::from));
        }
    }
    issues
}

/// The scores that expressions may name beside the columns of the trajectories, whose columns come first.
const SCORES: [&str; 7] = ["em", "f1", "acc", "precision", "recall", "success", "grounded"];

fn scored_schema(schema: &SchemaRef) -> SchemaRef {
    let mut new = Vec::new();
    for field in RecordKind::Score.schema().fields() {
        // A column of the trajectories hides a score of the same name.
        if SCORES.contains(&field.name().as_str()) && schema.field_with_name(field.name()).is_err() {
            new.push(field.as_ref().clone());
        }
    }
    with_fields(schema, &new)
}

/// Returns the columns of `scores`: those of the kind, those of the trajectories beyond their kind, and the measures.
pub(crate) fn output_schema(trajectories: &SchemaRef, measures: &OwnMeasures) -> SchemaRef {
    let measures: Vec<Field> = measures.keys().map(|name| Field::new(name, DataType::Float64, true)).collect();
    with_fields(&carried_fields(&RecordKind::Score.schema(), trajectories, RecordKind::Trajectory), &measures)
}

/// Keys of the params, bound to the columns of the trajectories.
pub(crate) struct Own<'a> {
    groups: Keys,
    measures: Vec<(&'a str, &'a OwnMeasure, Keys)>,
}

impl<'a> Own<'a> {
    pub(crate) fn new(schema: &SchemaRef, groups: &[String], measures: &'a OwnMeasures) -> Result<Self, OperatorError> {
        let schema = scored_schema(schema);
        let mut own = Self { groups: Keys::new(&schema, "group_by", groups)?, measures: Vec::new() };
        for (name, measure) in measures {
            own.measures.push((name, measure, Keys::new(&schema, &measure.path(name), &[measure.key()])?));
        }
        // The types of expressions are known without rows.
        own.values(&RecordBatch::new_empty(schema))?;
        Ok(own)
    }

    /// Completes the scored rows with their groups and measures, and returns their rows of `scores`. `trajectories` are
    /// the rows behind them.
    pub(crate) fn complete(
        &self,
        trajectories: &RecordBatch,
        scored: &mut [Scored],
        rows: &[Score],
    ) -> Result<RecordBatch, OperatorError> {
        let mut scores = to_batch(rows)?;
        let schema = scored_schema(&trajectories.schema());
        let mut columns = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let own = trajectories.column_by_name(field.name());
            columns.push(Arc::clone(own.unwrap_or_else(|| &scores[field.name().as_str()])));
        }
        let whole = RecordBatch::try_new(schema, columns)?;
        let groups = self.groups.values(&whole)?.iter().map(labels).collect::<Result<Vec<Vec<Label>>, _>>()?;
        let values = self.values(&whole)?;
        for (row, scored) in scored.iter_mut().enumerate() {
            scored.groups = groups.iter().map(|labels| labels[row].clone()).collect();
            scored.own = values.iter().map(|values| finite(values, row)).collect();
        }
        if let Some(further) = extra(trajectories, RecordKind::Trajectory, &scores.schema())? {
            scores = with_all(&scores, &further)?;
        }
        let mut own: Vec<(Field, ArrayRef)> = Vec::with_capacity(values.len());
        for ((name, ..), values) in self.measures.iter().zip(values) {
            own.push((Field::new(*name, DataType::Float64, true), Arc::new(values)));
        }
        // A measure replaces a column of the trajectories of the same name.
        with_columns(&scores, own)
    }

    fn values(&self, batch: &RecordBatch) -> Result<Vec<Float64Array>, OperatorError> {
        let mut measured = Vec::with_capacity(self.measures.len());
        for (name, measure, keys) in &self.measures {
            let columns = keys.values(batch)?;
            let column = columns.first().ok_or_else(|| OperatorError::engine("a measure without a column"))?;
            let kind = column.data_type();
            let (wanted, fits) = match measure {
                OwnMeasure::Share(_) => ("true or false", matches!(kind, DataType::Boolean | DataType::Null)),
                _ => ("a number", true),
            };
            let Some(values) = (if fits { numbers(column)? } else { None }) else {
                let message = format!("`{}`: `{}` is {kind}, not {wanted}", measure.path(name), measure.key());
                return Err(OperatorError::pipeline(message));
            };
            measured.push(values);
        }
        Ok(measured)
    }
}

/// Names of the means and shares.
pub(crate) fn names(measures: &OwnMeasures) -> Vec<String> {
    let means = measures.iter().filter(|(_, measure)| !matches!(measure, OwnMeasure::Quantile(_)));
    means.map(|(name, _)| name.clone()).collect()
}

/// Values of a row, in the order of [`names`].
pub(crate) fn values(row: &Scored, measures: &OwnMeasures) -> Vec<Option<f64>> {
    // A quantile is no mean of the rows' values.
    let means = measures.values().zip(&row.own).filter(|(measure, _)| !matches!(measure, OwnMeasure::Quantile(_)));
    means.map(|(_, value)| *value).collect()
}

/// Quantiles with intervals over questions. `rows` are sorted by question.
pub(crate) fn quantiles(rows: &[&Scored], measures: &OwnMeasures, bootstrap: &Bootstrap, stream: u64) -> Vec<Measure> {
    fn quantile_of<'r>(rows: impl Iterator<Item = &'r &'r Scored>, measure: usize, at: f64) -> Option<f64> {
        let mut values: Vec<f64> = rows.filter_map(|row| row.own[measure]).collect();
        values.sort_unstable_by(f64::total_cmp);
        quantile(&values, at)
    }
    let questions: Vec<&[&Scored]> = rows.chunk_by(|one, other| one.question_id == other.question_id).collect();
    let mut quantiles = Vec::new();
    for (index, (name, measure)) in measures.iter().enumerate() {
        let OwnMeasure::Quantile(QuantileOf { at, .. }) = measure else { continue };
        let Some(value) = quantile_of(rows.iter(), index, *at) else { continue };
        let ends = intervals(questions.len(), bootstrap, stream, |drawn| {
            vec![quantile_of(drawn.iter().flat_map(|question| questions[*question]), index, *at)]
        });
        let count = rows.iter().filter(|row| row.own[index].is_some()).count();
        quantiles.extend(ends.into_iter().map(|(low, high)| (name.clone(), Estimate { value, low, high, count })));
    }
    quantiles
}

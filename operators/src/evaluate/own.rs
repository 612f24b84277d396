//! The user's own measures, and the columns that scores are broken down by: columns or SQL expressions over the
//! trajectories and their scores.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use searchmill_schemas::{RecordKind, Score, to_batch};
use serde::{Deserialize, Serialize};

use super::scored::Scored;
use crate::shared::columns::{with_columns, with_fields};
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
    let of_evaluate = ['/', '@'].into_iter().find(|letter| name.contains(*letter));
    match of_evaluate {
        _ if name.is_empty() => Some("a measure without a name".to_owned()),
        Some(letter) => Some(format!("names with `{letter}` are those of `evaluate` itself")),
        None if is_taken(name) => Some(format!("`evaluate` has a figure `{name}`")),
        None if RecordKind::Score.schema().field_with_name(name).is_ok() => {
            Some(format!("`scores` has a column `{name}`"))
        }
        None => None,
    }
}

/// Returns what does not fit the columns of the trajectories.
pub(crate) fn column_issues(schema: &SchemaRef, group_by: &[String], measures: &OwnMeasures) -> Vec<ParamIssue> {
    let schema = scored_schema(schema);
    let mut issues = unknown_keys(&schema, "group_by", group_by);
    issues
        .extend(measures.iter().filter_map(|(name, measure)| unknown_key(&schema, &measure.path(name), measure.key())));
    if issues.is_empty() {
        issues.extend(unfit(&schema, measures));
    }
    issues
}

/// Returns an issue for each measure of values that are no numbers or booleans.
fn unfit(schema: &SchemaRef, measures: &OwnMeasures) -> Vec<ParamIssue> {
    let one = |(name, measure): (&String, &OwnMeasure)| {
        let alone = OwnMeasures::from([(name.clone(), measure.clone())]);
        Own::new(schema, &[], &alone).err().map(ParamIssue::from)
    };
    measures.iter().filter_map(one).collect()
}

/// The scores that expressions may name beside the columns of the trajectories, whose columns come first.
const SCORES: [&str; 7] = ["em", "f1", "acc", "precision", "recall", "success", "grounded"];

fn scored_schema(schema: &SchemaRef) -> SchemaRef {
    let scores = RecordKind::Score.schema();
    let lacking = SCORES.iter().filter(|name| schema.field_with_name(name).is_err());
    let new: Vec<Field> = lacking.filter_map(|name| scores.field_with_name(name).ok().cloned()).collect();
    with_fields(schema, &new)
}

/// Returns the columns of `scores`: those of the kind, those of the trajectories beyond their kind, and the measures.
pub(crate) fn output_schema(trajectories: &SchemaRef, measures: &OwnMeasures) -> SchemaRef {
    let own: Vec<Field> = further_fields(trajectories).into_iter().map(|(_, field)| field).collect();
    let measures: Vec<Field> = measures.keys().map(|name| Field::new(name, DataType::Float64, true)).collect();
    with_fields(&with_fields(&RecordKind::Score.schema(), &own), &measures)
}

/// Columns of the trajectories beyond their kind, with their places.
fn further_fields(schema: &Schema) -> Vec<(usize, Field)> {
    let (kind, score) = (RecordKind::Trajectory.schema(), RecordKind::Score.schema());
    let is_known = |name: &str| kind.field_with_name(name).is_ok() || score.field_with_name(name).is_ok();
    let fields = schema.fields().iter().enumerate().filter(|(_, field)| !is_known(field.name()));
    fields.map(|(place, field)| (place, field.as_ref().clone())).collect()
}

/// Keys of the params, bound to the columns of the trajectories.
pub(crate) struct Own<'a> {
    groups: Keys,
    measures: Vec<(&'a str, &'a OwnMeasure, Keys)>,
}

impl<'a> Own<'a> {
    pub(crate) fn new(
        trajectories: &SchemaRef,
        group_by: &[String],
        measures: &'a OwnMeasures,
    ) -> Result<Self, OperatorError> {
        let schema = scored_schema(trajectories);
        let bind = |(name, measure): (&'a String, &'a OwnMeasure)| {
            Ok((name.as_str(), measure, Keys::new(&schema, &measure.path(name), &[measure.key()])?))
        };
        let own = Self {
            groups: Keys::new(&schema, "group_by", group_by)?,
            measures: measures.iter().map(bind).collect::<Result<_, OperatorError>>()?,
        };
        own.values(&RecordBatch::new_empty(schema))?;
        Ok(own)
    }

    /// Completes the scored rows with their groups and measures, and returns their rows of `scores`. `kept` are the rows
    /// of these trajectories.
    pub(crate) fn complete(
        &self,
        kept: &RecordBatch,
        scored: &mut [Scored],
        rows: &[Score],
    ) -> Result<RecordBatch, OperatorError> {
        let scores = to_batch(rows)?;
        let schema = scored_schema(&kept.schema());
        let column = |field: &Arc<Field>| {
            let own = kept.column_by_name(field.name());
            let found = own.or_else(|| scores.column_by_name(field.name())).cloned();
            found.ok_or_else(|| OperatorError::engine(format!("the column `{}` is gone", field.name())))
        };
        let columns = schema.fields().iter().map(column).collect::<Result<Vec<ArrayRef>, _>>()?;
        let whole = RecordBatch::try_new(schema, columns)?;
        let groups = self.groups.values(&whole)?.iter().map(labels).collect::<Result<Vec<Vec<Label>>, _>>()?;
        let values = self.values(&whole)?;
        for (row, scored) in scored.iter_mut().enumerate() {
            scored.groups = groups.iter().map(|labels| labels[row].clone()).collect();
            scored.own = values.iter().map(|values| finite(values, row)).collect();
        }
        let further = further_fields(&kept.schema()).into_iter();
        let further = further.map(|(place, field)| (field, Arc::clone(kept.column(place)))).collect();
        let own = self
            .measures
            .iter()
            .zip(values)
            .map(|((name, ..), values)| (Field::new(*name, DataType::Float64, true), Arc::new(values) as ArrayRef));
        with_columns(&with_columns(&scores, further)?, own.collect())
    }

    fn values(&self, batch: &RecordBatch) -> Result<Vec<Float64Array>, OperatorError> {
        let values = |(name, measure, keys): &(&str, &OwnMeasure, Keys)| {
            let columns = keys.values(batch)?;
            let column = columns.first().ok_or_else(|| OperatorError::engine("a measure without a column"))?;
            let kind = column.data_type();
            let (wanted, fits) = match measure {
                OwnMeasure::Share(_) => ("true or false", matches!(kind, DataType::Boolean | DataType::Null)),
                _ => ("a number", true),
            };
            let values = if fits { numbers(column)? } else { None };
            values.ok_or_else(|| {
                let message = format!("`{}`: `{}` is {kind}, not {wanted}", measure.path(name), measure.key());
                OperatorError::pipeline(message)
            })
        };
        self.measures.iter().map(values).collect()
    }
}

/// Names of the means and shares.
pub(crate) fn names(measures: &OwnMeasures) -> impl Iterator<Item = String> {
    measures.iter().filter(|(_, measure)| !matches!(measure, OwnMeasure::Quantile(_))).map(|(name, _)| name.clone())
}

/// Values of a row, in the order of [`names`].
pub(crate) fn values(row: &Scored, measures: &OwnMeasures) -> impl Iterator<Item = Option<f64>> {
    let all = measures.values().zip(&row.own);
    all.filter(|(measure, _)| !matches!(measure, OwnMeasure::Quantile(_))).map(|(_, value)| *value)
}

/// Quantiles with intervals over questions. `rows` are sorted by question.
pub(crate) fn quantiles(rows: &[&Scored], measures: &OwnMeasures, bootstrap: &Bootstrap, stream: u64) -> Vec<Measure> {
    let questions: Vec<&[&Scored]> = rows.chunk_by(|one, other| one.question_id == other.question_id).collect();
    let measure = |(place, (name, measure)): (usize, (&String, &OwnMeasure))| {
        let OwnMeasure::Quantile(QuantileOf { at, .. }) = measure else { return None };
        let of = |drawn: &[usize]| {
            let rows = drawn.iter().flat_map(|place| questions[*place]);
            let mut values: Vec<f64> = rows.filter_map(|row| row.own[place]).collect();
            values.sort_unstable_by(f64::total_cmp);
            quantile(&values, *at)
        };
        let value = of(&(0..questions.len()).collect::<Vec<_>>())?;
        let (low, high) = intervals(questions.len(), bootstrap, stream, |drawn| vec![of(drawn)]).pop()?;
        let count = rows.iter().filter(|row| row.own[place].is_some()).count();
        Some((name.clone(), Estimate { value, low, high, count }))
    };
    measures.iter().enumerate().filter_map(measure).collect()
}

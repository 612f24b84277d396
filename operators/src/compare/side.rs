//! The answers of one system, averaged by question.

use std::hash::{DefaultHasher, Hash, Hasher};

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use indexmap::IndexMap;
use searchmill_engine::operator::{
    Context, InputArtifact, Inputs, OperatorError, Outputs, ParamIssue, RowsInput, Tables,
};
use searchmill_schemas::text_column;

use super::params::CompareParams;
use crate::shared::answered::{with_metric_fields, with_metrics};
use crate::shared::columns::{id_at, id_column};
use crate::shared::numbers::{finite, numbers};
use crate::shared::relation::{Keys, Label, labels};
use crate::shared::unfit::Unfit;

/// Most systems of one comparison.
const SYSTEMS: usize = 100;

/// A row of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Number of the input.
    pub(super) input: usize,
    /// Number of the row, from 0.
    pub(super) row: u64,
}

/// The answers of one system.
pub(super) struct Side {
    pub(super) name: String,
    /// By id, in the order of their first rows.
    pub(super) questions: IndexMap<String, Question>,
    pub(super) rows: u64,
    /// Rows without a value, by metric.
    pub(super) missing: Vec<u64>,
}

/// The samples of a question.
pub(super) struct Question {
    pub(super) samples: u32,
    /// Hash of its text, if the rows have one.
    pub(super) text: Option<u64>,
    /// Sum and number of the values of each metric.
    sums: Vec<(f64, u32)>,
    /// Rows with the lowest and the highest value of the first metric, or the first row.
    pub(super) ends: [Place; 2],
    range: Option<[f64; 2]>,
    /// Values of `group_by` in the first row.
    pub(super) groups: Vec<Label>,
}

impl Question {
    /// Mean of a metric over the samples that have it.
    pub(super) fn mean(&self, metric: usize) -> Option<f64> {
        let (sum, count) = self.sums[metric];
        (count > 0).then(|| sum / f64::from(count))
    }

    fn add(&mut self, values: &[Float64Array], row: usize, place: Place, missing: &mut [u64]) {
        self.samples += 1;
        for (metric, column) in values.iter().enumerate() {
            let Some(value) = finite(column, row) else {
                missing[metric] += 1;
                continue;
            };
            self.sums[metric] = (self.sums[metric].0 + value, self.sums[metric].1 + 1);
            if metric == 0 {
                self.widen(value, place);
            }
        }
    }

    fn widen(&mut self, value: f64, place: Place) {
        let [low, high] = self.range.unwrap_or([f64::INFINITY, f64::NEG_INFINITY]);
        if value < low {
            self.ends[0] = place;
        }
        if value > high {
            self.ends[1] = place;
        }
        self.range = Some([low.min(value), high.max(value)]);
    }
}

/// Hash of a text without its white space, in lower case.
fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.split_whitespace().for_each(|word| word.to_lowercase().hash(&mut hasher));
    hasher.finish()
}

/// Columns and expressions of the params, bound to the rows of one input.
struct Bound {
    on: Keys,
    by: Keys,
    system: Option<Keys>,
    groups: Option<Keys>,
}

impl Bound {
    fn new(params: &CompareParams, schema: &SchemaRef, with_groups: bool) -> Result<Self, OperatorError> {
        let bound = Self {
            on: Keys::new(schema, "on", &[&params.on])?,
            by: Keys::new(schema, "by", &params.keys())?,
            system: params.system.as_ref().map(|key| Keys::new(schema, "system", &[key])).transpose()?,
            groups: with_groups.then(|| Keys::new(schema, "group_by", &params.group_by)).transpose()?,
        };
        let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
        bound.numbers(&empty, params)?;
        bound.ids(&empty)?;
        Ok(bound)
    }

    fn numbers(&self, batch: &RecordBatch, params: &CompareParams) -> Result<Vec<Float64Array>, OperatorError> {
        let number = |(column, key): (ArrayRef, String)| {
            let wrong = || OperatorError::pipeline(format!("`by`: `{key}` is {}, not a number", column.data_type()));
            numbers(&column)?.ok_or_else(wrong)
        };
        self.by.values(batch)?.into_iter().zip(params.keys()).map(number).collect()
    }

    /// Returns the ids of the questions.
    fn ids(&self, batch: &RecordBatch) -> Result<StringArray, OperatorError> {
        let values = self.on.values(batch)?;
        let column = values.first().ok_or_else(|| OperatorError::engine("no column for the question"))?;
        let kind = column.data_type();
        let text = Some(cast(column, &DataType::Utf8)).filter(|_| !kind.is_nested()).and_then(Result::ok);
        let text = text.ok_or_else(|| OperatorError::pipeline(format!("`on`: {kind} is no text or number")))?;
        Ok(text.as_string::<i32>().clone())
    }

    fn labels(keys: Option<&Keys>, batch: &RecordBatch) -> Result<Vec<Vec<Label>>, OperatorError> {
        let Some(keys) = keys else { return Ok(Vec::new()) };
        keys.values(batch)?.iter().map(labels).collect()
    }
}

/// Returns an issue for each input whose values of `by` are no numbers, or whose `on` is no text or number.
pub(super) fn issues(params: &CompareParams, tables: &Tables) -> Vec<ParamIssue> {
    let issue = |(name, schema): (&String, &SchemaRef)| {
        let issue = ParamIssue::from(Bound::new(params, &with_metric_fields(schema), false).err()?);
        Some(ParamIssue { message: format!("input `{name}`: {}", issue.message), ..issue })
    };
    tables.iter().filter_map(issue).collect()
}

/// Reads the systems, sorted by name. Rows without a question are rejects.
pub(super) fn read(
    params: &CompareParams,
    inputs: &Inputs,
    outputs: &mut Outputs,
    context: &Context,
) -> Result<Vec<Side>, OperatorError> {
    let mut sides: Vec<(Label, Side)> = Vec::new();
    for (input, (name, artifacts)) in inputs.iter().enumerate() {
        let Some(InputArtifact::Rows(rows)) = artifacts.first() else { continue };
        let mut reader = Reader { params, input, sides: IndexMap::new() };
        if params.system.is_none() {
            reader.side(&Label::of_text(name));
        }
        reader.read(name, rows, outputs, context)?;
        sides.extend(reader.sides);
    }
    sides.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(sides.into_iter().map(|(_, side)| side).collect())
}

struct Reader<'a> {
    params: &'a CompareParams,
    input: usize,
    sides: IndexMap<Label, Side>,
}

impl Reader<'_> {
    fn side(&mut self, label: &Label) -> &mut Side {
        let metrics = self.params.by.len();
        let new = || Side { name: label.text.clone(), questions: IndexMap::new(), rows: 0, missing: vec![0; metrics] };
        if !self.sides.contains_key(label) {
            self.sides.insert(label.clone(), new());
        }
        &mut self.sides[label]
    }

    fn read(
        &mut self,
        name: &str,
        rows: &RowsInput,
        outputs: &mut Outputs,
        context: &Context,
    ) -> Result<(), OperatorError> {
        let with_groups = self.params.system.is_some() || name == self.params.base;
        let named =
            |error: OperatorError| OperatorError { message: format!("{} (input `{name}`)", error.message), ..error };
        let bound = Bound::new(self.params, &with_metric_fields(&rows.schema), with_groups).map_err(named)?;
        let mut start = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = with_metrics(&batch?)?;
            self.add(&batch, &bound, (name, start), outputs)?;
            start += batch.num_rows() as u64;
            context.progress().set(start, rows.rows, "rows");
        }
        Ok(())
    }

    fn add(
        &mut self,
        batch: &RecordBatch,
        bound: &Bound,
        (name, start): (&str, u64),
        outputs: &mut Outputs,
    ) -> Result<(), OperatorError> {
        let (questions, ids, values) = (bound.ids(batch)?, id_column(batch), bound.numbers(batch, self.params)?);
        let systems = Bound::labels(bound.system.as_ref(), batch)?.pop();
        let groups = Bound::labels(bound.groups.as_ref(), batch)?;
        let texts = text_column(batch, "question").ok();
        let (input, metrics) = (self.input, self.params.by.len());
        let mut rejects = Vec::new();
        for row in 0..batch.num_rows() {
            let place = Place { input, row: start + row as u64 };
            if questions.is_null(row) {
                let id = id_at(ids.as_ref(), row).unwrap_or_else(|| format!("{name}:{}", place.row));
                rejects.push(Unfit::new(format!("the row has no question: `{}` is null", self.params.on)).reject(id));
                continue;
            }
            let label = systems.as_ref().map_or_else(|| Label::of_text(name), |labels| labels[row].clone());
            let side = self.side(&label);
            side.rows += 1;
            let new = || Question {
                samples: 0,
                text: texts.filter(|texts| texts.is_valid(row)).map(|texts| hash(texts.value(row))),
                sums: vec![(0.0, 0); metrics],
                ends: [place; 2],
                range: None,
                groups: groups.iter().map(|labels| labels[row].clone()).collect(),
            };
            let question = side.questions.entry(questions.value(row).to_owned()).or_insert_with(new);
            question.add(&values, row, place, &mut side.missing);
        }
        outputs.write_rows("rejects", &rejects)?;
        if self.sides.len() > SYSTEMS {
            let message = format!("`system`: more than {SYSTEMS} values");
            return Err(OperatorError::pipeline(message).with_help("name a column with one value for each system"));
        }
        Ok(())
    }
}

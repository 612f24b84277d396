//! The answers of one system, averaged by question.

use std::hash::{DefaultHasher, Hash, Hasher};

use arrow::array::{Array, AsArray, Float64Array, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, SchemaRef};
use indexmap::IndexMap;
use searchmill_engine::operator::{
    Context, InputArtifact, Inputs, OperatorError, Outputs, ParamIssue, RowsInput, Tables,
};
use searchmill_schemas::{text_column, text_value};

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
    range: [f64; 2],
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
                // Of rows with the same value, the first one stays.
                let [low, high] = &mut self.range;
                if value < *low {
                    (*low, self.ends[0]) = (value, place);
                }
                if value > *high {
                    (*high, self.ends[1]) = (value, place);
                }
            }
        }
    }
}

/// Hash of a text without its white space, in lower case.
fn hash(text: &str) -> u64 {
    // Hashes are compared within one run only, so the algorithm may differ between Rust versions.
    let mut hasher = DefaultHasher::new();
    for word in text.split_whitespace() {
        word.to_lowercase().hash(&mut hasher);
    }
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
        // Types of expressions are known without rows, so that a wrong one fails before the first batch.
        bound.numbers(&empty, params)?;
        bound.ids(&empty)?;
        Ok(bound)
    }

    fn numbers(&self, batch: &RecordBatch, params: &CompareParams) -> Result<Vec<Float64Array>, OperatorError> {
        let columns = self.by.values(batch)?.into_iter().zip(params.keys()).map(|(column, key)| {
            numbers(&column)?.ok_or_else(|| {
                OperatorError::pipeline(format!("`by`: `{key}` is {}, not a number", column.data_type()))
            })
        });
        columns.collect()
    }

    /// Returns the ids of the questions.
    fn ids(&self, batch: &RecordBatch) -> Result<StringArray, OperatorError> {
        let values = self.on.values(batch)?;
        let column = values.first().ok_or_else(|| OperatorError::engine("no column for the question"))?;
        let kind = column.data_type();
        // Lists cast to texts too, but are no ids.
        match cast(column, &DataType::Utf8) {
            Ok(text) if !kind.is_nested() => Ok(text.as_string::<i32>().clone()),
            _ => Err(OperatorError::pipeline(format!("`on`: {kind} is no text or number"))),
        }
    }

    fn labels(keys: Option<&Keys>, batch: &RecordBatch) -> Result<Vec<Vec<Label>>, OperatorError> {
        let Some(keys) = keys else { return Ok(Vec::new()) };
        keys.values(batch)?.iter().map(labels).collect()
    }
}

/// Returns an issue for each input whose values of `by` are no numbers, or whose `on` is no text or number.
pub(super) fn issues(params: &CompareParams, tables: &Tables) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (name, schema) in tables {
        if let Err(error) = Bound::new(params, &with_metric_fields(schema), false) {
            let issue = ParamIssue::from(error);
            issues.push(ParamIssue { message: format!("input `{name}`: {}", issue.message), ..issue });
        }
    }
    issues
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
        let mut reader = Reader { params, input, name, sides: IndexMap::new() };
        // An input without rows is a system too.
        if params.system.is_none() {
            reader.side(&Label::of_text(name));
        }
        reader.read(rows, outputs, context)?;
        sides.extend(reader.sides);
    }
    // The number of a comparison selects its random stream, so it must not depend on the order of the rows.
    sides.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(sides.into_iter().map(|(_, side)| side).collect())
}

struct Reader<'a> {
    params: &'a CompareParams,
    input: usize,
    name: &'a str,
    sides: IndexMap<Label, Side>,
}

impl Reader<'_> {
    fn side(&mut self, label: &Label) -> &mut Side {
        // Not `entry`: it would copy the label for each row.
        if !self.sides.contains_key(label) {
            let missing = vec![0; self.params.by.len()];
            let side = Side { name: label.text.clone(), questions: IndexMap::new(), rows: 0, missing };
            self.sides.insert(label.clone(), side);
        }
        &mut self.sides[label]
    }

    fn read(&mut self, rows: &RowsInput, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let (params, input, name) = (self.params, self.input, self.name);
        let with_groups = params.system.is_some() || name == params.base;
        let bound = Bound::new(params, &with_metric_fields(&rows.schema), with_groups);
        let bound = bound.map_err(|error| {
            let message = format!("{} (input `{name}`)", error.message);
            OperatorError { message, ..error }
        })?;
        let mut start = 0;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = with_metrics(&batch?)?;
            let (questions, ids, values) = (bound.ids(&batch)?, id_column(&batch), bound.numbers(&batch, params)?);
            let systems = Bound::labels(bound.system.as_ref(), &batch)?.pop();
            let groups = Bound::labels(bound.groups.as_ref(), &batch)?;
            let texts = text_column(&batch, "question").ok();
            let mut rejects = Vec::new();
            for row in 0..batch.num_rows() {
                let place = Place { input, row: start + row as u64 };
                if questions.is_null(row) {
                    let id = id_at(ids.as_ref(), row).unwrap_or_else(|| format!("{name}:{}", place.row));
                    rejects.push(Unfit::new(format!("the row has no question: `{}` is null", params.on)).reject(id));
                    continue;
                }
                let side = match &systems {
                    Some(labels) => self.side(&labels[row]),
                    None => self.side(&Label::of_text(name)),
                };
                side.rows += 1;
                let question = side.questions.entry(questions.value(row).to_owned()).or_insert_with(|| Question {
                    samples: 0,
                    text: texts.and_then(|texts| text_value(texts, row)).map(hash),
                    sums: vec![(0.0, 0); params.by.len()],
                    ends: [place; 2],
                    range: [f64::INFINITY, f64::NEG_INFINITY],
                    groups: groups.iter().map(|labels| labels[row].clone()).collect(),
                });
                question.add(&values, row, place, &mut side.missing);
            }
            outputs.write_rows("rejects", &rejects)?;
            // After each batch: a column of ids as `system` would otherwise fill the memory first.
            if self.sides.len() > SYSTEMS {
                let message = format!("`system`: more than {SYSTEMS} values");
                return Err(OperatorError::pipeline(message).with_help("name a column with one value for each system"));
            }
            start += batch.num_rows() as u64;
            context.progress().set(start, rows.rows, "rows");
        }
        Ok(())
    }
}

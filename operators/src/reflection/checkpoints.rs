//! Reads the responses of each checkpoint.

use arrow::array::RecordBatch;
use indexmap::{IndexMap, IndexSet};
use rayon::prelude::*;
use searchmill_engine::operator::{Context, InputArtifact, Inputs, OperatorError, RowsInput};
use searchmill_schemas::{Trajectory, from_batch};
use searchmill_text::lexicon::Lexicon;

use super::params::ReflectionParams;
use super::response::Response;
use crate::shared::relation::Grouping;

/// Port of the trajectories.
pub(crate) const TRAJECTORIES: &str = "trajectories";

/// A measured response with its place.
pub(crate) struct Row {
    /// Index into [`Responses::checkpoints`].
    pub(crate) checkpoint: usize,
    /// Number of the data set.
    pub(crate) dataset: usize,
    pub(crate) response: Response,
}

/// All responses.
#[derive(Default)]
pub(crate) struct Responses {
    /// Training step of each checkpoint, by name: in the order of the steps if all are known, otherwise in the order of
    /// the rows.
    pub(crate) checkpoints: IndexMap<String, Option<f64>>,
    /// Names of the data sets.
    pub(crate) datasets: IndexSet<String>,
    pub(crate) rows: Vec<Row>,
}

impl Responses {
    /// Reads and measures all inputs.
    pub(crate) fn read(
        params: &ReflectionParams,
        lexicon: &Lexicon,
        inputs: &Inputs,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let mut all = Self::default();
        let mut tables = Vec::new();
        for input in inputs.many(TRAJECTORIES) {
            if let InputArtifact::Rows(rows) = input {
                tables.push(rows);
            }
        }
        let (names, inputs) = (params.checkpoints.len(), tables.len());
        if names != 0 && names != inputs {
            let message = format!("`checkpoints` names {names} inputs, but {inputs} are connected to `{TRAJECTORIES}`");
            return Err(OperatorError::pipeline(message).with_help("write one entry for each input, in their order"));
        }
        let whole = tables.iter().map(|table| table.rows).sum();
        for (index, table) in tables.into_iter().enumerate() {
            let mut data = Values::optional(table, "dataset", params.dataset.as_ref())?;
            let (mut by, mut step) = if let Some(named) = params.checkpoints.get(index) {
                (Values::Same(named.name.clone()), Values::Same(step_text(named.step)))
            } else {
                let by = Values::of(table, "by", &params.keys())?;
                (by, Values::optional(table, "step", params.step.as_ref())?)
            };
            for batch in table.batches() {
                context.check_cancelled()?;
                let batch = batch?;
                let (names, datasets, steps) = (by.values(&batch)?, data.values(&batch)?, step.values(&batch)?);
                let rows = from_batch::<Trajectory>(&batch)?.into_par_iter();
                let responses: Vec<Response> = rows.map(|row| Response::of(row, lexicon, params.score)).collect();
                for (((response, name), step), dataset) in responses.into_iter().zip(names).zip(steps).zip(datasets) {
                    let checkpoint = all.checkpoint(name, number(&step)?)?;
                    let dataset = all.datasets.insert_full(dataset).0;
                    all.rows.push(Row { checkpoint, dataset, response });
                }
                context.progress().set(all.rows.len() as u64, whole, "trajectories");
            }
        }
        all.sort_by_step();
        Ok(all)
    }

    /// Returns the place of a checkpoint; an error if it has two steps.
    fn checkpoint(&mut self, name: String, step: Option<f64>) -> Result<usize, OperatorError> {
        let known = match self.checkpoints.get_full(&name) {
            Some((index, _, known)) if *known == step => return Ok(index),
            Some((.., known)) => *known,
            None => return Ok(self.checkpoints.insert_full(name, step).0),
        };
        let [known, step] = [known, step].map(step_text);
        let message = format!("the checkpoint `{name}` has the steps {known} and {step}");
        Err(OperatorError::pipeline(message).with_help("name a column in `by` that tells them apart"))
    }

    fn sort_by_step(&mut self) {
        // One checkpoint without a step leaves all in the order of their rows.
        let Some(steps) = self.checkpoints.values().copied().collect::<Option<Vec<f64>>>() else { return };
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by(|a, b| steps[*a].total_cmp(&steps[*b]));
        let mut indices = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            indices[*old] = new;
        }
        for row in &mut self.rows {
            row.checkpoint = indices[row.checkpoint];
        }
        // Stable as the sort above: checkpoints with the same step keep their order in both.
        self.checkpoints.sort_by(|_, a, _, b| a.unwrap_or_default().total_cmp(&b.unwrap_or_default()));
    }
}

/// Reads a step, as [`Values`] writes it.
fn number(text: &str) -> Result<Option<f64>, OperatorError> {
    if text == "null" {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(step) if step.is_finite() => Ok(Some(step)),
        _ => Err(OperatorError::pipeline(format!("`step`: `{text}` is not a number"))),
    }
}

/// Writes a step, as [`number`] reads it.
fn step_text(step: Option<f64>) -> String {
    step.map_or("null".to_owned(), |step| step.to_string())
}

/// A text for each row: the same for all, or the values of columns and expressions joined by `/`, NULL as `null`.
enum Values {
    Same(String),
    Of(Box<Grouping>),
}

impl Values {
    fn of(table: &RowsInput, param: &str, expressions: &[String]) -> Result<Self, OperatorError> {
        Ok(Self::Of(Box::new(Grouping::new(&table.schema, param, expressions)?)))
    }

    fn optional(table: &RowsInput, param: &str, expression: Option<&String>) -> Result<Self, OperatorError> {
        match expression {
            Some(expression) => Self::of(table, param, std::slice::from_ref(expression)),
            None => Ok(Self::Same("null".to_owned())),
        }
    }

    fn values(&mut self, batch: &RecordBatch) -> Result<Vec<String>, OperatorError> {
        match self {
            Self::Same(text) => Ok(vec![text.clone(); batch.num_rows()]),
            Self::Of(grouping) => {
                let places = grouping.assign(batch)?;
                let labels: Vec<&String> = grouping.labels().collect();
                Ok(places.into_iter().map(|place| labels[place as usize].clone()).collect())
            }
        }
    }
}

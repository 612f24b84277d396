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
        let tables: Vec<&RowsInput> = inputs.many(TRAJECTORIES).iter().filter_map(table).collect();
        require_names(params, tables.len())?;
        let whole = tables.iter().map(|table| table.rows).sum();
        for (place, table) in tables.into_iter().enumerate() {
            let mut keys = Keys::new(params, place, table)?;
            for batch in table.batches() {
                context.check_cancelled()?;
                all.add(&batch?, &mut keys, params, lexicon)?;
                context.progress().set(all.rows.len() as u64, whole, "trajectories");
            }
        }
        all.sort_by_step();
        Ok(all)
    }

    fn add(
        &mut self,
        batch: &RecordBatch,
        keys: &mut Keys,
        params: &ReflectionParams,
        lexicon: &Lexicon,
    ) -> Result<(), OperatorError> {
        let (names, datasets) = (keys.checkpoint.values(batch)?, keys.dataset.values(batch)?);
        let steps = keys.step.values(batch)?;
        let measure = |row: Trajectory| Response::of(row, lexicon, params.score);
        let responses: Vec<Response> = from_batch::<Trajectory>(batch)?.into_par_iter().map(measure).collect();
        for (((response, name), step), dataset) in responses.into_iter().zip(names).zip(steps).zip(datasets) {
            let checkpoint = self.checkpoint(name, number(&step)?)?;
            let dataset = self.datasets.insert_full(dataset).0;
            self.rows.push(Row { checkpoint, dataset, response });
        }
        Ok(())
    }

    /// Returns the place of a checkpoint; an error if it has two steps.
    fn checkpoint(&mut self, name: String, step: Option<f64>) -> Result<usize, OperatorError> {
        let (place, known) = match self.checkpoints.get_full(&name) {
            Some((place, _, known)) => (place, *known),
            None => return Ok(self.checkpoints.insert_full(name, step).0),
        };
        if known == step {
            return Ok(place);
        }
        let shown = |step: Option<f64>| step.map_or("null".to_owned(), |step| step.to_string());
        let message = format!("the checkpoint `{name}` has the steps {} and {}", shown(known), shown(step));
        Err(OperatorError::pipeline(message).with_help("name a column in `by` that tells them apart"))
    }

    fn sort_by_step(&mut self) {
        let Some(steps) = self.checkpoints.values().copied().collect::<Option<Vec<f64>>>() else { return };
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by(|a, b| steps[*a].total_cmp(&steps[*b]));
        let mut place = vec![0; order.len()];
        for (new, old) in order.iter().enumerate() {
            place[*old] = new;
        }
        for row in &mut self.rows {
            row.checkpoint = place[row.checkpoint];
        }
        self.checkpoints.sort_by(|_, a, _, b| a.unwrap_or_default().total_cmp(&b.unwrap_or_default()));
    }
}

fn table(input: &InputArtifact) -> Option<&RowsInput> {
    match input {
        InputArtifact::Rows(rows) => Some(rows),
        InputArtifact::Tree(_) => None,
    }
}

fn require_names(params: &ReflectionParams, inputs: usize) -> Result<(), OperatorError> {
    let names = params.checkpoints.len();
    if names == 0 || names == inputs {
        return Ok(());
    }
    let message = format!("`checkpoints` names {names} inputs, but {inputs} are connected to `{TRAJECTORIES}`");
    Err(OperatorError::pipeline(message).with_help("write one entry for each input, in their order"))
}

/// Reads a step, as [`Values`] writes it.
fn number(text: &str) -> Result<Option<f64>, OperatorError> {
    if text == "null" {
        return Ok(None);
    }
    let wrong = || OperatorError::pipeline(format!("`step`: `{text}` is not a number"));
    text.parse().ok().filter(|step: &f64| step.is_finite()).map(Some).ok_or_else(wrong)
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

/// What tells the rows of one input apart.
struct Keys {
    checkpoint: Values,
    step: Values,
    dataset: Values,
}

impl Keys {
    fn new(params: &ReflectionParams, place: usize, table: &RowsInput) -> Result<Self, OperatorError> {
        let optional = |param: &str, text: &Option<String>| match text {
            Some(text) => Values::of(table, param, std::slice::from_ref(text)),
            None => Ok(Values::Same("null".to_owned())),
        };
        let dataset = optional("dataset", &params.dataset)?;
        if let Some(named) = params.checkpoints.get(place) {
            let step = named.step.map_or("null".to_owned(), |step| step.to_string());
            return Ok(Self { checkpoint: Values::Same(named.name.clone()), step: Values::Same(step), dataset });
        }
        let checkpoint = Values::of(table, "by", &params.keys())?;
        Ok(Self { checkpoint, step: optional("step", &params.step)?, dataset })
    }
}

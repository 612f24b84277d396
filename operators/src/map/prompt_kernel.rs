//! Asks the model about one row at a time.

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_agent::policy::{ChatModel, RowSample};
use searchmill_agent::prompt::{Asked, Output, Prompts, Unfit, ask};
use searchmill_engine::operator::{AsyncMapKernel, Context, FailureKind, OperatorError, RowFailure, RowOutput};
use searchmill_schemas::text_column;

use super::params::ROWS;
use super::rows::{OutputRows, json_objects, json_texts};
use crate::shared::until::Passing;

/// Asks, reads the answer, and asks again if it does not fit.
pub(super) struct PromptKernel {
    pub(super) prompts: Prompts,
    pub(super) output: Output,
    pub(super) rows: OutputRows,
    pub(super) model: Box<dyn ChatModel>,
    /// The predicate of `until`.
    pub(super) passing: Option<Passing>,
    pub(super) samples: u32,
    pub(super) repairs: u32,
}

fn failed(message: String) -> RowFailure {
    RowFailure::new(FailureKind::Data, message)
}

impl AsyncMapKernel for PromptKernel {
    fn samples(&self) -> u32 {
        self.samples
    }

    fn reads(&self) -> Vec<String> {
        self.prompts.names()
    }

    fn label(&self, row: &RecordBatch, sample: u32, mut output: RowOutput) -> Option<RowOutput> {
        for (_, rows) in &mut output.batches {
            *rows = self.rows.label(row, sample, rows)?;
        }
        Some(output)
    }

    fn counts(&self, output: &RowOutput) -> Result<u64, OperatorError> {
        let Some(passing) = &self.passing else { return Ok(0) };
        output.batches.iter().map(|(_, rows)| passing.count(rows)).sum()
    }

    /// A row without an id is known by its content.
    fn said(&self, rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        if !self.rows.has_ids() {
            let names: Vec<String> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
            return Ok(json_texts(rows, &names)?.into_iter().map(|row| (row, String::new())).collect());
        }
        let names: Vec<String> = self.output.fields().iter().map(|field| field.name().clone()).collect();
        let ids = text_column(rows, "id")?.iter().map(|id| id.unwrap_or_default().to_owned());
        Ok(ids.zip(json_texts(rows, &names)?).collect())
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let cells = json_objects(row, &self.prompts.names()).map_err(|error| failed(error.message))?;
            let cells = cells.into_iter().next().unwrap_or_default();
            let described = self.output.described();
            let messages = self.prompts.render(&cells, described).map_err(failed)?;
            // A model in this process seeds its sampling by its prompt: equal prompts draw the same answer.
            let prompt: String = messages.iter().map(|message| message.content.as_str()).collect();
            let drawn = RowSample { row: &prompt, number: sample, context };
            let (model, repairs) = (self.model.as_ref(), self.repairs);
            let asked = ask(model, drawn, messages, described, repairs, |answer| self.output.read(answer.text));
            let Asked { answer, usage } = asked.await?;
            // The calls are paid for, whether their answer can be used or not.
            let answers = answer.map_err(|Unfit { message, detail }| {
                let failure = RowFailure::new(FailureKind::BadResponse, message);
                RowFailure { detail: Some(detail), usage, ..failure }
            })?;
            match self.rows.make(row, sample, &answers) {
                Ok(made) => Ok(RowOutput { batches: vec![(ROWS.to_owned(), made)], usage }),
                Err(error) => Err(RowFailure { usage, ..failed(error.message) }),
            }
        }
        .boxed()
    }
}

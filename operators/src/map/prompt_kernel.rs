//! Asks the model about one row at a time.

use arrow::array::RecordBatch;
use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_agent::policy::Policy;
use searchmill_agent::prompt::{Asked, Output, Prompts, Unfit, ask};
use searchmill_engine::operator::{AsyncMapKernel, Context, FailureKind, OperatorError, RowFailure, RowOutput, Usage};
use searchmill_schemas::{Message, Question, text_column};
use serde_json::{Map, Value};

use super::cells;
use super::params::ROWS;
use super::rows::MadeRows;
use crate::shared::until::Passing;

/// Asks, reads the answer, and asks again if it does not fit.
pub(super) struct PromptKernel {
    pub(super) prompts: Prompts,
    pub(super) output: Output,
    pub(super) made: MadeRows,
    pub(super) policy: Box<dyn Policy>,
    /// The predicate of `until`.
    pub(super) passing: Option<Passing>,
    pub(super) samples: u32,
    pub(super) repairs: u32,
}

impl PromptKernel {
    /// Returns the answer of one sample as rows, with the usage of all calls.
    async fn answer(
        &self,
        messages: Vec<Message>,
        sample: u32,
        context: &Context,
    ) -> Result<(Vec<Map<String, Value>>, Usage), RowFailure> {
        // A model in this process seeds its sampling by the id: equal prompts are equal questions.
        let id: String = messages.iter().map(|message| message.content.as_str()).collect();
        let question = Question { question: id.clone(), id, ..Question::default() };
        let (mut actor, prices) = (self.policy.begin(&question, sample, context), self.policy.prices());
        let described = self.output.described();
        let Asked { answer, usage } =
            ask(actor.as_mut(), &prices, messages, described, self.repairs, |answer| self.output.read(answer.text))
                .await?;
        let unfit = |Unfit { message, detail }| RowFailure {
            detail: Some(detail),
            usage,
            ..RowFailure::new(FailureKind::BadResponse, message)
        };
        answer.map(|rows| (rows, usage)).map_err(unfit)
    }
}

impl AsyncMapKernel for PromptKernel {
    fn samples(&self) -> u32 {
        self.samples
    }

    fn reads(&self) -> Vec<String> {
        self.prompts.names()
    }

    fn label(&self, row: &RecordBatch, sample: u32, output: RowOutput) -> Option<RowOutput> {
        let batches = output.batches.iter();
        let labelled = batches.map(|(port, made)| Some((port.clone(), self.made.label(row, sample, made)?)));
        Some(RowOutput { batches: labelled.collect::<Option<_>>()?, usage: output.usage })
    }

    fn counts(&self, output: &RowOutput) -> Result<u64, OperatorError> {
        let Some(passing) = &self.passing else { return Ok(0) };
        output.batches.iter().map(|(_, rows)| passing.count(rows)).sum()
    }

    /// A row without an id is known by its content.
    fn said(&self, rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        let names = |schema: &arrow::datatypes::Schema| {
            schema.fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>()
        };
        let shown = |columns: &[String]| -> Result<Vec<String>, OperatorError> {
            let objects = cells::objects(rows, columns)?;
            Ok(objects.into_iter().map(|object| Value::Object(object).to_string()).collect())
        };
        if !self.made.has_ids() {
            return Ok(shown(&names(&rows.schema()))?.into_iter().map(|row| (row, String::new())).collect());
        }
        let ids = text_column(rows, "id")?.iter().map(|id| id.unwrap_or_default().to_owned());
        Ok(ids.zip(shown(&names(self.output.columns()))?).collect())
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let unusable = |message: String| RowFailure::new(FailureKind::Data, message);
            let cells = cells::objects(row, &self.prompts.names()).map_err(|error| unusable(error.message))?;
            let cells = cells.into_iter().next().unwrap_or_default();
            let messages = self.prompts.render(&cells, self.output.described()).map_err(unusable)?;
            let (answers, usage) = self.answer(messages, sample, context).await?;
            let made = self.made.make(row, sample, &answers).map_err(|error| {
                let mut failure = unusable(error.message);
                failure.usage = usage;
                failure
            })?;
            Ok(RowOutput { batches: vec![(ROWS.to_owned(), made)], usage })
        }
        .boxed()
    }
}

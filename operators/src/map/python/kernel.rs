//! Calls the function: with the rows of a part side by side, or with one row that is remembered.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::{Array, RecordBatch};
use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_data::python::{Called, CalledBatch, Failure, JsonRows, Pool, Why};
use searchmill_engine::operator::{
    AsyncMapKernel, Blame, Context, FailureKind, MapKernel, MapOutput, OperatorError, RowFailure, RowOutput, Usage,
};
use searchmill_schemas::{Reject, text_column};
use serde_json::Value;

use super::output_rows::{PythonRows, ReturnedRow};
use crate::map::params::ROWS;
use crate::map::rows::json_objects;
use crate::shared::until::Passing;

/// How often a waiting row checks for cancellation.
const STEP: Duration = Duration::from_millis(200);
/// Longest id of a rejected row without an `id`, in characters.
const LONGEST_ID: usize = 80;

/// The processes, and how rows are made of what they return.
pub(super) struct Calls {
    pub(super) pool: Pool,
    pub(super) made: PythonRows,
    /// Places of the columns that are passed.
    pub(super) columns: Vec<usize>,
}

impl Calls {
    /// Calls the function with each row. Returns the rows that were made, and the failures with their rows.
    fn call(&self, batch: &RecordBatch) -> Result<(RecordBatch, Vec<(usize, Failure)>), OperatorError> {
        let called = self.pool.call(&JsonRows::of(&batch.project(&self.columns)?)?)?;
        let (mut made, mut failed) = (Vec::new(), Vec::new());
        for (row, called) in called.into_iter().enumerate() {
            let objects = match called {
                Called::Row(object) => vec![ReturnedRow { row, place: None, object }],
                Called::Rows(objects) => {
                    let rows = objects.into_iter().enumerate();
                    rows.map(|(place, object)| ReturnedRow { row, place: Some(place), object }).collect()
                }
                Called::Failed(failure) => {
                    failed.push((row, failure));
                    continue;
                }
            };
            match self.made.checked(objects)? {
                Ok(objects) => made.extend(objects),
                Err(message) => failed.push((row, Failure { why: Why::Unfit, message, detail: None })),
            }
        }
        Ok((self.made.make(batch, &made)?, failed))
    }
}

/// Rows of a part of the input, in messages of many rows, or as Arrow batches.
pub(super) struct Parts {
    pub(super) calls: Calls,
    /// Rows of a batch; `None`: the function takes rows.
    pub(super) batch: Option<usize>,
}

impl MapKernel for Parts {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let Some(most) = self.batch else {
            let (made, failed) = self.calls.call(batch)?;
            output.push(ROWS, made);
            for (row, failure) in failed {
                output.reject(reject(&batch.slice(row, 1), failure));
            }
            return Ok(());
        };
        for start in (0..batch.num_rows()).step_by(most) {
            self.batch(&batch.slice(start, most.min(batch.num_rows() - start)), output)?;
        }
        Ok(())
    }
}

impl Parts {
    /// Calls the function with a batch; if it raises an exception or is lost, with each of its rows, to find those that
    /// fail.
    fn batch(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        match self.calls.pool.call_batch(batch)? {
            CalledBatch::Rows(batches) => {
                for made in batches {
                    output.push(ROWS, self.calls.made.of_batch(&made)?);
                }
            }
            // The function would be wrong for every batch, and called with one row it may seem right.
            CalledBatch::Failed(failure) if failure.why == Why::Unfit => {
                let help = "the function gets and returns whole batches; without `batch` it gets rows";
                return Err(OperatorError::pipeline(failure.message).with_help(help));
            }
            CalledBatch::Failed(failure) if batch.num_rows() == 1 => output.reject(reject(batch, failure)),
            CalledBatch::Failed(_) => {
                for row in 0..batch.num_rows() {
                    self.batch(&batch.slice(row, 1), output)?;
                }
            }
        }
        Ok(())
    }
}

/// One row at a time; each is remembered.
pub(super) struct EachRow {
    calls: Arc<Calls>,
    reads: Vec<String>,
    /// The predicate of `until`.
    passing: Option<Passing>,
    fault: Arc<Mutex<Option<OperatorError>>>,
}

impl EachRow {
    /// `passed` are the columns that the function takes.
    pub(super) fn new(mut calls: Calls, passed: Vec<String>, passing: Option<Passing>) -> Self {
        let reads = calls.made.read(passed);
        Self { calls: Arc::new(calls), reads, passing, fault: Arc::default() }
    }

    /// Calls the function once, on a thread that may wait.
    async fn once(&self, row: &RecordBatch) -> Result<RecordBatch, RowFailure> {
        if let Some(error) = self.fault() {
            return Err(RowFailure::new(FailureKind::Cancelled, error.message));
        }
        let (calls, row) = (Arc::clone(&self.calls), row.clone());
        let called = tokio::task::spawn_blocking(move || calls.call(&row)).await;
        let called = called.unwrap_or_else(|_| Err(OperatorError::engine("a call's thread panicked")));
        match called {
            Ok((made, failed)) => match failed.into_iter().next() {
                None => Ok(made),
                Some((_, Failure { why, message, detail })) => {
                    Err(RowFailure { detail, ..RowFailure::new(why.kind(), message) })
                }
            },
            Err(error) => {
                let message = error.message.clone();
                // The first error fails the node; rows that come later are not called.
                if error.blame != Blame::Cancelled {
                    self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
                // Postponed, not rejected: the node fails, and the next run calls this row again.
                Err(RowFailure::new(FailureKind::Cancelled, message))
            }
        }
    }
}

impl AsyncMapKernel for EachRow {
    fn reads(&self) -> Vec<String> {
        self.reads.clone()
    }

    fn label(&self, row: &RecordBatch, _sample: u32, mut output: RowOutput) -> Option<RowOutput> {
        for (_, rows) in &mut output.batches {
            *rows = self.calls.made.label(row, rows)?;
        }
        Some(output)
    }

    fn counts(&self, output: &RowOutput) -> Result<u64, OperatorError> {
        let Some(passing) = &self.passing else { return Ok(0) };
        output.batches.iter().map(|(_, rows)| passing.count(rows)).sum()
    }

    fn fault(&self) -> Option<OperatorError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        _sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let retry = context.retry();
            // An exception is repeated only if the pipeline asks for it.
            let most = if retry.stated { retry.max_attempts } else { 1 };
            let mut attempt = 1;
            loop {
                match self.once(row).await {
                    Ok(made) => {
                        return Ok(RowOutput { batches: vec![(ROWS.to_owned(), made)], usage: Usage::default() });
                    }
                    Err(failure) if failure.kind.is_postponed() || attempt >= most => {
                        return Err(RowFailure { attempts: attempt, ..failure });
                    }
                    Err(_) => attempt += 1,
                }
                let mut left = retry.wait(attempt, None);
                // In short steps: an interrupted run must not wait for the end of a long backoff.
                while !left.is_zero() {
                    if context.is_draining() {
                        return Err(RowFailure::new(FailureKind::Cancelled, "interrupted"));
                    }
                    let step = left.min(STEP);
                    tokio::time::sleep(step).await;
                    left -= step;
                }
            }
        }
        .boxed()
    }
}

fn reject(row: &RecordBatch, failure: Failure) -> Reject {
    let kind = failure.why.kind().name().to_owned();
    Reject { id: id_of(row), kind, message: failure.message, attempts: 1, detail: failure.detail }
}

/// Returns the id of a row; the start of its content if it has none.
fn id_of(row: &RecordBatch) -> String {
    if let Ok(ids) = text_column(row, "id")
        && ids.is_valid(0)
    {
        return ids.value(0).to_owned();
    }
    let names: Vec<String> = row.schema().fields().iter().map(|field| field.name().clone()).collect();
    let content = json_objects(row, &names);
    let content = content.ok().and_then(|mut rows| rows.pop()).map(Value::Object).unwrap_or_default().to_string();
    content.chars().take(LONGEST_ID).collect()
}

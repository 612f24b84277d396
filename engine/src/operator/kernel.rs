//! The four kinds of kernel: what an opened operator can do.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::future::BoxFuture;
use searchmill_schemas::{Record, Reject, SchemaError, to_batch};

use super::context::Context;
use super::error::OperatorError;
use super::failure::RowFailure;
use super::money::Usage;
use super::rows::{Inputs, Outputs};

/// An opened operator. What may run concurrently is a type, not a promise.
pub enum Kernel {
    /// Row 7 needs nothing of row 8: batches of the main input run in parallel, output stays in input order.
    Map(Arc<dyn MapKernel>),
    /// The same, asynchronous and one row at a time: for calls to the outside. Memoised by row.
    AsyncMap(Arc<dyn AsyncMapKernel>),
    /// A relational plan over the inputs.
    Query(Box<dyn QueryKernel>),
    /// Needs everything at once, or makes everything (sources, indexes, reports, training).
    Blocking(Box<dyn BlockingKernel>),
}

/// A row-wise kernel over batches.
pub trait MapKernel: Send + Sync {
    /// Maps one batch of the main input. Must give the same rows however the input is cut into batches.
    ///
    /// # Errors
    /// Fails the node; a bad row goes to [`MapOutput::reject`] instead.
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError>;
}

/// What a [`MapKernel`] gives for one batch.
#[derive(Default)]
pub struct MapOutput {
    /// Rows by output port.
    pub batches: Vec<(String, RecordBatch)>,
    /// Rows that failed.
    pub rejects: Vec<Reject>,
}

impl MapOutput {
    /// Rows for a port.
    pub fn push(&mut self, port: &str, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.batches.push((port.to_owned(), batch));
        }
    }

    /// Row structs for a port.
    ///
    /// # Errors
    /// See [`to_batch`].
    pub fn push_rows<R: Record>(&mut self, port: &str, rows: &[R]) -> Result<(), SchemaError> {
        self.push(port, to_batch(rows)?);
        Ok(())
    }

    /// A row that failed.
    pub fn reject(&mut self, reject: Reject) {
        self.rejects.push(reject);
    }
}

/// A kernel that works on one row at a time and waits for the outside.
pub trait AsyncMapKernel: Send + Sync {
    /// How often each row is run; the sample's number is part of the row's key.
    fn samples(&self) -> u32 {
        1
    }

    /// The columns that decide a row's result: only they enter the row's key. What is merely copied into the result
    /// (ids, labels) is not among them, see [`AsyncMapKernel::label`].
    fn reads(&self) -> Vec<String>;

    /// A remembered result of a row with equal [`AsyncMapKernel::reads`], with what is copied from the row taken from this one.
    /// `None` when it cannot be this row's result.
    fn label(&self, _row: &RecordBatch, _sample: u32, output: RowOutput) -> Option<RowOutput> {
        Some(output)
    }

    /// Of rows that it gave: the id of each, and what came from the outside in it, as text. Audits compare that with the
    /// answers that were kept.
    ///
    /// # Errors
    /// When they are no rows of this operator.
    fn said(&self, _rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        Ok(Vec::new())
    }

    /// Runs one row (a batch of one). Retries of single calls are its own affair ([`Context::retry`]).
    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>>;
}

/// What the rows of an operator with a [`AsyncMapKernel`] are, known from its params alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowShape {
    /// [`AsyncMapKernel::reads`].
    pub columns: Vec<String>,
    /// [`AsyncMapKernel::samples`].
    pub samples: u32,
}

/// What a [`AsyncMapKernel`] gives for one row.
#[derive(Clone, Debug, Default)]
pub struct RowOutput {
    /// Rows by output port.
    pub batches: Vec<(String, RecordBatch)>,
    /// What it cost.
    pub usage: Usage,
}

/// A kernel that is a relational plan.
pub trait QueryKernel: Send + Sync {
    /// Plans over the inputs, which are registered in `session` as tables named like their ports.
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>>;

    /// The input of which each row is expected once in the result: the run reports when there are more. Without one,
    /// it reports joins that give more rows than either side has.
    fn expects_once(&self) -> Option<&str> {
        None
    }

    /// Whether the plan puts its rows into an order of their own at the end. Other results depend on the memory limit once
    /// it was reached, and are recorded as not repeatable then.
    fn restores_order(&self) -> bool {
        false
    }
}

/// Names of the tables registered for a query.
#[derive(Clone, Debug, Default)]
pub struct QueryInputs {
    /// Port names, in the order of the ports; one table each.
    pub tables: Vec<String>,
}

/// One output of a query. It runs on one partition, so rows come in the plan's own order.
pub struct QueryOutput {
    /// The output port.
    pub port: String,
    /// Its rows.
    pub frame: DataFrame,
}

/// A kernel that needs everything at once.
pub trait BlockingKernel: Send + Sync {
    /// Runs on a blocking thread: use [`Context::block_on`] for asynchronous work and `rayon` for parallel work.
    ///
    /// # Errors
    /// Fails the node.
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError>;
}

//! The four kinds of kernel.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_schemas::{Record, Reject, SchemaError, to_batch};

use super::context::Context;
use super::goal::Goal;
use super::rows::{Inputs, Outputs};
use crate::endpoint::{RowFailure, Usage};
use crate::error::OperatorError;

/// An opened operator. The kind of kernel says what may run concurrently.
pub enum Kernel {
    /// Rows are independent: batches of the main input run in parallel, output stays in input order.
    Map(Arc<dyn MapKernel>),
    /// Asynchronous, one row at a time, for external calls. Remembered by row.
    AsyncMap(Arc<dyn AsyncMapKernel>),
    /// A relational plan over the inputs.
    Query(Box<dyn QueryKernel>),
    /// Needs all input at once, or produces all output at once (sources, indexes, reports, training).
    Blocking(Box<dyn BlockingKernel>),
}

/// A row-wise kernel over batches.
///
/// ```
/// use arrow::array::RecordBatch;
/// use searchmill_engine::prelude::*;
/// use searchmill_schemas::{Document, from_batch, to_batch};
///
/// struct Uppercase;
///
/// impl MapKernel for Uppercase {
///     fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
///         let mut documents: Vec<Document> = from_batch(batch)?;
///         for document in &mut documents {
///             document.text = document.text.to_uppercase();
///         }
///         Ok(output.push_rows("documents", &documents)?)
///     }
/// }
///
/// let document = Document { id: "d1".to_owned(), title: None, text: "quiet".to_owned(), metadata: None };
/// let mut output = MapOutput::default();
/// Uppercase.map(&to_batch(&[document])?, &mut output)?;
/// let documents: Vec<Document> = from_batch(&output.batches[0].1)?;
/// assert_eq!(documents[0].text, "QUIET");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait MapKernel: Send + Sync {
    /// Maps one batch of the main input. The output must not depend on how the input is cut into batches.
    ///
    /// # Errors
    /// Fails the node; a single bad row goes to [`MapOutput::reject`] instead.
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError>;
}

/// The output of a [`MapKernel`] for one batch.
#[derive(Default)]
pub struct MapOutput {
    /// Rows by output port.
    pub batches: Vec<(String, RecordBatch)>,
    /// Rejected rows.
    pub rejects: Vec<Reject>,
}

impl MapOutput {
    /// Adds rows to a port.
    pub fn push(&mut self, port: &str, batch: RecordBatch) {
        if batch.num_rows() > 0 {
            self.batches.push((port.to_owned(), batch));
        }
    }

    /// Adds row structs to a port.
    ///
    /// # Errors
    /// Fails as [`to_batch`] does.
    pub fn push_rows<R: Record>(&mut self, port: &str, rows: &[R]) -> Result<(), SchemaError> {
        self.push(port, to_batch(rows)?);
        Ok(())
    }

    /// Adds a rejected row.
    pub fn reject(&mut self, reject: Reject) {
        self.rejects.push(reject);
    }

    /// Writes all rows, the rejected ones last.
    pub(crate) fn write(&self, outputs: &mut Outputs) -> Result<(), OperatorError> {
        for (port, batch) in &self.batches {
            outputs.write(port, batch)?;
        }
        outputs.write_rows("rejects", &self.rejects)
    }
}

/// A kernel that processes one row at a time and awaits external calls.
pub trait AsyncMapKernel: Send + Sync {
    /// Returns the number of runs per row; the sample's number is part of the row's key.
    fn samples(&self) -> u32 {
        1
    }

    /// Returns the columns that decide a row's result: only they enter the row's key. Columns merely copied into the
    /// result (ids, labels) are excluded, see [`AsyncMapKernel::label`].
    fn reads(&self) -> Vec<String>;

    /// Takes a remembered result of a row with equal [`AsyncMapKernel::reads`] and replaces the copied columns with
    /// those of this row. Returns `None` if the result cannot belong to this row.
    fn label(&self, _row: &RecordBatch, _sample: u32, output: RowOutput) -> Option<RowOutput> {
        Some(output)
    }

    /// Returns the id and the external content, as text, of each of its recorded rows. Audits compare the content with
    /// the remembered answers.
    ///
    /// # Errors
    /// Fails if the rows are not from this operator.
    fn said(&self, _rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        Ok(Vec::new())
    }

    /// Returns figures of a result, computed or remembered. Their sums over all rows are recorded with the node.
    fn figures(&self, _output: &RowOutput) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Returns a text about these sums, shown after the run; empty for none.
    fn summary(&self, _sums: &BTreeMap<&'static str, f64>) -> String {
        String::new()
    }

    /// Returns how many rows of a result, computed or remembered, count towards [`RowShape::goal`].
    ///
    /// # Errors
    /// Fails the node if that cannot be said.
    fn counts(&self, _output: &RowOutput) -> Result<u64, OperatorError> {
        Ok(0)
    }

    /// Returns an error that fails the node: no further rows are started, and those in flight are remembered.
    fn fault(&self) -> Option<OperatorError> {
        None
    }

    /// Runs one row (a batch of one). [`Context::call`] limits, remembers and retries its calls.
    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>>;
}

/// The shape of the rows of an operator with an [`AsyncMapKernel`], derived from its params.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowShape {
    /// [`AsyncMapKernel::reads`].
    pub columns: Vec<String>,
    /// [`AsyncMapKernel::samples`].
    pub samples: u32,
    /// When no more samples are drawn; `None`: when all are.
    pub goal: Option<Goal>,
}

/// The output of an [`AsyncMapKernel`] for one row.
#[derive(Clone, Debug, Default)]
pub struct RowOutput {
    /// Rows by output port.
    pub batches: Vec<(String, RecordBatch)>,
    /// Usage of the row's calls.
    pub usage: Usage,
}

/// A kernel that is a relational plan.
pub trait QueryKernel: Send + Sync {
    /// Plans over the inputs, which are registered in `session` as tables named after their ports.
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>>;

    /// Returns the input whose rows should appear once each in the result: the run reports if there are more. Without
    /// one, the run reports joins with more rows than either side.
    fn expects_once(&self) -> Option<&str> {
        None
    }

    /// Returns what should be told if no row of one input has a match in the other, although both have rows.
    fn told_without_match<'a>(&'a self, _session: &'a SessionContext) -> BoxFuture<'a, Option<String>> {
        std::future::ready(None).boxed()
    }

    /// Whether the plan sorts its rows at the end. Otherwise a result that reached the memory limit may depend on it,
    /// and is recorded as not repeatable.
    fn restores_order(&self) -> bool {
        false
    }
}

/// Names of the tables registered for a query.
#[derive(Clone, Debug, Default)]
pub struct QueryInputs {
    /// Port names in port order, one table each.
    pub tables: Vec<String>,
}

/// One output of a query. It runs on one partition, so rows keep the plan's order.
pub struct QueryOutput {
    /// The output port.
    pub port: String,
    /// Its rows.
    pub frame: DataFrame,
}

/// A kernel that needs all input at once.
pub trait BlockingKernel: Send + Sync {
    /// Runs on a blocking thread: use [`Context::block_on`] for asynchronous work and `rayon` for parallel work.
    ///
    /// # Errors
    /// Fails the node.
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError>;
}

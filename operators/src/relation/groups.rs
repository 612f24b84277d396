//! Which group each row belongs to, by columns or SQL expressions.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::DFSchema;
use datafusion::physical_plan::PhysicalExpr;
use datafusion::prelude::SessionContext;
use indexmap::IndexSet;
use searchmill_engine::operator::OperatorError;

use super::expression::key;

/// Group keys, ready to be evaluated over batches of one schema.
pub(crate) struct Grouping {
    keys: Vec<Arc<dyn PhysicalExpr>>,
    labels: IndexSet<String>,
}

impl Grouping {
    /// Groups by these columns or expressions.
    pub(crate) fn new(schema: &SchemaRef, by: &[String]) -> Result<Self, OperatorError> {
        let session = SessionContext::new();
        let schema = DFSchema::try_from(Arc::clone(schema))?;
        let bound = by.iter().map(|text| {
            let expression = key(&session, &schema, "by", text)?;
            Ok(session.create_physical_expr(expression, &schema)?)
        });
        Ok(Self { keys: bound.collect::<Result<_, OperatorError>>()?, labels: IndexSet::new() })
    }

    /// The group of each row, as its place among [`Self::labels`].
    pub(crate) fn assign(&mut self, batch: &RecordBatch) -> Result<Vec<u32>, OperatorError> {
        let evaluated = self.keys.iter().map(|key| Ok(key.evaluate(batch)?.into_array(batch.num_rows())?));
        let columns = evaluated.collect::<Result<Vec<ArrayRef>, OperatorError>>()?;
        let options = FormatOptions::default().with_null("null");
        let written = columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let written = written.collect::<Result<Vec<_>, _>>()?;
        (0..batch.num_rows()).map(|row| self.place(&written, row)).collect()
    }

    fn place(&mut self, columns: &[ArrayFormatter<'_>], row: usize) -> Result<u32, OperatorError> {
        let values = columns.iter().map(|column| column.value(row).try_to_string());
        let label = values.collect::<Result<Vec<_>, _>>()?.join("/");
        Ok(self.labels.insert_full(label).0 as u32)
    }

    /// Labels of the groups seen, in the order of their first rows: the keys' values joined by `/`, NULL as `null`.
    pub(crate) fn labels(&self) -> &IndexSet<String> {
        &self.labels
    }
}

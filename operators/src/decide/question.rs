//! A query that gives one answer, with what it was compared with.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use arrow::util::display::array_value_to_string;
use datafusion::catalog::MemorySchemaProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::TableReference;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{DataFrame, SQLOptions, SessionContext};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Ident, SelectItem, SetExpr, Statement as SqlStatement, UnaryOperator,
};
use searchmill_engine::operator::{OperatorError, RowsInput};

use crate::shared::relation::{check_types, explain, register_functions, require_repeatable_plan};

/// What a query must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Number,
    /// True or false; further columns are told.
    Truth,
}

/// A query of the params.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// Path of the param.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) wants: Wants,
}

/// The answer of a query.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    /// The number; 1 for true, 0 for false.
    pub(super) value: f64,
    /// What was compared: `max(kl) is 0.75`.
    seen: Vec<String>,
}

impl Answer {
    /// Whether the answer is true.
    pub(super) fn holds(&self) -> bool {
        self.value > 0.0
    }

    /// Formats ` (max(kl) is 0.75)`.
    pub(super) fn text(&self) -> String {
        if self.seen.is_empty() { String::new() } else { format!(" ({})", self.seen.join(", ")) }
    }
}

impl Question {
    /// Plans the query and checks that it can give an answer.
    pub(super) async fn plan(&self, session: &SessionContext, tables: &[String]) -> Result<DataFrame, OperatorError> {
        register_functions(session);
        // Otherwise `copy … to` could write files, and `set` could change the session for the next query.
        let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
        let planned = session.sql_with_options(&self.text, options).await;
        let frame = planned.map_err(|error| explain(&self.path, error, tables))?;
        require_repeatable_plan(&self.path, frame.logical_plan())?;
        check_types(session, &self.path, frame.logical_plan(), tables)?;
        let (path, fields) = (&self.path, frame.schema().fields());
        if self.wants == Wants::Number && fields.len() != 1 {
            let message = format!("`{path}`: one number is needed, and the query gives {} columns", fields.len());
            return Err(OperatorError::pipeline(message).with_help("select one expression"));
        }
        let kind = fields.first().map_or(&DataType::Null, |field| field.data_type());
        let (fits, what, help) = match self.wants {
            Wants::Number => (kind.is_numeric(), "a number", "select a number, for example `max(f1)`"),
            Wants::Truth => (kind == &DataType::Boolean, "true or false", "compare it, for example `max(f1) >= 0.8`"),
        };
        // A NULL fits: the run says that the query gives none.
        if !fits && !kind.is_null() {
            let message = format!("`{path}`: {what} is needed, and the query gives {kind}");
            return Err(OperatorError::pipeline(message).with_help(help));
        }
        Ok(frame)
    }

    /// Runs the query.
    pub(super) async fn answer(&self, session: &SessionContext, tables: &[String]) -> Result<Answer, OperatorError> {
        let frame = self.plan(session, tables).await?;
        // The compared values are there for the message: if they cannot be added, the condition decides without them.
        let extended = match (self.wants, with_seen(&self.text)) {
            (Wants::Truth, Some(text)) => Self { text, ..self.clone() }.plan(session, tables).await.ok(),
            _ => None,
        };
        let path = &self.path;
        let batches = extended.unwrap_or(frame).collect().await.map_err(|error| explain(path, error, tables))?;
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        // Batches without rows may stand around the one row.
        let Some(batch) = batches.iter().find(|batch| rows == 1 && batch.num_rows() == 1) else {
            let message = format!("`{path}` gives {rows} rows, and must give one");
            let help = "aggregate them (`max`, `avg`, `bool_and`), or add `where` or `limit 1`";
            return Err(OperatorError::data(message).with_help(help));
        };
        // NULL decides nothing: an aggregate of no rows gives it.
        if batch.column(0).is_null(0) {
            let help = "say what counts if there is no value: `coalesce(…, 0)`, `coalesce(…, false)`";
            return Err(OperatorError::data(format!("`{path}` gives NULL")).with_help(help));
        }
        let number = cast(batch.column(0), &DataType::Float64)?;
        let value = number.as_primitive::<Float64Type>().value(0);
        if value.is_nan() {
            let help = "find out where it comes from; a number can be compared, NaN cannot";
            return Err(OperatorError::data(format!("`{path}` gives NaN")).with_help(help));
        }
        let mut seen = Vec::new();
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()).skip(1) {
            let shown = array_value_to_string(column, 0)?;
            let shown = if column.is_null(0) { "NULL" } else { shown.as_str() };
            seen.push(format!("{} is {shown}", field.name()));
        }
        Ok(Answer { value, seen })
    }
}

/// Adds what a condition compares to the columns of its query: `max(kl) < 0.5` becomes `max(kl) < 0.5, max(kl)`. `None`: it
/// compares nothing, or is no simple query.
fn with_seen(text: &str) -> Option<String> {
    let mut statements = DFParserBuilder::new(text).build().ok()?.parse_statements().ok()?;
    let Statement::Statement(mut statement) = statements.pop_front()? else { return None };
    let SqlStatement::Query(query) = statement.as_mut() else { return None };
    let SetExpr::Select(select) = query.body.as_mut() else { return None };
    // Further columns would keep rows apart that are equal without them.
    if select.distinct.is_some() {
        return None;
    }
    let (SelectItem::UnnamedExpr(condition) | SelectItem::ExprWithAlias { expr: condition, .. }) =
        select.projection.first()?
    else {
        return None;
    };
    let mut compared = Vec::new();
    find_compared(condition, &mut compared);
    let mut seen: Vec<String> = select.projection.iter().map(ToString::to_string).collect();
    let before = select.projection.len();
    for side in compared {
        let name = side.to_string();
        if !seen.contains(&name) {
            seen.push(name.clone());
            select.projection.push(SelectItem::ExprWithAlias { expr: side, alias: Ident::with_quote('"', name) });
        }
    }
    if select.projection.len() > before { Some(statement.to_string()) } else { None }
}

/// Collects the sides of comparisons that are no constants.
fn find_compared(condition: &Expr, found: &mut Vec<Expr>) {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    match condition {
        Expr::Nested(inner) => find_compared(inner, found),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => find_compared(expr, found),
        Expr::BinaryOp { left, op: And | Or, right } => {
            find_compared(left, found);
            find_compared(right, found);
        }
        Expr::BinaryOp { left, op: Eq | NotEq | Lt | LtEq | Gt | GtEq, right } => {
            for side in [left, right] {
                if !is_constant(side) {
                    found.push((**side).clone());
                }
            }
        }
        _ => {}
    }
}

fn is_constant(expression: &Expr) -> bool {
    match expression {
        Expr::Value(_) => true,
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) | Expr::Cast { expr, .. } => is_constant(expr),
        _ => false,
    }
}

/// Registers a table, in place of one of that name. Its rows are read when a query runs.
pub(super) fn register(session: &SessionContext, name: &str, rows: &RowsInput) -> Result<(), OperatorError> {
    let table = StreamingTable::try_new(Arc::clone(&rows.schema), vec![Arc::new(Rows(rows.clone()))])?;
    // The table of the rounds is registered again when the score of this one is known.
    session.deregister_table(TableReference::bare(name))?;
    session.register_table(TableReference::bare(name), Arc::new(table))?;
    Ok(())
}

/// Registers tables with names like `step.steps` also in a schema `step`, so that a query needs no quotes.
pub(super) async fn name_outputs(session: &SessionContext, tables: &[String]) -> Result<(), OperatorError> {
    let catalog = session.catalog_names().into_iter().find_map(|name| session.catalog(&name));
    let Some(catalog) = catalog else { return Ok(()) };
    for whole in tables {
        let Some((node, port)) = whole.split_once('.') else { continue };
        let table = session.table_provider(TableReference::bare(whole.as_str())).await?;
        if catalog.schema(node).is_none() {
            catalog.register_schema(node, Arc::new(MemorySchemaProvider::new()))?;
        }
        if let Some(schema) = catalog.schema(node) {
            schema.register_table(port.to_owned(), table)?;
        }
    }
    Ok(())
}

/// The rows of an input as a stream.
#[derive(Debug)]
struct Rows(RowsInput);

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        &self.0.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.0.schema);
        let batches = self.0.batches().map(move |batch| {
            let batch = batch.map_err(|error| DataFusionError::Execution(error.message))?;
            Ok(RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec())?)
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.0.schema), futures::stream::iter(batches)))
    }
}

//! Which rows of a table, and in which order.

use std::ops::Range;
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::UInt64Type;
use datafusion::common::DataFusionError;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, JoinType, ident};
use datafusion::prelude::{DataFrame, SessionContext};
use serde_json::Value;

use super::super::failure::Failure;
use super::super::open::Session;
use super::{Scores, Table};
use crate::execute::{collect, register};
use crate::operator::{
    BoundOperator, Context, InputArtifact, Inputs, Kernel, OperatorError, QueryInputs, query_session,
};
use crate::plan::explain;

/// Name of the table in queries: the port of relational operators with one input.
const ROWS: &str = "rows";
/// Column with the number of a row, from 1.
const NUMBER: &str = "__row";
/// Column of the scores with the id of the scored row.
const SCORED: &str = "__scored";

/// Which rows, and in which order.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// A relational operator with one input, and its params: only its rows are chosen.
    pub pass: Option<(String, Value)>,
    /// What to sort by, first the most important; then by number.
    pub order: Vec<Order>,
    /// Time after which a query is ended.
    pub limit: Option<Duration>,
}

/// A column or SQL expression to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The column, or an SQL expression.
    pub by: String,
    /// Whether the largest comes first. Nulls come last either way.
    pub descending: bool,
}

/// Numbers of chosen rows, from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// All, as they are stored.
    All(u64),
    /// These, in this order.
    These(Vec<u64>),
}

impl Rows {
    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        match self {
            Self::All(count) => *count,
            Self::These(numbers) => numbers.len() as u64,
        }
    }

    /// Returns the numbers of a page; a range beyond the end is cut.
    pub fn page(&self, range: Range<u64>) -> Vec<u64> {
        let end = range.end.min(self.count());
        let start = range.start.min(end);
        match self {
            Self::All(_) => (start..end).collect(),
            Self::These(numbers) => numbers[start as usize..end as usize].to_vec(),
        }
    }
}

impl Session {
    /// Finds the chosen rows. Not for code that already runs on tokio.
    ///
    /// # Errors
    /// Fails if the params or the order do not fit the columns, or if the query takes longer than its limit.
    pub fn choose(&self, table: &Table, choice: &Choice) -> Result<Rows, Failure> {
        if choice.pass.is_none() && choice.order.is_empty() {
            return Ok(Rows::All(table.rows.rows));
        }
        let batches = self.query(table, choice, choice.limit, |frame, _| frame.select(vec![ident(NUMBER)]))?;
        let numbers = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt64Type>().values().iter());
        Ok(Rows::These(numbers.map(|number| number - 1).collect()))
    }

    /// Computes `ask` of the chosen rows, which have all their columns.
    pub(super) fn query(
        &self,
        table: &Table,
        choice: &Choice,
        limit: Option<Duration>,
        ask: impl Fn(DataFrame, &SessionContext) -> Result<DataFrame, DataFusionError>,
    ) -> Result<Vec<RecordBatch>, Failure> {
        let bound = match &choice.pass {
            Some((operator, params)) => Some(self.bind_relational(operator, params.clone())?),
            None => None,
        };
        let seconds = limit.unwrap_or(Duration::MAX).as_secs_f64();
        let answered = self.with_context(|context| {
            let asked = async {
                let frame = match chosen(table, None, choice, bound.as_ref(), context).await {
                    // Only what names a score pays for the join.
                    Err(_) if table.scores.is_some() => {
                        chosen(table, table.scores.as_ref(), choice, bound.as_ref(), context).await?
                    }
                    frame => frame?,
                };
                collect(ask(frame.rows, &frame.session)?, context).await
            };
            context.block_on(async {
                match limit {
                    None => asked.await,
                    Some(limit) => tokio::time::timeout(limit, asked).await.unwrap_or_else(|_| {
                        let message = format!("the query was ended: it ran for more than {seconds} s");
                        Err(OperatorError::pipeline(message)
                            .with_help("ask for less, or write the rows to a file and query that"))
                    }),
                }
            })
        });
        answered.map_err(without_own_columns)
    }
}

/// Removes the columns that only queries have from the list of those that there are.
fn without_own_columns(failure: Failure) -> Failure {
    match failure {
        Failure::Usage { message, help: Some(help) } => {
            let mut help = help;
            for name in [NUMBER, SCORED] {
                help = help.replace(&format!(", `{name}`"), "");
            }
            Failure::Usage { message, help: Some(help) }
        }
        other => other,
    }
}

/// Chosen rows with all their columns and their numbers.
struct Frame {
    session: SessionContext,
    rows: DataFrame,
}

/// Plans the choice over the table, with the columns of its scores if they are given.
async fn chosen(
    table: &Table,
    scores: Option<&Scores>,
    choice: &Choice,
    bound: Option<&BoundOperator>,
    context: &Context,
) -> Result<Frame, OperatorError> {
    let session = query_session()?;
    register(&session, "stored", &table.rows).await?;
    let mut rows = session.table("stored").await?.with_column(NUMBER, row_number())?;
    if let Some(scores) = scores {
        register(&session, "scores", &scores.rows).await?;
        let mut columns = vec![ident("trajectory_id").alias(SCORED)];
        columns.extend(scores.columns.iter().map(|field| ident(field.name())));
        let scored = session.table("scores").await?.select(columns)?;
        rows = rows.join(scored, JoinType::Left, &["id"], &[SCORED], None)?;
    }
    session.register_table(ROWS, rows.into_view())?;
    let mut rows = match bound {
        None => session.table(ROWS).await?,
        Some(bound) => {
            let mut inputs = Inputs::new();
            inputs.bind(ROWS, InputArtifact::Rows(table.rows.clone()));
            let Kernel::Query(kernel) = bound.open(&inputs, context)? else {
                return Err(OperatorError::engine("the operator is not relational"));
            };
            let tables = QueryInputs { tables: vec![ROWS.to_owned()] };
            let output = kernel.plan(&session, &tables).await?.into_iter().next();
            output.ok_or_else(|| OperatorError::engine("the operator has no output"))?.frame
        }
    };
    if !choice.order.is_empty() || scores.is_some() {
        let mut keys = Vec::new();
        for order in &choice.order {
            keys.push(key(&rows, &order.by)?.sort(!order.descending, false));
        }
        // A join may change the order of the rows; equal rows keep theirs.
        keys.push(ident(NUMBER).sort(true, false));
        rows = rows.sort(keys).map_err(|error| explain("sort", error, &[]))?;
    }
    Ok(Frame { session, rows })
}

/// Returns the column of exactly this name, or else an SQL expression.
fn key(rows: &DataFrame, text: &str) -> Result<Expr, OperatorError> {
    if rows.schema().has_column_with_unqualified_name(text) {
        return Ok(ident(text));
    }
    rows.parse_sql_expr(text).map_err(|error| explain("sort", error, &[]))
}

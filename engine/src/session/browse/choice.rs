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
use super::super::open::{Session, StoreView};
use super::{Scores, Table};
use crate::error::OperatorError;
use crate::execute::{collect, register};
use crate::operator::{BoundOperator, Context, InputArtifact, Inputs, Kernel, QueryInputs, query_session};
use crate::plan::explain;

/// Name of the table in queries: the port of relational operators with one input.
const ROWS: &str = "rows";
/// Column with the number of a row, unless the table has one of that name.
const NUMBER: &str = "__row";
/// Column of the scores with the id of the scored row, likewise.
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

impl Order {
    /// Reads a key as people write it: with `-` before it, the largest comes first.
    pub fn written(text: &str) -> Self {
        match text.strip_prefix('-') {
            Some(by) => Self { by: by.to_owned(), descending: true },
            None => Self { by: text.to_owned(), descending: false },
        }
    }
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

    /// Returns the place of a row among those chosen, `None` if it is not; `hint`: where it may be.
    pub fn place(&self, number: u64, hint: Option<u64>) -> Option<u64> {
        let Self::These(numbers) = self else { return Some(number) };
        if let Some(place) = hint
            && numbers.get(place as usize) == Some(&number)
        {
            return hint;
        }
        numbers.iter().position(|other| *other == number).map(|place| place as u64)
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

impl StoreView<'_> {
    /// Finds the chosen rows. Not for code that already runs on tokio.
    ///
    /// # Errors
    /// Fails if the params or the order do not fit the columns, if the query takes longer than its limit, or if a row has
    /// several scores.
    pub fn choose(&self, table: &Table, choice: &Choice) -> Result<Rows, Failure> {
        if choice.pass.is_none() && choice.order.is_empty() {
            return Ok(Rows::All(table.rows.rows));
        }
        let batches = self.query(table, choice, "", |chosen| chosen.rows.select(vec![ident(&chosen.own.number)]))?;
        let mut seen = vec![false; table.rows.rows as usize];
        let mut numbers = Vec::new();
        for batch in &batches {
            for number in batch.column(0).as_primitive::<UInt64Type>().values() {
                let number = number - 1;
                if std::mem::replace(&mut seen[number as usize], true) {
                    let node = table.scores.as_ref().map(|scores| scores.node.as_str()).unwrap_or_default();
                    let why = format!("`{node}` has several scores of one row, so they cannot stand beside the rows");
                    let help = "choose rows by their own columns, or take the scores of another node";
                    return Err(Failure::usage(why).with_help(help));
                }
                numbers.push(number);
            }
        }
        Ok(Rows::These(numbers))
    }

    /// Computes `ask` of the chosen rows. They have all their columns, or of a wide table those that the question, with
    /// its text `asked`, may name.
    pub(super) fn query(
        &self,
        table: &Table,
        choice: &Choice,
        asked: &str,
        ask: impl Fn(Chosen) -> Result<DataFrame, DataFusionError>,
    ) -> Result<Vec<RecordBatch>, Failure> {
        let bound = match &choice.pass {
            Some((operator, params)) => Some(bind(self.session, operator, params.clone())?),
            None => None,
        };
        let own = OwnColumns::beside(table);
        let named = named(table, choice, asked);
        let question = Question { table, choice, bound: bound.as_ref(), own: &own, named: named.as_deref() };
        let answered = self.session.with_context(|context| {
            let asked = async {
                let plan = async |scores| Ok::<_, OperatorError>(ask(question.chosen(scores, context).await?)?);
                let mut planned = plan(None).await;
                // Only what names a score pays for the join.
                if planned.is_err() && table.scores.is_some() {
                    planned = plan(table.scores.as_ref()).await;
                }
                collect(planned?, context).await
            };
            context.block_on(async {
                let Some(limit) = choice.limit else { return asked.await };
                if let Ok(done) = tokio::time::timeout(limit, asked).await {
                    return done;
                }
                let message = format!("the query was ended: it ran for more than {} s", limit.as_secs_f64());
                let error = OperatorError::pipeline(message);
                Err(error.with_help("ask for less, or write the rows to a file and query that"))
            })
        });
        answered.map_err(|failure| match own.unnamed(failure) {
            // The columns that it lists are those that were read.
            Failure::Usage { message, help: Some(help) } if named.is_some() && help.contains("columns: ") => {
                let before = help.split("columns: ").next().unwrap_or_default();
                let count = table.rows.schema.fields().len();
                let help = format!("{before}the table has {count} columns: `searchmill show … --columns` lists them");
                Failure::Usage { message, help: Some(help) }
            }
            failure => failure,
        })
    }
}

/// Binds a relational operator to params; fails if there is none, or if the params do not fit it.
fn bind(session: &Session, operator: &str, params: Value) -> Result<BoundOperator, Failure> {
    let Some(entry) = session.registry().get(operator) else {
        return Err(Failure::Other(format!("there is no operator `{operator}`")));
    };
    let bound = (entry.bind)(params).and_then(|bound| match bound.declaration.issues.first() {
        Some(issue) => Err(issue.clone()),
        None => Ok(bound),
    });
    bound.map_err(|issue| Failure::Usage { message: format!("`{}`: {}", issue.path, issue.message), help: issue.help })
}

/// Columns from which on a table is wide: planning a query over all of them takes longer than computing it.
const WIDE: usize = 200;

/// Returns the columns of a wide table whose names stand somewhere in the question. `None`: the table is not wide, or what
/// the question reads need not stand in it.
fn named(table: &Table, choice: &Choice, asked: &str) -> Option<Vec<String>> {
    let fields = table.rows.schema.fields();
    if fields.len() < WIDE {
        return None;
    }
    let mut text = asked.to_lowercase();
    for order in &choice.order {
        text.push_str(&order.by.to_lowercase());
    }
    if let Some((_, params)) = &choice.pass {
        // An operator with other params than a predicate may read columns that they do not name.
        let is_predicate = params.as_object().is_some_and(|params| params.len() == 1);
        let sql = params["where"].as_str().filter(|_| is_predicate)?;
        text.push_str(&sql.to_lowercase());
    }
    let mut named = Vec::new();
    for field in fields {
        // The id joins rows with their scores.
        if field.name() == "id" || text.contains(&field.name().to_lowercase()) {
            named.push(field.name().clone());
        }
    }
    Some(named)
}

/// Names of the columns that only queries have; no table has them.
#[derive(Clone)]
pub(super) struct OwnColumns {
    /// Number of a row, from 1.
    number: String,
    /// Of the scores: id of the scored row.
    scored: String,
}

impl OwnColumns {
    fn beside(table: &Table) -> Self {
        let columns = table.columns();
        let mut own = Self { number: NUMBER.to_owned(), scored: SCORED.to_owned() };
        for name in [&mut own.number, &mut own.scored] {
            while columns.iter().any(|field| field.name() == name) {
                name.push('_');
            }
        }
        own
    }

    /// Removes these columns from the list of those that there are.
    fn unnamed(&self, failure: Failure) -> Failure {
        let Failure::Usage { message, help: Some(mut help) } = failure else { return failure };
        for name in [&self.number, &self.scored] {
            help = help.replace(&format!(", `{name}`"), "");
        }
        Failure::Usage { message, help: Some(help) }
    }
}

/// Chosen rows with all their columns and their numbers.
pub(super) struct Chosen {
    pub(super) session: SessionContext,
    pub(super) rows: DataFrame,
    own: OwnColumns,
}

/// What is asked of a table.
struct Question<'q> {
    table: &'q Table,
    choice: &'q Choice,
    /// The operator of the choice.
    bound: Option<&'q BoundOperator>,
    own: &'q OwnColumns,
    /// The only columns that are read, if not all are.
    named: Option<&'q [String]>,
}

impl Question<'_> {
    /// Plans the choice over the table, with the columns of its scores if they are given.
    async fn chosen(&self, scores: Option<&Scores>, context: &Context) -> Result<Chosen, OperatorError> {
        let Self { table, choice, bound, own, named } = *self;
        let session = query_session()?;
        register(&session, "stored", &table.rows).await?;
        let mut rows = session.table("stored").await?;
        if let Some(named) = named {
            rows = rows.select(named.iter().map(ident).collect::<Vec<_>>())?;
        }
        let mut rows = rows.with_column(&own.number, row_number())?;
        if let Some(scores) = scores {
            register(&session, "scores", &scores.rows).await?;
            let mut columns = vec![ident("trajectory_id").alias(&own.scored)];
            columns.extend(scores.columns.iter().map(|field| ident(field.name())));
            let scored = session.table("scores").await?.select(columns)?;
            rows = rows.join(scored, JoinType::Left, &["id"], &[&own.scored], None)?;
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
                let Some(output) = kernel.plan(&session, &tables).await?.into_iter().next() else {
                    return Err(OperatorError::engine("the operator has no output"));
                };
                output.frame
            }
        };
        if !choice.order.is_empty() || scores.is_some() {
            let mut keys = Vec::new();
            for order in &choice.order {
                keys.push(key(&rows, &order.by)?.sort(!order.descending, false));
            }
            // A join may change the order of the rows; equal rows keep theirs.
            keys.push(ident(&own.number).sort(true, false));
            rows = rows.sort(keys).map_err(|error| explain("sort", error, &[]))?;
        }
        Ok(Chosen { session, rows, own: own.clone() })
    }
}

/// Returns the column of exactly this name, or else an SQL expression.
fn key(rows: &DataFrame, text: &str) -> Result<Expr, OperatorError> {
    if rows.schema().has_column_with_unqualified_name(text) {
        return Ok(ident(text));
    }
    rows.parse_sql_expr(text).map_err(|error| explain("sort", error, &[]))
}

//! Checks of results: the query that finds what breaks a rule, and what is wrong with a check before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Volatility, lit};
use datafusion::prelude::{DataFrame, SQLOptions, SessionContext};
use datafusion::sql::parser::DFParserBuilder;
use futures::FutureExt;
use futures::future::BoxFuture;
use indexmap::IndexMap;

use super::datafusion_error::{explain, parse_fault};
use super::edges::find_output;
use crate::diagnostic::Diagnostic;
use crate::error::OperatorError;
use crate::operator::{
    ParamIssue, PortType, QueryInputs, QueryKernel, QueryOutput, SHORTER, Tables, check_nesting, planned,
};
use crate::spec::{CheckSpec, NodeSpec, Rule, suggest};

/// The name of the checked table in SQL.
pub(crate) const ROWS: &str = "rows";
/// Columns of an offending row that are shown (at most).
const SHOWN: usize = 6;
/// The column of `unique` with the number of equal rows.
const TIMES: &str = "number of rows";

/// A query that returns the rows that break a rule.
pub(crate) struct Offenders {
    rule: Rule,
    /// Whether the query may give another answer for the same rows (`now()`).
    fleeting: AtomicBool,
}

impl Offenders {
    /// Returns the query for a rule; `None` for rules about numbers of rows.
    pub(crate) fn of(rule: &Rule) -> Option<Self> {
        if matches!(rule, Rule::Rows { .. } | Rule::Rejects { .. }) {
            return None;
        }
        Some(Self { rule: rule.clone(), fleeting: AtomicBool::new(false) })
    }

    /// Whether the planned query may give another answer for the same rows.
    pub(crate) fn is_fleeting(&self) -> bool {
        self.fleeting.load(Ordering::Relaxed)
    }

    async fn frame(&self, session: &SessionContext) -> Result<DataFrame, OperatorError> {
        if let Rule::Sql(sql) = &self.rule
            && Rule::is_query(sql)
        {
            // A check must change nothing.
            let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
            return session.sql_with_options(sql, options).await.map_err(explained);
        }
        let rows = session.table(ROWS).await?;
        let schema = Arc::clone(rows.schema().inner());
        let frame = match &self.rule {
            Rule::Sql(sql) => {
                let predicate = rows.parse_sql_expr(sql).map_err(explained)?;
                let kind = predicate.get_type(rows.schema()).map_err(explained)?;
                if !matches!(kind, DataType::Boolean | DataType::Null) {
                    let message = format!("`sql`: the predicate gives {kind}, not true or false");
                    let help = "a query that must return no row begins with SELECT";
                    return Err(OperatorError::pipeline(message).with_help(help));
                }
                let columns = predicate.column_refs().into_iter().map(|column| column.name.clone()).collect();
                // A row for which the predicate is null breaks the rule, too.
                let offending = rows.filter(predicate.is_not_true()).map_err(explained)?;
                shown(offending, &schema, columns)
            }
            Rule::Unique(columns) => twice(rows, columns),
            Rule::NotNull(columns) => {
                let lacks = columns.iter().map(|column| named(column).is_null()).reduce(Expr::or);
                shown(rows.filter(lacks.unwrap_or_else(|| lit(false)))?, &schema, Vec::new())
            }
            Rule::Range { column, min, max } => {
                let mut outside = Vec::new();
                if let Some(min) = min {
                    outside.push(named(column).lt(lit(*min)));
                }
                if let Some(max) = max {
                    outside.push(named(column).gt(lit(*max)));
                }
                // NaN is neither below nor above a bound, and in no range.
                if schema.field_with_name(column).is_ok_and(|field| field.data_type().is_floating()) {
                    outside.push(datafusion::functions::math::expr_fn::isnan(named(column)));
                }
                let outside = outside.into_iter().reduce(Expr::or).unwrap_or_else(|| lit(false));
                shown(rows.filter(outside)?, &schema, vec![column.clone()])
            }
            Rule::Rows { .. } | Rule::Rejects { .. } => Ok(rows),
        };
        Ok(frame?)
    }
}

impl QueryKernel for Offenders {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        _inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            let frame = self.frame(session).await?;
            // Read after planning, by the caller that decides whether to remember the outcome.
            self.fleeting.store(is_fleeting(frame.logical_plan())?, Ordering::Relaxed);
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame }])
        }
        .boxed()
    }
}

fn explained(error: DataFusionError) -> OperatorError {
    explain("sql", error, &[ROWS.to_owned()])
}

/// A column by its exact name.
fn named(column: &str) -> Expr {
    Expr::Column(datafusion::common::Column::new_unqualified(column))
}

/// Returns the values that more than one row has, with their number.
fn twice(rows: DataFrame, columns: &[String]) -> DataFusionResult<DataFrame> {
    let keys: Vec<Expr> = columns.iter().map(|column| named(column)).collect();
    // As with UNIQUE in SQL: rows with a null in their key are not compared.
    let present = keys.iter().cloned().map(Expr::is_not_null).reduce(Expr::and);
    let rows = rows.filter(present.unwrap_or_else(|| lit(true)))?;
    let times = datafusion::functions_aggregate::expr_fn::count(lit(1_i64)).alias(TIMES);
    let groups = rows.aggregate(keys.clone(), vec![times])?.filter(named(TIMES).gt(lit(1_i64)))?;
    // An aggregate gives its groups in any order: the same rows are to be shown each time.
    groups.sort(keys.into_iter().map(|key| key.sort(true, false)).collect())
}

/// Keeps the id and the named columns of the rows.
fn shown(rows: DataFrame, schema: &SchemaRef, columns: Vec<String>) -> DataFusionResult<DataFrame> {
    let mut selected = Vec::new();
    if schema.field_with_name("id").is_ok() {
        selected.push(named("id"));
    }
    let order = schema.fields().iter().filter(|field| field.name() != "id" && columns.contains(field.name()));
    selected.extend(order.take(SHOWN).map(|field| named(field.name())));
    // Rows without an id and without named columns could not be told apart: all columns are shown.
    if selected.is_empty() { Ok(rows) } else { rows.select(selected) }
}

fn is_fleeting(plan: &LogicalPlan) -> DataFusionResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                found |= matches!(part, Expr::ScalarFunction(call)
                    if call.func.signature().volatility != Volatility::Immutable);
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// Returns the checks of a node that name an output that it lacks, ask for rows of a folder, or are no SQL.
pub(super) fn check_issues(node: &NodeSpec, outputs: &IndexMap<String, PortType>) -> Vec<Diagnostic> {
    node.checks.iter().filter_map(|check| port_issue(node, check, outputs).or_else(|| syntax_issue(check))).collect()
}

fn syntax_issue(spec: &CheckSpec) -> Option<Diagnostic> {
    let Rule::Sql(text) = &spec.check.rule else { return None };
    if let Err((message, word)) = check_nesting(text) {
        let error = Diagnostic::error("bad-check", format!("`sql`: {message}")).at(spec.span, "").used_at(spec.via);
        return Some(Diagnostic { word: word.map(Box::new), ..error.help(SHORTER) });
    }
    let (message, word) = match statements(text) {
        Ok(1) => return None,
        Ok(count) => (format!("`sql`: expected one query, found {count} statements"), None),
        Err(error) => {
            let (reason, word) = parse_fault(text, &error);
            (format!("`sql`: not SQL: {reason}"), word)
        }
    };
    let error = Diagnostic::error("bad-check", message).at(spec.span, "").used_at(spec.via);
    let error = error.help("write a predicate that is true for every row (`f1 >= 0`), or a query that finds no row");
    Some(Diagnostic { word: word.map(Box::new), ..error })
}

/// Parses SQL; returns the number of its statements.
fn statements(text: &str) -> DataFusionResult<usize> {
    let mut parser = DFParserBuilder::new(text).build()?;
    if Rule::is_query(text) {
        return Ok(parser.parse_statements()?.len());
    }
    parser.parse_into_expr()?;
    Ok(1)
}

fn port_issue(node: &NodeSpec, spec: &CheckSpec, outputs: &IndexMap<String, PortType>) -> Option<Diagnostic> {
    let at = spec.port_span.unwrap_or(spec.span);
    let (port, port_type) = match find_output(&node.id, outputs, spec.check.port.as_deref(), at) {
        Ok(found) => found,
        Err(error) => return Some(*error),
    };
    let counts_rejects = matches!(spec.check.rule, Rule::Rejects { .. });
    // The number of rejects is known for every node, also for one that writes a folder.
    if counts_rejects || matches!(port_type, PortType::Rows(_)) {
        return None;
    }
    let message = format!("`{}.{port}` is {port_type}, and has no rows to check", node.id);
    let tables = outputs.iter().filter(|(_, port_type)| matches!(port_type, PortType::Rows(_)));
    let tables: Vec<&str> = tables.map(|(name, _)| name.as_str()).collect();
    let help = format!("write `port:` with one of its tables ({}), or check a node that makes rows", tables.join(", "));
    Some(Diagnostic::error("port-kind", message).at(at, "").help(help))
}

/// Returns the checks of a node that do not fit the known columns of its outputs.
pub(super) fn column_issues(node: &NodeSpec, default: Option<&str>, known: &Tables) -> Vec<Diagnostic> {
    let checks = node.checks.iter();
    checks.filter_map(|spec| unfit(spec, known.get(spec.check.port.as_deref().or(default)?)?)).collect()
}

fn unfit(spec: &CheckSpec, schema: &SchemaRef) -> Option<Diagnostic> {
    for (column, span) in &spec.columns {
        if let Some((message, help)) = unfit_column(&spec.check.rule, column, schema) {
            return Some(Diagnostic::error("bad-check", message).at(*span, "").help(help));
        }
    }
    let query = Offenders::of(&spec.check.rule)?;
    let tables: Tables = BTreeMap::from([(ROWS.to_owned(), Arc::clone(schema))]);
    let error = planned(&query, &tables).err()?;
    let found = Diagnostic::error("bad-check", error.message.as_str()).at(spec.span, "").used_at(spec.via);
    let issue = ParamIssue::from(error);
    Some(Diagnostic { help: issue.help, word: issue.word.map(Box::new), ..found })
}

/// Returns why a rule cannot be applied to a column, and the remedy.
pub(crate) fn unfit_column(rule: &Rule, column: &str, schema: &SchemaRef) -> Option<(String, String)> {
    let Ok(field) = schema.field_with_name(column) else {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return Some((format!("there is no column `{column}`"), suggest(column, &names, "columns")));
    };
    let kind = field.data_type();
    if !matches!(rule, Rule::Range { .. }) || kind.is_numeric() || matches!(kind, DataType::Null) {
        return None;
    }
    let message = format!("`range` needs a column of numbers, and `{column}` is {kind}");
    Some((message, "check texts and times with `sql`".to_owned()))
}

//! Checks of results: the query that finds what breaks a rule, and what is wrong with a check before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Volatility, lit};
use datafusion::prelude::{DataFrame, SQLOptions, SessionContext};
use datafusion::sql::parser::DFParserBuilder;
use futures::FutureExt;
use futures::future::BoxFuture;
use indexmap::IndexMap;

use super::datafusion_error::{explain, parse_fault};
use crate::diagnostic::{Diagnostic, Span};
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
        let counts = matches!(rule, Rule::Rows { .. } | Rule::Rejects { .. });
        (!counts).then(|| Self { rule: rule.clone(), fleeting: AtomicBool::new(false) })
    }

    /// Whether the planned query may give another answer for the same rows.
    pub(crate) fn is_fleeting(&self) -> bool {
        self.fleeting.load(Ordering::Relaxed)
    }

    async fn frame(&self, session: &SessionContext) -> Result<DataFrame, OperatorError> {
        let explained = |error| explain("sql", error, &[ROWS.to_owned()]);
        let sql = match &self.rule {
            Rule::Sql(sql) if Rule::is_query(sql) => {
                let options =
                    SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
                return session.sql_with_options(sql, options).await.map_err(explained);
            }
            Rule::Sql(sql) => Some(sql),
            _ => None,
        };
        let rows = session.table(ROWS).await?;
        let schema = Arc::clone(rows.schema().inner());
        if let Some(sql) = sql {
            let predicate = rows.parse_sql_expr(sql).map_err(explained)?;
            let kind = predicate.get_type(rows.schema()).map_err(explained)?;
            if !matches!(kind, DataType::Boolean | DataType::Null) {
                let error = OperatorError::pipeline(format!("`sql`: the predicate gives {kind}, not true or false"));
                return Err(error.with_help("a query that must return no row begins with SELECT"));
            }
            let columns = predicate.column_refs().into_iter().map(|column| column.name.clone()).collect();
            let kept = rows.filter(predicate.is_not_true()).map_err(explained)?;
            return Ok(shown(kept, &schema, columns)?);
        }
        let frame = match &self.rule {
            Rule::Unique(columns) => twice(rows, columns),
            Rule::NotNull(columns) => {
                let lacks = columns.iter().map(|column| named(column).is_null()).reduce(Expr::or);
                shown(rows.filter(lacks.unwrap_or_else(|| lit(false)))?, &schema, Vec::new())
            }
            Rule::Range { column, min, max } => {
                let below = min.map(|min| named(column).lt(lit(min)));
                let above = max.map(|max| named(column).gt(lit(max)));
                let floats = schema.field_with_name(column).is_ok_and(|field| field.data_type().is_floating());
                let undefined = floats.then(|| datafusion::functions::math::expr_fn::isnan(named(column)));
                let outside = [below, above, undefined].into_iter().flatten().reduce(Expr::or);
                shown(rows.filter(outside.unwrap_or_else(|| lit(false)))?, &schema, vec![column.clone()])
            }
            Rule::Rows { .. } | Rule::Rejects { .. } | Rule::Sql(_) => Ok(rows),
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
            self.fleeting.store(is_fleeting(frame.logical_plan())?, Ordering::Relaxed);
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame }])
        }
        .boxed()
    }
}

/// A column by its exact name.
fn named(column: &str) -> Expr {
    Expr::Column(datafusion::common::Column::new_unqualified(column))
}

/// Returns the values that more than one row has, with their number.
fn twice(rows: DataFrame, columns: &[String]) -> DataFusionResult<DataFrame> {
    let keys: Vec<Expr> = columns.iter().map(|column| named(column)).collect();
    let present = keys.iter().cloned().map(Expr::is_not_null).reduce(Expr::and);
    let rows = rows.filter(present.unwrap_or_else(|| lit(true)))?;
    let times = datafusion::functions_aggregate::expr_fn::count(lit(1_i64)).alias(TIMES);
    let groups = rows.aggregate(keys.clone(), vec![times])?.filter(named(TIMES).gt(lit(1_i64)))?;
    groups.sort(keys.into_iter().map(|key| key.sort(true, false)).collect())
}

/// Keeps the id and the named columns of the rows.
fn shown(rows: DataFrame, schema: &SchemaRef, columns: Vec<String>) -> DataFusionResult<DataFrame> {
    let mut kept: Vec<String> = schema.field_with_name("id").map(|id| id.name().clone()).into_iter().collect();
    let order = schema.fields().iter().map(|field| field.name()).filter(|name| columns.contains(*name));
    kept.extend(order.filter(|name| *name != "id").take(SHOWN).cloned());
    if kept.is_empty() {
        return Ok(rows);
    }
    rows.select(kept.iter().map(|name| named(name)).collect::<Vec<_>>())
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
    let issue = |check: &CheckSpec| port_issue(node, check, outputs).or_else(|| syntax_issue(check));
    node.checks.iter().filter_map(issue).collect()
}

fn syntax_issue(spec: &CheckSpec) -> Option<Diagnostic> {
    let Rule::Sql(text) = &spec.check.rule else { return None };
    if let Err((message, word)) = check_nesting(text) {
        let error = Diagnostic::error("bad-check", format!("`sql`: {message}")).at(spec.span, "").used_at(spec.via);
        return Some(Diagnostic { word: word.map(Box::new), ..error.help(SHORTER) });
    }
    let parsed = DFParserBuilder::new(text.as_str()).build().and_then(|mut parser| {
        if Rule::is_query(text) {
            parser.parse_statements().map(|all| all.len())
        } else {
            parser.parse_into_expr().map(|_| 1)
        }
    });
    let (message, word) = match parsed {
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

fn port_issue(node: &NodeSpec, spec: &CheckSpec, outputs: &IndexMap<String, PortType>) -> Option<Diagnostic> {
    let found = match &spec.check.port {
        None => outputs.first(),
        Some(port) => outputs.get_key_value(port),
    };
    let at = spec.port_span.unwrap_or(spec.span);
    let Some((port, port_type)) = found else {
        let port = spec.check.port.as_deref().unwrap_or_default();
        let names: Vec<&str> = outputs.keys().map(String::as_str).collect();
        let error = Diagnostic::error("unknown-port", format!("`{}` has no output `{port}`", node.id)).at(at, "");
        return Some(error.help(suggest(port, &names, "its outputs")));
    };
    let counts_rejects = matches!(spec.check.rule, Rule::Rejects { .. });
    if counts_rejects || matches!(port_type, PortType::Rows(_)) {
        return None;
    }
    let message = format!("`{}.{port}` is {port_type}, and has no rows to check", node.id);
    let tables: Vec<&str> =
        outputs.iter().filter(|(_, port)| matches!(port, PortType::Rows(_))).map(|(name, _)| name.as_str()).collect();
    let help = format!("write `port:` with one of its tables ({}), or check a node that makes rows", tables.join(", "));
    Some(Diagnostic::error("port-kind", message).at(at, "").help(help))
}

/// Returns the checks of a node that do not fit the known columns of its outputs.
pub(super) fn column_issues(node: &NodeSpec, default: Option<&str>, known: &Tables) -> Vec<Diagnostic> {
    let issue = |spec: &CheckSpec| {
        let schema = known.get(spec.check.port.as_deref().or(default)?)?;
        unfit(spec, schema)
    };
    node.checks.iter().filter_map(issue).collect()
}

fn unfit(spec: &CheckSpec, schema: &SchemaRef) -> Option<Diagnostic> {
    let bad = |message: String, at: Span| Diagnostic::error("bad-check", message).at(at, "");
    for (column, span) in &spec.columns {
        if let Some((message, help)) = unfit_column(&spec.check.rule, column, schema) {
            return Some(bad(message, *span).help(help));
        }
    }
    let query = Offenders::of(&spec.check.rule)?;
    let tables: Tables = BTreeMap::from([(ROWS.to_owned(), Arc::clone(schema))]);
    let error = planned(&query, &tables).err()?;
    let message = error.message.clone();
    let issue = ParamIssue::from(error);
    let error = bad(message, spec.span).used_at(spec.via);
    Some(Diagnostic { help: issue.help, word: issue.word.map(Box::new), ..error })
}

/// Returns why a rule cannot be applied to a column, and the remedy.
pub(crate) fn unfit_column(rule: &Rule, column: &str, schema: &SchemaRef) -> Option<(String, String)> {
    let Ok(field) = schema.field_with_name(column) else {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        return Some((format!("there is no column `{column}`"), suggest(column, &names, "columns")));
    };
    let kind = field.data_type();
    let is_number = kind.is_numeric() || matches!(kind, DataType::Null);
    let wants_number = matches!(rule, Rule::Range { .. });
    let help = "check texts and times with `sql`".to_owned();
    (wants_number && !is_number).then(|| (format!("`range` needs a column of numbers, and `{column}` is {kind}"), help))
}

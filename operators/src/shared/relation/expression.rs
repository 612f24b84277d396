//! SQL in params: parsed when the pipeline is checked, bound to columns when it runs.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, TableReference};
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::{Expr, LogicalPlan, Volatility, ident};
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::resolve::resolve_table_references;
use datafusion::sql::sqlparser::ast::{Expr as SqlExpr, Statement as SqlStatement, TableFactor, Visit, Visitor};
use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::{OperatorError, ParamIssue, SHORTER, check_nesting};
use searchmill_engine::plan::{explain, missing_input, parse_fault};

/// Returns an issue if `text` is not a valid SQL expression.
pub(crate) fn check_expression(path: &str, text: &str) -> Option<ParamIssue> {
    if text.trim().is_empty() {
        return Some(ParamIssue::new(path, "the SQL expression is empty"));
    }
    // Before the parser, which is recursive: a deep text would overflow its stack.
    if let Some(issue) = too_deep(path, text) {
        return Some(issue);
    }
    let parsed = DFParserBuilder::new(text).build().and_then(|mut parser| parser.parse_into_expr());
    match parsed {
        Ok(parsed) => refused(path, &parsed.expr),
        Err(error) => {
            let (reason, word) = parse_fault(text, &error);
            Some(ParamIssue::new(path, format!("not an SQL expression: {reason}")).about(word))
        }
    }
}

/// Returns an issue if `text` is not a valid key: a column name or an SQL expression. A plain name that is not SQL
/// (`Question Type`) is checked at run time, when the columns are known.
pub(crate) fn check_key(path: &str, text: &str) -> Option<ParamIssue> {
    let plain = !text.trim().is_empty() && text.chars().all(|c| c.is_alphanumeric() || " _-.:@/".contains(c));
    if plain { None } else { check_expression(path, text) }
}

/// Returns an issue for each invalid key of the list `path`.
pub(crate) fn check_keys(path: &str, keys: &[String]) -> Vec<ParamIssue> {
    let keys = keys.iter().enumerate();
    keys.filter_map(|(index, key)| check_key(&format!("{path}.{index}"), key)).collect()
}

/// Returns an issue if `text` is not a single read-only SQL query.
pub(crate) fn check_query(path: &str, text: &str) -> Option<ParamIssue> {
    if text.trim().is_empty() {
        return Some(ParamIssue::new(path, "the query is empty"));
    }
    if let Some(issue) = too_deep(path, text) {
        return Some(issue);
    }
    let parsed = DFParserBuilder::new(text).build().and_then(|mut parser| parser.parse_statements());
    match parsed {
        Ok(mut one) if one.len() == 1 => match one.pop_front() {
            Some(Statement::Statement(query)) if matches!(*query, SqlStatement::Query(_)) => refused(path, &query),
            _ => Some(ParamIssue::new(path, "expected a query (`SELECT …` or `WITH … SELECT …`)")),
        },
        Ok(all) => Some(ParamIssue::new(path, format!("expected one query, found {} statements", all.len()))),
        Err(error) => {
            let (reason, word) = parse_fault(text, &error);
            Some(ParamIssue::new(path, format!("not SQL: {reason}")).about(word))
        }
    }
}

fn too_deep(path: &str, text: &str) -> Option<ParamIssue> {
    let (message, word) = check_nesting(text).err()?;
    Some(ParamIssue::new(path, message).about(word).with_help(SHORTER))
}

fn refused(path: &str, text: &impl Visit) -> Option<ParamIssue> {
    let (message, help) = text.visit(&mut Refused).break_value()?;
    let word = message.split('`').nth(1).map(|word| Word::first(word.trim_end_matches("()")));
    Some(ParamIssue::new(path, message).about(word).with_help(help))
}

/// Finds in a query's text what its plan does not show: calls that planning replaces by values (`range(0, now())`),
/// and clauses that DataFusion ignores. Breaks with a message and a help text.
struct Refused;

impl Visitor for Refused {
    type Break = (String, &'static str);

    fn pre_visit_expr(&mut self, expression: &SqlExpr) -> ControlFlow<Self::Break> {
        let SqlExpr::Function(call) = expression else { return ControlFlow::Continue(()) };
        let name = call.name.to_string().trim_matches('"').to_lowercase();
        if UNREPEATABLE.contains(&name) {
            return ControlFlow::Break((gives_other_values(&name), ELSEWHERE));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &TableFactor) -> ControlFlow<Self::Break> {
        if let TableFactor::Table { sample: Some(_), .. } | TableFactor::Derived { sample: Some(_), .. } = table {
            let help = "sample the rows in an earlier node, with `sample`";
            return ControlFlow::Break(("`TABLESAMPLE` does nothing".to_owned(), help));
        }
        ControlFlow::Continue(())
    }
}

/// Names of the functions whose result changes between calls.
static UNREPEATABLE: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let mut names = BTreeSet::new();
    for function in SessionStateDefaults::default_scalar_functions() {
        if function.signature().volatility != Volatility::Immutable {
            names.insert(function.name().to_owned());
            names.extend(function.aliases().iter().cloned());
        }
    }
    names
});

/// Returns the tables that a query names, without table functions; `None` if it is no query.
pub(crate) fn tables_of(text: &str) -> Option<Vec<TableReference>> {
    check_nesting(text).ok()?;
    let mut statements = DFParserBuilder::new(text).build().ok()?.parse_statements().ok()?;
    let (mut tables, _) = resolve_table_references(&statements.pop_front()?, true).ok()?;
    let text = text.to_lowercase();
    // DataFusion lists table functions such as `range(0, 3)` too.
    tables.retain(|table| table.schema().is_some() || !is_called(&text, table.table()));
    Some(tables)
}

/// Returns an issue for the first table of a query that is not an input. Table functions are ignored.
pub(crate) fn check_tables(path: &str, text: &str, inputs: &[&str]) -> Option<ParamIssue> {
    let tables = tables_of(text)?;
    for table in &tables {
        let name = table.table();
        // A table with a schema is `information_schema.…` or, in `decide`, an output such as `step.steps`: planning finds it.
        if table.schema().is_none() && !inputs.iter().any(|input| input.eq_ignore_ascii_case(name)) {
            let (message, help) = missing_input(name, inputs);
            return Some(ParamIssue::new(path, message).about(Some(Word::first(name))).with_help(help));
        }
    }
    None
}

/// Whether the text contains `name(`.
fn is_called(text: &str, name: &str) -> bool {
    let name = name.to_lowercase();
    text.match_indices(&name).any(|(at, _)| text[at + name.len()..].trim_start().starts_with('('))
}

/// Binds a key: the column with exactly this name, otherwise an SQL expression.
pub(crate) fn key(session: &SessionContext, schema: &DFSchema, param: &str, text: &str) -> Result<Expr, OperatorError> {
    if schema.has_column_with_unqualified_name(text) {
        return Ok(ident(text));
    }
    let expression = session.parse_sql_expr(text, schema).map_err(|error| explain(param, error, &[]))?;
    require_repeatable(param, &expression)?;
    Ok(expression)
}

/// Rejects functions whose result changes between calls (`random()`, `now()`): their rows cannot be cached.
pub(crate) fn require_repeatable(param: &str, expression: &Expr) -> Result<(), OperatorError> {
    let mut found = None;
    expression.apply(|part| {
        found = unrepeatable(part);
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    repeatable(param, found)
}

/// Checks every expression of a plan in the same way, including subqueries.
pub(crate) fn require_repeatable_plan(param: &str, plan: &LogicalPlan) -> Result<(), OperatorError> {
    let mut found = None;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                // The first one is reported.
                if found.is_none() {
                    found = unrepeatable(part);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    repeatable(param, found)
}

fn repeatable(param: &str, found: Option<String>) -> Result<(), OperatorError> {
    let Some(name) = found else { return Ok(()) };
    Err(OperatorError::pipeline(format!("`{param}`: {}", gives_other_values(&name))).with_help(ELSEWHERE))
}

fn unrepeatable(part: &Expr) -> Option<String> {
    let Expr::ScalarFunction(call) = part else { return None };
    (call.func.signature().volatility != Volatility::Immutable).then(|| call.func.name().to_owned())
}

/// Help text for such a function.
const ELSEWHERE: &str = "put the value into `params:`, or use `sample` for seeded randomness";

fn gives_other_values(name: &str) -> String {
    format!("`{name}()` gives another value each time, so its result cannot be kept")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_that_does_not_parse_is_named_with_its_param() {
        assert_eq!(check_expression("where", "f1 >= 0.8 AND turns > 1"), None);
        for wrong in ["", "  ", "f1 >=", "f1 > 1; DROP TABLE x", "f1 > 1 turns > 2 3", "(f1", "'"] {
            assert!(check_expression("where", wrong).is_some_and(|issue| issue.path == "where"), "{wrong:?}");
        }
        assert_eq!(check_key("by.0", "Question Type"), None);
        assert!(check_key("by.0", "substr(").is_some());
    }

    #[test]
    fn tables_are_inputs_or_defined_in_the_query() {
        let missing = |text: &str| check_tables("query", text, &["t", "Scores"]).map(|issue| issue.message);
        let right = [
            "SELECT * FROM t JOIN scores s ON s.id = t.id",
            "WITH x AS (SELECT 1) SELECT * FROM x, t",
            "SELECT * FROM generate_series(1, 3)",
            "SELECT id FROM t WHERE id IN (SELECT id FROM \"Scores\")",
            "SELEC",
        ];
        for text in right {
            assert_eq!(missing(text), None, "{text}");
        }
        let there_is_none = Some("there is no input `scorse`".to_owned());
        assert_eq!(missing("SELECT * FROM t JOIN scorse s ON s.id = t.id"), there_is_none);
        assert_eq!(missing("SELECT id FROM t WHERE id IN (SELECT id FROM scorse)"), there_is_none);
        let help = check_tables("query", "SELECT * FROM scorse", &["t", "scores"]).and_then(|issue| issue.help);
        assert_eq!(help.as_deref(), Some("did you mean `scores`? inputs: `t`, `scores`"));
    }

    #[test]
    fn clocks_chance_and_passed_over_clauses_are_refused_wherever_they_stand() {
        for (text, wanted) in [
            ("SELECT * FROM range(0, date_part('second', now())::bigint)", "`now()` gives"),
            ("SELECT * FROM generate_series(0, CAST(random() * 9 AS BIGINT))", "`random()` gives"),
            ("SELECT id, CURRENT_TIMESTAMP FROM t", "`current_timestamp()` gives"),
            ("WITH x AS (SELECT uuid() AS u) SELECT u FROM x", "`uuid()` gives"),
            ("SELECT id FROM t ORDER BY RANDOM() LIMIT 3", "`random()` gives"),
            ("SELECT id FROM t TABLESAMPLE SYSTEM (10)", "`TABLESAMPLE` does nothing"),
        ] {
            let issue = check_query("query", text).unwrap_or_else(|| panic!("{text} passed"));
            assert!(issue.message.starts_with(wanted) && issue.help.is_some(), "{text}: {}", issue.message);
        }
        let inner = check_expression("where", "n IN (SELECT value FROM range(0, date_part('second', now())::bigint))");
        assert!(inner.is_some_and(|issue| issue.message.starts_with("`now()` gives")));
        assert_eq!(check_query("query", "SELECT date_part('year', d) AS now FROM t, range(0, 9) r"), None);
    }

    #[test]
    fn only_one_reading_query_passes() {
        assert_eq!(check_query("query", "WITH x AS (SELECT 1) SELECT * FROM x;"), None);
        let wrong =
            ["", "SELEC 1", "SELECT 1; SELECT 2", "DROP TABLE a", "COPY a TO 'x.csv'", "SET a = 1", "EXPLAIN SELECT 1"];
        for text in wrong {
            assert!(check_query("query", text).is_some(), "{text:?}");
        }
    }
}

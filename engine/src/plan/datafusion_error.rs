//! Translates DataFusion's errors for the user, with suggestions of similar names.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use searchmill_schemas::renamed;

use crate::diagnostic::Word;
use crate::error::OperatorError;
use crate::operator;
use crate::spec::closest;

/// Converts a planning error of the SQL in `param` to an operator error; `tables` are those that the SQL may name.
pub fn explain(param: &str, error: DataFusionError, tables: &[String]) -> OperatorError {
    let schema_error = match error.find_root() {
        DataFusionError::SchemaError(inner, _) => inner.as_ref(),
        DataFusionError::Plan(message) => return explain_plan(param, message, tables),
        other => return OperatorError::pipeline(format!("`{param}`: {}", other.strip_backtrace())),
    };
    match schema_error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let names: Vec<&str> = valid_fields.iter().map(|column| column.name.as_str()).collect();
            let error = OperatorError::pipeline(format!("`{param}`: there is no column `{}`", field.name));
            error.with_help(choices(&field.name, &names, "columns"))
        }
        SchemaError::AmbiguousReference { field } => {
            OperatorError::pipeline(format!("`{param}`: the column `{}` is in more than one input", field.name))
                .with_help(format!("write the input before it: `input.{}`", field.name))
        }
        other => OperatorError::pipeline(format!("`{param}`: {other}")),
    }
}

/// Checks the types of a plan, as its execution would.
///
/// # Errors
/// If an operator or a function has arguments of types that it does not take.
pub fn check_types(
    session: &SessionContext,
    param: &str,
    plan: &LogicalPlan,
    tables: &[String],
) -> Result<(), OperatorError> {
    let state = session.state();
    state.optimize(plan).map(drop).map_err(|error| explain(param, error, tables))
}

fn explain_plan(param: &str, message: &str, tables: &[String]) -> OperatorError {
    // DataFusion has no types for these errors: the names stand in its sentences.
    if let Some(table) = message.strip_prefix("table '").and_then(|rest| rest.strip_suffix("' not found")) {
        let name = table.rsplit('.').next().unwrap_or(table);
        let names: Vec<&str> = tables.iter().map(String::as_str).collect();
        let (message, help) = missing_input(name, &names);
        return OperatorError::pipeline(format!("`{param}`: {message}")).with_help(help);
    }
    let (first, rest) = message.split_once('\n').unwrap_or((message, ""));
    if let Some((name, _)) = first.strip_prefix("Invalid function '").and_then(|rest| rest.split_once('\'')) {
        let error = OperatorError::pipeline(format!("`{param}`: there is no function `{name}`"));
        return match rest.split('\'').nth(1) {
            Some(near) => error.with_help(format!("did you mean `{near}`?")),
            None => error,
        };
    }
    let error = OperatorError::pipeline(format!("`{param}`: {first}"));
    if first.contains("'json_") && first.contains("got Boolean") {
        // `a->>'b' = 'c'` is read as `a->>('b' = 'c')`.
        return error.with_help("write parentheses around the arrow: `(metadata->>'lang') = 'pl'`");
    }
    if rest.is_empty() { error } else { error.with_help(rest) }
}

/// Message and help for an unknown input table.
pub fn missing_input(table: &str, inputs: &[&str]) -> (String, String) {
    (format!("there is no input `{table}`"), choices(table, inputs, "inputs"))
}

/// Returns "did you mean …?" if a name is similar, and the list of all names.
fn choices(wrong: &str, names: &[&str], what: &str) -> String {
    let all = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match nearest(wrong, names) {
        Some(near) => format!("did you mean `{near}`? {what}: {all}"),
        None => format!("{what}: {all}"),
    }
}

/// Returns the new name of a renamed column, otherwise the most similar name if one is close enough.
fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    // First: the new name of a column need not be similar to the old one.
    let new = names.iter().find(|name| renamed(&wrong.to_lowercase()) == Some(**name));
    new.copied().or_else(|| closest(wrong, names.iter().copied()))
}

/// Returns what a parser reports about a text, and the word at the place that it names.
pub fn parse_fault(text: &str, error: &DataFusionError) -> (String, Option<Word>) {
    let reason = reason(&error.strip_backtrace());
    let word = word_at(text, &reason);
    (reason, word)
}

/// Limit of the parser.
const PARENTHESES: usize = 50;

fn reason(error: &str) -> String {
    let text = error.trim_start_matches("SQL error: ");
    if text.contains("RecursionLimitExceeded") {
        return format!("parentheses are nested more than {PARENTHESES} deep (limit)");
    }
    let text = text.strip_prefix("ParserError(\"").and_then(|rest| rest.strip_suffix("\")")).unwrap_or(text);
    text.replace("\\\"", "\"")
}

/// Returns the word at the place that a parser's message names (`… at Line: 1, Column: 8`).
fn word_at(text: &str, reason: &str) -> Option<Word> {
    let (line, column) = reason.rsplit_once("Line: ")?.1.split_once(", Column: ")?;
    operator::word_at(text, line.trim().parse().ok()?, column.trim().parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_offered_and_far_ones_are_not() {
        assert_eq!(nearest("tool_call", &["id", "tool_calls", "tools"]), Some("tool_calls"));
        assert_eq!(nearest("Turns", &["turns"]), Some("turns"));
        assert_eq!(nearest("rounds", &["id", "turns"]), Some("turns"));
        assert_eq!(nearest("rounds", &["id", "grounded"]), None);
        assert_eq!(nearest("difficulty", &["id", "tool_calls"]), None);
    }
}

//! `best:` and `stop:` of a loop: a node after each round (`rl@round=3`) that decides whether the loop ends, and which round
//! it hands on. It reads the tables that its queries name, and its own result of the round before.

use std::collections::BTreeMap;

use datafusion::common::TableReference;
use datafusion::sql::parser::DFParserBuilder;
use datafusion::sql::resolve::resolve_table_references;

use super::field::{self, Fields, Problems, take};
use super::model::{Binding, NodeSpec, Reference};
use super::rounds::bad;
use super::suggest;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span, Word};
use crate::operator::check_nesting;

/// The table of the rounds so far, in queries, and the input with those before.
const ROUNDS: &str = "rounds";

const STOP: &[&str] = &["when", "patience", "watch"];

/// Takes `best` and `stop` from the fields of a loop. Returns the node that decides, as an entry of `nodes:` without inputs
/// and without an operator, and whether it may end the loop.
pub(super) fn entry(name: &Key, fields: &mut Fields, problems: &mut Problems) -> Option<((Key, Spanned), bool)> {
    // Both are params of the node that decides: what they refer to is resolved with it, round by round.
    let (best, stop) = (take(fields, "best"), take(fields, "stop"));
    let span = best.as_ref().or(stop.as_ref())?.span;
    let mut with = Fields::new();
    if let Some(best) = best {
        with.push((key("best", best.span), best));
    }
    let stops = stop.is_some();
    if let Some(stop) = stop {
        let at = stop.span;
        let is_map = matches!(stop.value, Value::Map(_) | Value::Null);
        let conditions = field::fields(stop, "`stop`", STOP, problems);
        if conditions.is_empty() && is_map {
            let fault = bad(at, format!("`stop` of the loop `{}` has no condition", name.text));
            problems.push(fault.help("write `when`, `patience` or `watch`, or remove `stop`"));
        }
        with.extend(conditions.into_iter().filter(|(key, _)| STOP.contains(&key.text.as_str())));
    }
    // The plan sets the operator: the spec knows no names of operators.
    let operator = Spanned::new(Value::String(String::new()), name.span);
    let body = vec![(key("op", name.span), operator), (key("with", span), Spanned::new(Value::Map(with), span))];
    Some(((name.clone(), Spanned::new(Value::Map(body), name.span)), stops))
}

fn key(text: &str, span: Span) -> Key {
    Key { text: text.to_owned(), span }
}

/// Binds the tables that queries name to the nodes of their loop.
pub(super) struct Binder<'l> {
    /// The loop.
    name: &'l str,
    /// The ids of its nodes, without rounds.
    own: Vec<&'l str>,
    /// The tables of each query, which is the same one in most rounds.
    known: BTreeMap<String, Vec<TableReference>>,
    /// Whether all files with nodes of the loop were read: else a table that is not there is no mistake.
    is_whole: bool,
}

impl<'l> Binder<'l> {
    pub(super) fn new(name: &'l str, own: impl Iterator<Item = &'l str>, is_whole: bool) -> Self {
        Self { name, own: own.collect(), known: BTreeMap::new(), is_whole }
    }

    /// Binds the inputs of a node that decides. A query with a table that is not there was reported: it is not read again.
    pub(super) fn bind(&mut self, node: &mut NodeSpec, problems: &mut Problems) {
        let mut from: BTreeMap<String, Binding> = BTreeMap::new();
        for query in queries(&mut node.with) {
            let Value::String(text) = &query.value else { continue };
            // The same query stands in every round: it is parsed once.
            let tables = self.known.entry(text.clone()).or_insert_with(|| tables(text)).clone();
            for table in &tables {
                let port = match table.schema() {
                    Some(node) => format!("{node}.{}", table.table()),
                    None => table.table().to_owned(),
                };
                match self.reference(table, query) {
                    Ok(Some(reference)) => {
                        let port_span = query.span;
                        let references = vec![reference];
                        from.entry(port.clone()).or_insert(Binding { port: Some(port), port_span, references });
                    }
                    Ok(None) => {}
                    Err(fault) => {
                        if self.is_whole {
                            problems.push(*fault);
                        }
                        // Its operator would report the same table again.
                        query.value = Value::Broken;
                        break;
                    }
                }
            }
        }
        // The decisions build a chain: each sees the figures of all rounds before it.
        if let Some(before) = node.round().and_then(|(_, round)| round.checked_sub(1)) {
            let reference = Reference { round: Some(before), ..Reference::to(self.name.to_owned(), node.id_span) };
            let binding =
                Binding { port: Some(ROUNDS.to_owned()), port_span: node.id_span, references: vec![reference] };
            from.insert(ROUNDS.to_owned(), binding);
        }
        node.from = from.into_values().collect();
    }

    /// Returns the output that a query means by a table; `None`: no output of a node.
    fn reference(&self, table: &TableReference, query: &Spanned) -> Result<Option<Reference>, Box<Diagnostic>> {
        let (name, port) = match table.schema() {
            Some(node) => (node, Some(table.table())),
            None => (table.table(), None),
        };
        // SQL folds names that are not quoted to lower case.
        let node = self.own.iter().find(|own| own.eq_ignore_ascii_case(name));
        let fault = match (node, port) {
            (Some(_), None) if name == ROUNDS => {
                let fault = bad(query.span, format!("`{ROUNDS}` is the table of the rounds so far, and a node"));
                fault.help("rename the node")
            }
            (Some(node), Some(port)) => return Ok(Some(Reference::to(format!("{node}.{port}"), query.span))),
            (Some(node), None) => return Ok(Some(Reference::to((*node).to_owned(), query.span))),
            (None, None) if name == ROUNDS => return Ok(None),
            (None, _) => {
                let message = format!("there is no node `{name}` in the loop `{}`", self.name);
                let known = [self.own.as_slice(), &[ROUNDS]].concat();
                let fault = Diagnostic::error("unknown-node", message).at(query.span, "");
                fault.help(suggest::suggest(name, &known, "its tables"))
            }
        };
        let fault = fault.used_at(query.via);
        Err(Box::new(Diagnostic { word: Some(Box::new(Word::first(name))), ..fault }))
    }
}

/// Returns the queries among the params of a node that decides.
fn queries(with: &mut Spanned) -> Vec<&mut Spanned> {
    let Value::Map(entries) = &mut with.value else { return Vec::new() };
    let mut found = Vec::new();
    for (key, value) in entries {
        match key.text.as_str() {
            "best" | "when" => found.push(value),
            "watch" => {
                if let Value::Map(watched) = &mut value.value {
                    found.extend(watched.iter_mut().map(|(_, query)| query));
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns the tables that a query names; none if it is not one query, which its operator reports.
fn tables(text: &str) -> Vec<TableReference> {
    if check_nesting(text).is_err() {
        return Vec::new();
    }
    let statements = DFParserBuilder::new(text).build().and_then(|mut parser| parser.parse_statements());
    let Ok(mut statements) = statements else { return Vec::new() };
    let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else { return Vec::new() };
    let (mut tables, _) = resolve_table_references(&statement, true).unwrap_or_default();
    // SQL ignores the case of names that are not quoted.
    let text = text.to_lowercase();
    tables.retain(|table| {
        // Table functions are called by their names, and are no tables of a node.
        let name = table.table().to_lowercase();
        let mut uses = text.match_indices(&name);
        table.schema().is_some() || !uses.any(|(at, _)| text[at + name.len()..].trim_start().starts_with('('))
    });
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_nodes_and_their_other_outputs() {
        let named = |text: &str| tables(text).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            named("select max(a) from validation where n in (select n from step.steps)"),
            ["validation", "step.steps"]
        );
        assert_eq!(named("with x as (select 1) select * from x, generate_series(1, 3)"), Vec::<String>::new());
        assert!(named("selec").is_empty() && named("select 1; select 2 from t").is_empty());
    }
}

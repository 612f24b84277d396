//! Tests of a pipeline: the outputs that they name, and endpoints that a script plays.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::Value;

use super::graph::Plan;
use crate::diagnostic::Diagnostic;
use crate::operator::{OperatorError, PortType, RetryPolicy};
use crate::spec::{Rows, TestCase, suggest};

/// Outputs of the nodes by id.
type Outputs<'a> = BTreeMap<&'a str, &'a IndexMap<String, PortType>>;

/// Returns the outputs named in tests that do not exist, or are folders.
pub(super) fn test_issues(tests: &[TestCase], outputs: &Outputs<'_>) -> Vec<Diagnostic> {
    let named =
        tests.iter().flat_map(|test| test.given.iter().chain(test.expect.iter().map(|expected| &expected.rows)));
    named.filter_map(|rows| issue(rows, outputs)).collect()
}

fn issue(rows: &Rows, outputs: &Outputs<'_>) -> Option<Diagnostic> {
    let error = |message: String| Diagnostic::error("unknown-output", message).at(rows.span, "");
    let (node, port) = split(&rows.output, |id| outputs.contains_key(id));
    let Some(ports) = outputs.get(node) else {
        let names: Vec<&str> = outputs.keys().copied().collect();
        let help = suggest(node, &names, "nodes");
        return Some(error(format!("there is no node `{node}`")).help(help));
    };
    let found = port.map_or_else(|| ports.first(), |port| ports.get_key_value(port));
    match found {
        Some((_, PortType::Rows(_))) => None,
        Some((port, kind)) => {
            let help = "a test gives and expects rows: name a node that makes a table";
            Some(error(format!("`{node}.{port}` is {kind}")).help(help))
        }
        None => {
            let names: Vec<&str> = ports.keys().map(String::as_str).collect();
            let port = port.unwrap_or_default();
            Some(error(format!("`{node}` has no output `{port}`")).help(suggest(port, &names, "its outputs")))
        }
    }
}

/// Splits `NODE.PORT`; the whole text is tried first.
fn split(text: &str, is_node: impl Fn(&str) -> bool) -> (&str, Option<&str>) {
    match text.rsplit_once('.') {
        Some((node, port)) if !is_node(text) => (node, Some(port)),
        _ => (text, None),
    }
}

impl Plan {
    /// Returns the node and the port that a test names.
    pub fn output_named(&self, text: &str) -> Option<(usize, &str)> {
        let (node, port) = split(text, |id| self.by_id.contains_key(id));
        let (place, node) = self.node(node)?;
        let port = match port {
            Some(port) => node.outputs.get_key_value(port)?.0,
            None => node.outputs.first()?.0,
        };
        Some((place, port))
    }

    /// Replaces the addresses of all endpoints and services that a node calls by another one; its rows run one after
    /// another, and no call is retried.
    ///
    /// # Errors
    /// Fails if an address does not stand in the node's params, so that a real endpoint would be called.
    pub fn redirect(&mut self, place: usize, address: &str) -> Result<(), OperatorError> {
        let node = &mut self.nodes[place];
        node.spec.retry = RetryPolicy { max_attempts: 1, ..node.spec.retry };
        node.spec.resources.concurrency = Some(1);
        let called: Vec<String> =
            node.operator.declaration.endpoints().map(|endpoint| endpoint.address.clone()).collect();
        if called.is_empty() {
            return Ok(());
        }
        let mut params = node.operator.params.clone();
        for old in &called {
            if replace(&mut params, old, address) == 0 {
                let id = &node.spec.id;
                let error = OperatorError::pipeline(format!("the calls of `{id}` to {old} cannot be played by a test"));
                return Err(error.with_help(format!("give rows for it: `given: {{{id}: […]}}`")));
            }
        }
        node.operator = (node.entry.bind)(params)
            .map_err(|issue| OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message)))?;
        Ok(())
    }
}

/// Replaces the beginning of all strings that are, or continue, an address; returns their number.
fn replace(value: &mut Value, old: &str, new: &str) -> usize {
    match value {
        Value::String(text) => {
            let rest = text.strip_prefix(old).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
            let Some(rest) = rest.map(str::to_owned) else { return 0 };
            *text = format!("{new}{rest}");
            1
        }
        Value::Array(items) => items.iter_mut().map(|item| replace(item, old, new)).sum(),
        Value::Object(fields) => fields.iter_mut().map(|(_, value)| replace(value, old, new)).sum(),
        _ => 0,
    }
}

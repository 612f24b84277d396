//! Tests of a pipeline: the outputs that they name, and endpoints that a script plays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use indexmap::IndexMap;
use petgraph::graph::NodeIndex;
use serde_json::Value;

use super::graph::{Node, Plan};
use super::services::identity;
use crate::diagnostic::Diagnostic;
use crate::endpoint::services_in;
use crate::error::OperatorError;
use crate::operator::{PortType, RetryPolicy, texts};
use crate::spec::{Rows, TestCase, service_of, suggest};

/// Outputs of the nodes by id.
type Outputs<'a> = BTreeMap<&'a str, &'a IndexMap<String, PortType>>;

/// Returns the outputs named in tests that do not exist, or are folders.
pub(super) fn test_issues(tests: &[TestCase], outputs: &Outputs<'_>) -> Vec<Diagnostic> {
    let mut issues = Vec::new();
    for test in tests {
        for rows in test.given.iter().chain(test.expect.iter().map(|expected| &expected.rows)) {
            // With params of its own, a matrix may have other variants: they are checked when the test runs.
            if test.params.is_empty() || !rows.output.contains('@') {
                issues.extend(issue(rows, outputs));
            }
        }
    }
    issues
}

fn issue(rows: &Rows, outputs: &Outputs<'_>) -> Option<Diagnostic> {
    let (node, port) = split(&rows.output, |id| outputs.contains_key(id));
    let (message, help) = if let Some(ports) = outputs.get(node) {
        let output = port.map_or_else(|| ports.first(), |port| ports.get_key_value(port));
        match output {
            Some((_, PortType::Rows(_))) => return None,
            Some((port, kind)) => {
                let help = "a test gives and expects rows: name a node that makes a table";
                (format!("`{node}.{port}` is {kind}"), help.to_owned())
            }
            None => {
                let names: Vec<&str> = ports.keys().map(String::as_str).collect();
                let port = port.unwrap_or_default();
                (format!("`{node}` has no output `{port}`"), suggest(port, &names, "its outputs"))
            }
        }
    } else {
        let names: Vec<&str> = outputs.keys().copied().collect();
        (format!("there is no node `{node}`"), suggest(node, &names, "nodes"))
    };
    Some(Diagnostic::error("unknown-output", message).at(rows.span, "").help(help))
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
    pub fn output_named(&self, text: &str) -> Option<(NodeIndex, &str)> {
        let (node, port) = split(text, |id| self.by_id.contains_key(id));
        let (index, node) = self.node(node)?;
        let port = match port {
            Some(port) => node.outputs.get_key_value(port)?.0,
            None => node.outputs.first()?.0,
        };
        Some((index, port))
    }

    /// Replaces the addresses of all endpoints and services that a node calls by another one; its rows run one after
    /// another, and no call is retried. Services that nothing refers to any more are removed with their inputs.
    ///
    /// # Errors
    /// Fails if an address does not stand in the node's params, so that a real endpoint would be called.
    pub fn redirect(&mut self, index: NodeIndex, address: &str) -> Result<(), OperatorError> {
        let node = &mut self.nodes[index.index()];
        node.spec.retry = RetryPolicy { max_attempts: 1, ..node.spec.retry };
        // A script answers in order: parallel rows would take each other's answers.
        node.spec.resources.concurrency = Some(1);
        // Several services may have one address.
        let called: BTreeSet<String> =
            node.operator.declaration.endpoints().map(|endpoint| endpoint.address.clone()).collect();
        if called.is_empty() {
            return Ok(());
        }
        let before = services_of(&node.operator.params);
        let mut params = node.operator.params.clone();
        // The longer of two addresses first: the other one may be its beginning.
        for old in called.iter().rev() {
            if replace(&mut params, old, address) == 0 {
                let id = &node.spec.id;
                let error = OperatorError::pipeline(format!("the calls of `{id}` to {old} cannot be played by a test"));
                return Err(error.with_help(format!("give rows for it: `given: {{{id}: […]}}`")));
            }
        }
        let bound = (node.entry.bind)(params)
            .map_err(|issue| OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message)))?;
        node.operator = Arc::new(bound);
        let left = services_of(&node.operator.params);
        let sources = drop_services(node, &before.difference(&left).cloned().collect());
        for source in sources {
            // The nodes that only a replaced service read need not run in the test.
            if let Some(edge) = self.graph.find_edge(source, index) {
                self.graph.remove_edge(edge);
            }
        }
        Ok(())
    }
}

/// Removes services from a node; returns the nodes that only these services read.
fn drop_services(node: &mut Node, replaced: &BTreeSet<String>) -> BTreeSet<NodeIndex> {
    let mut unused: BTreeSet<NodeIndex> = node.inputs.iter().map(|input| input.node).collect();
    node.inputs.retain(|input| service_of(&input.port).is_none_or(|service| !replaced.contains(service)));
    node.spec.services.retain(|service| !replaced.contains(&service.name));
    node.services = identity(&node.spec.services, &node.operator.params);
    // Another input may read the same node.
    unused.retain(|index| node.inputs.iter().all(|input| input.node != *index));
    unused
}

/// Returns the services that params refer to.
fn services_of(params: &Value) -> BTreeSet<String> {
    texts(params).into_iter().flat_map(|(_, text)| services_in(text)).map(str::to_owned).collect()
}

/// Replaces the beginning of all strings that are, or continue, an address; returns their number.
fn replace(value: &mut Value, old: &str, new: &str) -> usize {
    match value {
        Value::String(text) => match text.strip_prefix(old) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?', '#']) => {
                *text = format!("{new}{rest}");
                1
            }
            _ => 0,
        },
        Value::Array(items) => items.iter_mut().map(|item| replace(item, old, new)).sum(),
        Value::Object(fields) => fields.values_mut().map(|value| replace(value, old, new)).sum(),
        _ => 0,
    }
}

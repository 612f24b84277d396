//! Checks params against the columns that are known before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use petgraph::graph::NodeIndex;
use serde_json::json;

use super::bind::bad_param;
use super::graph::Plan;
use super::result_checks;
use crate::diagnostic::Diagnostic;
use crate::fingerprint::{Digest, encode, hash_bytes};
use crate::operator::{PortType, Tables};

impl Plan {
    /// Returns what does not fit the columns of its inputs, by node. Columns are known where the operators between a source
    /// of a fixed record kind and the node say what they give.
    pub fn column_issues(&self) -> Vec<(NodeIndex, Diagnostic)> {
        self.known_columns().1
    }

    /// Identifies all that [`Plan::column_issues`] depends on.
    pub fn columns_digest(&self) -> Digest {
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut inputs = Vec::new();
            for input in &node.inputs {
                inputs.push(json!([input.port, input.node.index(), input.output, input.port_type.to_string()]));
            }
            let outputs: Vec<_> = node.outputs.iter().map(|(port, kind)| json!([port, kind.to_string()])).collect();
            let checks: Vec<_> = node.spec.checks.iter().map(|spec| json!(spec.check)).collect();
            let params = &node.operator.params;
            nodes.push(json!([node.id(), node.entry.name, node.version(), params, inputs, outputs, checks]));
        }
        // Another version of the program may know other rules of columns.
        hash_bytes(&encode(&json!([env!("CARGO_PKG_VERSION"), nodes])))
    }

    /// Returns the known columns of the outputs of each node, and what does not fit them.
    pub fn known_columns(&self) -> (Vec<Tables>, Vec<(NodeIndex, Diagnostic)>) {
        let mut known: Vec<Tables> = Vec::with_capacity(self.nodes.len());
        let mut found = Vec::new();
        for (index, node) in self.indexed() {
            let mut at_port: BTreeMap<&str, usize> = BTreeMap::new();
            for input in node.inputs.iter().filter(|input| matches!(input.port_type, PortType::Rows(_))) {
                *at_port.entry(&input.port).or_default() += 1;
            }
            let mut tables = Tables::new();
            for input in &node.inputs {
                let columns = known.get(input.node.index()).and_then(|outputs| outputs.get(&input.output));
                // The columns of an input port that takes several tables are never known.
                if let (Some(columns), Some(1)) = (columns, at_port.get(input.port.as_str())) {
                    tables.insert(input.port.clone(), Arc::clone(columns));
                }
            }
            let complete = !tables.is_empty() && tables.len() == at_port.values().sum::<usize>();
            let rules = &node.operator.declaration.tables;
            let (mut outputs, issues) = rules.apply(&tables, complete);
            // Only for outputs that are still unknown: exact columns stay as they are.
            for (port, columns) in rules.at_most(&tables) {
                outputs.entry(port).or_insert(columns);
            }
            found.extend(issues.into_iter().map(|issue| (index, bad_param(issue, &node.spec))));
            let unfit = result_checks::column_issues(&node.spec, node.default_output(), &outputs);
            found.extend(unfit.into_iter().map(|issue| (index, issue)));
            known.push(outputs);
        }
        (known, found)
    }
}

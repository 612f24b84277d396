//! Binds ports left open that take the rejects behind another input.

use std::collections::BTreeSet;

use searchmill_schemas::RecordKind;

use super::graph::{Input, Node, Tie};
use crate::operator::{Effect, PortType};

/// Binds such ports to the rejects of the external nodes that produced the rows of the other input, directly or through
/// nodes that pass on rows of the same kind, and sorts the inputs. `before`: the nodes before it in the plan.
pub(super) fn with_rejects(node: &mut Node, before: &[Node]) {
    // Bound again after a loop has ended: the old ones may be of rounds that did not run.
    node.inputs.retain(|input| input.tie != Tie::Implied);
    for port in &node.operator.declaration.ports.inputs {
        let Some(main) = &port.rejects_of else { continue };
        if node.inputs.iter().any(|input| input.port == port.name) {
            continue;
        }
        let mut pending: Vec<&Input> = node.inputs.iter().filter(|input| input.port == *main).collect();
        let (mut seen, mut makers) = (BTreeSet::new(), BTreeSet::new());
        while let Some(input) = pending.pop() {
            let Some(maker) = before.get(input.node.index()) else { continue };
            // Several inputs may come from one node, which is followed once.
            if !seen.insert(input.node) {
                continue;
            }
            if maker.operator.declaration.effect == Effect::External {
                makers.insert(input.node);
            }
            // Rows of another kind are other rows: their rejects were none of these.
            pending.extend(maker.inputs.iter().filter(|next| next.port_type == input.port_type));
        }
        for maker in makers {
            node.inputs.push(Input {
                port: port.name.clone(),
                node: maker,
                output: "rejects".to_owned(),
                port_type: PortType::Rows(RecordKind::Reject),
                tie: Tie::Implied,
            });
        }
    }
    // The key has the inputs in the order of the ports; those of services come last.
    let ports = &node.operator.declaration.ports.inputs;
    node.inputs.sort_by_key(|input| ports.iter().position(|port| port.name == input.port).unwrap_or(usize::MAX));
}

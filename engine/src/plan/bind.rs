//! Binds a spec to the registry: operators, params, edges, types. Reports all errors together.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::Value;

use super::edges::{Edge, check_edges, check_missing, output_of, output_types, port_of};
use super::gather::gather;
use super::graph::{Input, Node, Plan, Tie};
use super::loops::{Loops, order_of};
use super::paths::{NOT_FOUND, check_destinations, check_sources, find_text};
use super::pipeline_test::test_issues;
use super::rejects::with_rejects;
use super::result_checks::check_issues;
use super::services::{identity, ports_of, with_files_of_services};
use super::unsupported_settings::check_settings;
use crate::diagnostic::Diagnostic;
use crate::endpoint::has_user_info;
use crate::fingerprint::{identity_params, row_params};
use crate::node_id::NodeId;
use crate::operator::{
    BoundOperator, CommandSources, Declaration, OperatorEntry, OutputType, ParamIssue, PortType, Registry, Source,
    texts,
};
use crate::spec::{Binding, NodeSpec, Reference, Spec, arguments, closest, locate, meant_node, suggest};

/// Binds and checks a spec. Relative paths start at `directory`.
///
/// # Errors
/// Fails with every error found.
pub(crate) fn bind(
    mut spec: Spec,
    file: &Path,
    directory: &Path,
    registry: &Registry,
) -> Result<Plan, Vec<Diagnostic>> {
    let mut errors = Vec::new();
    choose_deciding(&mut spec, registry, &mut errors);
    // First without the nodes that gather: which ones are needed depends on the ports of the others.
    let mut bound = bind_operators(&spec.nodes, registry, directory, &mut errors);
    if let Some(entry) = registry.iter().find(|entry| entry.gathers) {
        let ports: Vec<_> = bound.iter().map(|bound| Some(&bound.as_ref()?.operator.declaration.ports)).collect();
        let gathering = gather(&mut spec.nodes, &ports, entry);
        bound.extend(bind_operators(&gathering, registry, directory, &mut errors));
        spec.nodes.extend(gathering);
    }
    let by_id = indices_of(spec.nodes.iter().map(|node| &node.id));
    if spec.for_tests {
        // A test may give the rows of the file.
        errors.retain(|error| error.code != NOT_FOUND);
    }
    check_currencies(&spec.nodes, &bound, &mut errors);
    let outside = bound.iter().map(|bound| match bound {
        Some(bound) => (bound.sources.as_slice(), bound.operator.declaration.destinations()),
        None => Default::default(),
    });
    check_destinations(&spec, &outside.collect::<Vec<_>>(), directory, &mut errors);
    if let Some(order) = order(&spec, &by_id, &mut errors) {
        let wired = wire(&spec, &bound, &by_id, &order, &mut errors);
        // A test may name any node: without the outputs of all, a name that is right would seem to be wrong.
        if wired.iter().all(Option::is_some) {
            let mut outputs = BTreeMap::new();
            for (node, wired) in spec.nodes.iter().zip(wired.iter().flatten()) {
                outputs.insert(node.id.as_str(), &wired.outputs);
            }
            errors.extend(test_issues(&spec.tests, &outputs));
            // A node whose value could not be read is not bound; the reader has reported it.
            if errors.is_empty() && bound.iter().all(Option::is_some) {
                return Ok(assemble(spec, file, bound, wired, &order));
            }
        }
    }
    // In the order of the text, whatever the order of the checks.
    errors.sort_by_key(|error| error.span().map(|span| (span.file, span.start)));
    Err(errors)
}

/// Gives the nodes that decide after the rounds of loops their operator.
fn choose_deciding(spec: &mut Spec, registry: &Registry, errors: &mut Vec<Diagnostic>) {
    let Some(first) = spec.loops.first() else { return };
    let Some(entry) = registry.iter().find(|entry| entry.decides) else {
        let error = Diagnostic::error("unknown-operator", "no operator of this program decides about loops");
        errors.push(error.at(first.span, "").help("remove `best` and `stop`"));
        // The nodes that would decide have no operator: each would be reported once more.
        spec.nodes.retain(|node| !node.operator.is_empty());
        return;
    };
    let rounds = spec.loops.iter().flat_map(|repeats| &repeats.rounds);
    let deciding: BTreeSet<&str> = rounds.map(|round| round.decision.as_str()).collect();
    for node in &mut spec.nodes {
        if deciding.contains(node.id.as_str()) {
            entry.name.clone_into(&mut node.operator);
        }
    }
}

struct Bound {
    entry: OperatorEntry,
    operator: BoundOperator,
    identity_params: Value,
    row_params: Value,
    services: Value,
    sources: Vec<Source>,
}

fn bind_operators(
    nodes: &[NodeSpec],
    registry: &Registry,
    directory: &Path,
    errors: &mut Vec<Diagnostic>,
) -> Vec<Option<Bound>> {
    let mut schemas: BTreeMap<&str, Value> = BTreeMap::new();
    let mut bound = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(entry) = registry.get(&node.operator) else {
            let help = match closest(&node.operator, registry.iter().map(|entry| entry.name)) {
                Some(name) => format!("did you mean `{name}`?"),
                None => "`searchmill ops` lists all operators".to_owned(),
            };
            let error = Diagnostic::error("unknown-operator", format!("there is no operator `{}`", node.operator));
            errors.push(error.at(node.operator_span, "").help(help));
            bound.push(None);
            continue;
        };
        // A matrix may have thousands of nodes of one operator: its schema is generated once.
        let schema = schemas.entry(entry.name).or_insert_with(entry.schema);
        bound.push(bind_operator(node, entry, schema, registry.commands(), directory, errors));
    }
    bound
}

fn bind_operator(
    node: &NodeSpec,
    entry: &OperatorEntry,
    schema: &Value,
    commands: CommandSources,
    directory: &Path,
    errors: &mut Vec<Diagnostic>,
) -> Option<Bound> {
    let params = match arguments(&node.with, schema, entry.name) {
        Ok(params) => params,
        Err(found) => {
            errors.extend(found);
            return None;
        }
    };
    let mut operator = match (entry.bind)(params) {
        Ok(operator) => operator,
        Err(issue) => {
            errors.push(bad_param(reworded(issue, entry.name), node));
            return None;
        }
    };
    errors.extend(operator.declaration.issues.iter().map(|issue| bad_param(issue.clone(), node)));
    errors.extend(with_user_info(node, &operator.params));
    check_settings(node, &operator.declaration, errors);
    let services = identity(&node.services, &operator.params);
    let declaration = std::mem::take(&mut operator.declaration);
    operator.declaration = with_files_of_services(declaration, &services, commands);
    let sources = operator.declaration.sources(directory);
    check_sources(node, &sources, directory, errors);
    errors.extend(operator.declaration.file_issues(directory).into_iter().map(|issue| bad_param(issue, node)));
    let identity_params = identity_params(schema, &operator.params);
    let row_params = row_params(schema, &operator.params);
    Some(Bound { entry: *entry, operator, identity_params, row_params, services, sources })
}

/// Rejects params that are URLs with a user name or password.
fn with_user_info(node: &NodeSpec, params: &Value) -> Vec<Diagnostic> {
    const HELP: &str = "URLs stand in results, runs and messages: leave `user:password@` out. Endpoints take \
         `api_key: ${secret:NAME}`, data sources the environment variables of their own tools (AWS_…, HF_TOKEN)";
    let mut errors = Vec::new();
    for (path, _) in texts(params).into_iter().filter(|(_, text)| has_user_info(text)) {
        let message = format!("`{path}` of `{}` is a URL with a user name or password in it", node.id);
        let (span, via) = locate(&node.with, &path);
        errors.push(Diagnostic::error("user-info", message).at(span, "").used_at(via).help(HELP));
    }
    errors
}

pub(super) fn bad_param(issue: ParamIssue, node: &NodeSpec) -> Diagnostic {
    let (span, via) = locate(&node.with, &issue.path);
    let error = Diagnostic::error("bad-param", issue.message).at(span, "").used_at(via);
    Diagnostic { help: issue.help, word: issue.word.map(Box::new), ..error }
}

/// Rewords serde's ``unknown variant `a`, expected one of `b`, `c` `` like all other errors.
fn reworded(issue: ParamIssue, operator: &str) -> ParamIssue {
    // The schema lets through what a deserialiser of its own reads, and serde's error has the names in its sentence only.
    let Some(rest) = issue.message.strip_prefix("unknown variant ") else { return issue };
    let quoted: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let ([wrong, known @ ..], Some(param)) = (quoted.as_slice(), issue.path.rsplit('.').find(|part| !part.is_empty()))
    else {
        return issue;
    };
    let message = format!("`{param}` of `{operator}` cannot be `{wrong}`");
    ParamIssue { help: Some(suggest(wrong, known, "it can be")), message, ..issue }
}

/// Checks that all prices use one currency: a run adds up costs.
fn check_currencies(nodes: &[NodeSpec], bound: &[Option<Bound>], errors: &mut Vec<Diagnostic>) {
    let mut first: Option<&String> = None;
    for (node, bound) in nodes.iter().zip(bound) {
        let endpoints = bound.iter().flat_map(|bound| bound.operator.declaration.endpoints());
        for currency in endpoints.filter_map(|endpoint| Some(&endpoint.prices.as_ref()?.currency)) {
            let first = *first.get_or_insert(currency);
            if first != currency {
                let message =
                    format!("prices are in {currency} here and in {first} above: a run counts in one currency");
                let span = find_text(&node.with, currency).unwrap_or(node.with.span);
                errors.push(Diagnostic::error("currencies", message).at(span, ""));
            }
        }
    }
}

fn indices_of<'n>(ids: impl Iterator<Item = &'n NodeId>) -> BTreeMap<NodeId, NodeIndex> {
    ids.enumerate().map(|(position, id)| (id.clone(), NodeIndex::new(position))).collect()
}

/// Returns the nodes in topological order, otherwise as written; `None` if the graph has a cycle.
fn order(spec: &Spec, by_id: &BTreeMap<NodeId, NodeIndex>, errors: &mut Vec<Diagnostic>) -> Option<Vec<NodeIndex>> {
    let nodes = &spec.nodes;
    let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(nodes.len(), nodes.len());
    for _ in nodes {
        graph.add_node(());
    }
    let names: Vec<&str> = by_id.keys().map(NodeId::as_str).collect();
    for (index, node) in nodes.iter().enumerate() {
        for reference in node.bindings().flat_map(|binding| &binding.references) {
            if let Some(from) = by_id.get(reference.node.as_str()) {
                graph.update_edge(*from, NodeIndex::new(index), ());
            } else if !spec.lacks_files && !spec.is_duplicate(&reference.node) {
                let error = Diagnostic::error("unknown-node", format!("there is no node `{}`", reference.node));
                errors.push(error.at(reference.span, "").help(meant_node(&reference.node, &names)));
            }
        }
    }
    for (before, after) in order_of(&spec.loops, nodes, by_id) {
        graph.update_edge(before, after, ());
    }
    if let Err(cycle) = petgraph::algo::toposort(&graph, None) {
        errors.push(cycle_error(nodes, &graph, cycle.node_id()));
        return None;
    }
    Some(stable_order(&graph))
}

fn stable_order(graph: &DiGraph<(), ()>) -> Vec<NodeIndex> {
    let mut waiting = vec![0_usize; graph.node_count()];
    let mut ready = BinaryHeap::new();
    for node in graph.node_indices() {
        waiting[node.index()] = graph.neighbors_directed(node, petgraph::Direction::Incoming).count();
        if waiting[node.index()] == 0 {
            ready.push(Reverse(node));
        }
    }
    let mut order = Vec::with_capacity(waiting.len());
    // Of the nodes that may come next, the one written first does: the order does not depend on that of the edges.
    while let Some(Reverse(node)) = ready.pop() {
        order.push(node);
        for next in graph.neighbors(node) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.push(Reverse(next));
            }
        }
    }
    order
}

fn cycle_error(nodes: &[NodeSpec], graph: &DiGraph<(), ()>, start: NodeIndex) -> Diagnostic {
    let path = cycle_path(graph, start);
    let names: Vec<&str> = path.iter().map(|node| nodes[node.index()].id.as_str()).collect();
    let shown = if names.len() > 8 {
        format!("{} → … → {}", names[..4].join(" → "), names[names.len() - 2..].join(" → "))
    } else {
        names.join(" → ")
    };
    let error = Diagnostic::error("cycle", format!("nodes need each other in a circle: {shown}"));
    let error = error.at(nodes[start.index()].id_span, "the circle passes here");
    error.help("a node can use only outputs of earlier nodes; remove one of these edges")
}

/// Returns a shortest cycle through `start`.
fn cycle_path(graph: &DiGraph<(), ()>, start: NodeIndex) -> Vec<NodeIndex> {
    // Breadth first: the first way back to the start is a shortest one.
    let mut came_from: BTreeMap<NodeIndex, NodeIndex> = BTreeMap::new();
    let mut pending = std::collections::VecDeque::from([start]);
    while let Some(node) = pending.pop_front() {
        for next in graph.neighbors(node) {
            if next == start {
                let mut path = vec![start, node];
                while path[path.len() - 1] != start {
                    let Some(before) = came_from.get(&path[path.len() - 1]) else { break };
                    path.push(*before);
                }
                path.reverse();
                return path;
            }
            if let Entry::Vacant(entry) = came_from.entry(next) {
                entry.insert(node);
                pending.push_back(next);
            }
        }
    }
    vec![start, start]
}

#[derive(Default)]
struct Wired {
    inputs: Vec<Input>,
    outputs: IndexMap<String, PortType>,
    /// Whether references must name an output.
    equal: bool,
    variant: Option<Variant>,
}

/// Which variant of its kind an output is, and the place of the node that made it so.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    node: NodeIndex,
}

/// Wires the nodes in topological order, so that the types of all inputs are known when a node is checked.
fn wire(
    spec: &Spec,
    all: &[Option<Bound>],
    by_id: &BTreeMap<NodeId, NodeIndex>,
    order: &[NodeIndex],
    errors: &mut Vec<Diagnostic>,
) -> Vec<Option<Wired>> {
    let wired = spec.nodes.iter().map(|_| None).collect();
    let mut wiring = Wiring { nodes: &spec.nodes, by_id, wired, errors };
    for index in order {
        let node = &spec.nodes[index.index()];
        let Some(bound) = &all[index.index()] else { continue };
        // It is not known which of several nodes of one name is meant.
        if spec.is_duplicate(&node.id) {
            continue;
        }
        let of_node = wiring.wire_node(*index, bound);
        if let Some(of_node) = &of_node {
            wiring.errors.extend(check_issues(node, &of_node.outputs));
        }
        wiring.wired[index.index()] = of_node;
    }
    wiring.wired
}

struct Wiring<'w> {
    nodes: &'w [NodeSpec],
    by_id: &'w BTreeMap<NodeId, NodeIndex>,
    wired: Vec<Option<Wired>>,
    errors: &'w mut Vec<Diagnostic>,
}

impl Wiring<'_> {
    /// Wires one node. `None` if a node it reads is broken: that error is reported already.
    fn wire_node(&mut self, index: NodeIndex, bound: &Bound) -> Option<Wired> {
        let nodes = self.nodes;
        let (node, declaration) = (&nodes[index.index()], &bound.operator.declaration);
        let ports = &declaration.ports;
        let mut complete = true;
        let mut by_port: IndexMap<String, Vec<Input>> = IndexMap::new();
        for binding in &node.from {
            let port = match port_of(node, ports, binding) {
                Ok(port) => port,
                Err(error) => {
                    self.errors.push(*error);
                    continue;
                }
            };
            let edges = self.edges(&port.name, binding);
            complete &= edges.len() == binding.references.len();
            check_edges(&node.operator, &port, &edges, binding.port_span, self.errors);
            by_port.entry(port.name).or_default().extend(edges.into_iter().map(|edge| edge.input));
        }
        let mut of_services = Vec::new();
        for (port, binding) in node.services.iter().flat_map(ports_of) {
            let edges = self.edges(&port.name, binding);
            complete &= edges.len() == binding.references.len();
            check_edges("services", &port, &edges, binding.port_span, self.errors);
            of_services.extend(edges.into_iter().map(|edge| edge.input));
        }
        let names: Vec<&str> = by_port.keys().map(String::as_str).collect();
        check_missing(node, ports, &names, self.errors);
        self.errors.extend(declaration.input_issues(&names).into_iter().map(|issue| bad_param(issue, node)));
        // Types of missing inputs are unknown: further errors would follow from the first.
        if !complete {
            return None;
        }
        let issues =
            declaration.variant_issues(|port| self.variant_names(by_port.get(port).map_or(&[], Vec::as_slice)));
        for (port, issue) in issues {
            let mut made = by_port.get(port).into_iter().flatten().filter_map(|input| self.variant_of(input));
            let span = made.next().map(|variant| nodes[variant.node.index()].operator_span);
            self.errors.push(bad_param(issue, node).at_some(span, "made here"));
        }
        let variant = match declaration.variant {
            Some(name) => Some(Variant { name, node: index }),
            None => self.passed_variant(declaration, &by_port),
        };
        // By the operator's port order; named ones by name. The order in the YAML never matters.
        let mut inputs = Vec::new();
        for port in &ports.inputs {
            inputs.extend(by_port.shift_remove(&port.name).into_iter().flatten());
        }
        by_port.sort_keys();
        inputs.extend(by_port.into_values().flatten());
        let outputs = output_types(ports, &inputs);
        // After the types are taken: what services read decides no type of an output.
        inputs.extend(of_services);
        Some(Wired { outputs, inputs, equal: ports.equal_outputs, variant })
    }

    /// Returns the variant of a node's output if its rows are those of inputs that are all of that variant.
    fn passed_variant(&self, declaration: &Declaration, by_port: &IndexMap<String, Vec<Input>>) -> Option<Variant> {
        let source = match declaration.passes_variant {
            Some(input) => input,
            None => match &declaration.ports.outputs.first()?.output {
                OutputType::SameAs(input) => input,
                OutputType::Fixed(_) => return None,
            },
        };
        let kind = &by_port.get(source)?.first()?.port_type;
        let mut passed: Option<Variant> = None;
        for inputs in by_port.values().filter(|inputs| inputs.iter().any(|input| input.port_type == *kind)) {
            for input in inputs {
                let variant = self.variant_of(input)?;
                if passed.get_or_insert(variant).name != variant.name {
                    return None;
                }
            }
        }
        passed
    }

    /// Returns the variant of what an input reads, if it is known.
    fn variant_of(&self, input: &Input) -> Option<Variant> {
        self.wired[input.node.index()].as_ref()?.variant
    }

    fn variant_names(&self, inputs: &[Input]) -> Vec<Option<&'static str>> {
        let mut names = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            let mut earlier = inputs[..index].iter();
            // What is bound twice is one thing, not two of its variant.
            let is_again = earlier.any(|earlier| earlier.node == input.node && earlier.output == input.output);
            names.push(if is_again { None } else { self.variant_of(input).map(|variant| variant.name) });
        }
        names
    }

    /// Resolves the references of a binding; reports and omits those that do not resolve.
    fn edges(&mut self, port: &str, binding: &Binding) -> Vec<Edge> {
        let mut edges = Vec::new();
        for reference in &binding.references {
            let Some(node) = self.by_id.get(reference.node.as_str()).copied() else { continue };
            let Some(wired) = &self.wired[node.index()] else { continue };
            match output_of(reference, &wired.outputs, wired.equal) {
                Ok((output, port_type)) => {
                    let written = match &reference.port {
                        Some(port) => format!("{}.{port}", reference.node),
                        None => reference.node.clone(),
                    };
                    let tie = match reference {
                        Reference { handed_on: true, .. } => Tie::HandedOn,
                        Reference { gathers: Some(_), .. } => Tie::Gathered,
                        _ => Tie::Stated,
                    };
                    let input = Input { port: port.to_owned(), node, output, port_type, tie };
                    edges.push(Edge { input, span: reference.span, written });
                }
                Err(error) => self.errors.push(*error),
            }
        }
        edges
    }
}

fn assemble(
    spec: Spec,
    file: &Path,
    bound: Vec<Option<Bound>>,
    wired: Vec<Option<Wired>>,
    order: &[NodeIndex],
) -> Plan {
    // From the index in the text to the index in the plan.
    let mut in_plan = vec![NodeIndex::default(); order.len()];
    for (new, old) in order.iter().enumerate() {
        in_plan[old.index()] = NodeIndex::new(new);
    }
    let old = indices_of(spec.nodes.iter().map(|node| &node.id));
    let after_each_other = order_of(&spec.loops, &spec.nodes, &old);
    let mut parts: Vec<_> = spec.nodes.into_iter().zip(bound).zip(wired).map(Some).collect();
    let mut nodes = Vec::with_capacity(order.len());
    let mut graph = DiGraph::with_capacity(order.len(), order.len());
    for old in order {
        let Some(((spec, Some(bound)), Some(mut wired))) = parts[old.index()].take() else { continue };
        let index = graph.add_node(());
        for input in &mut wired.inputs {
            input.node = in_plan[input.node.index()];
            graph.update_edge(input.node, index, ());
        }
        let main_port = bound.operator.declaration.ports.inputs.first().map(|port| port.name.clone());
        let mut node = Node {
            services: bound.services,
            spec,
            entry: bound.entry,
            operator: Arc::new(bound.operator),
            identity_params: bound.identity_params,
            row_params: bound.row_params,
            inputs: wired.inputs,
            outputs: wired.outputs,
            main_port,
            sources: bound.sources,
        };
        // The nodes before it are complete: its implied inputs are found among theirs.
        with_rejects(&mut node, &nodes);
        for input in node.inputs.iter().filter(|input| input.tie == Tie::Implied) {
            graph.update_edge(input.node, index, ());
        }
        nodes.push(node);
    }
    for (before, after) in after_each_other {
        graph.update_edge(in_plan[before.index()], in_plan[after.index()], ());
    }
    // Loops keep the indices of the plan, which are not those of the text.
    let by_id = indices_of(nodes.iter().map(Node::id));
    let loops = Loops::new(&spec.loops, &spec.handed_on, &by_id);
    Plan {
        loops,
        name: spec.name,
        file: file.to_owned(),
        params: spec.params,
        overrides: spec.overrides,
        schedule: spec.schedule,
        budget: spec.budget,
        periods: spec.periods,
        finishes: spec.finishes,
        tests: spec.tests,
        nodes,
        graph,
        by_id,
    }
}

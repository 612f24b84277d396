//! Binds a spec to the registry: operators, params, edges, types. Reports all errors together.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::path::Path;
use std::sync::Arc;

use indexmap::IndexMap;
use petgraph::graph::{DiGraph, NodeIndex};
use serde_json::Value;

use super::edges::{Edge, check_edges, check_missing, output_of, output_types, port_of};
use super::gather::gather;
use super::graph::{Input, Node, Plan, Tie};
use super::loops::{Loops, Order, order_of};
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
    BoundOperator, CommandSources, Declaration, OperatorEntry, OutputType, ParamIssue, PortType, Ports, Registry,
    Source,
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
    let order = order(&spec, &by_id, &mut errors);
    if let Some(order) = order {
        let wired = wire(&spec, &bound, &by_id, &order, &mut errors);
        let outputs = spec
            .nodes
            .iter()
            .zip(&wired)
            .filter_map(|(node, wired)| Some((node.id.as_str(), &wired.as_ref()?.outputs)));
        if wired.iter().all(Option::is_some) {
            errors.extend(test_issues(&spec.tests, &outputs.collect()));
        }
        // A node whose value could not be read is not bound; the reader has reported it.
        let is_whole = bound.iter().all(Option::is_some) && wired.iter().all(Option::is_some);
        if errors.is_empty() && is_whole {
            return Ok(assemble(spec, file, bound, wired, &order));
        }
    }
    errors.sort_by_key(|error| error.span().map(|span| (span.file, span.start)));
    Err(errors)
}

/// Gives the nodes that decide after the rounds of loops their operator.
fn choose_deciding(spec: &mut Spec, registry: &Registry, errors: &mut Vec<Diagnostic>) {
    let Some(first) = spec.loops.first() else { return };
    let Some(entry) = registry.iter().find(|entry| entry.decides) else {
        let error = Diagnostic::error("unknown-operator", "no operator of this program decides about loops");
        errors.push(error.at(first.span, "").help("remove `best` and `stop`"));
        spec.nodes.retain(|node| !node.operator.is_empty());
        return;
    };
    let deciding: BTreeSet<&str> =
        spec.loops.iter().flat_map(|repeats| &repeats.rounds).map(|round| round.decision.as_str()).collect();
    for node in spec.nodes.iter_mut().filter(|node| deciding.contains(node.id.as_str())) {
        entry.name.clone_into(&mut node.operator);
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
            errors.push(unknown_operator(node, registry));
            bound.push(None);
            continue;
        };
        let schema = schemas.entry(entry.name).or_insert_with(entry.schema);
        bound.push(bind_operator(node, entry, schema, registry.commands(), directory, errors));
    }
    bound
}

fn unknown_operator(node: &NodeSpec, registry: &Registry) -> Diagnostic {
    let names: Vec<&str> = registry.iter().map(|entry| entry.name).collect();
    let error = Diagnostic::error("unknown-operator", format!("there is no operator `{}`", node.operator));
    let help = match closest(&node.operator, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`searchmill ops` lists all operators".to_owned(),
    };
    error.at(node.operator_span, "").help(help)
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
    let (mut found, mut pending) = (Vec::new(), vec![(String::new(), params)]);
    let below = |path: &str, key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    while let Some((path, value)) = pending.pop() {
        match value {
            Value::String(text) if has_user_info(text) => found.push(path),
            Value::Array(items) => {
                pending.extend(items.iter().enumerate().map(|(i, item)| (below(&path, &i.to_string()), item)));
            }
            Value::Object(fields) => pending.extend(fields.iter().map(|(key, value)| (below(&path, key), value))),
            _ => {}
        }
    }
    found.sort_unstable();
    let error = |path: String| {
        let message = format!("`{path}` of `{}` is a URL with a user name or password in it", node.id);
        let (span, via) = locate(&node.with, &path);
        Diagnostic::error("user-info", message).at(span, "").used_at(via).help(
            "URLs stand in results, runs and messages: leave `user:password@` out. Endpoints take \
             `api_key: ${secret:NAME}`, data sources the environment variables of their own tools (AWS_…, HF_TOKEN)",
        )
    };
    found.into_iter().map(error).collect()
}

pub(super) fn bad_param(issue: ParamIssue, node: &NodeSpec) -> Diagnostic {
    let (span, via) = locate(&node.with, &issue.path);
    let error = Diagnostic::error("bad-param", issue.message).at(span, "").used_at(via);
    Diagnostic { help: issue.help, word: issue.word.map(Box::new), ..error }
}

/// Rewords serde's ``unknown variant `a`, expected one of `b`, `c` `` like all other errors.
fn reworded(issue: ParamIssue, operator: &str) -> ParamIssue {
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
    for (place, node) in nodes.iter().enumerate() {
        for reference in node.bindings().flat_map(|binding| &binding.references) {
            if let Some(from) = by_id.get(reference.node.as_str()) {
                graph.update_edge(*from, NodeIndex::new(place), ());
            } else if !spec.is_unsure(&reference.node) {
                let error = Diagnostic::error("unknown-node", format!("there is no node `{}`", reference.node));
                errors.push(error.at(reference.span, "").help(meant_node(&reference.node, &names)));
            }
        }
    }
    for Order { before, after } in order_of(&spec.loops, nodes, by_id) {
        graph.update_edge(before, after, ());
    }
    if let Err(cycle) = petgraph::algo::toposort(&graph, None) {
        errors.push(cycle_error(nodes, &graph, cycle.node_id()));
        return None;
    }
    Some(stable_order(&graph))
}

fn stable_order(graph: &DiGraph<(), ()>) -> Vec<NodeIndex> {
    let count = |node| graph.neighbors_directed(node, petgraph::Direction::Incoming).count();
    let mut waiting: Vec<usize> = graph.node_indices().map(count).collect();
    let free = graph.node_indices().filter(|node| waiting[node.index()] == 0);
    let mut ready: BinaryHeap<_> = free.map(Reverse).collect();
    let mut order = Vec::with_capacity(waiting.len());
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
            came_from.entry(next).or_insert_with(|| {
                pending.push_back(next);
                node
            });
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
    let nodes = &spec.nodes;
    let mut wired: Vec<Option<Wired>> = nodes.iter().map(|_| None).collect();
    for index in order {
        let place = index.index();
        let node = &nodes[place];
        let Some(bound) = &all[place] else { continue };
        if spec.is_duplicate(&node.id) {
            // It is not known which of several nodes of one name is meant.
            continue;
        }
        wired[place] = wire_node(nodes, *index, bound, by_id, &wired, errors);
        if let Some(wired) = &wired[place] {
            errors.extend(check_issues(node, &wired.outputs));
        }
    }
    wired
}

/// Wires one node. `None` if a node it reads is broken: that error is reported already.
fn wire_node(
    nodes: &[NodeSpec],
    index: NodeIndex,
    bound: &Bound,
    by_id: &BTreeMap<NodeId, NodeIndex>,
    wired: &[Option<Wired>],
    errors: &mut Vec<Diagnostic>,
) -> Option<Wired> {
    let (node, declaration) = (&nodes[index.index()], &bound.operator.declaration);
    let ports = &declaration.ports;
    let mut complete = true;
    let mut by_port: IndexMap<String, Vec<Input>> = IndexMap::new();
    for binding in &node.from {
        let port = match port_of(node, ports, binding) {
            Ok(port) => port,
            Err(error) => {
                errors.push(*error);
                continue;
            }
        };
        let edges = edges(binding, by_id, wired, errors);
        complete &= edges.len() == binding.references.len();
        check_edges(&node.operator, &port, &edges, binding.port_span, errors);
        by_port.entry(port.name.clone()).or_default().extend(bound_to(&port.name, edges));
    }
    let mut of_services = Vec::new();
    for (port, binding) in node.services.iter().flat_map(ports_of) {
        let edges = edges(binding, by_id, wired, errors);
        complete &= edges.len() == binding.references.len();
        check_edges("services", &port, &edges, binding.port_span, errors);
        of_services.extend(bound_to(&port.name, edges));
    }
    let names: Vec<String> = by_port.keys().cloned().collect();
    check_missing(node, ports, &names, errors);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    errors.extend(declaration.input_issues(&names).into_iter().map(|issue| bad_param(issue, node)));
    if !complete {
        return None;
    }
    let known = |port: &str| {
        let makers = by_port.get(port).into_iter().flatten().map(|input| wired[input.node.index()].as_ref());
        makers.map(|maker| maker?.variant).collect::<Vec<_>>()
    };
    let variants = |port: &str| {
        let inputs = by_port.get(port).map_or(&[][..], Vec::as_slice);
        let mut names = Vec::new();
        for (place, variant) in known(port).into_iter().enumerate() {
            let mut again = false;
            for earlier in &inputs[..place] {
                again |= earlier.node == inputs[place].node && earlier.output == inputs[place].output;
            }
            // What is bound twice is one thing, not two of its variant.
            names.push(variant.filter(|_| !again).map(|variant| variant.name));
        }
        names
    };
    errors.extend(declaration.variant_issues(variants).into_iter().map(|(port, issue)| {
        let maker = known(port).into_iter().flatten().next();
        bad_param(issue, node).at_some(maker.map(|maker| nodes[maker.node.index()].operator_span), "made here")
    }));
    let own = declaration.variant.map(|name| Variant { name, node: index });
    let variant = own.or_else(|| passed_variant(declaration, &by_port, known));
    let mut inputs = in_port_order(ports, by_port);
    let types: Vec<_> = inputs.iter().map(|input| (input.port.clone(), input.port_type.clone())).collect();
    inputs.extend(of_services);
    Some(Wired { outputs: output_types(ports, &types), inputs, equal: ports.equal_outputs, variant })
}

/// Returns the variant of a node's output if its rows are those of inputs that are all of that variant.
fn passed_variant(
    declaration: &Declaration,
    by_port: &IndexMap<String, Vec<Input>>,
    known: impl Fn(&str) -> Vec<Option<Variant>>,
) -> Option<Variant> {
    let same = || match &declaration.ports.outputs.first()?.output {
        OutputType::SameAs(input) => Some(input.as_str()),
        OutputType::Fixed(_) => None,
    };
    let source = declaration.passes_variant.or_else(same)?;
    let kind = &by_port.get(source)?.first()?.port_type;
    let alike = by_port.iter().filter(|(_, inputs)| inputs.iter().any(|input| input.port_type == *kind));
    let mut found = alike.flat_map(|(port, _)| known(port));
    let first = found.next()??;
    found.all(|other| other.is_some_and(|other| other.name == first.name)).then_some(first)
}

/// Resolves the references of a binding; reports and omits those that do not resolve.
fn edges(
    binding: &Binding,
    by_id: &BTreeMap<NodeId, NodeIndex>,
    wired: &[Option<Wired>],
    errors: &mut Vec<Diagnostic>,
) -> Vec<Edge> {
    let mut edges = Vec::new();
    for reference in &binding.references {
        let Some(from) = by_id.get(reference.node.as_str()).copied() else { continue };
        let Some(wired) = &wired[from.index()] else { continue };
        match output_of(reference, &wired.outputs, wired.equal) {
            Ok((output, port_type)) => {
                let written = match &reference.port {
                    Some(port) => format!("{}.{port}", reference.node),
                    None => reference.node.clone(),
                };
                edges.push(Edge { node: from, output, port_type, span: reference.span, written, tie: tie(reference) });
            }
            Err(error) => errors.push(*error),
        }
    }
    edges
}

fn tie(reference: &Reference) -> Tie {
    match reference {
        Reference { handed_on: true, .. } => Tie::HandedOn,
        Reference { gathers: Some(_), .. } => Tie::Gathered,
        _ => Tie::Stated,
    }
}

fn bound_to(port: &str, edges: Vec<Edge>) -> impl Iterator<Item = Input> {
    let input = |port, Edge { node, output, port_type, tie, .. }| Input { port, node, output, port_type, tie };
    edges.into_iter().map(move |edge| input(port.to_owned(), edge))
}

/// Sorts inputs by the operator's port order; named ones by name. The order in the YAML never matters.
fn in_port_order(ports: &Ports, mut by_port: IndexMap<String, Vec<Input>>) -> Vec<Input> {
    let mut inputs: Vec<Input> =
        ports.inputs.iter().filter_map(|port| by_port.shift_remove(&port.name)).flatten().collect();
    by_port.sort_keys();
    inputs.extend(by_port.into_values().flatten());
    inputs
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
        with_rejects(&mut node, &nodes);
        for input in node.inputs.iter().filter(|input| input.tie == Tie::Implied) {
            graph.update_edge(input.node, index, ());
        }
        nodes.push(node);
    }
    for Order { before, after } in after_each_other {
        graph.update_edge(in_plan[before.index()], in_plan[after.index()], ());
    }
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

//! Formats traces and differences as text, Mermaid and Graphviz.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_engine::lineage::{
    Ancestor, Ancestry, Changed, Descendants, Graph, GraphStep, NodeChange, ParentLink, Place, RunDiff, TableChange,
};
use searchmill_engine::{ArtifactId, NodeKey};
use searchmill_schemas::Metric;
use serde_json::Value;

use super::drawing::Drawing;
use super::style::{DIM, ERROR, STRONG};
use super::table::{bytes, cut, text_table};

/// Maximum length of a line of params.
const PARAMS: usize = 120;
/// Maximum number of param lines in a tree of artifacts.
const LINES: usize = 3;
/// Maximum length of a single value.
const VALUE: usize = 80;
/// Maximum number of listed ids of derived rows.
const IDS: usize = 5;

fn short(id: &ArtifactId) -> String {
    id.digest().short()
}

fn named(step: &GraphStep) -> String {
    format!("{} v{}", step.operator, step.version)
}

/// Formats every leaf as `a.b=value`, in lines; omits nulls and empty values.
fn params(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    flatten(value, "", &mut found);
    let mut lines: Vec<String> = Vec::new();
    for param in found {
        match lines.last_mut() {
            Some(line) if line.chars().count() + param.chars().count() < PARAMS => {
                line.push_str(" · ");
                line.push_str(&param);
            }
            _ => lines.push(param),
        }
    }
    lines
}

fn flatten(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(value, &below, found);
            }
        }
        Value::Null => {}
        Value::Array(items) if items.is_empty() => {}
        Value::String(text) => found.push(format!("{path}={}", cut(text, VALUE))),
        other => found.push(format!("{path}={}", cut(&other.to_string(), VALUE))),
    }
}

/// Describes how a result was computed.
fn made(step: &GraphStep) -> Vec<String> {
    let mut first = named(step);
    if let Some(seed) = step.seed {
        first.push_str(&format!(" · seed {seed}"));
    }
    first.push_str(&format!("  {DIM}key {} · run {}{DIM:#}", step.key.0.short(), step.run));
    if step.damaged {
        first.push_str(&format!("  {ERROR}its record was changed{ERROR:#}"));
    }
    if let Some(how) = &step.collected {
        first.push_str(&format!("  {STRONG}{how}{STRONG:#}"));
    }
    let mut lines = vec![first];
    lines.extend(params(&step.params).iter().map(|line| format!("{DIM}{line}{DIM:#}")));
    for source in &step.sources {
        let content = if source.is_file() { &source.content[..10] } else { source.content.as_str() };
        let place = source.path.as_deref().unwrap_or(&source.name);
        lines.push(format!("source {place}  {DIM}{}{DIM:#}", cut(content, VALUE)));
    }
    lines
}

/// Formats results as a tree from the target back to the sources. Everything upstream of a result is shown once.
pub(crate) fn tree(graph: &Graph) -> String {
    let steps: BTreeMap<NodeKey, &GraphStep> = graph.steps.iter().map(|step| (step.key, step)).collect();
    let used: BTreeSet<NodeKey> =
        graph.steps.iter().flat_map(|step| &step.inputs).filter_map(|input| input.made_by).collect();
    let mut text = String::new();
    let mut shown = BTreeSet::new();
    for root in graph.steps.iter().rev() {
        // What was asked for begins a tree, also if another result reads it.
        let is_root = !used.contains(&root.key) || root.outputs.iter().any(|output| output.asked);
        if is_root && !shown.contains(&root.key) {
            branch(root, &steps, &mut shown, &mut text);
        }
    }
    text
}

/// Parts of a tree that are not printed yet, next one last.
enum Pending<'a> {
    Step(&'a GraphStep, String),
    Line(String),
}

fn branch<'a>(
    root: &'a GraphStep,
    steps: &BTreeMap<NodeKey, &'a GraphStep>,
    shown: &mut BTreeSet<NodeKey>,
    text: &mut String,
) {
    for output in root.outputs.iter().filter(|output| output.asked && (output.port != "rejects" || output.rows > 0)) {
        let (node, port, kind, rows) = (&root.node, &output.port, &output.artifact_type, output.rows);
        let again = format!("  released; `searchmill run FILE {node}` makes it again");
        let (again, size) = (if output.released { again.as_str() } else { "" }, bytes(output.bytes));
        text.push_str(&format!(
            "{STRONG}{node}.{port}{STRONG:#}  {kind}, {rows} rows, {size}  {DIM}artifact {}{DIM:#}{again}\n",
            short(&output.artifact)
        ));
    }
    // Not recursive: the chain of a loop may have hundreds of steps.
    let mut pending = vec![Pending::Step(root, String::new())];
    while let Some(next) = pending.pop() {
        let (step, indent) = match next {
            Pending::Line(line) => {
                text.push_str(&line);
                continue;
            }
            Pending::Step(step, indent) => (step, indent),
        };
        if !shown.insert(step.key) {
            text.push_str(&format!("{indent}{DIM}as above{DIM:#}\n"));
            continue;
        }
        let sources = step.sources.len();
        let lines = made(step);
        let (about, rest) = lines.split_at(lines.len() - sources);
        for line in about.iter().take(1 + LINES).chain(rest) {
            text.push_str(&format!("{indent}{line}\n"));
        }
        // Backwards: the last pushed is printed next.
        for (index, input) in step.inputs.iter().enumerate().rev() {
            let last = index + 1 == step.inputs.len();
            // A step with one input is not indented, so that long chains stay in place.
            let (branch, below) = match (step.inputs.len(), last) {
                (1, _) => ("←", indent.clone()),
                (_, true) => ("└─", format!("{indent}   ")),
                (_, false) => ("├─", format!("{indent}│  ")),
            };
            let (mut name, mut released) = (short(&input.artifact), "");
            if let Some(maker) = input.made_by.and_then(|key| steps.get(&key)) {
                name = format!("{}.{}", maker.node, input.made_at.as_deref().unwrap_or_default());
                if maker.outputs.iter().any(|output| output.artifact == input.artifact && output.released) {
                    released = "  released";
                }
                pending.push(Pending::Step(maker, below));
            } else {
                pending.push(Pending::Line(format!("{below}{ERROR}no record of its origin{ERROR:#}\n")));
            }
            let (port, kind, artifact) = (&input.port, &input.artifact_type, short(&input.artifact));
            let line = format!(
                "{indent}{branch} {STRONG}{name}{STRONG:#}  {kind} as `{port}`  {DIM}{artifact}{DIM:#}{released}\n"
            );
            pending.push(Pending::Line(line));
        }
    }
}

/// Formats results as a table, each after its inputs.
pub(crate) fn table(graph: &Graph) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut rows = Vec::new();
    for step in &graph.steps {
        let inputs = step.inputs.iter().map(|input| short(&input.artifact)).collect::<Vec<_>>().join(" ");
        // Every node has rejects; empty ones are no news.
        for output in step.outputs.iter().filter(|output| output.port != "rejects" || output.rows > 0) {
            let (name, operator) = (format!("{}.{}", step.node, output.port), named(step));
            let (kind, count, artifact) = (&output.artifact_type, output.rows.to_string(), short(&output.artifact));
            rows.push(vec![name, operator, kind.clone(), count, artifact, inputs.clone(), step.run.clone()]);
        }
    }
    (vec!["output", "operator", "type", "rows", "artifact", "made of", "run"], rows)
}

/// Draws results.
pub(crate) fn drawing(graph: &Graph) -> Drawing {
    let mut nodes = Vec::new();
    let mut places = BTreeMap::new();
    let mut edges = Vec::new();
    for step in &graph.steps {
        let place = nodes.len();
        places.insert(step.key, place);
        nodes.push((step.node.to_string(), named(step)));
        for source in &step.sources {
            edges.push((nodes.len(), place, String::new()));
            let content = if source.is_file() { &source.content[..10] } else { "" };
            nodes.push((source.name.clone(), content.to_owned()));
        }
        for input in &step.inputs {
            if let Some(maker) = input.made_by.and_then(|key| places.get(&key)) {
                edges.push((*maker, place, format!("{} {}", input.port, short(&input.artifact))));
            }
        }
    }
    Drawing { title: "lineage", quote: "\"", nodes, edges }
}

/// Draws rows.
pub(crate) fn row_drawing(found: &Ancestry) -> Drawing {
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    for (number, row) in found.rows.iter().enumerate() {
        let tables: Vec<String> = row.places.iter().map(table_name).collect();
        nodes.push((format!("{} {}", row.kind, row.id), tables.join(" ← ")));
        for parent in &row.parents {
            // A parent that was not found has no row to draw.
            if let Some(parent_row) = parent.row {
                edges.push((parent_row, number, parent.column.clone()));
            }
        }
    }
    Drawing { title: "lineage", quote: "\"", nodes, edges }
}

fn table_name(place: &Place) -> String {
    match (&place.node, &place.port) {
        (Some(node), Some(port)) => format!("{node}.{port}"),
        _ => short(&place.artifact),
    }
}

/// Formats a row and its ancestors as a tree.
pub(crate) fn ancestry(found: &Ancestry, graph: &Graph) -> String {
    let steps: BTreeMap<NodeKey, &GraphStep> = graph.steps.iter().map(|step| (step.key, step)).collect();
    let mut text = String::new();
    let (mut rows, mut makers) = (BTreeSet::new(), BTreeSet::new());
    let mut pending: Vec<(usize, String, Option<&ParentLink>, bool)> = vec![(0, String::new(), None, true)];
    while let Some((place, indent, link, last)) = pending.pop() {
        let (mut mark, mut below, mut column) = (String::new(), String::new(), String::new());
        if let Some(link) = link {
            let (branch, line) = if last { ("└─", "   ") } else { ("├─", "│  ") };
            (mark, below) = (format!("{indent}{branch} "), format!("{indent}{line}"));
            column = format!("{DIM}{}{}{DIM:#} ", link.column, at(link));
        }
        if let Some(ParentLink { id, missing: Some(missing), .. }) = link {
            text.push_str(&format!("{mark}{column}{id}  {ERROR}not found: {missing}{ERROR:#}\n"));
            continue;
        }
        let Some(row) = found.rows.get(place) else { continue };
        text.push_str(&format!("{mark}{column}{STRONG}{} {}{STRONG:#}", row.kind, row.id));
        if !rows.insert(place) {
            text.push_str(&format!("  {DIM}as above{DIM:#}\n"));
            continue;
        }
        text.push('\n');
        let rest = if row.parents.is_empty() { "   " } else { "│  " };
        for line in standing(row, &steps, &mut makers) {
            text.push_str(&format!("{below}{rest}{line}\n"));
        }
        for (number, parent) in row.parents.iter().enumerate().rev() {
            let last = number + 1 == row.parents.len();
            // No row has this place: a parent that was not found is printed from its link.
            pending.push((parent.row.unwrap_or(usize::MAX), below.clone(), Some(parent), last));
        }
    }
    text.trim_end().to_owned()
}

/// Formats positions in lists: ` [3.0, 5.1]`.
fn at(link: &ParentLink) -> String {
    let mut positions = Vec::new();
    for at in &link.at {
        positions.push(at.iter().map(ToString::to_string).collect::<Vec<_>>().join("."));
    }
    if positions.is_empty() { String::new() } else { format!(" [{}]", positions.join(", ")) }
}

/// Formats the tables of a row, and how the first of them was computed.
fn standing(row: &Ancestor, steps: &BTreeMap<NodeKey, &GraphStep>, makers: &mut BTreeSet<NodeKey>) -> Vec<String> {
    let mut tables = Vec::new();
    for place in &row.places {
        let changed = match place.changed.as_slice() {
            [] => String::new(),
            columns => format!(", changed {}", columns.join(", ")),
        };
        tables.push(format!("{} {DIM}(row {}{changed}){DIM:#}", table_name(place), place.row));
    }
    let mut lines = vec![format!("in {}", tables.join(" ← "))];
    for place in &row.places {
        let Some(step) = place.key.and_then(|key| steps.get(&key)) else { continue };
        if !makers.insert(step.key) {
            lines.push(format!("{}: {}  {DIM}as above{DIM:#}", step.node, named(step)));
            continue;
        }
        let mut how = made(step).into_iter();
        lines.extend(how.next().map(|first| format!("{}: {first}", step.node)));
        lines.extend(how.map(|line| format!("  {line}")));
        // Inputs with rows are in the tree themselves, below; a model or an index is not.
        for input in step.inputs.iter().filter(|input| !input.artifact_type.ends_with(" rows")) {
            let about = match input.made_by.and_then(|key| steps.get(&key)) {
                Some(maker) => {
                    let params = params(&maker.params).join(" · ");
                    format!(" ← {} ({} v{} {params})", maker.node, maker.operator, maker.version)
                }
                None => String::new(),
            };
            lines.push(format!("  {} {} {}{about}", input.port, input.artifact_type, short(&input.artifact)));
        }
    }
    if row.places.iter().any(|place| place.key.is_none()) {
        lines.push(format!("{ERROR}no record in the store shows the origin of this table{ERROR:#}"));
    }
    lines
}

/// Formats the tables with rows derived from one row.
pub(crate) fn descendants(found: &[Descendants]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut rows = Vec::new();
    for table in found {
        let mut ids = table.ids.iter().take(IDS).cloned().collect::<Vec<_>>().join(", ");
        if table.ids.len() > IDS {
            ids.push_str(&format!(" and {} more", table.ids.len() - IDS));
        }
        let (name, count) = (format!("{}.{}", table.node, table.port), format!("{} of {}", table.ids.len(), table.of));
        rows.push(vec![name, table.kind.clone(), count, short(&table.artifact), ids]);
    }
    (vec!["output", "kind", "rows", "artifact", "ids"], rows)
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => cut(text, VALUE),
        Value::Number(number) if number.is_f64() => format!("{:.4}", number.as_f64().unwrap_or_default()),
        other => cut(&other.to_string(), VALUE),
    }
}

fn change(changed: &Changed) -> String {
    format!("{}: {} → {}", changed.name, value(&changed.from), value(&changed.to))
}

fn metric(metric: Option<&Metric>) -> String {
    let Some(metric) = metric else { return "none".to_owned() };
    match (metric.low, metric.high) {
        (Some(low), Some(high)) => format!("{:.4} [{low:.4}, {high:.4}] n={}", metric.value, metric.count),
        _ => format!("{:.4} n={}", metric.value, metric.count),
    }
}

/// Names a node, and the one of the second run that stands for it.
fn title(node: &NodeChange) -> String {
    match &node.with {
        Some(with) => format!("{} → {with}", node.node),
        None => node.node.to_string(),
    }
}

/// Formats the differences between two runs or two nodes.
pub(crate) fn run_diff(found: &RunDiff) -> String {
    let [mut one, mut other] = found.runs.clone();
    if let Some([node, with]) = &found.of {
        one = format!("{one} {node}");
        other = format!("{other} {with}");
    }
    let mut text = format!("{STRONG}{one} → {other}{STRONG:#}\n");
    if found.is_empty() {
        text.push_str("nothing differs\n");
        return text;
    }
    for about in &found.about {
        text.push_str(&format!("{}\n", change(about)));
    }
    for param in &found.params {
        text.push_str(&format!("param {}\n", change(param)));
    }
    for node in found.nodes.iter().filter(|node| !node.follows) {
        text.push_str(&format!("\n{STRONG}{}{STRONG:#}\n", title(node)));
        for line in causes_and_effects(node) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    let follows: Vec<&NodeChange> = found.nodes.iter().filter(|node| node.follows).collect();
    if !follows.is_empty() {
        let names: Vec<String> = follows.iter().map(|node| title(node)).collect();
        text.push_str(&format!("\n{STRONG}follows, through changed inputs{STRONG:#}: {}\n", names.join(", ")));
        for node in follows {
            for line in rows_changed(node) {
                text.push_str(&format!("  {}: {line}\n", title(node)));
            }
        }
    }
    for node in found.nodes.iter().filter(|node| !node.metrics.is_empty()) {
        // Metrics of groups would bury those of all questions.
        let has_overall = node.metrics.iter().any(|change| change.id.starts_with("all/"));
        let mut rows = Vec::new();
        for change in &node.metrics {
            if has_overall && !change.id.starts_with("all/") {
                continue;
            }
            let step = match (&change.from, &change.to) {
                (Some(from), Some(to)) => format!("{:+.4}", to.value - from.value),
                _ => String::new(),
            };
            rows.push(vec![change.id.clone(), metric(change.from.as_ref()), metric(change.to.as_ref()), step]);
        }
        let first = format!("metric of {}", title(node));
        text.push_str(&format!("\n{}\n", text_table(&[&first, "first", "second", "change"], &rows, None)));
        if rows.len() < node.metrics.len() {
            let more = node.metrics.len() - rows.len();
            text.push_str(&format!("{DIM}and {more} of single groups: --json{DIM:#}\n"));
        }
    }
    for node in &found.nodes {
        for table in &node.tables {
            text.push_str(&table_change(&title(node), table));
        }
        for table in &node.not_compared {
            let (node, port, reason) = (title(node), &table.port, &table.reason);
            text.push_str(&format!("\n{STRONG}{node}.{port}{STRONG:#} cannot be compared: {reason}\n"));
        }
    }
    // What two nodes read alike was not looked at.
    if found.of.is_none() {
        text.push_str(&format!("\n{DIM}{} nodes are the same{DIM:#}\n", found.same));
    }
    text
}

/// Changes of a column that are shown.
const CHANGES: usize = 3;

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// Formats the numbers of a table that differ.
fn table_change(node: &str, table: &TableChange) -> String {
    let mut rows = Vec::new();
    for change in &table.columns {
        let [from, to] = change.means;
        let mut difference = format!("{:+.4}", to - from);
        if let Some(margin) = change.margin {
            difference.push_str(&format!(" ± {margin:.4}"));
        }
        let mut values: Vec<_> = change.largest.iter().collect();
        values.sort_by(|a, b| (b.to - b.from).abs().total_cmp(&(a.to - a.from).abs()));
        let mut largest = Vec::new();
        for one in values.into_iter().take(CHANGES) {
            largest.push(format!("{}: {} → {}", cut(&one.id, VALUE), number(one.from), number(one.to)));
        }
        let (from, to, column) = (format!("{from:.4}"), format!("{to:.4}"), change.column.clone());
        let (up, down) = (change.up.to_string(), change.down.to_string());
        rows.push(vec![column, from, to, difference, up, down, largest.join(", ")]);
    }
    let TableChange { port, by, both, only_in: [one, other], .. } = table;
    let counts = format!("{both} in both, {one} only in the first, {other} only in the second");
    let mut text = format!("\n{STRONG}{node}.{port} by {by}{STRONG:#}: {counts}\n");
    if !rows.is_empty() {
        let header = ["column", "first mean", "second mean", "difference", "up", "down", "largest changes"];
        text.push_str(&format!("{}\n", text_table(&header, &rows, None)));
    }
    text
}

fn causes_and_effects(node: &NodeChange) -> Vec<String> {
    let mut lines: Vec<String> = node.only_in.iter().map(|run| format!("only in run {run}")).collect();
    lines.extend(node.outcome.iter().map(change));
    lines.extend(node.reasons.iter().map(ToString::to_string));
    // A key covers all that a result depends on, so different content under one key is worth a line.
    if node.reasons.is_empty() && !node.outputs.is_empty() {
        lines.push(format!("different content under the same key: {}", node.outputs.join(", ")));
    }
    lines.extend(rows_changed(node));
    lines.extend(node.figures.iter().map(|figure| format!("figure {}", change(figure))));
    if node.outputs.is_empty() && node.only_in.is_none() && node.outcome.is_none() {
        lines.push("its outputs are the same".to_owned());
    }
    lines
}

fn rows_changed(node: &NodeChange) -> impl Iterator<Item = String> {
    node.rows.iter().map(|rows| format!("rows of {}", change(rows)))
}

//! Reference page of an operator, generated from its types.

use std::collections::BTreeSet;

use searchmill_engine::operator::{Arity, BoundOperator, OperatorEntry, OutputType, Ports, Repeatability, RetryPolicy};
use searchmill_schemas::{Column, RecordKind};
use serde_json::{Value, json};

use super::style::{DIM, STRONG};
use super::wrap::wrapped;

/// Formats the page. `width`: maximum line width, if limited.
pub(crate) fn reference_page(entry: &OperatorEntry, markdown: bool, width: Option<usize>) -> String {
    let width = width.filter(|_| !markdown).unwrap_or(usize::MAX);
    let mut page = Page { text: String::new(), markdown, width };
    let schema = (entry.schema)();
    page.heading(1, entry.name);
    page.paragraph(entry.about);
    let mut about = schema["description"].as_str().unwrap_or_default();
    // Without the title of the params type.
    for word in ["Params", "Parameters"] {
        about = about.strip_prefix(&format!("{word} of `{}`.", entry.name)).unwrap_or(about).trim();
    }
    if !about.is_empty() && about != entry.about {
        page.paragraph(about);
    }
    let bound = bound_examples(entry);
    let (effect, result, version) = (effect_words(&bound), repeatability(&bound), entry.version);
    page.paragraph(&format!("Effect: {effect}. Result: {result}. Version {version}."));
    page.ports(&bound);
    page.heading(2, "Params");
    page.params(&schema, &schema, 0);
    page.settings(&bound);
    page.heading(2, "Examples");
    for example in entry.examples {
        page.paragraph(example.title);
        page.code(example.yaml);
    }
    page.text.trim_end().to_owned()
}

/// Formats the columns of a kind of rows.
pub(crate) fn kind_page(kind: RecordKind, width: Option<usize>) -> String {
    let mut page = Page { text: String::new(), markdown: false, width: width.unwrap_or(usize::MAX) };
    page.heading(1, kind.name());
    page.paragraph(&kind.about());
    page.columns(&kind.columns(), 0);
    if kind != RecordKind::Table {
        page.text.push_str("\nAdditional columns are allowed.");
    }
    page.text.trim_end().to_owned()
}

/// Returns `pure`, `seeded`, `external`, or `external (endpoint)` if only some params use an endpoint.
fn effect_words(bound: &[BoundOperator]) -> String {
    let (mut effects, mut asking) = (BTreeSet::new(), 0);
    for operator in bound {
        effects.insert(operator.declaration.effect.name());
        asking += usize::from(operator.declaration.endpoint.is_some());
    }
    let words = effects.into_iter().collect::<Vec<_>>().join(" or ");
    let only_some = asking > 0 && asking < bound.len();
    words + if only_some { " (endpoint)" } else { "" }
}

/// Effect of an operator, for the list of operators.
pub(crate) fn effect(entry: &OperatorEntry) -> String {
    effect_words(&bound_examples(entry))
}

/// Describes how reproducible results are, by params.
fn repeatability(bound: &[BoundOperator]) -> String {
    let found: BTreeSet<_> = bound.iter().map(|operator| operator.declaration.repeatability).collect();
    let words: Vec<&str> = found.into_iter().rev().map(Repeatability::words).collect();
    words.join(", or ") + if words.len() > 1 { ", by its params" } else { "" }
}

/// Binds the operator with default params and with those of its examples, if valid.
fn bound_examples(entry: &OperatorEntry) -> Vec<BoundOperator> {
    let mut bound = Vec::new();
    // Fails if a param has no default: the examples then show the ports.
    bound.extend((entry.bind)(json!({})));
    for example in entry.examples {
        if let Some(params) = params_of(example.yaml) {
            bound.extend((entry.bind)(params));
        }
    }
    bound
}

/// Returns the params of an example, which is a node or a map from its name to it.
fn params_of(yaml: &str) -> Option<Value> {
    let node: Value = serde_yaml::from_str(yaml).ok()?;
    let node = if node.get("op").is_some() { node } else { node.as_object()?.values().next()?.clone() };
    Some(node.get("with").cloned().unwrap_or_else(|| json!({})))
}

struct Page {
    text: String,
    markdown: bool,
    /// Maximum line width.
    width: usize,
}

impl Page {
    fn heading(&mut self, level: usize, title: &str) {
        if self.markdown {
            self.text.push_str(&format!("{} {title}\n\n", "#".repeat(level)));
        } else {
            self.text.push_str(&format!("{STRONG}{title}{STRONG:#}\n"));
        }
    }

    fn paragraph(&mut self, text: &str) {
        self.text.push_str(&format!("{}\n\n", wrapped(text, 0, 0, self.width).join("\n")));
    }

    fn code(&mut self, yaml: &str) {
        if self.markdown {
            self.text.push_str(&format!("```yaml\n{}\n```\n\n", yaml.trim()));
        } else {
            for line in yaml.trim().lines() {
                self.text.push_str(&format!("    {line}\n"));
            }
            self.text.push('\n');
        }
    }

    fn item(&mut self, depth: usize, name: &str, kind: &str, about: &str) {
        let pad = "  ".repeat(depth);
        let about = about.replace('\n', " ");
        if self.markdown {
            self.text.push_str(&format!("{pad}- `{name}` ({kind}): {about}\n"));
        } else {
            let begins = 2 + pad.len() + name.chars().count() + kind.chars().count() + 5;
            let about = wrapped(&about, begins, pad.len() + 6, self.width).join(&format!("\n{pad}      "));
            self.text.push_str(&format!("  {pad}{STRONG}{name}{STRONG:#} {DIM}({kind}){DIM:#}  {about}\n"));
        }
    }

    /// Lists the ports that the operator has with any of these params.
    fn ports(&mut self, bound: &[BoundOperator]) {
        let all: Vec<&Ports> = bound.iter().map(|operator| &operator.declaration.ports).collect();
        self.heading(2, "Inputs");
        if let Some(accept) = all.iter().find_map(|ports| ports.named_inputs.as_ref()) {
            let about = "any number of inputs, with names of your choice: `from: {NAME: node}`; with `from: node` its name is `input`";
            self.item(0, "NAME", &accept.to_string(), about);
        }
        let mut seen = BTreeSet::new();
        for port in all.iter().flat_map(|ports| &ports.inputs).filter(|port| seen.insert(&port.name)) {
            let arity = match port.arity {
                Arity::One => "",
                Arity::Optional => ", optional",
                Arity::Many => ", one or more",
                Arity::AnyNumber => ", any number",
            };
            let always = all.iter().all(|ports| ports.inputs.iter().any(|other| other.name == port.name));
            self.item(0, &port.name, &format!("{}{arity}{}", port.accept, by_params(always)), &port.about);
        }
        self.text.push('\n');
        self.heading(2, "Outputs");
        let mut seen = BTreeSet::new();
        for port in all.iter().flat_map(|ports| &ports.outputs).filter(|port| seen.insert(&port.name)) {
            let kind = match &port.output {
                OutputType::Fixed(kind) => kind.to_string(),
                OutputType::SameAs(input) => format!("as `{input}`"),
            };
            let always = all.iter().all(|ports| ports.outputs.iter().any(|other| other.name == port.name));
            self.item(0, &port.name, &(kind + by_params(always)), &port.about);
        }
        self.item(0, "rejects", "reject rows", "rejected rows, with the reason");
        self.text.push('\n');
    }

    /// Lists the settings of the node that decide how its calls are repeated, if it makes calls.
    fn settings(&mut self, bound: &[BoundOperator]) {
        if !bound.iter().any(|operator| operator.declaration.pays()) {
            return;
        }
        let retry = RetryPolicy::default();
        let [backoff, longest] = [retry.backoff, retry.max_backoff].map(|wait| format!("{}s", wait.as_secs()));
        self.heading(2, "Retries");
        self.paragraph("`retry` stands beside `with`. It is part of no key.");
        for (name, default, about) in [
            ("max_attempts", retry.max_attempts.to_string(), "Attempts at a call, the first included."),
            ("backoff", backoff, "Wait before the second attempt; it doubles each time."),
            ("max_backoff", longest, "Longest wait, also for `Retry-After`."),
            (
                "stop_after",
                retry.stop_after.to_string(),
                "Calls in a row that fail for good, after which the node makes no more calls (0: never).",
            ),
        ] {
            self.item(0, name, &format!("default {default}"), about);
        }
        self.text.push('\n');
    }

    fn columns(&mut self, columns: &[Column], depth: usize) {
        for column in columns {
            let kind = if column.required { column.kind.clone() } else { format!("{}, optional", column.kind) };
            self.item(depth, &column.name, &kind, &column.about);
            self.columns(&column.fields, depth + 1);
        }
    }

    /// Lists the params of an object schema, including those of its alternatives and of the items of a list.
    fn params(&mut self, root: &Value, schema: &Value, depth: usize) {
        // A schema may refer to itself: without a limit, this would not end.
        if depth > 5 {
            return;
        }
        let schema = resolve(root, schema);
        let required = schema["required"].as_array();
        let required: Vec<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            // A variant with content is an object with one property; its description is that of the object.
            let is_variant = depth > 0 && required == [name.as_str()];
            let mut about = property["description"].as_str();
            about = about.or_else(|| resolve(root, property)["description"].as_str());
            if is_variant {
                about = about.or_else(|| schema["description"].as_str());
            }
            let mut kind = kind(root, property);
            match property.get("default") {
                Some(default) if !default.is_null() => kind.push_str(&format!(", default {default}")),
                _ if required.contains(&name.as_str()) => kind.push_str(", required"),
                _ => {}
            }
            self.item(depth, name, &kind, about.unwrap_or_default());
            self.params(root, property, depth + 1);
        }
        for branch in branches(schema) {
            let branch = resolve(root, branch);
            match branch.get("const").or_else(|| branch["enum"].get(0)) {
                Some(value) => {
                    let about = branch["description"].as_str().unwrap_or_default();
                    self.item(depth, value.as_str().unwrap_or_default(), "value", about);
                }
                None => self.params(root, branch, depth),
            }
        }
        if let Some(items) = schema.get("items") {
            self.params(root, items, depth);
        }
        if depth == 0 {
            self.text.push('\n');
        }
    }
}

/// What is said of a port that an operator has only with some params.
fn by_params(always: bool) -> &'static str {
    if always { "" } else { ", by its params" }
}

fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    // Behind the `#` stands a JSON pointer: `#/$defs/…`.
    let reference = schema["$ref"].as_str().and_then(|reference| root.pointer(reference.trim_start_matches('#')));
    reference.unwrap_or(schema)
}

/// Returns the alternatives of a schema.
fn branches(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf"].into_iter().filter_map(|word| schema[word].as_array()).flatten()
}

fn kind(root: &Value, schema: &Value) -> String {
    let schema = resolve(root, schema);
    match &schema["type"] {
        Value::String(list) if list == "array" => format!("list of {}", kind(root, &schema["items"])),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let names: Vec<&str> = kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect();
            names.join(" or ")
        }
        _ => {
            let mut names: Vec<String> = branches(schema).map(|branch| kind(root, branch)).collect();
            // An optional param is `T or null` in the schema; users read `T`.
            names.retain(|name| name != "null");
            names.dedup();
            if names.is_empty() { "any value".to_owned() } else { names.join(" or ") }
        }
    }
}

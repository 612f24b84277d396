//! Writes a [`Spec`] as YAML with includes, params and matrices expanded, for display and records.

use serde_json::{Map, Value as Json, json};

use super::pipeline::{Binding, NodeSpec, Spec};

/// Returns the resolved pipeline. Secrets stay references.
///
/// # Errors
/// Fails if it cannot be written as YAML: a defect.
pub fn resolved_yaml(spec: &Spec) -> Result<String, serde_yaml::Error> {
    let mut root = Map::new();
    root.insert("name".to_owned(), json!(spec.name));
    if let Some(description) = &spec.description {
        root.insert("description".to_owned(), json!(description));
    }
    let nodes: Map<_, _> = spec.nodes.iter().map(|node| (node.id.clone(), node_json(node))).collect();
    root.insert("nodes".to_owned(), Json::Object(nodes));
    serde_yaml::to_string(&Json::Object(root))
}

fn node_json(node: &NodeSpec) -> Json {
    let mut fields = Map::new();
    fields.insert("op".to_owned(), json!(node.operator));
    if !node.from.is_empty() {
        fields.insert("from".to_owned(), from_json(&node.from));
    }
    if !node.with.entries().is_empty() {
        fields.insert("with".to_owned(), escaped(node.with.to_json()));
    }
    if node.seed != 0 {
        fields.insert("seed".to_owned(), json!(node.seed));
    }
    if node.freeze {
        fields.insert("freeze".to_owned(), json!(true));
    }
    Json::Object(fields)
}

fn from_json(bindings: &[Binding]) -> Json {
    match bindings {
        [Binding { port: None, .. }] => references(&bindings[0]),
        _ => bindings.iter().map(|binding| (binding.port.clone().unwrap_or_default(), references(binding))).collect(),
    }
}

fn references(binding: &Binding) -> Json {
    let text = |reference: &super::Reference| match &reference.port {
        Some(port) => format!("{}.{port}", reference.node),
        None => reference.node.clone(),
    };
    match binding.references.as_slice() {
        [only] => json!(text(only)),
        several => several.iter().map(text).collect(),
    }
}

/// Escapes literal `${` again, except in references to secrets.
fn escaped(value: Json) -> Json {
    match value {
        Json::String(text) if !text.starts_with("${secret:") => Json::String(text.replace("${", "$${")),
        Json::Array(items) => items.into_iter().map(escaped).collect(),
        Json::Object(entries) => entries.into_iter().map(|(key, value)| (key, escaped(value))).collect(),
        other => other,
    }
}

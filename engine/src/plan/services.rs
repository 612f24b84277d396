//! Services of a node: the ports of what they read, and what a key contains of them.

use serde_json::{Map, Value, json};

use crate::endpoint::refers_to_service;
use crate::operator::{Accept, Arity, CommandSources, Declaration, InputPort, TreeKind};
use crate::spec::{Binding, Serves, ServiceSpec};

/// Returns the ports of a service with their bindings.
pub(super) fn ports_of(service: &ServiceSpec) -> Vec<(InputPort, &Binding)> {
    let (accept, arity) = match service.serves {
        Serves::Model => (Accept::Tree(TreeKind::Model), Arity::One),
        Serves::Search => (Accept::Tree(TreeKind::Index), Arity::Many),
        Serves::Program(_) => (Accept::Any, Arity::One),
    };
    let port = |binding: &Binding| InputPort {
        name: binding.port.clone().unwrap_or_default(),
        accept: accept.clone(),
        arity,
        about: String::new(),
        rejects_of: None,
    };
    service.from.iter().map(|binding| (port(binding), binding)).collect()
}

/// Place of the params that refer to services, among the services of a key. It is no name of a service.
const PARAMS: &str = "in params";

/// Returns what a key contains of the services, beside the content of what they read; null without services. Addresses
/// and limits of time are not in it. The params that refer to services are: some of them enter keys only here.
pub(super) fn identity(services: &[ServiceSpec], params: &Value) -> Value {
    if services.is_empty() {
        return Value::Null;
    }
    let one = |service: &ServiceSpec| {
        let identity = match &service.serves {
            Serves::Model => json!({"serves": "model", "args": service.args}),
            Serves::Search => json!({"serves": "search", "args": service.args}),
            Serves::Program(words) => json!({"serves": "program", "words": words}),
        };
        (service.name.clone(), identity)
    };
    let mut all: Map<String, Value> = services.iter().map(one).collect();
    let mut referring = Map::new();
    collect(params, String::new(), &mut referring);
    all.insert(PARAMS.to_owned(), Value::Object(referring));
    Value::Object(all)
}

fn collect(value: &Value, path: String, found: &mut Map<String, Value>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::String(text) if refers_to_service(text) => drop(found.insert(path, value.clone())),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(place, item)| collect(item, below(&place.to_string()), found));
        }
        Value::Object(fields) => fields.iter().for_each(|(key, value)| collect(value, below(key), found)),
        _ => {}
    }
}

/// Adds the files and programs that the words of services name to what an operator reads. `services`: see [`identity`].
pub(crate) fn with_files_of_services(
    declaration: Declaration,
    services: &Value,
    commands: CommandSources,
) -> Declaration {
    let words = |service: &Value| {
        let words = service["words"].as_array()?.iter().filter_map(Value::as_str);
        Some(words.filter(|word| !word.contains('{')).map(str::to_owned).collect::<Vec<_>>())
    };
    let programs: Vec<_> = services.as_object().into_iter().flat_map(Map::values).filter_map(words).collect();
    if programs.is_empty() {
        return declaration;
    }
    declaration.reads(move |directory| programs.iter().flat_map(|words| commands(words, directory)).collect())
}

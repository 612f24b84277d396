//! Services of a node: the ports of what they read, and what a key contains of them.

use serde_json::{Map, Value, json};

use crate::endpoint::refers_to_service;
use crate::operator::{Accept, Arity, CommandSources, Declaration, InputPort, TreeKind, texts};
use crate::spec::{Binding, Serves, ServiceSpec};

/// Returns the ports of a service with their bindings.
pub(super) fn ports_of(service: &ServiceSpec) -> Vec<(InputPort, &Binding)> {
    let (accept, arity) = match service.serves {
        Serves::Model => (Accept::Tree(TreeKind::Model), Arity::One),
        Serves::Search => (Accept::Tree(TreeKind::Index), Arity::Many),
        Serves::Program(_) => (Accept::Any, Arity::One),
    };
    let mut ports = Vec::new();
    for binding in &service.from {
        let (name, accept) = (binding.port.clone().unwrap_or_default(), accept.clone());
        ports.push((InputPort { name, accept, arity, about: String::new(), rejects_of: None }, binding));
    }
    ports
}

/// Place of the params that refer to services, among the services of a key. It is no name of a service.
const PARAMS: &str = "in params";

/// Returns what a key contains of the services, beside the content of what they read; null without services. Addresses
/// and limits of time are not in it. The params that refer to services are: some of them enter keys only here.
pub(super) fn identity(services: &[ServiceSpec], params: &Value) -> Value {
    if services.is_empty() {
        return Value::Null;
    }
    let mut all = Map::new();
    for service in services {
        let identity = match &service.serves {
            Serves::Model => json!({"serves": "model", "args": service.args}),
            Serves::Search => json!({"serves": "search", "args": service.args}),
            Serves::Program(words) => json!({"serves": "program", "words": words}),
        };
        all.insert(service.name.clone(), identity);
    }
    let referring = texts(params).into_iter().filter(|(_, text)| refers_to_service(text));
    all.insert(PARAMS.to_owned(), referring.map(|(path, text)| (path, Value::from(text))).collect());
    Value::Object(all)
}

/// Adds the files and programs that the words of services name to what an operator reads. `services`: see [`identity`].
pub(crate) fn with_files_of_services(
    declaration: Declaration,
    services: &Value,
    commands: CommandSources,
) -> Declaration {
    let mut programs: Vec<Vec<String>> = Vec::new();
    for service in services.as_object().into_iter().flat_map(Map::values) {
        let Some(words) = service["words"].as_array() else { continue };
        // A word with a place for a port or a path is known only when the service starts.
        let fixed = words.iter().filter_map(Value::as_str).filter(|word| !word.contains('{'));
        programs.push(fixed.map(str::to_owned).collect());
    }
    if programs.is_empty() {
        return declaration;
    }
    declaration.reads(move |directory| programs.iter().flat_map(|words| commands(words, directory)).collect())
}

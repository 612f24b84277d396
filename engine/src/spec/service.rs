//! `services:` of a node: servers that run while the node runs.
//!
//! `{model: node.port}` and `{search: [node, …]}` are served by searchmill itself; `{program: [word, …]}` is any other
//! server.

use std::collections::BTreeSet;
use std::time::Duration;

use super::field::{self, Fields, Problems, refuse, take, take_as};
use super::model::{Binding, Serves, ServiceSpec};
use super::value::{Key, Spanned, Value};
use super::{reference, suggest};
use crate::diagnostic::{Diagnostic, Span};
use crate::endpoint::services_in;

const KEYS: &[&str] = &["model", "adapter", "search", "program", "from", "args", "env", "ready", "within"];
/// Longest start of a service by default: large models load for minutes.
const WITHIN: Duration = Duration::from_mins(10);
/// Place of the port in the words of a program.
const PORT: &str = "{port}";
/// Options of `searchmill serve` that belong to the run, or that read what no key contains.
const NO_ARGS: [&str; 8] =
    ["--listen", "--token", "--name", "--adapter", "--questions", "--episodes", "--journal", "--stdio"];
/// Params that hold addresses and commands, which may refer to services; beside `program`, so may `arguments`. What else
/// goes into requests and rows must not change with a port.
const ADDRESSES: [&str; 7] = ["base_url", "url", "command", "program", "args", "env", "environment"];

/// Begins the name of every port that belongs to a service.
const PORTS: &str = "service.";

/// Returns the service that an input port belongs to; `None`: the port is the operator's.
pub(crate) fn service_of(port: &str) -> Option<&str> {
    port.strip_prefix(PORTS)?.split('.').next()
}

/// Reads the services of a node, sorted by name.
pub(super) fn read(value: Spanned, problems: &mut Problems) -> Vec<ServiceSpec> {
    let entries = field::map(value, "`services`", problems).unwrap_or_default();
    let mut services: Vec<_> = entries.into_iter().filter_map(|(name, body)| one(&name, body, problems)).collect();
    // The key of the node has them in this order, whatever that of the YAML.
    services.sort_by(|one, other| one.name.cmp(&other.name));
    services
}

fn one(name: &Key, body: Spanned, problems: &mut Problems) -> Option<ServiceSpec> {
    let what = format!("the service `{}`", name.text);
    // The name is part of port names: with a dot, its rest would look like an input of the service.
    if !field::is_id(&name.text) {
        let message = format!("`{}` is not a valid name of a service", name.text);
        return refuse(problems, bad(name.span, message, "a name is made of letters, digits, `_` and `-`"));
    }
    let span = body.span;
    let mut fields = field::fields(body, &what, KEYS, problems);
    let own = format!("{PORTS}{}", name.text);
    let model = bound(&mut fields, "model", own.clone(), problems);
    let adapter = bound(&mut fields, "adapter", format!("{own}.adapter"), problems);
    let search = bound(&mut fields, "search", own.clone(), problems);
    let program = take(&mut fields, "program").map(|value| texts(&value, "`program`", problems));
    let inputs = take(&mut fields, "from").map(|value| of_program(&value, &own, problems));
    let args = take(&mut fields, "args").map(|value| texts(&value, "`args`", problems)).unwrap_or_default();
    let env = take(&mut fields, "env").map(|value| texts(&value, "`env`", problems)).unwrap_or_default();
    let ready = take_as(&mut fields, "ready", field::text, problems);
    let within = take_as(&mut fields, "within", field::duration, problems).unwrap_or(WITHIN);
    // `--name=value` is the same option as `--name value`.
    let mut options = args.iter().map(|arg| arg.split('=').next().unwrap_or_default());
    if let Some(arg) = options.find(|arg| NO_ARGS.contains(arg)) {
        let help = "start such a server as `program`, whose words and files are in the key";
        problems.push(bad(span, format!("{what}: `{arg}` has no place in `args`"), help));
    }
    let misplaced = [
        ("adapter", adapter.is_some() && model.is_none(), "`adapter` belongs to `model`"),
        ("from", inputs.is_some() && program.is_none(), "`from` belongs to `program`"),
        ("args", !args.is_empty() && program.is_some(), "`args` are for `searchmill serve`"),
    ];
    for (word, is_wrong, why) in misplaced {
        if is_wrong {
            problems.push(bad(span, format!("{what}: {why}"), &format!("remove `{word}`")));
        }
    }
    let (serves, from) = match (model, search, program) {
        (Some(model), None, None) => (Serves::Model, [Some(model), adapter].into_iter().flatten().collect()),
        (None, Some(search), None) => (Serves::Search, vec![search]),
        (None, None, Some(words)) => {
            let inputs = inputs.unwrap_or_default();
            if let Some((message, help)) = wrong_words(&words, &inputs, &own, ready.is_some()) {
                problems.push(bad(span, format!("{what}: {message}"), help));
            }
            (Serves::Program(words), inputs)
        }
        _ => {
            let help = "write `{model: NODE}`, `{search: [NODE, …]}` or `{program: [WORD, …], ready: /health}`";
            let message = format!("{what} must have one of `model`, `search` and `program`");
            return refuse(problems, bad(span, message, help));
        }
    };
    let usual = if serves == Serves::Model { "/v1/models" } else { "/health" };
    let ready = ready.unwrap_or_else(|| usual.to_owned());
    if !ready.starts_with('/') {
        let message = format!("{what}: `ready` must be a path such as `/health`");
        problems.push(bad(span, message, "begin it with `/`"));
    }
    Some(ServiceSpec { name: name.text.clone(), span: name.span, serves, args, env, ready, within, from })
}

fn bad(span: Span, message: String, help: &str) -> Diagnostic {
    Diagnostic::error("bad-service", message).at(span, "").help(help)
}

/// Returns what is wrong with the words of a program, and a remedy.
fn wrong_words(words: &[String], inputs: &[Binding], own: &str, has_ready: bool) -> Option<(String, &'static str)> {
    if words.iter().all(|word| word.trim().is_empty()) {
        return Some(("`program` has no words".to_owned(), "write `[vllm, serve, \"{model}\", --port, \"{port}\"]`"));
    }
    let mut names = Vec::new();
    for binding in inputs {
        names.extend(binding.port.as_deref().and_then(|port| port.strip_prefix(own)?.strip_prefix('.')));
    }
    for place in words.iter().flat_map(|word| places(word)) {
        if place != "port" && !names.contains(&place) {
            let help = "the places are `{port}` and the names in `from`";
            return Some((format!("`{{{place}}}` in `program` stands for nothing"), help));
        }
    }
    if !words.iter().any(|word| word.contains(PORT)) {
        let help = "pass it, for example `--port, \"{port}\"`";
        return Some(("no word of `program` contains `{port}`".to_owned(), help));
    }
    if !has_ready {
        let help = "write the path that answers once it is ready: `ready: /health`";
        return Some(("`ready` is missing".to_owned(), help));
    }
    let unused = names.iter().find(|name| !words.iter().any(|word| word.contains(&format!("{{{name}}}"))))?;
    Some((format!("no word of `program` contains `{{{unused}}}`"), "pass the path of the input to the program"))
}

/// Returns the names in braces of a word. Braces around anything else, such as JSON, are text.
fn places(word: &str) -> impl Iterator<Item = &str> {
    word.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0)).filter(|name| field::is_id(name))
}

fn bound(fields: &mut Fields, word: &str, port: String, problems: &mut Problems) -> Option<Binding> {
    Some(named(&take(fields, word)?, word, port, problems))
}

fn named(value: &Spanned, word: &str, port: String, problems: &mut Problems) -> Binding {
    let references = reference::references(value, &format!("`{word}`"), problems);
    Binding { port: Some(port), port_span: value.span, references }
}

fn of_program(value: &Spanned, own: &str, problems: &mut Problems) -> Vec<Binding> {
    let Value::Map(entries) = &value.value else {
        problems.push(field::wrong_type(value, "`from` of a service", "a map of names to nodes"));
        return Vec::new();
    };
    let mut bound = Vec::new();
    for (name, value) in entries {
        if field::is_id(&name.text) {
            bound.push(named(value, &name.text, format!("{own}.{}", name.text), problems));
        } else {
            let message = format!("`{}` is not a valid name of an input", name.text);
            problems.push(bad(name.span, message, "a name is made of letters, digits, `_` and `-`"));
        }
    }
    bound
}

/// Reads a list of texts, or one text.
fn texts(value: &Spanned, what: &str, problems: &mut Problems) -> Vec<String> {
    value.as_list().iter().filter_map(|item| field::text(item, what, problems)).collect()
}

/// Reports references to services that the node does not have, and services without a reference.
pub(super) fn check_references(with: &Spanned, services: &[ServiceSpec], problems: &mut Problems) {
    let mut used = BTreeSet::new();
    collect(with, false, &mut used, problems);
    let names: Vec<&str> = services.iter().map(|service| service.name.as_str()).collect();
    for (name, span) in &used {
        if !names.contains(&name.as_str()) {
            let fault = Diagnostic::error("unknown-service", format!("the node has no service `{name}`"));
            let help = suggest::advice(name, &names).unwrap_or_else(|| "declare it under `services:`".to_owned());
            problems.push(fault.at(*span, "").help(help));
        }
    }
    for service in services.iter().filter(|service| !used.iter().any(|(name, _)| *name == service.name)) {
        let name = &service.name;
        let fault = Diagnostic::error("unused-service", format!("nothing in `with` uses the service `{name}`"));
        problems.push(fault.at(service.span, "").help(format!("write its address as `${{service.{name}}}`")));
    }
}

fn collect(value: &Spanned, is_address: bool, used: &mut BTreeSet<(String, Span)>, problems: &mut Problems) {
    match &value.value {
        Value::String(text) => {
            let names: Vec<&str> = services_in(text).collect();
            if !names.is_empty() && !is_address {
                let message =
                    "the address of a service changes from run to run, so it can only be part of a URL or a command";
                let help =
                    "params that take it: `base_url`, `url`, `command`, `program` and its `arguments`, `args`, `env`";
                problems.push(bad(value.span, message.to_owned(), help));
            }
            for name in names {
                used.insert((name.to_owned(), value.span));
            }
        }
        Value::List(items) => {
            for item in items {
                collect(item, is_address, used, problems);
            }
        }
        Value::Map(entries) => {
            let runs = entries.iter().any(|(key, _)| key.text == "program");
            for (key, value) in entries {
                let takes = ADDRESSES.contains(&key.text.as_str()) || (runs && key.text == "arguments");
                collect(value, is_address || takes, used, problems);
            }
        }
        _ => {}
    }
}

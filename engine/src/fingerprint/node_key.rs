//! Node keys: what a node computes. Where, when and under which name it runs is not part of its key. Stored preimages are
//! read here too, and two of them are compared: the differences are a closed list of reasons why a node runs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::canonical::encode;
use super::digest::{Digest, hash_bytes};

/// Version of the key format: increase it when the shape of the preimage changes.
pub const KEY_FORMAT: u32 = 2;

/// The key of a node: the digest of its preimage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeKey(pub Digest);

impl NodeKey {
    /// Returns the key of a preimage.
    pub fn of(preimage: &Value) -> Self {
        Self(hash_bytes(&encode(preimage)))
    }
}

impl std::fmt::Display for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An artifact at an input port.
#[derive(Clone, Debug)]
pub struct InputIdentity {
    /// The port.
    pub port: String,
    /// Type of the artifact (`chunk rows`, `index`).
    pub artifact_type: String,
    /// Content digest.
    pub digest: Digest,
}

/// An output port.
#[derive(Clone, Debug)]
pub struct OutputIdentity {
    /// The port.
    pub port: String,
    /// Kind and schema version.
    pub kind: String,
}

/// An external file or identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    /// File name (without folder), or the name chosen by the operator.
    pub name: String,
    /// Content digest as hex, or the identity's text.
    pub content: String,
    /// Index of the operator's source, from 0: moving a file between two sources is a change.
    #[serde(default)]
    pub place: u64,
}

impl SourceIdentity {
    fn encoded(&self) -> Value {
        // Index 0 is omitted, as most nodes have one source.
        if self.place == 0 { json!([self.name, self.content]) } else { json!([self.name, self.content, self.place]) }
    }
}

/// Everything that determines a node's output.
#[derive(Clone, Debug)]
pub struct NodeIdentity<'a> {
    /// Operator name.
    pub operator: &'a str,
    /// Operator version.
    pub version: u32,
    /// Params with defaults, without execution-only ones.
    pub params: &'a Value,
    /// Inputs in port order.
    pub inputs: &'a [InputIdentity],
    /// Outputs in port order.
    pub outputs: &'a [OutputIdentity],
    /// External files in order.
    pub sources: &'a [SourceIdentity],
    /// Seed, for seeded operators.
    pub seed: Option<u64>,
    /// Servers that run while the node runs, without their addresses; null if there are none.
    pub services: &'a Value,
}

impl NodeIdentity<'_> {
    /// Returns the key and its preimage, a small named tree that `why` compares.
    pub fn key(&self) -> (NodeKey, Value) {
        let inputs = self.inputs.iter().map(|input| json!([input.port, input.artifact_type, input.digest.hex()]));
        let mut preimage = json!({
            "format": KEY_FORMAT,
            "operator": self.operator,
            "version": self.version,
            "params": self.params,
            "inputs": inputs.collect::<Vec<_>>(),
            "outputs": self.outputs.iter().map(|o| json!([o.port, o.kind])).collect::<Vec<_>>(),
            "sources": self.sources.iter().map(SourceIdentity::encoded).collect::<Vec<_>>(),
            "seed": self.seed,
        });
        // Absent without services: nodes that have none keep the keys from before there were services.
        if !self.services.is_null() {
            preimage["services"] = self.services.clone();
        }
        (NodeKey::of(&preimage), preimage)
    }
}

/// Returns a text of a preimage; empty if it is missing.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The content of a preimage.
#[derive(Clone, Debug)]
pub struct Preimage {
    /// Operator name.
    pub operator: String,
    /// Operator version.
    pub version: u64,
    /// Params with defaults, without those that change no bytes.
    pub params: Value,
    /// Inputs in port order.
    pub inputs: Vec<InputIdentity>,
    /// External files in order.
    pub sources: Vec<SourceIdentity>,
    /// Seed, for seeded and external operators.
    pub seed: Option<u64>,
    /// Services; null if there are none.
    pub services: Value,
}

impl Preimage {
    /// Parses a stored preimage; missing parts are empty.
    pub fn read(value: &Value) -> Self {
        let mut inputs = Vec::new();
        for row in value["inputs"].as_array().into_iter().flatten() {
            let Some(digest) = row[2].as_str().and_then(Digest::parse) else { continue };
            inputs.push(InputIdentity { port: text(&row[0]), artifact_type: text(&row[1]), digest });
        }
        let mut sources = Vec::new();
        for row in value["sources"].as_array().into_iter().flatten() {
            let place = row[2].as_u64().unwrap_or_default();
            sources.push(SourceIdentity { name: text(&row[0]), content: text(&row[1]), place });
        }
        Self {
            operator: text(&value["operator"]),
            version: value["version"].as_u64().unwrap_or_default(),
            params: value["params"].clone(),
            inputs,
            sources,
            seed: value["seed"].as_u64(),
            services: value["services"].clone(),
        }
    }
}

/// Why a node runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// Neither an earlier result nor an earlier run of this node exists.
    NeverRan,
    /// The format of keys changed with the program's version.
    KeyFormatChanged,
    /// The node has another operator.
    OperatorChanged { from: String, to: String },
    /// The operator's code now produces other bytes.
    VersionChanged { operator: String, from: u64, to: u64 },
    /// A param changed.
    ParamChanged { path: String, from: Value, to: Value },
    /// The content of an input changed.
    InputChanged { port: String },
    /// Ports were bound differently.
    InputsRebound { port: String },
    /// An output's kind or schema version changed.
    OutputChanged { port: String },
    /// An external file changed.
    SourceChanged { name: String },
    /// What a node uses by name changed: the version of a program, or what a Python package contains.
    IdentityChanged { from: String, to: String },
    /// An external file or identity is new.
    SourceAdded { name: String },
    /// An external file or identity is gone.
    SourceRemoved { name: String },
    /// The seed changed.
    SeedChanged { from: Value, to: Value },
    /// The garbage collection deleted the result.
    Collected,
    /// The result is known, but a file of its artifact is missing.
    ArtifactMissing { port: String },
    /// The result is known, but a file of its artifact is damaged.
    ArtifactCorrupt { port: String },
    /// The result is known, but this output was released, and is needed again.
    Released { port: String },
    /// `--force` was given.
    Forced,
    /// `--no-cache` was given.
    CacheOff,
    /// The same key failed or was stopped before it finished.
    Unfinished,
    /// A run with `--force` of the same key was interrupted. This run completes it: it takes over the answers that were
    /// paid for, and the result from before `--force` is not used.
    ForceUnfinished,
    /// Rows of the last run were rejected and are retried.
    RejectsRetried { rows: u64 },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NeverRan => f.write_str("no cached result"),
            Self::KeyFormatChanged => f.write_str("the form of keys changed with the program"),
            Self::OperatorChanged { from, to } => write!(f, "the operator changed from `{from}` to `{to}`"),
            Self::VersionChanged { operator, from, to } => {
                write!(f, "the operator `{operator}` changed from version {from} to {to}")
            }
            Self::ParamChanged { path, from, to } => {
                let (from, to) = (param_text(from), param_text(to));
                let skipped = common(&from, &to);
                write!(f, "param `{path}` changed from {} to {}", cut(&from, skipped), cut(&to, skipped))
            }
            Self::InputChanged { port } => write!(f, "the content of input `{port}` changed"),
            Self::InputsRebound { port } => write!(f, "input `{port}` takes other artifacts than before"),
            Self::OutputChanged { port } => write!(f, "the kind of output `{port}` changed"),
            Self::SourceChanged { name } if name == "--limit" => f.write_str("--limit was given, left out or changed"),
            Self::SourceChanged { name } => write!(f, "the content of `{name}` changed"),
            Self::IdentityChanged { from, to } => {
                let skipped = common(from, to);
                write!(f, "`{}` is now `{}`", cut(from, skipped), cut(to, skipped))
            }
            Self::SourceAdded { name } => write!(f, "the source `{name}` was added"),
            Self::SourceRemoved { name } => write!(f, "the source `{name}` was removed"),
            Self::SeedChanged { from, to } => write!(f, "the seed changed from {} to {}", brief(from), brief(to)),
            Self::Collected => f.write_str("its result was collected by `searchmill gc`"),
            Self::ArtifactMissing { port } => write!(f, "the artifact of output `{port}` is gone from the store"),
            Self::ArtifactCorrupt { port } => write!(f, "the artifact of output `{port}` is damaged in the store"),
            Self::Released { port } => write!(f, "the output `{port}` was released, and is needed again"),
            Self::Forced => f.write_str("--force"),
            Self::CacheOff => f.write_str("--no-cache"),
            Self::Unfinished => f.write_str("the last run did not finish it"),
            Self::ForceUnfinished => f.write_str("a forced run was cut off"),
            Self::RejectsRetried { rows } => write!(f, "{rows} rejected rows are tried again"),
        }
    }
}

fn param_text(value: &Value) -> String {
    // A param with its default, and a name in a map, may be absent from the key.
    if value.is_null() { "unset".to_owned() } else { value.to_string() }
}

fn brief(value: &Value) -> String {
    cut(&value.to_string(), 0)
}

/// Longest text of a value, in characters.
const SHOWN: usize = 60;
/// Characters shown before the first difference of two long texts.
const BEFORE: usize = 20;

/// Returns the number of leading characters that need not be shown of two texts.
fn common(one: &str, other: &str) -> usize {
    let equal = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    if equal < SHOWN / 2 { 0 } else { equal - BEFORE }
}

/// Cuts a text at both ends.
fn cut(text: &str, skipped: usize) -> String {
    let start = if skipped == 0 { "" } else { "…" };
    let mut rest = text.chars().skip(skipped);
    let shown: String = rest.by_ref().take(SHOWN).collect();
    let end = if rest.next().is_some() { "…" } else { "" };
    format!("{start}{shown}{end}")
}

/// Returns the differences between the last run's preimage and the current one, most significant first. Empty if equal.
pub(crate) fn diff(before: &Value, now: &Value) -> Vec<Reason> {
    // Keys of another format, or of another operator, have nothing in common that could be compared.
    if before["format"] != now["format"] {
        return vec![Reason::KeyFormatChanged];
    }
    if before["operator"] != now["operator"] {
        return vec![Reason::OperatorChanged { from: text(&before["operator"]), to: text(&now["operator"]) }];
    }
    let mut reasons = Vec::new();
    if before["version"] != now["version"] {
        let from = before["version"].as_u64().unwrap_or_default();
        let to = now["version"].as_u64().unwrap_or_default();
        reasons.push(Reason::VersionChanged { operator: text(&now["operator"]), from, to });
    }
    for (part, path) in [("params", ""), ("services", "services")] {
        differing_leaves(&before[part], &now[part], path.to_owned(), &mut |path, from, to| {
            reasons.push(Reason::ParamChanged { path, from: from.clone(), to: to.clone() });
        });
    }
    changed_sources(rows(&before["sources"]), rows(&now["sources"]), &mut reasons);
    changed_inputs(rows(&before["inputs"]), rows(&now["inputs"]), &mut reasons);
    changed_outputs(rows(&before["outputs"]), rows(&now["outputs"]), &mut reasons);
    if before["seed"] != now["seed"] {
        reasons.push(Reason::SeedChanged { from: before["seed"].clone(), to: now["seed"].clone() });
    }
    reasons
}

/// Passes on the paths at which two trees of objects differ, in order, with both values; `null` where one has none.
pub(crate) fn differing_leaves(was: &Value, now: &Value, path: String, found: &mut impl FnMut(String, &Value, &Value)) {
    if let (Value::Object(old), Value::Object(new)) = (was, now) {
        for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            differing_leaves(&was[key], &now[key], below, found);
        }
    } else if was != now {
        found(path, was, now);
    }
}

fn rows(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

fn name(row: &Value) -> String {
    text(&row[0])
}

/// Whether a source is known by a text alone: all have this name.
fn is_identity(source: &Value) -> bool {
    source[0] == "identity"
}

/// Reports identities that are new, gone or changed, by their texts. Those that begin with the same word belong together:
/// `Python 3.11`, `Python 3.12`.
fn changed_identities(before: &[Value], now: &[Value], reasons: &mut Vec<Reason>) {
    let old = before.iter().filter(|source| is_identity(source) && !now.contains(source));
    let mut old: Vec<String> = old.map(|source| text(&source[1])).collect();
    for source in now.iter().filter(|source| is_identity(source) && !before.contains(source)) {
        let to = text(&source[1]);
        let word = to.split_whitespace().next();
        match old.iter().position(|from| from.split_whitespace().next() == word) {
            Some(index) => reasons.push(Reason::IdentityChanged { from: old.remove(index), to }),
            None => reasons.push(Reason::SourceAdded { name: to }),
        }
    }
    reasons.extend(old.into_iter().map(|name| Reason::SourceRemoved { name }));
}

/// Reports new, missing and changed sources; files of one name (of several folders) are compared in their order.
fn changed_sources(before: &[Value], now: &[Value], reasons: &mut Vec<Reason>) {
    let earlier = reasons.len();
    changed_identities(before, now, reasons);
    let mut unmatched: Vec<&Value> = before.iter().filter(|source| !is_identity(source)).collect();
    for source in now.iter().filter(|source| !is_identity(source)) {
        match unmatched.iter().position(|old| old[0] == source[0]) {
            Some(index) if unmatched.remove(index) == source => {}
            None if source[0] != "--limit" => reasons.push(Reason::SourceAdded { name: name(source) }),
            _ => reasons.push(Reason::SourceChanged { name: name(source) }),
        }
    }
    for old in unmatched {
        let name = name(old);
        // A run without `--limit` has no such source: the limit was left out.
        let is_limit = name == "--limit";
        reasons.push(if is_limit { Reason::SourceChanged { name } } else { Reason::SourceRemoved { name } });
    }
    // The same sources in another order give another key, too.
    if reasons.len() == earlier
        && let Some((_, new)) = before.iter().zip(now).find(|(old, new)| old != new)
    {
        reasons.push(Reason::SourceChanged { name: name(new) });
    }
}

/// Reports new, missing and changed outputs.
fn changed_outputs(before: &[Value], now: &[Value], reasons: &mut Vec<Reason>) {
    let changed = now.iter().enumerate().filter(|(index, row)| before.get(*index) != Some(row)).map(|(_, row)| row);
    for row in changed.chain(before.iter().skip(now.len())) {
        reasons.push(Reason::OutputChanged { port: name(row) });
    }
}

fn changed_inputs(before: &[Value], now: &[Value], reasons: &mut Vec<Reason>) {
    let old: Vec<String> = before.iter().map(name).collect();
    let new: Vec<String> = now.iter().map(name).collect();
    if old != new {
        let rebound = new.iter().chain(&old).find(|port| count(&new, port) != count(&old, port));
        // Every port is bound as often as before: only their order differs.
        let port = rebound.or(new.first()).cloned().unwrap_or_default();
        reasons.push(Reason::InputsRebound { port });
        return;
    }
    for (old, new) in before.iter().zip(now) {
        let reason = Reason::InputChanged { port: name(new) };
        // A port with several inputs is named once.
        if old != new && !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
}

fn count(ports: &[String], port: &str) -> usize {
    ports.iter().filter(|name| *name == port).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_into_a_key_can_be_read_back() {
        let inputs = [InputIdentity {
            port: "rows".to_owned(),
            artifact_type: "chunk rows".to_owned(),
            digest: hash_bytes(b"content"),
        }];
        let source = |place| SourceIdentity { name: "file".to_owned(), content: "0f".to_owned(), place };
        let sources = [source(0), source(2)];
        let (params, outputs, services) = (json!({"size": 3}), [], json!({"judge": {"serves": "model"}}));
        let identity = NodeIdentity {
            operator: "cut",
            version: 4,
            params: &params,
            inputs: &inputs,
            outputs: &outputs,
            sources: &sources,
            seed: Some(7),
            services: &services,
        };
        let (key, value) = identity.key();
        let read = Preimage::read(&value);
        assert_eq!((read.operator.as_str(), read.version, read.seed, &read.params), ("cut", 4, Some(7), &params));
        assert_eq!((read.inputs[0].port.as_str(), read.inputs[0].digest), ("rows", hash_bytes(b"content")));
        assert_eq!((&read.sources[..], &read.services), (&sources[..], &services));
        assert_eq!(NodeKey::of(&value), key);
        let stored: Value = serde_json::from_str(&value.to_string()).unwrap();
        assert_eq!(NodeKey::of(&stored), key, "what was stored gives the same key");
    }

    #[test]
    fn a_param_that_the_key_lacks_is_called_unset() {
        let told = |from: Value, to: Value| Reason::ParamChanged { path: "ks".to_owned(), from, to }.to_string();
        assert_eq!(told(Value::Null, json!(7)), "param `ks` changed from unset to 7");
        assert_eq!(told(json!(7), Value::Null), "param `ks` changed from 7 to unset");
    }

    #[test]
    fn of_long_values_the_difference_is_shown() {
        let told = |from: &str, to: &str| {
            let reason = Reason::ParamChanged { path: "q".to_owned(), from: json!(from), to: json!(to) };
            reason.to_string()
        };
        let query = |end: &str| format!("SELECT id, question, golden_answers FROM questions WHERE {end} ORDER BY id");
        let (from, to) = (query("hops > 1"), query("hops > 2"));
        assert_eq!(
            told(&from, &to),
            "param `q` changed from …stions WHERE hops > 1 ORDER BY id\" to …stions WHERE hops > 2 ORDER BY id\""
        );
        let long = "x".repeat(200);
        assert_eq!(told("a", &long), format!("param `q` changed from \"a\" to \"{}…", "x".repeat(59)));
    }

    #[test]
    fn a_file_added_to_a_pattern_is_not_a_change_of_the_files_behind_it() {
        let told = |before: Value, now: Value| {
            let mut reasons = Vec::new();
            changed_sources(rows(&before), rows(&now), &mut reasons);
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (a, b, c) = (json!(["a.jsonl", "1"]), json!(["b.jsonl", "2"]), json!(["c.jsonl", "3"]));
        assert_eq!(told(json!([a, c]), json!([a, b, c])), ["the source `b.jsonl` was added"]);
        assert_eq!(told(json!([a, b, c]), json!([b, c])), ["the source `a.jsonl` was removed"]);
        let other = json!(["b.jsonl", "4"]);
        assert_eq!(told(json!([a, b]), json!([a, other])), ["the content of `b.jsonl` changed"]);
        assert_eq!(told(json!([a, b]), json!([b, a])), ["the content of `b.jsonl` changed"], "the order counts");
        let (one, two) = (json!(["identity", "Python 3.11"]), json!(["identity", "Python 3.12"]));
        let columns = json!(["identity", "columns"]);
        assert_eq!(told(json!([a, one, columns]), json!([a, two, columns])), ["`Python 3.11` is now `Python 3.12`"]);
        assert_eq!(told(json!([one, columns]), json!([one])), ["the source `columns` was removed"]);
        assert_eq!(
            told(json!([columns, one]), json!([two])),
            ["`Python 3.11` is now `Python 3.12`", "the source `columns` was removed"]
        );
        let limit = json!(["--limit", "5"]);
        assert_eq!(told(json!([a]), json!([a, limit])), ["--limit was given, left out or changed"]);
        assert!(told(json!([a, b]), json!([a, b])).is_empty());
    }
}

//! Laws that every operator obeys: what its key depends on, and that the same key always means the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema};
use indexmap::IndexMap;
use searchmill_engine::Session;
use searchmill_engine::diagnostic::SourceMap;
use searchmill_engine::execute::{Known, node_key, program_version};
use searchmill_engine::fingerprint::{SourceDigests, hash_bytes, identity_params, row_params};
use searchmill_engine::operator::{
    Accept, Arity, BoundOperator, InputArtifact, OperatorEntry, OutputType, PortType, Registry, Repeatability,
    processor,
};
use searchmill_engine::plan::{Input, Node, NodeIndex, Tie};
use searchmill_engine::spec::{NodeSpec, Overrides, arguments, read_text};
use searchmill_engine::store::{ArtifactId, NodeRun, OutputRecord};
use searchmill_schemas::RecordKind;
use serde_json::{Map, Value, json};

use crate::harness::models;
use crate::harness::project::Mill;

/// Params that never enter a key. Each entry promises that the param changes no bytes.
const NOT_IN_KEYS: [&str; 95] = [
    "exec repeatable",
    "exec timeout_seconds",
    "judge policy.endpoint.api_key",
    "judge policy.endpoint.base_url",
    "judge policy.endpoint.limits.concurrency",
    "judge policy.endpoint.limits.requests_per_minute",
    "judge policy.endpoint.limits.tokens_per_minute",
    "judge policy.endpoint.prices",
    "judge policy.endpoint.prices.call",
    "judge policy.endpoint.prices.completion",
    "judge policy.endpoint.prices.currency",
    "judge policy.endpoint.prices.prompt",
    "judge policy.endpoint.stall_seconds",
    "judge policy.endpoint.timeout_seconds",
    "map policy.endpoint.api_key",
    "map policy.endpoint.base_url",
    "map policy.endpoint.limits.concurrency",
    "map policy.endpoint.limits.requests_per_minute",
    "map policy.endpoint.limits.tokens_per_minute",
    "map policy.endpoint.prices",
    "map policy.endpoint.prices.call",
    "map policy.endpoint.prices.completion",
    "map policy.endpoint.prices.currency",
    "map policy.endpoint.prices.prompt",
    "map policy.endpoint.stall_seconds",
    "map policy.endpoint.timeout_seconds",
    "map timeout_seconds",
    "rollout policy.endpoint.api_key",
    "rollout policy.endpoint.base_url",
    "rollout policy.endpoint.limits.concurrency",
    "rollout policy.endpoint.limits.requests_per_minute",
    "rollout policy.endpoint.limits.tokens_per_minute",
    "rollout policy.endpoint.prices",
    "rollout policy.endpoint.prices.call",
    "rollout policy.endpoint.prices.completion",
    "rollout policy.endpoint.prices.currency",
    "rollout policy.endpoint.prices.prompt",
    "rollout policy.endpoint.stall_seconds",
    "rollout policy.endpoint.timeout_seconds",
    "rollout rerank.prompt.policy.endpoint.api_key",
    "rollout rerank.prompt.policy.endpoint.base_url",
    "rollout rerank.prompt.policy.endpoint.limits.concurrency",
    "rollout rerank.prompt.policy.endpoint.limits.requests_per_minute",
    "rollout rerank.prompt.policy.endpoint.limits.tokens_per_minute",
    "rollout rerank.prompt.policy.endpoint.stall_seconds",
    "rollout rerank.prompt.policy.endpoint.timeout_seconds",
    "rollout rerank.timeout_seconds",
    "rollout tools.0.mcp.api_key",
    "rollout tools.0.mcp.limits.concurrency",
    "rollout tools.0.mcp.limits.requests_per_minute",
    "rollout tools.0.mcp.limits.tokens_per_minute",
    "rollout tools.0.mcp.secret_headers",
    "rollout tools.0.mcp.timeout_seconds",
    "rollout tools.0.prompt.policy.endpoint.api_key",
    "rollout tools.0.prompt.policy.endpoint.base_url",
    "rollout tools.0.prompt.policy.endpoint.limits.concurrency",
    "rollout tools.0.prompt.policy.endpoint.limits.requests_per_minute",
    "rollout tools.0.prompt.policy.endpoint.limits.tokens_per_minute",
    "rollout tools.0.prompt.policy.endpoint.prices.call",
    "rollout tools.0.prompt.policy.endpoint.prices.completion",
    "rollout tools.0.prompt.policy.endpoint.prices.currency",
    "rollout tools.0.prompt.policy.endpoint.prices.prompt",
    "rollout tools.0.prompt.policy.endpoint.stall_seconds",
    "rollout tools.0.prompt.policy.endpoint.timeout_seconds",
    "rollout tools.0.python.timeout_seconds",
    "rollout tools.1.http.api_key",
    "rollout tools.1.http.limits.concurrency",
    "rollout tools.1.http.limits.requests_per_minute",
    "rollout tools.1.http.limits.tokens_per_minute",
    "rollout tools.1.http.prices.call",
    "rollout tools.1.http.prices.completion",
    "rollout tools.1.http.prices.currency",
    "rollout tools.1.http.prices.prompt",
    "rollout tools.1.http.secret_headers.X-API-KEY",
    "rollout tools.1.http.timeout_seconds",
    "rollout tools.1.mcp.limits.concurrency",
    "rollout tools.1.mcp.limits.requests_per_minute",
    "rollout tools.1.mcp.limits.tokens_per_minute",
    "rollout tools.1.mcp.timeout_seconds",
    "rollout tools.2.http.api_key",
    "rollout tools.2.http.limits.concurrency",
    "rollout tools.2.http.limits.requests_per_minute",
    "rollout tools.2.http.limits.tokens_per_minute",
    "rollout tools.2.http.secret_headers",
    "rollout tools.2.http.timeout_seconds",
    "train backend.exec.timeout_seconds",
    "train backend.swift.dataloader_num_workers",
    "train backend.swift.dataset_num_proc",
    "train backend.swift.load_from_cache_file",
    "train backend.swift.report_to",
    "train backend.swift.save_total_limit",
    "train backend.swift.timeout_seconds",
    "train checkpointing",
    "train save_steps",
    "write max_reject_share",
];

/// Params that have a single value so far (one method), or whose value must fit their neighbours (a schema).
const SINGLE_VALUED: [&str; 36] = [
    "exec folders.0",
    "map explode",
    "map output.0.reason",
    "map output.1.score",
    "map output.made.0.golden_answers.0",
    "map output.made.0.question",
    "map output.score",
    "map remember",
    "rollout record",
    "rollout rerank.prompt.policy.endpoint.prices",
    "rollout tool.parameters.properties.query.type",
    "rollout tool.parameters.type",
    "rollout tool.query",
    "rollout tools.0.mcp.command",
    "rollout tools.0.mcp.prices",
    "rollout tools.0.prompt.output.0.answer",
    "rollout tools.0.prompt.output.1.sure",
    "rollout tools.0.prompt.parameters.required.0",
    "rollout tools.0.prompt.parameters.type",
    "rollout tools.0.python.parameters.required.0",
    "rollout tools.0.python.parameters.type",
    "rollout tools.1.http.method",
    "rollout tools.1.http.parameters.required.0",
    "rollout tools.1.http.parameters.type",
    "rollout tools.1.http.results.score",
    "rollout tools.1.mcp.api_key",
    "rollout tools.1.mcp.headers",
    "rollout tools.1.mcp.prices",
    "rollout tools.1.mcp.secret_headers",
    "rollout tools.1.mcp.url",
    "rollout tools.2.http.body",
    "rollout tools.2.http.parameters.required.0",
    "rollout tools.2.http.parameters.type",
    "rollout tools.2.http.prices",
    "rollout tools.2.http.results",
    "train method",
];

/// Returns an example as a pipeline of one node.
fn pipeline(example: &str) -> String {
    let node: String = example.lines().fold(String::new(), |text, line| text + "  " + line + "\n");
    format!("name: example\nnodes:\n{node}")
}

/// Returns the only node of a pipeline.
fn spec_of(pipeline: &str) -> NodeSpec {
    let overrides = Overrides { set: Vec::new(), params_files: Vec::new() };
    let reading = read_text(Path::new("example.yaml"), pipeline, &overrides, &mut SourceMap::new());
    assert!(reading.problems.is_empty(), "{pipeline}\n{:?}", reading.problems);
    reading.spec.expect("a spec").nodes.remove(0)
}

/// Returns the params of the only node of a pipeline, as its operator reads them.
fn params_of(entry: &OperatorEntry, pipeline: &str) -> Value {
    let params = arguments(&spec_of(pipeline).with, &(entry.schema)(), entry.name);
    params.unwrap_or_else(|problems| panic!("{pipeline}\n{problems:?}"))
}

/// Returns the params with defaults, if the operator accepts them.
fn bound(entry: &OperatorEntry, params: &Value) -> Option<Value> {
    let operator = (entry.bind)(params.clone()).ok()?;
    operator.declaration.issues.is_empty().then_some(operator.params)
}

/// Returns a node with these params; its inputs come from places of a plan that does not exist.
fn node(entry: &OperatorEntry, params: &Value) -> (Node, Known) {
    let operator = (entry.bind)(params.clone()).unwrap_or_else(|issue| panic!("{} {}", entry.name, issue.message));
    let ports = &operator.declaration.ports;
    let (mut inputs, mut known) = (Vec::new(), Known::new());
    for (place, port) in ports.inputs.iter().enumerate() {
        let port_type = match &port.accept {
            Accept::Rows(kinds) => PortType::Rows(kinds[0]),
            Accept::Tree(kind) => PortType::Tree(*kind),
            Accept::AnyRows | Accept::Any => PortType::Rows(RecordKind::Table),
        };
        let id = ArtifactId::from(hash_bytes(port.name.as_bytes()));
        let record = OutputRecord { id, artifact_type: (&port_type).into(), rows: 1, bytes: 1 };
        known.insert(NodeIndex::new(place), IndexMap::from([("out".to_owned(), record)]));
        inputs.push(Input {
            port: port.name.clone(),
            node: NodeIndex::new(place),
            output: "out".to_owned(),
            port_type,
            tie: Tie::Stated,
        });
    }
    let type_of = |output: &OutputType| match output {
        OutputType::Fixed(port_type) => Some(port_type.clone()),
        OutputType::SameAs(input) => {
            inputs.iter().find(|found| found.port == *input).map(|found| found.port_type.clone())
        }
    };
    let outputs = ports.outputs.iter().filter_map(|port| Some((port.name.clone(), type_of(&port.output)?))).collect();
    let (schema, whole) = ((entry.schema)(), operator.params.clone());
    let node = Node {
        spec: spec_of(&format!("name: n\nnodes:\n  n: {{op: {}}}\n", entry.name)),
        entry: *entry,
        identity_params: identity_params(&schema, &whole),
        row_params: row_params(&schema, &whole),
        main_port: ports.inputs.first().map(|port| port.name.clone()),
        sources: Vec::new(),
        services: serde_json::Value::Null,
        inputs,
        outputs,
        operator: Arc::new(operator),
    };
    (node, known)
}

/// Creates the files of the sources, each with its own path as content.
fn make_sources(operator: &BoundOperator, directory: &Path) {
    for source in operator.declaration.sources(directory) {
        let Some(path) = source.path().filter(|path| !path.starts_with('/') && !path.contains("://")) else { continue };
        let path = directory.join(path.replace('*', "a"));
        if !path.exists() {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(&path, path.strip_prefix(directory).expect("below").display().to_string()).expect("a file");
        }
    }
}

/// Computes keys like a run, in a folder with the required files.
struct Keys {
    folder: tempfile::TempDir,
    digests: SourceDigests,
}

impl Keys {
    fn new() -> Self {
        let digests = SourceDigests::new(BTreeMap::new(), program_version);
        Self { folder: tempfile::tempdir().expect("a folder"), digests }
    }

    /// Returns the key of a node with these params and fixed input contents. If a source is not available (a file of
    /// the Hub before it is fetched), a run has no key; the source's problem and the params are returned instead.
    fn key(&mut self, entry: &OperatorEntry, params: &Value) -> String {
        let (node, known) = node(entry, params);
        make_sources(&node.operator, self.folder.path());
        match node_key(&node, &known, &self.digests, self.folder.path()) {
            Ok(key) => key.expect("all inputs are known").0.to_string(),
            Err(problem) => format!("{problem} {}", node.identity_params),
        }
    }
}

/// Returns every operator with every example's params.
fn examples() -> Vec<(OperatorEntry, &'static str, Value)> {
    let all = searchmill_operators::all();
    let of = |entry: OperatorEntry| entry.examples.iter().map(move |example| (entry, example.yaml));
    let texts = all.into_iter().flat_map(of);
    texts.map(|(entry, yaml)| (entry, yaml, params_of(&entry, &pipeline(yaml)))).collect()
}

/// Reverses the order of keys in maps.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            Value::Object(map.iter().rev().map(|(key, value)| (key.clone(), reversed(value))).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(reversed).collect(),
        other => other.clone(),
    }
}

#[test]
fn order_comments_and_spelled_out_defaults_are_not_in_the_key() {
    let (examples, mut keys) = (examples(), Keys::new());
    let mut key = |entry: &OperatorEntry, params: &Value| keys.key(entry, params);
    assert!(examples.len() >= 40, "{}", examples.len());
    for (entry, yaml, params) in &examples {
        let expected = key(entry, params);
        let commented = format!("# A remark.\n{}", pipeline(yaml).replace('\n', "\n\n# Another.\n"));
        assert_eq!(key(entry, &params_of(entry, &commented)), expected, "comments in {yaml}");
        assert_eq!(key(entry, &reversed(params)), expected, "order in {yaml}");
        let whole = bound(entry, params).unwrap_or_else(|| panic!("{yaml}"));
        assert_eq!(key(entry, &reversed(&whole)), expected, "defaults in {yaml}");
    }
}

/// Collects the paths of all leaves; empty maps and lists are leaves.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    let below: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(place, value)| (place.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    if below.is_empty() {
        found.push(path.to_owned());
    }
    for (name, value) in below {
        leaves(value, &format!("{path}/{name}"), found);
    }
}

/// Collects all constants of a schema.
fn words(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            let fixed =
                map.get("const").into_iter().chain(map.get("enum").and_then(Value::as_array).into_iter().flatten());
            found.extend(fixed.filter_map(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| words(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| words(value, found)),
        _ => {}
    }
}

/// Returns other values for a leaf, the most likely first.
fn flips(value: &Value, words: &BTreeSet<String>) -> Vec<Value> {
    let mut flips = match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => {
            let float = number.as_f64().unwrap_or_default();
            let whole = number.as_i64().map_or_else(Vec::new, |n| vec![json!(n + 1), json!(n - 1)]);
            [whole, vec![json!(float + 1.0), json!(float / 2.0), json!(float * 2.0 + 0.125)]].concat()
        }
        Value::String(text) => {
            vec![json!(format!("{text}x")), json!(format!("{text} OR false")), json!("${secret:OTHER}")]
        }
        Value::Array(_) => vec![json!(["x"]), json!([1]), json!(["x", "y"])],
        Value::Object(_) => vec![json!({"x": "x"}), json!({"x": 1})],
        Value::Null => {
            vec![json!(3), json!(0.5), json!("x"), json!(true), json!(["x"]), json!("${secret:X}"), json!({"x": "x"})]
        }
    };
    flips.extend(words.iter().map(|word| json!(word)));
    flips
}

#[test]
fn flipping_any_param_changes_the_key_and_nothing_else_does() {
    let mut stuck: BTreeMap<String, bool> = BTreeMap::new();
    let mut outside = BTreeSet::new();
    let (examples, mut keys) = (examples(), Keys::new());
    let mut key = |entry: &OperatorEntry, params: &Value| keys.key(entry, params);
    for (entry, yaml, params) in &examples {
        let whole = bound(entry, params).unwrap_or_else(|| panic!("{yaml}"));
        let before = key(entry, &whole);
        let (mut paths, mut fixed) = (Vec::new(), BTreeSet::new());
        leaves(&whole, "", &mut paths);
        words(&(entry.schema)(), &mut fixed);
        for path in paths {
            let name = format!("{} {}", entry.name, path.trim_start_matches('/').replace('/', "."));
            let old = whole.pointer(&path).expect("a leaf").clone();
            // Also try the values of the operator's other examples.
            let others = examples.iter().filter(|other| other.0.name == entry.name);
            let others = others.filter_map(|(entry, _, params)| bound(entry, params)?.pointer(&path).cloned());
            let flipped = flips(&old, &fixed).into_iter().chain(others).find_map(|flip| {
                let mut other = whole.clone();
                *other.pointer_mut(&path).expect("a leaf") = flip;
                bound(entry, &other).filter(|other| *other != whole)
            });
            let moved = stuck.entry(name.clone()).or_default();
            if let Some(flipped) = flipped {
                *moved = true;
                if key(entry, &flipped) == before {
                    outside.insert(name);
                }
            }
        }
    }
    let promised: BTreeSet<String> = NOT_IN_KEYS.map(str::to_owned).into();
    let new: Vec<_> = outside.difference(&promised).collect();
    assert!(
        new.is_empty(),
        "params that enter no key: {new:?}\nif they change no byte of any result, add them to NOT_IN_KEYS in tests/it/house/laws.rs; \
         otherwise remove `x-searchmill-key` from the params"
    );
    let old: Vec<_> = promised.difference(&outside).collect();
    assert!(old.is_empty(), "these enter keys now: remove them from NOT_IN_KEYS in tests/it/house/laws.rs: {old:?}");
    let stuck = stuck.iter().filter(|(_, moved)| !**moved).map(|(name, _)| name.as_str());
    let stuck: Vec<_> = stuck.filter(|name| !SINGLE_VALUED.contains(name)).collect();
    assert!(
        stuck.is_empty(),
        "no second valid value was found for {stuck:?}\nadd an example with another value to `EXAMPLES` of the operator; if \
         there is only one value, add the param to SINGLE_VALUED in tests/it/house/laws.rs"
    );
}

/// Compares with a file next to the tests; `UPDATE=1` rewrites it.
fn compare(name: &str, now: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/house").join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, now).expect("the file can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<String>>();
    let (before, after) = (lines(&kept), lines(now));
    assert!(
        kept == now,
        "tests/it/house/{name} is out of date; if that is meant: UPDATE=1 cargo test --workspace --test it laws::\nremoved: \
         {:#?}\nadded: {:#?}",
        before.difference(&after).collect::<Vec<_>>(),
        after.difference(&before).collect::<Vec<_>>()
    );
}

/// Operators whose first example's key is pinned: a change here means that existing results are no longer found.
const KEPT_KEYS: [&str; 6] = ["chunk", "filter", "index", "read", "rollout", "sample"];

#[test]
fn keys_are_the_same_on_every_machine_and_in_every_release() {
    let (mut lines, mut keys) = (String::new(), Keys::new());
    for entry in searchmill_operators::all().iter().filter(|entry| KEPT_KEYS.contains(&entry.name)) {
        let params = params_of(entry, &pipeline(entry.examples[0].yaml));
        lines += &format!("{} {} {}\n", entry.name, entry.version, keys.key(entry, &params));
    }
    compare("keys.txt", &lines);
}

const EVERYTHING: &str = "\
name: everything
nodes:
  corpus:    {op: read, with: {path: documents.jsonl, as: document}}
  world:     {op: generate-world, with: {documents: 150, questions: 60}, seed: 5}
  parts:     {op: split, from: world.questions, with: {parts: {train: 0.7, test: 0.3}, by: document}, seed: 1}
  pieces:    {op: chunk, from: corpus, with: {size: 5, count: words}}
  notes:     {op: read, with: {path: note.md, as: document, layout: files}}
  sections:  {op: chunk, from: notes, with: {by: markdown, size: 5}}
  chunks:    {op: chunk, from: world, with: {by: sentence, size: 300, count: characters}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  hits:      {op: retrieve, from: {questions: parts.test, search: bm25}, with: {top_k: 5}}
  rollouts:  {op: rollout, from: {questions: parts.train, search: bm25}, with: {policy: evidence, samples: 2}}
  scores:    {op: evaluate, from: {trajectories: rollouts, questions: parts.train}}
  compared:  {op: compare, from: {base: rollouts, new: some}, with: {by: [turns asc, f1], group_by: [question_type], resamples: 40, permutations: 90}, seed: 2}
  drawn:     {op: plot, from: compared.metrics, with: {x: metric, y: value, low: low, high: high, facet: '\"group\"'}}
  kept:      {op: filter-by-f1, from: rollouts, with: {threshold: 0.5}}
  some:      {op: filter, from: rollouts, with: {where: \"tool_calls > 1\"}}
  counts:    {op: sql, from: {t: rollouts}, with: {query: \"select question_type, count(*) as n from t group by question_type order by 1\"}}
  joined:    {op: join, from: {left: rollouts, right: some}, with: {on: [id], how: anti}}
  merged:    {op: gather, from: {second: few, first: some}, with: {columns: [size], tables: [{name: first, values: [1]}, {name: second, values: [2]}]}}
  decided:   {op: decide, from: {v: scores.scores}, with: {best: \"select avg(f1) from v\", when: \"select count(*) < 9 from v\"}}
  decided2:  {op: decide, from: {v: counts, rounds: decided}, with: {best: \"select max(n) from v\", patience: 1, watch: {many: \"select min(n) > 0 from v\"}}}
  unique:    {op: dedup, from: rollouts, with: {by: [question_id]}}
  similar:   {op: dedup, from: chunks, with: {near: {minhash: {ngram: 3, threshold: 0.5}}}}
  clean:     {op: decontaminate, from: {rows: parts.train, against: parts.test}, with: {columns: [question], minhash: {ngram: 2}}}
  few:       {op: sample, from: rollouts, with: {n: 10}, seed: 3}
  balanced:  {op: rebalance, from: rollouts, with: {by: [question_type], rows: 30}, seed: 2}
  paired:    {op: pair, from: rollouts, with: {order_by: [sample_index asc]}}
  swift:     {op: convert-to-swift, from: few}
  trl:       {op: convert-to-trl, from: few}
  openai:    {op: convert-to-openai, from: few}
  sharegpt:  {op: convert-to-sharegpt, from: few}
  exported:  {op: export-trajectories, from: few, with: {format: atif}}
  verl:      {op: convert-to-verl, from: parts.train, with: {layout: search-r1, data_source: world}}
  blank:     {op: init-model, from: swift, with: {layers: 1, hidden: 16, heads: 2, kv_heads: 1, intermediate: 24, vocab: 400}, seed: 4}
  student:   {op: train, from: {examples: swift, model: blank}, with: {max_steps: 2}, seed: 4}
  file:      {op: write, from: swift, with: {path: out/train.jsonl}}
  counted:   {op: chunk, from: corpus, with: {size: 9, count: {tokenizer: models/words}}}
  vectors:   {op: index, from: chunks, with: {kind: {dense: {encoder: {hashing: {dimensions: 64}}}}}}
  graph:     {op: index, from: chunks, with: {kind: {dense: {encoder: {hashing: {dimensions: 64}}, factory: HNSW8}}}}
  near:      {op: retrieve, from: {questions: parts.test, search: [bm25, vectors]}, with: {top_k: 3}}
  encoded:   {op: index, from: counted, with: {kind: {dense: {encoder: {bert: {model: models/bert}}}}}}
  alike:     {op: retrieve, from: {questions: parts.test, search: encoded}, with: {top_k: 3}}
  words:     {op: index, from: counted, with: {kind: bm25}}
  tokens:    {op: index, from: counted, with: {kind: {late: {encoder: {colbert: {model: models/colbert}}}}}}
  packed:    {op: index, from: counted, with: {kind: {late: {encoder: {colbert: {model: models/colbert}}, storage: residual}}}}
  reranked:  {op: retrieve, from: {questions: parts.test, search: [words, tokens]}, with: {top_k: 3, candidates: 20, fusion: none}}
  mixed:     {op: retrieve, from: {questions: parts.test, search: [packed, encoded]}, with: {top_k: 3}}
  asked:     {op: sample, from: parts.test, with: {n: 3}, seed: 1}
  drafts:    {op: map, from: asked, with: {prompt: \"{{ question }}\", policy: {model: {model: models/decoder, max_tokens: 6}}, samples: 2, output: draft, repairs: 0}, on_error: drop}
  spoken:    {op: rollout, from: {questions: asked}, with: {policy: {model: {model: models/decoder, max_tokens: 6}}, max_turns: 2}}
  judged:    {op: judge, from: {trajectories: spoken}, with: {policy: {model: {model: models/decoder, max_tokens: 4}}}}
  given:     {op: read-model, with: {model: models/decoder}}
  likely:    {op: logprob, from: spoken, with: {model: models/decoder}}
  ranked:    {op: sql, from: {t: rollouts}, with: {query: \"select *, -0.5 * turns as logprob from t\", as: trajectory}}
  weighted:  {op: weight, from: ranked}
  scored:    {op: advantage, from: ranked, with: {reward: logprob, method: reinforce++}}
  rated:     {op: difficulty, from: {trajectories: rollouts, questions: parts.train}}
  mirrored:  {op: reflection, from: rollouts, with: {by: [turns], step: turns, resamples: 40}, seed: 1}
";

/// Operators without pinned output: `exec` outputs whatever its program outputs.
const NOT_GOLDEN: [&str; 1] = ["exec"];

/// The output of [`EVERYTHING`] used as input of an operator without a line there, by what its port accepts.
const GIVERS: [(&str, &str); 11] = [
    ("document", "corpus"),
    ("chunk", "chunks"),
    ("question", "asked"),
    ("hit", "hits"),
    ("trajectory", "rollouts"),
    ("example", "swift"),
    ("score", "scores.scores"),
    ("metric", "scores.metrics"),
    ("reject", "rollouts.rejects"),
    ("index", "bm25"),
    ("model", "blank"),
];

/// Returns a line for each operator that [`EVERYTHING`] and [`NOT_GOLDEN`] omit: its first example, with inputs from
/// there.
fn other_lines() -> String {
    let is_there = |name: &str| NOT_GOLDEN.contains(&name) || EVERYTHING.contains(&format!("{{op: {name},"));
    searchmill_operators::all().iter().filter(|entry| !is_there(entry.name)).map(line_of).collect()
}

fn line_of(entry: &OperatorEntry) -> String {
    let params = params_of(entry, &pipeline(entry.examples[0].yaml));
    let operator = (entry.bind)(params.clone()).unwrap_or_else(|issue| panic!("{} {}", entry.name, issue.message));
    let needed = operator.declaration.ports.inputs.iter().filter(|port| matches!(port.arity, Arity::One | Arity::Many));
    let inputs: Vec<String> = needed.map(|port| format!("{}: {}", port.name, giver(&port.accept))).collect();
    let from = if inputs.is_empty() { String::new() } else { format!("from: {{{}}}, ", inputs.join(", ")) };
    format!("  new-{0}: {{op: {0}, {from}with: {params}}}\n", entry.name)
}

fn giver(accept: &Accept) -> &'static str {
    let name = match accept {
        Accept::Rows(kinds) => kinds[0].name(),
        Accept::Tree(kind) => kind.name(),
        Accept::AnyRows | Accept::Any => "trajectory",
    };
    GIVERS.iter().find(|(kind, _)| *kind == name).map_or("counts", |(_, giver)| giver)
}

#[test]
fn the_same_key_gives_the_same_bytes_as_ever() {
    let mill = Mill::new();
    let added = other_lines();
    mill.write("pipeline.yaml", &(EVERYTHING.to_owned() + &added));
    let line =
        |n| format!("{}\n", json!({"id": format!("d{n}"), "title": "T", "text": format!("Word {n}. ").repeat(9)}));
    mill.write("documents.jsonl", &(0..7).map(line).collect::<String>());
    mill.write("note.md", "---\ntitle: Note\n---\n# One\n\nWord and [link](x). Another word.\n\n## Two\n\nEnd.\n");
    models::write(&mill.path("models"));
    let ran = mill.run(&[]);
    assert_eq!(
        ran.code, 0,
        "{}\nif a first example cannot run like this, write a line for its operator into EVERYTHING in tests/it/house/laws.rs in \
         place of\n{added}",
        ran.stderr
    );
    let nodes = mill.last_nodes();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/house/golden_digests.txt");
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    let (store, here) = (mill.store(), processor());
    let mut lines: BTreeSet<String> = BTreeSet::new();
    for node in &nodes {
        let result = store.result(&node.key.expect("a key")).expect("a result");
        let computed = result.origin.and_then(|origin| origin.computed).expect("what computed it");
        let place = match computed.repeats {
            Repeatability::Everywhere => String::new(),
            Repeatability::Processor => format!(" on {}", computed.on),
            other => panic!("{}: {}", node.node, other.words()),
        };
        let key = result.key.to_string();
        for (port, output) in node.outputs.iter().filter(|(port, _)| *port != "rejects") {
            let head = format!("{} {}.{port} key {key}{place}", node.operator, node.node);
            let now = format!("{head} gives {}", output.id);
            let before = kept.lines().find(|line| line.starts_with(&format!("{head} gives")));
            assert!(
                before.is_none_or(|before| before == now),
                "output of `{}` changed under the same key: bump VERSION or revert\n{before:?}\n{now}",
                node.operator
            );
            lines.insert(now + "\n");
        }
    }
    // Keeps the lines of other processors that have the same keys. What this one never recorded is not asked for.
    let mine = format!(" on {here} ");
    let recorded = |line: &str| kept.lines().any(|known| line.starts_with(known));
    let updates = std::env::var_os("UPDATE").is_some();
    let of_key = |line: &str| line.split(" on ").next().map(str::to_owned);
    let keys: BTreeSet<_> = lines.iter().filter_map(|line| of_key(line)).collect();
    lines.retain(|line| updates || !line.contains(&mine) || recorded(line));
    let others = kept.lines().filter(|line| line.contains(" on ") && !line.contains(&mine));
    let others = others.filter(|line| of_key(line).is_some_and(|key| keys.contains(&key)));
    lines.extend(others.map(|line| format!("{line}\n")));
    compare("golden_digests.txt", &lines.into_iter().collect::<String>());
    columns_are_those_that_were_known(&mill, &nodes);
}

/// Columns that operators announce before a run must be those of the results: nodes are refused for others.
fn columns_are_those_that_were_known(mill: &Mill, nodes: &[NodeRun]) {
    let session = Session::open(mill.path(""), Registry::new(&searchmill_operators::all())).expect("a session");
    let pipeline = session.check(mill.path("pipeline.yaml"), &Overrides::default()).expect("a plan");
    let (known, issues) = pipeline.plan.known_columns();
    assert!(issues.is_empty(), "{issues:?}");
    let columns = |schema: &Schema| {
        let column = |field: &FieldRef| format!("{} {} {}", field.name(), field.data_type(), field.is_nullable());
        schema.fields().iter().map(column).collect::<BTreeSet<_>>()
    };
    let (store, mut compared) = (mill.store(), 0);
    for (node, known) in pipeline.plan.nodes.iter().zip(known) {
        let ran = nodes.iter().find(|ran| ran.node == *node.id()).expect("it ran");
        for (port, schema) in known {
            let InputArtifact::Rows(rows) = store.open_input(&ran.outputs[&port].id).expect("rows") else { continue };
            assert_eq!(columns(&rows.schema), columns(&schema), "{}.{port}", node.id());
            compared += 1;
        }
    }
    assert!(compared > 15, "only {compared} outputs have known columns");
}

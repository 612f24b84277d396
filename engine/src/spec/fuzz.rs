//! Fuzzing: reading any text ends without a panic, and its result is consistent.
//!
//! `SEARCHMILL_FUZZ_CASES=1000000 cargo test -p searchmill-engine --lib spec::fuzz` runs longer.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value as Json;

use super::{Overrides, Spec, arguments, read_text, syntax};
use crate::diagnostic::{Diagnostic, FileId, SourceMap};

const VALID: &str = r#"name: fuzz
params:
  teacher: &t {base_url: "http://127.0.0.1/v1", model: m, api_key: "${secret:KEY}"}
  sizes: [100, 200]
  label: "n-${params.teacher.model}"
nodes:
  corpus: {op: read, with: {path: data/é.jsonl, as: document}}
  chunks:
    op: chunk
    from: corpus
    matrix: {size: "${params.sizes}", by: [words, tokens]}
    with: {<<: *t, size: "${matrix.size}", text: 'a $${x} b'}
  rollouts:
    op: rollout
    from: {questions: corpus.train, search: [chunks, "chunks@size=100,by=words.rejects"]}
    resources: {concurrency: 64, memory: 2GiB}
    retry: {max_attempts: 3, backoff: 500ms}
    on_error: dead_letter
    freeze: false
    seed: 7
    with:
      prompt: |
        several
        lines
schedule: {cron: "0 3,14 * * MON-FRI", timezone: Europe/Berlin, overlap: queue, catchup: all, jitter: 5m, max_runtime: 6h}
"#;

/// Text that mutations insert.
const PIECES: &[&str] = &[
    "",
    "\n",
    "  ",
    "\t",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "#",
    "&a ",
    "*a",
    "*t",
    "<<: ",
    "!!str ",
    "!x ",
    "---\n",
    "...\n",
    "${",
    "}",
    "${params.",
    "${params.label}",
    "${params.teacher}",
    "${matrix.size}",
    "${secret:K}",
    "${env:HOME}",
    "$${",
    "|",
    ">",
    "|2-\n",
    "? ",
    ",",
    "@",
    "%",
    "`",
    "\\",
    "\u{feff}",
    "\0",
    "é",
    "🦀",
    "\r\n",
    "\u{85}",
    "null",
    "~",
    "1e999",
    "-9223372036854775809",
    "op: x",
    "nodes: ",
    "params: ",
    "include: a.yaml\n",
    "from: ",
    "matrix: {a: [1, 2]}",
    "@size=100",
];

fn runner() -> TestRunner {
    let cases = std::env::var("SEARCHMILL_FUZZ_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(200);
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

fn overrides() -> impl Strategy<Value = Overrides> {
    vec("[a-z.]{0,8}=?[\\[{\"a-z0-9}\\]: ]{0,8}", 0..2).prop_map(|set| Overrides { set, params_files: Vec::new() })
}

/// Reads a text and checks invariants of every reading.
fn check(text: &str, overrides: &Overrides) {
    let mut sources = SourceMap::new();
    let reading = read_text(Path::new("/nowhere/fuzz.yaml"), text, overrides, &mut sources);
    for problem in &reading.problems {
        check_places(problem, &sources);
    }
    match reading.spec.filter(|_| reading.problems.is_empty()) {
        Some(spec) => check_spec(&spec),
        None => assert!(!reading.problems.is_empty(), "rejected without a diagnostic"),
    }
}

fn check_places(problem: &Diagnostic, sources: &SourceMap) {
    assert!(!problem.message.is_empty());
    for label in &problem.labels {
        let (_, text) = sources.get(label.span.file).expect("a known file");
        assert!(text.get(label.span.start..label.span.end).is_some(), "{problem:?} points outside of the text");
    }
}

fn is_broken(value: &super::Spanned) -> bool {
    value.value == super::Value::Broken || value.children().any(is_broken)
}

fn check_spec(spec: &Spec) {
    let ids: BTreeSet<_> = spec.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(ids.len(), spec.nodes.len(), "ids differ");
    for node in &spec.nodes {
        assert!(!is_broken(&node.with), "an error in `{}` was not reported", node.id);
        let schema =
            serde_json::json!({"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["path"]});
        if let Err(problems) = arguments(&node.with, &schema, &node.operator) {
            assert!(!problems.is_empty(), "params rejected without a diagnostic");
        }
    }
}

#[test]
fn random_text_is_read_or_refused() {
    let text = prop_oneof![
        vec(any::<char>(), 0..200).prop_map(|chars| chars.into_iter().collect::<String>()),
        vec(proptest::sample::select(PIECES), 0..60).prop_map(|pieces| pieces.concat()),
        "[ \\n\\t:\\-{}\\[\\]\"'#&*!|>?,a-c0-9$]{0,120}",
    ];
    runner()
        .run(&(text, overrides()), |(text, overrides)| {
            check(&text, &overrides);
            Ok(())
        })
        .expect("no text breaks the reader");
}

#[test]
fn mutations_of_a_pipeline_are_read_or_refused() {
    let edit = (any::<proptest::sample::Index>(), 0..12_usize, proptest::sample::select(PIECES));
    let mutate = |edits: Vec<(proptest::sample::Index, usize, &str)>| {
        let mut chars: Vec<char> = VALID.chars().collect();
        for (place, removed, piece) in edits {
            let at = place.index(chars.len() + 1);
            let end = (at + removed).min(chars.len());
            chars.splice(at..end, piece.chars());
        }
        chars.into_iter().collect::<String>()
    };
    let text = vec(edit, 0..6).prop_map(mutate);
    runner()
        .run(&(text, overrides()), |(text, overrides)| {
            check(&text, &overrides);
            Ok(())
        })
        .expect("no text breaks the reader");
}

#[test]
fn the_unchanged_pipeline_is_read() {
    let mut sources = SourceMap::new();
    let reading = read_text(Path::new("fuzz.yaml"), VALID, &Overrides::default(), &mut sources);
    assert!(reading.problems.is_empty(), "{:?}", reading.problems);
    let spec = reading.spec.expect("a spec");
    let ids: Vec<_> = spec.nodes.iter().map(|node| node.id.as_str()).collect();
    let chunks =
        ["100,by=words", "100,by=tokens", "200,by=words", "200,by=tokens"].map(|rest| format!("chunks@size={rest}"));
    assert_eq!(ids[1..5], chunks);
    let search = &spec.nodes[5].from[1].references;
    assert_eq!(search.len(), 5, "all of the matrix, and one by its coordinates");
    assert_eq!((search[4].node.as_str(), search[4].port.as_deref()), ("chunks@size=100,by=words", Some("rejects")));
}

#[test]
fn deep_and_wide_texts_end_soon() {
    for unit in ["[", "{a: ", "- ", "? ", "a:\n ", "&a ", "[[],", "${params.a", "\"", "!!str "] {
        for count in [100, 10_000, 100_000] {
            check(&format!("params:\n  a: {}", unit.repeat(count)), &Overrides::default());
            check(&unit.repeat(count), &Overrides::default());
        }
    }
    let chain: Vec<_> = (0..3000).map(|n| format!("  p{n}: [\"${{params.p{}}}\"]\n", n + 1)).collect();
    check(&format!("params:\n{}  p3000: 1\nnodes: {{}}\n", chain.concat()), &Overrides::default());
    let missing: Vec<_> =
        (0..5000).map(|n| format!("  n{n}: {{op: x, from: n{n}, with: {{v: \"${{params.q{n}}}\"}}}}\n")).collect();
    check(&format!("params: {{a: 1}}\nnodes:\n{}", missing.concat()), &Overrides::default());
}

fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        (-1e6..1e6_f64).prop_map(Json::from),
        "[ -~é🦀]{0,12}".prop_map(Json::from),
        proptest::sample::select(vec![
            "no", "~", "007", "1e-4", "<<", "0x1f", "- a", "a: b", "# c", ".inf", "null", "", " "
        ])
        .prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Json::from),
            proptest::collection::btree_map("[a-z]{1,6}", inner, 0..6)
                .prop_map(|map| Json::Object(map.into_iter().collect())),
        ]
    })
}

/// Two independent parsers must agree on written text.
#[test]
fn what_serde_yaml_writes_is_read_back() {
    let compare = |value: Json| {
        let text = serde_yaml::to_string(&value).expect("any JSON is YAML");
        let mut problems = Vec::new();
        let read = syntax::parse_at(FileId(0), &text, 0, &mut problems).map(|read| read.to_json());
        prop_assert_eq!(&problems, &Vec::<Diagnostic>::new(), "{}", text);
        prop_assert_eq!(read.unwrap_or(Json::Null), value, "{}", text);
        Ok(())
    };
    runner().run(&json(), compare).expect("both parsers agree");
}

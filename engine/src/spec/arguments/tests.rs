//! Typing by schema, for the param shapes that schemars writes.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::*;
use crate::diagnostic::SourceMap;
use crate::operator::Secret;
use crate::spec::{Overrides, read_text};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
struct Everything {
    /// Number of tokens.
    size: u32,
    #[serde(default)]
    rate: f64,
    #[serde(default)]
    signed: Option<i8>,
    #[serde(default)]
    seed: u64,
    #[serde(default)]
    label: Option<String>,
    #[serde(default)]
    strict: bool,
    #[serde(default)]
    unit: Unit,
    #[serde(default)]
    fusion: Fusion,
    #[serde(default)]
    policy: Option<Policy>,
    #[serde(default)]
    columns: BTreeMap<String, String>,
    #[serde(default)]
    stops: Vec<String>,
    #[serde(default)]
    pair: Option<(u8, String)>,
    #[serde(default)]
    source: Option<OneOrMany>,
    #[serde(default)]
    shape: Option<Shape>,
    #[serde(default)]
    extra: Option<Json>,
    #[serde(default)]
    tree: Option<Box<Tree>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Unit {
    #[default]
    Words,
    WordPieces,
}

/// Documented variants become `oneOf`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Fusion {
    /// Reciprocal ranks.
    #[default]
    Rrf,
    /// No fusion.
    None,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
enum Policy {
    /// An oracle.
    Evidence,
    /// A server.
    Endpoint(Endpoint),
    /// A local model.
    Model {
        /// Its folder.
        path: String,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
struct Endpoint {
    base_url: String,
    model: String,
    #[serde(default)]
    api_key: Option<Secret>,
    #[serde(default)]
    temperature: Option<f32>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
enum Shape {
    Flat { metric: String },
    Graph { links: u16 },
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only its schema and whether it deserialises matter")]
struct Tree {
    name: String,
    #[serde(default)]
    children: Vec<Tree>,
}

/// The params of the only node, or messages as `code: message | text at the primary label | help`.
fn typed(with: &str) -> Result<Json, Vec<String>> {
    let text =
        format!("params: {{teacher: {{base_url: u, modle: m}}, n: \"12\"}}\nnodes:\n  a: {{op: x, with: {with}}}\n");
    let mut sources = SourceMap::new();
    let reading = read_text(Path::new("p.yaml"), text, &Overrides::default(), &mut sources);
    let spec = reading.spec.expect("a spec");
    let schema = schemars::schema_for!(Everything).to_value();
    arguments(&spec.nodes[0].with, &schema, "x").map_err(|problems| {
        let tell = |problem: &Diagnostic| {
            let at = sources.text(problem.span().unwrap());
            let help = problem.help.clone().unwrap_or_default();
            format!("{}: {} | {at} | {help}", problem.code, problem.message)
        };
        problems.iter().map(tell).collect()
    })
}

#[track_caller]
fn accepts(with: &str, wanted: Json) {
    let typed = typed(with).unwrap_or_else(|problems| panic!("{with}: {problems:#?}"));
    assert_eq!(typed, wanted, "{with}");
    serde_json::from_value::<Everything>(typed).unwrap_or_else(|error| panic!("{with}: {error}"));
}

#[track_caller]
fn refuses(with: &str, wanted: &[&str]) {
    assert_eq!(typed(with).unwrap_err(), wanted, "{with}");
}

#[test]
fn scalars_follow_the_wanted_type() {
    accepts("{size: 12, rate: 1e-4}", json!({"size": 12, "rate": 1e-4}));
    accepts("{size: 1e3, rate: 1}", json!({"size": 1000, "rate": 1}));
    accepts("{size: 0x10, label: 007}", json!({"size": 16, "label": "007"}));
    accepts("{size: 1, label: no}", json!({"size": 1, "label": "no"}));
    accepts("{size: 1, label: true}", json!({"size": 1, "label": "true"}));
    accepts("{size: 1, label: 1.50}", json!({"size": 1, "label": "1.50"}));
    accepts("{size: 1, label: null, signed: ~}", json!({"size": 1, "label": null, "signed": null}));
    accepts("{size: 1, seed: 18446744073709551615}", json!({"size": 1, "seed": u64::MAX}));
    accepts("{size: 1, strict: True, signed: -3}", json!({"size": 1, "strict": true, "signed": -3}));
    accepts("{size: 1, columns: {1: 2, a: b}}", json!({"size": 1, "columns": {"1": "2", "a": "b"}}));
    accepts("{size: 1, stops: [1, no, \"x\"]}", json!({"size": 1, "stops": ["1", "no", "x"]}));
    accepts("{size: 1, pair: [7, 8]}", json!({"size": 1, "pair": [7, "8"]}));
    accepts("{size: 1, extra: {a: [1, no, 1e2]}}", json!({"size": 1, "extra": {"a": [1, "no", 100.0]}}));
}

#[test]
fn alternatives_are_told_by_their_key() {
    accepts("{size: 1, unit: word-pieces, fusion: none}", json!({"size": 1, "unit": "word-pieces", "fusion": "none"}));
    accepts("{size: 1, policy: evidence}", json!({"size": 1, "policy": "evidence"}));
    accepts("{size: 1, policy: null}", json!({"size": 1, "policy": null}));
    let endpoint = json!({"base_url": "u", "model": "4", "api_key": "${secret:KEY}", "temperature": 0.5});
    accepts(
        "{size: 1, policy: {endpoint: {base_url: u, model: 4, api_key: \"${secret:KEY}\", temperature: .5}}}",
        json!({"size": 1, "policy": {"endpoint": endpoint}}),
    );
    accepts("{size: 1, source: 1}", json!({"size": 1, "source": "1"}));
    accepts("{size: 1, source: [1, a]}", json!({"size": 1, "source": ["1", "a"]}));
    accepts("{size: 1, shape: {kind: graph, links: 32}}", json!({"size": 1, "shape": {"kind": "graph", "links": 32}}));
    accepts(
        "{size: 1, tree: {name: a, children: [{name: 1}]}}",
        json!({"size": 1, "tree": {"name": "a", "children": [{"name": "1"}]}}),
    );
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    refuses(
        "{sise: 3, rate: fast, strict: yes, label: [a], unit: word}",
        &[
            "unknown-key: `x` has no param `sise` | sise | did you mean `size`?",
            "wrong-type: `rate` of `x` must be a number, not a string | fast | ",
            "wrong-type: `strict` of `x` must be `true` or `false`, not a string | yes | write `true` for `yes`",
            "wrong-type: `label` of `x` must be a string, not a list | [a] | ",
            "bad-value: `unit` of `x` cannot be `word` | word | did you mean `words`?",
            "missing-key: `x` needs the param `size` | {sise: 3, rate: fast, strict: yes, label: [a], unit: word} | \
             `size`: Number of tokens.",
        ],
    );
    refuses("{size: -1}", &["bad-value: `size` of `x` must be at least 0, not `-1` | -1 | "]);
    refuses(
        "{size: 4294967296}",
        &["bad-value: `size` of `x` must be at most 4294967295, not `4294967296` | 4294967296 | "],
    );
    refuses("{size: 1.5}", &["wrong-type: `size` of `x` must be a whole number, not a number | 1.5 | "]);
    refuses(
        "{size: \"12\"}",
        &["wrong-type: `size` of `x` must be a whole number, not a string | \"12\" | write `12` without quotes"],
    );
    refuses("{size: }", &["wrong-type: `size` of `x` must be a whole number, not nothing | size | "]);
    refuses("{size: 1, signed: 200}", &["bad-value: `signed` of `x` must be at most 127, not `200` | 200 | "]);
    refuses(
        "{size: 1, rate: .inf}",
        &["wrong-type: `rate` of `x` must be a number, not an infinite or undefined number | .inf | "],
    );
    refuses(
        "{size: 1, stops: a}",
        &["wrong-type: `stops` of `x` must be a list, not a string | a | write a list: `[a]`"],
    );
    refuses("{size: 1, pair: [1]}", &["bad-value: `pair` of `x` must have at least 2 items, not 1 | [1] | "]);
}

#[test]
fn faults_are_told_inside_the_chosen_alternative() {
    refuses(
        "{size: 1, policy: {endpoint: {base_url: u, modle: m}}}",
        &[
            "unknown-key: `x` has no param `policy.endpoint.modle` | modle | did you mean `model`?",
            "missing-key: `x` needs the param `policy.endpoint.model` | endpoint | ",
        ],
    );
    refuses(
        "{size: 1, policy: {endpont: {}}}",
        &["unknown-key: `policy` of `x` cannot be `endpont: …` | endpont | did you mean `endpoint`?"],
    );
    refuses(
        "{size: 1, policy: endpoint}",
        &[
            "bad-value: `policy` of `x` cannot be `endpoint` | endpoint | `endpoint` needs options: write `endpoint: {…}`",
        ],
    );
    refuses(
        "{size: 1, policy: {evidence: {}}}",
        &[
            "unknown-key: `policy` of `x` cannot be `evidence: …` | evidence | `evidence` takes no options: write it alone",
        ],
    );
    refuses(
        "{size: 1, policy: oracle}",
        &["bad-value: `policy` of `x` cannot be `oracle` | oracle | available: `evidence`, `endpoint`, `model`"],
    );
    refuses("{size: 1, fusion: rff}", &["bad-value: `fusion` of `x` cannot be `rff` | rff | did you mean `rrf`?"]);
    refuses(
        "{size: 1, source: {a: b}}",
        &["wrong-type: `source` of `x` must be a string or a list, not a map | {a: b} | "],
    );
    refuses("{size: 1, source: [[a]]}", &["wrong-type: `source.0` of `x` must be a string, not a list | [a] | "]);
    refuses(
        "{size: 1, shape: {kind: grpah}}",
        &["bad-value: `shape.kind` of `x` cannot be `grpah` | grpah | did you mean `graph`?"],
    );
    refuses("{size: 1, shape: {kind: graph}}", &["missing-key: `x` needs the param `shape.links` | shape | "]);
}

#[test]
fn a_secret_is_a_reference() {
    let literal = "a secret written out where a reference belongs: `policy.endpoint.api_key` of `x`";
    let help = "write `${secret:NAME}` and set the environment variable NAME";
    for written in ["sk-123", "\"x ${env:NAME:-sk}\"", "[a]"] {
        let with = format!("{{size: 1, policy: {{endpoint: {{base_url: u, model: m, api_key: {written}}}}}}}");
        refuses(&with, &[&format!("secret-literal: {literal} | {written} | {help}")]);
    }
}

#[test]
fn a_secret_where_none_is_read_is_refused() {
    let refused = |path: &str| {
        format!(
            "secret-not-read: `{path}` of `x` does not accept secrets: it would get the reference as text | \
             \"${{secret:KEY}}\" | only params of the type `secret` read one; a program gets a variable of the \
             environment by its name (`environment: [NAME]`)"
        )
    };
    for (with, path) in [
        ("label: \"${secret:KEY}\"", "label"),
        ("columns: {a: \"${secret:KEY}\"}", "columns.a"),
        ("stops: [x, \"${secret:KEY}\"]", "stops.1"),
        ("extra: {deep: [{key: \"${secret:KEY}\"}]}", "extra.deep.0.key"),
    ] {
        refuses(&format!("{{size: 1, {with}}}"), &[&refused(path)]);
    }
}

#[test]
fn what_came_by_reference_is_told_where_it_was_written() {
    refuses(
        "{size: \"${params.n}\", policy: {endpoint: \"${params.teacher}\"}}",
        &[
            "wrong-type: `size` of `x` must be a whole number, not a string | \"12\" | write `12` without quotes",
            "unknown-key: `x` has no param `policy.endpoint.modle` | modle | did you mean `model`?",
            "missing-key: `x` needs the param `policy.endpoint.model` | endpoint | ",
        ],
    );
    refuses("{size: \"${params.nope}\"}", &[]);
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Demand {
    /// With a description, each word is an alternative of its own.
    All,
    /// Another one.
    Facts,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema matters")]
enum Grounded {
    Any(bool),
    Whole(Demand),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema matters")]
struct Kept {
    grounded: Grounded,
}

#[test]
fn a_choice_of_a_switch_or_words_names_both() {
    let schema = schemars::schema_for!(Kept).to_value();
    let mut sources = SourceMap::new();
    let spec = "name: n\nnodes:\n  a: {op: o, with: {grounded: al}}\n";
    let reading = read_text(Path::new("p.yaml"), spec, &Overrides::default(), &mut sources);
    let spec = reading.spec.expect("a spec");
    let told = arguments(&spec.nodes[0].with, &schema, "o").expect_err("no such word");
    assert!(
        told[0].message.contains("`true` or `false`") && told[0].message.contains("`facts`"),
        "{}",
        told[0].message
    );
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Size {
    Rows(u64),
    Share(f64),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Sizes {
    size: Size,
    rows: u64,
}

#[test]
fn a_decimal_point_makes_a_number_where_a_whole_one_fits_too() {
    for (text, size) in [
        ("1", Size::Rows(1)),
        ("1.0", Size::Share(1.0)),
        ("0.5", Size::Share(0.5)),
        ("1e3", Size::Rows(1000)),
        ("1.", Size::Share(1.0)),
    ] {
        let schema = schemars::schema_for!(Sizes).to_value();
        let mut sources = SourceMap::new();
        let spec = format!("name: n\nnodes:\n  a: {{op: o, with: {{size: {text}, rows: 2.0}}}}\n");
        let reading = read_text(Path::new("p.yaml"), &spec, &Overrides::default(), &mut sources);
        let spec = reading.spec.expect("a spec");
        let typed = arguments(&spec.nodes[0].with, &schema, "o").expect("params");
        let read: Sizes = serde_json::from_value(typed).expect("sizes");
        assert_eq!((read.size, read.rows), (size, 2), "{text}");
    }
}

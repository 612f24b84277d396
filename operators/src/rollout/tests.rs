//! Tests of `rollout` against a real HTTP server and real BM25 indexes.

mod endpoint_failures;
mod endpoint_talk;
mod evidence_data;
mod in_turns;
mod local_model;
mod observation_limits;
mod recheck;
mod recorded_tokens;
mod text_protocols;
mod what_servers_send;

use std::collections::BTreeMap;
use std::sync::Arc;

use searchmill_engine::fingerprint::identity_params;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input, tree_input};
use searchmill_engine::operator::{InputArtifact, Source, TreeKind, entry};
use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step};
use searchmill_schemas::{Chunk, Evidence, Question, Trajectory};
use serde_json::{Value, json};

use super::Rollout;

/// A passage as a chunk of a separate document.
fn chunk(id: &str, title: &str, text: &str) -> Chunk {
    Chunk {
        id: format!("{id}#0"),
        document_id: id.to_owned(),
        position: 0,
        document_chunks: 1,
        title: Some(title.to_owned()),
        text: text.to_owned(),
        contents: format!("{title}\n{text}"),
        start: 0,
        end: text.len() as i64,
        tokens: text.split_whitespace().count() as i32,
        metadata: None,
    }
}

fn question(id: &str, text: &str) -> Question {
    Question {
        id: id.to_owned(),
        question: text.to_owned(),
        golden_answers: vec!["Rome".to_owned()],
        question_type: Some("bridge".to_owned()),
        evidence: vec![Evidence { title: Some("Italy".to_owned()), ..Evidence::default() }],
        metadata: Some("{\"level\":\"easy\"}".to_owned()),
    }
}

/// Builds a BM25 index of these chunks with `index`.
fn bm25(harness: &Harness, chunks: &[Chunk]) -> InputArtifact {
    let built = harness.run(
        &entry::<crate::index::Index>(),
        json!({"kind": "bm25"}),
        &inputs([("chunks", rows_input(chunks))]),
    );
    tree_input(TreeKind::Index, &built.expect("an index").trees["index"])
}

fn small_corpus() -> Vec<Chunk> {
    vec![
        chunk("it", "Italy", "Italy is a country in Europe. Its capital is Rome."),
        chunk("fr", "France", "France is a country in Europe. Its capital is Paris."),
        chunk("tiber", "Tiber", "The Tiber is a river that flows through Rome."),
    ]
}

/// A scripted server, and the settings to call it.
struct Bench {
    harness: Harness,
    server: OpenAiServer,
    endpoint: Value,
    params: Value,
}

impl Bench {
    fn new(script: &[(&str, Vec<Step>)]) -> Self {
        let script: Script = script.iter().map(|(question, steps)| ((*question).to_owned(), steps.clone())).collect();
        let server = OpenAiServer::start(script);
        let endpoint = json!({"base_url": server.base_url(), "model": "scripted", "timeout_seconds": 5});
        Self { harness: Harness::new(), server, endpoint, params: json!({}) }
    }

    fn with(mut self, params: Value) -> Self {
        self.params = params;
        self
    }

    fn endpoint(mut self, name: &str, value: Value) -> Self {
        self.endpoint[name] = value;
        self
    }

    /// Answers all scripted questions with a search tool over the small corpus.
    fn run(&self, questions: &[&str]) -> Outcome {
        self.run_with(questions, Some(bm25(&self.harness, &small_corpus())))
    }

    fn run_with(&self, questions: &[&str], index: Option<InputArtifact>) -> Outcome {
        let rows: Vec<_> = questions.iter().map(|text| question(&format!("id of {text}"), text)).collect();
        let mut bound = inputs([("questions", rows_input(&rows))]);
        if let Some(index) = index {
            bound.bind("search", index);
        }
        let mut params = self.params.clone();
        params["policy"] = json!({"endpoint": self.endpoint});
        self.harness.run(&entry::<Rollout>(), params, &bound).expect("the node runs")
    }

    /// Returns the only trajectory of a run on one question.
    fn one(&self, question: &str) -> Trajectory {
        let outcome = self.run(&[question]);
        assert!(outcome.rejects().is_empty(), "{:?}", outcome.rejects());
        let mut rows = outcome.read::<Trajectory>("trajectories");
        assert_eq!(rows.len(), 1);
        rows.remove(0)
    }
}

/// Rejects by question: (kind, attempts, detail).
fn rejects(outcome: &Outcome) -> BTreeMap<String, (String, i32, Option<String>)> {
    let rejects = outcome.rejects().into_iter();
    rejects.map(|r| (r.id.trim_start_matches("id of ").to_owned(), (r.kind, r.attempts, r.detail))).collect()
}

fn authors(trajectory: &Trajectory) -> Vec<&str> {
    trajectory.messages.iter().map(|message| message.role.as_str()).collect()
}

#[test]
fn params_are_checked_at_their_place() {
    let bind = entry::<Rollout>().bind;
    let refused = |params: Value| match bind(params) {
        Ok(bound) => bound.declaration.issues.into_iter().map(|issue| issue.path).collect::<Vec<_>>(),
        Err(issue) => vec![format!("{}: {}", issue.path, issue.message)],
    };
    assert!(refused(json!({"policy": "evidence"})).is_empty());
    assert_eq!(refused(json!({"policy": "evidence", "samples": 0, "max_turns": 0})), ["samples", "max_turns"]);
    assert_eq!(refused(json!({"policy": "evidence", "tool_name": "my search"})), ["tool_name"]);
    assert_eq!(refused(json!({"policy": "evidence", "search": {"top_k": 0}})), ["search.top_k"]);
    assert_eq!(refused(json!({"policy": {"evidence": {"attempts": 0}}})), ["policy.evidence.attempts"]);
    let typo = refused(json!({"policy": {"endpoint": {"base_url": "http://h/v1", "model": "m", "max_token": 5}}}));
    assert!(typo[0].starts_with("policy.endpoint") && typo[0].contains("unknown field `max_token`"), "{typo:?}");
}

#[test]
fn the_schema_knows_every_form_of_policy() {
    let schema = (entry::<Rollout>().schema)();
    let policy = &schema["$defs"]["Policy"]["oneOf"];
    let forms = policy.as_array().expect("alternatives");
    assert!(forms.iter().any(|form| form["const"] == "evidence" || form["enum"] == json!(["evidence"])), "{policy}");
    for name in ["endpoint", "evidence"] {
        assert!(forms.iter().any(|form| form["required"] == json!([name])), "{name}: {policy}");
    }
}

#[test]
fn servers_keys_and_patience_do_not_enter_the_key() {
    let entry = entry::<Rollout>();
    let bound = |endpoint: Value| {
        (entry.bind)(json!({"policy": {"endpoint": endpoint}})).map_err(|i| i.message).expect("params")
    };
    let kept = |endpoint: Value| identity_params(&(entry.schema)(), &bound(endpoint).params);
    let here = json!({"base_url": "http://a/v1", "model": "m"});
    let there = json!({"base_url": "http://b/v1", "model": "m", "api_key": "${secret:KEY}", "timeout_seconds": 9.5});
    assert_eq!(kept(here.clone()), kept(there));
    let flips = [
        ("model", json!("n")),
        ("revision", json!("r1")),
        ("temperature", json!(0.0)),
        ("top_p", json!(0.5)),
        ("max_tokens", json!(9)),
        ("seed", json!(1)),
        ("extra", json!({"top_k": 5})),
        ("resend_reasoning", json!(true)),
        ("stream", json!(true)),
        ("identify_by_url", json!(true)),
    ];
    for (field, value) in flips {
        let mut flipped = here.clone();
        flipped[field] = value;
        assert_ne!(kept(here.clone()), kept(flipped), "{field}");
    }
    let mut by_url = here;
    by_url["identify_by_url"] = json!(true);
    assert_eq!(
        bound(by_url).declaration.sources(std::path::Path::new("")),
        [Source::Identity("http://a/v1".to_owned())]
    );
}

#[test]
fn the_columns_that_decide_a_rollout_depend_on_the_policy() {
    let reads = |policy| {
        (entry::<Rollout>().bind)(json!({"policy": policy})).expect("params").declaration.rows.expect("rows").columns
    };
    assert_eq!(reads(json!({"endpoint": {"base_url": "http://h/v1", "model": "m"}})), ["question"]);
    assert_eq!(reads(json!("model")), ["id", "question"]);
    let planned = reads(json!({"evidence": {"plan": "plan"}}));
    assert_eq!(planned, ["id", "question", "golden_answers", "question_type", "evidence", "metadata"]);
    let bound = (entry::<Rollout>().bind)(json!({"policy": "evidence"})).expect("params");
    let harness = Harness::new();
    let kernel = bound.open(&inputs([("questions", rows_input::<Question>(&[]))]), &harness.context());
    let Ok(searchmill_engine::operator::Kernel::AsyncMap(kernel)) = kernel else { panic!("a row kernel") };
    assert_eq!(kernel.reads(), ["id", "question", "golden_answers", "question_type", "evidence"]);
    assert_eq!(Arc::strong_count(&kernel), 1);
}

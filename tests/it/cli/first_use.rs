//! Tests of a new user's first mistakes: helpful messages, and complete output.

use std::time::Duration;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told};
use crate::harness::s3_server::S3Server;

const WORLD: &str = "\
name: newcomer
nodes:
  world:    {op: generate-world, with: {documents: 100, questions: 8, min_hops: 1, max_hops: 1}, seed: 3}
  chunks:   {op: chunk, from: world, with: {size: 60, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence}}
  scores:   {op: evaluate, from: {trajectories: rollouts, questions: world.questions}, matrix: {n: [1, 2, 3]}, with: {title: \"${matrix.n}\"}}
";

fn world() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", WORLD);
    mill
}

#[test]
fn a_node_of_a_matrix_with_a_dot_in_its_name_is_found_everywhere() {
    let mill = world();
    mill.write("pipeline.yaml", &WORLD.replace("{n: [1, 2, 3]}", "{n: [0.5]}"));
    mill.run(&[]).exit(0);
    assert!(mill.call(&["show", "scores@n=0.5"]).exit(0).stdout.contains("Exact match"));
    for args in [
        &["show", "scores@n=0.5.metrics"][..],
        &["show", "scores@n=0.5", "--rejects"],
        &["show", "scores@n=0.5", "--run", "latest"],
        &["trace", "scores@n=0.5"],
        &["pin", "scores@n=0.5", "--run", "latest", "--name", "kept"],
        &["show", "kept"],
        &["trace", "kept"],
        &["audit", "kept"],
        &["logs", "latest"],
    ] {
        mill.call(args).exit(0);
    }
    let told = mill.call(&["show", "scores@n=0.5.metric"]).exit(2).stderr;
    assert!(told.contains("has no output `metric`") && told.contains("metrics"), "{told}");
    assert_eq!(mill.call(&["pin"]).exit(0).stdout, mill.call(&["pin", "--list"]).exit(0).stdout);
    for command in ["show", "trace"] {
        let told = mill.call(&[command, "scores"]).exit(2).stderr;
        assert!(told.contains("`scores` has a matrix: name one of its nodes"), "{told}");
    }
}

#[test]
fn rows_as_json_lines_come_alone() {
    let mill = world();
    mill.run(&["scores@n=1"]).exit(0);
    let told = mill.call(&["show", "scores@n=1", "--format", "jsonl", "-n", "0"]).exit(0);
    assert!(told.stdout.lines().count() > 3);
    for line in told.stdout.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok_and(|row| row.is_object()), "{line}");
    }
    assert!(
        mill.call(&["show", "scores@n=1"]).exit(0).stdout.contains("Exact match"),
        "the default format has the heading"
    );
}

#[test]
fn a_matrix_prints_one_table() {
    let told = world().call(&["run", "pipeline.yaml"]).exit(0).stdout;
    assert_eq!(told.matches("Scores and No-Retrieval Baselines").count(), 1, "{told}");
    assert!(told.contains("… and 2 more of scores@…: searchmill show "), "{told}");
}

#[test]
fn choices_are_listed_where_one_is_missing() {
    let mill = Mill::new();
    let pipeline = "name: x\nnodes:\n  w: {op: generate-world, with: {documents: 100, questions: 8}}\n  v: {op: convert-to-verl, from: w.questions}\n";
    mill.write("pipeline.yaml", pipeline);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(
        told.contains("`layout`: Trainer that reads the rows. Write `search-r1` or `research` or `verl`"),
        "{told}"
    );
}

#[test]
fn all_columns_that_a_foreign_table_lacks_are_named_at_once() {
    let mill = Mill::new();
    mill.write("foreign.jsonl", "{\"id\": \"a\", \"question\": \"who?\"}\n");
    mill.write(
        "pipeline.yaml",
        "name: x\nnodes:\n  foreign: {op: read, with: {path: foreign.jsonl, as: trajectory}}\n",
    );
    let told = mill.run(&[]).exit(1).stdout;
    assert!(told.contains("no record has `prediction`, `golden_answers`, which trajectories need"), "{told}");
    assert!(!told.contains("`question_id`"), "what follows from other columns is not asked for: {told}");
}

#[test]
fn a_store_without_credentials_asks_for_them_and_names_no_metadata_service() {
    let mill = world();
    let mut command = mill.command(&["runs", "--store", "s3://bucket/store"]);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    // Stands in for an unreachable metadata service: this one refuses connections immediately.
    command.env("AWS_REGION", "eu-west-1").env("SEARCHMILL_STORE_CACHE", mill.path("copy"));
    command.env("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9/169.254.169.254");
    let told = Told::new(command.output().expect("the program can be started")).exit(5);
    assert!(told.stderr.contains("no credentials are set: set AWS_ACCESS_KEY_ID"), "{}", told.stderr);
    assert!(!told.stderr.contains("169.254"), "{}", told.stderr);
}

#[test]
fn a_copy_of_a_store_that_was_made_anew_is_not_thrown_away() {
    let bench = Bench::new(&patient(2, Duration::ZERO));
    let run = |s3: &S3Server, args: &[&str]| {
        let mut command = bench.mill.command(args);
        s3.aim(&mut command);
        command.env("SEARCHMILL_STORE", "s3://bucket/store").env("SEARCHMILL_STORE_CACHE", bench.mill.path("copy"));
        command.env("ENDPOINT", bench.server.base_url()).env("API_KEY", "key");
        Told::new(command.output().expect("the program can be started"))
    };
    run(&S3Server::start(), &["run", "pipeline.yaml"]).exit(0);
    let anew = S3Server::start();
    let told = run(&anew, &["run", "pipeline.yaml"]).exit(5).stderr;
    assert!(told.contains("paid rows that are nowhere else") && !told.contains("remove it"), "{told}");
    // The suggested commands work.
    let copy = bench.mill.path("copy").display().to_string();
    bench.mill.call(&["export", "--memo", "rows.tar.zst", "--store", &copy]).exit(0);
    let mut command = bench.mill.command(&["import", "rows.tar.zst"]);
    anew.aim(&mut command);
    command.env("SEARCHMILL_STORE", "s3://bucket/store").env("SEARCHMILL_STORE_CACHE", bench.mill.path("other"));
    Told::new(command.output().expect("the program can be started")).exit(0);
}

#[test]
fn gc_says_how_much_was_paid_for() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    bench.run(&[]).exit(0);
    let told = bench.mill.call(&["gc"]).exit(0).stdout;
    assert!(told.contains("of rows that were paid for stay in"), "{told}");
    let summary = bench.mill.call(&["gc", "--json"]).exit(0).events().pop().expect("a summary");
    assert!(summary["kept_memos"].as_u64() >= Some(1) && summary["kept_memo_bytes"].as_u64() > Some(100), "{summary}");
}

/// Returns a project with a pipeline that only reads one file.
fn reading(file: &str, content: &str, with: &str) -> Mill {
    let mill = Mill::new();
    mill.write(file, content);
    mill.write("pipeline.yaml", &format!("name: x\nnodes:\n  rows: {{op: read, with: {{path: {file}, {with}}}}}\n"));
    mill
}

#[test]
fn evidence_under_other_names_is_not_emptied() {
    let row = r#"{"question": "?", "golden_answers": ["a"], "evidence": [{"doc_id": "D/0", "sentence": "s"}]}"#;
    let told = reading("q.jsonl", row, "as: question").run(&[]).exit(1).stdout;
    assert!(told.contains("did you mean `document_id` for `doc_id`?"), "{told}");
}

#[test]
fn questions_without_answers_are_told_at_the_node() {
    let row = r#"{"question": "?", "answers": ["a"]}"#;
    let mill = reading("q.jsonl", row, "as: question");
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0).stderr;
    let warning = "warning  rows no record has `golden_answers`; did you mean `answers`?";
    assert!(told.contains(warning), "{told}");
    let page = mill.call(&["kinds", "question"]).exit(0).stdout;
    assert!(page.contains("May be empty"), "{page}");
}

#[test]
fn a_missing_field_costs_a_row_and_not_half_its_text() {
    let rows = "{\"k\": \"a\", \"lead\": \"L\", \"body\": \"B\"}\n{\"k\": \"b\", \"lead\": \"L\"}\n{\"lead\": \"L\", \"body\": \"B\"}\n";
    let mill = reading("d.jsonl", rows, r#"as: document, columns: {id: k, text: "{lead} {body}"}"#);
    let told = mill.call(&["run", "pipeline.yaml"]).stderr;
    assert!(told.contains("2 rejects"), "{told}");
    let rows = mill.call(&["show", "rows", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    assert_eq!(rows.lines().count(), 1, "{rows}");
}

#[test]
fn a_split_by_documents_that_nobody_names_fails() {
    let mill = Mill::new();
    mill.write("q.jsonl", "{\"question\": \"1\"}\n{\"question\": \"2\"}\n");
    let pipeline = "name: x\nnodes:\n  q: {op: read, with: {path: q.jsonl, as: question}}\n  p: {op: split, from: q, with: {parts: {a: 0.5, b: 0.5}, by: document}}\n";
    mill.write("pipeline.yaml", pipeline);
    let told = mill.run(&[]).exit(1).stdout;
    assert!(told.contains("none of the 2 rows names a document"), "{told}");
}

#[test]
fn the_command_line_says_where_params_are_declared() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", "name: x\nparams: {teacher: {model: m}}\nnodes: {w: {op: generate-world, with: {documents: 100, questions: 8}}}\n");
    let told = mill.call(&["validate", "pipeline.yaml", "--set", "teacher.temperature=0.3"]).exit(2).stderr;
    assert!(told.contains("declare it under `params.teacher` in pipeline.yaml"), "{told}");
    let told = mill.call(&["import", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml is not an export of searchmill"), "{told}");
}

#[test]
fn a_plan_names_what_a_node_waits_for_once() {
    let told = world().call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    let waits = told.lines().find(|line| line.contains("scores@n=1")).expect("the scores wait");
    assert_eq!(waits.matches("rollouts").count(), 1, "{told}");
}

#[test]
fn an_output_that_is_held_back_is_not_done() {
    let rows = "{\"text\": \"a\"}\n{\"title\": \"b\"}\n{\"title\": \"c\"}\n";
    let mill = reading("d.jsonl", rows, "as: document");
    let text = std::fs::read_to_string(mill.path("pipeline.yaml")).expect("a pipeline");
    mill.write("pipeline.yaml", &format!("{text}  out: {{op: write, from: rows, with: {{path: out.jsonl}}}}\n"));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(3).stderr;
    assert!(
        told.contains("held back out") && told.contains("computed out") && !told.contains("done     out"),
        "{told}"
    );
}

#[test]
fn a_file_beside_a_node_of_its_name_is_traced() {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"t\"}\n");
    let node = "  documents: {op: read, with: {path: documents.jsonl, as: document}}\n";
    mill.write("pipeline.yaml", &format!("name: plain\nnodes:\n{node}"));
    mill.run(&[]).exit(0);
    assert!(mill.call(&["trace", "documents.jsonl"]).exit(0).stdout.contains("documents.rows"));
    assert!(mill.call(&["trace", "documents.jsonlines"]).exit(2).stderr.contains("has no output `jsonlines`"));
}

#[test]
fn a_misspelled_param_of_the_quickstart_is_named() {
    let mill = Mill::new();
    let shipped = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("pipelines/quickstart.yaml");
    let text = std::fs::read_to_string(shipped).expect("the pipeline").replace("chunk_words: 80", "chunk_word: 80");
    mill.write("pipeline.yaml", &text);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(told.stderr.contains("unknown param `chunk_words`"), "{}", told.stderr);
}

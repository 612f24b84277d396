//! What somebody new stumbles over: messages that lead on, output that holds what was asked for.

use std::time::Duration;

use crate::endpoint::{Bench, patient};
use crate::mill::{Mill, Told};
use crate::s3_server::S3Server;

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
fn rows_as_json_lines_come_alone() {
    let mill = world();
    mill.run(&["scores@n=1"]).exit(0);
    let told = mill.call(&["show", "scores@n=1", "--format", "jsonl", "-n", "0"]).exit(0);
    assert!(told.stdout.lines().count() > 3);
    for line in told.stdout.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok_and(|row| row.is_object()), "{line}");
    }
    assert!(mill.call(&["show", "scores@n=1"]).exit(0).stdout.contains("Exact match"), "a table has the rest");
}

#[test]
fn a_matrix_prints_one_table() {
    let told = world().call(&["run", "pipeline.yaml"]).exit(0).stdout;
    assert_eq!(told.matches("Exact match (EM)").count(), 1, "{told}");
    assert!(told.contains("… and 2 more of scores@…: searchmill show "), "{told}");
}

#[test]
fn choices_are_listed_where_one_is_missing() {
    let mill = Mill::new();
    let pipeline = "name: x\nnodes:\n  w: {op: generate-world, with: {documents: 100, questions: 8}}\n  v: {op: convert-to-verl, from: w.questions}\n";
    mill.write("pipeline.yaml", pipeline);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`layout`: Whose rows. Write `search-r1` or `research` or `verl`"), "{told}");
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
    for column in ["`question_id`", "`prediction`", "`finish_reason`"] {
        assert!(told.contains(column), "{column}: {told}");
    }
    assert!(told.contains(" are missing"), "{told}");
}

#[test]
fn a_store_without_credentials_asks_for_them_and_names_no_metadata_service() {
    let mill = world();
    let mut command = mill.command(&["runs", "--store", "s3://bucket/store"]);
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_PROFILE"] {
        command.env_remove(name);
    }
    // A metadata service that refuses at once, in the place of one that nobody answers at.
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
    // What it says to do works.
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

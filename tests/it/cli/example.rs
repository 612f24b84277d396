//! Tests of the example with its own operator: its sources are compiled here, and its tests and pipeline run.
//!
//! As a separate workspace it would compile every dependency again; the tested code is the same.

use std::path::Path;

#[path = "../../../examples/rust-operator/src/main.rs"]
#[allow(
    dead_code,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program: `main` is not called, and it prints"
)]
mod program;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/rust-operator");

#[test]
fn the_program_runs_its_pipeline_and_then_knows_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pipeline.yaml");
    std::fs::copy(Path::new(FOLDER).join("pipeline.yaml"), &file).expect("the example's pipeline");
    let run = || program::run_pipeline(&file, folder.path()).unwrap_or_else(|problem| panic!("{problem}"));
    let first = run();
    assert_eq!((first.finished, first.failed), (5, 0));
    let written = std::fs::read_to_string(folder.path().join("out/short.jsonl")).expect("the file that it writes");
    assert_eq!(written.lines().count(), 300);
    let longest = written.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
        row["text"].as_str().unwrap_or_default().trim_end_matches('…').split_whitespace().count()
    });
    assert_eq!(longest.max(), Some(60), "the example's own operator cut the texts");
    let second = run();
    assert_eq!((second.cached, second.finished), (5, 0));
}

#[test]
fn an_operator_that_nobody_registered_is_not_known() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pipeline.yaml");
    std::fs::write(&file, "name: x\nnodes:\n  a: {op: truncate-texts, with: {words: 1}}\n").expect("a file");
    let problem = program::run_pipeline(&file, folder.path()).expect_err("a wrong name").to_string();
    assert!(problem.contains("pipeline.yaml:3:11") && problem.contains("did you mean `truncate-text`?"), "{problem}");
}

/// Checks the example's own dependency versions: types of two versions are incompatible.
#[test]
fn the_example_asks_for_the_versions_that_searchmill_uses() {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a manifest");
    let own = read(&Path::new(FOLDER).join("Cargo.toml"));
    let ours = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    let version = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.split('=').next().is_some_and(|found| found.trim() == name))?;
        line.split('"').nth(1).map(str::to_owned)
    };
    for name in ["arrow", "schemars", "serde", "serde_json"] {
        let (theirs, ours) = (version(&own, name), version(&ours, name));
        assert!(theirs.is_some() && theirs == ours, "{name}: {theirs:?}, {ours:?}");
    }
}

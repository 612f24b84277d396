//! Tests of the reuse of unchanged parts of a table: the result is the same as without reuse.

use std::collections::BTreeMap;

use crate::harness::project::{Mill, Told, files_in};

const ROWS: usize = 30_000;
const PIPELINE: &str = "\
name: blocks
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 8, count: words}}
";

fn document(number: usize, word: &str) -> String {
    let text = format!("Document {number} tells of the {word} river. It has {number} bridges, all built long ago.");
    format!("{}\n", serde_json::json!({"id": format!("d{number}"), "title": format!("River {number}"), "text": text}))
}

fn documents(numbers: impl Iterator<Item = usize>, changed: usize) -> String {
    numbers.map(|number| document(number, if number == changed { "wide" } else { "narrow" })).collect()
}

fn ran() -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(0..ROWS, ROWS));
    mill.write("pipeline.yaml", PIPELINE);
    assert_eq!(known(&mill.run(&[]).exit(0)), 0);
    mill
}

/// Returns the number of known rows in the input of `chunks`.
fn known(told: &Told) -> u64 {
    let events = told.events();
    let finished = events.iter().find(|event| event["event"] == "node_finished" && event["node"] == "chunks");
    finished.and_then(|event| event["cached_rows"].as_u64()).expect("`chunks` ran")
}

/// Returns the artifacts of a run in an empty store.
fn afresh(mill: &Mill) -> BTreeMap<String, String> {
    let other = Mill::new();
    for name in ["documents.jsonl", "pipeline.yaml"] {
        other.write(name, &mill.read(name));
    }
    other.run(&[]).exit(0);
    other.artifacts()
}

#[test]
fn one_changed_document_costs_its_part_and_not_the_table() {
    let mill = ran();
    mill.write("documents.jsonl", &documents(0..ROWS, 20_000));
    let known = known(&mill.run(&[]).exit(0));
    assert!((ROWS as u64 / 4..ROWS as u64).contains(&known), "{known}");
    assert_eq!(mill.artifacts(), afresh(&mill));
}

#[test]
fn added_and_removed_rows_cost_the_parts_that_they_are_in() {
    let mill = ran();
    mill.write("documents.jsonl", &documents((0..ROWS + 100).filter(|row| *row != 10), ROWS + 100));
    let some = known(&mill.run(&[]).exit(0));
    assert!(some > 0, "{some}");
    assert_eq!(mill.artifacts(), afresh(&mill));
}

#[test]
fn a_changed_param_or_a_switched_off_cache_maps_everything() {
    let mill = ran();
    mill.write("documents.jsonl", &documents(0..ROWS, 20_000));
    assert_eq!(known(&mill.run(&["--no-cache"]).exit(0)), 0);
    mill.write("pipeline.yaml", &PIPELINE.replace("size: 8", "size: 9"));
    assert_eq!(known(&mill.run(&[]).exit(0)), 0);
    assert_eq!(mill.artifacts(), afresh(&mill));
}

#[test]
fn parts_that_are_gone_or_damaged_are_mapped_again() {
    let mill = ran();
    let folder = mill.artifact_folder("chunks", "chunks");
    let parts: Vec<_> =
        files_in(&folder).into_iter().filter(|path| path.extension().is_some_and(|e| e == "parquet")).collect();
    assert!(parts.len() > 3, "{parts:?}");
    std::fs::remove_file(&parts[0]).unwrap();
    let torn = std::fs::OpenOptions::new().write(true).open(&parts[1]).unwrap();
    torn.set_len(100).unwrap();
    mill.write("documents.jsonl", &documents(0..ROWS, 29_999));
    let some = known(&mill.run(&[]).exit(0));
    assert!(some > 0 && some < 25_000, "{some}");
    assert_eq!(mill.artifacts(), afresh(&mill));
    std::fs::remove_dir_all(&folder).unwrap();
    mill.write("documents.jsonl", &documents(0..ROWS, 29_998));
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), afresh(&mill));
}

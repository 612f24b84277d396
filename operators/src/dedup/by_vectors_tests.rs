//! Tests of `dedup near: {vectors: …}`.

use arrow::array::AsArray;
use arrow::datatypes::Float64Type;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input, tree_input};
use searchmill_engine::operator::{InputArtifact, OperatorError, TreeKind, entry};
use searchmill_retrieval::IndexVectors;
use searchmill_schemas::{Chunk, Document};
use serde_json::{Value, json};

use super::Dedup;
use crate::index::tests::{chunk, index};

fn dense() -> Value {
    json!({"dense": {"encoder": {"hashing": {"dimensions": 64}}}})
}

fn run(chunks: &[Chunk], kind: Value, params: &Value, rows: InputArtifact) -> Result<Outcome, OperatorError> {
    let harness = Harness::new();
    let folder = index(&harness, chunks, kind);
    let bound = inputs([("rows", rows), ("index", tree_input(TreeKind::Index, &folder))]);
    harness.run(&entry::<Dedup>(), params.clone(), &bound)
}

fn near(threshold: f64) -> Value {
    json!({"near": {"vectors": {"threshold": threshold}}})
}

fn chunks(texts: &[String]) -> Vec<Chunk> {
    texts.iter().enumerate().map(|(place, text)| chunk(&format!("d{place}"), None, text)).collect()
}

/// Texts of few words, so that many are alike.
fn texts(count: usize) -> Vec<String> {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let words = ["river", "city", "tower", "bridge", "salt", "king", "island", "road", "harbour", "mill"];
    let mut text = || (0..6).map(|_| words[random.random_range(0..words.len())]).collect::<Vec<_>>().join(" ");
    (0..count).map(|place| if place % 50 == 0 { String::new() } else { text() }).collect()
}

#[test]
fn groups_are_those_of_all_pairs() {
    let rows = chunks(&texts(700));
    let harness = Harness::new();
    let folder = index(&harness, &rows, dense());
    let InputArtifact::Tree(tree) = tree_input(TreeKind::Index, &folder) else { unreachable!("a tree") };
    let vectors = IndexVectors::open(&tree).expect("vectors");
    for threshold in [0.75, 0.9, 1.0] {
        let mut root: Vec<u32> = (0..700).collect();
        for one in 0..700_u32 {
            for other in 0..one {
                if vectors.similarity(one, other) >= threshold - 1e-9 {
                    let (old, new) = (root[one as usize], root[other as usize]);
                    for root in root.iter_mut().filter(|root| **root == old.max(new)) {
                        *root = old.min(new);
                    }
                }
            }
        }
        let wanted: Vec<String> =
            (0..700_u32).filter(|row| root[*row as usize] == *row).map(|row| format!("d{row}#0")).collect();
        let outcome = run(&rows, dense(), &near(threshold), rows_input(&rows)).expect("runs");
        let kept: Vec<String> = outcome.read::<Chunk>("rows").into_iter().map(|row| row.id).collect();
        assert!(kept == wanted && kept.len() < 700, "{threshold}: {} instead of {}", kept.len(), wanted.len());
        let dropped = outcome.batch("duplicates");
        assert_eq!(dropped.num_rows(), 700 - kept.len());
        let similarities = dropped.column_by_name("similarity").expect("a column").as_primitive::<Float64Type>();
        assert!(threshold < 1.0 || similarities.values().iter().all(|similarity| *similarity > 1.0 - 1e-9));
    }
}

#[test]
fn a_document_is_its_only_chunk_and_a_text_without_words_stays() {
    let made = chunks(&["the salt mill".into(), "the salt mill".into(), String::new(), String::new()]);
    let document =
        |place: usize| Document { id: format!("d{place}"), title: None, text: "anything".to_owned(), metadata: None };
    let documents: Vec<Document> = (0..4).map(document).collect();
    let ids = |params: &Value| -> Vec<String> {
        let outcome = run(&made, dense(), params, rows_input(&documents)).expect("runs");
        outcome.read::<Document>("rows").into_iter().map(|row| row.id).collect()
    };
    assert_eq!(ids(&near(0.9)), ["d0", "d2", "d3"]);
    assert_eq!(ids(&json!({"near": {"vectors": {}}, "keep": "last"})), ["d1", "d2", "d3"]);
    let none = run(&made, dense(), &near(0.9), rows_input::<Document>(&[])).expect("runs");
    assert!(none.read::<Document>("rows").is_empty());
    let mut part = made.clone();
    part[1].document_id = "d0".to_owned();
    let error = run(&part, dense(), &near(0.9), rows_input(&documents)).expect_err("which chunk?");
    assert_eq!(error.message, "the document `d0` has several chunks in the index");
    let error = run(&made[..2], dense(), &near(0.9), rows_input(&documents)).expect_err("not there");
    assert_eq!(error.message, "the row `d2` is not in the index");
}

#[test]
fn other_indexes_and_params_are_told() {
    let made = chunks(&["the salt mill".into()]);
    let told = |kind: Value| run(&made, kind, &near(0.9), rows_input(&made)).expect_err("no vectors").message;
    assert_eq!(told(json!({"bm25": {}})), "an index of the kind `bm25` has no vectors of texts");
    let graph = json!({"dense": {"encoder": {"hashing": {"dimensions": 64}}, "factory": "HNSW8"}});
    assert_eq!(told(graph), "an index with `factory: HNSW8` does not keep its vectors as they are");
    let places = |params: Value| {
        let bound = (entry::<Dedup>().bind)(params).map_err(|issue| issue.message).expect("params");
        bound.declaration.issues.into_iter().map(|issue| issue.path).collect::<Vec<_>>()
    };
    assert_eq!(places(near(1.5)), ["near.vectors.threshold"]);
    let both = json!({"near": {"vectors": {}, "minhash": {"threshold": 0.5}}});
    assert_eq!(places(both), ["near.minhash"]);
}

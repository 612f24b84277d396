//! The recipe `retriever_study`: three retrievers, two chunk sizes and three depths in one table.

use std::collections::BTreeSet;

use serde_json::Value;

use super::recipe;

#[test]
fn all_variants_of_a_study_are_one_table() {
    let mill = recipe("retriever_study");
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0).stdout;
    assert!(told.contains("\nhits\nretriever  size  k  state"), "{told}");
    let rows = mill.read("out/recall.jsonl");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(rows.len(), 18);
    let retrievers: BTreeSet<_> = rows.iter().map(|row| row["retriever"].as_str().expect("a name")).collect();
    assert_eq!(retrievers, BTreeSet::from(["bm25", "dense", "rrf"]));
    let recall = |retriever: &str, size: u64, k: u64| {
        let cell = rows.iter().find(|row| row["retriever"] == retriever && row["size"] == size && row["k"] == k);
        cell.and_then(|row| row["recall"].as_f64()).expect("a cell")
    };
    for retriever in ["bm25", "dense", "rrf"] {
        for size in [40, 80] {
            let [one, three, five] = [1, 3, 5].map(|k| recall(retriever, size, k));
            assert!(
                0.0 < one && one < three && three <= five && five <= 1.0,
                "{retriever} {size}: {one} {three} {five}"
            );
        }
    }
    let curves = mill.read("out/curves/plot.svg");
    assert!(["bm25", "dense", "rrf", "Recall of three retrievers"].iter().all(|text| curves.contains(text)));
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    let told = mill.run(&["--set", "depths=[1, 3, 5, 8]"]).exit(0);
    let hits =
        told.nodes("node_finished").into_iter().filter(|node| node.starts_with("hits@") && node.contains('=')).count();
    assert_eq!(hits, 6, "only the new depth runs: {}", told.ran());
}

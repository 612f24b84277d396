//! The recipe `decontamination`.

use crate::harness::project::Mill;

fn ids(mill: &Mill) -> Vec<String> {
    let rows = mill.read("out/train.jsonl");
    let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["id"].to_string();
    rows.lines().map(id).collect()
}

#[test]
fn what_the_test_sets_have_is_dropped_and_named() {
    let mill = super::recipe("decontamination");
    mill.run(&[]).exit(0);
    // 1 repeats 0, 2 is a longer form of a test question, 5 the other order of another one.
    assert_eq!(ids(&mill).join(" ").replace('"', ""), "train-0 train-3 train-4 train-6 train-7");
    let matches = mill.call(&["show", "clean.matches", "--format", "jsonl"]).exit(0).stdout;
    for (row, test) in [("train-2", "test_bridges-0"), ("train-5", "test_compared-0")] {
        assert!(matches.lines().any(|line| line.contains(row) && line.contains(test)), "{row}: {matches}");
    }
    assert!(mill.read("out/report/report.html").contains("train-5"));
    assert!(mill.run(&[]).exit(0).ran().is_empty(), "again, nothing runs");
}

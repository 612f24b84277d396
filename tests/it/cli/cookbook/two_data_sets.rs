//! The recipe `two_data_sets`: a column that says where a question is from rides along to the training file.

use serde_json::Value;

use super::recipe;

#[test]
fn the_training_file_has_three_rows_of_one_set_for_each_of_the_other() {
    let mill = recipe("two_data_sets");
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    let rows = mill.read("out/train.jsonl");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |source: &str| rows.iter().filter(|row| row["source"] == source).count();
    assert_eq!((rows.len(), of("places"), of("links")), (12, 9, 3));
    assert!(rows.iter().all(|row| row["messages"].as_array().is_some_and(|messages| messages.len() > 3)));
    let counts = mill.call(&["show", "counts", "--format", "jsonl"]).exit(0).stdout;
    let counts: Vec<Value> = counts.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let counted = counts.iter().map(|row| (row["source"].as_str(), row["rollouts"].as_u64()));
    assert_eq!(counted.collect::<Vec<_>>(), [(Some("links"), Some(3)), (Some("places"), Some(9))]);
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    let more = mill.run(&["--set", "rows=16"]).exit(0);
    assert_eq!(more.ran(), "counts file mixed train");
    assert_eq!(mill.read("out/train.jsonl").lines().count(), 16);
}

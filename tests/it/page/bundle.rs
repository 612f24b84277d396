//! Tests of `ui --bundle`: chosen runs as a folder of files.

use serde_json::Value;

use super::views::project;
use crate::harness::project::{Mill, files_in};

const QUOTE: char = '"';

/// Returns what a script of a bundle gives the page.
fn script(mill: &Mill, name: &str) -> Value {
    let text = mill.read(name);
    let (begin, end) = (text.find(QUOTE).expect("a text"), text.rfind(QUOTE).expect("its end"));
    let inner: String = serde_json::from_str(&text[begin..=end]).expect("a text of JSON");
    serde_json::from_str(&inner).expect("JSON")
}

#[test]
fn a_bundle_has_the_newest_runs_with_their_first_rows() {
    let mill = project();
    let before = mill.artifacts();
    let told = mill.call(&["ui", "--bundle", "site", "--rows", "120"]).exit(0);
    assert!(told.stdout.starts_with("site/index.html: 1 run with "), "{}", told.stdout);
    assert!(told.stderr.contains("only the first rows are there (at most 120;"), "{}", told.stderr);
    assert!(!told.stderr.contains("warning"), "{}", told.stderr);
    assert_eq!(mill.artifacts(), before);

    let about = script(&mill, "site/bundle.js");
    let newest = mill.store().run_ids().pop().unwrap();
    assert_eq!(about["runs"][0]["id"], newest.as_str());
    let table = |node: &str, port: &str| {
        let key = format!("runs\n{newest}\nnodes\n{node}\nrows\n{port}");
        let place = about["places"][&key].as_str().unwrap_or_else(|| panic!("no {node}"));
        script(&mill, &format!("site/data/{place}.js"))[&key].clone()
    };
    // Every row of a small table, the first of a large one; the column is counted whole.
    let many = table("many", "rows");
    assert_eq!((many["head"]["all"].as_u64(), many["rows"].as_array().unwrap().len()), (Some(450_000), 120));
    assert_eq!(many["columns"]["n"]["rows"], 450_000);
    assert_eq!(many["rows"][119]["row"]["n"], 119);
    assert_eq!(table("rollouts", "trajectories")["rows"].as_array().unwrap().len(), 40);
    // What would mean something in a script or a page stands in a text.
    let hostile = table("hostile", "rows");
    assert_eq!(hostile["rows"][0]["row"]["text"], "<script>globalThis.hacked = 1</script>");
    assert_eq!(hostile["rows"][4]["row"]["text"]["length"], 12 * 800_000 + 14);
    let size: u64 = files_in(&mill.path("site")).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(size < 4_000_000, "{size} bytes");

    // Nothing is written over.
    let page = mill.read("site/index.html");
    let told = mill.call(&["ui", "--bundle", "site"]).exit(2);
    assert!(told.stderr.contains("site is there already, and is not an empty folder"), "{}", told.stderr);
    assert_eq!(mill.read("site/index.html"), page);
}

#[test]
fn a_bundle_that_cannot_be_is_an_error_and_leaves_nothing() {
    let mill = Mill::new();
    let told = mill.call(&["ui", "--bundle", "site"]).exit(2);
    assert!(told.stderr.contains("has no run that is over"), "{}", told.stderr);
    mill.write("rows.jsonl", "{\"n\": 1}\n");
    mill.write("pipeline.yaml", "name: small\nnodes:\n  one: {op: read, with: {path: rows.jsonl, as: table}}\n");
    mill.run(&[]).exit(0);
    let told = mill.call(&["ui", "--bundle", "site", "--run", "20200101-000000-00000000"]).exit(2);
    assert!(told.stderr.contains("there is no run 20200101-000000-00000000"), "{}", told.stderr);
    let told = mill.call(&["ui", "--bundle", "no/such/folder"]).exit(2);
    assert!(told.stderr.contains("cannot write no/such/folder"), "{}", told.stderr);
    let told = mill.call(&["ui", "--run", "latest"]).exit(2);
    assert!(told.stderr.contains("--bundle"), "{}", told.stderr);
    let mut names: Vec<_> = std::fs::read_dir(mill.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".searchmill", "pipeline.yaml", "rows.jsonl"]);

    // A table that is no longer there is told, on the terminal and in its place; the rest is written.
    let folder = mill.artifact_folder("one", "rows");
    std::fs::remove_dir_all(&folder).unwrap();
    let told = mill.call(&["ui", "--bundle", "site", "--json"]).exit(0);
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert!(!told["problems"].as_array().unwrap().is_empty(), "{told}");
}

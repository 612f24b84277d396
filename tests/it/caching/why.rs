//! Tests that `run`, `plan`, `why` and `status` decide alike whether a node runs.

use crate::harness::project::Mill;

const PIPELINE: &str = "\
name: why
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  kept:   {op: filter, from: corpus, with: {where: \"id <> 'd9'\"}}
  chunks: {op: chunk, from: kept, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
";

fn documents(word: &str) -> String {
    let text = |number: usize| format!("Document {number} tells of the {word} river and of the bridges over it.");
    let line = |number: usize| format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": text(number)}));
    (0..12).map(line).collect()
}

fn ran() -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents("long"));
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill
}

fn replace(mill: &Mill, from: &str, to: &str) {
    let text = mill.read("pipeline.yaml");
    assert!(text.contains(from), "{from}");
    mill.write("pipeline.yaml", &text.replace(from, to));
}

fn against(mill: &Mill, node: &str, run: &str, code: i32) -> String {
    let told = mill.call(&["why", node, "--file", "pipeline.yaml", "--against", run]).exit(code);
    if code == 0 { told.stdout } else { told.stderr }
}

#[test]
fn a_node_that_waits_says_what_has_changed_already() {
    let mill = ran();
    replace(&mill, "size: 6", "size: 7");
    mill.write("documents.jsonl", &documents("wide"));
    assert_eq!(mill.why("chunks"), "waits for kept | param `size` changed from 6 to 7");
    replace(&mill, "seed: 3", "seed: 4");
    assert_eq!(mill.why("few"), "waits for chunks | the seed changed from 3 to 4");
    let plan = mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(plan.contains("waits for kept; param `size` changed from 6 to 7"), "{plan}");
}

#[test]
fn a_pending_node_is_compared_with_the_run_that_is_named() {
    let mill = ran();
    let first = mill.store().run_ids().remove(0);
    replace(&mill, "size: 6", "size: 7");
    mill.run(&[]).exit(0);
    replace(&mill, "size: 7", "size: 8");
    assert!(against(&mill, "chunks", &first, 0).contains("param `size` changed from 6 to 8"));
    assert!(against(&mill, "chunks", "previous", 0).contains("param `size` changed from 6 to 8"));
    assert!(against(&mill, "chunks", "latest", 0).contains("param `size` changed from 7 to 8"));
    replace(&mill, "size: 8", "size: 6");
    assert!(against(&mill, "chunks", "latest", 0).contains("param `size` changed from 7 to 6"), "a cached one, too");
    assert!(against(&mill, "chunks", "19990101", 2).contains("there is no run `19990101`"));
    assert!(against(&mill, "chunks", "20", 2).contains("begins the ids of"), "two runs have this prefix");
}

#[test]
fn a_node_that_failed_and_one_that_was_killed_have_a_key_to_compare_with() {
    let mill = ran();
    replace(&mill, "id <> 'd9'", "arrow_cast(id, 'Int64') > 3");
    mill.run(&[]).exit(1);
    replace(&mill, "> 3", "> 4");
    let told = against(&mill, "kept", "latest", 0);
    assert!(told.contains("param `where` changed from \"arrow_cast(id, 'Int64') > 3\""), "{told}");
    assert!(
        mill.why("kept").contains("> 3\\\" to") || mill.why("kept").contains("changed from"),
        "{}",
        mill.why("kept")
    );
    // The same key again: the last run did not finish it.
    replace(&mill, "> 4", "> 3");
    assert_eq!(mill.why("kept"), "run | the last run did not finish it");
    // A killed run leaves only the line that records the node's start.
    let ledger = mill.store_path().join("runs").join(mill.store().run_ids().pop().expect("a run")).join("nodes.jsonl");
    let lines = std::fs::read_to_string(&ledger).expect("a ledger");
    let begun = lines.lines().filter(|line| !line.contains("\"failed\"") || !line.contains("\"kept\""));
    std::fs::write(&ledger, begun.map(|line| format!("{line}\n")).collect::<String>()).expect("written");
    assert_eq!(mill.why("kept"), "run | the last run did not finish it");
    replace(&mill, "> 3", "> 5");
    assert!(against(&mill, "kept", "latest", 0).contains("> 3"));
    let told = mill.call(&["show", "kept", "--run", "latest"]).exit(2).stderr;
    assert!(told.contains("`kept` has nothing to show: it was stopped before its end in run"), "{told}");
}

#[test]
fn plan_takes_targets_and_flags_as_run_does() {
    let mill = ran();
    replace(&mill, "size: 6", "size: 7");
    let nodes = |args: &[&str]| -> Vec<(String, String)> {
        let told = mill.call(&[args, &["--json"]].concat()).exit(0);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        told.events().iter().map(|line| (text(&line["node"]), text(&line["status"]))).collect()
    };
    let pair = |node: &str, status: &str| (node.to_owned(), status.to_owned());
    let until_kept = [pair("corpus", "cached"), pair("kept", "cached")];
    assert_eq!(nodes(&["plan", "pipeline.yaml", "kept"]), until_kept);
    assert_eq!(nodes(&["run", "pipeline.yaml", "kept", "-n"]), until_kept);
    let only = nodes(&["plan", "pipeline.yaml", "--only", "few"]);
    assert_eq!(only[2..], [pair("chunks", "held"), pair("few", "decided later")]);
    let forced = nodes(&["run", "pipeline.yaml", "-n", "kept", "--force=corpus"]);
    assert_eq!(forced[0], pair("corpus", "run"));
    let off = nodes(&["run", "pipeline.yaml", "-n", "kept", "--no-cache"]);
    assert_eq!(off[0], pair("corpus", "run"));
    let told = mill.call(&["plan", "pipeline.yaml", "nobody"]).exit(2);
    assert!(told.stderr.contains("there is no node `nobody`"), "{}", told.stderr);
    // The run does what the plan predicts.
    let told = mill.run(&["kept"]).exit(0);
    assert_eq!((told.cached().as_str(), told.ran().as_str()), ("corpus kept", ""));
    mill.run(&["--only", "few"]).exit(1);
}

#[test]
fn a_node_that_failed_is_not_asked_back_by_its_own_name() {
    let mill = ran();
    let pipeline = PIPELINE.replace("id <> 'd9'", "arrow_cast(id, 'Int64') > 3").replace("kept", "t");
    mill.write("pipeline.yaml", &pipeline);
    mill.run(&[]).exit(1);
    for command in [&["show", "t"][..], &["audit", "t"], &["export", "t", "t.tar.zst"], &["trace", "t.rows"]] {
        let told = mill.call(command).exit(2).stderr;
        assert!(told.contains("`t` has nothing to show: it failed in run") && !told.contains("did you mean"), "{told}");
    }
    let told = mill.call(&["show", "chunks", "--run", "latest"]).exit(2).stderr;
    assert!(told.contains("`chunks` has nothing to show: it was skipped in run"), "{told}");
}

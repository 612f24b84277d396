//! Tests of garbage collection: runs, age, pins, frozen nodes and paid rows, also during runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in, killed_after};

const PIPELINE: &str = "\
name: keeping
params: {size: 30}
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: \"${params.size}\", count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
";

fn documents(count: usize) -> String {
    let text = |number| (0..80).map(|word| format!("w{number}x{word} ")).collect::<String>();
    let line = |number| format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": text(number)}));
    (0..count).map(line).collect()
}

/// Returns a project that has run with each of these chunk sizes in turn.
fn ran(sizes: &[usize]) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(20));
    mill.write("pipeline.yaml", PIPELINE);
    for size in sizes {
        run(&mill, *size).exit(0);
    }
    mill
}

fn run(mill: &Mill, size: usize) -> Told {
    mill.run(&["--set", &format!("size={}", 5 * size)])
}

/// Collects, or lists what would be collected; recent results too, unless an age is given.
fn collection(mill: &Mill, more: &[&str]) -> Told {
    let age: &[&str] = if more.contains(&"--older-than") { &[] } else { &["--older-than", "0s"] };
    mill.call(&[&["gc", "--json"], age, more].concat()).exit(0)
}

/// Returns the summary of a collection.
fn gc(mill: &Mill, more: &[&str]) -> Value {
    collection(mill, more).events().pop().expect("a summary")
}

/// Returns the names of the collected results.
fn names(mill: &Mill, more: &[&str]) -> Vec<String> {
    let mut names: Vec<String> =
        collection(mill, more).events().iter().filter_map(|line| line["name"].as_str().map(str::to_owned)).collect();
    names.sort();
    names
}

fn size_of(folder: &Path) -> u64 {
    let size = |path: std::path::PathBuf| {
        if path.is_dir() { size_of(&path) } else { path.metadata().map(|metadata| metadata.len()).unwrap_or_default() }
    };
    files_in(folder).into_iter().map(size).sum()
}

#[test]
fn what_no_kept_run_needs_is_shown_and_then_removed() {
    let mill = ran(&[4, 5, 6]);
    let artifacts = || size_of(&mill.store_path().join("artifacts"));
    let before = artifacts();
    let shown = gc(&mill, &["--keep-runs", "1"]);
    assert_eq!((&shown["removed"], &shown["results"]), (&Value::Bool(false), &Value::from(4)));
    assert_eq!(artifacts(), before, "nothing is removed without --yes");
    assert_eq!(names(&mill, &["--keep-runs", "1"]), ["keeping/chunks", "keeping/chunks", "keeping/few", "keeping/few"]);
    assert_eq!(names(&mill, &["--keep-runs", "2"]), ["keeping/chunks", "keeping/few"]);
    assert_eq!(names(&mill, &["--keep-runs", "10"]), Vec::<String>::new());
    let text = mill.call(&["gc", "--older-than", "0s", "--keep-runs", "1"]).exit(0);
    assert!(text.stdout.contains("would remove 4 results") && text.stderr.contains("--yes"), "{text:?}");

    let removed = gc(&mill, &["--keep-runs", "1", "--yes"]);
    assert_eq!(
        (&removed["removed"], &removed["results"], &removed["in_use"]),
        (&true.into(), &4.into(), &false.into())
    );
    assert!(artifacts() < before && removed["freed"].as_u64() > Some(0), "{removed}");
    assert_eq!(run(&mill, 6).exit(0).ran(), "", "the last run is still known");
    assert_eq!(gc(&mill, &["--keep-runs", "1", "--yes"])["results"], 0, "nothing is left to remove");
}

#[test]
fn what_was_collected_is_called_collected_and_is_made_again() {
    let mill = ran(&[4]);
    let expected = mill.artifacts();
    run(&mill, 6).exit(0);
    gc(&mill, &["--keep-runs", "1", "--yes"]);
    let plan = mill.call(&["plan", "pipeline.yaml", "--set", "size=20"]).exit(0);
    assert!(plan.stdout.contains("its result was collected by `searchmill gc`"), "{}", plan.stdout);
    let why = mill.call(&["why", "chunks", "--file", "pipeline.yaml", "--set", "size=20"]).exit(0);
    assert!(why.stdout.contains("collected"), "{}", why.stdout);
    // A collected key can still be compared.
    let other = mill.call(&["why", "chunks", "--file", "pipeline.yaml", "--set", "size=45"]).exit(0);
    assert!(other.stdout.contains("param `size` changed from 30 to 45"), "{}", other.stdout);
    let told = run(&mill, 4).exit(0);
    assert_eq!((told.ran().as_str(), told.reasons("chunks")), ("chunks few", vec!["collected".to_owned()]));
    assert_eq!(mill.artifacts(), expected);
    assert_eq!(run(&mill, 4).exit(0).ran(), "");
}

#[test]
fn of_what_was_collected_it_is_said_when_and_by_which_gc() {
    let mill = ran(&[4]);
    let first = mill.store().run_ids().pop().expect("a run");
    run(&mill, 6).exit(0);
    gc(&mill, &["--keep-runs", "1", "--yes"]);
    let text = mill.call(&["trace", "few", "--run", &first]).exit(0).stdout;
    assert!(text.contains("collected on 20") && text.contains("by `gc-20"), "{text}");
    let audit = mill.call(&["audit", &first]).exit(6).stdout;
    assert!(audit.contains("it was collected on 20") && !audit.contains("gone from the store"), "{audit}");
}

#[test]
fn the_young_stay_and_the_last_good_run_stays() {
    let mill = ran(&[4, 5, 6]);
    let told = mill.call(&["gc", "--json", "--keep-runs", "1"]).exit(0);
    assert_eq!(told.events().pop().expect("a summary")["results"], 0, "all results are less than a day old");
    assert_eq!(gc(&mill, &["--keep-runs", "1", "--older-than", "1h"])["results"], 0);
    // A failed run does not release the results of the run before it.
    let bad = "  bad:    {op: sql, from: {d: corpus}, with: {query: \"SELECT CAST(text AS INT) AS n FROM d\"}}\n";
    mill.write("pipeline.yaml", &format!("{PIPELINE}{bad}"));
    run(&mill, 6).exit(1);
    mill.write("pipeline.yaml", PIPELINE);
    assert_eq!(gc(&mill, &["--keep-runs", "0", "--yes"])["results"], 4);
    assert_eq!(run(&mill, 6).exit(0).ran(), "");
    for wrong in ["30", "d", "-1d", "1y", ""] {
        mill.call(&["gc", "--older-than", wrong]).exit(2);
    }
}

#[test]
fn other_pipelines_keep_their_own_runs() {
    let mill = ran(&[4, 5]);
    mill.write("pipeline.yaml", &PIPELINE.replace("name: keeping", "name: other"));
    run(&mill, 7).exit(0);
    assert_eq!(gc(&mill, &["--keep-runs", "1", "--yes"])["results"], 2);
    assert_eq!(run(&mill, 7).exit(0).ran(), "");
    mill.write("pipeline.yaml", PIPELINE);
    assert_eq!(run(&mill, 5).exit(0).ran(), "");
}

#[test]
fn run_records_stay_unless_they_are_to_be_forgotten() {
    let mill = ran(&[4, 5, 6]);
    gc(&mill, &["--keep-runs", "1", "--yes"]);
    assert_eq!(mill.store().run_ids().len(), 3, "history is kept");
    assert_eq!(gc(&mill, &["--keep-runs", "1", "--forget-runs", "--yes"])["runs"], 2);
    assert_eq!(mill.store().run_ids().len(), 1);
    assert_eq!(run(&mill, 6).exit(0).ran(), "");
}

#[test]
fn a_pin_keeps_an_artifact_until_it_is_taken_away() {
    let mill = ran(&[4]);
    let pinned = mill.artifacts()["chunks.chunks"].clone();
    mill.call(&["pin", "chunks", "--name", "four"]).exit(0);
    run(&mill, 5).exit(0);
    run(&mill, 6).exit(0);
    let listed = mill.call(&["pin", "--list", "--json"]).exit(0).events();
    assert_eq!((listed.len(), &listed[0]["name"], &listed[0]["artifact"]), (1, &"four".into(), &pinned.clone().into()));
    assert_eq!(listed[0]["from"], "keeping/chunks.chunks");
    let taken = mill.call(&["pin", "chunks", "--name", "four"]).exit(2);
    assert!(taken.stderr.contains("unpin four"), "{}", taken.stderr);
    mill.call(&["pin", "chunks", "--name", "../four"]).exit(2);
    mill.call(&["pin", "nothing"]).exit(2);
    mill.call(&["pin"]).exit(0);

    assert_eq!(names(&mill, &["--keep-runs", "1", "--yes"]), ["keeping/chunks", "keeping/few", "keeping/few"]);
    assert!(mill.call(&["show", &pinned]).exit(0).stdout.contains("d0"));
    assert_eq!(mill.call(&["show", "four"]).exit(0).stdout, mill.call(&["show", &pinned]).exit(0).stdout);
    assert_eq!(run(&mill, 4).exit(0).ran(), "few", "the pinned result is cached, its dependents run again");
    run(&mill, 6).exit(0);
    assert_eq!(names(&mill, &["--keep-runs", "1"]), ["keeping/few"]);
    mill.call(&["unpin", "four"]).exit(0);
    mill.call(&["unpin", "four"]).exit(2);
    assert_eq!(names(&mill, &["--keep-runs", "1"]), ["keeping/chunks", "keeping/few"]);
}

#[test]
fn a_pin_with_lineage_keeps_what_it_was_made_from() {
    let mill = ran(&[4]);
    mill.call(&["pin", "few", "--lineage"]).exit(0);
    run(&mill, 6).exit(0);
    assert_eq!(names(&mill, &["--keep-runs", "1", "--yes"]), Vec::<String>::new());
    assert_eq!(run(&mill, 4).exit(0).ran(), "");
}

#[test]
fn a_pin_with_lineage_keeps_what_is_behind_a_filter_that_drops_nothing() {
    let mill = Mill::new();
    let write = |text: &str| {
        mill.write("docs.jsonl", &format!("{{\"id\": \"d\", \"text\": \"{text}\"}}\n"));
        mill.run(&[]).exit(0);
    };
    let chunk = "  chunks: {op: chunk, from: docs, with: {size: 6, count: words}}\n";
    let filters = "  kept: {op: filter, from: chunks, with: {where: \"tokens > 0\"}}\n  still: {op: filter, from: kept, with: {where: \"tokens >= 0\"}}\n";
    let nodes = format!("  docs: {{op: read, with: {{path: docs.jsonl, as: document}}}}\n{chunk}{filters}");
    let index = "  bm25: {op: index, from: still, with: {kind: bm25}}\n";
    mill.write("pipeline.yaml", &format!("name: keeping\nnodes:\n{nodes}{index}"));
    write("one two three");
    mill.call(&["pin", "bm25", "--name", "safe", "--lineage"]).exit(0);
    write("four five six");
    mill.call(&["gc", "--keep-runs", "1", "--older-than", "0s", "--yes"]).exit(0);
    assert!(mill.call(&["audit", "safe"]).exit(0).stdout.contains("as recorded"));
}

#[test]
fn a_frozen_node_is_never_taken_from_under_its_last_run() {
    let mill = ran(&[4]);
    mill.write("pipeline.yaml", &PIPELINE.replace("count: words}}", "count: words}, freeze: true}"));
    // Frozen at size 4, whatever size is set.
    assert_eq!(run(&mill, 9).exit(0).ran(), "");
    for size in [10, 11, 12] {
        run(&mill, size).exit(0);
    }
    let frozen = mill.artifacts();
    assert_eq!(gc(&mill, &["--keep-runs", "0", "--yes"])["results"], 0);
    assert_eq!(run(&mill, 13).exit(0).ran(), "");
    assert_eq!(mill.artifacts(), frozen);
}

#[test]
fn kill_9_during_a_collection_leaves_a_usable_store() {
    let nodes: String = (1..=40)
        .map(|size| format!("  c{size}: {{op: chunk, from: corpus, with: {{size: {size}, count: words}}}}\n"))
        .collect();
    let head = "name: wide\nnodes:\n  corpus: {op: read, with: {path: documents.jsonl, as: document}}\n";
    let project = || {
        let mill = Mill::new();
        mill.write("documents.jsonl", &documents(12));
        mill.write("pipeline.yaml", &format!("{head}{nodes}"));
        mill.run(&[]).exit(0);
        mill.write("small.yaml", head);
        mill
    };
    let mill = project();
    let expected = mill.artifacts();
    // The small pipeline gets the name of the wide one, so that no kept run uses its results.
    let collect = ["gc", "--json", "--older-than", "0s", "--keep-runs", "1", "--yes"];
    mill.call(&["run", "small.yaml", "--json"]).exit(0);
    let start = Instant::now();
    mill.call(&collect).exit(0);
    let whole = start.elapsed();
    let mut killed = 0;
    for round in 0..16u32 {
        mill.run(&[]).exit(0);
        assert_eq!(mill.artifacts(), expected, "after round {round}");
        mill.call(&["run", "small.yaml", "--json"]).exit(0);
        killed += usize::from(killed_after(&mut mill.command(&collect), whole * (round + 1) / 16));
    }
    assert!(killed >= 6, "only {killed} of 16 collections were killed");
    mill.call(&collect).exit(0);
    let left =
        files_in(&mill.store_path().join("artifacts")).iter().map(|folder| files_in(folder).len()).sum::<usize>() / 2;
    let kept: std::collections::BTreeSet<String> = mill.artifacts().into_values().collect();
    assert_eq!((left, mill.unfinished().len()), (kept.len(), 0), "no collected folder or description is left");
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), expected);
}

#[test]
fn a_collection_beside_a_run_takes_nothing_from_it() {
    let questions = 24;
    let bench = Bench::new(&patient(questions, Duration::from_millis(60)));
    bench.run(&[]).exit(0);
    let paid = || {
        bench.paid(
            &(0..questions).map(|n| format!("q{n}")).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    assert_eq!(paid(), questions);
    // A changed rollout: every node before it is cached.
    bench.replace("samples: 1", "samples: 2");
    let child = bench.command(&[]).spawn().expect("a child");
    let start = Instant::now();
    while paid() < questions + 4 {
        assert!(start.elapsed() < Duration::from_secs(30), "the run makes no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
    let swept = gc(&bench.mill, &["--keep-runs", "0", "--yes"]);
    assert_eq!((&swept["in_use"], &swept["freed"]), (&true.into(), &0.into()), "{swept}");
    Told::new(child.wait_with_output().expect("a child")).exit(0);
    let swept = gc(&bench.mill, &["--keep-runs", "0", "--yes"]);
    assert_eq!(swept["in_use"], false);
    assert_eq!(bench.run(&[]).exit(0).ran(), "", "all of the last run is still known");
    assert_eq!(paid(), 2 * questions);
}

#[test]
fn a_run_waits_until_the_store_is_free() {
    let mill = ran(&[4]);
    let store = mill.store();
    let in_use = store.enter().expect("the store can be used");
    let swept = gc(&mill, &["--keep-runs", "0", "--yes"]);
    assert_eq!(swept["in_use"], true, "a process that uses the store blocks the collection");
    drop(in_use);
    assert_eq!(gc(&mill, &["--keep-runs", "0", "--yes"])["in_use"], false);
}

#[test]
fn paid_rows_go_only_when_that_is_asked_for() {
    let bench = Bench::new(&patient(6, Duration::ZERO));
    let memos = || bench.mill.store().memo_bases().len();
    bench.run(&[]).exit(0);
    let one = memos();
    bench.replace("model: m,", "model: n,");
    bench.run(&[]).exit(0);
    assert_eq!(memos(), one + 2, "its rows and its answers");
    gc(&bench.mill, &["--keep-runs", "1", "--yes"]);
    assert_eq!(memos(), one + 2, "rows are precious");
    bench.mill.call(&["gc", "--memo"]).exit(2);
    assert_eq!(gc(&bench.mill, &["--keep-runs", "1", "--memo", "--older-than", "1h", "--yes"])["memos"], 0);
    assert_eq!(gc(&bench.mill, &["--keep-runs", "1", "--memo", "--yes"])["memos"], 2);
    assert_eq!(memos(), one);
    let names: Vec<String> = (0..6).map(|number| format!("q{number}")).collect();
    let paid = || bench.paid(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let before = paid();
    std::fs::remove_dir_all(bench.mill.store_path().join("results")).expect("results");
    bench.run(&[]).exit(0);
    assert_eq!(paid(), before, "the rows of the last run are still remembered");
    bench.replace("model: n,", "model: m,");
    bench.run(&[]).exit(0);
    assert_eq!(paid(), before + 6, "the rows of the first run are not");
}

#[test]
fn damage_and_odd_files_do_not_stop_a_collection() {
    let mill = ran(&[4, 5, 6]);
    std::fs::create_dir_all(mill.path(".searchmill/artifacts/zz/not an artifact")).expect("a folder");
    std::fs::write(mill.path(".searchmill/results/notes.txt"), "mine").expect("a file");
    let runs = files_in(&mill.store_path().join("runs"));
    std::fs::write(runs[0].join("run.json"), "{").expect("a torn record");
    let swept = gc(&mill, &["--keep-runs", "1", "--yes"]);
    assert_eq!(swept["results"], 2, "a run that cannot be read keeps what it used: {swept}");
    assert!(mill.path(".searchmill/artifacts/zz/not an artifact").exists());
    assert_eq!(run(&mill, 4).exit(0).ran(), "");
    // An unreadable pin stops the collection.
    mill.call(&["pin", "few"]).exit(0);
    mill.write(".searchmill/pins/few.json", "{");
    let told = mill.call(&["gc", "--yes"]).exit(5);
    assert!(told.stderr.contains("few.json"), "{}", told.stderr);
}

#[test]
fn orphans_go() {
    let mill = ran(&[4]);
    // A commit that was killed after its files and before its record.
    let store = mill.store();
    let chunks = mill.artifacts()["chunks.chunks"].clone();
    let record: BTreeMap<String, String> = mill.artifacts();
    let key = mill.last_nodes().into_iter().find(|node| node.node == "few").and_then(|node| node.key).expect("a key");
    let hex = key.to_string();
    std::fs::remove_file(store.root().join("results").join(&hex[..2]).join(format!("{hex}.json"))).expect("a record");
    for run in files_in(&mill.store_path().join("runs")) {
        std::fs::remove_dir_all(run).expect("a run");
    }
    assert_eq!(gc(&mill, &["--older-than", "1h"])["artifacts"], 0, "recent files may be recorded soon");
    gc(&mill, &["--yes"]);
    let there = |id: &str| mill.path(".searchmill/artifacts").join(&id[..2]).join(id).exists();
    assert!(!there(&record["few.rows"]) && !there(&chunks), "no run uses these artifacts");
}

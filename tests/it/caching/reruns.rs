//! Tests of what runs again after which change, and of the reasons that `why` reports.

use std::time::Duration;

use searchmill_engine::fingerprint::{NodeKey, hash_bytes};
use searchmill_engine::store::{NodeRun, RunRecord};

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told};

const PIPELINE: &str = "\
name: caching
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  kept:   {op: filter, from: corpus, with: {where: \"id <> 'd9'\"}}
  chunks: {op: chunk, from: kept, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
  file:   {op: write, from: few, with: {path: out/few.jsonl}}
";

const ALL: &str = "chunks corpus few file kept";

fn document(number: usize, word: &str) -> String {
    let text =
        format!("Document {number} tells of the {word} river and of the {number} bridges over it, built long ago.");
    format!("{}\n", serde_json::json!({"id": format!("d{number}"), "title": format!("River {number}"), "text": text}))
}

fn documents(changed: Option<usize>) -> String {
    (0..12).map(|number| document(number, if changed == Some(number) { "wide" } else { "narrow" })).collect()
}

/// Returns a project whose pipeline has run once.
fn ran() -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(None));
    mill.write("pipeline.yaml", PIPELINE);
    assert_eq!(mill.run(&[]).exit(0).ran(), ALL);
    mill
}

/// One row of the table: a change, what `why` reports for a node before the run, and the nodes that run.
struct Change {
    title: &'static str,
    make: fn(&Mill),
    why: (&'static str, &'static str),
    reran: &'static str,
}

fn replace(mill: &Mill, from: &str, to: &str) {
    let text = mill.read("pipeline.yaml");
    assert!(text.contains(from), "{from}");
    mill.write("pipeline.yaml", &text.replace(from, to));
}

fn changes_of_content() -> Vec<Change> {
    vec![
        Change { title: "nothing", make: |_| {}, why: ("chunks", "cached, nothing changed"), reran: "" },
        Change {
            title: "one param",
            make: |mill| replace(mill, "size: 6", "size: 7"),
            why: ("chunks", "run | param `size` changed from 6 to 7"),
            reran: "chunks few file",
        },
        Change {
            title: "one document, of which the sample takes nothing",
            make: |mill| mill.write("documents.jsonl", &documents(Some(1))),
            why: ("corpus", "run | the content of `documents.jsonl` changed"),
            reran: "chunks corpus few kept",
        },
        Change {
            title: "every document",
            make: |mill| mill.write("documents.jsonl", &documents(None).replace("narrow", "deep")),
            why: ("few", "waits for chunks; it runs only if they give other bytes than before"),
            reran: ALL,
        },
        Change {
            title: "one document that a filter drops",
            make: |mill| mill.write("documents.jsonl", &documents(Some(9))),
            why: ("chunks", "waits for kept; it runs only if they give other bytes than before"),
            reran: "corpus kept",
        },
        Change {
            title: "the same document written again, byte for byte",
            make: |mill| mill.write("documents.jsonl", &documents(None)),
            why: ("corpus", "cached, nothing changed"),
            reran: "",
        },
    ]
}

fn changes_of_form() -> Vec<Change> {
    vec![
        Change {
            title: "a comment",
            make: |mill| replace(mill, "nodes:\n", "# A remark.\nnodes: # and another\n"),
            why: ("chunks", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "the order of keys and nodes",
            make: |mill| {
                let mut lines: Vec<String> = mill.read("pipeline.yaml").lines().map(str::to_owned).collect();
                let moved = lines.remove(4).replace("{size: 6, count: words}", "{count: words, size: 6}");
                lines
                    .insert(2, moved.replace("op: chunk, from: kept, ", "").replace("}}", "}, from: kept, op: chunk}"));
                mill.write("pipeline.yaml", &(lines.join("\n") + "\n"));
            },
            why: ("chunks", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "a node renamed",
            make: |mill| {
                replace(mill, "chunks:", "passages:");
                replace(mill, "from: chunks", "from: passages");
            },
            why: ("passages", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "the pipeline renamed",
            make: |mill| replace(mill, "name: caching", "name: another"),
            why: ("chunks", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "resources, on_error",
            make: |mill| {
                let more = "seed: 3, resources: {threads: 1, memory: 1GiB}, on_error: dead_letter}";
                replace(mill, "seed: 3}", more);
            },
            why: ("few", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "a default spelled out",
            make: |mill| replace(mill, "count: words}", "count: words, by: recursive}"),
            why: ("chunks", "cached, nothing changed"),
            reran: "",
        },
    ]
}

fn changes_of_nodes() -> Vec<Change> {
    vec![
        Change {
            title: "the seed of a seeded node",
            make: |mill| replace(mill, "seed: 3", "seed: 4"),
            why: ("few", "run | the seed changed from 3 to 4"),
            reran: "few file",
        },
        Change {
            title: "a seed where none is used",
            make: |mill| replace(mill, "where: \"id <> 'd9'\"}", "where: \"id <> 'd9'\"}, seed: 8"),
            why: ("kept", "cached, nothing changed"),
            reran: "",
        },
        Change {
            title: "another operator",
            make: |mill| {
                replace(
                    mill,
                    "{op: sample, from: chunks, with: {n: 5}, seed: 3}",
                    "{op: dedup, from: chunks, with: {by: [text]}}",
                );
            },
            why: ("few", "run | the operator changed from `sample` to `dedup`"),
            reran: "few file",
        },
        Change {
            title: "where a file is written",
            make: |mill| replace(mill, "out/few.jsonl", "out/other.jsonl"),
            why: ("file", "run | param `path` changed from \"out/few.jsonl\" to \"out/other.jsonl\""),
            reran: "file",
        },
    ]
}

#[test]
fn a_change_reruns_what_it_reaches_and_why_names_it() {
    let mut table = String::from("| change | why | reran |\n|---|---|---|\n");
    let mut wrong = Vec::new();
    for change in changes_of_content().into_iter().chain(changes_of_form()).chain(changes_of_nodes()) {
        let mill = ran();
        (change.make)(&mill);
        let why = mill.why(change.why.0);
        let reran = mill.run(&[]).exit(0).ran();
        table += &format!("| {} | `why {}`: {why} | {} |\n", change.title, change.why.0, reran);
        if (why.as_str(), reran.as_str()) != (change.why.1, change.reran) {
            wrong.push(format!("{}: wanted `{}` and `{}`", change.title, change.why.1, change.reran));
        }
        assert_eq!(mill.run(&[]).exit(0).ran(), "", "a second run after: {}", change.title);
    }
    assert!(wrong.is_empty(), "{}\n{table}", wrong.join("\n"));
}

#[test]
fn force_and_no_cache_run_what_is_known_and_equal_bytes_stop_there() {
    let mill = ran();
    let before = mill.artifacts();
    let one = mill.run(&["--force=chunks"]).exit(0);
    assert_eq!((one.ran().as_str(), one.reasons("chunks").as_slice()), ("chunks", &["forced".to_owned()][..]));
    let all = mill.run(&["-f"]).exit(0);
    assert_eq!(all.ran(), ALL);
    let off = mill.run(&["--no-cache"]).exit(0);
    assert_eq!((off.ran().as_str(), off.reasons("few").as_slice()), (ALL, &["cache_off".to_owned()][..]));
    assert_eq!(mill.artifacts(), before);
    mill.run(&["--force=nobody"]).exit(2);
}

#[test]
fn a_part_of_the_pipeline_can_be_chosen() {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(None));
    mill.write("pipeline.yaml", PIPELINE);
    let early = mill.run(&["--only", "chunks"]).exit(1);
    assert_eq!(early.ran(), "");
    assert!(early.stdout.contains("it was not chosen to run"), "{}", early.stdout);
    assert_eq!(mill.run(&["kept"]).exit(0).ran(), "corpus kept");
    assert_eq!(mill.run(&["--to", "chunks"]).exit(0).ran(), "chunks");
    assert_eq!(mill.run(&["--from", "few"]).exit(0).ran(), "few file");
    replace(&mill, "size: 6", "size: 5");
    let only = mill.run(&["--only", "chunks"]).exit(0);
    assert_eq!((only.ran().as_str(), only.cached().as_str()), ("chunks", "corpus kept"));
    mill.run(&["nobody"]).exit(2);
}

#[test]
fn limit_has_its_own_entries() {
    let mill = ran();
    let full = mill.artifacts();
    let cut = mill.run(&["--limit", "4"]).exit(0);
    assert_eq!(cut.ran(), ALL);
    let rows = |told: &Told| {
        let events = told.events();
        let read = events.iter().find(|event| event["node"] == "corpus" && event["rows"].is_u64());
        read.expect("an event with rows")["rows"].as_u64()
    };
    assert_eq!(rows(&cut), Some(4));
    let again = mill.run(&["--limit", "4"]).exit(0);
    assert_eq!((again.ran().as_str(), rows(&again)), ("", Some(4)));
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    assert_eq!(mill.artifacts(), full);
}

#[test]
fn a_limited_run_ends_early_though_a_row_was_rejected() {
    let mill = Mill::new();
    let line = |i: usize| format!("{{\"id\": \"d{i}\", \"text\": \"a few words about {i}\"}}\n");
    let lines: String = (0..100_000).map(line).collect();
    mill.write("documents.jsonl", &format!("not JSON\n{lines}nor is this\n"));
    mill.write(
        "pipeline.yaml",
        "name: limited\nnodes:\n  corpus: {op: read, with: {path: documents.jsonl, as: document}}\n",
    );
    mill.run(&["--limit", "4"]).exit(0);
    let rows =
        |args: &[&str]| mill.call(&[&["show", "corpus", "--format", "jsonl", "-n", "0"], args].concat()).exit(0).stdout;
    assert_eq!(rows(&[]).lines().count(), 4);
    assert_eq!(rows(&["--rejects"]).lines().count(), 1, "the last line was not read");
    mill.run(&[]).exit(0);
    assert_eq!(rows(&["--rejects"]).lines().count(), 2);
}

#[test]
fn a_plan_has_colours_only_where_they_are_wanted() {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(None));
    mill.write("pipeline.yaml", PIPELINE);
    let coloured = mill.call(&["--color", "always", "plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(coloured.contains("\u{1b}[36mrun\u{1b}[0m"), "{coloured:?}");
    let plain = mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(!plain.contains('\u{1b}'), "no colours in a pipe: {plain:?}");
    let stripped = coloured.replace("\u{1b}[36m", "").replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
    assert_eq!(stripped, plain, "colours move no column");
    mill.run(&[]).exit(0);
    let cached = mill.call(&["--color", "always", "plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(cached.contains("\u{1b}[2mcached\u{1b}[0m"), "{cached:?}");
}

#[test]
fn a_plan_changes_nothing_and_its_exit_code_tells_of_work() {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(None));
    mill.write("pipeline.yaml", PIPELINE);
    let plan = |code| mill.call(&["plan", "pipeline.yaml", "--detailed-exitcode"]).exit(code);
    assert!(plan(10).stdout.contains("0 cached, 5 to run or to decide"));
    assert!(mill.run(&["-n"]).exit(0).events().iter().all(|line| line["status"] != "cached"));
    assert!(mill.store().run_ids().is_empty(), "a plan records no run");
    mill.run(&[]).exit(0);
    assert!(plan(0).stdout.contains("5 cached, 0 to run or to decide"));
    replace(&mill, "n: 5", "n: 4");
    let told = plan(10).stdout;
    assert!(told.contains("param `n` changed from 5 to 4") && told.contains("waits for few"), "{told}");
}

#[test]
fn a_frozen_node_keeps_what_it_gave() {
    let mill = ran();
    let before = mill.artifacts();
    replace(&mill, "{size: 6, count: words}", "{size: 9, count: words}, freeze: true");
    mill.write("documents.jsonl", &documents(Some(2)));
    assert_eq!(mill.why("chunks"), "cached, frozen");
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.ran(), "corpus kept");
    assert_eq!(mill.artifacts()["chunks.chunks"], before["chunks.chunks"]);
    for _ in 0..2 {
        assert_eq!(mill.run(&[]).exit(0).ran(), "");
    }
    mill.call(&["plan", "pipeline.yaml", "--detailed-exitcode"]).exit(0);
    replace(&mill, ", freeze: true", "");
    assert_eq!(mill.run(&[]).exit(0).ran(), "chunks few file");
}

/// Records a later run that started this node under another key and was killed.
fn interrupt(mill: &Mill, node: &str, operator: &str) {
    let store = mill.store();
    let last = store.run_ids().pop().expect("a run");
    let record = RunRecord { finished: None, exit: None, ..store.run(&last).expect("its record") };
    let mut run = store.start_run(&RunRecord { id: format!("{last}-killed"), ..record }).expect("a run");
    let key = NodeKey(hash_bytes(b"another"));
    run.node(&NodeRun::begun(node, operator, key, Vec::new(), serde_json::Value::Null)).expect("recorded");
    run.flush().expect("flushed");
}

#[test]
fn a_frozen_node_never_pays_because_a_later_run_was_interrupted() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    bench.run(&[]).exit(0);
    let expected = bench.mill.artifacts();
    interrupt(&bench.mill, "answers", "rollout");
    bench.replace("samples: 1", "samples: 2");
    bench.replace("    resources: {concurrency: 8}", "    resources: {concurrency: 8}\n    freeze: true");
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    assert_eq!((bench.server.count(), bench.mill.artifacts()), (3, expected));
    // Its output is deleted: the node reports that, and makes no calls.
    let folder = bench.mill.artifact_folder("answers", "trajectories");
    std::fs::remove_dir_all(folder).expect("removed");
    let told = bench.run(&[]).exit(1);
    assert!(told.stdout.contains("the node is frozen and does not run"), "{}", told.stdout);
    assert_eq!(bench.server.count(), 3);
}

#[test]
fn a_frozen_node_takes_only_what_is_like_it() {
    let mill = ran();
    let full = mill.artifacts();
    // A frozen node ignores results of another limit and finds its own before them.
    mill.run(&["--limit", "3"]).exit(0);
    let cut = mill.artifacts();
    replace(&mill, "{size: 6, count: words}", "{size: 9, count: words}, freeze: true");
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts()["chunks.chunks"], full["chunks.chunks"]);
    mill.run(&["--limit", "3"]).exit(0);
    assert_eq!(mill.artifacts()["chunks.chunks"], cut["chunks.chunks"]);
    let told = mill.run(&["--limit", "4"]).exit(1);
    assert!(told.stdout.contains("had --limit 3, this one has --limit 4"), "{}", told.stdout);
    // Another pipeline of the same name, with another operator at this node.
    mill.write(
        "other.yaml",
        "name: caching\nnodes:\n  corpus: {op: read, with: {path: documents.jsonl, as: document}}\n  \
        chunks: {op: sample, from: corpus, with: {n: 2}, freeze: true}\n",
    );
    let told = mill.call(&["run", "other.yaml", "--json"]).exit(1);
    assert!(told.stdout.contains("made it with `chunk`, not `sample`"), "{}", told.stdout);
}

#[test]
fn a_record_that_does_not_fit_its_artifact_is_a_miss() {
    let mill = ran();
    let expected = mill.artifacts();
    let store = mill.store();
    let node = mill.last_nodes().into_iter().find(|node| node.node == "chunks").expect("a node");
    let key = node.key.expect("a key");
    let mut result = store.result(&key).expect("a result");
    result.outputs["chunks"].id = result.outputs["rejects"].id;
    store.record_anew(&result).expect("recorded");
    let told = mill.call(&["audit", &key.to_string()]).exit(1);
    assert!(told.stdout.contains("the result record gives another type"), "{}", told.stdout);
    // Also if type, rows and bytes match that artifact.
    result.outputs["chunks"] = result.outputs["rejects"].clone();
    for forged in [store.result(&key).expect("a result"), result] {
        store.record_anew(&forged).expect("recorded");
        let told = mill.run(&[]).exit(0);
        assert_eq!((told.ran().as_str(), told.reasons("chunks")), ("chunks", vec!["artifact_corrupt".to_owned()]));
        assert_eq!(mill.artifacts(), expected);
        mill.call(&["audit", "latest"]).exit(0);
    }
}

#[test]
fn validate_and_plan_need_no_store_to_be_right() {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(None));
    mill.write("pipeline.yaml", PIPELINE);
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    assert!(!mill.store_path().exists(), "validate writes nothing");
}

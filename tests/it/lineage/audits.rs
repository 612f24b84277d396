//! Tests of audits: what could not be checked is reported last, with a separate exit code.

use std::fs;
use std::path::Path;
use std::time::Duration;

use searchmill_engine::fingerprint::{NodeKey, hash_bytes};
use searchmill_engine::store::{NodeResult, NodeRun, RunRecord};
use searchmill_fixtures::openai_server::{Step, answer, status};

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in};

const PIPELINE: &str = "\
name: audits
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
";

fn ran(pipeline: &str) -> Mill {
    let mill = Mill::new();
    let line = |number: usize| {
        format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": format!("The river {number} is long.")}))
    };
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    mill.write("pipeline.yaml", pipeline);
    mill.run(&[]).exit(0);
    mill
}

fn last_line(told: &Told) -> &str {
    told.stdout.trim_end().lines().last().unwrap_or_default()
}

#[test]
fn everything_was_looked_at_and_only_then_it_says_so() {
    let mill = ran(PIPELINE);
    assert_eq!(last_line(&mill.call(&["audit", "few", "--replay"]).exit(0)), "everything checked is as recorded");
    // A changed source: the node that reads it cannot be recomputed.
    mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"Another river.\"}\n");
    let told = mill.call(&["audit", "few", "--replay"]).exit(6);
    assert!(last_line(&told).starts_with("1 of "), "{}", told.stdout);
    assert!(last_line(&told).contains(" not checked: replay of corpus (its source"), "{}", told.stdout);
    assert!(!told.stdout.contains("everything checked"), "{}", told.stdout);
    mill.call(&["audit", "few", "--replay", "--strict"]).exit(1);
    // A missing source cannot be checked.
    fs::remove_file(mill.path("documents.jsonl")).expect("removed");
    let told = mill.call(&["audit", "few"]).exit(6);
    assert!(last_line(&told).contains(" not checked: source "), "{}", told.stdout);
    mill.call(&["audit", "few", "--strict"]).exit(1);
}

#[test]
fn what_met_nothing_was_not_checked() {
    let mill = ran(PIPELINE);
    let told = mill.call(&["audit", "few", "--rollouts"]).exit(6);
    assert!(
        last_line(&told).contains("not checked: recheck of any node (no node behind the target"),
        "{}",
        told.stdout
    );
    let page = mill.call(&["audit", "few", "--rollouts", "--json"]).exit(6).events().remove(0);
    assert_eq!((&page["ok"], &page["complete"]), (&false.into(), &false.into()));
    assert_eq!(page["report"]["unchecked"][0]["what"], "recheck of any node");
}

#[test]
fn programs_that_may_not_run_were_not_checked() {
    let program = PIPELINE
        .replace("  few:", "  upper:\n    op: exec\n    from: chunks\n    with: {command: [cat], as: chunk}\n  few:");
    let mill = ran(&program);
    let told = mill.call(&["audit", "upper", "--replay"]).exit(6);
    assert!(last_line(&told).contains("replay of upper (it runs a program"), "{}", told.stdout);
    mill.call(&["audit", "upper", "--replay", "--allow-programs"]);
}

#[test]
fn another_version_was_not_checked() {
    let mill = ran(PIPELINE);
    // The record as an older program would have written it: another version and key.
    let store = mill.store();
    let node = mill.last_nodes().into_iter().find(|node| node.node == "few").expect("a node");
    let mut result = store.result(&node.key.expect("a key")).expect("a result");
    result.preimage["version"] = 0.into();
    result.key = searchmill_engine::fingerprint::NodeKey::of(&result.preimage);
    store.record(&result).expect("recorded");
    let told = mill.call(&["audit", &result.key.to_string(), "--replay"]).exit(6);
    assert!(last_line(&told).contains("it was made by `sample` version 0"), "{}", told.stdout);
}

#[test]
fn a_run_that_was_deleted_by_hand_is_missed_and_one_that_gc_forgot_is_not() {
    let mill = ran(PIPELINE);
    let first = mill.store().run_ids().remove(0);
    mill.run(&[]).exit(0);
    mill.call(&["audit", "few"]).exit(0);
    let folder = mill.store_path().join("runs").join(&first);
    let kept = mill.path("kept");
    fs::rename(&folder, &kept).expect("moved");
    let told = mill.call(&["audit", "few"]).exit(6);
    assert!(told.stdout.contains(&format!("runs/{first}")), "{}", told.stdout);
    assert!(last_line(&told).contains(&format!("ledger of run {first}")), "{}", told.stdout);
    fs::rename(&kept, &folder).expect("moved back");
    mill.call(&["gc", "--yes", "--keep-runs", "1", "--older-than", "0s", "--forget-runs"]).exit(0);
    assert!(!files_in(&mill.store_path().join("runs")).contains(&folder), "gc forgets it");
    mill.call(&["audit", "few"]).exit(0);
}

/// Rewrites the lines of a file.
fn relines(path: &Path, change: impl Fn(Vec<&str>) -> Vec<&str>) {
    let text = fs::read_to_string(path).expect("a file");
    let lines = change(text.lines().collect());
    fs::write(path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).expect("written");
}

/// Changes a figure of the first line, which stays a record.
fn change_first_line(run: &Path) {
    let path = run.join("nodes.jsonl");
    let text = fs::read_to_string(&path).expect("a file");
    assert!(text.contains("\"seconds\":0.0"), "{text}");
    fs::write(&path, text.replacen("\"seconds\":0.0", "\"seconds\":9.0", 1)).expect("written");
}

#[test]
fn what_is_gone_or_changed_in_the_records_of_a_run_is_a_difference() {
    type Harm = fn(&Path);
    let harms: [(Harm, &str); 7] = [
        (change_first_line, "nodes.jsonl, line 1: the line was changed: its checksum does not fit"),
        (|run| fs::write(run.join("nodes.jsonl"), "").expect("emptied"), "it has 0 lines, and the run wrote 6"),
        (|run| relines(&run.join("nodes.jsonl"), |lines| lines[..4].to_vec()), "it has 4 lines, and the run wrote 6"),
        (|run| relines(&run.join("nodes.jsonl"), |lines| [&lines[..1], &lines[..5]].concat()), "are not those that"),
        (|run| fs::remove_file(run.join("nodes.jsonl")).expect("removed"), "nodes.jsonl: the file is gone"),
        (|run| fs::remove_file(run.join("run.json")).expect("removed"), "run.json: the file is gone"),
        (|run| fs::remove_file(run.join("events.jsonl")).expect("removed"), "events.jsonl: the file is gone"),
    ];
    for (harm, wanted) in harms {
        let mill = ran(PIPELINE);
        let run = mill.store().run_ids().remove(0);
        mill.call(&["audit", &run]).exit(0);
        harm(&mill.store_path().join("runs").join(&run));
        let told = mill.call(&["audit", &run]).exit(1);
        assert!(told.stdout.contains(wanted), "{wanted}: {}", told.stdout);
    }
    // Runs of earlier versions record only the number of nodes.
    let mill = ran(PIPELINE);
    let (store, run) = (mill.store(), mill.store().run_ids().remove(0));
    let record = RunRecord { ledger: None, ..store.run(&run).expect("its record") };
    drop(store.start_run(&record).expect("written"));
    mill.call(&["audit", &run]).exit(0);
    relines(&mill.store_path().join("runs").join(&run).join("nodes.jsonl"), |lines| lines[..4].to_vec());
    let told = mill.call(&["audit", &run]).exit(1);
    assert!(told.stdout.contains("it has 2 nodes, and the run had 3"), "{}", told.stdout);
}

/// Returns the record of a run of three nodes.
fn bare(run: &str) -> RunRecord {
    let record = serde_json::json!({
        "id": run, "pipeline": "audits", "file": "pipeline.yaml", "params": {}, "started": 1.0, "finished": 2.0,
        "exit": 0, "nodes": 3,
    });
    serde_json::from_value(record).expect("a record")
}

#[test]
fn nodes_without_a_result_were_not_checked() {
    let bad = "  bad:    {op: sql, from: {d: corpus}, with: {query: \"SELECT CAST(text AS INT) AS n FROM d\"}}\n\
        \x20 after:  {op: sql, from: {d: bad}, with: {query: \"SELECT n FROM d\"}}\n";
    let mill = ran(PIPELINE);
    mill.write("pipeline.yaml", &format!("{PIPELINE}{bad}"));
    mill.run(&["--keep-going"]).exit(1);
    let told = mill.call(&["audit", "latest"]).exit(6);
    let last = last_line(&told);
    assert!(last.starts_with("2 of ") && last.contains("node bad (it failed), node after (it was skipped)"), "{last}");
    // A run that was killed after its first node had started.
    let store = mill.store();
    let killed = RunRecord { finished: None, exit: None, ..bare("99990101-000000-killed") };
    let mut run = store.start_run(&killed).expect("a run");
    let key = NodeKey(hash_bytes(b"key"));
    run.node(&NodeRun::begun("corpus", "read", key, Vec::new(), serde_json::Value::Null)).expect("recorded");
    run.flush().expect("flushed");
    let told = mill.call(&["audit", "99990101"]).exit(6);
    let last = last_line(&told);
    assert!(last.starts_with("2 of 2 not checked: node corpus (the run was killed"), "{last}");
    assert!(last.contains("2 more of 3 nodes (nothing is recorded of them)"), "{last}");
}

#[test]
fn what_was_paid_and_is_not_remembered_was_not_checked() {
    let bench = Bench::new(&patient(6, Duration::ZERO));
    bench.ask(&["q0", "q1"]);
    bench.run(&[]).exit(0);
    let memo = bench.mill.store_path().join("memo");
    let segments = || {
        let folders = files_in(&memo).into_iter().flat_map(|folder| files_in(&folder));
        folders.flat_map(|folder| files_in(&folder)).filter(|path| path.extension().is_some_and(|end| end == "rows"))
    };
    let first: Vec<_> = segments().collect();
    bench.ask(&["q0", "q1", "q2", "q3", "q4", "q5"]);
    bench.run(&[]).exit(0);
    bench.mill.call(&["audit", "latest"]).exit(0);
    // The second run's paid rows are deleted; no record is damaged.
    segments().filter(|path| !first.contains(path)).for_each(|path| fs::remove_file(path).expect("removed"));
    let told = bench.mill.call(&["audit", "answers"]).exit(6);
    let last = last_line(&told);
    assert!(last.contains("4 of 6 cached rows of answers (they are gone"), "{last}");
    assert!(last.contains("2 of 4 cached answers of answers"), "{last}");
    fs::remove_dir_all(&memo).expect("removed");
    let told = bench.mill.call(&["audit", "answers"]).exit(6);
    assert!(last_line(&told).contains("6 of 6 cached rows of answers"), "{}", told.stdout);
    bench.mill.call(&["audit", "bm25"]).exit(0);
}

/// Returns questions `q0`, … with one answer each.
fn saying(count: usize, step: impl Fn(usize) -> Step) -> Vec<(String, Vec<Step>)> {
    (0..count).map(|number| (format!("q{number}"), vec![step(number)])).collect()
}

fn answers_of(bench: &Bench, run: &str) -> NodeRun {
    let nodes = bench.mill.store().run_nodes(run);
    nodes.into_iter().find(|node| node.node == "answers").expect("a node")
}

/// Returns the segments with the rows, or with the answers, of the newest run's rollout.
fn segments(bench: &Bench, of_rows: bool) -> Vec<std::path::PathBuf> {
    let store = bench.mill.store();
    let node = answers_of(bench, store.run_ids().last().expect("a run"));
    let result = store.result(&node.key.expect("a key")).expect("a result");
    let base = if of_rows { result.memo } else { result.asked }.expect("a memo");
    let files = files_in(&store.memo_folder(&base)).into_iter();
    files.filter(|path| path.extension().is_some_and(|end| end == "rows")).collect()
}

#[test]
fn what_was_bought_by_force_and_is_gone_was_not_checked() {
    for (of_rows, cut, wanted) in [
        (true, false, "6 of 6 cached rows of answers"),
        (true, true, "cached rows of answers"),
        (false, false, "6 of 6 cached answers of answers"),
    ] {
        let mut bench = Bench::new(&patient(6, Duration::ZERO));
        bench.run(&[]).exit(0);
        let first = segments(&bench, of_rows);
        bench.serve(&saying(6, |_| answer("Paris")));
        bench.run(&["--force=answers"]).exit(0);
        bench.mill.call(&["audit", "latest", "--rollouts"]).exit(0);
        // The forced run's paid rows are deleted; older rows with the same keys do not replace them.
        let new: Vec<_> = segments(&bench, of_rows).into_iter().filter(|path| !first.contains(path)).collect();
        assert_eq!(new.len(), 1, "{new:?}");
        if cut {
            let file = fs::File::options().write(true).open(&new[0]).expect("a segment");
            file.set_len(file.metadata().expect("a length").len() / 2).expect("cut");
        } else {
            fs::remove_file(&new[0]).expect("removed");
        }
        for more in [&[][..], &["--rollouts"]] {
            let told = bench.mill.call(&[&["audit", "latest"], more].concat()).exit(6);
            assert!(told.stdout.contains(wanted), "{wanted}: {}", told.stdout);
        }
    }
}

#[test]
fn a_result_that_a_forced_run_replaced_is_not_called_wrong() {
    let mut bench = Bench::new(&patient(6, Duration::ZERO));
    bench.run(&[]).exit(0);
    bench.serve(&saying(6, |_| answer("Paris")));
    bench.run(&["--force=answers"]).exit(0);
    let ids = bench.mill.store().run_ids();
    let [first, forced] = [ids[0].as_str(), ids[1].as_str()];
    let audit = |args: &[&str], code: i32| bench.mill.call(&[&["audit"], args].concat()).exit(code).stdout;
    audit(&["latest", "--rollouts"], 0);
    let words = format!("result of answers (replaced by run {forced}: only its files were compared)");
    for more in [&[][..], &["--rollouts"], &["--replay"]] {
        let told = audit(&[&["previous"], more].concat(), 6);
        assert!(told.contains(&words), "{told}");
    }
    let told = audit(&["previous", "--rollouts"], 6);
    assert!(told.contains(&format!("answers of answers (replaced by run {forced})")), "{told}");
    // Also reported for another node of the run that read the replaced result.
    assert!(audit(&["scores", "--run", first], 6).contains(&words));

    // One byte of its files is changed.
    let store = bench.mill.store();
    let before = answers_of(&bench, first);
    let folder = store.artifact_folder(&before.outputs["trajectories"].id);
    let part = folder.join("part-00000.parquet");
    let whole = fs::read(&part).expect("a part");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&part, &flipped).expect("written");
    assert!(audit(&["previous"], 1).contains("its content was changed"));
    fs::write(&part, &whole).expect("written");
    audit(&["previous"], 6);
    // The whole folder is missing.
    let kept = bench.mill.path("kept");
    fs::rename(&folder, &kept).expect("moved");
    assert!(audit(&["previous"], 6).contains("it is gone from the store"));
    fs::rename(&kept, &folder).expect("moved back");

    // A record that names a later run which did not produce it is forged.
    bench.run(&[]).exit(0);
    let plain = store.run_ids().pop().expect("a run");
    let result = store.result(&before.key.expect("a key")).expect("a result");
    let forgery = NodeResult { outputs: before.outputs, run: plain.clone(), ..result };
    store.record_anew(&forgery).expect("recorded");
    for run in [forced, plain.as_str()] {
        assert!(audit(&[run], 1).contains("the result record says"));
    }
}

#[test]
fn a_result_whose_rejects_were_tried_again_is_not_called_wrong() {
    let mut bench = Bench::new(&saying(6, |number| if number == 3 { status(400) } else { answer("Rome") }));
    bench.run(&[]).exit(3);
    bench.serve(&saying(6, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    let told = bench.mill.call(&["audit", "previous"]).exit(6);
    assert!(last_line(&told).contains("result of answers (replaced by run "), "{}", told.stdout);
    bench.mill.call(&["audit", "latest"]).exit(0);
}

const ROLLOUTS: &str = "\
name: replayed
nodes:
  world:    {op: generate-world, with: {documents: 100, questions: 12, min_hops: 1, max_hops: 1}, seed: 3}
  chunks:   {op: chunk, from: world, with: {size: 60, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence, samples: 2}}
";

fn check<'a>(page: &'a serde_json::Value, node: &str, check: &str) -> &'a serde_json::Value {
    let nodes = page["report"]["nodes"].as_array().expect("nodes");
    let found = nodes.iter().find(|found| found["node"] == node && found["check"] == check);
    found.unwrap_or_else(|| panic!("no {check} of {node}: {page}"))
}

#[test]
fn rollouts_of_a_policy_that_repeats_are_computed_again() {
    let mill = ran(ROLLOUTS);
    let audit = |args: &[&str], code: i32| {
        mill.call(&[&["audit", "rollouts", "--json"], args].concat()).exit(code).events().remove(0)
    };
    assert_eq!(check(&audit(&["--replay"], 0), "rollouts", "replay")["outcome"], "same");
    let both = audit(&["--replay", "--rollouts", "--sample", "3", "--seed", "1"], 0);
    assert!(
        check(&both, "rollouts", "replay")["detail"]
            .as_str()
            .expect("a detail")
            .starts_with("3 of 12 input rows, 6 output rows")
    );
    assert_eq!(check(&both, "rollouts", "recheck")["outcome"], "same");
    // A machine without the device does not report a result computed on it as wrong.
    let store = mill.store();
    let node = mill.last_nodes().into_iter().find(|node| node.node == "rollouts").expect("a node");
    let mut result = store.result(&node.key.expect("a key")).expect("a result");
    let computed = serde_json::json!({"repeats": "device", "on": "GPU (X)"});
    result.origin.as_mut().expect("an origin").computed = serde_json::from_value(computed).expect("a word");
    store.record_anew(&result).expect("recorded");
    let page = audit(&["--replay"], 6);
    let found = check(&page, "rollouts", "replay");
    assert_eq!(found["outcome"], "not checked");
    assert!(found["detail"].as_str().expect("why").contains("it was computed on GPU (X)"), "{found}");
}

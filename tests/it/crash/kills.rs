//! Tests of killed, interrupted and damaged runs: the next run resumes without a message.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in, killed_after};

/// Questions of the rollout.
const QUESTIONS: usize = 48;
/// Rows in flight.
const CONCURRENCY: usize = 8;
/// Number of kills, at different moments.
const KILLS: u64 = 24;

fn slow_bench() -> Bench {
    Bench::new(&patient(QUESTIONS, Duration::from_millis(40)))
}

fn names() -> Vec<String> {
    (0..QUESTIONS).map(|number| format!("q{number}")).collect()
}

fn paid(bench: &Bench) -> usize {
    bench.paid(&names().iter().map(String::as_str).collect::<Vec<_>>())
}

/// Sends a signal to that process alone, with the program `kill`.
fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status();
    assert!(status.expect("`kill` is there").success());
}

/// Waits until the server has received that many requests.
fn wait_for(bench: &Bench, requests: usize) {
    let start = Instant::now();
    while paid(bench) < requests {
        assert!(start.elapsed() < Duration::from_secs(30), "the run did not reach {requests} requests");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Returns a moment that differs between rounds, but not between runs of the test.
fn moment(round: u64) -> Duration {
    Duration::from_millis(15 + round.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 420)
}

fn undisturbed() -> BTreeMap<String, String> {
    let bench = slow_bench();
    bench.run(&[]).exit(0);
    assert_eq!(paid(&bench), QUESTIONS);
    bench.mill.artifacts()
}

#[test]
fn kill_9_at_any_moment_costs_at_most_what_was_in_flight() {
    let expected = undisturbed();
    let bench = slow_bench();
    let mut kills = 0;
    for round in 0..KILLS {
        kills += usize::from(killed_after(&mut bench.command(&[]), moment(round)));
    }
    assert!(kills >= 6, "only {kills} of {KILLS} runs were killed");
    let told = bench.run(&[]).exit(0);
    assert_eq!(told.stderr, "", "the next run prints nothing");
    assert_eq!(bench.mill.artifacts(), expected);
    let most = QUESTIONS + kills * CONCURRENCY;
    assert!(paid(&bench) <= most, "{} calls were paid for {QUESTIONS} rows and {kills} kills", paid(&bench));
    assert_eq!(bench.mill.unfinished(), Vec::<std::path::PathBuf>::new(), "tmp/ is swept");
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
}

#[test]
fn kill_9_in_the_middle_of_a_rollout_keeps_the_rows_that_were_done() {
    let bench = slow_bench();
    let mut child = bench.command(&[]).spawn().expect("a child");
    wait_for(&bench, QUESTIONS / 2);
    child.kill().expect("a running child");
    child.wait().expect("a child");
    let before = paid(&bench);
    // The rollout leaves no files: a table's folder is created with its first part. Creates one for the dead process.
    let lock = files_in(&bench.mill.store_path().join("tmp"))
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "lock"));
    let lock = lock.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let owner = lock.as_ref().and_then(|lock| lock.split('.').next()).expect("the lock of the dead process");
    let left = bench.mill.store_path().join(format!("tmp/{owner}-99-rows"));
    std::fs::create_dir_all(&left).expect("a folder");
    std::fs::write(left.join("part-00000.parquet"), "torn").expect("a file");
    let told = bench.run(&[]).exit(0);
    let events = told.events();
    let done = events.iter().find(|event| event["event"] == "node_finished" && event["node"] == "answers");
    let cached = done.expect("the rollout ran")["cached_rows"].as_u64().expect("a number") as usize;
    assert!(cached >= before - CONCURRENCY, "{cached} of {before} rows were remembered");
    // The answer to a turn may have been kept before its row was: then it is not paid again either.
    let most = before + QUESTIONS - cached;
    assert!((QUESTIONS..=most).contains(&paid(&bench)), "{} calls, at most {most} were needed", paid(&bench));
    assert_eq!(bench.mill.unfinished(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_interrupted_run_and_its_node_are_called_interrupted() {
    let bench = slow_bench();
    let mut command = bench.mill.command(&["run", "pipeline.yaml"]);
    command.env("ENDPOINT", bench.server.base_url()).env("API_KEY", bench.api_key);
    let child = command.spawn().expect("a child");
    wait_for(&bench, QUESTIONS / 3);
    signal(&child, "INT");
    let told = Told::new(child.wait_with_output().expect("a child")).exit(130);
    let is_named = |line: &str| line.starts_with("interrupted answers");
    assert!(told.stderr.lines().any(is_named), "{}", told.stderr);
    assert!(told.stdout.contains("interrupted in "), "{}", told.stdout);
    assert!(!told.stderr.contains("failed "), "{}", told.stderr);
}

#[test]
fn one_ctrl_c_drains_and_the_next_run_goes_on() {
    let bench = slow_bench();
    let child = bench.command(&[]).spawn().expect("a child");
    wait_for(&bench, QUESTIONS / 3);
    signal(&child, "INT");
    let told = Told::new(child.wait_with_output().expect("a child")).exit(130);
    assert_eq!(told.summary()["interrupted"], true);
    let before = paid(&bench);
    assert!(before < QUESTIONS, "the run stopped before the end");
    let next = bench.run(&[]).exit(0);
    assert_eq!(next.reasons("answers"), ["unfinished"]);
    assert_eq!(paid(&bench), QUESTIONS, "rows in flight were awaited and stored");
    assert_eq!(bench.mill.artifacts(), undisturbed());
}

#[test]
fn an_endpoint_that_is_down_is_given_up_early_and_nothing_is_rejected() {
    let names: Vec<String> = (0..192).map(|number| format!("q{number}")).collect();
    let bench = Bench::new(&patient(192, Duration::ZERO));
    bench.replace("concurrency: 8", "concurrency: 16");
    bench.replace("max_attempts: 2, backoff: 10ms", "max_attempts: 3, backoff: 300ms");
    let start = Instant::now();
    let mut command = bench.command(&[]);
    let told = Told::new(command.env("ENDPOINT", "http://127.0.0.1:9/v1").output().expect("a run")).exit(5);
    assert!(start.elapsed() < Duration::from_secs(12), "it took {:?}", start.elapsed());
    let failed = told.events().into_iter().find(|event| event["event"] == "node_failed").expect("it failed");
    let message = failed["message"].as_str().expect("a message");
    assert!(message.contains("http://127.0.0.1:9/v1 cannot be reached, 8 calls in a row were given up"), "{message}");
    let last = bench.mill.last_nodes().into_iter().find(|node| node.node == "answers").expect("the node");
    assert!(last.outputs.is_empty(), "no row was rejected");
    // The endpoint works again: every row is asked, none twice.
    bench.run(&[]).exit(0);
    assert_eq!(bench.paid(&names.iter().map(String::as_str).collect::<Vec<_>>()), 192);
}

#[test]
fn the_reason_of_rejects_stands_at_the_end_of_the_node() {
    let bench = Bench::new(&[("q0".to_owned(), vec![searchmill_fixtures::openai_server::status(400)])]);
    let told = bench.run(&[]).exit(3);
    let done = told.events().into_iter().find(|event| event["event"] == "node_finished" && event["node"] == "answers");
    let why = done.expect("it ended")["rejected_for"].as_str().expect("a reason").to_owned();
    assert!(why.starts_with("refused: ") && why.contains("400"), "{why}");
    let mut command = bench.mill.command(&["run", "pipeline.yaml", "--force=answers"]);
    command.env("ENDPOINT", bench.server.base_url()).env("API_KEY", "k");
    let shown = Told::new(command.output().expect("a run")).exit(3).stderr;
    assert!(shown.contains("1 rejects (refused: "), "{shown}");
}

#[test]
fn a_second_ctrl_c_stops_at_once() {
    let bench = Bench::new(&patient(8, Duration::from_mins(1)));
    bench.replace("timeout_seconds: 2", "timeout_seconds: 90");
    let child = bench.command(&[]).spawn().expect("a child");
    wait_for_any(&bench);
    signal(&child, "INT");
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    signal(&child, "INT");
    Told::new(child.wait_with_output().expect("a child")).exit(130);
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
}

fn wait_for_any(bench: &Bench) {
    wait_for(bench, 8);
}

/// Returns a project with a small pipeline without an endpoint, after one run.
fn ran() -> Mill {
    let mill = Mill::new();
    let line =
        |number| format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": "some words ".repeat(9)}));
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    let pipeline = "\
name: damage
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}}
";
    mill.write("pipeline.yaml", pipeline);
    mill.run(&[]).exit(0);
    mill
}

/// Damages the artifact of `chunks` and checks that it is recomputed with the same bytes.
fn mends(damage: fn(&Path), reason: &str) {
    let mill = ran();
    let before = mill.artifacts();
    damage(&mill.artifact_folder("chunks", "chunks"));
    let told = mill.run(&[]).exit(0);
    assert_eq!((told.ran().as_str(), told.reasons("chunks")), ("chunks", vec![reason.to_owned()]));
    assert_eq!(mill.artifacts(), before);
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

fn part(folder: &Path) -> std::path::PathBuf {
    folder.join("part-00000.parquet")
}

#[test]
fn a_deleted_part_is_made_again() {
    mends(|folder| std::fs::remove_file(part(folder)).unwrap(), "artifact_missing");
}

#[test]
fn a_deleted_artifact_is_made_again() {
    mends(|folder| std::fs::remove_dir_all(folder).unwrap(), "artifact_missing");
}

#[test]
fn a_truncated_part_is_made_again() {
    let cut = |folder: &Path| {
        let file = std::fs::OpenOptions::new().write(true).open(part(folder)).unwrap();
        file.set_len(100).unwrap();
    };
    mends(cut, "artifact_corrupt");
}

#[test]
fn a_damaged_description_is_made_again() {
    mends(|folder| std::fs::write(folder.with_extension("json"), "{").unwrap(), "artifact_corrupt");
}

#[test]
fn damaged_result_records_are_misses() {
    for change in [|text: String| text.replacen("\"key\":\"", "\"key\":\"0", 1), |text: String| text[..40].to_owned()] {
        let mill = ran();
        let before = mill.artifacts();
        for folder in files_in(&mill.store_path().join("results")) {
            for record in files_in(&folder) {
                let text = std::fs::read_to_string(&record).unwrap();
                std::fs::write(&record, change(text)).unwrap();
            }
        }
        let told = mill.run(&[]).exit(0);
        assert_eq!(told.ran(), "chunks corpus few");
        assert_eq!(mill.artifacts(), before);
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_result_record_is_a_miss() {
    let mill = ran();
    let before = mill.artifacts();
    let key = mill.last_nodes().iter().find(|node| node.node == "chunks").and_then(|node| node.key).expect("a key");
    let hex = key.to_string();
    let record = mill.store_path().join("results").join(&hex[..2]).join(format!("{hex}.json"));
    let length = std::fs::read(&record).unwrap().len();
    for place in (3..length).step_by(length / 12) {
        let mut bytes = std::fs::read(&record).unwrap();
        bytes[place] ^= 1;
        std::fs::write(&record, &bytes).unwrap();
        let told = mill.run(&[]).exit(0);
        assert_eq!(told.ran(), "chunks", "after a flip of byte {place}");
        assert_eq!(mill.artifacts(), before);
    }
}

#[test]
fn a_record_that_names_another_key_is_not_believed() {
    let mill = ran();
    let records: Vec<_> = files_in(&mill.store_path().join("results")).iter().flat_map(|f| files_in(f)).collect();
    let text = std::fs::read_to_string(&records[0]).unwrap();
    std::fs::write(&records[1], text).unwrap();
    assert_ne!(mill.run(&[]).exit(0).ran(), "");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

#[test]
fn a_torn_run_record_is_no_obstacle() {
    let mill = ran();
    for run in files_in(&mill.store_path().join("runs")) {
        for name in ["run.json", "nodes.jsonl", "events.jsonl"] {
            let text = std::fs::read_to_string(run.join(name)).unwrap();
            std::fs::write(run.join(name), &text[..text.len() / 2]).unwrap();
        }
    }
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.call(&["runs"]).exit(0);
}

#[test]
fn a_missing_store_is_made_and_an_unusable_one_is_exit_5() {
    let mill = ran();
    std::fs::remove_dir_all(mill.store_path()).unwrap();
    assert_eq!(mill.run(&[]).exit(0).ran(), "chunks corpus few");
    mill.write(".searchmill/format", "999\n");
    let told = mill.run(&[]).exit(5);
    assert!(told.stderr.contains("has format 999") && told.stderr.contains("--store"), "{}", told.stderr);
    mill.write("a_file", "");
    mill.run(&["--store", "a_file"]).exit(5);
    mill.run(&["--store", "ftp://bucket/store"]).exit(5);
    assert_eq!(mill.read(".searchmill/format"), "999\n", "another version's store is unchanged");
}

#[test]
fn a_store_that_cannot_be_written_is_exit_5() {
    // Even root cannot create files in /proc.
    let mill = ran();
    let told = mill.run(&["--store", "/proc/searchmill"]).exit(5);
    assert!(told.stderr.contains("/proc/searchmill"), "{}", told.stderr);
    // A file in place of a store folder: an error of the machine, not of the pipeline.
    let folder = mill.artifact_folder("chunks", "chunks");
    let parent = folder.parent().expect("a folder");
    std::fs::remove_dir_all(parent).unwrap();
    std::fs::write(parent, "").unwrap();
    let told = mill.run(&[]).exit(5);
    assert_eq!(told.summary()["machine_failure"], true);
}

//! Nights: budgets of days and months over all runs, runs that finish with what they have, and notes of the daemon.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::schedule::{Daemon, events, far_away, get, put, wait};
use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, files_in, killed_when};

fn bench(questions: usize, head: &str) -> Bench {
    let bench = Bench::new(&patient(questions, Duration::from_millis(5)));
    bench.replace("timeout_seconds: 2", "timeout_seconds: 2, prices: {call: 0.01}");
    bench.replace("name: endpoint\n", &format!("name: endpoint\n{head}\n"));
    bench.replace("concurrency: 8", "concurrency: 1");
    bench
}

#[test]
fn a_budget_of_a_day_counts_all_runs_failed_and_killed_ones_too() {
    let bench = bench(12, "budget: {per_day: {calls: 8}}");
    bench.run(&["--budget", "calls=3"]).exit(4);
    assert_eq!(bench.server.count(), 3);
    // A run that fails: its calls count.
    bench.replace("    retry:", "    checks: [{rows: {min: 1000}}]\n    retry:");
    bench.ask(&["q0", "q1", "q2", "q3", "q4"]);
    bench.run(&[]).exit(1);
    assert_eq!(bench.server.count(), 5);
    let names: Vec<String> = (0..12).map(|number| format!("q{number}")).collect();
    bench.ask(&names.iter().map(String::as_str).collect::<Vec<_>>());
    // A run that is killed while it asks.
    killed_when(&mut bench.command(&[]), || bench.server.count() >= 6);
    let told = bench.run(&[]).exit(4);
    let limit = told.summary()["budget"].as_str().unwrap_or_default().to_owned();
    assert_eq!(limit, "8 of 8 calls today", "{}", told.stdout);
    assert!(bench.server.count() <= 8, "{} calls", bench.server.count());
    let before = bench.server.count();
    bench.run(&[]).exit(4);
    assert_eq!(bench.server.count(), before, "the day is over");
    bench.replace("per_day: {calls: 8}", "per_month: {cost: 0.5}");
    bench.replace("checks: [{rows: {min: 1000}}]", "checks: []");
    bench.run(&[]).exit(0);
    assert!(bench.server.count() <= 13, "at most the call in flight is paid twice: {}", bench.server.count());
    bench.replace("per_month: {cost: 0.5}", "per_month: {cost: 0.12}");
    bench.ask(&["q0", "unknown"]);
    let told = bench.run(&[]).exit(4);
    assert!(told.stdout.contains("0.12 (cost) this month"), "{}", told.stdout);
}

#[test]
fn a_run_finishes_with_what_the_budget_allows_and_the_next_one_goes_on() {
    let bench = bench(10, "budget: {calls: 4}\non_budget: finish");
    let told = bench.run(&[]).exit(4);
    assert_eq!((bench.server.count(), &told.summary()["skipped"]), (4, &json!(0)));
    assert!(told.nodes("node_finished").contains("scores"), "scores exist: {}", told.stdout);
    let rejects = bench.call(&["show", "answers", "--rejects", "--json", "-n", "0"]).exit(0);
    let kinds: Vec<String> = rejects.events().iter().map(|row| row["kind"].as_str().unwrap_or("").to_owned()).collect();
    assert_eq!(kinds, vec!["budget"; 6], "{}", rejects.stdout);
    let told = bench.run(&[]).exit(4);
    assert_eq!(bench.server.count(), 8);
    assert_eq!(told.reasons("answers"), ["rejects_retried"], "the result does not count as complete");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 10);
    let whole = bench.mill.artifacts();
    let straight = self::bench(10, "");
    straight.run(&[]).exit(0);
    assert_eq!(whole["answers.trajectories"], straight.mill.artifacts()["answers.trajectories"]);
    assert_eq!(whole["scores.scores"], straight.mill.artifacts()["scores.scores"]);
    // A result that is whole is not replaced by less: neither by the forced run, nor by one that completes it.
    bench.replace("budget: {calls: 4}", "budget: {calls: 1}");
    let complete = recorded(&bench);
    for paid in [11, 12] {
        bench.run(if paid == 11 { &["--force", "answers"] } else { &[] }).exit(4);
        assert_eq!((bench.server.count(), recorded(&bench)), (paid, complete.clone()));
    }
    let told = bench.run(&["--force", "answers"]).exit(4);
    assert!(told.stdout.contains("resumes the interrupted forced run"), "{}", told.stdout);
    assert_eq!((bench.server.count(), recorded(&bench)), (13, complete));
    bench.replace("budget: {calls: 1}", "budget: {calls: 100}");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 20, "each row was paid for once more");
    assert_eq!(bench.mill.artifacts(), whole);
}

/// Returns the rows of the rollouts recorded in the store, and how many were not asked.
fn recorded(bench: &Bench) -> Vec<(u64, u64)> {
    let store = bench.mill.store();
    let results = store.result_keys().into_iter().filter_map(|key| store.result(&key));
    results.filter_map(|result| Some((result.outputs.get("trajectories")?.rows, result.unasked))).collect()
}

#[test]
fn a_forced_run_of_other_rows_that_was_cut_off_makes_no_result_worse() {
    let bench = bench(3, "on_budget: finish");
    bench.ask(&["q0", "q1", "unknown"]);
    bench.run(&[]).exit(3);
    let whole = bench.mill.artifacts();
    bench.ask(&["q0", "q2"]);
    bench.run(&[]).exit(0);
    bench.run(&["--force", "answers", "--budget", "calls=1"]).exit(4);
    assert_eq!(bench.paid(&["q0"]), 2);
    bench.ask(&["q0", "q1", "unknown"]);
    let told = bench.run(&["--budget", "calls=0"]).exit(4);
    assert!(told.stdout.contains("the earlier result stays"), "{}", told.stdout);
    assert_eq!(bench.mill.artifacts(), whole);
    // What the forced run paid for still counts.
    bench.ask(&["q0", "q2"]);
    let told = bench.run(&["--force", "answers"]).exit(0);
    assert!(told.stdout.contains("resumes the interrupted forced run"), "{}", told.stdout);
    assert_eq!((bench.paid(&["q0"]), bench.paid(&["q2"])), (2, 2));
}

#[test]
fn a_forced_run_after_one_that_a_budget_cut_short_goes_on_there() {
    let bench = bench(4, "on_budget: finish");
    bench.ask(&["q0", "q1"]);
    bench.run(&[]).exit(0);
    bench.run(&["--force", "answers", "--budget", "calls=1"]).exit(4);
    bench.ask(&["q0", "q1", "q2", "q3"]);
    // Its rows stand on the floor of the forced run.
    bench.run(&["--budget", "calls=2"]).exit(4);
    assert_eq!((bench.paid(&["q0"]), bench.paid(&["q1"]), bench.paid(&["q2"])), (2, 2, 1));
    let told = bench.run(&["--force", "answers"]).exit(0);
    assert!(told.stdout.contains("resumes the interrupted forced run"), "{}", told.stdout);
    assert_eq!(bench.server.count(), 2 + 4, "no row was forced twice");
}

#[test]
fn a_result_whose_files_are_gone_does_not_stay() {
    let bench = bench(5, "on_budget: finish");
    bench.run(&[]).exit(0);
    let folder = bench.mill.artifact_folder("answers", "trajectories");
    std::fs::remove_dir_all(folder).expect("removed");
    std::fs::remove_dir_all(bench.mill.store_path().join("memo")).expect("removed");
    let told = bench.run(&["--budget", "calls=2"]).exit(4);
    assert!(told.nodes("node_finished").contains("scores"), "{}", told.stdout);
    assert_eq!(bench.server.count(), 7);
    let shown = bench.call(&["show", "answers", "--json", "-n", "0"]).exit(0);
    assert_eq!(shown.events().len(), 2, "{}", shown.stdout);
}

#[test]
fn a_result_whose_rows_were_all_asked_is_not_replaced_by_one_that_a_budget_cut_short() {
    let bench = bench(5, "on_budget: finish");
    bench.ask(&["q0", "q1", "unknown", "q3"]);
    bench.run(&[]).exit(3);
    let (whole, paid) = (bench.mill.artifacts(), bench.server.count());
    let told = bench.run(&["--budget", "calls=0"]).exit(4);
    assert!(told.stdout.contains("the earlier result stays"), "{}", told.stdout);
    assert_eq!((bench.mill.artifacts(), bench.server.count()), (whole, paid));
}

/// Runs, and asserts that `answers` fails because of the machine before it asks anything.
fn fails_on_this_machine(bench: &Bench, wanted: &str) {
    let told = bench.run(&[]).exit(5);
    let failed = told.events().into_iter().find(|event| event["event"] == "node_failed").expect("a failure");
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(failed["node"] == "answers" && message.contains(wanted), "{message}");
    assert!(told.summary()["budget"].is_null() && bench.server.count() == 0, "{}", told.stdout);
}

#[test]
fn spending_that_cannot_be_recorded_is_no_budget_that_is_used_up() {
    let bench = bench(3, "on_budget: finish");
    bench.call(&["run", "pipeline.yaml", "--only", "questions"]).exit(0);
    let spent = bench.mill.store_path().join("spent");
    std::fs::write(&spent, "not a folder").expect("a file");
    fails_on_this_machine(&bench, "spending cannot be recorded");
    std::fs::remove_file(&spent).expect("removed");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 3);
}

#[test]
fn spending_that_cannot_be_read_does_not_count_as_nothing() {
    let bench = bench(3, "budget: {per_day: {calls: 8}}\non_budget: finish");
    let spent = bench.mill.store_path().join("spent").join("endpoint");
    bench.call(&["run", "pipeline.yaml", "--only", "questions"]).exit(0);
    std::fs::create_dir_all(spent.join("a-folder")).expect("a folder");
    fails_on_this_machine(&bench, "a-folder");
    std::fs::remove_dir_all(spent.join("a-folder")).expect("removed");
    std::fs::write(spent.join("earlier"), "no numbers at all\n").expect("a file");
    fails_on_this_machine(&bench, "earlier:1: this line is damaged");
    std::fs::remove_file(spent.join("earlier")).expect("removed");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 3);
}

#[test]
fn a_day_does_not_start_anew_when_its_record_is_emptied_cut_or_removed() {
    let bench = bench(8, "budget: {per_day: {calls: 4}}");
    bench.run(&[]).exit(4);
    assert_eq!(bench.server.count(), 4);
    assert!(!bench.call(&["audit", "latest"]).stdout.contains("spent/"), "it is whole");
    let spent = bench.mill.store_path().join("spent");
    let file = files_in(&spent.join("endpoint")).pop().expect("the record");
    let name = file.file_name().expect("a name").to_string_lossy().into_owned();
    let whole = std::fs::read(&file).expect("the record");
    let digit = whole.iter().position(|byte| *byte == b'4').expect("four calls");
    let mut changed = whole.clone();
    changed[digit] = b'0';
    for damaged in [&[][..], &whole[..whole.len() / 2], &whole[..whole.len() - 1], &changed[..]] {
        std::fs::write(&file, damaged).expect("written");
        let told = bench.run(&[]).exit(5);
        assert!(
            told.stdout.contains(&format!("{name}:1: ")) && told.stdout.contains("remove the file"),
            "{}",
            told.stdout
        );
        let audit = bench.call(&["audit", "latest"]).exit(1);
        assert!(audit.stdout.contains(&format!("spent/endpoint/{name}")), "{}", audit.stdout);
    }
    // What the record of the run says counts instead.
    for gone in [&file, &spent] {
        if gone.is_dir() {
            std::fs::remove_dir_all(gone).expect("removed");
        } else {
            std::fs::remove_file(gone).expect("removed");
        }
        let told = bench.run(&[]).exit(4);
        assert_eq!(told.summary()["budget"], "4 of 4 calls today", "{}", told.stdout);
    }
    assert_eq!(bench.server.count(), 4);
    let audit = bench.call(&["audit", name.as_str()]);
    assert!(audit.stdout.contains("no record says what it spent"), "{}", audit.stdout);
}

#[test]
fn wrong_budgets_of_periods_are_refused() {
    let mill = Mill::new();
    for (budget, message) in [
        ("budget: {per_day: {euros: 3}}", "has no key `euros`"),
        ("budget: {per_month: 3}", "must be a map"),
        ("budget: {per_week: {calls: 3}}", "has no key `per_week`"),
        ("on_budget: faint", "cannot be `faint`"),
        ("schedule: {cron: '0 3 * * *', notify: {webhook: 'ftp://x'}}", "no http or https URL"),
        ("schedule: {cron: '0 3 * * *', notify: {on: failure}}", "needs a `webhook` or a `program`"),
        ("schedule: {cron: '0 3 * * *', notify: {program: x, on: [fail]}}", "cannot be `fail`"),
    ] {
        mill.write("pipeline.yaml", &format!("{budget}\nnodes: {{}}\n"));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(message) && told.contains("pipeline.yaml:1:"), "{message}\n{told}");
    }
}

/// A webhook that answers the first requests with errors and records all bodies.
struct Hook {
    address: String,
    received: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Hook {
    fn start(errors: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let received: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let all = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let (head, body) = request(&mut stream);
                let mut all = all.lock().expect("the log");
                all.push((head, body));
                let status = if all.len() <= errors { "500 Internal Server Error" } else { "204 No Content" };
                drop(write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
            }
        });
        Self { address, received }
    }

    fn received(&self) -> Vec<(String, Value)> {
        self.received.lock().expect("the log").clone()
    }

    fn wait(&self, count: usize) -> Vec<(String, Value)> {
        let start = Instant::now();
        while self.received().len() < count {
            assert!(start.elapsed() < Duration::from_mins(1), "{:?}", self.received());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.received()
    }
}

fn request(stream: &mut std::net::TcpStream) -> (String, Value) {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let whole = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = whole.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0usize) {
                return (
                    head.lines().next().unwrap_or_default().to_owned(),
                    serde_json::from_str(body).unwrap_or_default(),
                );
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return (String::new(), Value::Null),
            Ok(read) => text.extend(&buffer[..read]),
        }
    }
}

/// Returns a project whose only node fails while `fail` exists, and is held while `twice` is in its rows.
fn project() -> Mill {
    let mill = Mill::new();
    std::fs::create_dir(mill.path("pipelines")).expect("a folder");
    mill.write("rows.jsonl", "{\"id\": \"a\"}\n");
    mill.write(
        "pipelines/nightly.yaml",
        &format!(
            "name: nightly\nschedule:\n  {}\n  notify:\n  - webhook: '${{secret:HOOK_URL}}'\n  - \
             program: [sh, -c, 'cat >> notes.jsonl']\n    on: [recovery]\nnodes:\n  rows:\n    op: read\n    with: {{path: \
             rows.jsonl, as: table}}\n    checks:\n    - not_null: [id]\n    - {{unique: [id], on_failure: hold}}\n  file: {{op: \
             write, from: rows, with: {{path: out/rows.jsonl}}}}\n",
            far_away()
        ),
    );
    mill
}

fn trigger(mill: &Mill, runs: usize) {
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    wait(mill, "the run has ended and its note is delivered", |state| {
        state.ended.len() == runs && state.notes.is_empty()
    });
}

#[test]
fn failures_held_outputs_and_recoveries_are_told_and_healthz_says_what_fails() {
    // The environment of the daemon has the secret; the test's own does not matter.
    let hook = Hook::start(1);
    let (mill, url) = (project(), format!("http://{}/hooks/sesame-street", hook.address));
    let _daemon = Daemon::start_with(&mill, &[("HOOK_URL", &url)]);
    let address = wait(&mill, "the daemon is there", |state| state.daemon.is_some()).daemon.expect("it").address;
    trigger(&mill, 1);
    assert!(hook.received().is_empty(), "a success is no news");
    assert_eq!(get(&address, "/healthz/schedules").0, "200");

    put(&mill, "rows.jsonl", "{\"id\": null, \"n\": 1}\n");
    trigger(&mill, 2);
    let told = hook.wait(2);
    assert_eq!(told[0].0, "POST /hooks/sesame-street HTTP/1.1");
    assert_eq!(told[0], told[1], "the first attempt failed");
    let note = &told[1].1;
    assert_eq!((&note["occasion"], &note["outcome"], &note["exit"]), (&json!("failure"), &json!("failed"), &json!(1)));
    assert!(note["message"].as_str().is_some_and(|text| text.contains("not_null: id")), "{note}");
    let (code, health) = get(&address, "/healthz");
    assert_eq!((code.as_str(), &health["status"]), ("200", &json!("failing")), "the daemon itself works");
    assert_eq!(health["failing"][0]["schedule"], "nightly");
    assert_eq!(get(&address, "/healthz/schedules").0, "503");

    put(&mill, "rows.jsonl", "{\"id\": \"a\"}\n{\"id\": \"a\"}\n");
    trigger(&mill, 3);
    let note = hook.wait(3)[2].1.clone();
    assert_eq!((&note["occasion"], &note["exit"]), (&json!("held"), &json!(3)), "{note}");
    assert!(note["message"].as_str().is_some_and(|text| text.contains("rows: a check failed: unique: id")), "{note}");
    assert_eq!(get(&address, "/healthz").1["failing"][0]["runs"], 2);

    put(&mill, "rows.jsonl", "{\"id\": \"a\"}\n{\"id\": \"b\"}\n");
    trigger(&mill, 4);
    let note = hook.wait(4)[3].1.clone();
    assert_eq!(note["occasion"], "recovery");
    assert_eq!(mill.read("notes.jsonl").lines().count(), 1);
    assert_eq!(
        (get(&address, "/healthz").1["status"].clone(), get(&address, "/healthz/schedules").0.as_str()),
        (json!("ok"), "200")
    );
    for entry in walk(&mill.path(".")) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        assert!(!text.contains("sesame-street"), "{} has the secret", entry.display());
    }
}

#[test]
fn a_note_that_a_killed_daemon_did_not_deliver_is_delivered_by_the_next_one() {
    let hook = Hook::start(0);
    let (mill, url) = (project(), format!("http://{}/hooks/sesame-street", hook.address));
    put(&mill, "rows.jsonl", "{\"id\": null, \"n\": 1}\n");
    // Without the secret, no attempt succeeds: the daemon keeps trying for some seconds.
    let daemon = Daemon::start(&mill);
    wait(&mill, "the daemon is there", |state| state.daemon.is_some());
    mill.call(&["schedule", "trigger", "nightly"]).exit(0);
    wait(&mill, "the run has ended", |state| state.ended.len() == 1 && state.notes.len() == 1);
    daemon.kill();
    let _daemon = Daemon::start_with(&mill, &[("HOOK_URL", &url)]);
    let told = hook.wait(1);
    assert_eq!(told[0].1["occasion"], "failure");
    wait(&mill, "the note is delivered", |state| state.notes.is_empty());
    assert!(events(&mill, "problem").iter().all(|problem| !problem.to_string().contains("sesame")));
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for path in crate::harness::project::files_in(folder) {
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

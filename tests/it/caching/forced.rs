//! Tests of `--force`: new answers replace old ones, and an interrupted forced run resumes.

use std::time::{Duration, Instant};

use crate::harness::endpoint::Bench;
use crate::harness::project::Told;
use searchmill_fixtures::openai_server::{Step, answer, status, status_retry_after};

/// Returns questions `q0`, `q1`, … with one answer each.
fn script(count: usize, step: impl Fn(usize) -> Step) -> Vec<(String, Vec<Step>)> {
    (0..count).map(|number| (format!("q{number}"), vec![step(number)])).collect()
}

/// Counts the rows with that answer.
fn say(bench: &Bench, text: &str) -> usize {
    let shown = bench.call(&["show", "answers", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    shown.lines().filter(|line| line.contains(&format!("<answer>{text}</answer>"))).count()
}

fn ask(bench: &Bench, count: usize) {
    let names: Vec<String> = (0..count).map(|number| format!("q{number}")).collect();
    bench.ask(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn what_was_bought_by_force_stands_in_later_runs() {
    let mut bench = Bench::new(&script(10, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    bench.serve(&script(11, |_| answer("Paris")));
    bench.run(&["--force=answers"]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (10, 10));
    ask(&bench, 11);
    bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (11, 11));
    // Rows of another key, rebuilt from answers.
    bench.replace("samples: 1", "samples: 1\n      max_turns: 7");
    bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (11, 11));
    // An archive of the memo contains the newer rows.
    let archive = bench.mill.path("memo.tar.zst");
    let (archive, copy) = (archive.display().to_string(), bench.elsewhere());
    bench.call(&["export", "--memo", &archive]).exit(0);
    copy.call(&["import", &archive]).exit(0);
    ask(&copy, 11);
    copy.run(&[]).exit(0);
    assert_eq!((copy.server.count(), say(&copy, "Paris")), (0, 11));
}

#[test]
fn a_row_that_failed_by_force_is_not_filled_with_an_old_answer() {
    let mut bench = Bench::new(&script(10, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    bench.serve(&script(10, |number| if number == 3 { status(400) } else { answer("Paris") }));
    bench.run(&["--force=answers"]).exit(3);
    assert_eq!(say(&bench, "Paris"), 9);
    bench.serve(&script(10, |_| answer("Oslo")));
    bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris"), say(&bench, "Oslo")), (1, 9, 1));
}

#[test]
fn a_forced_run_that_was_cut_off_goes_on() {
    let bench = Bench::new(&script(20, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    let before = bench.server.count();
    let forced = ["--force=answers", "--budget", "calls=8"];
    bench.run(&forced).exit(4);
    let told = bench.call(&["run", "pipeline.yaml", "-n", "--force=answers"]).exit(0).stdout;
    assert!(
        told.lines().any(|line| line.starts_with("answers") && line.contains(" 8 ") && line.contains("12")),
        "{told}"
    );
    bench.run(&forced).exit(4);
    bench.run(&forced).exit(0);
    assert_eq!(bench.server.count() - before, 20);
    // The next forced run starts over.
    bench.run(&["--force=answers"]).exit(0);
    assert_eq!(bench.server.count() - before, 40);
}

#[test]
fn a_plain_run_goes_on_with_a_forced_run_that_was_cut_off() {
    let mut bench = Bench::new(&script(20, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    bench.serve(&script(20, |_| answer("Paris")));
    bench.run(&["--force=answers", "--budget", "calls=8"]).exit(4);
    assert_eq!(bench.server.count(), 8);
    let planned = bench.call(&["plan", "pipeline.yaml", "--json"]).exit(0).events();
    let node = planned.iter().find(|node| node["node"] == "answers").expect("the node");
    assert_eq!((&node["status"], &node["detail"]), (&"run".into(), &"a forced run was cut off".into()));
    assert_eq!((&node["rows"]["known"], &node["rows"]["to_compute"]), (&8.into(), &12.into()));
    let why = bench.call(&["why", "answers", "--file", "pipeline.yaml"]).exit(0).stdout;
    assert!(why.contains("a forced run was cut off"), "{why}");
    let states = bench.call(&["status", "pipeline.yaml", "--json"]).exit(0).events();
    assert!(states.iter().any(|node| node["node"] == "answers" && node["status"] == "run"), "{states:?}");
    // If the node is not selected to run, its recorded result counts.
    let told = bench.run(&["--only", "scores"]).exit(0);
    assert!(told.cached().contains("answers") && bench.server.count() == 8, "{}", told.stdout);
    let told = bench.run(&[]).exit(0);
    assert_eq!(told.reasons("answers"), ["force_unfinished"]);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (20, 20));
    assert_eq!((bench.run(&[]).exit(0).ran().as_str(), bench.server.count()), ("", 20));
    // The forced run is complete, so the next one starts over.
    bench.run(&["--force=answers"]).exit(0);
    assert_eq!(bench.server.count(), 40);
}

#[test]
fn a_forced_run_that_was_killed_goes_on_in_a_plain_one() {
    let wait = |_| Step::After(Duration::from_millis(300), Box::new(answer("Paris")));
    let mut bench = Bench::new(&script(24, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    bench.serve(&script(24, wait));
    let mut child = bench.command(&["--force=answers"]).spawn().expect("a child");
    while bench.server.count() < 16 {
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("a running child");
    child.wait().expect("a child");
    let told = bench.run(&[]).exit(0);
    assert_eq!((told.reasons("answers"), say(&bench, "Paris")), (vec!["force_unfinished".to_owned()], 24));
    let again = bench.server.count() - 24;
    assert!(again <= 8, "only calls in flight are paid again: {again}");
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
}

#[test]
fn a_plain_run_that_completes_a_forced_one_ends_it() {
    let mut bench = Bench::new(&script(20, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    let before = bench.mill.read("questions.jsonl");
    bench.serve(&script(20, |_| answer("Paris")));
    bench.run(&["--force=answers", "--budget", "calls=8"]).exit(4);
    bench.relabel(&serde_json::json!({"golden_answers": ["Paris"]}));
    bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (20, 20));
    // With the previous labels, too, only forced answers count.
    let labels = bench.mill.read("questions.jsonl");
    bench.mill.write("questions.jsonl", &before);
    bench.run(&[]).exit(0);
    assert_eq!((bench.server.count(), say(&bench, "Paris")), (20, 20));
    bench.mill.write("questions.jsonl", &labels);
    let told = bench.run(&["--force=answers"]).exit(0);
    assert!(!told.stdout.contains("was cut off"), "{}", told.stdout);
    assert_eq!(bench.server.count(), 40, "the next forced run starts over");
}

#[test]
fn a_forced_run_that_was_cut_off_leaves_the_results_of_other_inputs_alone() {
    let bench = Bench::new(&script(20, |_| answer("Rome")));
    bench.run(&[]).exit(0);
    ask(&bench, 10);
    bench.run(&[]).exit(0);
    bench.run(&["--force=answers", "--budget", "calls=4"]).exit(4);
    assert_eq!(bench.server.count(), 24);
    ask(&bench, 20);
    let told = bench.run(&[]).exit(0);
    assert!(told.cached().contains("answers") && bench.server.count() == 24, "{}", told.stdout);
    ask(&bench, 10);
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 30);
}

#[test]
fn forced_nodes_that_send_the_same_share_the_answers() {
    let bench = Bench::new(&script(12, |_| answer("Rome")));
    bench.twice();
    bench.replace("\n      tool_name: look", "\n      max_turns: 7");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 12);
    bench.run(&["--force=answers", "--force=others"]).exit(0);
    assert_eq!(bench.server.count(), 24);
}

#[test]
fn an_endpoint_that_refuses_every_call_is_given_up_early() {
    for code in [401, 404] {
        let bench = Bench::new(&script(60, |_| status(code)));
        let told = bench.run(&[]).exit(5);
        assert_eq!(bench.server.count(), 1);
        let failed = told.events().into_iter().find(|event| event["event"] == "node_failed").expect("it failed");
        let message = failed["message"].as_str().expect("a message");
        assert!(message.contains("refused the first call") && message.contains(&code.to_string()), "{message}");
    }
}

#[test]
fn a_node_that_is_refused_closes_the_endpoint_for_no_other_node() {
    let mut script = script(30, |_| status(401));
    let slow = || Step::After(Duration::from_millis(100), Box::new(answer("Rome")));
    script.extend((0..40).map(|number| (format!("other {number}"), vec![slow()])));
    let bench = Bench::new(&script);
    let questions = bench.mill.read("questions.jsonl");
    let (others, refused): (Vec<&str>, Vec<&str>) = questions.lines().partition(|line| line.contains("other"));
    bench.mill.write("questions.jsonl", &refused.join("\n"));
    bench.mill.write("more.jsonl", &others.join("\n"));
    bench.twice();
    bench.replace("  others:", "  more: {op: read, with: {path: more.jsonl, as: question}}\n  others:");
    let pipeline = bench.mill.read("pipeline.yaml");
    let (before, after) = pipeline.split_once("  others:").expect("the node");
    let after = after.replacen("questions: questions", "questions: more", 1);
    bench.mill.write("pipeline.yaml", &format!("{before}  others:{after}"));
    let told = bench.run(&["--keep-going"]).exit(5);
    assert!(told.nodes("node_finished").contains("others"), "{}", told.stdout);
    assert!(told.stdout.contains("refused the first call"), "{}", told.stdout);
}

#[test]
fn a_pause_that_the_endpoint_asks_for_ends_with_ctrl_c() {
    let bench = Bench::new(&script(4, |_| status_retry_after(429, "3600")));
    let child = bench.command(&[]).spawn().expect("a child");
    while bench.server.count() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let start = Instant::now();
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill").success());
    Told::new(child.wait_with_output().expect("a child")).exit(130);
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

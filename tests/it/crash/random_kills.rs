//! Tests of rollouts of several turns, killed repeatedly at random moments. Only turns in flight are paid twice, and
//! the result equals that of an undisturbed run.
//!
//! `CHAOS_ROLLOUTS` and `CHAOS_KILLS` set the size (full size: 2000 and 200).

use std::collections::BTreeMap;
use std::process::Child;
use std::time::{Duration, Instant};

use searchmill_fixtures::openai_server::{Step, answer, search, status};

use crate::harness::endpoint::Bench;

/// Rows in flight.
const CONCURRENCY: usize = 8;
/// Turns of each rollout.
const TURNS: usize = 3;
/// Time the server takes for a turn.
const THINK: Duration = Duration::from_millis(4);

fn size(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Returns questions that take three turns each.
fn script(rollouts: usize) -> Vec<(String, Vec<Step>)> {
    let after = |step: Step| Step::After(THINK, Box::new(step));
    let steps = |number: usize| {
        let query = format!("capital of Italy {number}");
        vec![after(search(&[&query])), after(search(&["Rome", "Italy"])), after(answer("Rome"))]
    };
    (0..rollouts).map(|number| (format!("q{number}"), steps(number))).collect()
}

fn bench(rollouts: usize) -> Bench {
    let bench = Bench::by_turn(&script(rollouts));
    bench.replace("timeout_seconds: 2", "timeout_seconds: 60");
    bench
}

/// SplitMix64 (Steele, Lea, Flood 2014): every run of the test uses the same moments.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (searchmill_engine::operator::spread(self.0) % bound.max(1) as u64) as usize
    }
}

/// Waits until the server has received that many requests or the child has exited.
fn wait_for(bench: &Bench, child: &mut Child, requests: usize) {
    let start = Instant::now();
    while bench.server.count() < requests && child.try_wait().expect("a child").is_none() {
        assert!(start.elapsed() < Duration::from_mins(1), "the run did not reach {requests} requests");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a run and kills it: some immediately, most after some turns. Returns the number of turns in flight if it was
/// alive.
fn life(bench: &Bench, chance: &mut Chance, mean: usize) -> Option<usize> {
    let before = bench.server.count();
    let mut child = bench.command(&["--quiet"]).spawn().expect("a child");
    if chance.below(8) > 0 {
        wait_for(bench, &mut child, before + chance.below(2 * mean));
        std::thread::sleep(Duration::from_micros(chance.below(8000) as u64));
    } else {
        std::thread::sleep(Duration::from_millis(chance.below(150) as u64));
    }
    let alive = child.try_wait().expect("a child").is_none();
    let (open, _) = bench.server.open();
    // Killing fails if the child has already exited.
    drop(child.kill());
    child.wait_with_output().expect("a child");
    alive.then_some(open)
}

#[test]
fn rollouts_killed_at_random_moments_come_out_the_same_and_are_paid_once() {
    let (rollouts, kills) = (size("CHAOS_ROLLOUTS", 300), size("CHAOS_KILLS", 30));
    let needed = rollouts * TURNS;
    let undisturbed = bench(rollouts);
    undisturbed.run(&[]).exit(0);
    assert_eq!(undisturbed.server.count(), needed);
    let bench = bench(rollouts);
    let mut chance = Chance(20_261_120);
    let start = Instant::now();
    let lives: Vec<Option<usize>> = (0..kills).map(|_| life(&bench, &mut chance, (9 * needed / kills) / 10)).collect();
    let killed = lives.iter().flatten().count();
    let open: usize = lives.iter().flatten().sum();
    let told = bench.run(&[]).exit(0);
    let paid = bench.server.count();
    crate::say(&format!(
        "chaos: {rollouts} rollouts, {killed} of {kills} runs killed in {:.0} s; turns needed {needed}, calls paid {paid}, \
         in flight at the kills {open} at the server and at most {}",
        start.elapsed().as_secs_f64(),
        killed * CONCURRENCY
    ));
    assert_eq!(told.stderr, "", "the last run prints nothing");
    assert!(killed * 10 >= kills * 8, "only {killed} of {kills} runs were killed");
    assert_eq!(bench.mill.artifacts(), undisturbed.mill.artifacts());
    assert_same_files(&bench, &undisturbed);
    assert!(paid <= needed + killed * CONCURRENCY, "{paid} paid calls for {needed} turns and {killed} kills");
    let segments = crate::harness::project::files_in(&memo_folder(&bench));
    assert!(segments.len() <= 40, "{} files are left in the memo", segments.len());
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    assert_eq!(bench.server.count(), paid);
}

/// Compares the trajectories and scores of both, byte by byte.
fn assert_same_files(one: &Bench, other: &Bench) {
    for (node, port) in [("answers", "trajectories"), ("scores", "scores")] {
        let read = |bench: &Bench| -> BTreeMap<String, Vec<u8>> {
            let files = crate::harness::project::files_in(&bench.mill.artifact_folder(node, port)).into_iter();
            let name = |path: &std::path::Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.map(|path| (name(&path), std::fs::read(&path).expect("a part"))).collect()
        };
        assert!(!read(one).is_empty() && read(one) == read(other), "{node}.{port}");
    }
}

/// Returns the memo folder of the rollouts.
fn memo_folder(bench: &Bench) -> std::path::PathBuf {
    let key = bench.mill.last_nodes().iter().find(|node| node.node == "answers").and_then(|node| node.key);
    let result = bench.mill.store().result(&key.expect("a key")).expect("a result");
    bench.mill.store().memo_folder(&result.memo.expect("a memo"))
}

#[test]
fn a_killed_rollout_goes_on_at_its_last_turn() {
    let late = |step: Step| Step::After(Duration::from_secs(30), Box::new(step));
    let first = [("Q".to_owned(), vec![search(&["Italy"]), search(&["Rome"]), late(answer("Rome"))])];
    let mut bench = Bench::by_turn(&first);
    bench.replace("timeout_seconds: 2", "timeout_seconds: 60");
    let mut child = bench.command(&[]).spawn().expect("a child");
    wait_for(&bench, &mut child, 3);
    child.kill().expect("a running child");
    child.wait_with_output().expect("a child");
    bench.serve_by_turn(&[("Q".to_owned(), vec![status(400), status(400), answer("Rome")])]);
    let told = bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 1, "only the turn in flight is paid again");
    let summary = told.summary();
    let paid = (&summary["calls"], &summary["prompt_tokens"], &summary["completion_tokens"]);
    assert_eq!(paid, (&1.into(), &100.into(), &10.into()), "the killed run's calls are not counted again");
    let rows = bench.mill.call(&["show", "answers", "--json", "-n", "0"]).exit(0).events();
    assert_eq!((&rows[0]["turns"], &rows[0]["prompt_tokens"]), (&3.into(), &300.into()), "the row records its cost");
}

#[test]
fn a_failed_turn_is_paid_again_and_those_before_it_are_not() {
    let script = |last: Step| vec![("Q".to_owned(), vec![search(&["Italy"]), search(&["Rome"]), last])];
    let mut bench = Bench::by_turn(&script(status(400)));
    bench.run(&[]).exit(3);
    assert_eq!(bench.server.count(), 3);
    bench.serve_by_turn(&script(answer("Rome")));
    assert_eq!(bench.run(&[]).exit(0).summary()["calls"], 1);
    assert_eq!(bench.server.count(), 1);
}

#[test]
fn samples_of_a_row_do_not_share_their_turns() {
    let script = [("Q".to_owned(), vec![search(&["Italy"]), answer("Rome")])];
    let bench = Bench::by_turn(&script);
    bench.replace("samples: 1", "samples: 3");
    bench.run(&[]).exit(0);
    assert_eq!(bench.server.count(), 6, "the same question three times is asked three times");
    // Even with `--force`.
    bench.run(&["--force=answers"]).exit(0);
    assert_eq!(bench.server.count(), 12);
}

//! Tests of loops that end by their rows: early ends, the round that is handed on, more rounds, other conditions, mistakes.

use std::time::Duration;

use serde_json::Value;

use crate::harness::project::{Mill, Told, killed_after};

/// Each round adds 1; `f1` rises to 3 in the third round (`round=2`) and falls again, `kl` grows.
pub(crate) const CLIMB: &str = "\
name: climb
params: {rounds: 9, patience: 2, goal: 99, kl: 99}
nodes:
  world: {op: generate-world, with: {documents: 120, questions: 2}, seed: 1}
  start: {op: sql, from: {w: world.questions}, with: {query: \"select 0 * count(*) as x from w\"}}
  curve: {op: sql, from: {t: score}, with: {query: \"select round, x, f1 from t order by round\"}}
  last:  {op: sql, from: {t: climb.total}, with: {query: \"select x from t\"}}
repeat:
  climb:
    rounds: \"${params.rounds}\"
    carry: {total: start}
    nodes:
      add:   {op: sql, from: {t: total}, with: {query: \"select x + 1 as x from t\"}}
      score: {op: sql, from: {t: add}, with: {query: \"select x, 3 - abs(x - 3) as f1, x / 10.0 as kl from t\"}}
    next: {total: add}
    best: \"select max(f1) from score\"
    stop:
      when: \"select max(f1) >= ${params.goal} from score\"
      patience: \"${params.patience}\"
      watch: {kl: \"select max(kl) < ${params.kl} from score.rows\"}
";

pub(crate) fn climb() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", CLIMB);
    mill
}

fn rows(mill: &Mill, node: &str) -> Vec<Value> {
    mill.call(&["show", node, "--json"]).exit(0).events()
}

fn xs(mill: &Mill, node: &str) -> Vec<i64> {
    rows(mill, node).iter().map(|row| row["x"].as_i64().expect("a number")).collect()
}

fn ran(told: &Told) -> Vec<String> {
    told.nodes("node_finished").into_iter().collect()
}

fn end(told: &Told) -> Value {
    let ends: Vec<Value> = told.events().into_iter().filter(|event| event["event"] == "loop_ended").collect();
    assert_eq!(ends.len(), 1, "{}", told.stdout);
    ends[0].clone()
}

#[test]
fn a_loop_ends_when_its_rows_say_so_and_hands_on_the_best_round() {
    let mill = climb();
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let told = mill.run(&[]).exit(0);
    let found = end(&told);
    assert_eq!((found["repeats"].as_str(), found["round"].as_u64()), (Some("climb"), Some(4)), "{found}");
    assert_eq!(found["reason"], "`best` has not risen for 2 rounds (3 in round 2)");
    assert_eq!((found["left_out"].as_u64(), found["hands_on"].as_u64()), (Some(4), Some(2)));
    assert_eq!((xs(&mill, "curve"), xs(&mill, "last")), (vec![1, 2, 3, 4, 5], vec![3]));
    let summary = told.summary();
    assert_eq!((summary["ended"].as_u64(), summary["skipped"].as_u64()), (Some(12), Some(0)), "{summary}");
    assert!(ran(&told).iter().all(|node| !node.contains("round=5")), "{}", told.stdout);
    // Again: nothing runs, and the end is told.
    let again = mill.run(&[]).exit(0);
    assert_eq!((ran(&again), end(&again)), (Vec::new(), found));
}

#[test]
fn an_ended_loop_has_the_keys_of_one_with_that_number_of_rounds() {
    let mill = climb();
    mill.run(&[]).exit(0);
    assert!(ran(&mill.run(&["--set", "rounds=60"]).exit(0)).is_empty(), "more rounds after the end");
    let without = CLIMB.split("    best:").next().expect("the loop").to_owned();
    mill.write("pipeline.yaml", &without);
    let told = mill.run(&["--set", "rounds=5"]).exit(0);
    assert_eq!(ran(&told), ["last"], "{}", told.stdout);
    assert_eq!(xs(&mill, "last"), [5], "the last round, not the best one");
}

#[test]
fn another_condition_runs_what_it_needs() {
    let mill = climb();
    mill.run(&[]).exit(0);
    let told = mill.run(&["--set", "patience=3"]).exit(0);
    assert_eq!(end(&told)["round"], 5);
    let others: Vec<String> = ran(&told).into_iter().filter(|node| !node.starts_with("climb@")).collect();
    assert_eq!(others, ["add@round=5", "curve", "score@all", "score@round=5"], "{}", told.stdout);
    let told = mill.run(&["--set", "goal=2"]).exit(0);
    assert_eq!(
        (end(&told)["round"].as_u64(), end(&told)["reason"].as_str()),
        (Some(1), Some("`when` is true (max(f1) is 2)"))
    );
    assert!(ran(&told).iter().all(|node| !node.starts_with("add@")), "{}", told.stdout);
    assert_eq!((xs(&mill, "curve"), xs(&mill, "last")), (vec![1, 2], vec![2]));
    // A loop whose conditions never hold runs all its rounds.
    let told = mill.run(&["--set", "patience=99"]).exit(0);
    assert!(!told.stdout.contains("loop_ended") && told.summary()["ended"] == 0, "{}", told.stdout);
    assert_eq!((xs(&mill, "curve").len(), xs(&mill, "last")), (9, vec![3]));
}

#[test]
fn a_watch_ends_the_loop_and_the_round_before_is_handed_on() {
    let mill = climb();
    mill.write(
        "pipeline.yaml",
        &CLIMB
            .replace("    best: \"select max(f1) from score\"\n", "")
            .replace("      patience: \"${params.patience}\"\n", ""),
    );
    let told = mill.run(&["--set", "kl=0.45"]).exit(0);
    let found = end(&told);
    assert_eq!((found["round"].as_u64(), found["hands_on"].as_u64()), (Some(4), Some(3)), "{found}");
    assert_eq!(found["reason"], "`kl` does not hold (max(kl) is 0.5)");
    assert_eq!((xs(&mill, "curve").len(), xs(&mill, "last")), (5, vec![4]));
    let told = mill.run(&["--set", "kl=0.05"]).exit(1);
    assert!(
        told.stdout.contains("there is no round to hand on: after the first round, `kl` does not hold"),
        "{}",
        told.stdout
    );
}

#[test]
fn the_best_of_all_rounds_is_handed_on_without_a_stop() {
    let mill = climb();
    mill.write("pipeline.yaml", CLIMB.split("    stop:").next().expect("the loop"));
    let told = mill.run(&[]).exit(0);
    assert!(!told.stdout.contains("loop_ended"), "{}", told.stdout);
    assert_eq!((xs(&mill, "curve").len(), xs(&mill, "last")), (9, vec![3]));
    let told = mill.run(&["--set", "rounds=2"]).exit(0);
    assert_eq!(
        (ran(&told), xs(&mill, "last")),
        (vec!["curve".to_owned(), "last".to_owned(), "score@all".to_owned()], vec![2])
    );
}

/// Two loops, which rise to 2 and to 4.
pub(crate) fn variants() -> String {
    CLIMB
        .replace("    carry:", "    matrix: {peak: [2, 4]}\n    carry:")
        .replace("3 - abs(x - 3)", "${matrix.peak} - abs(x - ${matrix.peak})")
        .replace("select round, x, f1 from t order by round", "select peak, round, x from t order by peak, round")
        .replace("select x from t\"", "select x, peak, round from t order by peak\"")
}

#[test]
fn each_variant_of_a_loop_ends_for_itself() {
    let mill = climb();
    mill.write("pipeline.yaml", &variants());
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let told = mill.run(&[]).exit(0);
    let ends: Vec<_> = told.events().into_iter().filter(|event| event["event"] == "loop_ended").collect();
    let mut ends: Vec<_> = ends.iter().map(|end| (end["repeats"].as_str(), end["round"].as_u64())).collect();
    ends.sort_unstable();
    assert_eq!(ends, [(Some("climb@peak=2"), Some(3)), (Some("climb@peak=4"), Some(5))]);
    assert_eq!(xs(&mill, "curve"), [1, 2, 3, 4, 1, 2, 3, 4, 5, 6]);
    let last = rows(&mill, "last");
    let of = |row: &Value, name: &str| row[name].as_i64().expect("a number");
    let found: Vec<_> = last.iter().map(|row| (of(row, "peak"), of(row, "round"), of(row, "x"))).collect();
    assert_eq!(found, [(2, 1, 2), (4, 3, 4)], "{last:?}");
    let again = mill.run(&["--set", "rounds=20"]).exit(0);
    assert!(ran(&again).is_empty(), "{}", again.stdout);
}

#[test]
fn plan_status_graph_why_and_show_tell_the_end() {
    let mill = climb();
    let nodes = |told: &Told| {
        told.events()
            .into_iter()
            .map(|node| {
                (
                    node["node"].as_str().unwrap_or_default().to_owned(),
                    node["status"].as_str().unwrap_or_default().to_owned(),
                )
            })
            .collect::<Vec<_>>()
    };
    let status = |told: &Told, id: &str| nodes(told).into_iter().find(|(node, _)| node == id).map(|(_, status)| status);
    let before = mill.call(&["plan", "pipeline.yaml", "--json"]).exit(0);
    assert_eq!(status(&before, "world").as_deref(), Some("run"));
    assert_eq!(status(&before, "score@all").as_deref(), Some("decided later"));
    assert_eq!(status(&before, "last").as_deref(), Some("decided later"));
    assert!(mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout.contains("the loop `climb` runs up to 9 rounds"));
    mill.run(&[]).exit(0);
    let after = mill.call(&["plan", "pipeline.yaml", "--json", "--detailed-exitcode"]).exit(0);
    assert_eq!(status(&after, "add@round=4").as_deref(), Some("cached"));
    assert_eq!(
        (status(&after, "add@round=5").as_deref(), status(&after, "climb@round=8").as_deref()),
        (Some("ended"), Some("ended"))
    );
    assert!(nodes(&after).iter().all(|(_, status)| status == "cached" || status == "ended"), "{}", after.stdout);
    let said =
        "the loop `climb` ended after round 4: `best` has not risen for 2 rounds (3 in round 2); 4 rounds do not run";
    for command in ["plan", "status"] {
        let told = mill.call(&[command, "pipeline.yaml"]).exit(0).stdout;
        assert!(told.contains(said) && !told.contains("round=5"), "{told}");
    }
    let graph = mill.call(&["graph", "pipeline.yaml"]).exit(0).stdout;
    assert!(graph.contains("add ×5") && graph.contains("n2 -->|rows| n5") && !graph.contains("round=5"), "{graph}");
    let graph = mill.call(&["graph", "pipeline.yaml", "--all"]).exit(0).stdout;
    assert!(graph.contains("add@round=4") && !graph.contains("round=5"), "{graph}");
    assert!(
        mill.why("add@round=6").contains("ended, the loop `climb` ended after round 4"),
        "{}",
        mill.why("add@round=6")
    );
    assert!(mill.why("score@all").contains("cached, nothing changed"), "{}", mill.why("score@all"));
    let told = mill.call(&["show", "add@round=6"]).exit(2).stderr;
    assert!(told.contains("its loop had ended") && told.contains("after round 4"), "{told}");
    let decision = rows(&mill, "climb@round=4");
    assert_eq!((decision.len(), decision[4]["hands_on"].as_i64(), decision[3]["ended"].is_null()), (5, Some(2), true));
    mill.call(&["audit", "last", "--replay"]).exit(0);
    let run = mill.store().newest_runs()[0].clone();
    mill.call(&["audit", &run]).exit(0);
    let trace = mill.call(&["trace", "last"]).exit(0).stdout;
    assert!(trace.contains("add@round=2") && !trace.contains("add@round=3"), "{trace}");
}

#[test]
fn what_needs_a_round_after_the_end_does_not_run() {
    let mill = climb();
    let more = "  late: {op: sql, from: {t: add@round=7}, with: {query: \"select x from t\"}}\n  later: {op: sql, from: {t: late}, with: {query: \"select x from t\"}}\nrepeat:";
    mill.write("pipeline.yaml", &CLIMB.replace("repeat:", more));
    let told = mill.run(&[]).exit(0);
    let ended = told.nodes("node_ended");
    assert!(ended.contains("late") && ended.contains("later") && ended.contains("add@round=7"), "{ended:?}");
    let event = |id: &str| {
        let events = told.events().into_iter();
        events.filter(|event| event["event"] == "node_ended").find(|event| event["node"] == id).expect("an event")
    };
    let why = "it needs `add@round=7`, and the loop `climb` ended after round 4: `best` has not risen for 2 rounds";
    assert_eq!(
        (event("late")["needs"].as_str(), event("later")["needs"].as_str()),
        (Some("add@round=7"), Some("late"))
    );
    assert!(event("late")["reason"].as_str().expect("a reason").starts_with(why), "{}", event("late"));
    assert!(event("add@round=7")["needs"].is_null(), "{}", event("add@round=7"));
    let text = mill.call(&["run", "pipeline.yaml"]).exit(0).stderr;
    assert!(text.contains("late") && text.contains(why) && text.contains("it needs `late`, and"), "{text}");
    for command in ["plan", "status"] {
        let text = mill.call(&[command, "pipeline.yaml"]).exit(0).stdout;
        assert!(text.lines().any(|line| line.starts_with("late ") && line.contains("ended")), "{text}");
        assert!(!text.contains("round=7  "), "{text}");
    }
    let plan = mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(plan.contains("it needs `add@round=7`"), "{plan}");
    let plan = mill.call(&["plan", "pipeline.yaml", "--json"]).exit(0).events();
    let late = plan.iter().find(|node| node["node"] == "late").expect("the node");
    assert!(late["status"] == "ended" && late["detail"].as_str().is_some_and(|text| text.starts_with(why)), "{late}");
    assert!(mill.call(&["show", "late"]).exit(2).stderr.contains("it needs `add@round=7`"));
    assert!(mill.run(&["later"]).exit(0).nodes("node_ended").contains("later"));
    // The loop is long enough: they run.
    mill.run(&["--set", "patience=99"]).exit(0);
    assert_eq!(xs(&mill, "later"), [8]);
}

#[test]
fn a_loop_starts_from_the_best_round_of_another_one() {
    let mill = climb();
    let more = "  on:\n    rounds: 2\n    carry: {from: climb.total}\n    nodes: {twice: {op: sql, from: {t: from}, with: {query: \"select x * 2 as x from t\"}}}\n    next: {from: twice}\n";
    mill.write("pipeline.yaml", &format!("{CLIMB}{more}"));
    mill.run(&[]).exit(0);
    assert_eq!(xs(&mill, "twice@round=1"), [12]);
    assert!(ran(&mill.run(&["--set", "rounds=12"]).exit(0)).is_empty());
}

#[test]
fn mistakes_in_conditions_are_told_at_their_place() {
    for (from, to, place, words) in [
        ("max(f1) from score", "max(f2) from score", "16:23", "there is no column `f2`"),
        ("max(f1) from score", "max(f1) from scores", "16:32", "there is no node `scores` in the loop `climb`"),
        ("max(f1) from score", "max(f1) from start", "16:32", "there is no node `start` in the loop `climb`"),
        ("select max(f1) from score", "selec max(f1) from score", "16:12", "not SQL"),
        ("select max(f1) from score", "select 'x' from score", "16:11", "a number is needed, and the query gives Utf8"),
        ("select max(f1) from score", "select random() from score", "16:19", "gives another value each time"),
        (">= ${params.goal}", "", "18:13", "true or false is needed"),
        ("from score.rows", "from score.steps", "20:19", "has no output `steps`"),
        ("max(kl) <", "max(kl) + 1 + 0 *", "20:19", "true or false is needed"),
        ("    best: \"select max(f1) from score\"\n", "", "2:31", "there is no `best`"),
        ("\"${params.patience}\"", "0", "19:17", "`patience` is 0"),
        ("\"${params.patience}\"", "soon", "19:17", "patience"),
        ("      when:", "      whenn:", "18:7", "did you mean `when`?"),
        ("    stop:\n", "    stop: {}\n    stopp:\n", "17:11", "has no condition"),
        (
            "      score: {",
            "      climb: {op: sql, from: {t: add}, with: {query: \"select 1\"}}\n      score: {",
            "9:3",
            "duplicate node `climb`",
        ),
    ] {
        let mill = climb();
        assert!(CLIMB.contains(from), "{from}");
        mill.write("pipeline.yaml", &CLIMB.replace(from, to));
        let text = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        let is_there = text.contains(words) && text.contains(&format!("pipeline.yaml:{place}"));
        assert!(is_there && text.matches("error[").count() <= 2, "{to}\n{text}");
    }
    for (query, words) in [
        ("select f1 from score where f1 > 99", "`best` gives 0 rows, and must give one"),
        ("select max(f1) from score where f1 > 99", "`best` gives NULL"),
        ("select 'nan'::double from score", "`best` gives NaN"),
    ] {
        let mill = climb();
        mill.write(
            "pipeline.yaml",
            &CLIMB.replace("select max(f1) from score\"\n    stop", &format!("{query}\"\n    stop")),
        );
        let told = mill.run(&[]).exit(1);
        assert!(told.stdout.contains(words) && told.nodes("node_failed").contains("climb@round=0"), "{}", told.stdout);
    }
}

#[test]
fn a_query_from_a_param_is_told_where_it_stands_and_where_it_is_used() {
    for (query, words) in [
        ("select max(f2) from score", "there is no column `f2`"),
        ("selec max(f1) from score", "not SQL"),
        ("select max(f1) from scores", "there is no node `scores`"),
    ] {
        let mill = climb();
        let text = CLIMB.replace("params: {", &format!("params: {{best: \"{query}\", "));
        mill.write("pipeline.yaml", &text.replace("best: \"select max(f1) from score\"", "best: \"${params.best}\""));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains("pipeline.yaml:2:") && told.contains(words), "{told}");
        assert!(told.contains("16 |     best: \"${params.best}\"") && told.contains("used here"), "{told}");
        assert_eq!(told.matches("error[").count(), 1, "{told}");
    }
}

#[test]
fn kill_9_at_any_moment_of_a_loop_that_ends_gives_the_same() {
    let slow = CLIMB.replace(
        "select x + 1 as x from t",
        "select x + 1 as x from t where (select count(*) from range(0, 3000000) r) > 0",
    );
    let mill = || {
        let mill = climb();
        mill.write("pipeline.yaml", &slow);
        mill
    };
    let digests = |mill: &Mill| {
        let told = mill.run(&[]).exit(0);
        assert_eq!(end(&told)["round"], 4);
        let mut nodes: Vec<_> = mill
            .last_nodes()
            .into_iter()
            .map(|node| (node.node, node.key, node.outcome == searchmill_engine::store::NodeOutcome::Ended))
            .collect();
        nodes.sort_by(|one, other| one.0.cmp(&other.0));
        nodes
    };
    let (calm, killed) = (mill(), mill());
    for wait in [150, 220, 300, 260, 340] {
        killed_after(&mut killed.command(&["run", "pipeline.yaml", "-q"]), Duration::from_millis(wait));
    }
    assert_eq!(digests(&killed), digests(&calm));
}

#[test]
fn the_model_of_the_best_round_is_handed_on() {
    let mill = Mill::new();
    let ends = "    best: \"select -1.0 * count(*) from rounds\"\n    stop: {patience: 2, watch: {gap: \"select max(logprob_gap) < 1 from step.steps\"}}\n";
    mill.write("pipeline.yaml", &format!("{}{ends}", super::repeat::LEARNT));
    crate::harness::models::write(&mill.path("models"));
    mill.call(&["validate", "pipeline.yaml", "--set", "rounds=5"]).exit(0);
    let told = mill.run(&["--set", "rounds=5"]).exit(0);
    let found = end(&told);
    assert_eq!((found["round"].as_u64(), found["hands_on"].as_u64()), (Some(2), Some(0)), "{found}");
    let nodes = mill.last_nodes();
    let of = |id: &str| nodes.iter().find(|node| node.node == id).unwrap_or_else(|| panic!("{id}"));
    let key = of("best").key.expect("a key");
    let preimage = mill.store().result(&key).expect("a result").preimage;
    let model = of("step@round=0").outputs["model"].id.to_string();
    assert!(preimage["inputs"].to_string().contains(&model), "{preimage}");
    assert!(ran(&mill.run(&["--set", "rounds=9"]).exit(0)).is_empty());
}

#[test]
fn hundreds_of_rounds_after_the_end_cost_nothing() {
    let mill = climb();
    mill.run(&["--set", "rounds=300"]).exit(0);
    let told = mill.run(&["--set", "rounds=300"]).exit(0);
    assert_eq!((ran(&told).len(), told.summary()["ended"].as_u64()), (0, Some(3 * 295)));
}

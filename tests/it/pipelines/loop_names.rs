//! Tests of names in loops: what a loop hands on on the command line, coordinates and ports, and advice for wrong names.

use serde_json::Value;

use super::checks::damage;
use super::loop_ends::{CLIMB, climb, variants};
use crate::harness::project::Mill;

/// Adds 1 in each of four rounds, and has a second output.
const SUM: &str = "\
name: sum
params: {rounds: 4}
nodes:
  world: {op: generate-world, with: {documents: 120, questions: 8}, seed: 1}
  start: {op: sql, from: {w: world.questions}, with: {query: \"select 0 * count(*) as x from w\"}}
  some:  {op: sql, from: {t: parts@round=1.few}, with: {query: \"select count(*) as x from t\"}}
repeat:
  sum:
    rounds: \"${params.rounds}\"
    carry: {total: start}
    nodes:
      add:   {op: sql, from: {t: total}, with: {query: \"select x + 1 as x from t\"}}
      parts: {op: split, from: world.questions, with: {parts: {few: 3, rest: rest}}, seed: \"${repeat.round}\"}
    next: {total: add}
";

fn sum() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", SUM);
    mill
}

fn x(mill: &Mill, what: &str) -> i64 {
    let rows: Vec<Value> = mill.call(&["show", what, "--json"]).exit(0).events();
    assert_eq!(rows.len(), 1, "{what}: {rows:?}");
    rows[0]["x"].as_i64().expect("a number")
}

#[test]
fn what_a_loop_hands_on_has_a_name_on_the_command_line() {
    let mill = sum();
    let told = mill.run(&["sum.total"]).exit(0);
    assert!(told.nodes("node_finished").contains("add@round=3"), "{}", told.stdout);
    assert!(!told.ran().contains("parts"), "only what it needs: {}", told.ran());
    assert_eq!(x(&mill, "sum.total"), 4);
    let path = |what: &str| mill.call(&["path", what]).exit(0).stdout;
    assert_eq!(path("sum.total"), path("add@round=3"));
    assert!(mill.call(&["show", "sum.total"]).exit(0).stderr.contains("`sum.total` is an output of `add@round=3`"));
    assert!(mill.call(&["why", "sum.total", "--file", "pipeline.yaml"]).exit(0).stdout.contains("add@round=3: cached"));
    let trace = mill.call(&["trace", "sum.total"]).exit(0).stdout;
    assert!(trace.contains("add@round=3") && trace.contains("start"), "{trace}");
    mill.call(&["audit", "sum.total", "--replay"]).exit(0);
    mill.call(&["pin", "sum.total", "--name", "total"]).exit(0);
    let plan = mill.call(&["plan", "pipeline.yaml", "sum.total"]).exit(0).stdout;
    assert!(plan.contains("0 to run"), "{plan}");
    // What is named to be forced is found as what is named to be run.
    let forced = |name: &str| mill.run(&["sum.total", &format!("--force={name}")]).exit(0).ran();
    assert_eq!((forced("sum.total").as_str(), forced("add").matches("add@").count()), ("add@round=3", 4));
    assert_eq!(forced("parts.few"), "", "`sum.total` does not need it");
    assert!(mill.run(&["--force=parts.fw"]).exit(2).stderr.contains("there is no node `parts.fw`"));
    assert!(mill.run(&["--force=ad"]).exit(2).stderr.contains("there is no node `ad`"));
    // Another number of rounds: the name is of another node, and the last run that has it counts.
    mill.run(&["--set", "rounds=2", "sum.total"]).exit(0);
    assert_eq!(x(&mill, "sum.total"), 2);
}

#[test]
fn the_choice_of_the_round_is_audited_with_what_is_handed_on() {
    let mill = climb();
    mill.run(&["climb.total"]).exit(0);
    let audit = |what: &str| mill.call(&["audit", what]);
    audit("climb.total").exit(0);
    let nodes = mill.last_nodes();
    let chose = nodes.iter().find(|node| !node.hands_on.is_empty()).expect("the node that chose").node.clone();
    damage(&mill, &chose, "rows");
    audit("add@round=2").exit(0);
    let told = audit("climb.total").exit(1);
    assert!(told.stdout.contains(chose.as_str()) || told.stderr.contains(chose.as_str()), "{told:?}");
}

#[test]
fn an_output_of_another_pipeline_is_told_as_such() {
    let mill = sum();
    mill.run(&["sum.total"]).exit(0);
    mill.write("pipeline.yaml", &SUM.replace("name: sum", "name: other"));
    mill.run(&["start"]).exit(0);
    let told = mill.call(&["path", "sum.total"]).exit(0);
    assert!(told.stderr.contains("`add@round=3` of run"), "{told:?}");
    assert!(told.stderr.contains("of `sum`: the last run has no output of it"), "{told:?}");
}

#[test]
fn rows_choose_the_round_that_the_name_stands_for() {
    let mill = climb();
    let before = mill.call(&["why", "climb.total", "--file", "pipeline.yaml"]).exit(0).stdout;
    assert!(before.contains("waits for climb@round=8"), "{before}");
    let told = mill.call(&["show", "climb.total"]).exit(2).stderr;
    assert!(!told.contains("matrix"), "{told}");
    mill.run(&["climb.total"]).exit(0);
    assert_eq!(x(&mill, "climb.total"), 3);
    let why = mill.call(&["why", "climb.total", "--file", "pipeline.yaml"]).exit(0);
    assert!(why.stdout.contains("add@round=2: cached"), "{why:?}");
    // Without `best`, the last round that ran.
    mill.write(
        "pipeline.yaml",
        &CLIMB
            .replace("    best: \"select max(f1) from score\"\n", "")
            .replace("      patience: \"${params.patience}\"\n", ""),
    );
    mill.run(&["--set", "goal=2", "climb.total"]).exit(0);
    assert_eq!(x(&mill, "climb.total"), 2);
}

#[test]
fn a_loop_that_did_not_end_hands_nothing_on() {
    let mill = climb();
    mill.write("pipeline.yaml", &CLIMB.replace("select x + 1 as x from t", "select x + 1 + 0 / (2 - x) as x from t"));
    mill.run(&[]).exit(1);
    let told = mill.call(&["show", "climb.total"]).exit(2).stderr;
    assert!(told.contains("its loop had not ended"), "{told}");
}

#[test]
fn each_loop_of_a_matrix_has_its_own_name() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &variants());
    mill.run(&["climb.total"]).exit(0);
    for (name, found) in [("climb.total@peak=2", 2), ("climb@peak=2.total", 2), ("climb.total@peak=4", 4)] {
        assert_eq!(x(&mill, name), found, "{name}");
    }
    for command in
        [["show", "climb.total"], ["path", "climb.total"], ["trace", "climb.total"], ["audit", "climb.total"]]
    {
        let told = mill.call(&command).exit(2).stderr;
        assert!(told.contains("name one of them: `climb.total@peak=2`, `climb.total@peak=4`"), "{command:?}: {told}");
    }
    let told = mill.call(&["why", "climb.total", "--file", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("name one of them: `climb.total@peak=2`, `climb.total@peak=4`"), "{told}");
    assert!(mill.call(&["run", "pipeline.yaml", "climb.total@peak=4", "--json"]).exit(0).ran().is_empty());
    // Both forms are known in the file, too.
    for form in ["climb.total@peak=4", "climb@peak=4.total"] {
        let one = format!("  one:   {{op: sql, from: {{t: {form}}}, with: {{query: \"select x from t\"}}}}\nrepeat:\n");
        mill.write("pipeline.yaml", &variants().replace("repeat:\n", &one));
        mill.run(&["one"]).exit(0);
        assert_eq!(x(&mill, "one"), 4, "{form}");
    }
}

#[test]
fn wrong_names_in_loops_are_answered_with_right_ones() {
    let mill = sum();
    mill.run(&[]).exit(0);
    for (what, words) in [
        ("add", "`add` is in a loop: name one of its rounds, for example `add@round=3` (there are 4)"),
        ("parts.few", "`parts` is in a loop: name one of its rounds, for example `parts@round=3`"),
        ("parts.few@round=3", "write `parts@round=3.few`"),
        ("sum", "`sum.total`"),
        ("sum.totl", "did you mean `sum.total`?"),
    ] {
        for command in ["show", "path", "trace"] {
            let told = mill.call(&[command, what]).exit(2).stderr;
            assert!(told.contains(words), "{command} {what}: {told}");
        }
        if what != "add" && what != "parts.few" {
            let told = mill.call(&["run", "pipeline.yaml", what]).exit(2).stderr;
            assert!(told.contains(words), "run {what}: {told}");
        }
        let told = mill.call(&["why", what, "--file", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(words), "why {what}: {told}");
    }
    // A round that did not run is no example.
    let mill = climb();
    mill.run(&[]).exit(0);
    let told = mill.call(&["show", "add"]).exit(2).stderr;
    assert!(told.contains("for example `add@round=4` (there are 5)"), "{told}");
}

#[test]
fn a_port_before_coordinates_is_answered_with_the_right_order() {
    let mill = sum();
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.write("pipeline.yaml", &SUM.replace("parts@round=1.few", "parts.few@round=1"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:6:30") && told.contains("write `parts@round=1.few`"), "{told}");
    assert_eq!(told.matches("error[").count(), 1, "{told}");
}

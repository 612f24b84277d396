//! Checks of results: what each rule finds, what a failed check stops, and that a cached result is checked again when its
//! checks change.

use serde_json::{Value, json};

use crate::harness::endpoint::Bench;
use crate::harness::project::{Mill, Told};

/// A table, what is made of it, and what is written; `CHECKS` stands at the first node.
const PIPELINE: &str = "\
name: checked
nodes:
  scores:
    op: read
    with: {path: scores.jsonl, as: table}
    checks: CHECKS
  good: {op: filter, from: scores, with: {where: \"f1 > 0.5\"}}
  file: {op: write, from: good, with: {path: out/good.jsonl}}
";

fn project(rows: &[Value], checks: &str) -> Mill {
    let mill = Mill::new();
    mill.write("scores.jsonl", &rows.iter().map(|row| format!("{row}\n")).collect::<String>());
    check(&mill, checks);
    mill
}

fn check(mill: &Mill, checks: &str) {
    mill.write("pipeline.yaml", &PIPELINE.replace("CHECKS", checks));
}

fn rows() -> Vec<Value> {
    vec![
        json!({"id": "a", "f1": 0.9, "text": "x"}),
        json!({"id": "b", "f1": 0.1, "text": null}),
        json!({"id": "b", "f1": 1.5, "text": "z"}),
    ]
}

/// Returns the outcomes of the checks of a node, in order.
fn outcomes(told: &Told, node: &str) -> Vec<(bool, String)> {
    let events = told.events();
    let event = events.iter().find(|event| event["event"] == "node_checked" && event["node"] == node);
    let checks = event.unwrap_or_else(|| panic!("no checks of {node}: {}", told.stdout))["checks"].clone();
    let one = |check: &Value| {
        (check["passed"].as_bool().expect("an outcome"), check["found"].as_str().unwrap_or_default().to_owned())
    };
    checks.as_array().expect("outcomes").iter().map(one).collect()
}

#[test]
fn every_rule_finds_what_breaks_it_and_says_which_row() {
    let broken = [
        ("rows: {min: 4}", "3 rows"),
        ("rows: {max: 2}", "3 rows"),
        ("unique: [id]", "1 row: id b, number of rows 2"),
        ("unique: id", "1 row: id b, number of rows 2"),
        ("not_null: [id, text]", "1 row: id b"),
        ("range: {column: f1, min: 0, max: 1}", "1 row: id b, f1 1.5"),
        ("range: {column: f1, min: 0.5}", "1 row: id b, f1 0.1"),
        ("sql: \"f1 <= 1\"", "1 row: id b, f1 1.5"),
        ("sql: \"text <> 'q'\"", "1 row: id b, text null"),
        ("sql: \"SELECT id, count(*) AS n FROM rows GROUP BY id HAVING count(*) > 1\"", "1 row: id b, n 2"),
    ];
    let list: String = broken.iter().map(|(rule, _)| format!("\n    - {{{rule}, on_failure: warn}}")).collect();
    let mill = project(&rows(), &list);
    let told = mill.run(&[]).exit(0);
    let wanted: Vec<(bool, String)> = broken.iter().map(|(_, found)| (false, (*found).to_owned())).collect();
    assert_eq!(outcomes(&told, "scores"), wanted);
    assert_eq!(told.summary()["checks_warned"], broken.len());
    let hold = "\n    - {rows: {min: 3, max: 3}}\n    - {rejects: {max: 0}}\n    - {unique: [id, f1]}\n    - \
                {not_null: f1}\n    - {range: {column: f1, max: 1.5}}\n    - {sql: \"text <> 'q' OR text IS NULL\"}\n    - \
                {sql: \"SELECT 1 FROM rows WHERE f1 > 2\"}";
    check(&mill, hold);
    let told = mill.run(&[]).exit(0);
    assert!(outcomes(&told, "scores").iter().all(|(passed, _)| *passed), "{}", told.stdout);
    assert_eq!(told.ran(), "", "checks are part of no key");
}

#[test]
fn a_failed_check_fails_the_node_again_and_again_and_nothing_is_computed_twice() {
    let mill = project(&rows(), "[{rows: {min: 100}}]");
    let told = mill.run(&[]).exit(1);
    assert_eq!((told.ran(), &told.summary()["failed"]), (String::new(), &json!(1)), "{}", told.stdout);
    let failed = told.events().into_iter().find(|event| event["event"] == "node_failed").expect("a failure");
    assert_eq!(failed["message"], "a check failed: rows: at least 100: 3 rows");
    assert!(!mill.path("out/good.jsonl").exists());
    let shown = mill.call(&["show", "scores", "--json", "-n", "0"]).exit(0);
    assert_eq!(shown.events().len(), 3, "the result is kept and can be looked at");
    let again = mill.run(&[]).exit(1);
    assert!(!again.events().iter().any(|event| event["event"] == "node_started"), "{}", again.stdout);
    let record = mill.last_nodes();
    let scores = record.iter().find(|node| node.node == "scores").expect("its record");
    assert!(!scores.checks[0].passed && scores.outputs.contains_key("rows"), "{scores:?}");
    check(&mill, "[{rows: {min: 3}}]");
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.ran(), "file good", "the changed check is evaluated on the cached result");
    assert_eq!(mill.call(&["audit", "latest"]).exit(0).code, 0);
}

#[test]
fn a_held_check_delivers_nothing_and_the_rest_goes_on() {
    let mill = project(&rows(), "[{unique: [id], on_failure: hold}]");
    let told = mill.run(&[]).exit(3);
    assert_eq!(told.ran(), "file good scores");
    assert!(!mill.path("out/good.jsonl").exists());
    let held = told.events().into_iter().find(|event| event["event"] == "held_back").expect("held back");
    assert_eq!(held["reason"], "a check of `scores` failed: unique: id: 1 row: id b, number of rows 2");
    assert_eq!((&told.summary()["checks_held"], &told.summary()["held_back"]), (&json!(1), &json!(1)));
    let shown = mill.call(&["run", "pipeline.yaml"]).exit(3);
    assert!(shown.stderr.contains("holds: unique: id: 1 row: id b"), "{}", shown.stderr);
    assert!(shown.stdout.contains("1 check holds"), "{}", shown.stdout);
    let audit = mill.call(&["audit", "latest", "--json"]);
    assert!(audit.stdout.contains("unique: id: 1 row: id b"), "{}", audit.stdout);
    mill.run(&["--deliver-anyway", "file"]).exit(3);
    assert!(mill.path("out/good.jsonl").exists());
}

#[test]
fn rejects_are_counted_against_the_rows_that_came_in() {
    let bench = Bench::new(&crate::harness::endpoint::patient(4, std::time::Duration::ZERO));
    bench.replace("      samples: 1\n", "      samples: 1\n    checks: [{rejects: {max: 0.25}}]\n");
    // One after the other: the first call is one that the server answers.
    bench.replace("{concurrency: 8}", "{concurrency: 1}");
    bench.ask(&["q0", "q1", "q2", "unknown"]);
    let told = bench.run(&[]);
    let (passed, found) = outcomes(&told, "answers").remove(0);
    assert!(passed && found == "1 of 4 rows (25 %)", "{found}: {}", told.stdout);
    let paid = bench.server.count();
    bench.replace("max: 0.25", "max: 0.2");
    let told = bench.run(&[]).exit(1);
    assert!(told.stdout.contains("rejects: at most 20 %: 1 of 4 rows (25 %)"), "{}", told.stdout);
    assert_eq!(bench.paid(&["q0", "q1", "q2"]), 3, "no answer is paid for twice ({paid} calls before)");
}

#[test]
fn a_check_that_cannot_be_evaluated_does_not_pass() {
    let mill = project(&rows(), "[{not_null: [nosuch]}, {range: {column: text, min: 0}}, {sql: \"f2 > 1\"}]");
    let told = mill.run(&[]).exit(1);
    let found = outcomes(&told, "scores");
    assert!(found.iter().all(|(passed, found)| !passed && found.starts_with("it cannot be evaluated")), "{found:?}");
    assert!(found[0].1.contains("there is no column `nosuch`"), "{found:?}");
    assert!(found[1].1.contains("needs a column of numbers"), "{found:?}");
    assert!(found[2].1.contains("`sql`: there is no column `f2` (did you mean `f1`? columns: "), "{found:?}");
}

#[test]
fn validate_checks_the_checks_against_the_known_columns() {
    let mill = Mill::new();
    mill.write("docs.jsonl", "{\"id\": \"d\", \"text\": \"x\"}\n");
    mill.write(
        "pipeline.yaml",
        "name: p\nnodes:\n  docs:\n    op: read\n    with: {path: docs.jsonl, as: document}\n  chunks:\n    op: chunk\n    \
         from: docs\n    with: {size: 4, count: words}\n    checks:\n    - not_null: [txt]\n    - sql: \"text > \"\n    - {rows: {min: 1}, \
         port: nosuch}\n  scored:\n    op: sql\n    from: {c: chunks}\n    with: {query: \"SELECT id, length(text) AS n FROM c\"}\n    \
         checks:\n    - unique: [idd]\n    - sql: n\n",
    );
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(
        told.stderr.contains("pipeline.yaml:13:") && told.stderr.contains("has no output `nosuch`"),
        "{}",
        told.stderr
    );
    assert!(told.stderr.contains("pipeline.yaml:12:") && told.stderr.contains("`sql`: not SQL: "), "{}", told.stderr);
    let text = mill.read("pipeline.yaml").replace("    - {rows: {min: 1}, port: nosuch}\n", "");
    let text =
        text.replace("text > ", "lenght(text) > 1").replace("sql: n\n", "sql: n\n    - sql: SELECT idd FROM rows\n");
    mill.write("pipeline.yaml", &text);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:18:") && told.contains("there is no column `idd`"), "{told}");
    assert!(told.contains("pipeline.yaml:19:") && told.contains("not true or false"), "{told}");
    assert!(told.contains("pipeline.yaml:12:13") && told.contains("there is no function `lenght`"), "{told}");
    assert!(told.contains("pipeline.yaml:20:19") && told.contains("did you mean `id`?"), "{told}");
    assert!(!told.contains("Schema error") && !told.contains("Error during planning"), "{told}");
}

/// Damages a table in the store, unnoticed: its file keeps its time.
pub(crate) fn damage(mill: &Mill, node: &str, port: &str) {
    let folder = mill.artifact_folder(node, port);
    let part = crate::harness::project::files_in(&folder)
        .into_iter()
        .find(|path| path.extension().is_some_and(|e| e == "parquet"));
    let part = part.expect("a part");
    let mut bytes = std::fs::read(&part).expect("the part");
    bytes[8] ^= 0xff;
    let before = std::fs::metadata(&part).expect("the part");
    let mut permissions = before.permissions();
    #[allow(clippy::permissions_set_readonly_false, reason = "a file of this test's own store")]
    permissions.set_readonly(false);
    std::fs::set_permissions(&part, permissions).expect("a file that can be written");
    std::fs::write(&part, bytes).expect("damage");
    let file = std::fs::File::options().append(true).open(&part);
    file.and_then(|file| file.set_modified(before.modified()?)).expect("its time");
}

#[test]
fn a_damaged_table_is_made_again_before_it_is_checked() {
    let mill = project(&rows(), "[{not_null: [id]}]");
    mill.run(&[]).exit(0);
    damage(&mill, "scores", "rows");
    check(&mill, "[{not_null: [id, f1]}]");
    let told = mill.run(&[]).exit(0);
    assert!(outcomes(&told, "scores")[0].0, "{}", told.stdout);
    let summary = told.summary();
    let counted = ["finished", "cached", "failed", "skipped"].map(|name| summary[name].as_u64());
    assert_eq!(counted, [1, 2, 0, 0].map(Some), "each node counts once: {}", told.stdout);
}

#[test]
fn a_damaged_table_that_cannot_be_made_again_fails_its_node_once() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\"}\n");
    let pipeline = "name: p\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: table}}\n  same:\n    op: exec\n    \
                    from: rows\n    with: {command: [sh, -c, 'if ls | grep -q ^brok; then exit 1; fi; tr a-c b-d'], as: table}\n    checks: CHECKS\n";
    mill.write("pipeline.yaml", &pipeline.replace("CHECKS", "[{rows: {min: 1}}]"));
    mill.run(&[]).exit(0);
    damage(&mill, "same", "rows");
    mill.write("broken", "");
    mill.write("pipeline.yaml", &pipeline.replace("CHECKS", "[{not_null: [id]}]"));
    let told = mill.run(&[]).exit(1);
    assert_eq!((&told.summary()["failed"], &told.summary()["machine_failure"]), (&json!(1), &json!(false)));
    let failures = told.events().into_iter().filter(|event| event["event"] == "node_failed").count();
    assert_eq!(failures, 1, "{}", told.stdout);
}

#[test]
fn a_damaged_table_is_made_again_for_all_that_read_it() {
    let mill = project(&rows(), "[]");
    let reader =
        |number: u32| format!("  n{number}: {{op: filter, from: scores, with: {{where: \"f1 > 0.0{number}\"}}}}\n");
    let pipeline = format!("{}{}", mill.read("pipeline.yaml"), (1..8).map(reader).collect::<String>());
    mill.run(&[]).exit(0);
    damage(&mill, "scores", "rows");
    mill.write("pipeline.yaml", &pipeline);
    let told = mill.run(&["-j", "8"]).exit(0);
    assert!((1..8).all(|number| told.ran().contains(&format!("n{number}"))), "{}", told.stdout);
}

#[test]
fn a_check_that_the_machine_stops_says_nothing_about_the_data() {
    let many: Vec<Value> = (0..60_000).map(|number| json!({"id": format!("a row with the number {number}")})).collect();
    let mill = project(&many, "[{unique: [id]}]\n    resources: {memory: 10KiB}");
    let text = mill.read("pipeline.yaml");
    mill.write("pipeline.yaml", text.split("  good:").next().unwrap_or_default());
    let told = mill.run(&[]).exit(5);
    let failed = told.events().into_iter().find(|event| event["event"] == "node_failed").expect("a failure");
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(message.contains("needs more memory") && !message.contains("a check failed"), "{message}");
    assert!(!told.stdout.contains("node_checked"), "{}", told.stdout);
    let shown = mill.call(&["show", "scores", "--json", "-n", "1"]).exit(0);
    assert_eq!(shown.events().len(), 1, "the result is kept");
}

#[test]
fn a_check_that_is_interrupted_says_nothing_about_the_data() {
    let many: Vec<Value> = (0..3000).map(|number| json!({"id": number, "f1": 0.7})).collect();
    let mill = project(&many, "[{sql: \"SELECT a.id FROM rows a, rows b, rows c\", on_failure: warn}]");
    let child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let start = std::time::Instant::now();
    while !mill.store_path().join("results").is_dir() || mill.store().result_keys().is_empty() {
        assert!(start.elapsed() < std::time::Duration::from_mins(1), "the table is not read");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    for _ in 0..2 {
        let status = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(status.expect("`kill` is there").success());
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let told = Told::new(child.wait_with_output().expect("a child")).exit(130);
    assert!(!told.stdout.contains("cannot be evaluated"), "{}", told.stdout);
    assert!(!mill.path("out/good.jsonl").exists());
}

#[test]
fn rows_that_a_budget_left_out_are_no_part_of_the_share_of_rejects() {
    let bench = Bench::new(&crate::harness::endpoint::patient(9, std::time::Duration::ZERO));
    bench.replace("name: endpoint\n", "name: endpoint\nbudget: {calls: 4}\non_budget: finish\n");
    bench.replace("concurrency: 8", "concurrency: 1");
    bench.replace("      samples: 1\n", "      samples: 1\n    checks: [{rejects: {max: 0.2}}]\n");
    bench.ask(&["q0", "unknown", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8"]);
    let told = bench.run(&[]).exit(1);
    assert_eq!(outcomes(&told, "answers"), [(false, "1 of 4 rows (25 %)".to_owned())], "{}", told.stdout);
}

//! Tests of `map` with the user's functions: what makes a node run again, kills, forks and hangs.

use std::time::{Duration, Instant};

use crate::harness::project::Mill;

const ROWS: usize = 24;

/// Returns a project with a function, its rows, and a pipeline with these params and settings.
fn project(function: &str, with: &str, settings: &str) -> Mill {
    let mill = Mill::new();
    let rows: String = (0..ROWS).map(|n| format!("{{\"id\": \"d{n}\", \"text\": \"text {n}\"}}\n")).collect();
    mill.write("rows.jsonl", &rows);
    std::fs::create_dir(mill.path("steps")).expect("a folder");
    mill.write("steps/f.py", function);
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: n\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}\n  made: {{op: map, from: rows, \
             with: {{python: \"steps/f.py:f\"{with}}}{settings}}}\n"
        ),
    );
    mill
}

fn shown(mill: &Mill, what: &str) -> String {
    mill.call(&["show", what, "--json", "-n", "0"]).exit(0).stdout
}

/// Appends a line when it is called, and another when it ends.
const COUNTED: &str = "\
import time
def f(text):
    with open('begun', 'a') as file: file.write(text + '\\n')
    time.sleep(0.05)
    return {'text': text.upper()}
";

fn lines(mill: &Mill, name: &str) -> usize {
    std::fs::read_to_string(mill.path(name)).map_or(0, |text| text.lines().count())
}

#[test]
fn not_a_number_is_none_and_the_log_says_so() {
    let mill = project("def f(x): return {'text': repr(x)}\n", ", as: document", "");
    let text = mill.read("pipeline.yaml").replace(
        "  made: {op: map, from: rows",
        "  odd: {op: sql, from: rows, with: {query: \"select id, text, 0.0 / (length(text) - 6) as x from input\", as: table}}\n  made: {op: map, from: odd",
    );
    mill.write("pipeline.yaml", &text);
    mill.run(&[]).exit(0);
    let shown = shown(&mill, "made");
    assert!(shown.contains("None") && shown.contains("0.0"), "{shown}");
    let logs = mill.call(&["logs", "--node", "made"]).exit(0).stdout;
    let lines: Vec<&str> = logs.lines().filter(|line| line.contains("NaN and infinity in the column `x`")).collect();
    assert_eq!(lines.len(), 1, "{logs}");
}

#[test]
fn kill_9_of_a_node_that_remembers_rows_calls_again_only_what_was_in_flight() {
    let mill = project(COUNTED, ", remember: row", ", resources: {concurrency: 2}");
    let mut child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let start = Instant::now();
    while lines(&mill, "begun") < ROWS / 2 {
        assert!(start.elapsed() < Duration::from_mins(1), "the run is too slow");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("a running child");
    child.wait().expect("a child");
    let before = lines(&mill, "begun");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(lines(&mill, "begun"), before, "the function's processes ended with the run");
    let told = mill.run(&[]).exit(0);
    let events = told.events();
    let done = events.iter().find(|event| event["event"] == "node_finished" && event["node"] == "made");
    let cached = done.expect("the node ran")["cached_rows"].as_u64().expect("a number") as usize;
    assert!(cached + 2 >= before, "{cached} of {before} calls were remembered");
    assert_eq!(lines(&mill, "begun"), before + ROWS - cached, "nothing that ended is called again");
    assert_eq!(shown(&mill, "made").matches("TEXT").count(), ROWS);
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    assert_eq!(lines(&mill, "begun"), before + ROWS - cached);
}

#[test]
fn an_imported_module_two_levels_deep_reruns_the_node_and_nothing_else_does() {
    let mill = project("import first\ndef f(text):\n    return {'text': first.mark(text)}\n", "", "");
    mill.write("steps/first.py", "import second\ndef mark(text):\n    return second.MARK + text\n");
    mill.write("steps/second.py", "MARK = 'one '\n");
    mill.write("steps/beside.py", "# a comment\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made rows");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.write("steps/beside.py", "# another comment\n");
    mill.write("notes.txt", "x");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.write("steps/second.py", "MARK = 'two '\n");
    let told = mill.run(&[]).exit(0);
    assert_eq!((told.ran().as_str(), shown(&mill, "made").matches("two text").count()), ("made", ROWS));
    assert!(told.reasons("made").contains(&"source_changed".to_owned()), "{:?}", told.reasons("made"));
    mill.write("steps/second.py", "MARK = 'one '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "", "the first result is still known");
    mill.write("steps/second.py", "try:\n    from third import MARK\nexcept ImportError:\n    MARK = 'one '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    mill.write("steps/third.py", "MARK = 'three '\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made", "a module that did not exist");
    assert!(shown(&mill, "made").contains("three text"));
}

#[test]
fn a_function_may_print_fork_raise_and_hang() {
    let text = "\
import os, time
def f(text, id):
    print('seen', id)
    if id == 'd1': os.fork()
    if id == 'd2': raise ValueError('no')
    if id == 'd3': time.sleep(600)
    if id == 'd4': os._exit(7)
    return {'text': text + '!'}
";
    for more in ["", ", remember: row"] {
        let mill = project(text, &format!(", timeout_seconds: 1{more}"), "");
        let start = Instant::now();
        mill.run(&[]).exit(if more.is_empty() { 0 } else { 3 });
        assert!(start.elapsed() < Duration::from_mins(1));
        assert_eq!(shown(&mill, "made").matches("!\"").count(), ROWS - 3, "{more}");
        let rejects = mill.call(&["show", "made", "--rejects", "--json", "-n", "0"]).exit(0).stdout;
        for wanted in ["ValueError: no", "more than 1 seconds", "exit code 7"] {
            assert!(rejects.contains(wanted), "{more}: {rejects}");
        }
        let logs = mill.call(&["logs", "--node", "made"]).stdout;
        assert!(logs.contains("seen d0"), "{logs}");
    }
}

#[test]
fn a_module_that_the_key_does_not_know_fails_the_node_and_files_names_it() {
    let text = "import importlib\ndef f(text):\n    return {'text': importlib.import_module('hid' + 'den').MARK}\n";
    let mill = project(text, "", "");
    mill.write("steps/hidden.py", "MARK = 'one'\n");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("loaded steps/hidden.py, which its cache key does not contain"), "{}", told.stdout);
    assert!(told.stdout.contains("files: [steps/hidden.py]"), "{}", told.stdout);
    let pipeline = mill.read("pipeline.yaml").replace("steps/f.py:f\"", "steps/f.py:f\", files: [steps/hidden.py]");
    mill.write("pipeline.yaml", &pipeline);
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    mill.write("steps/hidden.py", "MARK = 'two'\n");
    assert_eq!(mill.run(&[]).exit(0).ran(), "made");
    assert!(shown(&mill, "made").contains("two"));
}

#[test]
fn a_module_that_vanishes_and_a_file_that_is_no_python_are_told() {
    let mill = project("import first\ndef f(text): return {}\n", "", "");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("No module named 'first'"), "{}", told.stdout);
    mill.write("steps/first.py", "");
    mill.run(&[]).exit(0);
    std::fs::remove_file(mill.path("steps/first.py")).expect("there");
    assert!(mill.run(&[]).exit(1).stdout.contains("No module named 'first'"));
    mill.write("steps/f.py", "def f(:\n");
    assert!(mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr.contains("steps/f.py:1: "));
    assert!(mill.run(&[]).exit(2).stdout.contains("steps/f.py:1: "));
    std::fs::remove_file(mill.path("steps/f.py")).expect("there");
    let told = mill.run(&[]);
    assert_ne!(told.code, 0);
    assert!(told.stderr.contains("steps/f.py") || told.stdout.contains("steps/f.py"), "{told:?}");
}

#[test]
fn a_function_that_the_file_does_not_have_is_told_before_anything_runs() {
    let mill = project("def shorten(text): return {}\nclass Judge: pass\ndef _own(): pass\n", "", "");
    let named = |mill: &Mill, name: &str| {
        let written = format!(
            "name: n\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}\n  made: {{op: map, from: rows, with: {{python: \"steps/f.py:{name}\"}}}}\n"
        );
        mill.write("pipeline.yaml", &written);
        mill.call(&["validate", "pipeline.yaml"])
    };
    for known in ["shorten", "Judge", "_own"] {
        named(&mill, known).exit(0);
    }
    let told = named(&mill, "shortn").exit(2).stderr;
    assert!(told.contains("`steps/f.py` has no function `shortn`"), "{told}");
    assert!(told.contains("pipeline.yaml:4:58") && told.contains("did you mean `shorten`?"), "{told}");
    let told = mill.run(&[]).exit(2).stdout;
    assert!(told.contains("has no function `shortn`"), "{told}");
    let told = named(&mill, "other").exit(2).stderr;
    assert!(told.contains("functions in it: `shorten`, `Judge`"), "{told}");
    // What the text of a file cannot tell is left to Python.
    for file in [
        "from os.path import *\n",
        "exec('def other(text): return {}')\n",
        "def __getattr__(name): return lambda text: {}\n",
        "other, more = (lambda text: {}), 1\n",
        "try:\n    from somewhere import other\nexcept ImportError:\n    def other(text): return {}\n",
        "def set():\n    global other\n    other = print\nset()\n",
    ] {
        mill.write("steps/f.py", file);
        named(&mill, "other").exit(0);
    }
}

#[test]
fn a_fault_in_a_remembered_node_keeps_the_rows_before_it() {
    let text = "\
import os, signal, time
def f(text):
    with open('begun', 'a') as file: file.write(text + '\\n')
    if text == 'text 9' and not os.path.exists('healed'): os.kill(os.getpid(), signal.SIGKILL)
    return {}
";
    let mill = project(text, ", remember: row", "");
    let told = mill.run(&[]).exit(5);
    assert!(told.stdout.contains("killed by signal 9"), "{}", told.stdout);
    let before = lines(&mill, "begun");
    mill.write("healed", "");
    mill.run(&[]).exit(0);
    assert_eq!(lines(&mill, "begun"), ROWS + 1, "{before} calls before: only the killed one is repeated");
}

#[test]
fn an_audit_computes_the_rows_again_only_if_programs_may_run() {
    let mill = project("def f(text): return {'text': text + '!'}\n", "", "");
    mill.run(&[]).exit(0);
    let told = mill.call(&["audit", "latest", "--replay"]);
    assert!(told.stdout.contains("it runs a program: --allow-programs computes it again"), "{}", told.stdout);
    let told = mill.call(&["audit", "latest", "--replay", "--allow-programs"]).exit(0);
    assert!(
        told.stdout.contains("made    replay   same") || told.stdout.contains("made  replay  same"),
        "{}",
        told.stdout
    );
    let paid = project("def f(text): return {'text': text + '!'}\n", ", remember: row", "");
    paid.run(&[]).exit(0);
    std::fs::remove_file(paid.path("steps/f.py")).expect("there");
    let told = paid.call(&["audit", "latest", "--rollouts"]);
    assert!(!told.stdout.contains("differs"), "{}", told.stdout);
}

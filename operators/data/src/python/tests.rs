//! Tests with a real `python3`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Int64Array, RecordBatch, StringArray};
use searchmill_engine::operator::testing::{Harness, listened};
use searchmill_engine::operator::{Blame, Context, OperatorError, Source};
use serde_json::{Map, Value, json};

use super::*;

struct Project {
    folder: tempfile::TempDir,
    harness: Harness,
}

impl Project {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut harness = Harness::new();
        harness.directory = folder.path().to_owned();
        let project = Self { folder, harness };
        for (name, text) in files {
            project.write(name, text);
        }
        project
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    fn sources(&self, function: &PythonFunction) -> Vec<String> {
        function.sources(self.folder.path()).iter().map(Source::written).collect()
    }

    fn pool(&self, function: &PythonFunction, columns: &[&str]) -> Pool {
        self.opened(function, columns).unwrap()
    }

    fn opened(&self, function: &PythonFunction, columns: &[&str]) -> Result<Pool, OperatorError> {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        Pool::of_table(function.clone(), columns, TWO, &self.harness.context()).map(|(pool, _)| pool)
    }

    /// Returns the columns that a function takes of these.
    fn taken(&self, function: &PythonFunction, columns: &[&str]) -> Vec<String> {
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        Pool::of_table(function.clone(), columns, TWO, &self.harness.context()).unwrap().1
    }

    fn call(&self, function: &PythonFunction, words: &[&str]) -> Result<Vec<Called>, OperatorError> {
        self.opened(function, &["word"])?.call(&rows(words))
    }
}

const TWO: Width = Width { function: 2, class: 2 };

fn rows(words: &[&str]) -> JsonRows {
    let row = |word: &&str| Map::from_iter([("word".to_owned(), json!(word))]);
    JsonRows::of_values(&words.iter().map(row).collect::<Vec<_>>())
}

fn function(file: &str, name: &str) -> PythonFunction {
    PythonFunction { file: Some(file.to_owned()), function: name.to_owned(), ..PythonFunction::default() }
}

fn row(value: Value) -> Called {
    Called::Row(value.as_object().unwrap().clone())
}

fn failure(called: &Called) -> &Failure {
    let Called::Failed(failure) = called else { panic!("{called:?}") };
    failure
}

/// Functions that do what they are told.
const TOLD: &str = r#"
import os, signal, sys, time
def f(word):
    if word == "print":
        print("printed")
        os.system("echo by a program")
    if word == "raise": raise ValueError("no ä")
    if word == "nan": return {"score": float("nan")}
    if word == "none": return None
    if word == "two": return ({"n": n} for n in range(2))
    if word == "fork": os.fork()
    if word == "exit": os._exit(3)
    if word == "crash": os.kill(os.getpid(), signal.SIGSEGV)
    if word == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if word == "hang":
        os.system("sleep 600 & wait")
    if word == "read": return {"read": sys.stdin.read()}
    if word == "large": return {"text": "x" * (65 << 20)}
    if word == "daemon":
        if os.fork() == 0:
            os.setsid()
            time.sleep(30)
    return {"word": word}
"#;

#[test]
fn names_are_split() {
    let split = |text| PythonFunction::split(text).map(|(file, name)| format!("{} {name}", file.unwrap_or_default()));
    assert_eq!(split("a/b.py:f_1").unwrap(), "a/b.py f_1");
    assert_eq!(split("C:/b.py:f").unwrap(), "C:/b.py f");
    for wrong in ["b.py", ":f", "b.py:", "b.py:f()", "b.py:1"] {
        assert!(split(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn rows_go_in_and_rows_come_out() {
    let project = Project::new(&[("f.py", TOLD)]);
    let called = project.call(&function("f.py", "f"), &["a", "none", "two", "read", "print", "ä\u{1F600}\n"]).unwrap();
    let two = vec![json!({"n": 0}).as_object().unwrap().clone(), json!({"n": 1}).as_object().unwrap().clone()];
    assert_eq!(
        called,
        [
            row(json!({"word": "a"})),
            Called::Rows(Vec::new()),
            Called::Rows(two),
            row(json!({"read": ""})),
            row(json!({"word": "print"})),
            row(json!({"word": "ä\u{1F600}\n"})),
        ]
    );
    let logged = project.harness.logged();
    assert!(logged.contains(&"printed".to_owned()) && logged.contains(&"by a program".to_owned()), "{logged:?}");
}

#[test]
fn an_exception_fails_its_row_with_the_traceback_below_searchmill() {
    let project = Project::new(&[("f.py", TOLD)]);
    let called = project.call(&function("f.py", "f"), &["raise", "nan", "large", "a"]).unwrap();
    let raised = failure(&called[0]);
    assert_eq!((raised.why, raised.message.as_str()), (Why::Raised, "ValueError: no ä"));
    let lines: Vec<&str> = raised.detail.as_deref().unwrap().lines().collect();
    assert_eq!(lines[..2], ["Traceback (most recent call last):", "  File \"f.py\", line 7, in f"]);
    assert_eq!(lines.last(), Some(&"ValueError: no ä"));
    let unfit = failure(&called[1]);
    assert_eq!(
        (unfit.why, unfit.message.as_str()),
        (Why::Unfit, "column `score` is NaN: return a finite number, or None for a type such as `float?`")
    );
    assert!(failure(&called[2]).message.contains("more than 64 MiB"));
    assert_eq!(called[3], row(json!({"word": "a"})));
}

#[test]
fn a_row_that_ends_or_holds_up_its_process_fails_alone() {
    let project = Project::new(&[("f.py", TOLD)]);
    let slow = PythonFunction { seconds: 1, ..function("f.py", "f") };
    let called = project.call(&slow, &["a", "exit", "b", "hang", "crash", "c"]).unwrap();
    let shown: Vec<String> = called
        .iter()
        .map(|called| match called {
            Called::Row(row) => row["word"].to_string(),
            other => format!("{:?} {}", failure(other).why, failure(other).message),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "\"a\"",
            "Ended the process ended with exit code 3 while it worked on this",
            "\"b\"",
            "Late the call took more than 1 seconds",
            "Ended the process was killed by signal 11 while it worked on this",
            "\"c\"",
        ]
    );
    let killed = project.call(&slow, &["a", "killed"]).unwrap_err();
    assert_eq!(killed.blame, Blame::Machine);
    assert!(killed.message.contains("killed by signal 9"), "{killed}");
    let many = project.call(&slow, &["exit"; 20]).unwrap_err();
    assert!(many.message.starts_with("8 calls of `f.py:f` in a row failed"), "{many}");
}

#[test]
fn forked_processes_answer_nothing_and_hold_nothing_up() {
    let project = Project::new(&[("f.py", TOLD)]);
    let start = Instant::now();
    let called = project.call(&function("f.py", "f"), &["fork", "a", "fork", "daemon", "b"]).unwrap();
    assert_eq!(called, ["fork", "a", "fork", "daemon", "b"].map(|word| row(json!({"word": word}))));
    assert!(start.elapsed() < Duration::from_secs(20), "the daemon sleeps for 30 seconds");
}

#[test]
fn a_class_is_created_once_and_set_up() {
    let text = "class Count:\n    def __init__(self, start=0): self.n = start\n    def setup(self): self.n += 10\n    \
                def __call__(self, word):\n        self.n += 1\n        return {'n': self.n}\n";
    let project = Project::new(&[("f.py", text)]);
    let arguments = json!({"start": 5}).as_object().unwrap().clone();
    let called = project.call(&PythonFunction { arguments, ..function("f.py", "Count") }, &["a", "b"]).unwrap();
    assert_eq!(called, [row(json!({"n": 16})), row(json!({"n": 17}))]);
}

#[test]
fn arguments_are_passed_beside_the_columns_that_the_function_takes() {
    let text = "def f(word, *, times=1): return {'text': word * times}\ndef every(**row): return row\n\
                def whole(row): return row\nasync def later(word): return {'later': word}\n";
    let project = Project::new(&[("f.py", text)]);
    let arguments = json!({"times": 2}).as_object().unwrap().clone();
    let twice = PythonFunction { arguments: arguments.clone(), ..function("f.py", "f") };
    assert_eq!(project.call(&twice, &["ab"]).unwrap(), [row(json!({"text": "abab"}))]);
    assert_eq!(project.taken(&twice, &["other", "word", "times"]), ["word"]);
    for name in ["every", "whole"] {
        assert_eq!(project.call(&function("f.py", name), &["a"]).unwrap(), [row(json!({"word": "a"}))]);
        assert_eq!(project.taken(&function("f.py", name), &["other", "word"]), ["other", "word"]);
    }
    assert_eq!(project.call(&function("f.py", "later"), &["a"]).unwrap(), [row(json!({"later": "a"}))]);
    let refused =
        |columns: &[&str], function: &PythonFunction| project.pool(function, columns).call(&rows(&["a"])).unwrap_err();
    let missing = refused(&["id", "text"], &twice);
    assert_eq!(missing.message, "`f` takes `word`, which is no column of the input");
    assert_eq!(missing.help.as_deref(), Some("the columns are `id`, `text`"));
    let unknown = PythonFunction { arguments, ..function("f.py", "later") };
    assert_eq!(refused(&["word"], &unknown).message, "`later` takes no argument `times`");
    let none = project.call(&function("f.py", "g"), &["a"]).unwrap_err();
    assert_eq!(
        (none.message.as_str(), none.help.as_deref()),
        ("`f.py` has no function `g`", Some("it has `f`, `every`, `whole`, `later`"))
    );
}

#[test]
fn arguments_of_calls_are_not_called_columns() {
    let text = "def f(word, *, times=1): return {'text': word * times}\nclass C:\n    def __init__(self, word): pass\n\
                \x20   def __call__(self, word): return {'text': word}\n";
    let project = Project::new(&[("f.py", text)]);
    let given = |name: &str| json!({name: 2}).as_object().unwrap().clone();
    let refused = |function: &PythonFunction, names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let pool = Pool::new(function.clone(), names, TWO, &project.harness.context());
        pool.call(&rows(&["a"])).unwrap_err()
    };
    let missing = refused(&function("f.py", "f"), &["query", "documents"]);
    assert_eq!(missing.message, "`f` takes `word`, which no call gives");
    let help = "a call gives `query`, `documents`; write other arguments in `arguments`";
    assert_eq!(missing.help.as_deref(), Some(help));
    let twice = PythonFunction { arguments: given("word"), ..function("f.py", "f") };
    assert_eq!(refused(&twice, &["word"]).message, "each call of `f` gives the argument `word`, too");
    let object = PythonFunction { arguments: given("word"), ..function("f.py", "C") };
    let called = Pool::new(object, vec!["word".to_owned()], TWO, &project.harness.context()).call(&rows(&["a"]));
    assert_eq!(called.unwrap(), [row(json!({"text": "a"}))], "a class takes them before the first call");
}

#[test]
fn an_import_without_an_end_is_stopped_and_says_what_it_printed() {
    let project = Project::new(&[("f.py", "import time\nprint('waits for the network')\ntime.sleep(600)\n")]);
    let start = Instant::now();
    let late = project.call(&function("f.py", "f"), &["a"]).unwrap_err();
    assert!(late.message.starts_with("`f.py:f` is still being imported after 2 seconds"), "{late}");
    assert!(late.message.contains("waits for the network") && late.help.is_some(), "{late}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn what_cannot_be_started_says_why() {
    let project =
        Project::new(&[("a.py", "import nothing_of_that_name\n"), ("b.py", "def f(:\n"), ("c.py", "1 / 0\n")]);
    let message = |file: &str| project.call(&function(file, "f"), &["a"]).unwrap_err();
    let missing = message("a.py");
    assert!(missing.message.starts_with("cannot import `a.py`: ModuleNotFoundError: No module named"), "{missing}");
    assert!(missing.help.unwrap().contains("# /// script"));
    assert!(message("b.py").message.starts_with("b.py:1: "), "{}", message("b.py"));
    assert!(message("c.py").message.contains("ZeroDivisionError"), "{}", message("c.py"));
    let interpreter = Some(vec!["no-python-here".to_owned()]);
    let error = project.call(&PythonFunction { interpreter, ..function("c.py", "f") }, &["a"]).unwrap_err();
    assert!(error.message.contains("cannot start `no-python-here`"), "{error}");
    let text = "# /// script\n# dependencies = []\n# ///\ndef f(word): return {}\n";
    project.write("d.py", text);
    assert_eq!(
        project.sources(&function("d.py", "f"))[1],
        format!("the packages of {}", project.path("d.py").display())
    );
}

#[test]
fn modules_of_the_project_are_sources_at_any_depth() {
    let project = Project::new(&[
        ("steps/f.py", "import json, first\nfrom pkg import a\ndef f(word):\n    import late\n    return {}\n"),
        ("steps/first.py", "try:\n    import second\nexcept ImportError:\n    pass\n"),
        ("steps/second.py", ""),
        ("steps/late.py", ""),
        ("steps/unused.py", ""),
        ("steps/pkg/__init__.py", ""),
        ("steps/pkg/a.py", "from . import b\nfrom .sub.c import x\nfrom later import y\n"),
        ("steps/pkg/b.py", ""),
        ("steps/pkg/sub/c.py", "x = 1\n"),
        ("steps/requirements.txt", ""),
    ]);
    let of = function("steps/f.py", "f");
    let version = project.sources(&of).into_iter().find(|written| written.starts_with("Python cpython 3."));
    let wanted = |more: &[&str]| {
        let mut all = vec!["steps/f.py", "steps/first.py", "steps/late.py"];
        all.extend(more);
        all.extend([
            "steps/pkg/__init__.py",
            "steps/pkg/a.py",
            "steps/pkg/b.py",
            "steps/pkg/sub/c.py",
            "steps/second.py",
        ]);
        all.push(version.as_deref().unwrap());
        all.extend(["steps/f.py.lock", "steps/uv.lock", "steps/requirements.txt"]);
        all.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(project.sources(&of), wanted(&[]));
    project.write("steps/later.py", "y = 1\n");
    assert_eq!(project.sources(&of), wanted(&["steps/later.py"]), "a module that did not exist");
    project.write("steps/pkg/a.py", "from . import b\n");
    let sources = project.sources(&of);
    assert!(!sources.contains(&"steps/pkg/sub/c.py".to_owned()) && !sources.contains(&"steps/later.py".to_owned()));
}

#[test]
fn python_is_not_asked_again_while_nothing_changes() {
    let wrapper = "#!/bin/sh\necho x >> \"$(dirname \"$0\")/asked\"\nexec python3 \"$@\"\n";
    let project = Project::new(&[("f.py", "import g\ndef f(word): return {}\n"), ("g.py", ""), ("python", wrapper)]);
    std::fs::set_permissions(project.path("python"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let of = PythonFunction { interpreter: Some(vec!["./python".to_owned()]), ..function("f.py", "f") };
    let asked = || std::fs::read_to_string(project.path("asked")).map_or(0, |text| text.lines().count());
    std::thread::sleep(Duration::from_millis(100));
    let first = project.sources(&of);
    let once = asked();
    assert_eq!((project.sources(&of), asked()), (first.clone(), once));
    project.write("beside.txt", "");
    project.write("h.py", "");
    assert_eq!((project.sources(&of), asked()), (first.clone(), once), "other files do not matter");
    std::thread::sleep(Duration::from_millis(100));
    project.write("g.py", "import h\n");
    assert_eq!(project.sources(&of).len(), first.len() + 1);
    assert!(asked() > once);
}

#[test]
fn a_module_that_is_no_source_fails_the_node() {
    let text = "import importlib\ndef f(word):\n    importlib.import_module('hidden_' + word)\n    return {}\n";
    let project = Project::new(&[("f.py", text), ("hidden_one.py", "")]);
    let of = function("f.py", "f");
    let error = project.call(&of, &["one"]).unwrap_err();
    assert_eq!(error.message, "`f.py:f` loaded hidden_one.py, which its cache key does not contain");
    assert_eq!(error.help.as_deref(), Some("add it to the files of the node: `files: [hidden_one.py]`"));
    let named = PythonFunction { files: vec!["hidden_one.py".to_owned()], ..of };
    assert_eq!(project.call(&named, &["one"]).unwrap(), [row(json!({}))]);
}

#[test]
fn cancelling_the_run_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("f.py"), "import time\ndef f(word):\n    print('ready')\n    time.sleep(600)\n")
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (context, listener): (Context, _) = listened(folder.path(), 0, "ready", &runtime);
    let columns = vec!["word".to_owned()];
    let pool = Pool::new(function("f.py", "f"), columns, TWO, &context);
    assert_eq!(pool.call(&rows(&["a"])).unwrap_err().blame, Blame::Cancelled);
    assert_eq!(*listener.lines.lock().unwrap(), ["ready"]);
}

#[test]
fn many_rows_cost_little_and_calls_run_side_by_side() {
    let project =
        Project::new(&[("f.py", "import time\ndef f(word): return {'word': word}\ndef slow(word): time.sleep(0.5)\n")]);
    let pool = project.pool(&function("f.py", "f"), &["word"]);
    let words: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let called = pool.call(&rows(&words.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    assert_eq!((called.len(), &called[19_999]), (20_000, &row(json!({"word": "19999"}))));
    let slow = project.pool(&function("f.py", "slow"), &["word"]);
    slow.call(&rows(&["warm"])).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(slow.call(&rows(&["a"])).unwrap(), [Called::Rows(Vec::new())]));
        }
    });
}

fn arrow_python() -> Option<String> {
    let named = std::env::var("SEARCHMILL_TEST_PYTHON").ok();
    let found = named.into_iter().chain(["python3".to_owned()]).find(|python| {
        let probe = std::process::Command::new(python).args(["-c", "import pyarrow"]).output();
        probe.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        searchmill_fixtures::skip("a python3 with pyarrow (SEARCHMILL_TEST_PYTHON names one)");
    }
    found
}

#[test]
fn batches_are_arrow() {
    let Some(python) = arrow_python() else { return };
    let text = "import pyarrow as pa\n\
        def double(batch): return {'n': [2 * n.as_py() for n in batch['n']]}\n\
        def some(batch): return pa.Table.from_batches([batch]).slice(0, 1)\n\
        def none(batch): return None\n\
        def wrong(batch): return 'x'\n\
        def raises(batch): raise KeyError('n')\n\
        def longer(batch): return {'n': [1, 2, 3]}\n";
    let project = Project::new(&[("f.py", text)]);
    let n = Int64Array::from(vec![1, 2]);
    let word = StringArray::from(vec!["a", "b"]);
    let batch = RecordBatch::try_from_iter([("n", Arc::new(n) as _), ("word", Arc::new(word) as _)]).unwrap();
    let call = |name: &str| {
        let of = PythonFunction { interpreter: Some(vec![python.clone()]), batch: true, ..function("f.py", name) };
        project.pool(&of, &["n", "word"]).call_batch(&batch).unwrap()
    };
    let CalledBatch::Rows(doubled) = call("double") else { panic!("rows") };
    assert_eq!(doubled[0].column(0).as_ref(), &Int64Array::from(vec![2, 4]) as &dyn arrow::array::Array);
    assert_eq!(doubled[0].schema().field(1).name(), "word");
    assert_eq!(call("some"), CalledBatch::Rows(vec![batch.slice(0, 1)]));
    assert_eq!(call("none"), CalledBatch::Rows(Vec::new()));
    let failed = |name: &str| match call(name) {
        CalledBatch::Failed(failure) => failure,
        other @ CalledBatch::Rows(_) => panic!("{other:?}"),
    };
    assert!(failed("wrong").message.contains("pyarrow.RecordBatch"));
    assert_eq!((failed("raises").why, failed("raises").message.as_str()), (Why::Raised, "KeyError: 'n'"));
    assert!(failed("longer").message.contains("3 rows for a batch of 2"));
}

/// Needs `uv` and packages that its cache or the network has.
#[test]
fn uv_makes_the_environment_of_a_script() {
    if std::process::Command::new("uv").arg("--version").output().is_err() {
        searchmill_fixtures::skip("uv");
        return;
    }
    let text = "# /// script\n# requires-python = \">=3.9\"\n# dependencies = []\n# ///\nimport sys\n\
                def f(word): return {'base': sys.prefix != sys.base_prefix}\n";
    let project = Project::new(&[("f.py", text)]);
    let of = function("f.py", "f");
    assert!(of.sources(project.folder.path()).iter().any(|source| matches!(source, Source::Awaited { .. })));
    of.fetch(&project.harness.context()).unwrap();
    assert!(!of.sources(project.folder.path()).iter().any(|source| matches!(source, Source::Awaited { .. })));
    assert_eq!(project.call(&of, &["a"]).unwrap(), [row(json!({"base": true}))]);
    project.write("f.py", &text.replace("sys.prefix !=", "sys.prefix  !="));
    assert_eq!(project.call(&of, &["a"]).unwrap(), [row(json!({"base": true}))], "the packages are the same");
}

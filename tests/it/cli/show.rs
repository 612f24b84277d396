//! Tests of reading results: `show --where`, `--sort`, `--columns`, scores beside rollouts, `--full`, `--no-system`, `-o`, `path`, and readers of other programs.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::project::{Mill, Told, files_in};

/// Documents in several parts, rollouts, an index.
const PIPELINE: &str = "\
name: reading
nodes:
  corpus:   {op: read, with: {path: documents.jsonl, as: document}}
  few:      {op: sample, from: corpus, with: {n: 3}}
  world:    {op: generate-world, with: {documents: 100, questions: 8}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 12, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence}}
";

const ROWS: usize = 40_000;

fn documents(rows: usize) -> String {
    let text = |n: usize| format!("text {n} {}", "long words ".repeat(n % 17));
    (0..rows).map(|n| format!("{}\n", json!({"id": format!("d{n}"), "text": text(n), "n": n}))).collect()
}

fn project(rows: usize) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(rows));
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill
}

fn ids(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["id"].as_str()).collect()
}

#[test]
fn where_chooses_rows_and_stdout_has_nothing_else() {
    let mill = project(9000);
    let sql = "id IN ('d8000', 'd20', 'd3')";
    let told = mill.call(&["show", "corpus", "--where", sql, "--format", "jsonl"]).exit(0);
    assert_eq!(told.events().len(), told.stdout.lines().count(), "{}", told.stdout);
    assert_eq!(ids(&told.events()), ["d3", "d20", "d8000"]);
    assert_eq!(told.stderr.trim(), "3 of 9000 document rows match");
    let told = mill.call(&["show", "corpus", "--where", sql, "-n", "2", "--json"]).exit(0);
    assert_eq!((ids(&told.events()), told.stderr.as_str()), (vec!["d3", "d20"], ""));
    let told = mill.call(&["show", "corpus", "--where", sql, "-n", "2"]).exit(0);
    assert!(told.stdout.contains("d20") && told.stderr.contains("2 of 3 matches in 9000"), "{told:?}");
    let one = mill.call(&["show", "corpus", "--where", sql, "--row", "d20", "--json"]).exit(0);
    assert_eq!(ids(&one.events()), ["d20"]);
    let none = mill.call(&["show", "corpus", "--where", "id = 'nobody'"]).exit(0);
    assert_eq!((none.stdout.as_str(), none.stderr.trim()), ("", "0 of 9000 document rows match"));
    mill.call(&["show", "corpus", "--where", sql, "--row", "d4"]).exit(2);
    let all = mill.call(&["show", "corpus", "--where", "length(text) > 0", "--format", "jsonl", "-n", "0"]).exit(0);
    assert_eq!(all.stdout, mill.call(&["show", "corpus", "--format", "jsonl", "-n", "0"]).exit(0).stdout);
    for (node, wanted) in [("rollouts", "turns > 100"), ("few.rejects", "attempts > 1")] {
        assert_eq!(mill.call(&["show", node, "--where", wanted]).exit(0).stdout, "");
    }
}

#[test]
fn a_wrong_predicate_is_explained_as_in_filter() {
    let mill = project(20);
    for (sql, said) in [
        ("ids = 'd1'", "`where`: there is no column `ids`"),
        ("id =", "`where`: not an SQL expression"),
        ("", "`where`: the SQL expression is empty"),
        ("random() < 0.5", "`where`: "),
        ("id", "where"),
    ] {
        let told = mill.call(&["show", "corpus", "--where", sql]).exit(2);
        assert!(told.stderr.contains(said) && told.stdout.is_empty(), "{sql}: {told:?}");
    }
    let told = mill.call(&["show", "corpus", "--where", "ids = 'd1'"]).exit(2).stderr;
    assert!(told.contains("did you mean `id`? columns: `id`, `title`"), "{told}");
    let told = mill.call(&["show", "corpus", "--where", "ids = 'd1'", "--json"]).exit(2);
    assert_eq!(told.events()[0]["message"], "`where`: there is no column `ids`");
}

/// Two evaluations of the same rollouts, and one of two rollouts in another order.
const SCORED: &str = "  scores:  {op: evaluate, from: rollouts}
  strict:  {op: evaluate, from: rollouts, with: {success_threshold: 1.0}}
  picked:  {op: sql, from: {r: rollouts}, with: {query: SELECT * FROM r WHERE question_id IN (SELECT question_id FROM r ORDER BY id DESC LIMIT 2) ORDER BY id DESC, as: trajectory}}
  partial: {op: evaluate, from: picked}
  twice:   {op: sql, from: {s: scores, r: rollouts}, with: {query: SELECT s.* FROM s JOIN r ON s.id = r.id UNION ALL SELECT * FROM s, as: score}}
  odd:     {op: sql, from: {r: rollouts}, with: {query: \"SELECT id, 100 - row_number() OVER (ORDER BY id) AS __row FROM r\"}}
";

#[test]
fn scores_are_columns_of_the_rollouts_that_they_score() {
    let mill = Mill::new();
    mill.write("documents.jsonl", &documents(5));
    mill.write("pipeline.yaml", &format!("{PIPELINE}{SCORED}"));
    mill.run(&[]).exit(0);
    let rows = |args: &[&str]| mill.call(&[&["show"], args, &["--json", "-n", "0"]].concat()).exit(0).events();
    let scores = rows(&["scores"]);
    let wanted = |row: &&Value| row["f1"].as_f64() >= Some(0.5) && row["grounded"] == true;
    let wanted: Vec<&str> = scores.iter().filter(wanted).filter_map(|row| row["id"].as_str()).collect();
    let found = rows(&["rollouts", "--where", "f1 >= 0.5 and grounded and turns > 0"]);
    assert!(!wanted.is_empty() && ids(&found) == wanted, "{wanted:?} {:?}", ids(&found));
    assert!(found[0]["f1"].is_f64() && found[0]["grounded"] == true, "{}", found[0]);
    assert!(found[0]["em"].is_null() && found[0]["messages"].is_array(), "only what is asked about is added");
    let narrow = rows(&["rollouts", "--columns", "f1, id", "--sort=-f1", "--sort", "id"]);
    let mut sorted: Vec<(f64, &str)> =
        scores.iter().map(|row| (row["f1"].as_f64().unwrap(), row["id"].as_str().unwrap())).collect();
    sorted.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.cmp(other)));
    let told: Vec<(f64, &str)> =
        narrow.iter().map(|row| (row["f1"].as_f64().unwrap(), row["id"].as_str().unwrap())).collect();
    assert_eq!(told, sorted);
    assert_eq!(narrow[0].as_object().unwrap().len(), 2);

    let several = mill.call(&["show", "rollouts", "--where", "f1 < 2", "-n", "1"]).exit(0);
    assert!(
        several
            .stderr
            .contains("scores are those of `scores`; `--scores NODE` takes another of `scores`, `strict`, `twice`"),
        "{several:?}"
    );
    assert_eq!(rows(&["rollouts", "--where", "f1 < 2", "--scores", "strict"]).len(), 8);
    let wrong = mill.call(&["show", "rollouts", "--where", "f1 < 2", "--scores", "bm25"]).exit(2);
    assert!(wrong.stderr.contains("they were scored by `scores`, `strict`, `twice`"), "{wrong:?}");
    let wrong = mill.call(&["show", "rollouts", "--where", "f2 < 2"]).exit(2);
    assert!(wrong.stderr.contains("did you mean `f1`?") && !wrong.stderr.contains("__row"), "{wrong:?}");

    let twice = mill.call(&["show", "rollouts", "--where", "f1 < 2", "--scores", "twice"]).exit(2);
    assert!(twice.stderr.contains("`twice` has several scores of one row"), "{twice:?}");
    let odd = rows(&["odd", "--where", "__row < 95", "--sort", "__row"]);
    let numbers: Vec<i64> = odd.iter().filter_map(|row| row["__row"].as_i64()).collect();
    assert_eq!(numbers, [92, 93, 94], "a column of the user's keeps its values");

    let columns = mill.call(&["show", "rollouts", "--columns"]).exit(0).stdout;
    assert!(columns.contains("messages") && columns.contains("list of objects"), "{columns}");
    assert!(columns.lines().any(|line| line.starts_with("f1 ") && line.ends_with("scores")), "{columns}");

    let talks = mill.call(&["show", "scores", "--format", "conversation", "--where", "f1 >= 0.5", "-n", "0"]).exit(0);
    assert!(talks.stdout.contains(&format!("━━ {}", wanted[0])) && talks.stdout.contains("\nassistant"), "{talks:?}");

    // Scores in another order, of some of the rows: each stands beside its own row, and the others have none.
    let some = rows(&["picked", "--columns", "id,f1"]);
    let of = |row: &Value| scores.iter().find(|score| score["id"] == row["id"]).unwrap()["f1"].clone();
    assert_eq!(some.iter().map(|row| row["f1"].clone()).collect::<Vec<_>>(), some.iter().map(of).collect::<Vec<_>>());
}

#[test]
fn full_cuts_nothing() {
    let mill = project(20);
    let text = format!("text 16 {}", "long words ".repeat(16));
    let shown = |more: &[&str]| mill.call(&[&["show", "corpus", "--row", "d16"], more].concat()).exit(0).stdout;
    assert!(!shown(&[]).contains(text.trim()) && shown(&[]).contains('…'));
    assert!(shown(&["--full"]).contains(text.trim()) && !shown(&["--full"]).contains('…'), "{}", shown(&["--full"]));
    let table = |node: &str| mill.call(&["show", node, "-n", "0"]).exit(0).stdout;
    assert_eq!(table("corpus").lines().count(), 21, "one header");
}

#[test]
fn a_long_table_has_one_header() {
    let mill = project(9000);
    let told = mill.call(&["show", "corpus", "-n", "0"]).exit(0);
    assert_eq!(told.stdout.lines().count(), 9001);
    assert!(told.stdout.starts_with("id "), "{}", &told.stdout[..200]);
    assert_eq!(told.stdout.lines().filter(|line| line.starts_with("id ")).count(), 1);
}

#[test]
fn system_messages_are_left_out() {
    let mill = project(5);
    let roles = |more: &[&str]| -> Vec<Vec<String>> {
        let rows = mill.call(&[&["show", "rollouts", "--json", "-n", "0"], more].concat()).exit(0).events();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |row: &Value| row["messages"].as_array().expect("messages").iter().map(|m| text(&m["role"])).collect();
        rows.iter().map(of).collect()
    };
    let (all, fewer) = (roles(&[]), roles(&["--no-system"]));
    assert!(all.len() == 8 && all.iter().all(|roles| roles[0] == "system"), "{all:?}");
    assert_eq!(fewer, all.iter().map(|roles| roles[1..].to_vec()).collect::<Vec<_>>());
    assert_eq!(roles(&["--no-system", "--where", "turns > 0"]), fewer);
    let shown = |more: &[&str]| mill.call(&[&["show", "rollouts", "-n", "1"], more].concat()).exit(0).stdout;
    assert!(shown(&[]).contains("\nsystem\n") && !shown(&["--no-system"]).contains("\nsystem\n"));
    assert!(shown(&["--no-system"]).contains("━━ ") && shown(&["--no-system"]).contains("\nuser\n"));
    let told = mill.call(&["show", "corpus", "--no-system"]).exit(2).stderr;
    assert!(told.contains("these rows have no `messages`"), "{told}");
}

#[test]
fn rows_are_written_to_files() {
    let mill = project(9000);
    let told = mill.call(&["show", "corpus", "-o", "all.jsonl"]).exit(0);
    assert_eq!(told.stdout, "");
    assert!(told.stderr.starts_with("all.jsonl: 9000 of 9000 document rows ("), "{}", told.stderr);
    assert_eq!(mill.read("all.jsonl").lines().count(), 9000);
    let sql = ["--where", "id LIKE '%77'"];
    for file in ["some.jsonl", "some.json", "some.csv", "some.tsv", "some.parquet", "some.jsonl.gz", "some.csv.zst"] {
        mill.call(&[&["show", "corpus", "-o", file], &sql[..]].concat()).exit(0);
        let read = format!("name: r\nnodes: {{rows: {{op: read, with: {{path: {file}, as: document}}}}}}\n");
        mill.write("read.yaml", &read);
        mill.call(&["run", "read.yaml"]).exit(0);
        let rows = mill.call(&["show", "rows", "--json", "-n", "0"]).exit(0).events();
        assert_eq!((rows.len(), rows[0]["id"].as_str()), (90, Some("d77")), "{file}");
    }
    mill.call(&["show", "corpus", "-o", "data", "--format", "csv", "-n", "2"]).exit(0);
    assert_eq!(mill.read("data").lines().count(), 3);
    let told = mill.call(&["show", "corpus", "-o", "data", "--format", "jsonl", "-n", "1", "--json"]).exit(0);
    assert_eq!(told.events(), [json!({"file": "data", "rows": 1})]);
    assert_eq!(mill.read("data").lines().count(), 1, "the file was replaced");
    let before = files_in(&mill.path(""));
    for (args, said) in [
        (&["-o", "rows.txt"][..], "the format of `rows.txt` cannot be told from its name"),
        (&["-o", "nowhere/rows.csv"], "cannot write nowhere/rows.csv: the folder"),
        (&["-o", ".searchmill"], "cannot be told"),
        (&["-o", "-", "--format", "csv"], "cannot write -: `-` is no name of a file"),
        (&["-o", "data", "--format", "table"], "tables and conversations are not written to files"),
        (&["-o", "data", "--format", "csv", "--where", "nothing = 1"], "no column `nothing`"),
        (&["--format", "csv"], "this format is only written to files"),
    ] {
        let told = mill.call(&[&["show", "corpus"], args].concat());
        assert!(told.code > 0 && told.stderr.contains(said), "{args:?}: {told:?}");
    }
    assert_eq!((mill.read("data").lines().count(), files_in(&mill.path(""))), (1, before), "as it was");
    let told = mill.call(&["show", "bm25", "-o", "index.jsonl"]).exit(2).stderr;
    assert!(told.contains("is a folder (index): `--output` is for rows") && told.contains("path bm25"), "{told}");
    let files = mill.call(&["show", "bm25", "--json"]).exit(0).events();
    assert!(!files.is_empty() && files.iter().all(|file| file["file"].is_string() && file["bytes"].is_u64()));
}

#[test]
fn no_file_takes_the_place_of_a_pipe_or_of_the_store() {
    let mill = project(5);
    let made = Command::new("mkfifo").arg(mill.path("pipe.csv")).status().expect("mkfifo");
    assert!(made.success());
    let before = files_in(&mill.store_path().join("results"));
    for (args, said) in [
        (&["show", "corpus", "-o", "pipe.csv"][..], "cannot write pipe.csv: it is a pipe, socket or device"),
        (&["export", "corpus", "pipe.csv"], "cannot write pipe.csv: it is a pipe, socket or device"),
        (&["show", "corpus", "-o", ".searchmill/results/rows.csv"], "results/rows.csv: it is in the store"),
        (&["export", "corpus", ".searchmill/corpus.tar.zst"], "it is in the store"),
        (&["audit", "corpus", "--report", ".searchmill/results/audit.md"], "it is in the store"),
        (&["attest", "corpus", "-o", ".searchmill/results/corpus.json"], "it is in the store"),
        (&["attest", "--new-key", ".searchmill/results/key.pem"], "it is in the store"),
        (&["ui", "--bundle", ".searchmill/results/page"], "it is in the store"),
    ] {
        let told = mill.call(args).exit(2);
        assert!(told.stderr.contains(said), "{args:?}: {told:?}");
    }
    let pipe = std::fs::metadata(mill.path("pipe.csv")).expect("the pipe");
    assert!(pipe.file_type().is_fifo(), "it is still there");
    assert_eq!(files_in(&mill.store_path().join("results")), before);
}

#[test]
fn output_for_which_there_is_no_room_is_exit_5() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else { return };
    let mill = project(5);
    let full = || full.try_clone().expect("the device");
    for args in [&["show", "corpus", "--json", "-n", "0"][..], &["--json", "status", "pipeline.yaml"]] {
        let mut command = mill.command(args);
        let told = Told::new(command.stdout(full()).output().expect("the program can be started")).exit(5);
        assert!(told.stderr.contains("cannot write to stdout: No space left on device"), "{told:?}");
    }
    // A log that cannot be written is no reason to stop.
    let mut command = mill.command(&["-vv", "run", "pipeline.yaml"]);
    Told::new(command.stderr(full()).output().expect("the program can be started")).exit(0);
}

fn path(mill: &Mill, args: &[&str]) -> PathBuf {
    let told = mill.call(&[&["path"], args].concat()).exit(0);
    assert_eq!((told.stdout.lines().count(), told.stderr.as_str()), (1, ""));
    PathBuf::from(told.stdout.trim())
}

#[test]
fn path_names_a_folder_with_the_parts_and_nothing_else() {
    let mill = project(ROWS);
    let folder = path(&mill, &["corpus"]);
    let files = files_in(&folder);
    assert!(folder.is_absolute() && files.len() > 2, "{files:?}");
    for (number, file) in files.iter().enumerate() {
        assert!(file.ends_with(format!("part-{number:05}.parquet")), "{file:?}");
    }
    assert_eq!(folder, mill.artifact_folder("corpus", "rows").canonicalize().expect("a folder"));
    assert_eq!(path(&mill, &["corpus.rows"]), folder);
    let artifact = mill.artifacts()["corpus.rows"].clone();
    assert_eq!(path(&mill, &[&artifact[..12]]), folder);
    assert_eq!(path(&mill, &["few", "--run", "latest"]).join("part-00000.parquet"), path(&mill, &["few", "--single"]));
    let told = mill.call(&["path", "corpus", "--single"]).exit(2).stderr;
    assert!(told.contains(&format!("`corpus` has {} files", files.len())) && told.contains("--single"), "{told}");
    let told = mill.call(&["path", "corpus", "--json"]).exit(0).events().remove(0);
    assert_eq!((&told["kind"], &told["rows"]), (&json!("document"), &json!(ROWS)));
    assert_eq!((&told["path"], told["files"][1].as_str()), (&json!(folder), Some("part-00001.parquet")));
    let index = path(&mill, &["bm25"]);
    assert_eq!(index, mill.artifact_folder("bm25", "index").canonicalize().expect("a folder"));
    mill.call(&["audit", "latest"]).exit(0);
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

#[test]
fn path_says_what_is_not_there() {
    let mill = project(50);
    for (what, said) in [("nobody", "no node and no artifact `nobody`"), ("few.row", "few"), ("few.nothing", "few")] {
        let told = mill.call(&["path", what]).exit(2);
        assert!(told.stdout.is_empty() && told.stderr.contains(said), "{told:?}");
    }
    let folder = path(&mill, &["few"]);
    mill.write("pipeline.yaml", &PIPELINE.replace("n: 3", "n: 4"));
    mill.run(&[]).exit(0);
    let first = mill.store().run_ids().remove(0);
    assert_eq!(path(&mill, &["few", "--run", &first]), folder);
    mill.call(&["gc", "--keep-runs", "1", "--older-than", "0s", "--yes"]).exit(0);
    assert!(!folder.exists(), "a view goes with its artifact");
    let told = mill.call(&["path", "few", "--run", &first]).exit(5);
    assert!(told.stdout.is_empty() && told.stderr.contains("gone from the store: run its pipeline again"), "{told:?}");
    assert!(path(&mill, &["few"]).is_dir());
}

/// Runs the lines of docs/how-to/read-results-elsewhere.md.
#[test]
fn other_programs_open_the_folder() {
    let named = std::env::var("SEARCHMILL_TEST_PYTHON").ok().into_iter().chain(["python3".to_owned()]);
    let has = |python: &str, module: &str| {
        Command::new(python).args(["-c", &format!("import {module}")]).output().is_ok_and(|out| out.status.success())
    };
    let modules = ["pandas", "pyarrow", "polars", "duckdb"];
    let Some(python) = named.into_iter().find(|python| modules.iter().all(|module| has(python, module))) else {
        searchmill_fixtures::skip(
            "a python3 with pandas, pyarrow, polars and duckdb (SEARCHMILL_TEST_PYTHON names one)",
        );
        return;
    };
    let mill = project(ROWS);
    for (node, rows) in [("corpus", ROWS), ("few", 3)] {
        let folder = path(&mill, &[node]);
        let read = |line: &str| count(&python, &folder, line);
        assert_eq!(read("import pandas; n = len(pandas.read_parquet(path))"), rows);
        assert_eq!(read("import pyarrow.dataset; n = pyarrow.dataset.dataset(path).count_rows()"), rows);
        assert_eq!(read("import polars; n = polars.scan_parquet(path).collect().height"), rows);
        assert_eq!(read("import duckdb; n = len(duckdb.sql(f\"FROM '{path}/*.parquet'\").fetchall())"), rows);
        if has(&python, "datasets") {
            let split = "import datasets; n = datasets.load_dataset(path, split='train', cache_dir='cache').num_rows";
            assert_eq!(read(split), rows);
        }
    }
}

/// Returns `n` after a line of Python.
fn count(python: &str, path: &Path, line: &str) -> usize {
    let work = tempfile::tempdir().expect("a folder");
    let script = format!("path = {:?}\n{line}\nprint(n)\n", path.display().to_string());
    let mut command = Command::new(python);
    command.args(["-c", &script]).current_dir(work.path()).env("HF_HUB_OFFLINE", "1").env("HF_HOME", work.path());
    let told = command.output().expect("Python");
    assert!(told.status.success(), "{line}: {}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8_lossy(&told.stdout).trim().parse().expect("a number")
}

#[test]
fn retry_of_a_program_needs_its_word_and_changes_no_key() {
    let mill = Mill::new();
    mill.write("rows.jsonl", &documents(4));
    let write = |more: &str, retry: &str| {
        mill.write(
            "pipeline.yaml",
            &format!(
                "name: n\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}\n  \
                 same: {{op: exec, from: rows, {retry}with: {{command: [sh, -c, \"echo x >> runs; cat; test $(wc -l < runs) -ge 3\"], \
                 writes: [runs], as: document{more}}}}}\n"
            ),
        );
    };
    let runs = || mill.read("runs").lines().count();
    write("", "retry: {max_attempts: 4, backoff: 10ms}, ");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`exec` runs its program once") && told.contains("`repeatable: true`"), "{told}");
    write(", repeatable: true", "retry: {max_attempts: 2, backoff: 10ms}, ");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("after 2 attempts: `sh` ended with exit code 1"), "{}", told.stdout);
    assert_eq!(runs(), 2);
    mill.write("runs", "");
    write(", repeatable: true", "retry: {max_attempts: 4, backoff: 10ms}, ");
    mill.run(&[]).exit(0);
    assert_eq!((runs(), mill.call(&["show", "same", "--json"]).exit(0).events().len()), (3, 4));
    write("", "");
    assert_eq!(mill.run(&[]).exit(0).ran(), "", "the param and `retry` are in no key");
    write(", repeatable: false", "");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
}

//! What people meet in their first hour: files of their own, with other separators and names, and functions that raise.

use crate::harness::project::Mill;

#[test]
fn a_csv_of_a_spreadsheet_is_read() {
    let mill = Mill::new();
    mill.write(
        "questions.csv",
        "nr;question;answers\n1;Which city?;Rome | Roma\n2;Which year?;1999\n3;Who?;\"Ann; Bob\"\n",
    );
    let pipeline = |with: &str| {
        let read = format!("{{op: read, with: {{path: questions.csv, as: question, {with}}}}}");
        mill.write("pipeline.yaml", &format!("name: sheet\nnodes:\n  questions: {read}\n"));
    };
    // The separator is told, then the column that is not there, both with a way out.
    pipeline("columns: {id: nr, golden_answers: answers}");
    for command in ["validate", "run"] {
        let told = mill.call(&[command, "pipeline.yaml"]).exit(2);
        assert!(told.stderr.contains("write `delimiter: \";\"`"), "{told:?}");
        assert!(told.stderr.contains("pipeline.yaml:3:"), "{told:?}");
    }
    pipeline("delimiter: \";\", columns: {id: number, golden_answers: answers}");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(told.stderr.contains("no record has the field `number` that `columns.id` names"), "{told:?}");
    assert!(told.stderr.contains("pipeline.yaml:3:") && told.stderr.contains("answers, nr, question"), "{told:?}");
    pipeline("delimiter: \";\", columns: {id: nr, golden_answers: answers}, split: \"|\"");
    mill.run(&[]).exit(0);
    let rows = mill.call(&["show", "questions", "--json"]).exit(0).events();
    let answers: Vec<String> = rows.iter().map(|row| row["golden_answers"].to_string()).collect();
    assert_eq!(answers, [r#"["Rome","Roma"]"#, r#"["1999"]"#, r#"["Ann; Bob"]"#]);
    for (with, said) in [
        ("delimiter: \"ab\"", "delimiter"),
        ("delimiter: \"ä\"", "one ASCII character"),
        ("format: jsonl, delimiter: \";\"", "for CSV files only"),
        ("split: \"\"", "the separator is empty"),
        ("split: {question: \"|\"}", "no list of texts of this name"),
    ] {
        pipeline(with);
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
        assert!(told.stderr.contains(said), "{with}: {told:?}");
    }
    // A file of another format has no such separator.
    mill.write(
        "pipeline.yaml",
        "name: sheet\nnodes:\n  t: {op: read, with: {path: questions.tsv, as: table, delimiter: \";\"}}\n",
    );
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(told.stderr.contains("no path names one"), "{told:?}");
    // Of a table, the columns are named.
    mill.write(
        "pipeline.yaml",
        "name: sheet\nnodes:\n  t: {op: read, with: {path: questions.csv, as: table, delimiter: \";\", columns: {a: answers}, split: {a: \"|\"}}}\n",
    );
    mill.run(&[]).exit(0);
    let rows = mill.call(&["show", "t", "--json"]).exit(0).events();
    assert_eq!(rows[0]["a"].to_string(), r#"["Rome","Roma"]"#);
}

#[test]
fn a_join_without_a_match_says_so() {
    let mill = Mill::new();
    mill.write("left.jsonl", "{\"id\": \"Q1\"}\n");
    mill.write("right.jsonl", "{\"id\": \"q1\", \"b\": 1}\n");
    let pipeline = |how: &str| {
        mill.write(
            "pipeline.yaml",
            &format!(
                "name: joined\nnodes:\n  one: {{op: read, with: {{path: left.jsonl, as: table}}}}\n  two: {{op: read, with: \
                 {{path: right.jsonl, as: table}}}}\n  both: {{op: join, from: {{left: one, right: two}}, with: {{on: \
                 [id], how: {how}}}}}\n"
            ),
        );
    };
    for (how, warns) in [("inner", true), ("left", true), ("semi", true), ("anti", false)] {
        pipeline(how);
        let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
        assert_eq!(told.stderr.contains("no row of `left` has a match"), warns, "{how}: {told:?}");
        assert_eq!(
            told.stderr.contains("of `id` in `left`: `Q1`. First values of `id` in `right`: `q1`."),
            warns,
            "{told:?}"
        );
    }
    // A key may have line breaks and escape codes: the warning is one line.
    mill.write("right.jsonl", "{\"id\": \"a\\n\\u001b[31mb\", \"b\": 1}\n");
    pipeline("inner");
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(told.stderr.contains(r"`a\n\u{1b}[31mb`. Texts must be equal"), "{told:?}");
    mill.write("right.jsonl", "{\"id\": \"Q1\", \"b\": 1}\n");
    pipeline("inner");
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(!told.stderr.contains("has a match"), "{told:?}");
}

#[test]
fn an_empty_file_is_written_if_it_may_be() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"n\": 1}\n");
    let pipeline = |allow: &str| {
        mill.write(
            "pipeline.yaml",
            &format!(
                "name: new\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: table}}}}\n  new: {{op: filter, from: \
                 rows, with: {{where: n > 5}}}}\n  file: {{op: write, from: new, with: {{path: out.jsonl{allow}}}}}\n"
            ),
        );
    };
    pipeline("");
    let told = mill.run(&[]).exit(3);
    assert!(!mill.path("out.jsonl").exists(), "{told:?}");
    pipeline(", allow_empty: true");
    mill.run(&[]).exit(0);
    assert_eq!(mill.read("out.jsonl"), "");
    // The same every night: what is there already raises no alarm, whatever the pipeline allows.
    pipeline("");
    let again = mill.run(&[]).exit(0);
    assert_eq!(again.ran(), "", "`allow_empty` is not in the key");
    // If the file is another one, it is not replaced by nothing.
    mill.write("out.jsonl", "{\"kept\": true}\n");
    mill.run(&[]).exit(3);
    assert_eq!(mill.read("out.jsonl"), "{\"kept\": true}\n");
}

#[test]
fn a_function_that_raises_says_where() {
    let mill = Mill::new();
    let rows: String =
        (0..5).map(|n| format!("{{\"id\": \"r{n}\", \"x\": \"{}\"}}\n", ["1", "a", "b", "", "c"][n])).collect();
    mill.write("rows.jsonl", &rows);
    mill.write("steps.py", "def step(row):\n    if not row['x']:\n        raise KeyError('x')\n    return {'id': row['id'], 'n': int(row['x'])}\n");
    mill.write(
        "pipeline.yaml",
        "name: raises\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: table}}\n  made: {op: map, from: rows, with: {python: \"steps.py:step\", output: {id: text, n: int}}}\n",
    );
    let told = mill.call(&["run", "pipeline.yaml"]);
    let place = "steps.py:4 in step: return {'id': row['id'], 'n': int(row['x'])}";
    assert!(
        told.stderr
            .contains(&format!("3 × exception: ValueError: invalid literal for int() with base 10: 'a' ({place})")),
        "{told:?}"
    );
    assert!(told.stderr.contains("1 × exception: KeyError: 'x' (steps.py:3 in step: raise KeyError('x'))"), "{told:?}");
    assert!(!told.stderr.contains("retried"), "{told:?}");
}

#[test]
fn a_limit_shortens_what_it_names() {
    let mill = Mill::new();
    let rows: String = (0..20).map(|n| format!("{{\"id\": \"r{n}\"}}\n")).collect();
    mill.write("rows.jsonl", &rows);
    let read = "{op: read, with: {path: rows.jsonl, as: table}}";
    mill.write(
        "pipeline.yaml",
        &format!("name: limited\nnodes:\n  documents: {read}\n  questions: {read}\n  both: {{op: sql, from: {{d: documents, q: questions}}, with: {{query: \"select (select count(*) from d) as d, (select count(*) from q) as q\"}}}}\n"),
    );
    let counts = |args: &[&str]| {
        let told = mill.call(&[&["run", "pipeline.yaml"], args].concat()).exit(0);
        let row = mill.call(&["show", "both", "--json"]).exit(0).events()[0].clone();
        (row["d"].as_u64(), row["q"].as_u64(), told.stderr)
    };
    let (d, q, told) = counts(&["--limit", "questions=5"]);
    assert_eq!((d, q), (Some(20), Some(5)));
    assert!(!told.contains("--limit"), "{told}");
    let (d, q, told) = counts(&["--limit", "7"]);
    assert_eq!((d, q), (Some(7), Some(7)));
    assert!(
        told.contains("each of documents, questions gives at most 7 rows; `--limit questions=7` shortens"),
        "{told}"
    );
    let (d, q, _) = counts(&["--limit", "7", "--limit", "questions=3"]);
    assert_eq!((d, q), (Some(7), Some(3)));
    let (d, q, _) = counts(&[]);
    assert_eq!((d, q), (Some(20), Some(20)), "limited results have keys of their own");
    let again = mill.call(&["run", "pipeline.yaml", "--limit", "questions=5", "--json"]).exit(0);
    assert_eq!(again.ran(), "");
    for (limit, said) in [
        ("nothing=5", "nothing"),
        ("both=5", "is no source"),
        ("questions=0", "must be at least 1"),
        ("x", "no number of rows"),
    ] {
        let told = mill.call(&["run", "pipeline.yaml", "--limit", limit]).exit(2);
        assert!(told.stderr.contains(said), "{limit}: {told:?}");
    }
    // The limit of a run is told where it is asked for again.
    mill.call(&["run", "pipeline.yaml", "--limit", "questions=5"]).exit(0);
    let why = mill.call(&["why", "questions"]).exit(0);
    assert!(why.stderr.contains("--limit questions=5"), "{why:?}");
}

#[test]
fn names_are_of_a_pipeline() {
    let mill = Mill::new();
    for name in ["one", "two"] {
        mill.write(&format!("{name}.jsonl"), &format!("{{\"id\": \"{name}\"}}\n"));
        let read = |node: &str| format!("  {node}: {{op: read, with: {{path: {name}.jsonl, as: table}}}}\n");
        mill.write(&format!("{name}.yaml"), &format!("name: {name}\nnodes:\n{}{}", read("rows"), read(name)));
        mill.call(&["run", &format!("{name}.yaml")]).exit(0);
    }
    // Both have `rows`; the other nodes are found by name.
    for command in ["show", "path", "trace", "audit"] {
        let told = mill.call(&[command, "rows"]).exit(2).stderr;
        assert!(told.contains("2 pipelines have `rows`") && told.contains("`one`, one.yaml"), "{command}: {told}");
        mill.call(&[command, "rows", "--file", "./one.yaml"]).exit(0);
        mill.call(&[command, "one"]).exit(0);
        let told = mill.call(&[command, "rows", "--file", "three.yaml"]).exit(2).stderr;
        assert!(told.contains("the store has no run of `three.yaml`"), "{command}: {told}");
    }
    // A file that cannot be read, as while it is edited, has the pipeline of its newest run.
    let text = mill.read("one.yaml");
    mill.write("one.yaml", "name: one\nnodes:\n  rows: {op: re");
    assert!(mill.call(&["show", "rows"]).exit(2).stderr.contains("2 pipelines have `rows`"));
    let told = mill.call(&["show", "rows", "--file", "one.yaml"]).exit(2).stderr;
    assert!(told.contains("cannot be read") && told.contains("`searchmill validate one.yaml` says why"), "{told}");
    mill.write("one.yaml", &text);
    let shown = |file: &str| mill.call(&["show", "rows", "--file", file, "--json"]).exit(0).events().remove(0);
    assert_eq!((&shown("one.yaml")["id"], &shown("two.yaml")["id"]), (&"one".into(), &"two".into()));
    // A pipeline that is gone is not meant.
    std::fs::remove_file(mill.path("two.yaml")).expect("removed");
    assert_eq!(mill.call(&["show", "rows", "--json"]).exit(0).events()[0]["id"], "one");
    // The newest run lacks it.
    let text = mill.read("one.yaml");
    mill.write("one.yaml", &text.replace("  rows:", "  lines:"));
    mill.call(&["run", "one.yaml"]).exit(0);
    let told = mill.call(&["show", "rows"]).exit(2).stderr;
    assert!(
        told.contains("of `one` has no output of `rows`") && told.contains("an earlier run has one: `--run "),
        "{told}"
    );
    let earlier = told.split("--run ").nth(1).and_then(|text| text.split('`').next()).expect("a run");
    mill.call(&["show", "rows", "--run", earlier]).exit(0);
    // The same of the newest run of a file.
    for command in ["show", "path", "trace", "audit"] {
        let told = mill.call(&[command, "rows", "--file", "one.yaml"]).exit(2).stderr;
        assert!(told.contains(&format!("an earlier run has one: `--run {earlier}`")), "{command}: {told}");
    }
}

#[test]
fn folders_that_share_a_store_have_their_own_names() {
    let mill = Mill::new();
    let shared = mill.path("store");
    let call = |folder: &str, args: &[&str]| {
        let place = mill.path(folder);
        let given = ["-C", place.to_str().expect("UTF-8"), "--store", shared.to_str().expect("UTF-8")];
        mill.call(&[&given[..], args].concat())
    };
    for folder in ["one", "two"] {
        std::fs::create_dir(mill.path(folder)).expect("a folder");
        mill.write(&format!("{folder}/rows.jsonl"), &format!("{{\"id\": \"{folder}\"}}\n"));
        mill.write(
            &format!("{folder}/pipeline.yaml"),
            &format!("name: {folder}\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: table}}}}\n"),
        );
        call(folder, &["run", "pipeline.yaml"]).exit(0);
    }
    for folder in ["one", "two"] {
        for named in [&[][..], &["--file", "pipeline.yaml"]] {
            let rows = call(folder, &[&["show", "rows", "--json"], named].concat()).exit(0).events();
            assert_eq!(rows[0]["id"], folder, "{named:?}");
        }
        let audit = call(folder, &["audit", "latest", "--file", "pipeline.yaml", "--json"]).exit(0).events().remove(0);
        let runs = call(folder, &["runs", "--json"]).exit(0).events();
        let own = runs.iter().find(|run| run["pipeline"] == folder).expect("a run");
        assert_eq!(audit["target"], format!("run {}", own["id"].as_str().expect("an id")));
    }
}

#[test]
fn a_run_that_goes_on_is_not_called_stopped() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\"}\n");
    let pipeline = |wait: &str| {
        mill.write(
            "pipeline.yaml",
            &format!(
                "name: waits\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: table}}}}\n  same: {{op: exec, \
                 from: rows, with: {{command: [/bin/sh, -c, \"{wait}cat\"], as: table}}}}\n"
            ),
        );
    };
    pipeline("");
    mill.run(&[]).exit(0);
    pipeline("while [ ! -e go ]; do sleep 0.1; done; ");
    let mut running = mill.command(&["run", "pipeline.yaml"]).spawn().expect("a run");
    let mut told = String::new();
    for _ in 0..100 {
        let shown = mill.call(&["show", "same"]);
        if shown.code == 2 {
            told = shown.stderr;
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let killed = running.kill().and_then(|()| running.wait());
    assert!(told.contains("`same` is not there yet") && told.contains("is running"), "{told}");
    assert!(killed.is_ok());
    assert!(mill.call(&["show", "same"]).exit(2).stderr.contains("it was stopped before its end"));
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for_before_a_run() {
    let mill = Mill::new();
    let made = std::process::Command::new("mkfifo").arg(mill.path("rows.csv")).status();
    assert!(made.is_ok_and(|status| status.success()));
    mill.write("pipeline.yaml", "name: pipe\nnodes:\n  rows: {op: read, with: {path: rows.csv, as: table}}\n");
    let mut validates = mill.command(&["validate", "pipeline.yaml"]).spawn().expect("a process");
    for _ in 0..200 {
        if validates.try_wait().expect("a state").is_some() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let killed = validates.kill();
    panic!("`validate` waits for the writer of a pipe: {killed:?}");
}

#[test]
fn the_quickstart_needs_nothing_but_the_program() {
    let mill = Mill::new();
    let small = "--set=documents=200,questions=40,student_documents=400,student_questions=300,student_steps=2";
    let sets = small.trim_start_matches("--set=").split(',').flat_map(|set| ["--set", set]);
    let args: Vec<&str> = ["quickstart"].into_iter().chain(sets).collect();
    let told = mill.call(&args).exit(0).stdout;
    assert!(told.starts_with("wrote pipelines/quickstart.yaml, and runs it:\n"), "{told}");
    assert!(told.contains("\nafter training") && told.contains("\ntry:  searchmill ui"), "{told}");
    assert!(mill.path("out/quickstart/report/report.html").is_file());
    assert!(mill.path("pipelines/pipeline.schema.json").is_file());
    let again = mill.call(&args).exit(0).stdout;
    assert!(again.starts_with("runs pipelines/quickstart.yaml:\n") && again.contains(" 0 ran"), "{again}");
    // What a person has changed stays.
    let own = mill.read("pipelines/quickstart.yaml").replace("chunk_words: 80", "chunk_words: 70");
    mill.write("pipelines/quickstart.yaml", &own);
    let told = mill.call(&args).exit(0).stdout;
    assert!(told.starts_with("runs pipelines/quickstart.yaml as it is here, changed from"), "{told}");
    assert_eq!(mill.read("pipelines/quickstart.yaml"), own);
    // A link that leads nowhere is not followed.
    let mill = Mill::new();
    std::fs::create_dir(mill.path("pipelines")).expect("a folder");
    std::os::unix::fs::symlink(mill.path("elsewhere.yaml"), mill.path("pipelines/quickstart.yaml")).expect("a link");
    mill.call(&args).exit(2);
    assert!(!mill.path("elsewhere.yaml").exists());
    // A file in the way of the folder.
    let mill = Mill::new();
    mill.write("pipelines", "");
    let told = mill.call(&args).exit(2).stderr;
    assert!(told.contains("pipelines") && told.contains("searchmill -C FOLDER quickstart"), "{told}");
}

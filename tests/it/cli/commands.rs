//! Tests of the smaller commands: their output, and that they change nothing else.

use std::io::Read;

use crate::harness::project::Mill;

const PIPELINE: &str = "\
name: commands
params: {size: 6, where: \"id <> 'd9'\"}
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  kept:   {op: filter, from: corpus, with: {where: \"${params.where}\"}}
  chunks: {op: chunk, from: kept, with: {size: \"${params.size}\", count: words}}
";

fn mill() -> Mill {
    let mill = Mill::new();
    let line = |n| format!("{}\n", serde_json::json!({"id": format!("d{n}"), "text": "some words. ".repeat(40)}));
    mill.write("documents.jsonl", &(0..40).map(line).collect::<String>());
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

#[test]
fn commands_that_only_read_make_no_store() {
    let mill = mill();
    for command in [&["show", "nobody"][..], &["logs"], &["why", "chunks"]] {
        let told = mill.call(command).exit(2);
        assert!(told.stderr.contains("there is no store at .searchmill yet"), "{command:?}: {}", told.stderr);
    }
    let with_file = ["why", "chunks", "--file", "pipeline.yaml"];
    for command in [&["runs"][..], &["plan", "pipeline.yaml"], &["status", "pipeline.yaml"], &with_file] {
        let told = mill.call(command).exit(0);
        assert_eq!(told.stderr.trim(), "there is no store at .searchmill yet", "{command:?}");
    }
    mill.call(&["run", "pipeline.yaml", "-n"]).exit(0);
    assert!(!mill.store_path().exists());
    mill.run(&[]).exit(0);
    assert_eq!(mill.call(&["runs"]).exit(0).stderr, "");
    let told = mill.call(&["show", "nobody"]).exit(2);
    assert!(told.stderr.contains("no node and no artifact `nobody`"), "{}", told.stderr);
}

#[test]
fn a_folder_of_something_else_does_not_become_a_store() {
    let mill = mill();
    let told = mill.call(&["run", "pipeline.yaml", "--store", "."]).exit(5);
    assert!(told.stderr.contains("is not a store and contains other files"), "{}", told.stderr);
    assert!(!mill.path(".gitignore").exists() && !mill.path("results").exists());
    let told = mill.call(&["run", "pipeline.yaml", "--store", "pipeline.yaml"]).exit(5);
    assert!(told.stderr.contains("pipeline.yaml"), "{}", told.stderr);
    mill.call(&["runs", "--store", "s3://bucket/store"]).exit(5);
    mill.call(&["runs", "-C", "nowhere"]).exit(2);
}

#[test]
fn why_asks_about_the_last_run_as_it_was_given() {
    let mill = mill();
    mill.write("small.yaml", "size: 8\n");
    mill.run(&["--params", "small.yaml", "--set", "where=id <> 'd1'", "--limit", "30"]).exit(0);
    let record: serde_json::Value = {
        let run = mill.store().run_ids().pop().expect("a run");
        serde_json::from_str(&mill.read(&format!(".searchmill/runs/{run}/run.json"))).expect("JSON")
    };
    assert_eq!(record["set"], serde_json::json!(["where=id <> 'd1'"]));
    assert_eq!((&record["params_files"][0], &record["limit"]), (&"small.yaml".into(), &30.into()));
    for node in ["corpus", "kept", "chunks"] {
        let told = mill.call(&["why", node]).exit(0);
        assert_eq!(told.stdout.trim(), format!("{node}: cached, nothing changed"));
        let said = "as in the last run: pipeline.yaml --params small.yaml --set \"where=id <> 'd1'\" --limit 30";
        assert_eq!(told.stderr.trim(), said);
    }
    let told = mill.call(&["why", "chunks", "--set", "size=9"]).exit(0);
    assert_eq!(
        told.stdout.trim(),
        "chunks: run\n  param `size` changed from 8 to 9",
        "arguments of `why` override those of the last run"
    );
    mill.write("small.yaml", "size: 7\n");
    let told = mill.call(&["why", "chunks"]).exit(0);
    assert_eq!(told.stdout.trim(), "chunks: run\n  param `size` changed from 8 to 7", "the file is read again");
    let told = mill.call(&["why", "corpus", "--file", "pipeline.yaml"]).exit(0);
    assert_eq!(told.stdout.trim(), "corpus: run\n  --limit was given, left out or changed");
    assert_eq!(told.stderr, "");
}

#[test]
fn logs_have_times_that_people_read_and_lines_that_machines_read() {
    let mill = mill();
    mill.run(&[]).exit(0);
    let told = mill.call(&["logs"]).exit(0).stdout;
    let is_time = |text: &str| {
        let pattern = "dddd-dd-ddTdd:dd:dd.dddZ";
        let fits = |(wanted, ch): (char, char)| if wanted == 'd' { ch.is_ascii_digit() } else { ch == wanted };
        text.len() == pattern.len() && pattern.chars().zip(text.chars()).all(fits)
    };
    assert!(told.lines().count() >= 8, "{told}");
    for line in told.lines() {
        assert!(is_time(line.split(' ').next().unwrap_or_default()), "{line}");
    }
    assert!(told.contains("node started   node=chunks operator=chunk (no cached result)"), "{told}");
    let events = mill.call(&["logs", "--json"]).exit(0).events();
    assert!(events.iter().all(|event| event["time"].as_f64().is_some_and(|time| time > 1.6e9)), "{events:?}");
    let one = mill.call(&["logs", "--node", "kept", "--json"]).exit(0).events();
    assert!(one.len() == 2 && one.iter().all(|event| event["node"] == "kept"), "{one:?}");
}

#[test]
fn a_reader_that_leaves_early_hurts_nobody() {
    let mill = mill();
    mill.run(&[]).exit(0);
    for command in [
        &["show", "chunks", "-n", "0"][..],
        &["show", "chunks", "-n", "0", "--json"],
        &["schema"],
        &["logs"],
        &["--help"],
        &["ops", "rollout"],
        &["run", "pipeline.yaml", "-f", "--json"],
    ] {
        let mut child = mill.command(command).spawn().expect("the program can be started");
        let mut first = [0; 1];
        child.stdout.take().expect("stdout").read_exact(&mut first).expect("a byte");
        // Closes the pipe before most of the output is written.
        let told = child.wait_with_output().expect("it ends");
        let stderr = String::from_utf8_lossy(&told.stderr);
        assert!(!stderr.contains("panicked"), "{command:?}: {stderr}");
        assert_eq!(told.status.code(), Some(0), "{command:?}: {stderr}");
    }
}

#[test]
fn a_run_ends_with_the_whole_analysis_and_show_has_it_again() {
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        "name: short\nnodes:\n  world: {op: generate-world, with: {documents: 150, questions: 40}, seed: 5}\n  chunks: \
         {op: chunk, from: world, with: {size: 60, count: words}}\n  bm25: {op: index, from: chunks, with: {kind: \
         bm25}}\n  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence}}\n  \
         scores: {op: evaluate, from: rollouts}\n",
    );
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0).stdout;
    let whole = mill.call(&["show", "scores", "-n", "1"]).exit(0).stdout;
    assert!(whole.contains("Token Usage (Last Turn)") && whole.lines().count() > 60, "{whole}");
    for table in [
        "Scores and No-Retrieval Baselines",
        "Dataset Summary",
        "Performance Metrics",
        "Finish Reasons",
        "Conversation Dynamics",
        "Total tool calls",
        "Token Usage (Last Turn)",
        "Token Usage (All Turns - Cumulative)",
        "Turn Distribution (rounds)",
        "Tool Calls Distribution",
    ] {
        assert!(told.contains(table) && whole.contains(table), "{table}: {told}");
    }
    let events = mill.run(&["-f"]).exit(0).events();
    let finished = events.iter().find(|event| event["event"] == "node_finished" && event["node"] == "scores");
    assert!(finished.expect("an event")["summary"].as_str().unwrap_or_default().contains("Token Usage (Last Turn)"));
}

#[test]
fn slips_of_the_command_line_are_told_with_what_was_meant() {
    let mill = mill();
    let told = mill.call(&["run", "pipeline.yaml", "chunk"]).exit(2).stderr;
    assert!(told.contains("there is no node `chunk`") && told.contains("did you mean `chunks`?"), "{told}");
    let told = mill.call(&["run", "pipeline.yaml", "--only", "zzzzzzzzzz"]).exit(2).stderr;
    assert!(told.contains("nodes: `corpus`, `kept`, `chunks`"), "{told}");
    mill.call(&["run", "pipeline.yaml", "-j", "0"]).exit(2);
    mill.run(&[]).exit(0);
    let told = mill.call(&["show", "chunk"]).exit(2).stderr;
    assert!(told.contains("did you mean `chunks`?"), "{told}");
    let told = mill.call(&["show", "chunks", "--rejects"]).exit(0);
    assert_eq!((told.stdout.as_str(), told.stderr.trim()), ("", "0 of 0 reject rows"));
}

#[test]
fn ops_tell_the_effect_as_it_is() {
    let mill = Mill::new();
    let told = mill.call(&["ops"]).exit(0).stdout;
    let effect = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_default();
        line[name.len()..].trim_start().split("  ").next().unwrap_or_default().to_owned()
    };
    assert_eq!(["rollout", "read", "sample"].map(effect), ["external (endpoint)", "pure", "seeded"]);
    let rollout = mill.call(&["ops", "rollout"]).exit(0).stdout;
    assert!(rollout.contains("Effect: external (endpoint). Result: exact everywhere, or exact on one"), "{rollout}");
    assert!(!rollout.contains("Params of"), "{rollout}");
    for line in [
        "  questions (question rows)  ",
        "  documents (document or chunk rows, by its params)  ",
        "  recorded (trajectory rows, optional, by its params)  ",
        "  tools (list of object)  ",
        "    open (object, required)  ",
        "      page_chars (integer, default 8000)  ",
        "      parameters (any value, required)  ",
    ] {
        assert!(rollout.contains(&format!("\n{line}")), "{line}: {rollout}");
    }
    let lines = mill.call(&["ops", "--json"]).exit(0).events();
    let sample = mill.call(&["ops", "sample"]).exit(0).stdout;
    assert!(sample.contains("\nOne of `n` and `fraction` must be given.\n"), "{sample}");
    assert!(lines.len() > 20 && lines.iter().all(|line| line["effect"].is_string()));
}

#[test]
fn a_reference_to_a_split_names_its_part() {
    let mill = mill();
    let pipeline = |from: &str| {
        format!(
            "name: parts\nnodes:\n  corpus: {{op: read, with: {{path: documents.jsonl, as: document}}}}\n  parts: {{op: split, \
             from: corpus, with: {{parts: {{train: 0.8, test: 0.2}}}}}}\n  some: {{op: sample, from: {from}, with: {{n: 2}}}}\n"
        )
    };
    mill.write("parts.yaml", &pipeline("parts"));
    let told = mill.call(&["validate", "parts.yaml"]).exit(2);
    for words in ["error[unnamed-port]", "parts.yaml:5:28", "write `parts.test` or `parts.train`"] {
        assert!(told.stderr.contains(words) || told.stdout.contains(words), "{}{}", told.stdout, told.stderr);
    }
    mill.write("parts.yaml", &pipeline("parts.train"));
    mill.call(&["validate", "parts.yaml"]).exit(0);
}

#[test]
fn rejects_stand_in_the_last_line_and_show_says_whose_run_it_shows() {
    let mill = mill();
    let documents = std::fs::read_to_string(mill.path("documents.jsonl")).unwrap();
    mill.write("documents.jsonl", &format!("{documents}broken\n{{\n"));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("2 rows rejected"), "{}", told.stdout);
    mill.write(
        "other.yaml",
        "name: other\nnodes:\n  world: {op: generate-world, with: {documents: 100, questions: 2}}\n",
    );
    mill.call(&["run", "other.yaml"]).exit(0);
    let told = mill.call(&["show", "kept"]).exit(0);
    assert!(told.stderr.contains("of `commands`: the last run has no output of it"), "{}", told.stderr);
    let told = mill.call(&["show", "kept", "--run", "nothing"]).exit(2);
    assert!(told.stderr.contains("there is no run `nothing`"), "{}", told.stderr);
    let told = mill.call(&["diff", "previous", "latest"]).exit(2);
    assert!(told.stderr.contains("there is no earlier run of the pipeline `other`"), "{}", told.stderr);
}

#[test]
fn an_index_is_tried_from_the_command_line() {
    let mill = crate::servers::serve_env::project(crate::servers::serve_env::SMALL);
    let told = mill.call(&["search", "bm25", "capital of Italy", "-n", "1"]).exit(0).stdout;
    assert!(told.contains("1. Rome") && told.contains("rome#0") && told.contains("on the Tiber"), "{told}");
    let rows = mill.call(&["search", "bm25", "capital", "--json"]).exit(0).events();
    let ids: Vec<&str> = rows.iter().filter_map(|row| row["chunk_id"].as_str()).collect();
    assert!(ids.len() == 2 && ids.contains(&"rome#0") && ids.contains(&"paris#0"), "{ids:?}");
    assert_eq!((rows[0]["rank"].as_u64(), rows[1]["rank"].as_u64()), (Some(1), Some(2)));
    let none = mill.call(&["search", "bm25", "zzz"]).exit(0);
    assert_eq!((none.stdout.as_str(), none.stderr.trim()), ("", "nothing was found"));
    let wrong = mill.call(&["search", "corpus", "x"]).exit(2).stderr;
    assert!(wrong.contains("`corpus` is not a search index"), "{wrong}");
    mill.call(&["search", "bm25", "x", "-n", "0"]).exit(2);
}

#[test]
fn shells_complete_commands() {
    let mill = crate::harness::project::Mill::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = mill.call(&["completions", shell]).exit(0).stdout;
        assert!(script.contains("searchmill") && script.contains("validate"), "{shell}");
    }
    mill.call(&["completions", "cmd"]).exit(2);
}

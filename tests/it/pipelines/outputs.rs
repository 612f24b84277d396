//! Tests of complete output: ids are distinguished, joins report multiplied rows, and good files are not overwritten
//! with fewer rows.

use std::collections::BTreeMap;

use searchmill_fixtures::openai_server::{Step, answer, status};

use crate::harness::endpoint::{Bench, PIPELINE};
use crate::harness::project::{Mill, Told};

const QUESTIONS: [(&str, &str); 2] =
    [("hotpot", "Which band was founded first?"), ("wiki", "Who is the mother of the director?")];

fn two_sources() -> Mill {
    let mill = Mill::new();
    for (name, text) in QUESTIONS {
        let line = |row| format!("{{\"id\": \"dev_{row}\", \"question\": \"{text}\", \"golden_answers\": [\"a\"]}}\n");
        mill.write(&format!("{name}.jsonl"), &(0..3).map(line).collect::<String>());
    }
    mill
}

fn union(mill: &Mill, prefix: &str) {
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: union\nnodes:\n  hotpot: {{op: read, with: {{path: hotpot.jsonl, as: question{prefix}}}}}\n  wiki: \
             {{op: read, with: {{path: wiki.jsonl, as: question}}}}\n  both:\n    op: sql\n    from: {{h: hotpot, w: \
             wiki}}\n    with: {{as: question, query: \"SELECT * FROM h UNION ALL SELECT * FROM w\"}}\n"
        ),
    );
}

#[test]
fn a_union_of_colliding_ids_is_refused_with_both_rows_and_the_remedy() {
    let mill = two_sources();
    union(&mill, "");
    let told = mill.call(&["run", "pipeline.yaml"]).exit(1).stderr;
    assert!(told.contains("two question rows of `rows` have the id `dev_0`"), "{told}");
    assert!(told.contains(QUESTIONS[0].1) && told.contains(QUESTIONS[1].1), "{told}");
    assert!(told.contains("row 1:") && told.contains("row 4:") && told.contains("id_prefix"), "{told}");
    union(&mill, ", id_prefix: hotpot-");
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.ran(), "both hotpot");
    let told = mill.call(&["show", "both", "--json", "-n", "0"]).exit(0);
    let ids: Vec<_> = told.events().iter().map(|row| row["id"].as_str().unwrap_or_default().to_owned()).collect();
    assert_eq!(ids, ["hotpot-dev_0", "hotpot-dev_1", "hotpot-dev_2", "dev_0", "dev_1", "dev_2"]);
}

#[test]
fn two_columns_of_one_name_are_stored_by_no_operator() {
    let mill = two_sources();
    mill.write(
        "pipeline.yaml",
        "name: twice\nnodes:\n  h: {op: read, with: {path: hotpot.jsonl, as: question}}\n  both:\n    op: sql\n    from: \
         {h: h}\n    with: {query: \"SELECT a.id, b.id FROM h a JOIN h b ON a.id = b.id\"}\n",
    );
    let told = mill.call(&["run", "pipeline.yaml"]).exit(1).stderr;
    assert!(told.contains("two columns `id`") && told.contains("AS other_name"), "{told}");
}

#[test]
fn a_node_that_rejects_all_its_rows_is_no_success() {
    let mill = Mill::new();
    let row = r#"{"question": "Who?", "answer": "Ada", "gen_text_store": "</think> <answer>Ada</answer>"}"#;
    mill.write("results.jsonl", &format!("{row}\n"));
    let pipeline = |system: &str| {
        format!(
            "name: rewards\nnodes:\n  rollouts: {{op: read, with: {{path: results.jsonl, as: trajectory, layout: \
             r1-searcher}}}}\n  rewarded: {{op: reward, from: rollouts, with: {{system: {system}}}}}\n"
        )
    };
    mill.write("pipeline.yaml", &pipeline("search-r1-v0.3"));
    for again in ["a first run", "cached"] {
        let told = mill.run(&[]).exit(3);
        assert_eq!(told.summary()["emptied"], 1, "{again}");
    }
    let told = mill.call(&["run", "pipeline.yaml"]).exit(3).stdout;
    assert!(told.contains("1 node rejected all rows"), "{told}");
    let told = mill.call(&["run", "pipeline.yaml", "--force=rewarded"]).exit(3).stderr;
    assert!(told.contains("the reward reads rollouts of protocol `search-r1`; this one is of `r1-searcher`"), "{told}");
    mill.write("pipeline.yaml", &pipeline("r1-searcher-qwen"));
    assert_eq!(mill.run(&[]).exit(0).summary()["emptied"], 0);
}

#[test]
fn joins_that_multiply_rows_say_by_how_much() {
    let mill = two_sources();
    let join = |op: &str| {
        let text = format!(
            "name: joins\nnodes:\n  hotpot: {{op: read, with: {{path: hotpot.jsonl}}}}\n  wiki: {{op: read, with: \
             {{path: wiki.jsonl}}}}\n  joined: {op}\n"
        );
        mill.write("pipeline.yaml", &text);
        let told = mill.run(&["--no-cache"]).exit(0);
        let logs: Vec<_> = told.events().iter().filter(|event| event["event"] == "node_log").cloned().collect();
        logs.iter().map(|event| event["line"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let logs = join("{op: join, from: {left: hotpot, right: wiki}, with: {on: [golden_answers]}}");
    assert_eq!(logs, ["the join multiplies rows: 9 came of 3 of `left` (3.00 times as many)"]);
    let query = "SELECT h.id FROM h JOIN w ON h.golden_answers = w.golden_answers";
    let logs = join(&format!("{{op: sql, from: {{h: hotpot, w: wiki}}, with: {{query: \"{query}\"}}}}"));
    assert_eq!(logs, ["a join multiplies rows: 9 came of 3 and 3 (3.00 times as many)"]);
    let query = "SELECT h.id FROM h JOIN w ON h.id = w.id";
    assert!(join(&format!("{{op: sql, from: {{h: hotpot, w: wiki}}, with: {{query: \"{query}\"}}}}")).is_empty());
}

/// Returns a project whose answers are written to `answers.jsonl`; the `bad` last questions get an error, the
/// others an answer.
fn written(good: usize, bad: usize, write: &str) -> Bench {
    let step = |number: usize| if number < good { answer("Rome") } else { status(400) };
    let script: Vec<_> = (0..good + bad).map(|number| (format!("q{number}"), vec![step(number)])).collect();
    let bench = Bench::new(&script);
    let write = format!("  file: {{op: write, from: answers, with: {{path: answers.jsonl{write}}}}}\n");
    bench.mill.write("pipeline.yaml", &format!("{PIPELINE}{write}"));
    bench
}

fn held_back(told: &Told) -> BTreeMap<String, String> {
    let events = told.events();
    let held = events.iter().filter(|event| event["event"] == "held_back");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    held.map(|event| (text(&event["node"]), text(&event["reason"]))).collect()
}

#[test]
fn a_file_is_not_overwritten_when_rows_were_lost_before_it() {
    let bench = written(19, 1, "");
    assert_eq!(held_back(&bench.run(&[]).exit(3)), BTreeMap::new(), "5 % are within the limit");
    let good = bench.mill.read("answers.jsonl");
    assert_eq!(good.lines().count(), 19);

    // All rows are too long for the model.
    let mut bench = bench;
    let long = || {
        let words = serde_json::json!({"message": "This model's maximum context length is 10 tokens"});
        Step::Status(400, Vec::new(), words.to_string())
    };
    let down: Vec<_> = (0..25).map(|number| (format!("later {number}"), vec![long()])).collect();
    bench.serve(&down);
    bench.ask(&down.iter().map(|(question, _)| question.as_str()).collect::<Vec<_>>());
    for again in ["a first run", "cached, as far as it is known"] {
        let told = bench.run(&[]).exit(3);
        let held = held_back(&told);
        assert_eq!(held.keys().collect::<Vec<_>>(), ["file"], "{again}");
        let reason = &held["file"];
        assert!(
            reason.contains("100 % of the rows were lost") && reason.contains("`answers` lost 25 of 25"),
            "{reason}"
        );
        assert!(reason.contains("most often `refused`"), "{reason}");
        assert_eq!(told.summary()["held_back"], 1);
        assert_eq!(bench.mill.read("answers.jsonl"), good, "{again}");
    }
    let told = bench.call(&["run", "pipeline.yaml"]).exit(3).stderr;
    assert!(told.contains("answers.jsonl stays as it was") && told.contains("--deliver-anyway"), "{told}");
    let told = bench.run(&["--deliver-anyway"]).exit(3);
    assert_eq!(held_back(&told), BTreeMap::new());
    assert_eq!(bench.mill.read("answers.jsonl"), "");
}

#[test]
fn the_share_that_may_be_lost_is_the_nodes_own_and_no_part_of_its_key() {
    let bench = written(8, 2, "");
    let told = bench.run(&[]).exit(3);
    assert!(held_back(&told)["file"].starts_with("20 % of the rows were lost"), "{told:?}");
    assert!(!bench.mill.path("answers.jsonl").exists());
    bench.replace("answers.jsonl}", "answers.jsonl, max_reject_share: 0.2}");
    let told = bench.run(&[]);
    assert_eq!(held_back(&told), BTreeMap::new());
    assert!(told.cached().contains("file"), "{told:?}");
    assert_eq!(bench.mill.read("answers.jsonl").lines().count(), 8);
    // Dropped rows count as lost, too.
    bench.replace("max_reject_share: 0.2", "max_reject_share: 0.1");
    bench.replace("    retry:", "    on_error: drop\n    retry:");
    // What is there already is held back by nobody: nothing would change.
    assert_eq!(held_back(&bench.run(&[])), BTreeMap::new());
    // An edited file of the same length is another one: it stays.
    let edited = bench.mill.read("answers.jsonl").replace("answered", "ANSWERED");
    bench.mill.write("answers.jsonl", &edited);
    bench.run(&[]).exit(3);
    assert!(edited.contains("ANSWERED") && bench.mill.read("answers.jsonl") == edited);
    std::fs::remove_file(bench.mill.path("answers.jsonl")).expect("removed");
    let told = bench.run(&[]).exit(3);
    assert!(held_back(&told)["file"].contains("`answers` lost 2 of 10"), "{told:?}");
    assert!(!bench.mill.path("answers.jsonl").exists());
}

#[test]
fn an_empty_table_does_not_replace_a_file() {
    let mill = two_sources();
    let pipeline = |condition: &str| {
        let text = format!(
            "name: empty\nnodes:\n  all: {{op: read, with: {{path: hotpot.jsonl, as: question}}}}\n  some: {{op: \
             filter, from: all, with: {{where: \"{condition}\"}}}}\n  file: {{op: write, from: some, with: {{path: \
             some.jsonl}}}}\n"
        );
        mill.write("pipeline.yaml", &text);
        mill.run(&[])
    };
    pipeline("id != 'dev_1'").exit(0);
    let good = mill.read("some.jsonl");
    let told = pipeline("id = 'nothing'").exit(3);
    assert_eq!(held_back(&told)["file"], "no rows are left of those that were read");
    assert_eq!(mill.read("some.jsonl"), good);
    mill.run(&["--deliver-anyway"]).exit(0);
    assert_eq!(mill.read("some.jsonl"), "");
}

#[test]
fn rollouts_that_failed_are_counted_without_being_wired() {
    let bench = written(3, 2, "");
    bench.run(&[]).exit(3);
    let nodes = bench.mill.last_nodes();
    let scores = nodes.iter().find(|node| node.node == "scores").expect("scores");
    let result = bench.mill.store().result(&scores.key.expect("a key")).expect("a result");
    assert_eq!(result.figures["failed_rollouts"], 2.0);
    // Also through nodes that pass trajectories on.
    bench.replace("  scores:", "  some: {op: filter, from: answers, with: {where: \"turns >= 0\"}}\n  scores:");
    bench.replace("trajectories: answers", "trajectories: some");
    bench.run(&[]).exit(3);
    let nodes = bench.mill.last_nodes();
    let scores = nodes.iter().find(|node| node.node == "scores").expect("scores");
    let result = bench.mill.store().result(&scores.key.expect("a key")).expect("a result");
    assert_eq!(result.figures["failed_rollouts"], 2.0);
}

/// Returns the decoded content of a store: files as they are, tables as text.
fn unpacked(mill: &Mill) -> Vec<(String, String)> {
    let mut pending = vec![mill.store_path()];
    let mut found = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(crate::harness::project::files_in(&path));
            continue;
        }
        let name = path.display().to_string();
        let bytes = std::fs::read(&path).expect("a file");
        found.push((name.clone(), String::from_utf8_lossy(&bytes).into_owned()));
        if name.ends_with(".parquet") {
            let file = std::fs::File::open(&path).expect("a part");
            let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file);
            for batch in reader.expect("Parquet").build().expect("a reader") {
                found.push((name.clone(), format!("{:?}", batch.expect("rows").columns())));
            }
        }
    }
    found
}

#[test]
fn a_key_that_an_endpoint_repeats_is_nowhere() {
    const KEY: &str = "sk-live-5f3a/9c+B";
    let body = serde_json::json!({"error": {"message": format!("the key {KEY} is not valid")}}).to_string();
    let basic = "c2stbGl2ZS01ZjNhLzljK0";
    let script = [
        ("refused", vec![Step::Status(400, Vec::new(), body.clone())]),
        ("in a header", vec![Step::Status(400, Vec::new(), format!("Authorization: Basic {basic}I="))]),
        ("in a URL", vec![Step::Status(400, Vec::new(), "GET /?key=sk-live-5f3a%2F9c%2BB HTTP/1.1".to_owned())]),
        ("cut in two", vec![Step::Status(400, Vec::new(), format!("{}{KEY}", "x".repeat(490)))]),
        ("no completion", vec![Step::Body(body)]),
        ("said", vec![answer(&format!("Rome, by {KEY}"))]),
    ]
    .map(|(question, steps)| (question.to_owned(), steps));
    let mut bench = Bench::new(&script);
    bench.api_key = KEY;
    let told = bench.run(&[]).exit(3);
    let shown = bench.call(&["show", "answers", "--rejects", "--json", "-n", "0"]).exit(0);
    assert_eq!(shown.events().len(), 5, "{}", shown.stdout);
    assert!(shown.stdout.contains("the key [secret API_KEY] is not valid"), "{}", shown.stdout);
    let answers = bench.call(&["show", "answers", "--json", "-n", "0"]).exit(0);
    assert!(answers.stdout.contains("by [secret API_KEY]"), "{}", answers.stdout);
    // A failing node reports it on the terminal and in the ledger.
    bench.replace("    retry:", "    on_error: fail\n    retry:");
    let failed = bench.call(&["run", "pipeline.yaml"]).exit(1);
    let telling = |text: &str| ["sk-live-5f3a", basic].iter().any(|form| text.contains(form));
    for told in [&told, &shown, &answers, &failed] {
        assert!(!telling(&told.stdout) && !telling(&told.stderr), "{told:?}");
    }
    for (file, text) in unpacked(&bench.mill) {
        assert!(!telling(&text), "{file}");
    }
}

const WORDS: &str = "name: words\nnodes:\n  docs: {op: read, with: {path: SOURCE, as: document}}\n  few: {op: filter, from: \
                     docs, with: {where: \"id = 'd0'\"}}\n";

/// Writes a project of three documents; the first one is written to `path`.
fn first_to(mill: &Mill, source: &str, path: &str) {
    let line = |row| format!("{{\"id\": \"d{row}\", \"title\": null, \"text\": \"text {row}\"}}\n");
    mill.write("docs.jsonl", &(0..3).map(line).collect::<String>());
    let write = format!("  file: {{op: write, from: few, with: {{path: \"{path}\", format: jsonl}}}}\n");
    mill.write("pipeline.yaml", &format!("{}{write}", WORDS.replace("SOURCE", source)));
}

#[test]
fn nothing_that_the_pipeline_reads_is_overwritten() {
    let mill = Mill::new();
    std::fs::create_dir(mill.path("sub")).expect("a folder");
    #[cfg(unix)]
    std::os::unix::fs::symlink(".", mill.path("sub/link")).expect("a link");
    let whole = mill.path("docs.jsonl").display().to_string();
    let url = format!("file://{whole}");
    let cases = [
        ("docs.jsonl", "docs.jsonl"),
        ("docs.jsonl", "./sub/../docs.jsonl"),
        ("docs.jsonl", whole.as_str()),
        ("docs.jsonl", url.as_str()),
        (url.as_str(), "docs.jsonl"),
        ("\"*.jsonl\"", "new.jsonl"),
        ("sub/link/../docs.jsonl", "docs.jsonl"),
        ("docs.jsonl", "docs.jsonl/below.jsonl"),
        (".", "out/new.jsonl"),
    ];
    for (source, path) in cases {
        first_to(&mill, source, path);
        let good = mill.read("docs.jsonl");
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(
            told.contains("error[overwrites-source]") && told.contains("`file` writes to"),
            "{source} {path} {told}"
        );
        assert!(told.contains("pipeline.yaml:5:") && told.contains("give it another path"), "{told}");
        mill.run(&[]).exit(2);
        assert_eq!(mill.read("docs.jsonl"), good);
    }
    // A pattern covers only the files it matches.
    first_to(&mill, "\"d*.jsonl\"", "new.jsonl");
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
}

#[test]
fn the_pipeline_its_files_and_the_store_are_not_overwritten() {
    let mill = Mill::new();
    mill.write("params.yaml", "x: 1\n");
    mill.write("more.yaml", "nodes:\n  more: {op: generate-world, with: {documents: 150, questions: 20}}\n");
    let refused = |path: &str, code: &str, args: &[&str]| {
        first_to(&mill, "docs.jsonl", path);
        let text = mill.read("pipeline.yaml").replace("nodes:", "params: {x: 0}\ninclude: more.yaml\nnodes:");
        mill.write("pipeline.yaml", &text);
        for command in ["validate", "run"] {
            let told = mill.call(&[&[command, "pipeline.yaml"], args].concat()).exit(2).stderr;
            assert!(told.contains(&format!("error[{code}]")) && told.contains("pipeline.yaml:7:"), "{path} {told}");
        }
        assert_eq!(mill.read("pipeline.yaml"), text);
    };
    for path in ["pipeline.yaml", "more.yaml", "params.yaml"] {
        refused(path, "overwrites-pipeline", &["--params", "params.yaml"]);
    }
    for path in [".searchmill/format", ".searchmill", "elsewhere/store/x"] {
        let store: &[&str] = if path.starts_with('e') { &["--store", "elsewhere/store"] } else { &[] };
        refused(path, "overwrites-store", store);
    }
}

#[test]
fn no_destination_lies_in_another_one_or_is_its_manifest() {
    let mill = Mill::new();
    let whole = mill.path("out/a.jsonl").display().to_string();
    let pipeline = |other: &str| {
        first_to(&mill, "docs.jsonl", "out/a.jsonl");
        let write = format!("  other: {{op: write, from: docs, with: {{path: \"{other}\", format: jsonl}}}}\n");
        mill.write("pipeline.yaml", &(mill.read("pipeline.yaml") + &write));
        mill.call(&["validate", "pipeline.yaml"])
    };
    for other in [format!("file://{whole}").as_str(), "out/a.jsonl.manifest.json", "out", "out/a.jsonl/b.jsonl"] {
        let told = pipeline(other).exit(2).stderr;
        assert!(told.contains("error[same-destination]") && told.contains("`file` and `other` both write"), "{told}");
    }
    pipeline("out/b.jsonl").exit(0);
    mill.run(&[]).exit(0);
    // A file written by an earlier pipeline is read like any other.
    first_to(&mill, "out/b.jsonl", "out/c.jsonl");
    mill.run(&[]).exit(0);
    assert_eq!(mill.read("out/c.jsonl").lines().count(), 1);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_destination() {
    let mill = Mill::new();
    first_to(&mill, "docs.jsonl", "pipe.jsonl");
    let made = std::process::Command::new("mkfifo").arg(mill.path("pipe.jsonl")).status().expect("mkfifo");
    assert!(made.success());
    let told = mill.call(&["run", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("which is a pipe, socket or device"), "{told}");
}

#[test]
fn a_key_that_a_model_repeats_in_its_arguments_is_nowhere() {
    const KEY: &str = "sk-live-5f3a9c";
    let function = serde_json::json!({"name": "search", "arguments": {KEY: 1, "query": {KEY: [KEY]}}});
    let message = serde_json::json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
        "function": function}]});
    let script = [("q0".to_owned(), vec![Step::Say(message), answer("Rome")])];
    let mut bench = Bench::new(&script);
    bench.api_key = KEY;
    let told = bench.run(&[]);
    assert!(!told.stdout.contains(KEY) && !told.stderr.contains(KEY), "{told:?}");
    let shown = bench.call(&["show", "answers", "--json", "-n", "0"]).exit(0).stdout;
    assert!(shown.contains("[secret API_KEY]") && !shown.contains(KEY), "{shown}");
    for (file, text) in unpacked(&bench.mill) {
        assert!(!text.contains(KEY), "{file}");
    }
}

#[test]
fn numbers_are_written_as_they_were_read() {
    // Each is the shortest text of its number; a parser that rounds twice reads another number.
    let numbers = ["2.2322111021323864e-10", "12.088995980580641", "3.7052266664574674e-9", "0.30000000000000004"];
    let mill = Mill::new();
    let line =
        |(at, number): (usize, &&str)| format!("{{\"id\": \"q{at}\", \"question\": \"x\", \"score\": {number}}}\n");
    mill.write("q.jsonl", &numbers.iter().enumerate().map(line).collect::<String>());
    let nodes =
        "  q: {op: read, with: {path: q.jsonl, as: question}}\n  file: {op: write, from: q, with: {path: out.jsonl}}\n";
    mill.write("pipeline.yaml", &format!("name: numbers\nnodes:\n{nodes}"));
    mill.run(&[]).exit(0);
    for (number, line) in numbers.iter().zip(mill.read("out.jsonl").lines()) {
        assert!(line.contains(&format!("\"score\":{number}}}")), "{number}: {line}");
    }
}

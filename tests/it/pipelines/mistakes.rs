//! Tests of mistakes found before anything runs, and of their messages.

use crate::harness::project::Mill;

const WORLD: &str =
    "name: slips\nnodes:\n  world: {op: generate-world, with: {documents: 150, questions: 20}, seed: 5}\n";

fn mill(nodes: &str) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &format!("{WORLD}{nodes}"));
    mill
}

/// Returns the output of `validate`.
fn refused(nodes: &str) -> String {
    mill(nodes).call(&["validate", "pipeline.yaml"]).exit(2).stderr
}

#[test]
fn two_nodes_that_write_to_one_place_are_refused() {
    let write = |path: &str, more: &str| format!("{{op: write, from: world, with: {{path: \"{path}\"}}{more}}}\n");
    let told = refused(&format!("  a: {}  b: {}", write("out/x.jsonl", ""), write("./out/../out/x.jsonl", "")));
    assert!(told.contains("`a` and `b` both write to `./out/../out/x.jsonl`"), "{told}");
    assert!(told.contains("pipeline.yaml:5:") && told.contains("the first one writes here"), "{told}");
    let told = refused(&format!("  a: {}", write("out/x.jsonl", ", matrix: {n: [1, 2]}")));
    assert!(told.contains("`a@n=1` and `a@n=2`") && told.contains("${matrix.KEY}"), "{told}");
    let fine =
        format!("  a: {}  b: {}", write("s3://b/x.jsonl", ""), write("out/${matrix.n}.jsonl", ", matrix: {n: [1, 2]}"));
    mill(&fine).call(&["validate", "pipeline.yaml"]).exit(0);
}

#[test]
fn a_secret_that_is_not_set_is_told_before_anything_runs() {
    let rollouts = "  closed: {op: rollout, from: {questions: world.questions}, with: {policy: {endpoint: {base_url: \
                    \"http://127.0.0.1:9/v1\", model: m, api_key: \"${secret:SLIPS_KEY}\"}}}}\n";
    let mill = mill(rollouts);
    let told = mill.call(&["plan", "pipeline.yaml"]).exit(0).stderr;
    assert!(told.contains("`closed` needs the secret `SLIPS_KEY`, which is not set"), "{told}");
    let nodes = mill.call(&["plan", "pipeline.yaml", "--json"]).exit(0).events();
    assert_eq!(nodes[1]["secrets_not_set"], serde_json::json!(["SLIPS_KEY"]));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(2).stderr;
    assert!(
        told.contains("error[secret-not-set]") && told.contains("set the environment variable SLIPS_KEY"),
        "{told}"
    );
    assert!(mill.last_nodes().is_empty(), "nothing ran");
    // Nodes that do not need the secret run; with the secret set, the plan reports nothing.
    mill.run(&["world"]).exit(0);
    let told = mill.command(&["plan", "pipeline.yaml"]).env("SLIPS_KEY", "sk").output().expect("a plan");
    assert!(!String::from_utf8_lossy(&told.stderr).contains("SLIPS_KEY"));
}

#[test]
fn nodes_of_a_matrix_are_named() {
    let chunks = "  chunks: {op: chunk, from: world, with: {size: \"${matrix.size}\", count: words}, matrix: {size: [40, 60]}}\n";
    let index = "  bm25: {op: index, from: chunks, matrix: chunks, with: {kind: bm25}}\n";
    let told = refused(&format!("{chunks}{index}  out: {{op: write, from: bm25, with: {{path: out/index}}}}\n"));
    assert!(told.contains("name one of them: `bm25@size=40`, `bm25@size=60`"), "{told}");
    assert!(told.contains("or run this node for each: `matrix: bm25`"), "{told}");
    let whole = mill(&format!("{chunks}  bm25: {{op: index, from: chunks, with: {{kind: bm25}}}}\n"));
    let told = whole.call(&["validate", "pipeline.yaml"]).exit(0).stderr;
    assert!(told.contains("bm25: takes 2 variants of `chunks` as one table, `chunks@all`"), "{told}");
    let mill = mill(chunks);
    let told = mill.call(&["why", "chunks", "--file", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`chunks` has a matrix: name one of its nodes, for example `chunks@size=40`"), "{told}");
    let told = mill.call(&["run", "pipeline.yaml", "chunk"]).exit(2).stderr;
    assert!(told.contains("did you mean `chunks`?"), "{told}");
}

#[test]
fn a_wrong_word_is_told_with_the_right_one() {
    let told = refused("  bm25: {op: index, from: world, with: {kind: bm52}}\n");
    assert!(told.contains("`kind` of `index` cannot be `bm52`") && told.contains("did you mean `bm25`?"), "{told}");
}

#[test]
fn a_file_that_is_not_there_is_told_with_the_one_beside_it() {
    let mill = mill("  docs: {op: read, with: {as: document, path: documets.jsonl}}\n");
    mill.write("documents.jsonl", "");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:4:47") && told.contains("did you mean `documents.jsonl`? Relative"), "{told}");
    let mill = self::mill("  clean: {op: map, from: world.documents, with: {python: \"clean.py:rank\"}}\n");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("file or folder `clean.py`") && told.contains("pipeline.yaml:4:58"), "{told}");
}

#[test]
fn a_query_of_a_table_that_is_no_input_is_told_before_anything_runs() {
    let told = refused("  s: {op: sql, from: {d: world}, with: {query: \"SELECT id FROM documents\"}}\n");
    assert!(told.contains("there is no input `documents`") && told.contains("inputs: `d`"), "{told}");
    mill("  s: {op: sql, from: world, with: {query: \"SELECT id FROM input\"}}\n")
        .call(&["validate", "pipeline.yaml"])
        .exit(0);
}

#[test]
fn kinds_of_rows_are_described() {
    let mill = Mill::new();
    let all = mill.call(&["kinds"]).exit(0).stdout;
    assert!(all.lines().any(|line| line.starts_with("trajectory  One rollout")), "{all}");
    let question = mill.call(&["kinds", "question"]).exit(0).stdout;
    assert!(question.contains("  golden_answers (list of text)  Accepted answers"), "{question}");
    assert!(question.contains("    fact (text, optional)  Supporting sentence"), "{question}");
    let told = mill.call(&["kinds", "chunk", "--json"]).exit(0).events();
    assert_eq!((&told[0]["columns"][0]["name"], &told[0]["columns"][0]["type"]), (&"id".into(), &"text".into()));
    assert!(mill.call(&["kinds", "questoin"]).exit(2).stderr.contains("did you mean `question`?"));
}

#[test]
fn mistakes_are_json_too_where_json_is_asked_for() {
    let mill = mill("");
    for (command, word) in [(&["run", "pipeline.yaml", "wrld"][..], "wrld"), (&["kinds", "nothing"], "nothing")] {
        let told = mill.call(&[command, &["--json"]].concat()).exit(2);
        let line: serde_json::Value = serde_json::from_str(&told.stdout).expect("one line of JSON");
        assert!(line["severity"] == "error" && line["message"].as_str().unwrap_or_default().contains(word), "{line}");
        assert!(told.stderr.contains(word), "for people, too: {}", told.stderr);
    }
    let graph: serde_json::Value =
        serde_json::from_str(&mill.call(&["graph", "pipeline.yaml", "--json"]).exit(0).stdout).expect("JSON");
    assert_eq!(graph["nodes"][0]["id"], "world");
}

#[test]
fn a_teacher_without_any_evidence_says_so() {
    let mill = Mill::new();
    let line =
        |n: usize| format!("{{\"id\": \"q{n}\", \"question\": \"Who was {n}?\", \"golden_answers\": [\"x\"]}}\n");
    mill.write("questions.jsonl", &(0..5).map(line).collect::<String>());
    mill.write(
        "pipeline.yaml",
        &format!(
            "{WORLD}  chunks: {{op: chunk, from: world, with: {{size: 60, count: words}}}}\n  bm25: {{op: index, from: \
             chunks, with: {{kind: bm25}}}}\n  asked: {{op: read, with: {{path: questions.jsonl, as: question}}}}\n  \
             blind: {{op: rollout, from: {{questions: asked, search: bm25}}, with: {{policy: evidence}}}}\n  knowing: \
             {{op: rollout, from: {{questions: world.questions, search: bm25}}, with: {{policy: evidence}}}}\n"
        ),
    );
    let events = mill.run(&[]).exit(0).events();
    let said: Vec<_> =
        events.iter().filter(|event| event["line"].as_str().unwrap_or_default().contains("`evidence`")).collect();
    assert_eq!(said.iter().map(|event| event["node"].as_str()).collect::<Vec<_>>(), [Some("blind")]);
}

#[test]
fn a_share_of_one_is_all_rows_and_a_count_of_one_is_one() {
    let mill = Mill::new();
    let line = |n: usize| format!("{{\"id\": \"q{n}\", \"text\": \"x\"}}\n");
    mill.write("rows.jsonl", &(0..7).map(line).collect::<String>());
    for (size, rows) in [("1.0", 7), ("1", 1), ("3e0", 3)] {
        let text = "name: n\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: document}}\n  parts: {op: split, \
                    from: rows, with: {parts: {warm: SIZE}}}\n";
        mill.write("pipeline.yaml", &text.replace("SIZE", size));
        assert!(mill.run(&[]).exit(0).ran().contains("parts"), "{size} has a key of its own");
        let shown = mill.call(&["show", "parts.warm", "--json", "-n", "0"]).exit(0);
        assert_eq!(shown.events().len(), rows, "{size}: {}", shown.stdout);
    }
}

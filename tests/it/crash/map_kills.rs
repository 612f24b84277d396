//! `kill -9` in a `map` of each sort: same bytes, and nothing that was known is asked or called twice.

use std::time::{Duration, Instant};

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, message};

use crate::harness::project::{Mill, killed_after, killed_when};

const ASKED: usize = 24;
const IN_FLIGHT: usize = 4;
/// Rows that the model in this process answers.
const ANSWERED: usize = 400;

fn lines(mill: &Mill, name: &str) -> usize {
    std::fs::read_to_string(mill.path(name)).map_or(0, |text| text.lines().count())
}

/// Answers with two questions about each document.
fn script() -> Script {
    let say = |row: usize| {
        let made = format!(r#"{{"made": [{{"question": "a{row}?"}}, {{"question": "b{row}?"}}]}}"#);
        vec![Step::After(Duration::from_millis(50), Box::new(Step::Say(message(&made))))]
    };
    (0..ASKED).map(|row| (format!("Ask about text {row}."), say(row))).collect()
}

fn asking(server: &OpenAiServer) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", &rows(ASKED));
    mill.write(
        "pipeline.yaml",
        &format!(
            r#"name: asked
nodes:
  corpus: {{op: read, with: {{path: documents.jsonl, as: document}}}}
  made:
    op: map
    from: corpus
    with:
      prompt: "Ask about {{{{ text }}}}.{{{{ output_schema and '' }}}}"
      policy: {{endpoint: {{base_url: "{}", model: m, temperature: 1}}}}
      output: {{made: [{{question: text}}]}}
      explode: made
      samples: 2
      as: question
    resources: {{concurrency: {IN_FLIGHT}}}
"#,
            server.base_url()
        ),
    );
    mill
}

#[test]
fn several_samples_with_several_rows_each() {
    let calm = OpenAiServer::start_by_turn(script());
    let undisturbed = asking(&calm);
    undisturbed.run(&[]).exit(0);
    assert_eq!(calm.count(), 2 * ASKED);
    let server = calm.again();
    let mill = asking(&server);
    for kills in 1..=3 {
        let asked = server.count();
        killed_when(&mut mill.command(&["run", "pipeline.yaml"]), || server.count() >= asked + 8);
        assert!(server.count() < 2 * ASKED, "kill {kills} came too late");
    }
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
    assert!(server.count() <= 2 * ASKED + 3 * IN_FLIGHT, "{} calls for {}", server.count(), 2 * ASKED);
}

/// A model in this process: what it answered before the kill is read, and the rest is the same.
#[test]
fn a_model_in_this_process() {
    const PIPELINE: &str = r#"name: local
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  said:
    op: map
    from: corpus
    with:
      prompt: "{{ text }}"
      policy: {model: {model: MODEL, temperature: 1, max_tokens: 40}}
      output: draft
      samples: 2
"#;
    let model = searchmill_fixtures::models::searching_model("look ", "seen");
    let project = || {
        let mill = Mill::new();
        mill.write("documents.jsonl", &rows(ANSWERED));
        mill.write("pipeline.yaml", &PIPELINE.replace("MODEL", &model.path().display().to_string()));
        mill
    };
    let undisturbed = project();
    let start = Instant::now();
    undisturbed.run(&[]).exit(0);
    let time = start.elapsed();
    let mill = project();
    let mut kills = 0;
    for round in 1..=4 {
        let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
        kills += usize::from(killed_after(&mut command, time * round / 6));
    }
    assert!(kills > 0, "no run was killed");
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
}

const ROWS: usize = 20_000;

/// A project whose function writes a line for each row, or for each row of a batch.
fn calling(function: &str, with: &str) -> Mill {
    let mill = Mill::new();
    mill.write("rows.jsonl", &rows(ROWS));
    mill.write("f.py", function);
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: n\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}\n  made: {{op: map, from: rows, \
             with: {{python: \"f.py:f\"{with}}}}}\n"
        ),
    );
    mill
}

fn rows(count: usize) -> String {
    (0..count).map(|row| format!("{{\"id\": \"d{row}\", \"text\": \"text {row}\"}}\n")).collect()
}

/// Kills a run of the function in its second half, and compares the next one with an undisturbed run. Nothing is paid by such
/// a node: it begins anew. When it has ended, parts of a longer table are known.
fn killed_and_whole(function: &str, with: &str) {
    let undisturbed = calling(function, with);
    undisturbed.run(&[]).exit(0);
    assert_eq!(lines(&undisturbed, "called"), ROWS);
    let mill = calling(function, with);
    killed_when(&mut mill.command(&["run", "pipeline.yaml", "--json"]), || lines(&mill, "called") >= ROWS / 2);
    // Its processes notice it when they have answered.
    std::thread::sleep(Duration::from_millis(500));
    let before = lines(&mill, "called");
    assert!(before < ROWS, "the kill came too late");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(lines(&mill, "called"), before, "the function's processes ended with the run");
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
    let called = lines(&mill, "called");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    assert_eq!(lines(&mill, "called"), called);
    mill.write("rows.jsonl", &rows(ROWS + 100));
    mill.run(&[]).exit(0);
    assert!(lines(&mill, "called") < called + ROWS / 2, "parts that did not change are known");
}

#[test]
fn a_function_that_is_called_with_rows() {
    killed_and_whole(
        "import time\n\
         def f(text):\n    with open('called', 'a') as file: file.write(text + '\\n')\n    time.sleep(0.00002)\n    \
         return [{'text': text.upper()}, {'text': text}]\n",
        "",
    );
}

#[test]
fn a_function_that_is_called_with_batches() {
    let named = std::env::var("SEARCHMILL_TEST_PYTHON").ok();
    let python = named.into_iter().chain(["python3".to_owned()]).find(|python| {
        let probe = std::process::Command::new(python).args(["-c", "import pyarrow"]).output();
        probe.is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        searchmill_fixtures::skip("a python3 with pyarrow (SEARCHMILL_TEST_PYTHON names one)");
        return;
    };
    killed_and_whole(
        "import time\n\
         def f(batch):\n    texts = batch['text'].to_pylist()\n    \
         with open('called', 'a') as file: file.write('\\n'.join(texts) + '\\n')\n    time.sleep(0.003)\n    \
         return {'text': [text.upper() for text in texts]}\n",
        &format!(", batch: 100, interpreter: [\"{python}\"]"),
    );
}

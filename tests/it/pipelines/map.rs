//! Tests of `map` with a prompt: what is paid, kept and known.

use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, message};

use crate::harness::project::{Mill, killed_after};

const ROWS: usize = 24;

fn say(text: &str) -> Step {
    Step::After(Duration::from_millis(60), Box::new(Step::Say(message(text))))
}

/// Every third row needs a second answer, and one never gets one that fits.
fn script() -> Script {
    let steps = |row: usize| match row {
        5 => vec![say("never")],
        _ if row.is_multiple_of(3) => vec![say("five"), say(&fitting(row))],
        _ => vec![say(&fitting(row))],
    };
    (0..ROWS).map(|row| (format!("Rate text {row}."), steps(row))).collect()
}

fn fitting(row: usize) -> String {
    format!(r#"{{"reason": "because {row}", "score": {row}}}"#)
}

fn mill(server: &OpenAiServer) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &pipeline(server, "Rate {{ text }}."));
    mill.write("texts.jsonl", &texts("news"));
    mill
}

fn texts(topic: &str) -> String {
    (0..ROWS).map(|row| format!("{{\"text\": \"text {row}\", \"topic\": \"{topic}\"}}\n")).collect()
}

fn pipeline(server: &OpenAiServer, prompt: &str) -> String {
    format!(
        r#"name: mapped
nodes:
  texts: {{op: read, with: {{path: texts.jsonl, as: table}}}}
  rated:
    op: map
    from: texts
    with:
      prompt: "{prompt}{{{{ output_schema and '' }}}}"
      policy: {{endpoint: {{base_url: "{}", model: m, temperature: 0, prices: {{call: 0.01}}}}}}
      output: [{{reason: text}}, {{score: int}}]
    resources: {{concurrency: 4}}
  best: {{op: sql, from: {{r: rated}}, with: {{query: "SELECT topic, score FROM r ORDER BY score DESC LIMIT 3"}}}}
"#,
        server.base_url()
    )
}

#[test]
fn kill_9_in_a_map_pays_nothing_twice_and_gives_the_same_bytes() {
    let undisturbed = OpenAiServer::start_by_turn(script());
    let calm = mill(&undisturbed);
    calm.run(&[]).exit(3);
    let all = undisturbed.count();
    assert_eq!(all, ROWS + ROWS.div_ceil(3) + 2);
    let server = undisturbed.again();
    let mill = mill(&server);
    let mut kills = 0;
    for round in 0..6_u64 {
        kills += usize::from(killed_after(
            &mut mill.command(&["run", "pipeline.yaml", "--json"]),
            Duration::from_millis(180 + 67 * round),
        ));
    }
    assert!(kills >= 2, "only {kills} runs were killed");
    mill.run(&[]).exit(3);
    assert_eq!(mill.artifacts(), calm.artifacts());
    let again = server.count() - all;
    assert!(again <= kills * 4, "{again} calls were paid again after {kills} kills with 4 rows in flight");
}

#[test]
fn a_prompt_asks_anew_and_a_column_that_it_does_not_read_asks_none() {
    let server = OpenAiServer::start_by_turn(script());
    let mill = mill(&server);
    let told = mill.run(&[]).exit(3);
    assert!(told.stdout.contains("rated"), "{}", told.stdout);
    let paid = server.count();
    mill.run(&[]);
    assert_eq!(server.count(), paid, "the rejected row is read again from its remembered answers");
    mill.write("texts.jsonl", &texts("sport"));
    mill.run(&[]).exit(3);
    assert_eq!(server.count(), paid, "the topic is no part of the prompt");
    let best = mill.call(&["show", "best", "--format", "jsonl"]).exit(0).stdout;
    assert_eq!(best.lines().next(), Some(r#"{"topic":"sport","score":23}"#), "{best}");
    let rejects = mill.call(&["show", "rated", "--rejects", "--format", "jsonl"]).exit(0).stdout;
    assert!(rejects.contains("\"never\"") && rejects.contains("asked again 2 times"), "{rejects}");
    mill.write("pipeline.yaml", &pipeline(&server, "Rate {{ text }}!"));
    mill.call(&["run", "pipeline.yaml"]);
    assert!(server.count() > paid, "another prompt is another question");
}

#[test]
fn an_audit_looks_at_the_answers() {
    let server = OpenAiServer::start_by_turn(script());
    let mill = mill(&server);
    mill.run(&[]).exit(3);
    let told = mill.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("23 rows match the cached answers"), "{}", told.stdout);
}

/// Every answer becomes two rows; two input rows are equal.
const EXPLODED: &str = r#"name: exploded
nodes:
  texts: {op: read, with: {path: documents.jsonl, as: document}}
  made:
    op: map
    from: texts
    with:
      prompt: "{{ text }}{{ output_schema and '' }}"
      policy: {endpoint: {base_url: "URL", model: m, temperature: 0}}
      output: {made: [{question: text}]}
      explode: made
      samples: 2
      as: question
"#;

#[test]
fn an_audit_looks_at_every_row_of_an_answer() {
    let answer = say(r#"{"made": [{"question": "a?"}, {"question": "b?"}]}"#);
    let server =
        OpenAiServer::start([("Ada".to_owned(), vec![answer.clone()]), ("Bob".to_owned(), vec![answer])].into());
    let mill = Mill::new();
    mill.write("pipeline.yaml", &EXPLODED.replace("URL", &server.base_url()));
    let row = |id: &str, text: &str| format!("{{\"id\": \"{id}\", \"text\": \"{text}\"}}\n");
    mill.write("documents.jsonl", &[row("a", "Ada"), row("b", "Bob"), row("c", "Ada")].concat());
    mill.run(&[]).exit(0);
    let told = mill.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("12 rows match the cached answers"), "{}", told.stdout);
}

#[test]
fn mistakes_are_told_before_anything_is_paid() {
    let server = OpenAiServer::start_by_turn(script());
    let mill = mill(&server);
    mill.write("pipeline.yaml", &pipeline(&server, "Rate {{ text }."));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(
        told.stderr.contains("pipeline.yaml:8:") && told.stderr.contains("is no template: line 1"),
        "{}",
        told.stderr
    );
    mill.write("pipeline.yaml", &pipeline(&server, "Rate {{ txet }}."));
    let told = mill.call(&["run", "pipeline.yaml"]).exit(1);
    assert!(told.stderr.contains("the input has no column `txet`"), "{}", told.stderr);
    assert!(told.stderr.contains("did you mean `text`?"), "{}", told.stderr);
    assert_eq!(server.count(), 0);
}

#[test]
fn a_typo_in_a_prompt_is_told_at_its_message() {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"a\", \"text\": \"Ada\"}\n");
    let prompt = "{system: \"Be brief.\",\n        user: \"Rate {{ txet }} of {{ titel }}.\"}";
    mill.write("pipeline.yaml", &KNOWN.replacen("\"Rate {{ text }}.\"", prompt, 1));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("pipeline.yaml:10:") && told.contains("`txet`") && told.contains("`titel`"), "{told}");
}

#[test]
fn a_name_that_no_prompt_has_is_told_at_its_place() {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"a\", \"text\": \"Ada\"}\n");
    for (prompt, word, message) in [
        ("\"Say {{ text | uper }}.\"", "uper", "no filter `uper`"),
        ("|\n        Say: {{ text }}\n        {% if text is defind %}x{% endif %}", "defind", "no test `defind`"),
        ("{system: \"Be brief.\", user: \"{{ range(3) }}{{ rang(3) }}\"}", "rang(", "no function `rang`"),
        ("\"strp {{ text.strp() }}.\"", "strp()", "no method `strp`"),
    ] {
        mill.write("pipeline.yaml", &KNOWN.replacen("\"Rate {{ text }}.\"", prompt, 1));
        let shown = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        let written = mill.read("pipeline.yaml");
        let place = written.find(word).expect("the wrong word");
        let line = written[..place].matches('\n').count() + 1;
        let column = place - written[..place].rfind('\n').map_or(0, |end| end + 1) + 1;
        let place = format!("pipeline.yaml:{line}:{column}");
        assert!(shown.contains(&place) && shown.contains(message), "{prompt}: {place}: {shown}");
        assert!(shown.contains("did you mean") && !shown.contains("no column"), "{prompt}: {shown}");
    }
}

/// Columns that are known: documents of a file, through a predicate, a prompt and a query.
const KNOWN: &str = r#"name: known
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  long: {op: filter, from: corpus, with: {where: "length(text) > 3"}}
  rated:
    op: map
    from: long
    with:
      prompt: "Rate {{ text }}."
      policy: {endpoint: {base_url: "http://127.0.0.1:9/v1", model: m}}
      output: {score: int}
  best: {op: sql, from: {r: rated}, with: {query: "SELECT id, score FROM r ORDER BY score DESC"}}
  few: {op: filter, from: best, with: {where: "score > 3"}}
  asked:
    op: map
    from: long
    with:
      prompt: "Ask about {{ text }}."
      policy: {endpoint: {base_url: "http://127.0.0.1:9/v1", model: m}}
      output: {question: text, golden_answers: [text], hard: int}
      as: question
  hard: {op: filter, from: asked, with: {where: "hard > 3 AND document_id = 'a'"}}
"#;

#[test]
fn columns_that_are_known_are_checked_before_anything_runs() {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"a\", \"text\": \"Ada\"}\n");
    let told = |from: &str, to: &str, command: &str, code: i32| {
        assert!(KNOWN.contains(from));
        mill.write("pipeline.yaml", &KNOWN.replacen(from, to, 1));
        mill.call(&[command, "pipeline.yaml"]).exit(code).stderr
    };
    told("long", "long", "validate", 0);
    for (from, to, word, message) in [
        ("length(text)", "length(txt)", "txt", "there is no column `txt`"),
        ("length(text)", "lenght(text)", "lenght", "there is no function `lenght`"),
        ("{{ text }}", "txet of {{ txet }}", "txet }}", "the input has no column `txet`"),
        ("SELECT id, score", "SELECT id, scor", "scor FROM", "there is no column `scor`"),
        ("SELECT id, score FROM r", "SELECT id, score\n        FROM rr", "rr", "there is no input `rr`"),
        ("SELECT id, score", "SELECT id score nine,", "nine", "found: nine"),
        ("score > 3\"", "points > 3\"", "points", "there is no column `points`"),
        ("hard > 3", "hart > 3", "hart", "there is no column `hart`"),
    ] {
        let shown = told(from, to, "validate", 2);
        let written = mill.read("pipeline.yaml");
        let place = written.find(word).expect("the wrong word");
        let line = written[..place].matches('\n').count() + 1;
        let column = place - written[..place].rfind('\n').map_or(0, |end| end + 1) + 1;
        let place = format!("pipeline.yaml:{line}:{column}");
        assert!(shown.contains(&place) && shown.contains(message), "{to}: {place}: {shown}");
        let shown = told(from, to, "run", 2);
        assert!(shown.contains(message), "{to}: {shown}");
    }
    let shown = told("length(text) > 3", "metadata->>'a' = 'b'", "validate", 2);
    assert!(shown.contains("pipeline.yaml:4:") && shown.contains("write parentheses"), "types are checked: {shown}");
    let ran = mill.call(&["runs"]).stdout;
    assert!(!ran.contains("known"), "nothing ran: {ran}");
}

#[test]
fn a_result_without_rows_still_has_its_columns() {
    let server = OpenAiServer::start([("Rate text 0.".to_owned(), vec![say("never")])].into());
    let mill = mill(&server);
    mill.write("texts.jsonl", &texts("news").lines().take(1).collect::<String>());
    let told = mill.run(&[]).exit(3);
    assert!(told.stdout.contains("\"rows\":0") && told.ran().contains("best"), "{}", told.stdout);
}

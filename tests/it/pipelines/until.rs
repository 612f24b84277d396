//! Tests of `until`: which samples are drawn, and what is paid.

use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, answer, message, status};
use serde_json::Value;

use crate::harness::project::{Mill, Told, killed_when};

const ROWS: usize = 24;

/// A row's score: 0 to 3. Some answers are slow, so that later ones come first.
fn script() -> Script {
    let say = |row: usize| {
        let said = Step::Say(message(&format!(r#"{{"score": {}}}"#, row % 4)));
        Step::After(Duration::from_millis(if row.is_multiple_of(5) { 140 } else { 40 }), Box::new(said))
    };
    (0..ROWS).map(|row| (format!("Rate text {row}."), vec![say(row)])).collect()
}

/// A map with this goal.
fn mill(server: &OpenAiServer, until: &str, concurrency: usize) -> Mill {
    let mill = Mill::new();
    mill.write("texts.jsonl", &texts(0..ROWS));
    mill.write(
        "pipeline.yaml",
        &format!(
            r#"name: filled
nodes:
  texts: {{op: read, with: {{path: texts.jsonl, as: table}}}}
  rated:
    op: map
    from: texts
    with:
      prompt: "Rate {{{{ text }}}}.{{{{ output_schema and '' }}}}"
      policy: {{endpoint: {{base_url: "{}", model: m, temperature: 0}}}}
      output: {{score: int}}
      samples: 2
      until: {{{until}}}
    resources: {{concurrency: {concurrency}}}
    retry: {{max_attempts: 1}}
  best: {{op: filter, from: rated, with: {{where: "score >= 2"}}}}
"#,
            server.base_url()
        ),
    );
    mill
}

fn texts(rows: std::ops::Range<usize>) -> String {
    rows.map(|row| format!("{{\"text\": \"text {row}\"}}\n")).collect()
}

/// Number and sample of the rows of the output, in order.
fn drawn(mill: &Mill) -> Vec<(usize, u64)> {
    let told = mill.call(&["show", "rated", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).expect("a row");
        let number =
            row["text"].as_str().and_then(|text| text.strip_prefix("text ")).and_then(|text| text.parse().ok());
        (number.expect("a number"), row["sample"].as_u64().expect("a sample"))
    };
    told.lines().map(row).collect()
}

fn replace(mill: &Mill, from: &str, to: &str) {
    let text = mill.read("pipeline.yaml");
    assert!(text.contains(from), "{from}");
    mill.write("pipeline.yaml", &text.replace(from, to));
}

fn planned(mill: &Mill) -> Value {
    let told = mill.call(&["plan", "pipeline.yaml", "--json"]).exit(0);
    let all: Vec<Value> = told.events();
    let nodes = all.iter().flat_map(|value| value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]));
    let nodes: Vec<Value> =
        nodes.flat_map(|value| value["nodes"].as_array().cloned().unwrap_or_else(|| vec![value])).collect();
    nodes.into_iter().find(|node| node["node"] == "rated").unwrap_or_else(|| panic!("{}", told.stdout))
}

#[test]
fn any_concurrency_draws_the_same_rows_and_pays_for_few_more() {
    let wanted: Vec<(usize, u64)> = (0..16).map(|row| (row, 0)).collect();
    let mut artifacts = Vec::new();
    for concurrency in [1, 3, 16] {
        let server = OpenAiServer::start_by_turn(script());
        let mill = mill(&server, "rows: 8, where: \"score >= 2\", per_question: 1", concurrency);
        let told = mill.run(&[]).exit(0);
        assert_eq!(drawn(&mill), wanted, "{concurrency} at once");
        assert!(told.stdout.contains("8 rows pass after 16 samples"), "{}", told.stdout);
        assert!(server.count() < 16 + concurrency, "{} calls with {concurrency} at once", server.count());
        let figures = mill.last_nodes().into_iter().find(|node| node.node == "rated").expect("the node");
        let key = figures.key.expect("a key");
        let result = mill.store().result(&key).expect("a result");
        assert_eq!((result.figures["samples_drawn"], result.figures["rows_that_pass"]), (16.0, 8.0));
        artifacts.push(mill.artifacts());
    }
    assert_eq!(artifacts[0], artifacts[1]);
    assert_eq!(artifacts[0], artifacts[2]);
}

#[test]
fn a_looser_condition_pays_nothing_and_a_stricter_one_only_for_more() {
    let server = OpenAiServer::start_by_turn(script());
    let mill = mill(&server, "rows: 6, where: \"score >= 2\", per_question: 1", 1);
    assert_eq!(planned(&mill)["status"], "decided later");
    mill.run(&[]).exit(0);
    assert_eq!((drawn(&mill).len(), server.count()), (12, 12));
    replace(&mill, "where: \"score >= 2\", per", "where: \"score >= 1\", per");
    let plan = planned(&mill);
    assert_eq!((&plan["rows"]["known"], &plan["rows"]["to_compute"]), (&8.into(), &0.into()), "{plan}");
    mill.run(&[]).exit(0);
    assert_eq!((drawn(&mill).len(), server.count()), (8, 12), "all of them were known");
    replace(&mill, "where: \"score >= 1\", per", "where: \"score >= 3\", per");
    let plan = planned(&mill);
    let rows = &plan["rows"];
    assert_eq!((&rows["known"], &rows["to_compute"], &rows["at_most"]), (&12.into(), &33.into(), &true.into()));
    let text = mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(text.contains("at most 33"), "{text}");
    mill.run(&[]).exit(0);
    assert_eq!((drawn(&mill).len(), server.count()), (24, 24));
    // The end of the prompt's samples: the questions that lack a row are asked a second time.
    replace(&mill, "rows: 6", "rows: 7");
    let told = mill.run(&[]).exit(0);
    assert_eq!((drawn(&mill).len(), server.count()), (24 + 18, 24 + 18));
    let why = "warning: `until`: only 6 of 7 rows pass after 42 samples: every question has all its samples";
    assert!(told.stdout.contains(why), "{}", told.stdout);
    replace(&mill, "rows: 7,", "rows: 7, at_most: 30,");
    assert!(mill.run(&[]).exit(0).stdout.contains("only 6 of 7 rows pass after 30 samples: `at_most` is reached"));
    assert_eq!(server.count(), 24 + 18);
    let told = mill.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("rows match the cached answers"), "{}", told.stdout);
}

#[test]
fn a_source_that_grows_is_drawn_from_and_failed_samples_count_as_drawn() {
    let mut script = script();
    script.insert("Rate text 2.".to_owned(), vec![status(400)]);
    let server = OpenAiServer::start_by_turn(script);
    let mill = mill(&server, "rows: 5, where: \"score >= 2\", per_question: 1, at_most: 12", 1);
    mill.write("texts.jsonl", &texts(0..8));
    mill.run(&[]).exit(3);
    let second = [(0, 1), (1, 1), (4, 1)];
    let first: Vec<(usize, u64)> = (0..8).filter(|row| *row != 2).map(|row| (row, 0)).collect();
    assert_eq!(drawn(&mill), [first.clone(), second.to_vec()].concat(), "12 samples, two of them failed");
    let paid = server.count();
    mill.write("texts.jsonl", &texts(0..ROWS));
    mill.run(&[]).exit(3);
    let more = (8..12).map(|row| (row, 0));
    assert_eq!(drawn(&mill), first.into_iter().chain(more).collect::<Vec<_>>());
    assert_eq!(server.count(), paid + 5, "the failed sample and four new ones");
}

#[test]
fn a_budget_stops_drawing_and_the_next_run_goes_on() {
    let server = OpenAiServer::start_by_turn(script());
    let mill = mill(&server, "rows: 8, where: \"score >= 2\", per_question: 1", 3);
    mill.run(&["--budget", "calls=9"]).exit(4);
    assert_eq!(server.count(), 9);
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("8 rows pass after 16 samples"), "{}", told.stdout);
    assert!(server.count() < 16 + 3, "{} calls", server.count());
    assert_eq!(drawn(&mill), (0..16).map(|row| (row, 0)).collect::<Vec<_>>());
}

#[test]
fn kill_9_while_drawing_pays_nothing_twice_and_gives_the_same_bytes() {
    const KILLS: usize = 3;
    const UNTIL: &str = "rows: 13, where: \"score >= 2\", per_question: 1, at_most: 28";
    let calm = OpenAiServer::start_by_turn(script());
    let undisturbed = mill(&calm, UNTIL, 1);
    undisturbed.run(&[]).exit(0);
    let server = calm.again();
    let mill = mill(&server, UNTIL, 4);
    for _ in 0..KILLS {
        let asked = server.count();
        killed_when(&mut mill.command(&["run", "pipeline.yaml", "--json"]), || server.count() >= asked + 8);
    }
    mill.run(&[]).exit(0);
    assert_eq!(mill.artifacts(), undisturbed.artifacts());
    // Those in flight are lost, and a few are drawn that are not needed; without memory there were 8 more at each kill.
    let most = calm.count() + KILLS * 4 + 3;
    assert!(server.count() <= most, "{} calls, of which {} are needed", server.count(), calm.count());
}

#[test]
fn mistakes_are_told_before_anything_is_paid() {
    let server = OpenAiServer::start_by_turn(script());
    let told = |until: &str, command: &str, code: i32| -> Told {
        let mill = mill(&server, until, 1);
        mill.call(&[command, "pipeline.yaml"]).exit(code)
    };
    for (until, message) in [
        ("rows: 5, where: \"score >=\"", "not an SQL expression"),
        ("rows: 0, where: \"score > 1\"", "must be at least 1"),
        ("rows: 5, where: \"score > 1\", per_question: 3", "no question can have 3 rows with `samples: 2`"),
        ("rows: 5, where: \"score > 1\", at_most: 4", "4 samples cannot give 5 rows"),
    ] {
        let told = told(until, "validate", 2).stderr;
        assert!(told.contains("pipeline.yaml:12:") && told.contains(message), "{told}");
    }
    for (until, message) in [
        ("rows: 5, where: \"skore > 1\"", "did you mean `score`?"),
        ("rows: 5, where: \"score + 1\"", "not a condition: it is Int64"),
    ] {
        let told = told(until, "run", 1).stderr;
        assert!(told.contains(message), "{told}");
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn a_function_is_called_until_enough_rows_match() {
    let mill = Mill::new();
    mill.write("texts.jsonl", &texts(0..ROWS));
    mill.write("rate.py", "def rate(text):\n    print('called')\n    return {'score': int(text[5:]) % 4}\n");
    let pipeline = r#"name: filled
nodes:
  texts: {op: read, with: {path: texts.jsonl, as: table}}
  rated:
    op: map
    from: texts
    with: {python: "rate.py:rate", remember: row, output: {score: int}, until: {rows: 5, where: "score = 3"}}
"#;
    mill.write("pipeline.yaml", pipeline);
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("5 rows pass after 20 samples"), "{}", told.stdout);
    let shown = mill.call(&["show", "rated", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
    assert_eq!(shown.lines().count(), 20);
    mill.write("pipeline.yaml", &pipeline.replace("score = 3", "score >= 2"));
    assert!(mill.run(&[]).exit(0).stdout.contains("\"cached_rows\":11"));
    mill.write("pipeline.yaml", &pipeline.replace(" remember: row,", ""));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("a function needs `remember: row`"), "{told}");
}

/// Questions whose first rollouts are wrong.
#[test]
fn rollouts_are_drawn_until_enough_answers_are_right() {
    let wrong = |count: usize| [vec![answer("Paris"); count], vec![answer("Rome")]].concat();
    let script = (0..6).map(|number| (format!("what is {number}"), wrong(number % 3)));
    let server = OpenAiServer::start(script.collect());
    let mill = Mill::new();
    let question = |number| {
        format!("{{\"id\": \"q{number}\", \"question\": \"what is {number}\", \"golden_answers\": [\"Rome\"]}}\n")
    };
    mill.write("questions.jsonl", &(0..6).map(question).collect::<String>());
    let pipeline = format!(
        r#"name: filled
nodes:
  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}
  rollouts:
    op: rollout
    from: {{questions: questions}}
    with:
      policy: {{endpoint: {{base_url: "{}", model: m}}}}
      samples: 4
      until: {{rows: 5, where: "f1 >= 0.8 AND finish_reason = 'answered'", per_question: 1}}
    resources: {{concurrency: 3}}
  good: {{op: filter-by-f1, from: rollouts}}
"#,
        server.base_url()
    );
    mill.write("pipeline.yaml", &pipeline);
    let told = mill.run(&[]).exit(0);
    assert!(told.stdout.contains("5 rows pass after 11 samples"), "{}", told.stdout);
    let ids = mill.call(&["show", "rollouts", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
    let ids: Vec<String> = ids
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a row")["id"].as_str().expect("an id").to_owned())
        .collect();
    let wanted =
        ["q0@0", "q1@0", "q2@0", "q3@0", "q4@0", "q5@0", "q1@1", "q2@1", "q4@1", "q5@1", "q2@2"].map(str::to_owned);
    assert_eq!(ids, wanted);
    let good = mill.call(&["show", "good", "--format", "jsonl"]).exit(0).stdout;
    assert_eq!(good.lines().count(), 5);
    let audit = mill.call(&["audit", "latest", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("11 rows match the cached answers"), "{audit}");
    mill.write("pipeline.yaml", &pipeline.replace("f1 >= 0.8", "f2 >= 0.8"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("there is no column `f2`") && told.contains("`f1`"), "{told}");
}

#[test]
fn every_row_that_an_answer_is_exploded_to_counts() {
    let say = |row: usize| {
        let questions: Vec<Value> = (0..=row % 3).map(Value::from).collect();
        vec![Step::Say(message(&serde_json::json!({"scores": questions}).to_string()))]
    };
    let script: Script = (0..ROWS).map(|row| (format!("Rate text {row}."), say(row))).collect();
    let server = OpenAiServer::start_by_turn(script);
    let mut artifacts = Vec::new();
    for concurrency in [1, 8] {
        let mill = mill(&server, "rows: 7, where: \"scores >= 1\"", concurrency);
        replace(&mill, "output: {score: int}", "output: {scores: [int]}\n      explode: scores");
        replace(&mill, "where: \"score >= 2\"}}", "where: \"scores >= 2\"}}");
        let told = mill.run(&[]).exit(0);
        // Texts have 0, 1 and 2 such rows by turns: the eighth sample brings the seventh row.
        assert!(told.stdout.contains("7 rows pass after 8 samples"), "{}", told.stdout);
        let shown = mill.call(&["show", "rated", "-n", "0", "--format", "jsonl"]).exit(0).stdout;
        assert_eq!(shown.lines().count(), 1 + 2 + 3 + 1 + 2 + 3 + 1 + 2);
        artifacts.push(mill.artifacts());
    }
    assert_eq!(artifacts[0], artifacts[1]);
}

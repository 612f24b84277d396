//! The recipe `questions_judged`.

use searchmill_fixtures::openai_server::{OpenAiServer, Step, message};
use serde_json::{Value, json};

fn say(value: &Value) -> Vec<Step> {
    vec![Step::Say(message(&value.to_string()))]
}

#[test]
fn questions_that_the_judge_finds_good_are_written() {
    let titles = ["Ilse Brandt", "Torvik", "Tomas Vey", "Hestra", "Mount Serin", "Mount Alka"];
    let made = |title: &str| {
        let question = |text: &str| json!({"question": text, "golden_answers": [title]});
        json!({"made": [question(&format!("Who or what is {title}?")), question("Which one does this text describe?")]})
    };
    let asked = titles.iter().map(|title| (format!("text.\n\n{title}\n"), say(&made(title))));
    let judged = |question: &str, score: i32| {
        (format!("Question: {question}"), say(&json!({"reason": "because", "score": score})))
    };
    let scores = titles.iter().map(|title| judged(&format!("Who or what is {title}?"), 5));
    let script = asked.chain(scores).chain([judged("Which one does this text describe?", 1)]);
    let server = OpenAiServer::start(script.collect());
    let mill = super::recipe("questions_judged");
    let endpoint = format!("endpoint={}", server.base_url());
    mill.run(&["--set", &endpoint]).exit(0);
    let rows = mill.read("out/questions.jsonl");
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let texts: Vec<_> = rows.iter().filter_map(|row| row["question"].as_str()).collect();
    let wanted: Vec<_> = titles.iter().map(|title| format!("Who or what is {title}?")).collect();
    assert_eq!(texts, wanted);
    let scores = mill.call(&["show", "scores", "--format", "jsonl"]).exit(0).stdout;
    assert_eq!(
        scores.split_whitespace().collect::<Vec<_>>(),
        [r#"{"score":5,"questions":6}"#, r#"{"score":1,"questions":1}"#]
    );
    let paid = server.count();
    assert!(mill.run(&["--set", &endpoint]).exit(0).ran().is_empty(), "again, nothing runs");
    assert_eq!(server.count(), paid);
    // Another judge's threshold pays nothing.
    mill.run(&["--set", &endpoint, "--set", "least=1"]).exit(0);
    assert_eq!((server.count(), mill.read("out/questions.jsonl").lines().count()), (paid, 7));
}

//! The recipe `preference_pairs`.

use searchmill_fixtures::openai_server::{OpenAiServer, Step, answer, search};
use serde_json::Value;

#[test]
fn the_best_and_the_worst_rollout_of_a_question_become_a_pair() {
    let steps = |query: &str, answers: [&str; 2]| -> Vec<Step> {
        answers.iter().flat_map(|text| [search(&[query]), answer(text)]).collect()
    };
    let script = [
        ("Ilse Brandt was born?", steps("Ilse Brandt", ["the Orla", "the Rhine"])),
        ("Tomas Vey lived?", steps("Tomas Vey", ["Anna Kroll", "Anna Kroll"])),
        ("Mount Serin or Mount Alka?", steps("Mount Serin", ["Mount Serin is the higher one", "Mount Alka"])),
    ];
    let server = OpenAiServer::start(script.map(|(question, steps)| (question.to_owned(), steps)).into());
    let mill = super::recipe("preference_pairs");
    let endpoint = format!("endpoint={}", server.base_url());
    // Two samples, one by one: the server answers them in turn.
    let set = ["--set", &endpoint, "--set", "samples=2", "--set", "concurrency=1"];
    mill.run(&set).exit(0);
    let pairs = mill.read("out/pairs.jsonl");
    let last = |row: &Value, side: &str| {
        let messages = row[side].as_array().expect("messages");
        messages.last().map(|message| message["content"].to_string()).unwrap_or_default()
    };
    let rows: Vec<Value> = pairs.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<_> = rows.iter().map(|row| (last(row, "chosen"), last(row, "rejected"))).collect();
    assert_eq!(told.len(), 2, "equal answers give no pair: {told:?}");
    assert!(told[0].0.contains("the Orla") && told[0].1.contains("the Rhine"), "{told:?}");
    assert!(told[1].0.contains("Mount Alka") && told[1].1.contains("higher"), "{told:?}");
    let paid = server.count();
    assert!(mill.run(&set).exit(0).ran().is_empty(), "again, nothing runs");
    assert_eq!(server.count(), paid);
}

//! The recipe `best_of_n`.

use searchmill_fixtures::openai_server::{OpenAiServer, Step, answer, search};
use serde_json::Value;

use super::recipe;

/// A rollout that searches so often and then answers.
fn rollout(searches: usize, said: &str) -> Vec<Step> {
    [vec![search(&["Tarn Bridge"]); searches], vec![answer(said)]].concat()
}

#[test]
fn the_shortest_right_rollout_of_each_question_is_kept() {
    let rollouts = [
        ("Where was the designer of the Tarn Bridge born?", vec![rollout(2, "Skarvik"), rollout(1, "Skarvik")]),
        (
            "Who founded the university of the town where Mira Solheim studied?",
            vec![rollout(1, "Mira Solheim"), rollout(1, "Arne Lund"), rollout(3, "Bishop Arne Lund")],
        ),
        ("On which island is the port with a lighthouse of 1884?", vec![rollout(1, "Skarvik")]),
        ("In which year was the Tarn Bridge opened?", vec![rollout(1, "1931"), rollout(1, "1931")]),
    ];
    // The last rollout of a question is repeated.
    let script = rollouts.into_iter().map(|(question, mut rollouts)| {
        let last = rollouts.last().cloned().expect("a rollout");
        rollouts.extend(vec![last; 6]);
        (question.to_owned(), rollouts.concat())
    });
    let server = OpenAiServer::start(script.collect());
    let mill = recipe("best_of_n");
    let endpoint = format!("endpoint={}", server.base_url());
    let set = ["--set", &endpoint, "--set", "model=m"];
    let told = mill.run(&set).exit(0);
    // Two rounds of all four, then the two questions that lack right ones; the goal is met by the first of these.
    assert!(told.stdout.contains("6 rows pass after 9 samples"), "{}", told.stdout);
    let best = mill.call(&["show", "best", "--format", "jsonl"]).exit(0).stdout;
    let best: Vec<Value> = best.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let kept: Vec<(&str, &str)> = best
        .iter()
        .map(|row| (row["id"].as_str().expect("an id"), row["prediction"].as_str().expect("text")))
        .collect();
    assert_eq!(kept, [("q1@1", "Skarvik"), ("q2@1", "Arne Lund"), ("q4@0", "1931")]);
    assert_eq!(mill.read("out/train.jsonl").lines().count(), 3);
    let paid = server.count();
    assert_eq!(mill.run(&set).exit(0).ran(), "");
    assert_eq!(server.count(), paid);
    mill.run(&[&set[..], &["--set", "rows=5"]].concat()).exit(0);
    assert_eq!(server.count(), paid, "fewer rows need no new rollout");
}

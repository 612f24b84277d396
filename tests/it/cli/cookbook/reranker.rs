//! The recipe `reranker`.

use searchmill_fixtures::openai_server::{OpenAiServer, answer, search};
use serde_json::Value;

use super::recipe;

#[test]
fn the_model_sees_the_passage_that_the_function_puts_first() {
    let script = [
        ("Who designed the Tarn Bridge?", "Mira Solheim"),
        ("Until when did the keeper live in the Skarvik lighthouse?", "1962"),
    ]
    .map(|(question, said)| (question.to_owned(), vec![search(&[question]), answer(said)]));
    let server = OpenAiServer::start_by_turn(script.into());
    let mill = recipe("reranker");
    let endpoint = format!("endpoint={}", server.base_url());
    let set = ["--set", &endpoint, "--set", "model=m"];
    mill.run(&set).exit(0);
    let seen = || {
        let rollouts = mill.call(&["show", "rollouts", "--format", "jsonl"]).exit(0).stdout;
        let row = |line: &str| -> Vec<String> {
            let row: Value = serde_json::from_str(line).expect("a row");
            assert_eq!(row["tool_errors"], 0);
            let messages = row["messages"].as_array().expect("messages").iter();
            let seen = messages.flat_map(|message| message["observations"].as_array().cloned().unwrap_or_default());
            seen.map(|seen| seen["document_id"].as_str().expect("an id").to_owned()).collect()
        };
        rollouts.lines().map(row).collect::<Vec<_>>()
    };
    assert_eq!(seen(), [["d2"], ["d4"]], "BM25 puts d1 before d2");
    let paid = server.count();
    assert_eq!(mill.run(&set).exit(0).ran(), "");
    let pipeline = mill.read("pipeline.yaml");
    mill.write("pipeline.yaml", &pipeline.replace("      rerank:", "      # rerank:"));
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("{top_k: 5}", "{top_k: 1}"));
    mill.run(&set).exit(0);
    let plain = mill.call(&["show", "rollouts", "--format", "jsonl"]).exit(0).stdout;
    assert!(plain.contains("\"document_id\":\"d1\"") && !plain.contains("\"document_id\":\"d2\""), "{plain}");
    assert_eq!(
        server.count(),
        paid + 1,
        "the first turns are known; in one second turn, the model saw another passage"
    );
}

//! The recipe `own_documents`.

use std::collections::BTreeMap;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, answer, message, search};
use serde_json::{Value, json};

use super::recipe;
use crate::harness::project::Mill;

/// Chunk, its title, the question that the model writes about it, and its answer.
const CHUNKS: [(&str, &str, &str, &str); 11] = [
    ("urn:uuid:0d1f0000-0000-4000-8000-000000000001#0", "", "Who was Orlo's first salt captain?", "Runa Vest"),
    ("urn:uuid:0d1f0000-0000-4000-8000-000000000002#0", "", "Wer baute den Hafen von Orlo?", "Tile Harm"),
    ("history.md#0", "The salt pans of Nira", "Where do the salt pans of Nira lie?", "below the sea wall"),
    ("history.md#1", "The salt pans of Nira > Beginnings", "Who dug the first pan of Nira?", "Ilse Tann"),
    ("history.md#2", "The salt pans of Nira > Decline", "Which flood broke the sluice of Nira?", "The flood of 1740"),
    ("minutes.docx#0", "Minutes of the council > Spring 1688", "How did the council of 1688 vote?", "nine to two"),
    ("minutes.docx#1", "Minutes of the council > Autumn 1740", "Who voted for mending the sluice?", "Veit Sand"),
    ("notes/keeper.txt#0", "keeper", "Wer besitzt das Café „Zur Mühle“?", "Jörg Böhm"),
    ("report.pdf#0", "The sluice of Nira", "Who built the sluice of Nira?", "Oda Rehn"),
    ("visitors.html#0", "Visiting the pans", "Who guides visitors of the pans?", "Anselm Moor"),
    ("visitors.html#1", "Visiting the pans > How to get there", "Where does the ferry from Orlo land?", "east quay"),
];

pub(crate) fn rows(mill: &Mill, node: &str) -> Vec<Value> {
    let told = mill.call(&["show", node, "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    told.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

/// What the model writes about each chunk, and how it answers: the last question wrongly.
pub(crate) fn script(chunks: &[Value]) -> Script {
    let mut script = BTreeMap::new();
    for (chunk, (_, _, question, right)) in chunks.iter().zip(CHUNKS) {
        let made = json!({"question": question, "golden_answers": [right]}).to_string();
        let contents = chunk["contents"].as_str().expect("text").trim().to_owned();
        script.insert(contents, vec![Step::Say(message(&made))]);
        let said = if right == "east quay" { "the west quay" } else { right };
        script.insert(question.to_owned(), vec![search(&[question]), answer(said)]);
    }
    script
}

#[test]
fn a_folder_of_files_becomes_questions_rollouts_and_a_training_file() {
    let mill = recipe("own_documents");
    mill.run(&["--to", "chunks"]).exit(0);
    let chunks = rows(&mill, "chunks");
    let told: Vec<_> =
        chunks.iter().map(|row| (row["id"].as_str().unwrap(), row["title"].as_str().unwrap_or(""))).collect();
    assert_eq!(told, CHUNKS.map(|(id, title, ..)| (id, title)));
    let facts = |place: usize| -> Value {
        let metadata = &chunks[place]["metadata"];
        metadata.as_str().map_or_else(|| metadata.clone(), |text| serde_json::from_str(text).expect("JSON"))
    };
    assert_eq!(
        (facts(0)["url"].as_str(), facts(1)["language"].as_str()),
        (Some("https://orlo.example/port"), Some("deu"))
    );
    assert_eq!((facts(7)["encoding"].as_str(), &facts(7)["encoding_guessed"]), (Some("windows-1252"), &json!(true)));
    assert_eq!((&facts(8)["page"], &facts(8)["last_page"]), (&json!(1), &json!(2)));
    let server = OpenAiServer::start_by_turn(script(&chunks));
    let endpoint = format!("endpoint={}", server.base_url());
    let set = ["--set", &endpoint, "--set", "model=m"];
    mill.run(&set).exit(0);
    let questions = rows(&mill, "questions");
    let told: Vec<_> = questions.iter().map(|row| row["question"].as_str().unwrap()).collect();
    assert_eq!(told, CHUNKS.map(|(_, _, question, _)| question));
    let kept: Vec<_> = rows(&mill, "kept").iter().map(|row| row["question"].as_str().unwrap().to_owned()).collect();
    assert_eq!(kept, CHUNKS.map(|(_, _, question, _)| question.to_owned())[..10], "all but the wrong answer");
    assert_eq!(mill.read("out/train.jsonl").lines().count(), 10);
    let paid = server.count();
    assert_eq!(paid, 33, "one call for a question, two for a rollout");
    let again = mill.run(&set).exit(0);
    assert_eq!((again.ran().as_str(), server.count()), ("", paid));
}

#[test]
fn a_changed_file_asks_about_its_changed_chunks_and_a_broken_one_is_a_reject() {
    let mill = recipe("own_documents");
    mill.run(&["--to", "chunks"]).exit(0);
    let server = OpenAiServer::start_by_turn(script(&rows(&mill, "chunks")));
    let endpoint = format!("endpoint={}", server.base_url());
    let set = ["--to", "questions", "--set", &endpoint, "--set", "model=m"];
    mill.run(&set).exit(0);
    assert_eq!(server.count(), 11);
    mill.write("documents/.draft.md", "hidden");
    mill.write("documents/table.csv", "a,b\n");
    assert_eq!(mill.run(&set).exit(0).ran(), "", "neither hidden files nor other types are read");
    let history = mill.read("documents/history.md");
    mill.write("documents/history.md", &history.replace("# Decline", "# The end"));
    mill.write("documents/broken.pdf", "<!DOCTYPE html><p>not found");
    let told = mill.run(&set).exit(3);
    assert_eq!(server.count(), 12, "one section has another title; the server knows no answer for it");
    assert!(told.ran().contains("documents"), "{}", told.ran());
    let rejects = mill.call(&["show", "documents", "--rejects"]).exit(0).stdout;
    assert!(rejects.contains("broken.pdf") && rejects.contains("its content is an HTML page"), "{rejects}");
}

#[test]
fn threads_change_no_byte() {
    let run = |threads: usize| {
        let mill = recipe("own_documents");
        for number in 0..90_usize {
            let text = "A word, and another one. ".repeat(number * 37 % 211 + 1);
            mill.write(&format!("documents/{number:02}.md"), &format!("# Page {number}\n\n{text}\n"));
            mill.write(
                &format!("documents/{number:02}.html"),
                &format!("<html><body><h2>x</h2><p>{text}</p></body></html>"),
            );
        }
        let resources = format!("layout: files}}, resources: {{threads: {threads}}}}}");
        mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replacen("layout: files}}", &resources, 1));
        mill.run(&["--to", "chunks"]).exit(0);
        mill.artifacts()
    };
    let one = run(1);
    assert!(one.len() >= 2, "documents and chunks: {one:?}");
    assert_eq!(one, run(8));
}

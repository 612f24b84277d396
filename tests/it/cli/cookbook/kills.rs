//! `kill -9` in each recipe: the next run gives the same bytes, and pays for nothing that was answered.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, answer, message, search};
use serde_json::json;

use super::{own_documents, recipe};
use crate::harness::project::{Mill, Told, killed_after};

const KILLS: u32 = 4;

/// A recipe with the model that it asks.
struct Recipe {
    name: &'static str,
    script: Script,
    set: &'static [&'static str],
    /// Calls in flight at most.
    in_flight: usize,
    /// The exit code at the end.
    code: i32,
}

fn slow(step: Step) -> Step {
    Step::After(Duration::from_millis(60), Box::new(step))
}

fn rollouts<const N: usize>(answers: [(&str, &str); N]) -> Script {
    let steps = |said: &str, question: &str| vec![slow(search(&[question])), slow(answer(said))];
    answers.map(|(question, said)| (question.to_owned(), steps(said, question))).into()
}

/// Runs until nothing is left; a budget leaves rows to the next run.
fn to_the_end(mill: &Mill, args: &[&str], code: i32) -> Told {
    for _ in 0..8 {
        let told = mill.run(args);
        if told.code != 4 {
            return told.exit(code);
        }
    }
    panic!("every run met its budget")
}

/// Returns the files that the recipe writes.
fn written(mill: &Mill) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![mill.path("out")];
    while let Some(folder) = folders.pop() {
        for path in crate::harness::project::files_in(&folder) {
            if path.is_dir() {
                folders.push(path);
            } else {
                files.insert(path.strip_prefix(mill.path("")).expect("inside").display().to_string(), read(&path));
            }
        }
    }
    files
}

fn read(path: &std::path::Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl Recipe {
    fn gives_the_same_after_kills(self) {
        let calm = OpenAiServer::start_by_turn(self.script.clone());
        let args = |server: &OpenAiServer| {
            let endpoint = format!("endpoint={}", server.base_url());
            let mut args: Vec<String> = if self.script.is_empty() { vec![] } else { vec!["--set".into(), endpoint] };
            args.extend(self.set.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
            args
        };
        let undisturbed = recipe(self.name);
        let given = args(&calm);
        let start = Instant::now();
        to_the_end(&undisturbed, &given.iter().map(String::as_str).collect::<Vec<_>>(), self.code);
        let time = start.elapsed();
        let (server, mill) = (calm.again(), recipe(self.name));
        let given = args(&server);
        let given: Vec<&str> = given.iter().map(String::as_str).collect();
        let mut kills = 0;
        for round in 0..KILLS {
            let mut command = mill.command(&[&["run", "pipeline.yaml", "--json"], &given[..]].concat());
            kills += usize::from(killed_after(&mut command, time * (round + 2) / (KILLS + 4)));
        }
        assert!(kills > 0, "{}: no run was killed", self.name);
        to_the_end(&mill, &given, self.code);
        assert_eq!(mill.artifacts(), undisturbed.artifacts(), "{}", self.name);
        assert_eq!(written(&mill), written(&undisturbed), "{}", self.name);
        let (needed, paid) = (calm.count(), server.count());
        let most = needed + kills * self.in_flight;
        assert!(paid <= most, "{}: {paid} calls were paid, {needed} are needed, {kills} kills", self.name);
        assert_eq!(mill.run(&given).exit(self.code).ran(), "", "{}: again, nothing runs", self.name);
        assert_eq!(server.count(), paid);
    }
}

#[test]
fn best_of_n() {
    let script = rollouts([
        ("Where was the designer of the Tarn Bridge born?", "Skarvik"),
        ("Who founded the university of the town where Mira Solheim studied?", "Mira Solheim"),
        ("On which island is the port with a lighthouse of 1884?", "Skarvik"),
        ("In which year was the Tarn Bridge opened?", "1931"),
    ]);
    Recipe { name: "best_of_n", script, set: &["model=m"], in_flight: 8, code: 0 }.gives_the_same_after_kills();
}

#[test]
fn preference_pairs() {
    // All rollouts of a question are alike: there is no pair, and the file is held back.
    let script = rollouts([
        ("Ilse Brandt was born?", "the Orla"),
        ("Tomas Vey lived?", "Anna Kroll"),
        ("Mount Serin or Mount Alka?", "Mount Alka"),
    ]);
    Recipe { name: "preference_pairs", script, set: &["model=m", "concurrency=2"], in_flight: 2, code: 3 }
        .gives_the_same_after_kills();
}

#[test]
fn questions_judged() {
    let titles = ["Ilse Brandt", "Torvik", "Tomas Vey", "Hestra", "Mount Serin", "Mount Alka"];
    let say = |value: serde_json::Value| vec![slow(Step::Say(message(&value.to_string())))];
    let made = |title: &str| {
        let question = json!({"question": format!("Who or what is {title}?"), "golden_answers": [title]});
        (format!("text.\n\n{title}\n"), say(json!({"made": [question]})))
    };
    let judged =
        |title: &str| (format!("Question: Who or what is {title}?"), say(json!({"reason": "because", "score": 5})));
    let script = titles.iter().map(|title| made(title)).chain(titles.iter().map(|title| judged(title))).collect();
    Recipe { name: "questions_judged", script, set: &["concurrency=2"], in_flight: 2, code: 0 }
        .gives_the_same_after_kills();
}

#[test]
fn reranker() {
    let script = rollouts([
        ("Who designed the Tarn Bridge?", "Mira Solheim"),
        ("Until when did the keeper live in the Skarvik lighthouse?", "1962"),
    ]);
    Recipe { name: "reranker", script, set: &["model=m"], in_flight: 8, code: 0 }.gives_the_same_after_kills();
}

#[test]
fn nightly_budget() {
    let mill = recipe("nightly_budget");
    let text = [mill.read("inbox/monday.jsonl"), mill.read("inbox/tuesday.jsonl")].concat();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a row"));
    let said = json!({"score": 5, "reason": "it is true"}).to_string();
    let step = |row: serde_json::Value| {
        (row["text"].as_str().expect("a text").to_owned(), vec![slow(Step::Say(message(&said)))])
    };
    Recipe { name: "nightly_budget", script: rows.map(step).collect(), set: &["model=m"], in_flight: 6, code: 0 }
        .gives_the_same_after_kills();
}

#[test]
fn own_documents_and_their_questions() {
    let mill = recipe("own_documents");
    mill.run(&["--to", "chunks"]).exit(0);
    let mut script = own_documents::script(&own_documents::rows(&mill, "chunks"));
    for steps in script.values_mut() {
        *steps = steps.drain(..).map(slow).collect();
    }
    Recipe { name: "own_documents", script, set: &["model=m"], in_flight: 8, code: 0 }.gives_the_same_after_kills();
}

#[test]
fn recipes_without_a_model() {
    for name in ["retriever_study", "two_data_sets", "decontamination", "foreign_trajectories"] {
        Recipe { name, script: Script::new(), set: &[], in_flight: 0, code: 0 }.gives_the_same_after_kills();
    }
}

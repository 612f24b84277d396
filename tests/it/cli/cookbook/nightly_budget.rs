//! Every night within a budget: what is left is asked the next night, and nothing twice.

use std::collections::BTreeMap;

use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, message};

use crate::harness::project::{Mill, Told};

/// Answers by the text of a file in `inbox/`: its score.
fn server(mill: &Mill, score: impl Fn(&str) -> i64) -> OpenAiServer {
    let mut script = Script::new();
    for file in ["inbox/monday.jsonl", "inbox/tuesday.jsonl"] {
        for line in mill.read(file).lines() {
            let row: serde_json::Value = serde_json::from_str(line).expect("a row");
            let (id, text) = (row["id"].as_str().expect("an id"), row["text"].as_str().expect("a text"));
            let answer = format!(r#"{{"score": {}, "reason": "because of {id}"}}"#, score(id));
            script.insert(text.to_owned(), vec![Step::Say(message(&answer))]);
        }
    }
    OpenAiServer::start(script)
}

fn good(id: &str) -> i64 {
    if ["m2", "m4", "t2"].contains(&id) { 1 } else { 5 }
}

fn night(mill: &Mill, server: &OpenAiServer) -> Told {
    mill.run(&["--set", &format!("endpoint={}", server.base_url())])
}

fn written(mill: &Mill) -> Vec<String> {
    let text = mill.read("out/good.jsonl");
    let row = |line: &str| serde_json::from_str::<BTreeMap<String, serde_json::Value>>(line).expect("a row");
    text.lines().map(|line| row(line)["id"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn what_the_budget_leaves_out_is_asked_the_next_night() {
    let mill = super::recipe("nightly_budget");
    mill.call(&["test", "pipeline.yaml"]).exit(0);
    let server = server(&mill, good);
    let told = night(&mill, &server).exit(4);
    assert_eq!(server.count(), 6, "{}", told.stdout);
    assert_eq!((&told.summary()["skipped"], &told.summary()["budget"]), (&0.into(), &"6 of 6 calls".into()));
    // The budget leaves any two of the eight rows out, good ones or not.
    let first = written(&mill);
    assert!((3..=5).contains(&first.len()), "{first:?}");
    night(&mill, &server).exit(0);
    assert_eq!(
        (server.count(), written(&mill)),
        (8, vec!["m1".into(), "m3".into(), "t1".into(), "t3".into(), "t4".into()])
    );
    let told = night(&mill, &server).exit(0);
    assert_eq!((server.count(), told.ran()), (8, String::new()));
}

#[test]
fn scores_off_the_scale_hold_the_file_and_duplicates_stop_before_anything_is_paid() {
    let mill = super::recipe("nightly_budget");
    let server = server(&mill, |id| if id == "m3" { 11 } else { 5 });
    // The budget leaves any two of the eight rows out. If they hold the odd one, the first night writes the file.
    let told = night(&mill, &server);
    let (told, before) = if told.stdout.contains("score 11") {
        (told, None)
    } else {
        let before = mill.read("out/good.jsonl");
        (night(&mill, &server), Some(before))
    };
    assert!(told.stdout.contains("score 11"), "{}", told.stdout);
    assert_eq!(std::fs::read_to_string(mill.path("out/good.jsonl")).ok(), before, "nothing is written of an odd score");
    let paid = server.count();
    mill.write("inbox/wednesday.jsonl", "{\"id\": \"m1\", \"text\": \"again\"}\n");
    let told = night(&mill, &server).exit(1);
    assert!(told.stdout.contains("unique: id"), "{}", told.stdout);
    assert_eq!(server.count(), paid);
}

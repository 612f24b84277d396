//! Tests of the evidence teacher on real questions and corpora: 2WikiMultihopQA and HotpotQA.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;
use searchmill_text::normalize::{contains_words, normalize_answer};
use serde::Deserialize;

/// A question in the format of FlashRAG's files.
#[derive(Deserialize)]
struct Row {
    id: String,
    question: String,
    golden_answers: Vec<String>,
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    r#type: String,
    supporting_facts: Supporting,
    context: Context,
}

#[derive(Deserialize)]
struct Supporting {
    title: Vec<String>,
    sent_id: Vec<usize>,
}

/// Paragraphs by title, each a list of sentences (`content` in 2Wiki, `sentences` in HotpotQA).
#[derive(Deserialize)]
struct Context {
    title: Vec<String>,
    #[serde(alias = "sentences")]
    content: Vec<Vec<String>>,
}

#[derive(Deserialize)]
struct Passage {
    title: String,
    text: String,
}

fn data(name: &str) -> Option<PathBuf> {
    searchmill_fixtures::shared(&format!("data/{name}"))
}

fn rows(path: &std::path::Path) -> Vec<Row> {
    let text = std::fs::read_to_string(path).expect("a readable file");
    text.lines().map(|line| serde_json::from_str(line).expect("a question")).collect()
}

fn asked(row: &Row, with_facts: bool) -> Question {
    let places = row.metadata.supporting_facts.title.iter().zip(&row.metadata.supporting_facts.sent_id);
    let evidence = places.map(|(title, sentence)| Evidence {
        document_id: None,
        title: Some(title.clone()),
        fact: fact(&row.metadata.context, title, *sentence).filter(|_| with_facts),
    });
    Question {
        id: row.id.clone(),
        question: row.question.clone(),
        golden_answers: row.golden_answers.clone(),
        question_type: Some(row.metadata.r#type.clone()),
        evidence: evidence.collect(),
        metadata: None,
    }
}

fn fact(context: &Context, title: &str, sentence: usize) -> Option<String> {
    let place = context.title.iter().position(|known| known == title)?;
    context.content[place].get(sentence).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn passages(texts: impl Iterator<Item = (String, String)>) -> Vec<Chunk> {
    let unique: BTreeSet<(String, String)> = texts.collect();
    unique.iter().enumerate().map(|(i, (title, text))| chunk(&format!("d{i}"), title, text)).collect()
}

fn contexts(rows: &[Row]) -> Vec<Chunk> {
    passages(rows.iter().flat_map(|row| {
        let context = &row.metadata.context;
        context.title.iter().zip(&context.content).map(|(title, text)| (title.clone(), text.concat()))
    }))
}

fn roll(questions: &[Question], chunks: &[Chunk], params: Value) -> Vec<Trajectory> {
    roll_at_once(8, questions, chunks, params)
}

fn roll_at_once(concurrency: usize, questions: &[Question], chunks: &[Chunk], params: Value) -> Vec<Trajectory> {
    let mut harness = Harness::new();
    harness.concurrency = concurrency;
    let mut bound = inputs([("questions", rows_input(questions))]);
    bound.bind("search", bm25(&harness, chunks));
    let outcome = harness.run(&entry::<Rollout>(), params, &bound).expect("the node runs");
    assert!(outcome.rejects().is_empty());
    outcome.read("trajectories")
}

/// Returns the share answered of the questions whose documents are in the corpus. Asserts that every answer is gold
/// and supported by the searches, and that the other questions were not answered.
fn share_answered(name: &str, questions: &[Question], chunks: &[Chunk], rows: &[Trajectory]) -> f64 {
    assert_eq!(rows.len(), questions.len());
    let titles: BTreeSet<_> = chunks.iter().filter_map(|chunk| chunk.title.as_ref()).collect();
    let (mut answered, mut possible) = (0, 0);
    for (question, row) in questions.iter().zip(rows) {
        assert_eq!((&row.question_id, row.finish_reason.as_str()), (&question.id, "answered"));
        let known = question.evidence.iter().filter_map(|piece| piece.title.as_ref()).all(|t| titles.contains(t));
        possible += i32::from(known);
        if row.prediction != "Insufficient Information" {
            assert!(known, "{} was answered without its documents", question.id);
            let golden: Vec<_> = question.golden_answers.iter().map(|answer| answer.trim()).collect();
            assert!(golden.contains(&row.prediction.as_str()), "{}: {} of {golden:?}", question.id, row.prediction);
            assert!(question.evidence.iter().all(|piece| was_shown(row, piece)), "{}", question.id);
            answered += 1;
        }
    }
    let mean =
        |count: fn(&Trajectory) -> i32| rows.iter().map(|r| f64::from(count(r))).sum::<f64>() / rows.len() as f64;
    let (turns, calls) = (mean(|row| row.turns), mean(|row| row.tool_calls));
    println!(
        "{name}: answered {answered} of {possible} possible of {}, turns {turns:.2}, calls {calls:.2}",
        rows.len()
    );
    f64::from(answered) / f64::from(possible)
}

fn was_shown(row: &Trajectory, piece: &Evidence) -> bool {
    row.messages.iter().filter(|message| message.role == "tool").any(|message| {
        let by_title = message.observations.iter().any(|seen| seen.title == piece.title);
        by_title || piece.fact.as_ref().is_some_and(|fact| message.content.contains(fact))
    })
}

/// Returns queries that contain a golden answer found neither in the question nor in an earlier passage.
fn queries_that_tell(rows: &[Trajectory]) -> Vec<String> {
    let mut telling = Vec::new();
    for row in rows {
        let mut read = normalize_answer(&row.question);
        for message in &row.messages {
            for call in &message.tool_calls {
                let query = normalize_answer(&call.arguments);
                let answers = row.golden_answers.iter().map(|answer| normalize_answer(answer));
                let told = |answer: &String| contains_words(&query, answer) && !contains_words(&read, answer);
                telling.extend(answers.filter(told).map(|answer| format!("{}: {answer}: {}", row.id, call.arguments)));
            }
            if message.role == "tool" {
                read = format!("{read}\n{}", normalize_answer(&message.content));
            }
        }
    }
    telling
}

#[test]
fn two_wiki_is_mostly_answered_from_its_corpus() {
    let (Some(corpus), Some(dev)) = (data("2wikimultihopqa/corpus_6119.json"), data("2wikimultihopqa/dev_200.jsonl"))
    else {
        return;
    };
    let corpus: Vec<Passage> =
        serde_json::from_str(&std::fs::read_to_string(corpus).expect("a file")).expect("passages");
    let mut chunks = passages(corpus.into_iter().map(|passage| (passage.title, passage.text)));
    let rows = rows(&dev);
    chunks.extend(contexts(&rows).into_iter().map(|mut chunk| {
        chunk.id = format!("c{}", chunk.id);
        chunk
    }));
    let by_title: Vec<_> = rows.iter().map(|row| asked(row, false)).collect();
    let got = roll(&by_title, &chunks, json!({"policy": "evidence"}));
    assert!(share_answered("2wiki by document", &by_title, &chunks, &got) > 0.9);
    let by_fact: Vec<_> = rows.iter().map(|row| asked(row, true)).collect();
    let got = roll(&by_fact, &chunks, json!({"policy": {"evidence": {"parallel": true}}}));
    assert_eq!(queries_that_tell(&got), Vec::<String>::new());
    assert!(share_answered("2wiki by fact, parallel", &by_fact, &chunks, &got) > 0.9);
    assert!(got.iter().any(|row| row.messages.iter().any(|message| message.tool_calls.len() > 1)));
}

#[test]
fn hotpot_is_mostly_answered_from_its_contexts() {
    let Some(dev) = data("hotpotqa/dev_200.jsonl") else { return };
    let rows = rows(&dev);
    let questions: Vec<_> = rows.iter().map(|row| asked(row, true)).collect();
    let chunks = contexts(&rows);
    let got = roll(&questions, &chunks, json!({"policy": "evidence", "samples": 4}));
    assert_eq!(queries_that_tell(&got), Vec::<String>::new());
    let got = roll(&questions, &chunks, json!({"policy": "evidence"}));
    assert!(share_answered("hotpot by fact", &questions, &chunks, &got) > 0.9);
    for concurrency in [1, 64] {
        let again = roll_at_once(concurrency, &questions, &chunks, json!({"policy": "evidence"}));
        assert_eq!(got, again, "the same rows with {concurrency} in flight");
    }
    let one_search = roll(&questions, &chunks, json!({"policy": "evidence", "max_searches": 1, "samples": 1}));
    let share = share_answered("hotpot, one search", &questions, &chunks, &one_search);
    assert!(share < 0.6, "two hops are rarely found with one search: {share}");
}

#[test]
fn without_an_index_it_answers_nothing() {
    let Some(dev) = data("hotpotqa/dev_200.jsonl") else { return };
    let questions: Vec<_> = rows(&dev).iter().take(20).map(|row| asked(row, true)).collect();
    let harness = Harness::new();
    let bound = inputs([("questions", rows_input(&questions))]);
    let outcome = harness.run(&entry::<Rollout>(), json!({"policy": "evidence"}), &bound).expect("the node runs");
    let rows = outcome.read::<Trajectory>("trajectories");
    assert!(rows.iter().all(|row| row.prediction == "Insufficient Information" && row.tool_calls == 0));
}

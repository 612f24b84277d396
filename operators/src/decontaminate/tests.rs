//! Tests of `decontaminate`.

use std::fmt::Write;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input, tree_input};
use searchmill_engine::operator::{OperatorError, TreeKind, entry};
use searchmill_schemas::{Document, Question};
use serde_json::{Value, json};

use super::Decontaminate;

fn documents<S: AsRef<str>>(texts: &[S]) -> Vec<Document> {
    let document = |(place, text): (usize, &S)| Document {
        id: format!("d{place}"),
        title: None,
        text: text.as_ref().to_owned(),
        metadata: None,
    };
    texts.iter().enumerate().map(document).collect()
}

fn questions<S: AsRef<str>>(texts: &[S]) -> Vec<Question> {
    let question = |(place, text): (usize, &S)| {
        let row = json!({"id": format!("t{place}"), "question": text.as_ref(), "golden_answers": [], "evidence": []});
        serde_json::from_value(row).expect("a question")
    };
    texts.iter().enumerate().map(question).collect()
}

/// Checks documents against two test sets.
fn run<S: AsRef<str>>(texts: &[S], sets: [&[&str]; 2], params: Value) -> Result<Outcome, OperatorError> {
    run_in(&Harness::new(), texts, sets, params)
}

fn run_in<S: AsRef<str>>(
    harness: &Harness,
    texts: &[S],
    sets: [&[&str]; 2],
    params: Value,
) -> Result<Outcome, OperatorError> {
    let mut bound = inputs([("rows", rows_input(&documents(texts)))]);
    for set in sets {
        bound.bind("against", rows_input(&questions(set)));
    }
    let mut params = params;
    params["against_columns"] = json!(["question"]);
    harness.run(&entry::<Decontaminate>(), params, &bound)
}

fn kept(outcome: &Outcome) -> Vec<String> {
    outcome.read::<Document>("rows").into_iter().map(|document| document.id).collect()
}

/// Rows of `matches`: id, test set, test id, comparison, n-gram.
fn matches(outcome: &Outcome) -> Vec<String> {
    let batch = outcome.batch("matches");
    let text = |name: &str| batch.column_by_name(name).expect("a column").as_string::<i32>().clone();
    let (ids, tests, by, grams) = (text("id"), text("against_id"), text("by"), text("ngram"));
    let sets = batch.column_by_name("against").expect("a column").as_primitive::<Int64Type>().clone();
    let line = |row: usize| {
        let gram = if grams.is_valid(row) { grams.value(row) } else { "-" };
        format!("{} {} {} {} {gram}", ids.value(row), sets.value(row), tests.value(row), by.value(row))
    };
    (0..batch.num_rows()).map(line).collect()
}

const PRIZE: &str = "In which year did the woman who discovered polonium share the Nobel Prize in Physics?";
const RIVER: &str = "Which river flows through the birthplace of Chopin's teacher?";

#[test]
fn rows_that_share_an_ngram_are_dropped() {
    let texts = [
        format!("FAQ: {} It was 1903.", PRIZE.to_uppercase()),
        "in which year did the woman who discovered polonium share the Nobel medal".to_owned(),
        format!("Quiz. {RIVER} The Vistula."),
        "which river flows through the birthplace of the teacher".to_owned(),
        String::new(),
    ];
    let harness = Harness::new();
    let outcome = run_in(&harness, &texts, [&[PRIZE, "Who?"], &[RIVER, "", PRIZE]], json!({})).expect("runs");
    assert_eq!(kept(&outcome), ["d1", "d3", "d4"], "12 of 13 words do not match; 10 words match as a whole");
    assert_eq!(
        matches(&outcome),
        [
            "d0 1 t0 ngram in which year did the woman who discovered polonium share the nobel prize",
            "d0 2 t2 ngram in which year did the woman who discovered polonium share the nobel prize",
            "d2 2 t0 ngram which river flows through the birthplace of chopin s teacher",
        ]
    );
    assert_eq!((outcome.figures["rows_before"], outcome.figures["rows_matched"]), (5.0, 2.0));
    assert_eq!(outcome.figures["tests_too_short"], 2.0);
    assert!(outcome.summary.contains("2 test rows were not compared: fewer words"), "{}", outcome.summary);
    assert!(outcome.summary.contains("│ 1        │    2 │     1 │ 50.0% │             1 │"), "{}", outcome.summary);
    let page = std::fs::read_to_string(outcome.trees["report"].join("report.html")).expect("a page");
    assert!(page.contains("<td>which river flows through the birthplace of chopin s teacher</td>"), "{page}");
    assert_eq!(kept(&run(&texts, [&[RIVER], &[]], json!({"min_words": 11})).expect("runs")).len(), 5);
    assert_eq!(kept(&run(&texts, [&[PRIZE], &[]], json!({"ngram": 12})).expect("runs")), ["d2", "d3", "d4"]);
}

#[test]
fn marked_rows_stay() {
    let texts = [PRIZE, "another text"];
    let outcome = run(&texts, [&[PRIZE], &[RIVER]], json!({"mark": true})).expect("runs");
    let rows = outcome.batch("rows");
    let marks = rows.column_by_name("contaminated").expect("marks").as_boolean();
    assert_eq!(marks.iter().collect::<Vec<_>>(), [Some(true), Some(false)]);
    assert_eq!(kept(&outcome), ["d0", "d1"]);
    let empty = run::<&str>(&[], [&[PRIZE], &[]], json!({"mark": true})).expect("runs");
    assert!(empty.batch("rows").column_by_name("contaminated").is_some() && empty.batch("matches").num_rows() == 0);
}

#[test]
fn reworded_questions_match_by_similarity() {
    let reworded = PRIZE.replace("In which year did", "When did");
    let texts = [reworded.as_str(), RIVER, "Who wrote this?"];
    let params = json!({"ngram": 0, "minhash": {"ngram": 2, "threshold": 0.6, "banding": {"bands": 64, "rows": 2}}});
    let outcome = run(&texts, [&["Who wrote that?", PRIZE], &[]], params).expect("runs");
    assert_eq!(kept(&outcome), ["d1", "d2"]);
    assert_eq!(matches(&outcome), ["d0 1 t1 minhash -"]);
    let similarity =
        outcome.batch("matches").column_by_name("similarity").expect("a column").as_primitive::<Float64Type>().value(0);
    assert!((similarity - 11.0 / 15.0).abs() < 1e-12, "{similarity}");
}

#[test]
fn found_ngrams_are_those_of_a_search_through_all_texts() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut text = |words: usize| {
        let mut text = String::new();
        (0..words).for_each(|_| write!(text, " {}", ["a", "b", "c"][random.random_range(0..3)]).expect("written"));
        text
    };
    let rows: Vec<String> = (0..200).map(|place| text(place % 40)).collect();
    let tests: Vec<String> = (0..60).map(|place| text(place % 12 + 4)).collect();
    let parts: Vec<&str> = tests.iter().map(String::as_str).collect();
    let outcome = run(&rows, [&parts[..30], &parts[30..]], json!({"ngram": 9, "min_words": 6})).expect("runs");
    let has = |row: &str, test: &str| {
        let words: Vec<&str> = test.split_whitespace().collect();
        let padded = format!("{row} ");
        words.len() >= 6
            && words.windows(words.len().min(9)).any(|gram| padded.contains(&format!(" {} ", gram.join(" "))))
    };
    let wanted: Vec<String> = (0..rows.len())
        .filter(|&row| !tests.iter().any(|test| has(&rows[row], test)))
        .map(|row| format!("d{row}"))
        .collect();
    assert!((50..190).contains(&wanted.len()), "{}", wanted.len());
    assert_eq!(kept(&outcome), wanted);
    let listed = matches(&outcome);
    for (row, text) in rows.iter().enumerate() {
        let all = (0..tests.len()).filter(|&test| has(text, &tests[test])).take(10);
        let all: Vec<String> = all.map(|test| format!("d{row} {} t{} ngram", test / 30 + 1, test % 30)).collect();
        let mine = listed.iter().filter(|line| line.starts_with(&format!("d{row} ")));
        let mine: Vec<_> = mine.map(|line| line.split(' ').take(4).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(mine, all);
    }
}

#[test]
fn threads_change_nothing_and_long_texts_pass() {
    let long: String = (0..150_000).map(|number| format!("wort{} ", number % 9_973)).collect();
    let texts = [long.clone() + PRIZE, long, "東京タワーの高さは何メートルですか、教えてください。".to_owned()];
    let go = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let tests: [&[&str]; 2] = [&[PRIZE, "東京タワーの高さは何メートルですか"], &[RIVER]];
        pool.install(|| run(&texts, tests, json!({"minhash": {}}))).expect("runs")
    };
    let one = go(1);
    assert_eq!(kept(&one), ["d1"]);
    assert_eq!((one.batch("rows"), one.batch("matches")), (go(4).batch("rows"), go(4).batch("matches")));
}

#[test]
fn wrong_params_are_named() {
    let fails = |mut params: Value| {
        params["mark"] = json!(false);
        let bound = inputs([("rows", rows_input(&documents(&["a"]))), ("against", rows_input(&questions(&["a"])))]);
        Harness::new().run(&entry::<Decontaminate>(), params, &bound).expect_err("a mistake").message
    };
    for (params, path) in [
        (json!({"columns": []}), "columns: "),
        (json!({"against_columns": ["("]}), "against_columns.0: "),
        (json!({"ngram": 0}), "ngram: "),
        (json!({"min_words": 0}), "min_words: "),
        (json!({"minhash": {"threshold": 2}}), "minhash.threshold: "),
        (json!({}), "`against_columns`: there is no column `text`"),
        (json!({"columns": ["texts"], "against_columns": ["question"]}), "`columns`: there is no column `texts`"),
    ] {
        let message = fails(params);
        assert!(message.starts_with(path), "{message}");
    }
}

#[test]
fn rows_are_compared_by_the_vectors_of_indexes() {
    let harness = Harness::new();
    let dense = json!({"dense": {"encoder": {"hashing": {"dimensions": 128}}}});
    let made = |name: &str, texts: &[&str]| -> Vec<_> {
        let chunk = |(place, text): (usize, &&str)| crate::index::tests::chunk(&format!("{name}{place}"), None, text);
        texts.iter().enumerate().map(chunk).collect()
    };
    let rows = made("d", &["the salt mill of Orlo", "a bridge", "mill of Orlo, the salt"]);
    let sets = [made("s", &["the salt mill of Orlo", "something else"]), made("t", &["a harbour in the north"])];
    let tree = |folder: &std::path::Path| tree_input(TreeKind::Index, folder);
    let mut bound = inputs([("rows", rows_input(&rows))]);
    bound.bind("index", tree(&crate::index::tests::index(&harness, &rows, dense.clone())));
    for set in &sets {
        bound.bind("against", rows_input(set));
    }
    let params = json!({"vectors": {"threshold": 0.5}});
    let error = harness.run(&entry::<Decontaminate>(), params.clone(), &bound).expect_err("an index is missing");
    assert!(error.message.contains("found 0 indexes for 2 test sets"), "{error}");
    for set in &sets {
        bound.bind("against_index", tree(&crate::index::tests::index(&harness, set, dense.clone())));
    }
    let outcome = harness.run(&entry::<Decontaminate>(), params, &bound).expect("runs");
    let kept: Vec<String> = outcome.read::<searchmill_schemas::Chunk>("rows").into_iter().map(|row| row.id).collect();
    assert_eq!(kept, ["d1#0"]);
    let found = outcome.batch("matches");
    let column = |name: &str| found.column_by_name(name).expect(name).as_string::<i32>().clone();
    let told: Vec<_> = (0..found.num_rows())
        .map(|row| {
            (
                column("id").value(row).to_owned(),
                column("by").value(row).to_owned(),
                column("against_id").value(row).to_owned(),
            )
        })
        .collect();
    let wanted = [("d0#0", "vectors", "s0#0"), ("d2#0", "vectors", "s0#0")];
    assert_eq!(told, wanted.map(|(id, by, against)| (id.to_owned(), by.to_owned(), against.to_owned())));
}

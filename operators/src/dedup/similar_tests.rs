//! Tests of `near`.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch, StringArray};
use arrow::datatypes::{Float64Type, Int64Type};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_engine::operator::{OperatorError, entry};
use searchmill_schemas::{Document, RecordKind};
use serde_json::{Value, json};

use super::Dedup;

fn documents<S: AsRef<str>>(texts: &[S]) -> Vec<Document> {
    let document = |(place, text): (usize, &S)| Document {
        id: format!("d{place}"),
        title: None,
        text: text.as_ref().to_owned(),
        metadata: None,
    };
    texts.iter().enumerate().map(document).collect()
}

fn run<S: AsRef<str>>(texts: &[S], params: Value) -> Result<Outcome, OperatorError> {
    Harness::new().run(&entry::<Dedup>(), params, &inputs([("rows", rows_input(&documents(texts)))]))
}

fn kept(outcome: &Outcome) -> Vec<String> {
    outcome.read::<Document>("rows").into_iter().map(|document| document.id).collect()
}

/// Rows of `duplicates`: dropped id, kept id, similarity.
fn duplicates(outcome: &Outcome) -> Vec<(String, String, f64)> {
    let batch = outcome.batch("duplicates");
    let text = |name: &str| batch.column_by_name(name).expect("a column").as_string::<i32>().clone();
    let similarity = batch.column_by_name("similarity").expect("a column").as_primitive::<Float64Type>().clone();
    let (ids, kept) = (text("id"), text("kept_id"));
    (0..batch.num_rows())
        .map(|row| (ids.value(row).to_owned(), kept.value(row).to_owned(), similarity.value(row)))
        .collect()
}

/// Texts of 30 words, many of them copies with some words changed.
fn copies(count: usize, seed: u64) -> Vec<String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut texts: Vec<Vec<u32>> = Vec::new();
    for _ in 0..count {
        let mut words = match texts.choose(&mut random) {
            Some(other) if random.random_bool(0.6) => other.clone(),
            _ => (0..30).map(|_| random.random_range(0..5_000)).collect(),
        };
        for _ in 0..random.random_range(0..3) {
            let place = random.random_range(0..words.len());
            words[place] = random.random_range(0..5_000);
        }
        texts.push(words);
    }
    let text = |words: Vec<u32>| words.iter().map(|word| format!("w{word}")).collect::<Vec<_>>().join(" ");
    texts.into_iter().map(text).collect()
}

fn pairs(text: &str) -> BTreeSet<(String, String)> {
    let words: Vec<&str> = text.split(' ').collect();
    words.windows(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

/// Returns the first member of each text's group: all pairs are compared, and links are followed.
fn groups(texts: &[String], threshold: f64) -> Vec<usize> {
    let sets: Vec<_> = texts.iter().map(|text| pairs(text)).collect();
    let similar = |a: usize, b: usize| {
        let shared = sets[a].intersection(&sets[b]).count() as f64;
        shared / sets[a].union(&sets[b]).count() as f64 >= threshold
    };
    let mut group: Vec<usize> = (0..texts.len()).collect();
    for a in 0..texts.len() {
        for b in a + 1..texts.len() {
            if group[a] != group[b] && similar(a, b) {
                let (to, from) = (group[a].min(group[b]), group[a].max(group[b]));
                group.iter_mut().filter(|other| **other == from).for_each(|other| *other = to);
            }
        }
    }
    group
}

/// Bands that miss a pair with similarity 0.5 once in 10^8.
fn thorough() -> Value {
    json!({"ngram": 2, "threshold": 0.6, "banding": {"bands": 64, "rows": 2}})
}

#[test]
fn groups_are_those_of_all_pairs() {
    for seed in 0..4 {
        let texts = copies(300, seed);
        let group = groups(&texts, 0.6);
        let firsts: BTreeSet<usize> = group.iter().copied().collect();
        assert!((60..200).contains(&firsts.len()), "{} groups", firsts.len());
        let first = run(&texts, json!({"near": {"minhash": thorough()}})).expect("runs");
        assert_eq!(kept(&first), firsts.iter().map(|row| format!("d{row}")).collect::<Vec<_>>());
        let lasts: BTreeSet<usize> =
            firsts.iter().filter_map(|first| group.iter().rposition(|other| other == first)).collect();
        let last = run(&texts, json!({"near": {"minhash": thorough()}, "keep": "last"})).expect("runs");
        assert_eq!(kept(&last), lasts.iter().map(|row| format!("d{row}")).collect::<Vec<_>>());
        let listed = duplicates(&first);
        assert_eq!(listed.len() + firsts.len(), texts.len());
        for (dropped, kept, similarity) in listed {
            let (row, first): (usize, usize) =
                (dropped[1..].parse().expect("a row"), kept[1..].parse().expect("a row"));
            assert_eq!(group[row], first);
            let (a, b) = (pairs(&texts[row]), pairs(&texts[first]));
            let wanted = a.intersection(&b).count() as f64 / a.union(&b).count() as f64;
            assert!((similarity - wanted).abs() < 1e-12, "{dropped} {kept}");
        }
    }
}

#[test]
fn the_defaults_find_what_is_much_alike() {
    let text = "Marie Curie was born in Warsaw in 1867 and moved to Paris in 1891 to study physics at the Sorbonne, \
                where she met Pierre Curie, with whom she shared the Nobel Prize in Physics in 1903.";
    let texts = [text.to_owned(), text.to_uppercase(), format!("{text} (1867)"), text.replace("Warsaw", "Łódź")];
    let outcome = run(&texts, json!({"near": {}})).expect("runs");
    assert_eq!(kept(&outcome), ["d0", "d3"], "five of 32 n-grams differ: similarity 27 / 37");
    let found = duplicates(&outcome);
    assert_eq!(found[0], ("d1".to_owned(), "d0".to_owned(), 1.0));
    assert!(found[1].2 > 0.9, "{found:?}");
    assert_eq!(
        (outcome.figures["rows_before"], outcome.figures["rows_after"], outcome.figures["groups"]),
        (4.0, 2.0, 1.0)
    );
    let wanted = "2 of 4 rows are near duplicates, in 1 groups of at most 3 rows.\n\
                  9 bands of 13 rows: a pair with similarity 0.8 is found with probability 0.40.\n";
    assert_eq!(outcome.summary, wanted);
}

#[test]
fn a_chain_is_one_group_and_unverified_candidates_count() {
    let words: Vec<String> = (0..60).map(|number| format!("w{number}")).collect();
    let texts: Vec<String> = (0..4).map(|start| words[start * 5..start * 5 + 40].join(" ")).collect();
    let params = |verify: bool, bands: usize, rows: usize| json!({"near": {"minhash": {"ngram": 1, "threshold": 0.7, "verify": verify, "banding": {"bands": bands, "rows": rows}}}});
    let outcome = run(&texts, params(true, 64, 2)).expect("runs");
    assert_eq!(kept(&outcome), ["d0"], "neighbours share 35 of 45 words");
    let far = duplicates(&outcome).pop().expect("the last");
    assert_eq!((far.0.as_str(), far.1.as_str()), ("d3", "d0"));
    assert!((far.2 - 25.0 / 55.0).abs() < 1e-12);
    let alike = [words[..40].join(" "), words[20..].join(" ")];
    assert_eq!(kept(&run(&alike, params(true, 128, 1)).expect("runs")).len(), 2, "similarity 20 / 60");
    assert_eq!(kept(&run(&alike, params(false, 128, 1)).expect("runs")), ["d0"]);
}

#[test]
fn texts_without_words_stay_and_short_ones_compare_whole() {
    let texts = [
        "",
        "  ",
        "?!",
        "",
        "Two words",
        "two  WORDS!",
        "two other",
        "東京タワーは高い",
        "東京 タワーは 高い。",
        "Two",
    ];
    let outcome = run(&texts, json!({"near": {}})).expect("runs");
    assert_eq!(kept(&outcome), ["d0", "d1", "d2", "d3", "d4", "d6", "d7", "d9"]);
    let plain = run(&texts, json!({"near": {"minhash": {"normalized": false}}})).expect("runs");
    assert_eq!(kept(&plain).len(), texts.len(), "as they are, no two are equal");
    assert!(run::<&str>(&[], json!({"near": {}})).expect("runs").batch("rows").num_rows() == 0);
}

#[test]
fn columns_nulls_and_tables_without_ids() {
    let question: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("who is it"), None, Some("Who is it?"), None]));
    let answer: ArrayRef =
        Arc::new(StringArray::from(vec![Some("the king"), None, Some("The king."), Some("the king")]));
    let number: ArrayRef = Arc::new(arrow::array::Int32Array::from(vec![1, 2, 3, 4]));
    let batch = RecordBatch::try_from_iter([("Question", question), ("answer", answer), ("n", number)]).expect("rows");
    let run = |columns: Value| {
        let bound = inputs([("rows", batch_input(RecordKind::Table, batch.clone()))]);
        Harness::new().run(&entry::<Dedup>(), json!({"near": {"columns": columns}}), &bound)
    };
    let outcome = run(json!(["Question", "answer"])).expect("runs");
    assert_eq!(outcome.batch("rows").num_rows(), 3, "a row without text stays");
    let listed = outcome.batch("duplicates");
    let rows =
        |name: &str| listed.column_by_name(name).expect("a column").as_primitive::<Int64Type>().values().to_vec();
    assert_eq!((rows("row"), rows("kept_row")), (vec![3], vec![1]));
    assert!(listed.column_by_name("id").expect("ids").is_null(0));
    assert_eq!(run(json!(["answer"])).expect("runs").batch("rows").num_rows(), 2);
    assert_eq!(run(json!(["lower(answer)"])).expect("runs").batch("rows").num_rows(), 2);
    let error = run(json!(["n"])).expect_err("a number");
    assert_eq!(error.message, "`near.columns`: `n` is not text but Int32");
    assert_eq!(run(json!(["text"])).expect_err("no column").message, "`near.columns`: there is no column `text`");
}

#[test]
fn many_equal_rows_and_a_million_characters() {
    let long: String = (0..150_000).map(|number| format!("wort{} ", number % 9_973)).collect();
    assert!(long.len() > 1_000_000);
    let mut texts = vec![long.clone(), long.clone() + "end"];
    texts.extend(std::iter::repeat_n("the same passage in a boilerplate that is everywhere".to_owned(), 20_000));
    let outcome = run(&texts, json!({"near": {}})).expect("runs");
    assert_eq!(kept(&outcome), ["d0", "d2"]);
}

#[test]
fn threads_and_batches_change_nothing() {
    let texts = copies(2_000, 7);
    let batch = |threads: usize, cut: usize| {
        let whole = searchmill_schemas::to_batch(&documents(&texts)).expect("rows");
        let parts =
            (0..texts.len()).step_by(cut).map(|start| whole.slice(start, cut.min(texts.len() - start))).collect();
        let rows = searchmill_engine::operator::RowsInput::from_batches(RecordKind::Document, whole.schema(), parts);
        let bound = inputs([("rows", searchmill_engine::operator::InputArtifact::Rows(rows))]);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let outcome =
            pool.install(|| Harness::new().run(&entry::<Dedup>(), json!({"near": {}}), &bound)).expect("runs");
        (outcome.batch("rows"), outcome.batch("duplicates"))
    };
    let one = batch(1, 2_000);
    assert!(one.1.num_rows() > 100);
    assert_eq!(one, batch(4, 2_000));
    assert_eq!(one, batch(3, 7));
}

#[test]
fn the_seed_is_a_param_and_wrong_params_are_named() {
    let fails = |params: Value| run(&["a"], params).expect_err("a mistake").message;
    for (params, path) in [
        (json!({}), "by: "),
        (json!({"by": ["id"], "near": {}}), "near: "),
        (json!({"near": {}, "normalized": true}), "normalized: "),
        (json!({"near": {"columns": []}}), "near.columns: "),
        (json!({"near": {"columns": ["lower("]}}), "near.columns.0: "),
        (json!({"near": {"minhash": {"ngram": 0}}}), "near.minhash.ngram: "),
        (json!({"near": {"minhash": {"threshold": 0}}}), "near.minhash.threshold: "),
        (json!({"near": {"minhash": {"threshold": 80}}}), "near.minhash.threshold: "),
        (json!({"near": {"minhash": {"permutations": 1}}}), "near.minhash.permutations: "),
        (json!({"near": {"minhash": {"banding": {"bands": 20, "rows": 7}}}}), "near.minhash.banding: "),
        (json!({"near": {"minhash": {"banding": {"bands": 0, "rows": 7}}}}), "near.minhash.banding: "),
    ] {
        let message = fails(params);
        assert!(message.starts_with(path), "{message}");
    }
}

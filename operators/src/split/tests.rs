//! Tests of `split`: disjoint parts, exact sizes, and stable assignments.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_schemas::{Evidence, Question};
use serde_json::{Value, json};

use super::*;

fn question(id: &str, kind: &str, titles: &[String]) -> Question {
    let evidence = titles.iter().map(|title| Evidence { title: Some(title.clone()), ..Evidence::default() }).collect();
    Question {
        id: id.to_owned(),
        question: format!("{id}?"),
        golden_answers: Vec::new(),
        question_type: Some(kind.to_owned()),
        evidence,
        metadata: None,
    }
}

fn plain(count: usize) -> Vec<Question> {
    (0..count).map(|number| question(&format!("q{number}"), ["a", "b", "c"][number % 3], &[])).collect()
}

fn run(seed: u64, rows: &[Question], params: Value) -> Result<Outcome, OperatorError> {
    let mut harness = Harness::new();
    harness.seed = seed;
    harness.run(&entry::<Split>(), params, &inputs([("rows", rows_input(rows))]))
}

fn parts(outcome: &Outcome) -> BTreeMap<String, Vec<String>> {
    let ids = |port: &String| outcome.read::<Question>(port).into_iter().map(|row| row.id).collect();
    outcome.rows.keys().map(|port| (port.clone(), ids(port))).collect()
}

#[test]
fn shares_are_met_closely_and_order_is_kept() {
    let rows = plain(10_000);
    let outcome = run(1, &rows, json!({"parts": {"train": 0.8, "dev": 0.1, "test": 0.1}})).unwrap();
    let parts = parts(&outcome);
    assert!((7_850..8_150).contains(&parts["train"].len()), "{}", parts["train"].len());
    assert!((900..1_100).contains(&parts["dev"].len()));
    assert_eq!(parts.values().map(Vec::len).sum::<usize>(), 10_000);
    let numbers: Vec<u32> = parts["train"].iter().map(|id| id[1..].parse().unwrap()).collect();
    assert!(numbers.is_sorted());
    assert!(outcome.summary.contains("train"));
}

#[test]
fn rows_added_later_leave_the_others_where_they_were() {
    let params = json!({"parts": {"train": 0.7, "test": 0.3}});
    let before = parts(&run(3, &plain(500), params.clone()).unwrap());
    let after = parts(&run(3, &plain(900), params.clone()).unwrap());
    let after: BTreeSet<_> = after["test"].iter().collect();
    assert!(before["test"].iter().all(|id| after.contains(id)));
    let mut reversed = plain(500);
    reversed.reverse();
    let turned: BTreeSet<_> = parts(&run(3, &reversed, params.clone()).unwrap())["test"].iter().cloned().collect();
    assert_eq!(turned, before["test"].iter().cloned().collect());
    assert_ne!(parts(&run(4, &plain(500), params).unwrap()), before);
}

#[test]
fn numbers_of_rows_are_exact() {
    let outcome = run(0, &plain(1000), json!({"parts": {"test": 200, "dev": 50, "train": "rest"}})).unwrap();
    let found = parts(&outcome);
    assert_eq!((found["test"].len(), found["dev"].len(), found["train"].len()), (200, 50, 750));
    let outcome = run(0, &plain(1000), json!({"parts": {"few": 10}})).unwrap();
    assert_eq!(parts(&outcome)["few"].len(), 10);
    assert!(outcome.summary.contains("(no part)"));
    let outcome = run(0, &plain(5), json!({"parts": {"all": 9, "none": "rest"}})).unwrap();
    assert_eq!((parts(&outcome)["all"].len(), parts(&outcome)["none"].len()), (5, 0));
}

#[test]
fn groups_stay_together() {
    let rows: Vec<Question> = (0..400).map(|n| question(&format!("q{n}"), &format!("g{}", n % 40), &[])).collect();
    let params = json!({"parts": {"train": 0.75, "test": 0.25}, "by": {"group": "question_type"}});
    let outcome = run(5, &rows, params).unwrap();
    let groups = |port: &str| -> BTreeSet<_> {
        outcome.read::<Question>(port).into_iter().map(|row| row.question_type).collect()
    };
    assert!(groups("train").is_disjoint(&groups("test")));
    assert_eq!(groups("train").len() + groups("test").len(), 40);
    let error = run(5, &rows, json!({"parts": {"a": "rest"}, "by": {"group": "colour"}})).unwrap_err();
    assert!(error.message.contains("no column `colour`"), "{error}");
}

#[test]
fn wrong_parts_are_explained() {
    let refused = |parts: Value| run(0, &plain(1), json!({"parts": parts})).unwrap_err().message;
    assert!(refused(json!({})).contains("no part"));
    assert!(refused(json!({"a": 0.5, "b": 0.4})).contains("add up to 0.9"));
    assert!(refused(json!({"a": 1.5})).contains("at most 1"));
    assert!(refused(json!({"A": 1.0})).contains("output port"));
    assert!(refused(json!({"rejects": 1.0})).contains("reserved"));
    assert!(refused(json!({"a": "rest", "b": "rest"})).contains("only one"));
    assert!(refused(json!({"a": 1.0, "b": "rest"})).contains("nothing is left"));
}

#[test]
fn rows_that_name_no_document_are_told() {
    let by_document = json!({"parts": {"train": 0.5, "test": 0.5}, "by": "document"});
    let error = run(0, &plain(9), by_document.clone()).unwrap_err();
    assert_eq!(error.message, "none of the 9 rows names a document, so `by: document` cannot split by it");
    assert!(error.help.is_some_and(|help| help.contains("`evidence`")));
    assert!(run(0, &[], by_document.clone()).is_ok(), "no rows");

    let mut rows = plain(9);
    rows[3] = question("q3", "a", &["T".to_owned()]);
    rows[5] = question("q5", "a", &[String::new()]);
    let harness = Harness::new();
    harness.run(&entry::<Split>(), by_document.clone(), &inputs([("rows", rows_input(&rows))])).unwrap();
    let told = "warning: 8 of 9 rows name no document: `by: document` puts them into any part";
    assert_eq!(harness.logged(), [told], "an empty title names none");

    let harness = Harness::new();
    let rows: Vec<Question> =
        (0..9).map(|n| question(&format!("q{n}"), "a", &vec!["T".to_owned(); n.min(1)])).collect();
    harness.run(&entry::<Split>(), by_document, &inputs([("rows", rows_input(&rows))])).unwrap();
    assert_eq!(harness.logged(), ["1 of 9 rows name no document: `by: document` puts them into any part"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_document_is_in_two_parts(
        titles in proptest::collection::vec(proptest::collection::vec(0_u8..60, 0..4), 1..120),
        seed in any::<u64>(),
    ) {
        prop_assume!(titles.iter().any(|titles| !titles.is_empty()));
        let rows: Vec<Question> = titles.iter().enumerate()
            .map(|(n, titles)| question(&format!("q{n}"), "x", &titles.iter().map(|t| format!("T{t}")).collect::<Vec<_>>()))
            .collect();
        let params = json!({"parts": {"train": 0.8, "test": 0.2}, "by": "document"});
        let outcome = run(seed, &rows, params.clone()).unwrap();
        let evidence = |port: &str| -> BTreeSet<_> {
            outcome.read::<Question>(port).into_iter().flat_map(|row| row.evidence).map(|piece| piece.title).collect()
        };
        prop_assert!(evidence("train").is_disjoint(&evidence("test")));
        let found = parts(&outcome);
        let mut ids: Vec<_> = found.values().flatten().cloned().collect();
        ids.sort();
        let mut all: Vec<_> = rows.iter().map(|row| row.id.clone()).collect();
        all.sort();
        prop_assert_eq!(ids, all);
        prop_assert_eq!(parts(&run(seed, &rows, params).unwrap()), found);
        let largest = outcome.figures["largest_group"];
        let miss = (outcome.figures["rows_test"] - 0.2 * rows.len() as f64).abs();
        prop_assert!(miss <= largest.max(1.0), "missed by {miss}, largest {largest}");
    }

    #[test]
    fn parts_are_a_partition_and_counts_are_met(count in 1_usize..300, test in 1_u64..100, seed in any::<u64>()) {
        let outcome = run(seed, &plain(count), json!({"parts": {"test": test, "train": 0.5, "dev": 0.5}})).unwrap();
        let found = parts(&outcome);
        prop_assert_eq!(found["test"].len() as u64, test.min(count as u64));
        prop_assert_eq!(found.values().map(Vec::len).sum::<usize>(), count);
    }
}

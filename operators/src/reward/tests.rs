//! Tests of `reward`.

use arrow::array::{AsArray, BooleanArray, Int32Array, StringArray};
use arrow::datatypes::Float64Type;
use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_schemas::{Message, Role, to_batch};
use serde_json::{Value, json};

use super::*;
use crate::shared::relation::testing::{ids, trajectories};

fn run_on(batch: RecordBatch, params: Value) -> Result<Outcome, OperatorError> {
    let bound = inputs([(PORT, batch_input(RecordKind::Trajectory, batch))]);
    Harness::new().run(&entry::<Reward>(), params, &bound)
}

fn run(rows: &[Trajectory], params: Value) -> Outcome {
    Harness::new().run(&entry::<Reward>(), params, &inputs([(PORT, rows_input(rows))])).expect("runs")
}

fn rewards(outcome: &Outcome) -> Vec<f64> {
    outcome.batch(PORT).column_by_name("reward").expect("added").as_primitive::<Float64Type>().values().to_vec()
}

fn parts(outcome: &Outcome, row: usize) -> Vec<(String, f64)> {
    let batch = outcome.batch(PORT);
    let list = batch.column_by_name("reward_parts").expect("added").as_list::<i32>().value(row);
    let list = list.as_struct();
    let values = list.column(1).as_primitive::<Float64Type>();
    list.column(0).as_string::<i32>().iter().flatten().map(str::to_owned).zip(values.values().iter().copied()).collect()
}

/// Rollouts with F1 1, 0.8, 0 and no answer.
fn rows() -> Vec<Trajectory> {
    let mut rows = trajectories(4);
    for (row, prediction) in rows.iter_mut().zip(["the ANSWER, 0!", "Answer 1 it", "東", " . "]) {
        prediction.clone_into(&mut row.prediction);
    }
    rows
}

/// Two samples of a question, in ReSearch's format.
fn research(first: &str, second: &str) -> Vec<Trajectory> {
    let mut rows = trajectories(2);
    for (place, (row, answer)) in rows.iter_mut().zip([first, second]).enumerate() {
        (row.id, row.question_id) = (format!("q@{place}"), "q".to_owned());
        row.protocol = "research".to_owned();
        row.golden_answers = vec!["Paris".to_owned()];
        row.messages = vec![
            Message::text(Role::User, "Where?"),
            Message::text(Role::Assistant, format!("<think>a</think> <answer> \\boxed{{{answer}}} </answer>")),
        ];
    }
    rows
}

#[test]
fn a_sum_of_terms_with_its_parts() {
    let outcome = run(&rows(), json!({"sum": [{"f1": 2}, {"answered": 0.5}, {"format": 0.25}, {"retrieved": 0.125}]}));
    assert_eq!(outcome.read::<Trajectory>(PORT), rows(), "all columns, in order");
    let whole = 2.0 * 0.8 + 0.5 + 0.25 + 0.125;
    assert_eq!(rewards(&outcome), [2.875, whole, 0.875, 0.25 + 0.125]);
    let named = [("f1", 2.0), ("answered", 0.5), ("format", 0.25), ("retrieved", 0.125)];
    assert_eq!(parts(&outcome, 0), named.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(outcome.figures["rewarded"], 4.0);
    assert!(outcome.rejects().is_empty());
}

#[test]
fn the_rule_of_a_system() {
    let rows = research("Paris", "Lyon");
    assert_eq!(rewards(&run(&rows, json!({"system": "research"}))), [1.0, 0.1]);
    let outcome = run(&rows, json!({"system": "research", "rule": "published"}));
    assert_eq!(rewards(&outcome), [1.0, 0.1]);
    assert_eq!(parts(&outcome, 1), [("format".to_owned(), 0.1)]);
    let long = |answer: &str| format!("{answer}{}", " w".repeat(39));
    let outcome = run(&research(&long("Paris"), &long("Lyon")), json!({"system": "research", "rule": "published"}));
    assert!(rewards(&outcome)[0] < rewards(&outcome)[1], "the published rule is not monotone");
    let outcome = run(&research(&long("Paris"), &long("Lyon")), json!({"system": "research"}));
    assert!(rewards(&outcome)[0] > rewards(&outcome)[1], "the mended one is");
}

#[test]
fn thoughts_count_in_the_given_unit() {
    let mut rows = trajectories(1);
    for message in rows[0].messages.iter_mut().filter(|message| message.is_model()) {
        message.reasoning = Some("fifteen letters".to_owned());
    }
    assert_eq!(rewards(&run(&rows, json!({"sum": [{"short_think": 0.5}], "count": "characters"}))), [0.5]);
    assert_eq!(rewards(&run(&rows, json!({"sum": [{"short_think": 0.5}]}))), [0.0], "two words are too few");
    let whole = run(&rows, json!({"system": "deepsearch-rl", "count": "characters"}));
    assert_eq!(rewards(&whole), [3.0]);
    assert_eq!(parts(&whole, 0).last().expect("parts").0, "short_think");
}

#[test]
fn long_rollouts_are_punished_gradually() {
    let mut rows = trajectories(4);
    for (row, tokens) in rows.iter_mut().zip([100, 150, 200, 999]) {
        row.completion_tokens = tokens;
    }
    let outcome = run(&rows, json!({"sum": [{"length": {"from": 100, "to": 200}}]}));
    assert_eq!(rewards(&outcome), [0.0, -0.5, -1.0, -1.0]);
    let turns = run(&rows, json!({"sum": [{"length": {"of": "turns", "from": 1, "to": 3, "weight": 2}}]}));
    assert_eq!(rewards(&turns), [-1.0, -2.0, -2.0, -1.0]);
}

fn with_columns(rows: &[Trajectory]) -> RecordBatch {
    let columns: [(&str, ArrayRef); 4] = [
        ("judged", Arc::new(BooleanArray::from(vec![true, false, true, false]))),
        ("score", Arc::new(Float64Array::from(vec![Some(0.5), None, Some(f64::NAN), Some(f64::INFINITY)]))),
        ("count", Arc::new(Int32Array::from(vec![1, 2, 3, 4]))),
        ("note", Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
    ];
    let batch = to_batch(rows).expect("rows");
    let schema = batch.schema();
    let own = schema.fields().iter().map(|field| field.name().as_str()).zip(batch.columns().iter().cloned());
    RecordBatch::try_from_iter(own.chain(columns)).expect("a batch")
}

#[test]
fn columns_are_added_and_unusable_values_are_rejects() {
    let batch = with_columns(&rows());
    let params = json!({"sum": [{"column": {"name": "judged", "weight": 2}}, {"column": "count"}]});
    let outcome = run_on(batch.clone(), params).expect("runs");
    assert_eq!(rewards(&outcome), [3.0, 2.0, 5.0, 4.0]);
    assert_eq!(outcome.batch(PORT).column_by_name("note"), batch.column_by_name("note"), "other columns pass");
    let outcome = run_on(batch.clone(), json!({"sum": [{"column": "score"}]})).expect("runs");
    assert_eq!(rewards(&outcome), [0.5]);
    let told: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
    let expected = [
        "its column `score` is null",
        "its column `score` is NaN, not a number",
        "its column `score` is inf, not a number",
    ];
    let expected = ["q1@0", "q2@0", "q3@0"].into_iter().zip(expected);
    assert_eq!(told, expected.map(|(id, message)| (id.to_owned(), message.to_owned())).collect::<Vec<_>>());
    let error = run_on(batch.clone(), json!({"sum": [{"column": "note"}]})).expect_err("a text");
    assert_eq!(error.message, "`sum`: the column `note` is Utf8, not numbers or booleans");
    let error = run_on(batch, json!({"sum": [{"column": "judge"}]})).expect_err("missing");
    assert_eq!(error.message, "`sum`: the rollouts have no column `judge`");
}

#[test]
fn a_second_reward_replaces_the_first_and_can_read_it() {
    let first = run(&rows(), json!({"sum": [{"answered": 1}]}));
    let second =
        run_on(first.batch(PORT), json!({"sum": [{"column": {"name": "reward", "weight": 3}}]})).expect("runs");
    assert_eq!(rewards(&second), [3.0, 3.0, 3.0, 0.0]);
    assert_eq!(second.batch(PORT).schema(), first.batch(PORT).schema());
}

#[test]
fn rows_that_cannot_be_judged_are_rejects_with_the_reason() {
    let mut rows = rows();
    rows[0].golden_answers.clear();
    rows[1].golden_answers = vec!["the".to_owned(), "…".to_owned(), "?!".to_owned()];
    rows[2].golden_answers = vec!["the".to_owned(), "?!".to_owned()];
    for params in [json!({"sum": [{"f1": 1}]}), json!({"system": "deepsearch-rl-seed"})] {
        let outcome = run(&rows, params);
        assert_eq!(ids(&outcome.read::<Trajectory>(PORT)), ["q1@0", "q3@0"], "`…` is no ASCII punctuation");
        let told: Vec<_> =
            outcome.rejects().into_iter().map(|reject| (reject.id, reject.kind, reject.message)).collect();
        assert_eq!(
            told[0],
            ("q0@0".into(), "data".into(), "there is no golden answer to judge the prediction by".into())
        );
        assert_eq!((told[1].0.as_str(), told.len()), ("q2@0", 2));
        assert!(told[1].2.starts_with("every golden answer is empty after normalisation"), "{}", told[1].2);
    }
    let published = run(&rows[1..2], json!({"system": "deepsearch-rl-seed", "rule": "published"}));
    assert_eq!(published.rejects().len(), 1, "the published rule reads the first golden answer alone");
    let outcome = run(&rows[3..], json!({"system": "search-r1-v0.3"}));
    let message = "the reward reads rollouts of protocol `search-r1`; this one is of `tool_call`";
    assert_eq!(outcome.rejects()[0].message, message);
    assert_eq!(outcome.batch(PORT).num_rows(), 0, "the columns are there without rows");
    assert_eq!(
        rewards(&run(&rows, json!({"sum": [{"answered": 1}]}))),
        [1.0, 1.0, 1.0, 0.0],
        "no golden answer needed"
    );
}

#[test]
fn the_summary_shows_mean_spread_and_questions_without_signal() {
    let mut rows = trajectories(6);
    for (place, row) in rows.iter_mut().enumerate() {
        row.id = format!("q{}@{}", place / 2, place % 2);
        row.question_id = format!("q{}", place / 2);
    }
    rows[0].prediction = String::new();
    rows.truncate(5);
    let outcome = run(&rows, json!({"sum": [{"answered": 1}, {"format": 1}]}));
    assert_eq!(rewards(&outcome), [0.0, 2.0, 2.0, 2.0, 2.0]);
    assert_eq!(outcome.figures["share_without_signal"], 0.5, "one of two questions with two samples");
    assert_eq!(outcome.figures["questions_with_several_rollouts"], 2.0);
    assert!((outcome.figures["reward_mean"] - 1.6).abs() < 1e-12);
    assert!((outcome.figures["reward_deviation"] - 0.8_f64.sqrt()).abs() < 1e-12);
    let expected = "                   mean       std\n\
                    reward           1.6000    0.8944\n  \
                    answered       0.8000\n  \
                    format         0.8000\n\
                    5 rollouts of 3 questions, 0 rejected\n\
                    1 of 2 questions with several rollouts (50.0 %): all rollouts have the same reward \
                    (no signal for group-relative methods)\n";
    assert_eq!(outcome.summary, expected);
}

#[test]
fn the_same_bytes_twice_and_nothing_for_nothing() {
    let rows: Vec<_> = rows().into_iter().cycle().take(500).collect();
    let params = || json!({"sum": [{"f1": 1}, {"format": 0.5}]});
    assert_eq!(run(&rows, params()).batch(PORT), run(&rows, params()).batch(PORT));
    let empty = run(&[], params());
    assert_eq!(empty.batch(PORT).num_rows(), 0);
    assert_eq!(empty.summary, "");
}

#[test]
fn wrong_params_are_reported_at_their_place() {
    let told = |params| {
        Harness::new()
            .run(&entry::<Reward>(), params, &inputs([(PORT, rows_input(&rows()))]))
            .expect_err("wrong")
            .message
    };
    assert_eq!(told(json!({})), "system: the node has no reward");
    assert_eq!(
        told(json!({"system": "research", "sum": [{"f1": 1}]})),
        "sum: the node has two rewards: `system` and `sum`"
    );
    assert_eq!(told(json!({"rule": "mended", "sum": [{"f1": 1}]})), "rule: belongs to `system`");
    assert_eq!(told(json!({"sum": [{"f1": 1}, {"f1": 2}]})), "sum.1: the sum has two terms `f1`");
    assert_eq!(told(json!({"sum": [{"length": {"from": 5, "to": 5}}]})), "sum.0.length.to: must be larger than `from`");
    assert_eq!(told(json!({"sum": [{"column": " "}]})), "sum.0.column: the name is empty");
    assert_eq!(told(json!({"sum": [{"f1": 1}], "count": {"tokenizer": ""}})), "count.tokenizer: the path is empty");
    assert!(told(json!({"system": "grpo"})).contains("unknown variant"));
}

#[test]
fn the_format_of_search_r1_earns_what_is_given() {
    let mut rows = trajectories(3);
    for (row, answer) in rows.iter_mut().zip(["Lyon", "Paris", "Lyon"]) {
        row.protocol = "search-r1".to_owned();
        row.golden_answers = vec!["Paris".to_owned()];
        row.messages = vec![
            Message::text(Role::User, "Where?"),
            Message::text(Role::Assistant, "<think>a</think>\n<search>where</search>"),
            Message::text(Role::Tool, "\n\n<information>It is Paris.</information>\n\n"),
            Message::text(Role::Assistant, format!("<think>b</think>\n<answer>{answer}</answer>")),
        ];
    }
    // The last one is outside the format.
    rows[2].messages[3].content.insert_str(0, "So: ");
    let of = |scores: Value| {
        let mut params = json!({"system": "search-r1-v0.3"});
        if !scores.is_null() {
            params["format_scores"] = scores;
        }
        rewards(&run(&rows, params))
    };
    assert_eq!(of(Value::Null), [0.2, 1.0, 0.1]);
    assert_eq!(of(json!({})), [0.2, 1.0, 0.1]);
    assert_eq!(of(json!({"retrieval": 0.25, "answer": 0.0})), [0.45, 1.0, 0.0]);
    let told = |params: Value| run_on(to_batch(&rows).expect("rows"), params).expect_err("no such scores").message;
    let message = told(json!({"system": "research", "format_scores": {}}));
    assert_eq!(message, "format_scores: belongs to `system: search-r1-v0.3`");
    assert!(told(json!({"system": "search-r1-v0.3", "format_scores": {"structured": 1}})).contains("structured"));
}

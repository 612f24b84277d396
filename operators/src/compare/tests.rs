//! Tests of `compare`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{Float64Type, Int64Type};
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_engine::operator::{Inputs, OperatorError, Tables, entry};
use searchmill_fixtures::trajectories::trajectory;
use searchmill_schemas::{Metric, RecordKind, Trajectory};
use serde_json::{Value, json};

use super::*;

fn run(params: Value, inputs: &Inputs) -> Result<Outcome, OperatorError> {
    let harness = Harness::new();
    let mut outcome = harness.run(&entry::<Compare>(), params, inputs)?;
    // The folder is deleted with the harness: read the page first.
    let page = std::fs::read_to_string(outcome.trees["report"].join("report.html")).expect("a page");
    outcome.trees.insert("page".to_owned(), page.into());
    Ok(outcome)
}

/// Rollouts of questions, each with its prediction; the golden answer is `x y`.
fn rollouts(predictions: &[(&str, &str)]) -> Vec<Trajectory> {
    let mut seen = BTreeMap::new();
    let made = predictions.iter().map(|(id, prediction)| {
        let sample = seen.entry(*id).or_insert(0);
        *sample += 1;
        trajectory(id, *sample - 1, "x y", prediction)
    });
    made.collect()
}

fn numbers(batch: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    batch.column_by_name(name).expect(name).as_primitive::<Float64Type>().iter().collect()
}

fn texts(batch: &RecordBatch, name: &str) -> Vec<String> {
    let column = batch.column_by_name(name).expect(name).as_string::<i32>();
    column.iter().map(|text| text.unwrap_or("null").to_owned()).collect()
}

fn page(outcome: &Outcome) -> &str {
    outcome.trees["page"].to_str().expect("a page")
}

fn two_systems() -> Inputs {
    let base = rollouts(&[("b", "x y"), ("a", "x y"), ("a", "z"), ("c", "z"), ("e", "x y"), ("only", "x")]);
    let new = rollouts(&[("a", "x"), ("b", "z"), ("c", "x y"), ("other", "x y"), ("e", "x y")]);
    inputs([("base", rows_input(&base)), ("new", rows_input(&new))])
}

#[test]
fn questions_are_averaged_matched_and_won() {
    let outcome = run(json!({}), &two_systems()).expect("runs");
    let questions = outcome.batch("questions");
    assert_eq!(texts(&questions, "question_id"), ["b", "a", "c", "e", "only", "other"]);
    assert_eq!(texts(&questions, "outcome"), ["loss", "win", "win", "tie", "unmatched", "unmatched"]);
    let third = 2.0 / 3.0;
    let wanted = [Some(1.0), Some(0.5), Some(0.0), Some(1.0), Some(third), None];
    assert_eq!(numbers(&questions, "base_value"), wanted, "samples are averaged");
    assert_eq!(numbers(&questions, "value"), [Some(0.0), Some(third), Some(1.0), Some(1.0), None, Some(1.0)]);
    assert_eq!(numbers(&questions, "delta"), [Some(-1.0), Some(third - 0.5), Some(1.0), Some(0.0), None, None]);
    let samples = questions.column_by_name("base_samples").expect("samples").as_primitive::<Int64Type>();
    assert_eq!(samples.values(), &[1, 2, 1, 1, 1, 0]);
    assert_eq!(outcome.figures["new/unmatched"], 2.0);
    assert!(outcome.summary.contains("4 questions of new are compared with base."), "{}", outcome.summary);
    assert!(outcome.summary.contains("1 questions of base alone are not compared (new)."));
    assert!(outcome.summary.contains("base has 6 samples of 5 questions"));
}

#[test]
fn figures_have_intervals_and_exact_tests() {
    let outcome = run(json!({"by": ["f1", "prompt_tokens asc", "em"]}), &two_systems()).expect("runs");
    let metrics = outcome.batch("metrics");
    assert_eq!(texts(&metrics, "name"), ["new/f1", "new/prompt_tokens", "new/em"]);
    let delta = (-1.0 + (2.0 / 3.0 - 0.5) + 1.0) / 4.0;
    let rows = outcome.read::<Metric>("metrics");
    assert!((rows[0].value - delta).abs() < 1e-12 && rows[0].count == 4);
    assert!(rows[0].low.expect("low") <= delta && delta <= rows[0].high.expect("high"));
    // Of the sums of ±1, ±1/6 and ±1, all but those of opposite ones are further away: (1/6) is reached by all 8.
    assert_eq!(numbers(&metrics, "p_value"), [Some(1.0), Some(1.0), Some(1.0)]);
    assert_eq!(numbers(&metrics, "p_holm"), [Some(1.0), Some(1.0), Some(1.0)]);
    let whole = |name: &str| metrics.column_by_name(name).expect(name).as_primitive::<Int64Type>().values().to_vec();
    assert_eq!((whole("wins"), whole("losses"), whole("ties")), (vec![2, 0, 1], vec![1, 0, 2], vec![1, 4, 1]));
}

fn table(ids: &[i32], values: &[f64], groups: &[&str]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int32Array::from(ids.to_vec()));
    let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
    let groups: ArrayRef = Arc::new(StringArray::from(groups.to_vec()));
    RecordBatch::try_from_iter([("nr", ids), ("cost", values), ("kind", groups)]).expect("a table")
}

#[test]
fn lower_may_be_better_and_any_column_groups() {
    let base = table(&[1, 2, 3, 10], &[5.0, 5.0, 5.0, 5.0], &["p", "p", "q", ""]);
    let new = table(&[10, 3, 2, 1], &[4.0, 6.0, 1.0, 2.0], &["-", "-", "-", "-"]);
    let bound = inputs([("a", batch_input(RecordKind::Table, base)), ("b", batch_input(RecordKind::Table, new))]);
    let params = json!({"base": "a", "by": ["cost asc"], "on": "nr", "group_by": ["kind", "nr > 2"]});
    let outcome = run(params, &bound).expect("runs");
    assert_eq!(texts(&outcome.batch("questions"), "outcome"), ["win", "win", "loss", "win"]);
    let rows = outcome.read::<Metric>("metrics");
    let found: Vec<_> = rows.iter().map(|row| (row.group.as_str(), row.value, row.count)).collect();
    let groups = [("all", -1.75, 4), ("kind=p", -3.5, 2), ("kind=q", 1.0, 1), ("kind=unknown", -1.0, 1)];
    assert_eq!(found[..4], groups);
    assert_eq!(found[4..], [("nr > 2=true", 0.0, 2), ("nr > 2=false", -3.5, 2)]);
    assert_eq!(rows[2].low, None, "one question has no interval");
}

#[test]
fn holm_corrects_over_systems_and_metrics() {
    let rows = |gain: f64| {
        let ids: Vec<i32> = (0..8).collect();
        table(&ids, &ids.iter().map(|id| f64::from(*id) * gain).collect::<Vec<_>>(), &["x"; 8])
    };
    let tables = [("base", 1.0), ("near", 1.5), ("far", 3.0)];
    let bound = inputs(tables.map(|(name, gain)| (name, batch_input(RecordKind::Table, rows(gain)))));
    let outcome = run(json!({"by": ["cost"], "on": "nr"}), &bound).expect("runs");
    let metrics = outcome.batch("metrics");
    assert_eq!(texts(&metrics, "system"), ["far", "near"], "systems are sorted by name");
    // All 7 differences have one sign: 2 of 2^7 sums are as far; two tests.
    assert_eq!(numbers(&metrics, "p_value"), [Some(2.0 / 128.0); 2]);
    assert_eq!(numbers(&metrics, "p_holm"), [Some(4.0 / 128.0); 2]);
}

#[test]
fn one_table_may_hold_all_systems() {
    let ids: ArrayRef = Arc::new(StringArray::from(vec!["a", "a", "b", "b", "a"]));
    let systems: ArrayRef = Arc::new(StringArray::from(vec![Some("s"), Some("t"), Some("s"), Some("t"), None]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 0.0, 0.5, 0.75, 9.0]));
    let rows =
        RecordBatch::try_from_iter([("question_id", ids), ("system", systems), ("f1", values)]).expect("a table");
    let bound = || inputs([("rows", batch_input(RecordKind::Table, rows.clone()))]);
    let outcome = run(json!({"system": "system", "base": "s"}), &bound()).expect("runs");
    let questions = outcome.batch("questions");
    assert_eq!(texts(&questions, "system"), ["t", "t", "unknown", "unknown"]);
    assert_eq!(numbers(&questions, "delta"), [Some(-1.0), Some(0.25), Some(8.0), None]);
    let error = run(json!({"system": "system", "base": "x"}), &bound()).expect_err("no such system");
    assert_eq!(error.message, "`base`: `system` is never `x`");
    assert_eq!(error.help.as_deref(), Some("its values: `s`, `t`, `unknown`"));
    let error = run(json!({"system": "'s'", "base": "s"}), &bound()).expect_err("one system");
    assert!(error.message.ends_with("is the same in all rows: there is nothing to compare with"), "{}", error.message);
}

#[test]
fn regressions_come_first_with_both_conversations() {
    let mut base = rollouts(&[("a", "x y"), ("a", "<z>"), ("b", "x y"), ("c", "z")]);
    base[0].question = "Who <b>?".to_owned();
    let new = rollouts(&[("a", "x"), ("a", "nothing"), ("b", "x"), ("c", "x y")]);
    let bound = inputs([("base", rows_input(&base)), ("new", rows_input(&new))]);
    let outcome = run(json!({"examples": 1, "title": "A <title>"}), &bound).expect("runs");
    let page = self::page(&outcome);
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is not in {page}"));
    assert!(place("What regressed: new beside base, by f1") < place("What improved: new beside base, by f1"));
    // b lost 1/3, a lost 1/6 of its mean.
    assert!(page.contains("f1 1 → 0.6667 <code>b</code>") && !page.contains("<code>a</code>"), "one example");
    assert!(page.contains("f1 0 → 1 <code>c</code>"));
    assert!(place("<code>b@0</code>") < place("<code>c@0</code>"));
    assert!(page.contains("A &lt;title&gt;") && !page.contains("<title>A <"));
    let outcome = run(json!({"examples": 3}), &bound).expect("runs");
    let all = self::page(&outcome);
    // Of two samples, the better one of the baseline and the worse one of the system.
    assert!(all.contains("<code>a@0</code>") && all.contains("<code>a@1</code>") && all.contains("Who &lt;b&gt;?"));
}

#[test]
fn rows_without_values_or_questions_are_told() {
    let ids: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("b"), Some("c")]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.0), Some(1.0), None, Some(f64::NAN)]));
    let rows = RecordBatch::try_from_iter([("question_id", ids), ("f1", values)]).expect("a table");
    let bound =
        inputs([("base", batch_input(RecordKind::Table, rows.clone())), ("new", batch_input(RecordKind::Table, rows))]);
    let outcome = run(json!({}), &bound).expect("runs");
    assert_eq!(texts(&outcome.batch("questions"), "outcome"), ["tie", "unmatched", "unmatched"]);
    let rejects = outcome.rejects();
    assert_eq!(rejects.iter().map(|reject| reject.id.as_str()).collect::<Vec<_>>(), ["base:1", "new:1"]);
    assert!(outcome.summary.contains("2 rows of base have no finite `f1`; they do not count."), "{}", outcome.summary);
}

#[test]
fn equal_ids_of_other_questions_are_told() {
    let base = rollouts(&[("0", "x y"), ("1", "x y"), ("2", "x y")]);
    let mut new = rollouts(&[("0", "z"), ("1", "z"), ("2", "z")]);
    let told = |new: &[Trajectory]| {
        let bound = inputs([("base", rows_input(&base)), ("new", rows_input(new))]);
        run(json!({}), &bound).expect("runs").summary
    };
    new[0].question = format!(" {} ", new[0].question.to_uppercase());
    assert!(!told(&new).contains("another text"), "{}", told(&new));
    new[1].question = "Who?".to_owned();
    let summary = told(&new);
    assert!(summary.contains("warning: 1 of them have another text in new than in base"), "{summary}");
}

#[test]
fn nothing_to_compare_is_no_failure() {
    let bound = inputs([("base", rows_input::<Trajectory>(&[])), ("new", rows_input(&rollouts(&[("a", "x")])))]);
    let outcome = run(json!({"group_by": ["question_type"]}), &bound).expect("runs");
    assert_eq!(texts(&outcome.batch("questions"), "outcome"), ["unmatched"]);
    assert_eq!(outcome.batch("metrics").num_rows(), 0);
    assert_eq!(outcome.batch("metrics").schema(), output::columns().expect("columns")["metrics"]);
    assert!(page(&outcome).contains("No question regressed."));
    assert!(
        outcome.summary.contains("warning: nothing is compared: no value of `on: question_id`"),
        "{}",
        outcome.summary
    );
}

#[test]
fn the_order_of_rows_and_the_number_of_threads_change_no_figure() {
    let ids: Vec<i32> = (0..200).collect();
    let value = |id: &i32, by: i32| f64::from((id * by) % 17);
    let rows = |by, reversed: bool| {
        let mut ids = ids.clone();
        if reversed {
            ids.reverse();
        }
        let values: Vec<f64> = ids.iter().map(|id| value(id, by)).collect();
        batch_input(RecordKind::Table, table(&ids, &values, &vec!["x"; ids.len()]))
    };
    let figures = |reversed| {
        let bound = inputs([("base", rows(5, false)), ("new", rows(7, reversed))]);
        run(json!({"by": ["cost"], "on": "nr", "permutations": 500}), &bound).expect("runs").batch("metrics")
    };
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool");
    assert_eq!(figures(false), figures(true));
    assert_eq!(one.install(|| figures(false)), figures(false));
    assert!(
        figures(false).column_by_name("exact").expect("exact").as_boolean().iter().all(|exact| exact == Some(false))
    );
}

#[test]
fn wrong_params_and_columns_are_refused() {
    let refused = |params: Value| run(params, &two_systems()).expect_err("refused").message;
    assert_eq!(refused(json!({"by": []})), "by: name at least one column");
    assert_eq!(refused(json!({"by": ["f1", "f1 desc"]})), "by.1: is listed twice");
    assert!(refused(json!({"by": ["f1 +"]})).starts_with("by.0: not an SQL expression"));
    assert_eq!(refused(json!({"confidence": 1.0})), "confidence: must be between 0 and 1");
    assert_eq!(refused(json!({"resamples": 2_000_000})), "resamples: must be at most 1,000,000");
    assert_eq!(refused(json!({"by": ["question"]})), "`by`: `question` is Utf8, not a number (input `base`)");
    assert_eq!(refused(json!({"group_by": ["kind"]})), "`group_by`: there is no column `kind` (input `base`)");
    assert_eq!(refused(json!({"on": "messages"})).split(':').next(), Some("`on`"));
}

#[test]
fn the_plan_knows_inputs_and_columns() {
    let bound = (entry::<Compare>().bind)(json!({"by": ["f1", "f2"], "group_by": ["policy"]})).expect("params");
    let message = |inputs: &[&str]| bound.declaration.input_issues(inputs).pop().map(|issue| issue.message);
    assert_eq!(message(&["base", "new"]), None);
    assert_eq!(message(&["base"]).as_deref(), Some("there is nothing to compare with"));
    assert_eq!(message(&["old", "new"]).as_deref(), Some("there is no input `base`"));
    let params = CompareParams {
        by: vec!["f1".into(), "f2".into()],
        group_by: vec!["polcy".into()],
        ..CompareParams::default()
    };
    let tables = Tables::from([("base".to_owned(), RecordKind::Trajectory.schema())]);
    let issues = params.column_issues(&tables);
    let found: Vec<_> = issues.iter().map(|issue| (issue.path.as_str(), issue.message.as_str())).collect();
    let wanted =
        [("by.1", "input `base`: there is no column `f2`"), ("group_by.0", "input `base`: there is no column `polcy`")];
    assert_eq!(found, wanted);
    assert!(issues[1].help.as_deref().is_some_and(|help| help.starts_with("did you mean `policy`?")));
}

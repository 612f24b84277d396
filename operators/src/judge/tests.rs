//! Tests of `judge` against a real HTTP server.

use searchmill_engine::operator::entry;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_fixtures::openai_server::{OpenAiServer, Script, Step, message};
use serde_json::Value;

use super::*;
use crate::shared::relation::testing::trajectories;

fn verdict(judgement: &str) -> Vec<Step> {
    vec![Step::Say(message(&json!({"rationale": "so", "judgement": judgement}).to_string()))]
}

/// Four rollouts: a right one, a wrong one, one without an answer, one that the judge does not judge.
fn rollouts() -> Vec<Trajectory> {
    let mut rows = trajectories(4);
    rows[2].prediction.clear();
    rows
}

fn case(row: &Trajectory) -> String {
    let golden = &row.golden_answers;
    JudgeRule::Research.messages(None, (&row.question, golden, &row.prediction)).remove(1).content
}

fn server(rows: &[Trajectory]) -> OpenAiServer {
    let script: Script = [(0, "correct"), (1, "incorrect"), (3, "maybe")]
        .into_iter()
        .map(|(row, judgement)| (case(&rows[row]), verdict(judgement)))
        .collect();
    OpenAiServer::start(script)
}

fn params(server: &OpenAiServer) -> Value {
    json!({"policy": {"endpoint": {"base_url": server.base_url(), "model": "judge", "temperature": 0}}})
}

fn judged(rows: &[Trajectory], params: Value) -> Outcome {
    Harness::new().run(&entry::<Judge>(), params, &inputs([(PORT, rows_input(rows))])).expect("the node runs")
}

#[test]
fn answers_are_judged_and_what_is_not_judged_is_a_reject() {
    let mut rows = rollouts();
    rows.push(Trajectory { golden_answers: vec![" the ".to_owned()], id: "empty@0".to_owned(), ..rows[0].clone() });
    let server = server(&rows);
    let outcome = judged(&rows, params(&server));
    let batch = outcome.batch(PORT);
    let verdicts = Verdict::of_rows(&batch).expect("verdicts");
    let shown: Vec<_> = verdicts.iter().map(|v| (v.right, v.rationale.as_deref(), v.judge.as_deref())).collect();
    let judge = Some("scripted-2026");
    assert_eq!(shown, [(true, Some("so"), judge), (false, Some("so"), judge), (false, Some("no answer"), None)]);
    assert_eq!(from_batch::<Trajectory>(&batch).expect("rollouts"), rows[..3], "all columns pass");
    let rejects: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.kind)).collect();
    assert_eq!(rejects, [(rows[3].id.clone(), "bad_response".to_owned()), ("empty@0".to_owned(), "data".to_owned())]);
    let prose = outcome.rejects()[0].detail.clone();
    assert_eq!(prose.as_deref(), Some(r#"{"judgement":"maybe","rationale":"so"}"#), "what the judge wrote");
    assert_eq!(server.count(), 3, "an empty prediction and missing golden answers cost nothing");
    assert_eq!((outcome.usage.calls, outcome.usage.prompt_tokens), (2, 200), "of the rows with a verdict");
}

#[test]
fn instructions_replace_those_of_the_rule_and_are_another_question() {
    let rows = rollouts();
    let server = server(&rows);
    let mut own = params(&server);
    own["instructions"] = json!("Be lenient.");
    judged(&rows[..1], own);
    let asked = server.requests(&case(&rows[0]));
    assert_eq!(asked[0].body["messages"][0], json!({"role": "system", "content": "Be lenient."}));
}

#[test]
fn a_remembered_verdict_is_put_beside_the_labels_of_the_row() {
    let rows = rollouts();
    let server = server(&rows);
    let bound = (entry::<Judge>().bind)(params(&server)).map_err(|issue| issue.message).expect("params");
    let (harness, given) = (Harness::new(), inputs([(PORT, rows_input(&rows[..1]))]));
    let Kernel::AsyncMap(kernel) = bound.open(&given, &harness.context()).expect("opens") else { panic!("rows") };
    let context = harness.context();
    let row = |row: &Trajectory| searchmill_schemas::to_batch(std::slice::from_ref(row)).expect("a row");
    let output = context.block_on(kernel.run(&row(&rows[0]), 0, &context)).expect("a verdict");
    let renamed = Trajectory { question_type: Some("other".to_owned()), ..rows[0].clone() };
    let labelled = kernel.label(&row(&renamed), 0, output).expect("the same case");
    let batch = &labelled.batches[0].1;
    assert_eq!(from_batch::<Trajectory>(batch).expect("rollouts"), [renamed]);
    assert_eq!(kernel.said(batch).expect("verdicts")[0].1, r#"[true,"so","scripted-2026"]"#);
}

#[test]
fn a_judge_must_be_able_to_judge() {
    let paths = |params: Value| {
        let bound = (entry::<Judge>().bind)(params).map_err(|issue| issue.message).expect("params");
        bound.declaration.issues.into_iter().map(|issue| issue.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(json!({"policy": "evidence"})), ["policy"]);
    assert_eq!(paths(json!({"policy": {"model": {"api": "completions"}}})), ["policy"]);
    assert_eq!(paths(json!({"policy": "model", "instructions": " "})), ["instructions"]);
    assert!(paths(json!({"policy": "model", "rule": "r1-searcher"})).is_empty());
}

#[test]
fn verdicts_are_rechecked_as_far_as_they_follow_from_the_rollouts() {
    let rows = rollouts();
    let server = server(&rows);
    let outcome = judged(&rows[..3], params(&server));
    let bound = (entry::<Judge>().bind)(params(&server)).map_err(|issue| issue.message).expect("params");
    let harness = Harness::new();
    let differences = |given: &[Trajectory], rows: &RecordBatch| {
        let given = inputs([(PORT, rows_input(given))]);
        let recheck = bound.declaration.recheck(&given, &harness.context()).expect("opens").expect("one");
        let found = recheck.check(rows).expect("checked");
        assert_eq!(found.compared, 3);
        found.differences.into_iter().map(|one| (one.row, one.what)).collect::<Vec<_>>()
    };
    let batch = outcome.batch(PORT);
    assert!(differences(&rows[..3], &batch).is_empty());
    let mut other = rows[..3].to_vec();
    other[0].question.push('?');
    assert_eq!(differences(&other, &batch), [(rows[0].id.clone(), "rollout".to_owned())]);
    assert_eq!(differences(&rows[..2], &batch), [(rows[2].id.clone(), "rollout".to_owned())]);
    let right: ArrayRef = Arc::new(BooleanArray::from(vec![true; 3]));
    let forged = with_columns(&batch, vec![(fields()[0].clone(), right)]).expect("forged");
    assert_eq!(differences(&rows[..3], &forged), [(rows[2].id.clone(), "verdict".to_owned())]);
}

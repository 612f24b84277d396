//! Tests that recorded conversations can be recomputed without calling the model.

use searchmill_engine::operator::{Inputs, Rechecked};
use searchmill_fixtures::openai_server::{answer, call, search};
use searchmill_schemas::to_batch;

use super::*;

/// Conversations with parallel searches, errors, exceeded limits, and answers without search.
fn bench() -> (Bench, Vec<&'static str>) {
    let script = [
        ("parallel", vec![search(&["Tiber river", "capital France", "nonsenseword"]), answer("Rome")]),
        (
            "mistakes",
            vec![call("lookup", "{}"), call("search", "{\"query\": \"Ita"), search(&["Italy"]), answer("Rome")],
        ),
        ("too many", vec![search(&["Italy", "France"]), search(&["Tiber"]), answer("Rome")]),
        ("from memory", vec![answer("Paris")]),
    ];
    let questions = script.iter().map(|(question, _)| *question).collect();
    (Bench::new(&script).with(json!({"max_searches": 3, "max_turns": 5})), questions)
}

/// Recorded rows of a node, and the inputs for their check.
struct Recorded {
    bench: Bench,
    bound: Inputs,
    rows: Vec<Trajectory>,
}

impl Recorded {
    fn new(searching: bool) -> Self {
        let (bench, questions) = bench();
        let index = searching.then(|| bm25(&bench.harness, &small_corpus()));
        let outcome = bench.run_with(&questions, index.clone());
        assert!(outcome.rejects().is_empty(), "{:?}", outcome.rejects());
        let asked: Vec<_> = questions.iter().map(|text| question(&format!("id of {text}"), text)).collect();
        let mut bound = inputs([("questions", rows_input(&asked))]);
        if let Some(index) = index {
            bound.bind("search", index);
        }
        Self { rows: outcome.read("trajectories"), bench, bound }
    }

    fn check(&self, rows: &[Trajectory]) -> Rechecked {
        let mut params = self.bench.params.clone();
        params["policy"] = json!({"endpoint": self.bench.endpoint});
        let bound = (entry::<Rollout>().bind)(params).map_err(|issue| issue.message).expect("params");
        let recheck =
            bound.declaration.recheck(&self.bound, &self.bench.harness.context()).expect("opens").expect("a recheck");
        assert_eq!(recheck.port(), "trajectories");
        recheck.check(&to_batch(rows).expect("rows")).expect("the indexes can be searched")
    }

    /// Returns the findings after a change to the rollout of a question.
    fn changed(&self, question: &str, change: impl Fn(&mut Trajectory)) -> Vec<String> {
        let mut rows = self.rows.clone();
        change(rows.iter_mut().find(|row| row.question == question).expect("the rollout"));
        let found = self.check(&rows).differences;
        assert!(found.iter().all(|wrong| wrong.row == format!("id of {question}@0")), "{found:?}");
        found.into_iter().map(|wrong| format!("{}: {} / {}", wrong.what, wrong.recorded, wrong.derived)).collect()
    }
}

#[test]
fn what_was_not_changed_is_derived_alike() {
    for searching in [true, false] {
        let recorded = Recorded::new(searching);
        let found = recorded.check(&recorded.rows);
        assert_eq!(found.differences, [], "searching: {searching}");
        assert!(found.compared > 4 * 7, "{}", found.compared);
    }
}

#[test]
fn every_forged_part_is_named() {
    let recorded = Recorded::new(true);
    let swapped = recorded.changed("parallel", |row| row.messages.swap(3, 4));
    assert_eq!(swapped.len(), 2, "both responses answer another call: {swapped:?}");
    assert!(swapped[0].starts_with("message 3, chunks of the tool response to `Tiber river`: "), "{swapped:?}");
    let dropped = recorded.changed("parallel", |row| drop(row.messages.remove(5)));
    assert!(
        dropped.len() == 1 && dropped[0].starts_with("message 5, answer to the call `search`: none"),
        "{dropped:?}"
    );
    let added = recorded.changed("from memory", |row| {
        let mut message = row.messages[0].clone();
        "tool".clone_into(&mut message.role);
        row.messages.push(message);
    });
    assert!(added.iter().any(|line| line.contains("no call asks for it")), "{added:?}");
    let forgiven = recorded.changed("mistakes", |row| row.messages[3].error = None);
    assert!(
        forgiven.len() == 1 && forgiven[0].starts_with("message 3, error of the tool response: none"),
        "{forgiven:?}"
    );
    let query = recorded.changed("mistakes", |row| {
        row.messages.iter_mut().flat_map(|message| &mut message.tool_calls).for_each(|call| {
            call.arguments = call.arguments.replace("Italy", "France");
        });
    });
    assert!(query.len() == 1 && query[0].contains("to `France`"), "a changed query finds other chunks: {query:?}");
    let answer = recorded.changed("from memory", |row| "Rome".clone_into(&mut row.prediction));
    assert_eq!(answer, ["prediction: Rome / Paris"]);
    let ended = recorded.changed("too many", |row| "max_turns".clone_into(&mut row.finish_reason));
    assert_eq!(ended, ["finish reason: max_turns / answered"]);
    let more = recorded.changed("from memory", |row| row.messages.push(row.messages[2].clone()));
    assert_eq!(more, ["message 3: a message of the model / the rollout had ended"]);
    let cut = recorded.changed("parallel", |row| drop(row.messages.pop()));
    assert_eq!(cut[0], "message 6: none / a message of the model");
    let unknown = recorded.changed("too many", |row| row.golden_answers = vec!["Paris".to_owned()]);
    assert!(unknown.len() == 1 && unknown[0].starts_with("question: "), "{unknown:?}");
}

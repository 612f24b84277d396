//! Tests of params whose columns have another type than they need: told before anything runs, where they are written.

use crate::harness::project::Mill;

/// Rollouts of a file, and a node behind them.
fn told(with: &str) -> String {
    let mill = Mill::new();
    let row = "{\"id\": \"a\", \"question_id\": \"q\", \"question\": \"Who?\", \"prediction\": \"x\", \"messages\": \
               [{\"role\": \"user\", \"content\": \"Who?\"}]}\n";
    mill.write("rollouts.jsonl", row);
    let text = format!(
        "name: n\nnodes:\n  rows: {{op: read, with: {{path: rollouts.jsonl, as: trajectory}}}}\n  last:\n    {with}\n"
    );
    mill.write("pipeline.yaml", &text);
    let shown = mill.call(&["validate", "pipeline.yaml"]);
    assert!(matches!(shown.code, 0 | 2), "{shown:?}");
    let run = mill.call(&["run", "pipeline.yaml"]);
    if shown.code == 2 {
        assert_eq!(run.code, 2, "a run tells it before it starts: {run:?}");
        assert!(mill.call(&["runs"]).stdout.lines().count() < 2, "nothing ran");
    }
    shown.stderr
}

#[test]
fn a_text_where_a_number_is_needed_is_told_before_anything_runs() {
    let of = |op: &str, with: &str| format!("op: {op}\n    from: rows\n    with: {with}");
    let compare = |by: &str| {
        format!("op: compare\n    from: {{base: rows, other: rows}}\n    with: {{by: [f1, {by}], resamples: 0}}")
    };
    for (with, word, message) in [
        (of("plot", "{x: question_id, y: question}"), "question}", "`question` is Utf8, not a number"),
        (of("plot", "{kind: heatmap, x: id, y: id, value: question}"), "question}", "`question` is Utf8, not a number"),
        (compare("question"), "question]", "`question` is Utf8, not a number"),
        (of("evaluate", "{measures: {odd: {mean: question}}}"), "question}", "`question` is Utf8, not a number"),
        (of("evaluate", "{measures: {odd: {share: turns}}}"), "turns}", "not true or false"),
        (
            of("reward", "{sum: [{f1: 1}, {column: {name: question, weight: 1}}]}"),
            "question,",
            "not numbers or booleans",
        ),
        (of("pair", "{order_by: [question desc], margin: 0.5}"), "0.5", "is not a number"),
        (
            of("weight", "{formula: question_softmax, column: question}"),
            "question}",
            "`question` is Utf8, not a number",
        ),
    ] {
        let shown = told(&with);
        let line = with.lines().last().expect("a line");
        let place = format!("pipeline.yaml:7:{}", line.find(word).expect("the word") + 1);
        assert!(shown.contains(&place) && shown.contains(message), "{with}: {place}: {shown}");
    }
}

#[test]
fn numbers_booleans_and_expressions_of_them_fit() {
    for with in [
        "op: plot\n    from: rows\n    with: {x: question, y: length(question)}",
        "op: plot\n    from: rows\n    with: {kind: heatmap, x: question, y: id, value: turns}",
        "op: compare\n    from: {base: rows, other: rows}\n    with: {by: [f1, prediction = 'x'], resamples: 0}",
        "op: evaluate\n    from: rows\n    with: {measures: {odd: {mean: \"prediction = 'x'\"}}}",
    ] {
        let shown = told(with);
        assert!(!shown.contains("error"), "{with}: {shown}");
    }
}

#[test]
fn a_plan_is_checked_again_when_a_param_changes() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"text\": \"x\"}\n");
    let pipeline = |predicate: &str| {
        let text = "name: n\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: document}}\n  long: {op: filter, \
                    from: rows, with: {where: \"PREDICATE\"}}\n";
        mill.write("pipeline.yaml", &text.replace("PREDICATE", predicate));
        mill.run(&[])
    };
    let runs = || mill.call(&["runs", "--json"]).stdout.lines().count();
    for _ in 0..2 {
        assert_eq!(pipeline("txt <> ''").exit(2).ran(), "", "nothing starts");
    }
    assert_eq!(runs(), 0);
    assert_eq!(pipeline("text <> ''").exit(0).ran(), "long rows");
    assert_eq!(pipeline("text <> ''").exit(0).ran(), "");
    let told = pipeline("length(txt) > 0").exit(2);
    assert!(told.stdout.contains("there is no column `txt`"), "{}", told.stdout);
    assert_eq!(pipeline("text <> ''").exit(0).ran(), "");
    assert_eq!(runs(), 3);
}

//! Result files of other programs, scored and compared.

use searchmill_engine::operator::InputArtifact;
use searchmill_schemas::{Metric, Record, Trajectory};
use serde_json::json;

use super::recipe;
use crate::harness::project::Mill;

fn rows<R: Record>(mill: &Mill, node: &str, port: &str) -> Vec<R> {
    let nodes = mill.last_nodes();
    let node = nodes.iter().find(|found| found.node == node).expect("a node of the last run");
    match mill.store().open_input(&node.outputs[port].id).expect("an artifact") {
        InputArtifact::Rows(rows) => rows.read_all().expect("rows of that kind"),
        InputArtifact::Tree(_) => panic!("a table"),
    }
}

fn value(metrics: &[Metric], id: &str) -> f64 {
    metrics.iter().find(|metric| metric.id == id).unwrap_or_else(|| panic!("no {id} in {metrics:?}")).value
}

#[test]
fn the_recipe_scores_and_compares_three_systems() {
    let mill = recipe("foreign_trajectories");
    mill.run(&[]).exit(0);
    let scores: Vec<Metric> = rows(&mill, "scores", "metrics");
    // 7 of 12 are right; `Rossini` and `Pacific Ocean` share a word with the golden answers.
    assert!((value(&scores, "all/f1") - (7.0 + 2.0 / 3.0 + 0.5) / 12.0).abs() < 1e-12);
    assert!((value(&scores, "all/verdict/judge") - 8.0 / 12.0).abs() < 1e-12);
    assert!((value(&scores, "all/one_search") - 0.5).abs() < 1e-12);
    assert!(value(&scores, "kind=science/longest") > 0.0);
    let compared: Vec<Metric> = rows(&mill, "compared", "metrics");
    let of = |id: &str| compared.iter().find(|metric| metric.id == id).unwrap_or_else(|| panic!("no {id}"));
    let f1 = of("all/new/f1");
    assert!((f1.value - (2.0 + 2.0 / 3.0 - 2.0) / 12.0).abs() < 1e-12 && f1.count == 12, "{f1:?}");
    assert!(f1.low.is_some_and(|low| low < 0.0) && f1.high.is_some_and(|high| high > 0.0));
    assert_eq!(of("all/other/f1").count, 11, "one question is not in the file");
    assert!((of("all/new/tool_calls").value - 1.0).abs() < 1e-12);
    let derived: Vec<Trajectory> = rows(&mill, "other", "rows");
    assert_eq!((derived[0].question_id.as_str(), derived[0].policy.as_str(), derived[0].turns), ("1", "external", 1));
    assert_eq!(derived[6].finish_reason, "no_answer");
    let report =
        std::fs::read_to_string(mill.artifact_folder("compared", "report").join("report.html")).expect("a page");
    let place = |text: &str| report.find(text).unwrap_or_else(|| panic!("{text}"));
    assert!(place("What regressed: new") < place("Paul Gauguin") && place("What regressed: other") < place("Ganymede"));
    let figure = mill.artifact_folder("figure", "plot");
    assert!(std::fs::read_to_string(figure.join("plot.svg")).expect("a picture").starts_with("<svg"));
    let again = mill.run(&[]).exit(0);
    assert_eq!((again.ran().as_str(), again.cached().split(' ').count()), ("", 6));
}

#[test]
fn results_of_r1_searcher_are_the_same_by_layout_and_by_columns() {
    let Some(text) = searchmill_fixtures::shared_text("data/r1_searcher/eval_bamboogle_qwen.jsonl") else { return };
    let mill = Mill::new();
    mill.write("results.jsonl", &text);
    let columns = json!({"golden_answers": "answer", "prediction": "pred_ans"});
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: real\nnodes:\n  \
             base: {{op: read, with: {{path: results.jsonl, as: trajectory, layout: r1-searcher}}}}\n  \
             mapped: {{op: read, with: {{path: results.jsonl, as: trajectory, columns: {columns}}}}}\n  \
             compared: {{op: compare, from: {{base: base, mapped: mapped}}, with: {{by: [f1, em, acc], on: question}}}}\n"
        ),
    );
    mill.run(&[]).exit(0);
    let compared: Vec<Metric> = rows(&mill, "compared", "metrics");
    assert_eq!(compared.len(), 3);
    assert!(compared.iter().all(|metric| metric.value == 0.0 && metric.count > 100), "{compared:?}");
}

//! Tests of `plot`.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray};
use searchmill_engine::operator::testing::{Harness, batch_input, inputs};
use searchmill_engine::operator::{OperatorError, Tables, entry};
use searchmill_schemas::RecordKind;
use serde_json::{Value, json};

use super::*;

struct Drawn {
    svg: String,
    page: String,
    summary: String,
}

fn draw(params: Value, rows: &RecordBatch) -> Result<Drawn, OperatorError> {
    let bound = inputs([(ROWS, batch_input(RecordKind::Table, rows.clone()))]);
    let harness = Harness::new();
    let outcome = harness.run(&entry::<Plot>(), params, &bound)?;
    let read = |name: &str| std::fs::read_to_string(outcome.trees[PLOT].join(name)).expect(name);
    Ok(Drawn { svg: read("plot.svg"), page: read("plot.html"), summary: outcome.summary.clone() })
}

fn rows(cells: &[(&str, f64, &str)]) -> RecordBatch {
    let names: ArrayRef = Arc::new(cells.iter().map(|(name, ..)| Some(*name)).collect::<StringArray>());
    let values: ArrayRef = Arc::new(Float64Array::from_iter_values(cells.iter().map(|(_, value, _)| *value)));
    let groups: ArrayRef = Arc::new(cells.iter().map(|(_, _, group)| Some(*group)).collect::<StringArray>());
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values((0..cells.len() as i32).map(|place| place / 2 * 10)));
    let columns = [("name", names), ("value", values), ("system", groups), ("k", numbers)];
    RecordBatch::try_from_iter(columns).expect("rows")
}

/// Two values of `k`, two systems.
fn four() -> RecordBatch {
    rows(&[("a", 0.25, "s"), ("a", 0.5, "t"), ("b", -0.25, "s"), ("b", 1.0, "t")])
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn bars_stand_on_zero_with_their_intervals() {
    let params = json!({"x": "name", "y": "value", "series": "system", "low": "value - 0.1", "high": "value + 0.2", "title": "T"});
    let Drawn { svg, page, .. } = draw(params, &four()).expect("drawn");
    assert_eq!((count(&svg, r#"class="ke""#), count(&svg, "<title>s, ")), (4, 2));
    assert!(svg.contains("<title>t, b: 1 (0.9 – 1.2)</title>"), "{svg}");
    // The axis goes from -0.5 to 1.5 over 320 px: a bar of 0.25 is 40 px high, above and below 0.
    assert_eq!(count(&svg, r#"height="40.0" class="f0""#), 2, "{svg}");
    assert!(page.contains("<h3>Numbers</h3>") && page.contains("<td>-0.25</td>") && page.contains(svg.trim_end()));
}

#[test]
fn lines_go_from_left_to_right() {
    let shuffled = rows(&[("a", 3.0, "s"), ("a", 4.0, "t"), ("b", 1.0, "s"), ("b", 2.0, "t")]);
    let params =
        json!({"kind": "lines", "x": "-k", "y": "value", "series": "system", "low": "value - 1", "high": "value + 1"});
    let Drawn { svg, .. } = draw(params, &shuffled).expect("drawn");
    let path = svg.split("<path d=\"M").filter(|part| part.contains("class=\"kl l0\"")).nth(1).expect("a line");
    let xs: Vec<f64> =
        path.split('"').next().unwrap().split('L').map(|at| at.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(xs.len() == 2 && xs[0] < xs[1], "{path}");
    assert_eq!(count(&svg, r#"class="kv f"#), 2, "a band for each line");
    assert!(svg.contains(r#"stroke-dasharray="7 3""#), "the second line has dashes");
}

#[test]
fn points_may_repeat_and_cells_may_not() {
    let twice = rows(&[("a", 1.0, "s"), ("a", 2.0, "s")]);
    let scatter = draw(json!({"kind": "scatter", "x": "name", "y": "value"}), &twice).expect("drawn");
    assert_eq!(count(&scatter.svg, "<title>a: "), 2);
    for (params, wanted) in [
        (json!({"x": "name", "y": "value", "series": "system"}), "two rows are one mark: `name` is a, `system` is s"),
        (json!({"kind": "lines", "x": "k", "y": "value"}), "two rows are one mark: `k` is 0"),
        (
            json!({"kind": "heatmap", "x": "name", "y": "system", "value": "value"}),
            "two rows are one mark: `name` is a, `system` is s",
        ),
    ] {
        let error = draw(params, &twice).err().expect("refused");
        assert_eq!(error.message, wanted);
        assert!(error.help.is_some_and(|help| help.contains("avg(…)")));
    }
}

#[test]
fn a_heat_map_has_a_cell_for_each_row() {
    let params = json!({"kind": "heatmap", "x": "k", "y": "system", "value": "value"});
    let Drawn { svg, page, .. } = draw(params, &four()).expect("drawn");
    assert!(svg.contains(r##"fill="#d55e00"><title>10, t: 1</title>"##), "{svg}");
    assert_eq!(count(&svg, r#"class="km dark">"#) + count(&svg, r#"class="km light">"#), 4, "cells show their numbers");
    assert!(page.contains("<th>value</th>"));
}

#[test]
fn panels_share_their_axes() {
    let params = json!({"x": "name", "y": "value", "facet": "system"});
    let Drawn { svg, .. } = draw(params, &four()).expect("drawn");
    assert_eq!((count(&svg, r#"class="kf">s<"#), count(&svg, r#"class="kf">t<"#)), (1, 1));
    assert_eq!(count(&svg, ">1.00</text>"), 2, "one scale in both panels: {svg}");
}

#[test]
fn texts_are_escaped_and_cut() {
    let long = "x".repeat(300);
    let cells = [("<script>&", 1.0, "\"'>"), (long.as_str(), 2.0, "]]>")];
    let params = json!({"x": "name", "y": "value", "series": "system", "facet": "system", "title": "</svg><b>", "x_title": "<i>"});
    let Drawn { svg, page, .. } = draw(params, &rows(&cells)).expect("drawn");
    for text in [&svg, &page] {
        assert!(!text.contains("<script>") && !text.contains("</svg><b>") && !text.contains("<i>"));
        assert_eq!(count(text, "</svg>"), 1);
    }
    assert_eq!(count(&svg, &long), 3, "the whole text is in tooltips: of the mark, and below both panels");
}

#[test]
fn what_is_no_number_is_told_and_not_drawn() {
    let numbers = [1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let cells: Vec<_> = numbers.iter().zip(["a", "b", "c", "d"]).map(|(value, name)| (name, *value, "s")).collect();
    let drawn = draw(json!({"x": "name", "y": "value", "low": "value", "high": "1 / (k - k)"}), &rows(&cells[..1]));
    assert!(drawn.is_err(), "a division by zero is an error of the query");
    let Drawn { svg, page, summary } = draw(json!({"x": "name", "y": "value"}), &rows(&cells)).expect("drawn");
    assert_eq!(summary, "3 rows are not drawn: a number is null, NaN or infinite.\n");
    assert!(page.contains(summary.trim()) && !svg.contains("NaN") && !svg.contains("inf"));
    let nothing = draw(json!({"kind": "lines", "x": "k", "y": "value"}), &rows(&[])).expect("drawn");
    assert!(nothing.svg.contains("No rows to draw") && nothing.page.contains("No rows to draw"));
    let huge =
        draw(json!({"x": "name", "y": "value"}), &rows(&[("a", f64::MAX, "s"), ("b", f64::MIN, "s")])).expect("drawn");
    assert!(!huge.svg.contains("NaN") && !huge.svg.contains("inf"), "{}", huge.svg);
}

#[test]
fn limits_and_types_have_errors() {
    let names: Vec<String> = (0..101).map(|place| format!("n{place}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), 1.0, name.as_str())).collect();
    let message = |params: Value| draw(params, &rows(&many)).err().expect("refused").message;
    assert_eq!(
        message(json!({"x": "name", "y": "value"})),
        "`x`: more than 100 texts on the axis cannot be told apart"
    );
    let series = json!({"kind": "scatter", "x": "k", "y": "value", "series": "name"});
    assert_eq!(message(series), "`series`: more than 8 colours cannot be told apart");
    assert_eq!(
        message(json!({"kind": "scatter", "x": "k", "y": "value", "facet": "name"})),
        "`facet`: more than 24 panels cannot be told apart"
    );
    assert_eq!(message(json!({"x": "k", "y": "name"})), "`y`: `name` is Utf8, not a number");
    assert_eq!(message(json!({"x": "k", "y": "valeu"})), "`y`: there is no column `valeu`");
    let all: Vec<_> = (0..20_001).map(|_| ("a", 1.0, "s")).collect();
    let error = draw(json!({"kind": "scatter", "x": "k", "y": "value"}), &rows(&all)).err().expect("refused");
    assert_eq!(error.message, "more than 20000 rows cannot be told apart");
}

#[test]
fn wrong_params_are_refused() {
    let path =
        |params: Value| draw(params, &four()).err().expect("refused").message.split(':').next().unwrap().to_owned();
    assert_eq!(path(json!({"x": "name", "y": "value", "low": "value"})), "low");
    assert_eq!(path(json!({"x": "name", "y": "value", "high": "value"})), "high");
    assert_eq!(path(json!({"kind": "heatmap", "x": "name", "y": "system"})), "value");
    assert_eq!(path(json!({"kind": "bars", "x": "name", "y": "value", "value": "value"})), "value");
    assert_eq!(path(json!({"kind": "heatmap", "x": "a", "y": "b", "value": "c", "series": "d"})), "series");
    assert_eq!(path(json!({"x": "substr(", "y": "value"})), "x");
    let tables = Tables::from([(ROWS.to_owned(), four().schema())]);
    let params = json!({"x": "name", "y": "value", "facet": "systm"});
    let params: PlotParams = serde_json::from_value(params).expect("params");
    let issue = params.column_issues(&tables).pop().expect("an issue");
    assert_eq!((issue.path.as_str(), issue.message.as_str()), ("facet", "there is no column `systm`"));
}

#[test]
fn the_same_rows_give_the_same_bytes() {
    let params = || json!({"kind": "lines", "x": "k", "y": "value", "series": "system"});
    let (one, other) = (draw(params(), &four()).expect("drawn"), draw(params(), &four()).expect("drawn"));
    assert_eq!((one.svg, one.page), (other.svg, other.page));
}

//! Tests of `map` with functions, with a real `python3`.

use std::path::Path;

use arrow::array::{Array, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Int64Type};
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_engine::operator::{InputArtifact, entry};
use searchmill_schemas::{Document, Question};
use serde_json::{Value, json};

use super::*;
use crate::map::Map;

const STEPS: &str = r#"
import json, time
def shorten(text, *, words=1):
    return {"text": " ".join(text.split()[:words]), "cut": len(text.split()) > words}
def title(id): return {"title": id.upper()}
def every(**row): return row
def drops(text): return None if "two" in text else {}
def several(text): return [{"text": word} for word in text.split()]
def questions(text):
    yield {"question": text + "?", "golden_answers": [text]}
    yield {"question": "And?"}
def fails(text):
    if "two" in text: raise ValueError("not two")
    return {"cut": 1 if "three" in text else False}
def unknown(text): return {"other": 1}
def wrong(text): return {"title": 3}
def metadata(text): return {"metadata": {"words": [1]}}
class Paid:
    def __init__(self, path): self.path = path
    def __call__(self, text):
        with open(self.path, "a") as file: file.write(text + "\n")
        if "two" in text: raise ValueError("not two")
        return {"score": len(text)}
"#;

struct Steps(Harness);

impl Steps {
    fn new() -> Self {
        let mut harness = Harness::new();
        harness.directory = harness.path().to_owned();
        std::fs::write(harness.path().join("steps.py"), STEPS).unwrap();
        Self(harness)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn run(&self, name: &str, more: Value, rows: InputArtifact) -> Result<Outcome, OperatorError> {
        let mut params = json!({"python": format!("steps.py:{name}")});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.0.run(&entry::<Map>(), params, &inputs([(ROWS, rows)]))
    }

    fn documents(&self, name: &str, more: Value) -> Outcome {
        self.run(name, more, rows_input(&documents())).unwrap()
    }
}

fn documents() -> Vec<Document> {
    let one = |id: &str, text: &str| Document {
        id: id.to_owned(),
        title: Some("T".to_owned()),
        text: text.to_owned(),
        metadata: None,
    };
    vec![one("a", "one"), one("b", "two words"), one("c", "three more words")]
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    let column = batch.column_by_name(column).unwrap_or_else(|| panic!("no column {column}"));
    column.as_string::<i32>().iter().map(|text| text.unwrap_or("-").to_owned()).collect()
}

#[test]
fn columns_are_changed_and_added_and_the_others_ride_along() {
    let steps = Steps::new();
    let short = steps.documents("shorten", json!({"output": {"cut": "bool"}, "arguments": {"words": 2}})).batch(ROWS);
    assert_eq!(texts(&short, "text"), ["one", "two words", "three more"]);
    assert_eq!(texts(&short, "title"), ["T", "T", "T"]);
    let cut = short.column_by_name("cut").unwrap();
    assert_eq!(cut.as_boolean().iter().collect::<Vec<_>>(), [Some(false), Some(false), Some(true)]);
    assert_eq!(steps.documents("every", json!({})).read::<Document>(ROWS), documents());
    assert_eq!(texts(&steps.documents("title", json!({})).batch(ROWS), "title"), ["A", "B", "C"]);
    let kept = steps.documents("drops", json!({}));
    assert_eq!(texts(&kept.batch(ROWS), "id"), ["a", "c"]);
    assert!(kept.rejects().is_empty());
    assert_eq!(texts(&steps.documents("metadata", json!({})).batch(ROWS), "metadata")[0], r#"{"words":[1]}"#);
}

#[test]
fn several_rows_have_ids_of_their_own() {
    let steps = Steps::new();
    let several = steps.documents("several", json!({})).batch(ROWS);
    assert_eq!(texts(&several, "id"), ["a#0", "b#0", "b#1", "c#0", "c#1", "c#2"]);
    assert_eq!(texts(&several, "text")[1..3], ["two", "words"]);
    let asked = steps.documents("questions", json!({"as": "question"}));
    let questions: Vec<Question> = asked.read(ROWS);
    assert_eq!((questions[0].id.as_str(), questions[0].question.as_str()), ("a#0", "one?"));
    assert_eq!((questions[1].golden_answers.len(), questions[0].golden_answers[0].as_str()), (0, "one"));
    assert_eq!(texts(&asked.batch(ROWS), "document_id")[..3], ["a", "a", "b"]);
}

#[test]
fn bad_rows_are_rejects_and_bad_columns_fail_the_node() {
    let steps = Steps::new();
    let outcome = steps.documents("fails", json!({"output": {"cut": "bool"}}));
    assert_eq!(texts(&outcome.batch(ROWS), "id"), ["a"]);
    let rejects = outcome.rejects();
    let shown: Vec<_> =
        rejects.iter().map(|reject| (reject.id.as_str(), reject.kind.as_str(), reject.attempts)).collect();
    assert_eq!(shown, [("b", "exception", 1), ("c", "bad_response", 1)]);
    assert_eq!(rejects[0].message, "ValueError: not two");
    assert!(rejects[0].detail.as_deref().unwrap().contains("File \"steps.py\", line 13, in fails"), "{rejects:?}");
    assert!(rejects[1].message.starts_with("the row does not fit `output`: "), "{rejects:?}");
    let wrong = steps.documents("wrong", json!({}));
    assert_eq!(wrong.rejects()[0].message, "column `title` is `3`: its type is Utf8");
    let unknown = steps.run("unknown", json!({}), rows_input(&documents())).unwrap_err();
    assert_eq!(unknown.message, "the function returned the column `other`, which neither the input nor `output` has");
    assert!(unknown.help.unwrap().contains("`output: {other: text}`"));
    let missing = steps.run("every", json!({"as": "question"}), rows_input(&documents())).unwrap();
    assert!(missing.rejects()[0].message.contains("needs `question`"), "{:?}", missing.rejects());
}

#[test]
fn any_table_goes_and_the_cut_of_the_input_does_not_matter() {
    let number = Int64Array::from(vec![Some(1), None]);
    let word = StringArray::from(vec![Some("x"), None]);
    let batch = RecordBatch::try_from_iter([("number", Arc::new(number) as _), ("word", Arc::new(word) as _)]).unwrap();
    let mut steps = Steps::new();
    let table = || batch_input(RecordKind::Table, batch.clone());
    let every = steps.run("every", json!({}), table()).unwrap().batch(ROWS);
    assert_eq!(every, batch);
    let none = steps.run("every", json!({}), batch_input(RecordKind::Table, batch.slice(0, 0))).unwrap();
    assert!(!none.rows.contains_key(ROWS));
    let whole = steps.documents("several", json!({})).batch(ROWS);
    for rows in [1, 2] {
        steps.0.batch_rows = rows;
        assert_eq!(steps.documents("several", json!({})).batch(ROWS), whole);
    }
    let other = steps.run("fails", json!({}), table()).unwrap_err();
    assert_eq!(other.message, "`fails` takes `text`, which is no column of the input");
}

#[test]
fn remembered_rows_ride_beside_new_columns_and_are_repeated_only_on_request() {
    let mut steps = Steps::new();
    let log = steps.path().join("calls");
    let params = json!({"remember": "row", "arguments": {"path": log}, "output": {"score": "int"}});
    let calls = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let outcome = steps.documents("Paid", params.clone());
    assert_eq!(outcome.batch(ROWS).column_by_name("score").unwrap().as_primitive::<Int64Type>().values(), &[3, 16]);
    assert_eq!((outcome.rejects()[0].kind.as_str(), outcome.rejects()[0].attempts, calls()), ("exception", 1, 3));
    steps.0.retry.stated = true;
    let outcome = steps.documents("Paid", params.clone());
    assert_eq!((outcome.rejects()[0].attempts, calls()), (3, 8));

    let mut given = params;
    given["python"] = json!("steps.py:Paid");
    let bound = (entry::<Map>().bind)(given).map_err(|issue| issue.message).unwrap();
    let rows = inputs([(ROWS, rows_input(&documents()))]);
    let context = steps.0.context();
    let Kernel::AsyncMap(kernel) = bound.open(&rows, &context).unwrap() else { panic!("rows") };
    assert_eq!(kernel.reads(), ["text", "id"]);
    let row = |document: &Document| searchmill_schemas::to_batch(std::slice::from_ref(document)).unwrap();
    let output = context.block_on(kernel.run(&row(&documents()[0]), 0, &context)).unwrap();
    let renamed = Document { title: Some("New".to_owned()), ..documents()[0].clone() };
    let batch = &kernel.label(&row(&renamed), 0, output).unwrap().batches[0].1;
    assert_eq!((texts(batch, "title"), texts(batch, "text")), (vec!["New".to_owned()], vec!["one".to_owned()]));
    assert_eq!(batch.schema().field_with_name("score").unwrap().data_type(), &DataType::Int64);
    let riding = steps.run("title", json!({"remember": "row"}), rows_input(&documents()));
    let message = &riding.unwrap().rejects()[0].message;
    assert_eq!(message, "the function returned the column `title`, which it does not take");
}

#[test]
fn params_are_checked_with_their_places() {
    let places = |params: Value| {
        let bound = (entry::<Map>().bind)(params).map_err(|issue| issue.message).unwrap();
        bound.declaration.issues.into_iter().map(|issue| issue.path).collect::<Vec<_>>()
    };
    assert_eq!(places(json!({"python": "steps.py"})), ["python"]);
    assert_eq!(places(json!({"python": "a.py:f", "prompt": "x"})), [""]);
    assert_eq!(
        places(json!({"python": "a.py:f", "samples": 2, "explode": "x", "batch": 0})),
        ["explode", "samples", "batch"]
    );
    assert_eq!(places(json!({"python": "a.py:f", "batch": 2, "remember": "row"})), ["batch"]);
    assert_eq!(places(json!({"python": "a.py:f", "output": "text"})), ["output"]);
    assert_eq!(
        places(json!({"python": "a.py:f", "interpreter": [], "environment": ["A=1"]})),
        ["environment.0", "interpreter"]
    );
    let prompt = json!({"prompt": "x", "policy": {"endpoint": {"base_url": "http://x", "model": "m"}}, "files": ["a"]});
    assert_eq!(places(prompt), ["files"]);
    assert_eq!(places(json!({"prompt": "x"})), ["policy"]);
}

#[test]
fn batches_are_cut_and_failed_ones_searched_for_the_row() {
    let named = std::env::var("SEARCHMILL_TEST_PYTHON").ok();
    let python = named.into_iter().chain(["python3".to_owned()]).find(|python| {
        let probe = std::process::Command::new(python).args(["-c", "import pyarrow"]).output();
        probe.is_ok_and(|output| output.status.success())
    });
    let Some(python) = python else {
        searchmill_fixtures::skip("a python3 with pyarrow (SEARCHMILL_TEST_PYTHON names one)");
        return;
    };
    let steps = Steps::new();
    let text = "import pyarrow as pa\n\
        def size(batch):\n    if 'two words' in batch['text'].to_pylist(): raise ValueError('two')\n    \
        return {'size': [batch.num_rows] * batch.num_rows}\n\
        def half(batch): return pa.table({'text': batch['text']})\n\
        def mean(batch): return {'size': [batch.num_rows]}\n\
        def other(batch): return {'size': ['x' if batch.num_rows == 1 else '1'] * batch.num_rows}\n\
        def rounded(batch): return {'size': pa.array([5.7] * batch.num_rows)}\n\
        def exact(batch): return {'size': pa.array([5.0] * batch.num_rows)}\n\
        def truth(batch): return {'size': pa.array([True] * batch.num_rows)}\n\
        def number(batch): return {'text': pa.array([5] * batch.num_rows), 'size': pa.nulls(batch.num_rows)}\n";
    std::fs::write(steps.path().join("steps.py"), text).unwrap();
    let run = |name: &str, batch: u32, more: Value| {
        let mut params = json!({"batch": batch, "interpreter": [python], "output": {"size": "int"}});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        steps.run(name, params, rows_input(&documents()))
    };
    let outcome = run("size", 2, json!({})).unwrap();
    let batch = outcome.batch(ROWS);
    assert_eq!(texts(&batch, "id"), ["a", "c"]);
    assert_eq!(batch.column_by_name("size").unwrap().as_primitive::<Int64Type>().values(), &[1, 1]);
    assert_eq!((outcome.rejects().len(), outcome.rejects()[0].id.as_str()), (1, "b"));
    let lacks = run("half", 4, json!({})).unwrap_err();
    assert!(lacks.message.contains("without the column `id`"), "{lacks}");
    let mean = run("mean", 3, json!({})).unwrap_err();
    assert!(mean.message.contains("returned 1 rows for a batch of 3"), "{mean}");
    let other = run("other", 2, json!({})).unwrap_err();
    assert!(other.message.contains("returned `size` as Utf8, and its type is Int64"), "{other}");
    for (name, said) in [
        ("rounded", "returned `size` as Float64, and its type is Int64: not every Float64 is a Int64"),
        ("truth", "returned `size` as Boolean, and its type is Int64: a Boolean is no Int64"),
        ("number", "returned `text` as Int64, and its type is Utf8: a Int64 is no Utf8"),
    ] {
        let refused = run(name, 2, json!({})).unwrap_err();
        assert!(refused.message.contains(said), "{refused}");
    }
    let exact = run("exact", 2, json!({})).unwrap().batch(ROWS);
    assert_eq!(exact.column_by_name("size").unwrap().as_primitive::<Int64Type>().values(), &[5, 5, 5]);
    assert!(batch.column_by_name("title").unwrap().is_valid(0), "columns that a dict leaves out ride along");
}

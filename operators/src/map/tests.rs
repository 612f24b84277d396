//! Tests of `map` against a real HTTP server.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input};
use searchmill_engine::operator::{Blame, InputArtifact, entry};
use searchmill_fixtures::openai_server::{OpenAiServer, Step, message};
use searchmill_schemas::{Chunk, Document, Question, RecordKind, Trajectory, from_batch};
use serde_json::{Value, json};

use super::*;
use crate::shared::relation::testing::trajectories;

fn say(text: &str) -> Step {
    Step::Say(message(text))
}

/// Params with this prompt and output, for the server.
fn params(server: &OpenAiServer, more: Value) -> Value {
    let mut params = json!({"policy": {"endpoint": {"base_url": server.base_url(), "model": "m", "temperature": 0}}});
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params
}

fn run(params: Value, rows: InputArtifact) -> Result<Outcome, OperatorError> {
    Harness::new().run(&entry::<Map>(), params, &inputs([(ROWS, rows)]))
}

fn texts(batch: &RecordBatch, column: &str) -> Vec<String> {
    let column = batch.column_by_name(column).unwrap_or_else(|| panic!("no column {column}"));
    column.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned()).collect()
}

fn documents() -> Vec<Document> {
    let one = |id: &str, text: &str| Document {
        id: id.to_owned(),
        title: None,
        text: text.to_owned(),
        metadata: Some("{\"page\": 3}".to_owned()),
    };
    vec![one("a", "Ada"), one("b", "Bob"), one("c", "Ada")]
}

fn scored(server: &OpenAiServer, more: Value) -> Value {
    let mut all = json!({"prompt": {"system": "Be brief.", "user": "{{ text }}{{ output_schema and '' }}"},
        "output": [{"reason": "text"}, {"score": "int"}]});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    params(server, all)
}

#[test]
fn answers_become_typed_columns_and_the_others_pass() {
    let server = OpenAiServer::start_by_turn(
        [("Ada", r#"{"reason": "so", "score": 5}"#), ("Bob", "```json\n{\"score\": 1, \"reason\": \"no\"}\n```")]
            .map(|(text, answer)| (text.to_owned(), vec![say(answer)]))
            .into(),
    );
    let outcome = run(scored(&server, json!({})), rows_input(&documents())).unwrap();
    let batch = outcome.batch(ROWS);
    assert_eq!(from_batch::<Document>(&batch).unwrap(), documents(), "all columns pass");
    let schema = batch.schema();
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["id", "title", "text", "metadata", "reason", "score"]);
    assert_eq!(batch.column_by_name("score").unwrap().as_primitive::<Int64Type>().values(), &[5, 1, 5]);
    let asked = server.requests("Ada")[0].body["messages"].clone();
    assert_eq!(asked, json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Ada"}]));
}

#[test]
fn an_answer_that_does_not_fit_is_asked_again_with_the_error() {
    let steps = vec![say("five"), say(r#"{"reason": "so"}"#), say(r#"{"reason": "so", "score": 5}"#)];
    let server =
        OpenAiServer::start_by_turn([("Ada".to_owned(), steps), ("Bob".to_owned(), vec![say("never")])].into());
    let outcome = run(scored(&server, json!({})), rows_input(&documents()[..2])).unwrap();
    assert_eq!(texts(&outcome.batch(ROWS), "id"), ["a"]);
    assert_eq!(outcome.usage.calls, 3);
    let asked = server.requests("Ada");
    assert_eq!(asked[1].body["messages"][2], json!({"role": "assistant", "content": "five"}));
    let again = asked[2].body["messages"][5]["content"].as_str().unwrap();
    assert!(again.contains("\"score\" is a required property") && again.contains("\"score\": integer"), "{again}");
    let reject = &outcome.rejects()[0];
    assert_eq!((reject.id.as_str(), reject.kind.as_str()), ("b", "bad_response"));
    assert!(reject.message.ends_with("(asked again 2 times)"), "{}", reject.message);
    assert_eq!(reject.detail.as_deref(), Some("never"), "what it wrote is kept");
    assert_eq!(server.requests("Bob").len(), 3);
    let once = run(scored(&server.again(), json!({"repairs": 0})), rows_input(&documents()[..2])).unwrap();
    assert_eq!(once.rejects().len(), 2);
}

#[test]
fn questions_are_made_from_chunks() {
    let answer =
        r#"{"made": [{"question": "Who?", "golden_answers": ["Ada"]}, {"question": "Why?", "golden_answers": []}]}"#;
    let server = OpenAiServer::start([("Ask about Ada.".to_owned(), vec![say(answer)])].into());
    let chunk: Chunk =
        serde_json::from_value(json!({"id": "d#0", "document_id": "d", "position": 0, "document_chunks": 1,
        "title": null, "text": "Ada", "contents": "Ada", "metadata": null, "start": 0, "end": 3, "tokens": 1}))
        .unwrap();
    let more = json!({"prompt": "Ask about {{ text }}.{{ output_schema and '' }}",
        "output": {"made": [{"question": "text", "golden_answers": ["text"]}]}, "explode": "made", "as": "question"});
    let outcome = run(params(&server, more), rows_input(&[chunk])).unwrap();
    let questions: Vec<Question> = outcome.read(ROWS);
    assert_eq!(
        questions.iter().map(|q| (q.id.as_str(), q.question.as_str())).collect::<Vec<_>>(),
        [("d#0#0", "Who?"), ("d#0#1", "Why?")]
    );
    assert_eq!((questions[0].golden_answers.len(), questions[0].evidence.len()), (1, 0));
    let batch = outcome.batch(ROWS);
    assert_eq!(texts(&batch, "chunk_id"), ["d#0", "d#0"], "where they come from");
    assert_eq!(texts(&batch, "text"), ["Ada", "Ada"], "columns ride along");
}

#[test]
fn samples_are_rows() {
    let server = OpenAiServer::start([("Ada".to_owned(), vec![say("x"), say("y")])].into());
    let more = json!({"prompt": "{{ text }}", "samples": 2, "output": "draft"});
    let batch = run(params(&server, more), rows_input(&documents()[..1])).unwrap().batch(ROWS);
    assert_eq!(texts(&batch, "id"), ["a@0", "a@1"]);
    let mut drafts = texts(&batch, "draft");
    drafts.sort();
    assert_eq!(drafts, ["x", "y"]);
    assert_eq!(batch.column_by_name("sample").unwrap().as_primitive::<Int64Type>().values(), &[0, 1]);
}

#[test]
fn any_table_goes_and_nested_columns_are_read() {
    let rows = trajectories(1);
    let told = rows[0].messages.iter().map(|message| message.role.as_str()).collect::<Vec<_>>().join(",");
    let server = OpenAiServer::start([(told.clone(), vec![say("ok")])].into());
    let prompt = "{{ messages|map(attribute='role')|join(',') }}";
    let outcome = run(params(&server, json!({"prompt": prompt})), rows_input(&rows)).unwrap();
    assert_eq!(outcome.read::<Trajectory>(ROWS), rows);
    assert_eq!(texts(&outcome.batch(ROWS), "response"), ["ok"]);
    let batch = RecordBatch::try_from_iter([("n", Arc::new(arrow::array::Int64Array::from(vec![7])) as _)]).unwrap();
    let server = OpenAiServer::start([("7".to_owned(), vec![say("seven")])].into());
    let table = batch_input(RecordKind::Table, batch);
    let made = run(params(&server, json!({"prompt": "{{ n }}"})), table).unwrap().batch(ROWS);
    assert_eq!((made.num_columns(), texts(&made, "response")), (2, vec!["seven".to_owned()]));
    let server = OpenAiServer::start([("3".to_owned(), vec![say("page")])].into());
    let made = run(params(&server, json!({"prompt": "{{ metadata.page }}"})), rows_input(&documents()[..1])).unwrap();
    assert_eq!(texts(&made.batch(ROWS), "response"), ["page"]);
}

#[test]
fn a_server_that_can_is_given_the_schema() {
    let server = OpenAiServer::start([("Ada".to_owned(), vec![say(r#"{"reason": "", "score": 1}"#)])].into());
    run(scored(&server, json!({"constrained": true})), rows_input(&documents()[..1])).unwrap();
    let asked = &server.requests("Ada")[0].body["response_format"];
    assert_eq!(asked["json_schema"]["schema"]["properties"]["score"], json!({"type": "integer"}));
}

#[test]
fn a_remembered_answer_is_put_beside_the_columns_of_the_row() {
    let server = OpenAiServer::start([("Ada".to_owned(), vec![say(r#"{"reason": "so", "score": 5}"#)])].into());
    let bound = (entry::<Map>().bind)(scored(&server, json!({}))).map_err(|issue| issue.message).unwrap();
    let rows = documents();
    let (harness, given) = (Harness::new(), inputs([(ROWS, rows_input(&rows))]));
    let Kernel::AsyncMap(kernel) = bound.open(&given, &harness.context()).unwrap() else { panic!("rows") };
    let context = harness.context();
    let row = |row: &Document| searchmill_schemas::to_batch(std::slice::from_ref(row)).unwrap();
    let output = context.block_on(kernel.run(&row(&rows[0]), 0, &context)).unwrap();
    let labelled = kernel.label(&row(&rows[2]), 0, output).unwrap();
    let batch = &labelled.batches[0].1;
    assert_eq!((texts(batch, "id"), texts(batch, "reason")), (vec!["c".to_owned()], vec!["so".to_owned()]));
    assert_eq!(kernel.reads(), ["text"]);
    assert_eq!(kernel.said(batch).unwrap(), [("c".to_owned(), r#"{"reason":"so","score":5}"#.to_owned())]);
}

#[test]
fn what_cannot_be_asked_is_refused_with_its_place() {
    let server = OpenAiServer::start([].into());
    let place = |more: Value| {
        let bound = (entry::<Map>().bind)(params(&server, more)).map_err(|issue| issue.message).unwrap();
        bound.declaration.issues.into_iter().map(|issue| issue.path).collect::<Vec<_>>()
    };
    assert_eq!(place(json!({"prompt": "{{ text"})), ["prompt"]);
    assert_eq!(place(json!({"prompt": "x", "output": {"a": "integer"}})), ["output"]);
    assert_eq!(place(json!({"prompt": "x", "constrained": true})), ["constrained"]);
    assert_eq!(place(json!({"prompt": "x", "explode": "a"})), ["explode"]);
    assert_eq!(place(json!({"prompt": "x", "policy": "evidence", "samples": 0})), ["policy", "samples"]);
    let failed = |more: Value| run(params(&server, more), rows_input(&documents())).err().unwrap();
    let error = failed(json!({"prompt": "{{ txt }}"}));
    assert_eq!((error.message.as_str(), error.blame), ("`prompt`: the input has no column `txt`", Blame::Pipeline));
    assert_eq!(error.help.as_deref(), Some("did you mean `text`?"));
    let error = failed(json!({"prompt": "x", "as": "chunk"}));
    assert!(error.message.starts_with("chunk rows need `position`"), "{}", error.message);
    assert_eq!(server.count(), 0, "nothing was paid");
}

#[test]
fn a_row_that_the_template_cannot_take_is_a_reject_and_costs_nothing() {
    let server = OpenAiServer::start([].into());
    let outcome = run(params(&server, json!({"prompt": "{{ metadata.x.y }}"})), rows_input(&documents()[..1])).unwrap();
    assert_eq!(outcome.rejects()[0].kind, "data");
    assert!(outcome.rejects()[0].message.contains("undefined"), "{}", outcome.rejects()[0].message);
    assert_eq!(server.count(), 0);
}

#[test]
fn an_audit_finds_columns_that_no_input_row_has() {
    let server = OpenAiServer::start([("Ada".to_owned(), vec![say(r#"{"reason": "", "score": 1}"#)])].into());
    let given = scored(&server, json!({"samples": 2}));
    let batch = run(given.clone(), rows_input(&documents()[..1])).unwrap().batch(ROWS);
    let bound = (entry::<Map>().bind)(given).map_err(|issue| issue.message).unwrap();
    let harness = Harness::new();
    let found = |rows: &[Document]| {
        let recheck =
            bound.declaration.recheck(&inputs([(ROWS, rows_input(rows))]), &harness.context()).unwrap().unwrap();
        let found = recheck.check(&batch).unwrap();
        (found.compared, found.differences.len())
    };
    assert_eq!(found(&documents()[..1]), (2, 0));
    assert_eq!(found(&documents()[1..2]), (2, 2));
}

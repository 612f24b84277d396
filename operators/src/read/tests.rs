//! Tests of `read`: every layout with its real file, every kind of broken file, every type of location.

mod exchange;
mod faults;
mod files;
mod forms;
mod layout;

use std::path::PathBuf;

use arrow::array::AsArray;
use arrow::datatypes::DataType;
use searchmill_engine::operator::testing::{Harness, Outcome};
use searchmill_engine::operator::{Inputs, entry};
use searchmill_fixtures::test_server::TestServer;
use searchmill_schemas::{Document, Question};
use serde_json::{Value, json};

use super::*;

pub(super) fn run(harness: &Harness, params: Value) -> Result<Outcome, OperatorError> {
    harness.run(&entry::<Read>(), params, &Inputs::new())
}

pub(crate) fn read_text(name: &str, text: impl AsRef<[u8]>, params: Value) -> Result<Outcome, OperatorError> {
    let mut harness = Harness::new();
    std::fs::write(harness.path().join(name), text).unwrap();
    harness.directory = harness.path().to_owned();
    let mut params = params;
    params["path"] = json!(name);
    run(&harness, params)
}

/// Path of the real file, or `None` if the shared data is missing.
pub(super) fn shared(name: &str) -> Option<PathBuf> {
    searchmill_fixtures::shared(&format!("data/{name}"))
}

pub(super) fn shared_rows<R: searchmill_schemas::Record>(name: &str, kind: &str, layout: &str) -> Option<Vec<R>> {
    let path = shared(name)?;
    let outcome = run(&Harness::new(), json!({"path": path, "as": kind, "layout": layout})).unwrap();
    assert_eq!(outcome.rejects(), []);
    let rows = outcome.read::<R>("rows");
    let again = run(&Harness::new(), json!({"path": path, "as": kind, "layout": layout})).unwrap();
    assert_eq!(outcome.batch("rows"), again.batch("rows"));
    Some(rows)
}

fn title_and_fact(question: &Question, place: usize) -> (&str, Option<&str>) {
    let evidence = &question.evidence[place];
    (evidence.title.as_deref().unwrap(), evidence.fact.as_deref())
}

/// Asserts that a document with its title contains every fact.
fn assert_linked(questions: &[Question], documents: &[Document]) -> usize {
    let mut facts = 0;
    for evidence in questions.iter().flat_map(|question| &question.evidence) {
        let Some(fact) = &evidence.fact else { continue };
        let of_title = documents.iter().filter(|document| document.title == evidence.title);
        assert!(of_title.into_iter().any(|document| document.text.contains(fact.as_str())), "{evidence:?}");
        facts += 1;
    }
    facts
}

fn assert_unique(documents: &[Document]) {
    let ids: std::collections::BTreeSet<_> = documents.iter().map(|document| &document.id).collect();
    assert_eq!(ids.len(), documents.len());
}

#[test]
fn hotpotqa_of_flashrag() {
    let Some(questions) = shared_rows::<Question>("hotpotqa/dev_200.jsonl", "question", "hotpotqa") else { return };
    assert_eq!(questions.len(), 200);
    assert_eq!(questions[0].id, "dev_0");
    assert_eq!(questions[0].golden_answers, ["yes"]);
    assert_eq!(questions[0].question_type.as_deref(), Some("comparison"));
    assert_eq!(questions[0].metadata.as_deref(), Some(r#"{"level":"hard"}"#));
    assert_eq!(title_and_fact(&questions[0], 0), ("Scott Derrickson", None), "the contexts are those of fullwiki");
    let documents = shared_rows::<Document>("hotpotqa/dev_200.jsonl", "document", "hotpotqa").unwrap();
    assert_eq!(documents.len(), 1987, "1,990 passages, three of them twice");
    assert_eq!(documents[1].id, "Ed Wood (film)");
    assert_unique(&documents);
    assert_eq!(assert_linked(&questions, &documents), 277, "of 487: the fullwiki contexts lack the others");
    let flashrag = shared_rows::<Question>("hotpotqa/dev_200.jsonl", "question", "flashrag").unwrap();
    assert_eq!(flashrag, questions);
}

#[test]
fn hotpotqa_original_and_its_corpus() {
    let name = "hotpotqa/train_100.original.json";
    let Some(questions) = shared_rows::<Question>(name, "question", "hotpotqa") else { return };
    assert_eq!(questions.len(), 100);
    assert_eq!(questions[0].golden_answers, ["a spirit"]);
    assert_eq!(title_and_fact(&questions[0], 0).0, "Al\u{fb}");
    let documents = shared_rows::<Document>(name, "document", "hotpotqa").unwrap();
    let corpus = "hotpotqa/train_100.corpus.json";
    let corpus = shared_rows::<Document>(corpus, "document", "title-sentences").unwrap();
    assert_eq!(corpus.len(), 994);
    assert_eq!(documents, corpus, "the corpus was made from the same contexts");
    assert_linked(&questions, &documents);
}

#[test]
fn two_wiki_multihopqa_and_its_corpus() {
    let name = "2wikimultihopqa/dev_200.jsonl";
    let Some(questions) = shared_rows::<Question>(name, "question", "2wikimultihopqa") else { return };
    assert_eq!(questions.len(), 200);
    assert_eq!(questions[0].golden_answers, ["Małgorzata Braunek"]);
    assert_eq!(questions[0].question_type.as_deref(), Some("compositional"));
    assert_eq!(title_and_fact(&questions[0], 1).0, "Xawery Żuławski");
    let documents = shared_rows::<Document>(name, "document", "2wikimultihopqa").unwrap();
    assert_unique(&documents);
    assert!(assert_linked(&questions, &documents) > 400);
    let corpus = shared_rows::<Document>("2wikimultihopqa/corpus_6119.json", "document", "hipporag").unwrap();
    assert_eq!(corpus.len(), 6119);
    assert_eq!(corpus[0].id, "Teutberga");
    assert!(corpus[0].text.starts_with("Teutberga( died 11 November 875) was a queen"));
}

#[test]
fn musique_and_its_supporting_paragraphs() {
    let Some(questions) = shared_rows::<Question>("musique/dev_200.jsonl", "question", "musique") else { return };
    assert_eq!(questions.len(), 200);
    assert_eq!(questions[0].golden_answers, ["Miquette Giraudy"]);
    assert_eq!(questions[0].question_type.as_deref(), Some("2hop"));
    assert_eq!(title_and_fact(&questions[0], 0), ("Green (Steve Hillage album)", None));
    let documents = shared_rows::<Document>("musique/dev_200.jsonl", "document", "musique").unwrap();
    assert_unique(&documents);
    assert_eq!(documents.len(), 319, "with 302 titles");
    assert!(documents[0].text.starts_with("Green is the fourth studio album"));
}

#[test]
fn open_questions() {
    let Some(bamboogle) = shared_rows::<Question>("bamboogle/test_125.jsonl", "question", "bamboogle") else { return };
    assert_eq!(bamboogle.len(), 125);
    assert_eq!((bamboogle[0].id.as_str(), bamboogle[0].golden_answers[0].as_str()), ("1", "james madison"));
    let nq = shared_rows::<Question>("nq_open/NQ-open.dev.jsonl", "question", "nq-open").unwrap();
    assert_eq!(nq.len(), 3610);
    assert_eq!(nq[0].golden_answers, ["14 December 1972 UTC", "December 1972"]);
    assert_eq!(nq[3609].id, "3609");
    let searcher = shared_rows::<Question>("r1_searcher/stage_2.jsonl", "question", "bamboogle").unwrap();
    assert_eq!(searcher.len(), 8148);
}

#[test]
fn multihop_rag_in_both_layouts() {
    let Some(val) = shared_rows::<Question>("multihop_rag/val_200.jsonl", "question", "multihop-rag") else { return };
    assert_eq!(val.len(), 200);
    assert_eq!((val[0].id.as_str(), val[0].question_type.as_deref()), ("1454", Some("comparison_query")));
    assert_eq!(
        title_and_fact(&val[0], 0).0,
        "Apple defends Google Search deal in court: ‘There wasn’t a valid alternative’"
    );
    assert!(val[0].metadata.as_deref().unwrap().contains("\"source\":\"The Verge\""));
    let all = "multihop_rag/all_2556_questions_in_order.jsonl";
    assert_eq!(shared_rows::<Question>(all, "question", "multihop-rag").unwrap().len(), 2556);
    let official = json!([{"query": "Who?", "answer": "Yes", "question_type": "null_query",
        "evidence_list": [{"title": "T", "fact": "F", "url": "u"}]}]);
    let rows = read_text("MultiHopRAG.json", official.to_string(), json!({"as": "question", "layout": "multihop-rag"}));
    let rows = rows.unwrap().read::<Question>("rows");
    assert_eq!((rows[0].id.as_str(), rows[0].question.as_str()), ("0", "Who?"));
    assert_eq!(title_and_fact(&rows[0], 0), ("T", Some("F")));
    let corpus = json!([{"title": "A", "author": "B", "body": "Text.", "url": "u"}, {"title": "A", "body": "More."}]);
    let rows = read_text("corpus.json", corpus.to_string(), json!({"as": "document", "layout": "multihop-rag"}));
    let rows = rows.unwrap().read::<Document>("rows");
    assert_eq!((rows[1].id.as_str(), rows[1].text.as_str()), ("1", "More."));
    assert_eq!(rows[0].metadata.as_deref(), Some(r#"{"author":"B","url":"u"}"#));
}

#[test]
fn flashrag_and_beir_corpora() {
    let corpus = "{\"_id\": \"d1\", \"title\": \"T\", \"text\": \"Body\", \"metadata\": {}}\n{\"_id\": \"d2\", \"title\": \"\", \"text\": \"x\"}\n";
    let rows = read_text("corpus.jsonl", corpus, json!({"as": "document", "layout": "beir"})).unwrap();
    let rows = rows.read::<Document>("rows");
    assert_eq!((rows[0].id.as_str(), rows[0].title.as_deref(), rows[1].title.as_deref()), ("d1", Some("T"), None));
    let Some(rows) = shared_rows::<Document>("layouts/corpus.jsonl", "document", "flashrag") else { return };
    assert_eq!(rows.len(), 10);
    assert_eq!((rows[0].id.as_str(), rows[0].title.as_deref()), ("0", Some("Evan Morris")));
    assert!(rows[0].text.starts_with("Evan Morris Evan L. Morris"));
}

#[test]
fn parquet_tables_keep_their_columns() {
    for name in ["research", "search_r1", "verl_search_r1_like"] {
        let Some(path) = shared(&format!("layouts/{name}.parquet")) else { return };
        let outcome = run(&Harness::new(), json!({"path": path})).unwrap();
        assert_eq!(outcome.batch("rows").num_rows(), 5, "{name}");
    }
    let path = shared("layouts/search_r1.parquet").unwrap();
    let columns = json!({"golden_answers": "/reward_model/ground_truth/target", "question": "question"});
    let outcome = run(&Harness::new(), json!({"path": path, "as": "question", "columns": columns})).unwrap();
    let rows = outcome.read::<Question>("rows");
    assert_eq!(rows.len(), 5);
    assert_eq!(rows[0].golden_answers, ["yes"]);
}

#[test]
fn bad_lines_are_rejected_with_their_line() {
    let mut text = b"\xef\xbb\xbf{\"text\":\"one\"}\r\n\r\n{\"text\":\r\n".to_vec();
    text.extend(b"{\"text\":\"\xff\xfe\"}\n[1]\n{\"title\":\"no text\"}\n{\"text\":\"two\",\"lang\":\"en\"} junk\n");
    text.extend(b"{\"text\":\"two\",\"lang\":\"en\",\"n\":1}");
    let outcome = read_text("in.jsonl", text, json!({"as": "document"})).unwrap();
    let rows = outcome.read::<Document>("rows");
    assert_eq!(rows.iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["0", "6"]);
    assert_eq!(rows[1].metadata.as_deref(), Some(r#"{"lang":"en","n":1}"#));
    let rejects = outcome.rejects();
    let found: Vec<_> = rejects.iter().map(|reject| (reject.id.as_str(), reject.kind.as_str())).collect();
    let expected = ["3", "4", "5", "6", "7"].map(|line| format!("in.jsonl:{line}"));
    assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), expected);
    assert_eq!(
        found.iter().map(|(_, kind)| *kind).collect::<Vec<_>>(),
        ["bad_line", "bad_line", "bad_row", "bad_row", "bad_line"]
    );
    assert!(rejects[3].message.contains("`text` is missing"), "{}", rejects[3].message);
    assert_eq!(rejects[4].detail.as_deref(), Some(r#"{"text":"two","lang":"en"} junk"#));
}

#[test]
fn an_id_belongs_to_its_first_row() {
    let text = "{\"id\":7,\"text\":\"a\"}\n{\"id\":\"8\",\"text\":\"b\"}\n{\"id\":\"7\",\"text\":\"c\"}\n{\"id\":null,\"text\":\"d\"}\n";
    let outcome = read_text("in.jsonl", text, json!({"as": "document"})).unwrap();
    let ids: Vec<_> = outcome.read::<Document>("rows").into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["7", "8", "3"]);
    assert_eq!((outcome.rejects()[0].id.as_str(), outcome.rejects()[0].kind.as_str()), ("in.jsonl:3", "duplicate_id"));
}

#[test]
fn an_empty_file_is_an_empty_table() {
    for name in ["in.jsonl", "in.json", "in.csv"] {
        let outcome = read_text(name, "", json!({"as": "document"})).unwrap();
        assert_eq!(outcome.batch("rows").num_rows(), 0);
        assert_eq!(outcome.batch("rows").schema(), RecordKind::Document.schema());
        assert_eq!(read_text(name, "", json!({})).unwrap().batch("rows").num_rows(), 0);
    }
}

#[test]
fn a_file_of_something_else_fails_with_advice() {
    let error = read_text("in.jsonl", "[\n{\"text\":\"a\"}\n]\n", json!({"as": "question"})).unwrap_err();
    assert!(error.message.starts_with("none of the 3 records could be read as question rows; in.jsonl:1"), "{error}");
    assert!(error.help.unwrap().contains("format:"));
    let error = read_text("in.weird", "x", json!({})).unwrap_err();
    assert!(error.message.contains("cannot be told from its name"), "{error}");
    let error = read_text("in.parquet", "not parquet", json!({})).unwrap_err();
    assert!(error.message.contains("as Parquet"), "{error}");
}

#[test]
fn columns_come_from_fields_pointers_and_templates() {
    let text = r#"{"doc": "d1", "lead": "L", "body": "B", "meta": {"lang": "en"}, "extra": 1}"#;
    let columns = json!({"id": "doc", "title": "/meta/lang", "text": "{lead}\n{body}"});
    let outcome = read_text("in.jsonl", text, json!({"as": "document", "columns": columns})).unwrap();
    let rows = outcome.read::<Document>("rows");
    let expected = Document {
        id: "d1".into(),
        title: Some("en".into()),
        text: "L\nB".into(),
        metadata: Some(r#"{"extra":1}"#.into()),
    };
    assert_eq!(rows, [expected]);
}

#[test]
fn cells_become_rows_of_any_kind() {
    let text = "\u{feff}id,question,golden_answers,level\r\n1,\"Who,\r\nthen?\",\"[\"\"a\"\",\"\"b\"\"]\",hard\r\n2,What?,c,\r\n3,bad\r\n";
    let outcome = read_text("in.csv", text, json!({"as": "question"})).unwrap();
    let rows = outcome.read::<Question>("rows");
    assert_eq!(rows[0].question, "Who,\r\nthen?");
    assert_eq!((rows[0].golden_answers.len(), rows[1].golden_answers.len()), (2, 1));
    assert_eq!((rows[0].metadata.as_deref(), rows[1].metadata.as_deref()), (Some(r#"{"level":"hard"}"#), None));
    assert_eq!(outcome.rejects()[0].message, "the row has 2 cells, the header 4");
    let table = read_text("in.tsv", "a\tb\tc\n1\tx\t\n2.5\t007\ttrue\n", json!({})).unwrap().batch("rows");
    let types: Vec<_> = table.schema().fields().iter().map(|field| field.data_type().clone()).collect();
    assert_eq!(types, [DataType::Float64, DataType::Utf8, DataType::Boolean]);
}

#[test]
fn tables_infer_nested_columns_and_reject_what_does_not_fit() {
    let mut text = String::from(
        "{\"n\":1,\"who\":{\"name\":\"a\",\"tags\":[\"x\"]},\"mixed\":1}\n{\"n\":2.5,\"mixed\":{\"b\":[1]}}\n",
    );
    text.push_str("{\"n\":\"three\"}\n{\"n\":4,\"late\":1}\n{\"n\":5,\"who\":{\"name\":null}}\n");
    let outcome = read_text("in.jsonl", &text, json!({"infer_rows": 0})).unwrap();
    assert_eq!(outcome.rejects(), []);
    let rest = "{\"n\":0}\n".repeat(200);
    let first: Vec<&str> = text.lines().take(2).collect();
    let outcome =
        read_text("in.jsonl", format!("{}\n{rest}{text}", first.join("\n")), json!({"infer_rows": 100})).unwrap();
    let table = outcome.batch("rows");
    assert_eq!(table.num_rows(), 2 + 200 + 3);
    assert_eq!(table.column_by_name("mixed").unwrap().as_string::<i32>().value(1), r#"{"b":[1]}"#);
    let messages: Vec<_> = outcome.rejects().into_iter().map(|reject| reject.message).collect();
    assert_eq!(messages[0], "`n` must be a number, found a text");
    assert!(messages[1].contains("`late` is not among the inferred columns"), "{messages:?}");
}

#[test]
fn compressed_files_and_several_files_are_one_table() {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    let gz = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let members = [gz("{\"text\":\"a\"}\n{\"te"), gz("xt\":\"b\"}\n")].concat();
    std::fs::write(harness.path().join("1.jsonl.gz"), &members).unwrap();
    std::fs::write(harness.path().join("2.jsonl.zst"), zstd::encode_all(&b"{\"text\":\"c\"}"[..], 3).unwrap()).unwrap();
    std::fs::write(harness.path().join("3.csv"), "text\nd\n").unwrap();
    let outcome = run(&harness, json!({"path": "*.*", "as": "document"})).unwrap();
    let rows = outcome.read::<Document>("rows");
    let found: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.text.as_str())).collect();
    assert_eq!(found, [("0", "a"), ("1", "b"), ("2", "c"), ("3", "d")]);
    let outcome = run(&harness, json!({"path": "*.*", "as": "document", "limit": 3})).unwrap();
    assert_eq!(outcome.batch("rows").num_rows(), 3);
    std::fs::write(harness.path().join("1.jsonl.gz"), &members[..members.len() - 12]).unwrap();
    let error = run(&harness, json!({"path": "1.jsonl.gz", "as": "document"})).unwrap_err();
    assert!(error.message.contains("damaged or cut short"), "{error}");
}

#[test]
fn params_are_checked_before_anything_runs() {
    let refused = |params: Value| run(&Harness::new(), params).unwrap_err().message;
    assert!(refused(json!({"path": "a", "as": "chunk", "layout": "nq-open"})).starts_with("layout: "));
    assert!(refused(json!({"path": "a", "as": "document", "columns": {"body": "x"}})).contains("no column `body`"));
    assert!(refused(json!({"path": "a", "columns": {"b": "{"}})).starts_with("columns.b: "));
    assert!(refused(json!({"path": ["a", "ftp://x/y"]})).starts_with("path.1: "));
    assert!(refused(json!({"path": "hf://datasets/x"})).starts_with("path: "));
    assert!(refused(json!({"path": "a", "limit": 0})).starts_with("limit: "));
    assert!(refused(json!({"path": "nowhere.jsonl"})).contains("there is no file `nowhere.jsonl`"));
}

#[test]
fn http_servers_are_read_like_files() {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    let zst = zstd::encode_all(&b"{\"text\":\"a\"}\n{\"text\":\"b\"}\n"[..], 3).unwrap();
    let table = run(&harness, json!({"path": shared("layouts/research.parquet").unwrap_or_default()})).ok();
    let parquet = shared("layouts/research.parquet").map(|path| std::fs::read(path).unwrap()).unwrap_or_default();
    let server = TestServer::new(&[("/d/in.jsonl.zst", &zst), ("/d/t.parquet", &parquet)]);
    let outcome =
        run(&harness, json!({"path": format!("{}/d/in.jsonl.zst", server.address), "as": "document"})).unwrap();
    assert_eq!(outcome.read::<Document>("rows").len(), 2);
    if let Some(table) = table {
        let outcome = run(&harness, json!({"path": format!("{}/d/t.parquet", server.address)})).unwrap();
        assert_eq!(outcome.batch("rows"), table.batch("rows"));
    }
    let error = run(&harness, json!({"path": format!("{}/d/none.jsonl", server.address)})).unwrap_err();
    assert!(error.message.contains("there is nothing at"), "{error}");
}

#[test]
fn bytes_do_not_depend_on_the_number_of_files_or_blocks() {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    let row = |n: usize| format!("{{\"id\":\"d{n}\",\"text\":\"{}\",\"lang\":\"en\"}}\n", "word ".repeat(n % 200));
    let rows: Vec<String> = (0..30_000).map(row).collect();
    std::fs::write(harness.path().join("all.jsonl"), rows.concat()).unwrap();
    for (number, part) in rows.chunks(7_000).enumerate() {
        std::fs::write(harness.path().join(format!("part-{number}.jsonl")), part.concat()).unwrap();
    }
    let whole = run(&harness, json!({"path": "all.jsonl", "as": "document"})).unwrap();
    let parts = run(&harness, json!({"path": "part-*.jsonl", "as": "document"})).unwrap();
    assert!(whole.rows["rows"].len() > 3, "several blocks");
    assert_eq!(whole.batch("rows"), parts.batch("rows"));
    assert_eq!(whole.batch("rows").num_rows(), 30_000);
}

#[test]
fn a_mapped_field_that_no_record_has_is_an_error() {
    let lines = "{\"doc_id\": \"a\", \"body\": \"x\"}\nbroken\n{\"doc_id\": \"b\", \"body\": \"y\", \"late\": 1}\n";
    let read = |columns: Value| read_text("d.jsonl", lines, json!({"as": "document", "columns": columns}));
    let error = read(json!({"id": "dok_id", "text": "body"})).unwrap_err();
    assert!(error.message.contains("no record has the field `dok_id` that `columns.id` names"), "{error}");
    assert!(error.help.unwrap().contains("did you mean `doc_id`? The records have body, doc_id, late"));
    let error = read(json!({"id": "doc_id", "text": "{nothing}: {body}"})).unwrap_err();
    assert!(error.message.contains("no record has the field `nothing` that `columns.text` names"), "{error}");
    assert!(read(json!({"id": "doc_id", "text": "{nothing?}: {body}"})).is_ok(), "an optional field may be nowhere");
    let read = |columns: Value| read_text("d.csv", "a,b\n1,\n2,\n", json!({"columns": columns}));
    assert!(read(json!({"x": "b"})).is_ok(), "an empty column is there");
    assert!(read(json!({"x": "c"})).is_err());
}

#[test]
fn a_prefix_stands_before_every_id() {
    let params = json!({"as": "question", "id_prefix": "hotpot-", "columns": {"question": "q"}});
    let outcome = read_text("a.jsonl", "{\"id\": \"dev_0\", \"q\": \"?\"}\n{\"q\": \"!\"}\n", params).unwrap();
    let ids: Vec<String> = outcome.read::<Question>("rows").into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["hotpot-dev_0", "hotpot-1"]);
    let error = read_text("a.jsonl", "{}", json!({"as": "table", "id_prefix": "x"})).unwrap_err();
    assert_eq!(error.message, "id_prefix: table rows have no ids of their own");
}

fn messages(outcome: &Outcome) -> Vec<String> {
    outcome.rejects().into_iter().map(|reject| format!("{}: {}", reject.kind, reject.message)).collect()
}

#[test]
fn evidence_of_which_nothing_would_be_left_is_rejected() {
    let row =
        |evidence: &str| format!("{{\"question\": \"?\", \"golden_answers\": \"a\", \"evidence\": {evidence}}}\n");
    let wrong = row(r#"[{"doc_id": "D/0000", "sentence": "x"}]"#);
    let error = read_text("q.jsonl", wrong.repeat(2), json!({"as": "question"})).unwrap_err();
    let expected = "`evidence[]` has `doc_id`, `sentence`, but none of `document_id`, `title`, `fact`; did you mean \
                    `document_id` for `doc_id`?";
    assert_eq!(error.message, format!("none of the 2 records could be read as question rows; q.jsonl:1: {expected}"));

    let empty = "bad_row: `evidence[]` is empty: it needs one of `document_id`, `title`, `fact`";
    let rows = [
        row("[]"),
        row(r#"[{"document_id": "d"}, {"doc_id": "e"}]"#),
        row("[{}]"),
        row(r#"[{"title": "", "fact": null}]"#),
        row(r#"{"Title": "T"}"#),
        row(r#"[{"title": "T", "source": "news"}]"#),
    ];
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    std::fs::write(harness.path().join("q.jsonl"), rows.concat()).unwrap();
    let outcome = run(&harness, json!({"path": "q.jsonl", "as": "question"})).unwrap();
    let found = messages(&outcome);
    assert_eq!((found[1].as_str(), found[2].as_str()), (empty, empty), "{found:?}");
    assert!(found[0].contains("did you mean `document_id` for `doc_id`?"), "{found:?}");
    assert!(found[3].contains("did you mean `title` for `Title`?"), "{found:?}");
    assert_eq!(outcome.read::<Question>("rows").len(), 2);
    assert_eq!(harness.logged(), ["warning: dropped fields that the rows have no column for: `evidence[].source`"]);
}

#[test]
fn evidence_in_parquet_is_looked_at_like_any_other() {
    let Some(path) = shared("layouts/search_r1.parquet") else { return };
    let columns = json!({"golden_answers": "/reward_model/ground_truth/target", "evidence": "reward_model"});
    let error = run(&Harness::new(), json!({"path": path, "as": "question", "columns": columns})).unwrap_err();
    assert!(error.message.contains("but none of `document_id`, `title`, `fact`"), "{error}");
}

#[test]
fn a_mapped_id_that_is_missing_is_rejected() {
    let params = || json!({"as": "document", "columns": {"id": "docKey"}});
    let lines = "{\"docKey\": \"a\", \"text\": \"1\"}\n{\"text\": \"2\"}\n{\"docKey\": null, \"text\": \"3\"}\n\
                 {\"docKey\": \"\", \"text\": \"4\"}\n";
    let outcome = read_text("d.jsonl", lines, params()).unwrap();
    let ids: Vec<String> = outcome.read::<Document>("rows").into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["a"]);
    let missing = "bad_row: `docKey` is missing";
    assert_eq!(messages(&outcome), [missing, missing, "bad_row: `docKey` is empty"]);
    let outcome = read_text("d.csv", "docKey,text\na,1\n,2\n", params()).unwrap();
    assert_eq!(messages(&outcome), [missing]);
    let outcome = read_text("d.csv", "id,text\na,1\n,2\n", json!({"as": "document"})).unwrap();
    let ids: Vec<String> = outcome.read::<Document>("rows").into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["a", "1"], "ids that nobody mapped are numbered");
}

#[test]
fn a_template_loses_no_part_of_a_text() {
    let lines = "{\"lead\": \"L\", \"body\": \"B\"}\n{\"body\": \"B\"}\n{\"lead\": \"L\", \"body\": null}\n";
    let read = |text: &str| read_text("d.jsonl", lines, json!({"as": "document", "columns": {"text": text}})).unwrap();
    let outcome = read("{lead} {body}");
    assert_eq!(outcome.read::<Document>("rows").len(), 1);
    let told = messages(&outcome);
    assert_eq!(
        told[0],
        "bad_row: the template of `text` needs `lead`, which is missing; write `{lead?}` if it is optional"
    );
    assert!(told[1].contains("needs `body`"), "{told:?}");
    let texts: Vec<String> = read("{lead?} {body?}").read::<Document>("rows").into_iter().map(|row| row.text).collect();
    assert_eq!(texts, ["L B", " B", "L "]);
    let cells = read_text("d.csv", "lead,body\nL,\n", json!({"as": "document", "columns": {"text": "{lead}{body}"}}));
    assert!(cells.unwrap_err().message.contains("needs `body`"), "an empty cell is missing too");
    let table = read_text("d.jsonl", lines, json!({"columns": {"t": r#"["{lead?}"]"#, "u": "{lead} {body}"}})).unwrap();
    assert_eq!(messages(&table).len(), 2);
    assert_eq!(table.batch("rows").column_by_name("t").unwrap().as_string::<i32>().value(0), r#"["L"]"#);
}

#[test]
fn cells_become_evidence() {
    let text = "question,answer,doc,said\nQ1,a,D1,\"He said \"\"no\"\".\"\nQ2,b,D2,\nQ3,c,,\n";
    let evidence = r#"[{{"document_id": "{doc}", "fact": "{said?}"}}]"#;
    let columns = json!({"golden_answers": "answer", "evidence": evidence});
    let outcome = read_text("q.csv", text, json!({"as": "question", "columns": columns})).unwrap();
    let rows = outcome.read::<Question>("rows");
    assert_eq!(messages(&outcome), Vec::<String>::new());
    assert_eq!(rows[0].evidence[0].fact.as_deref(), Some("He said \"no\"."));
    assert_eq!((rows[1].evidence[0].document_id.as_deref(), &rows[1].evidence[0].fact), (Some("D2"), &None));
    assert_eq!(rows[2].evidence, []);
    let broken = json!({"evidence": r#"[{{"document_id": "{doc}"}}"#});
    let told = messages(&read_text("q.csv", text, json!({"as": "question", "columns": broken})).unwrap());
    assert!(told[0].contains("`evidence` must be a list, found a text that is not valid JSON: "), "{told:?}");
    let plain = json!({"as": "question", "columns": {"evidence": "doc"}});
    let told = messages(&read_text("q.csv", text, plain).unwrap());
    assert_eq!(told[0], "bad_row: `doc[]` must be an object, found a text");
}

#[test]
fn lists_of_texts_may_begin_with_a_bracket() {
    let outcome = read_text("q.csv", "question,golden_answers\n?,[sic] a\n", json!({"as": "question"})).unwrap();
    assert_eq!(outcome.read::<Question>("rows")[0].golden_answers, ["[sic] a"]);
}

#[test]
fn questions_without_answers_are_told() {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    std::fs::write(harness.path().join("q.jsonl"), "{\"question\": \"?\", \"answers\": [\"a\"]}\n").unwrap();
    run(&harness, json!({"path": "q.jsonl", "as": "question"})).unwrap();
    let told =
        "warning: no record has `golden_answers`; did you mean `answers`? Write `columns: {golden_answers: answers}`";
    assert_eq!(harness.logged(), [told]);
}

//! Tests of `read` on files in forms that other programs write: what cannot be read is an error or a reject with its place.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::Int96;
use parquet::file::writer::SerializedFileWriter;
use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
use searchmill_engine::operator::{OperatorError, entry};
use searchmill_schemas::{Document, Example, Question, Trajectory};
use serde_json::{Value, json};

use super::{read_text, run};
use crate::convert_to_trl::ConvertToTrl;

fn fault(name: &str, text: impl AsRef<[u8]>, params: Value) -> String {
    let error = read_text(name, text, params).map(|outcome| outcome.rejects()).unwrap_err();
    format!("{} | {}", error.message, error.help.unwrap_or_default())
}

fn read_parquet(batch: &RecordBatch, params: Value) -> Result<Outcome, OperatorError> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    read_text("rows.parquet", writer.into_inner().unwrap(), params)
}

fn array(array: impl Array + 'static) -> ArrayRef {
    Arc::new(array)
}

#[test]
fn a_mark_without_a_partner_swallows_no_row() {
    let text = "id\ttext\n1\tfirst\n2\t\"Unclosed quote\n3\tthird\n4\t6\" pipe\n";
    let document = json!({"as": "document"});
    let said = fault("d.tsv", text, document.clone());
    assert!(
        said.contains("cannot read") && said.contains("d.tsv`: the quotation mark that opens a cell on line 3"),
        "{said}"
    );
    assert!(said.contains("write `quotes: false`"), "{said}");
    let comma = text.replace('\t', ",");
    let said = fault("d.csv", &comma, document);
    assert!(said.contains("quotation mark") && said.contains("on line 3"), "{said}");
    // With marks as text, each line is a row.
    for (name, text) in [("d.tsv", text), ("d.csv", &comma)] {
        let outcome = read_text(name, text, json!({"as": "document", "quotes": false})).unwrap();
        let rows = outcome.read::<Document>("rows");
        assert_eq!((rows.len(), rows[1].text.as_str(), outcome.rejects()), (4, "\"Unclosed quote", vec![]));
    }
    let joined = "id,text\n1,\"a\n2,b\n3,\"c\n4,d\n";
    let said = fault("d.csv", joined, json!({"as": "table"}));
    assert!(said.contains("quotation mark") && said.contains("on line 2"), "{said}");
}

#[test]
fn an_array_that_is_cut_or_has_text_behind_it_is_an_error() {
    let rows = |count: usize| -> Vec<Value> {
        (0..count).map(|i| json!({"id": format!("q{i}"), "question": "Which?", "golden_answers": ["x"]})).collect()
    };
    let whole = serde_json::to_string_pretty(&rows(3)).unwrap();
    let question = json!({"as": "question"});
    assert_eq!(read_text("q.json", &whole, question.clone()).unwrap().read::<Question>("rows").len(), 3);
    for end in 1..whole.len() - 1 {
        let said = fault("q.json", &whole[..end], question.clone());
        assert!(said.contains("q.json`: it is cut short: the `[` on line 1 is never closed"), "{end}: {said}");
    }
    for behind in ["garbage", "\n[{\"id\": \"r\"}]", "]", "\n{}"] {
        let said = fault("q.json", format!("{whole}{behind}"), question.clone());
        assert!(
            said.contains("there is text behind") || said.contains("a closing bracket without"),
            "{behind}: {said}"
        );
    }
    // Layouts whose records stand in an object.
    let data = json!({"Data": [{"Question": "Who?", "Answer": {"Value": "A"}}, {"Question": "What?", "Answer": {"Value": "B"}}]});
    let text = data.to_string();
    let trivia = json!({"as": "question", "layout": "triviaqa"});
    assert_eq!(read_text("t.json", &text, trivia.clone()).unwrap().read::<Question>("rows").len(), 2);
    assert!(fault("t.json", &text[..text.len() - 1], trivia.clone()).contains("the `{` on line 1 is never closed"));
    assert!(fault("t.json", &text[..text.len() - 30], trivia).contains("cut short"));
}

#[test]
fn bytes_of_parquet_files_are_text_if_they_are_utf8() {
    let words: [&[u8]; 2] = [b"d1", "dé".as_bytes()];
    let dictionary: ArrayRef = array(BinaryArray::from_iter_values(words));
    let keys = Int32Array::from(vec![1, 0]);
    let columns: [ArrayRef; 4] = [
        array(BinaryArray::from_iter_values(words)),
        array(BinaryViewArray::from_iter_values(words)),
        array(FixedSizeBinaryArray::try_from_iter([b"ab", b"cd"].into_iter()).unwrap()),
        array(DictionaryArray::<Int32Type>::new(keys, dictionary)),
    ];
    for column in columns {
        let shown = column.data_type().to_string();
        let answers = ListArray::new(
            Arc::new(Field::new("item", DataType::Binary, true)),
            arrow::buffer::OffsetBuffer::from_lengths([1, 1]),
            array(BinaryArray::from_iter_values(words)),
            None,
        );
        let names = ["id", "question", "golden_answers"];
        let parts = [Arc::clone(&column), Arc::clone(&column), array(answers)];
        let batch = RecordBatch::try_from_iter(names.into_iter().zip(parts)).unwrap();
        let rows = read_parquet(&batch, json!({"as": "question"})).unwrap().read::<Question>("rows");
        let table = read_parquet(&batch, json!({"as": "table"})).unwrap().batch("rows");
        let ids = arrow::compute::cast(&table["id"], &DataType::Utf8).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(),
            ids.as_string::<i32>().iter().flatten().collect::<Vec<_>>(),
            "{shown}"
        );
        assert!(!rows[0].id.contains("64"), "{shown}: no digits of bytes: {}", rows[0].id);
        assert_eq!(rows[1].golden_answers, ["dé"], "{shown}");
        assert!(!searchmill_schemas::has_bytes(table["golden_answers"].data_type()), "{shown}");
    }
}

#[test]
fn bytes_that_are_no_text_are_rejects_and_stay_bytes_in_tables() {
    let texts = array(BinaryArray::from_iter_values([b"one".as_slice(), b"\x89PNG", b"three"]));
    let ids = array(StringArray::from(vec!["a", "b", "c"]));
    let batch = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
    let outcome = read_parquet(&batch, json!({"as": "document"})).unwrap();
    let rows = outcome.read::<Document>("rows");
    assert_eq!(rows.iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), ["one", "three"]);
    let rejects = outcome.rejects();
    assert_eq!((rejects.len(), rejects[0].id.as_str()), (1, "rows.parquet:2"));
    assert!(rejects[0].message.contains("the column `text` holds bytes that are not UTF-8"), "{}", rejects[0].message);
    let table = read_parquet(&batch, json!({"as": "table"})).unwrap().batch("rows");
    assert_eq!(table["text"].as_binary::<i32>().value(1), b"\x89PNG");
}

#[test]
fn two_columns_of_one_name_are_an_error() {
    let field = |name: &str| Field::new(name, DataType::Int64, true);
    let ints = || array(Int64Array::from(vec![1, 2]));
    let schema = Schema::new(vec![field("id"), field("value"), field("value")]);
    let batch = RecordBatch::try_new(Arc::new(schema), vec![ints(), ints(), ints()]).unwrap();
    for kind in ["table", "document"] {
        let error = read_parquet(&batch, json!({"as": kind})).unwrap_err();
        assert!(
            error.message.contains("it has two columns `value`") && error.message.contains("rows.parquet"),
            "{error}"
        );
    }
    let parts = vec![(Arc::new(field("x")), ints()), (Arc::new(field("x")), ints())];
    let batch = RecordBatch::try_from_iter([("deep", array(StructArray::from(parts)))]).unwrap();
    assert!(read_parquet(&batch, json!({"as": "table"})).unwrap_err().message.contains("two columns `deep.x`"));
    assert!(
        fault("q.csv", "id,question,question\n1,a,b\n", json!({"as": "table"}))
            .contains("repeats the column `question`")
    );
    let row = r#"{"id": "q1", "question": "first?", "question": "second?", "golden_answers": ["A"]}"#;
    for params in [json!({"as": "question"}), json!({"as": "table"}), json!({"as": "question", "layout": "nq-open"})] {
        let said = fault("q.jsonl", row, params);
        assert!(said.contains("q.jsonl:1") && said.contains("the field `question` is there twice"), "{said}");
    }
    // Inside objects too, and in fields that go to the metadata.
    for row in [r#"{"id": 1, "text": "t", "more": {"a": 1, "a": 2}}"#, r#"{"id": 1, "text": "t", "k": 1, "k": 2}"#] {
        assert!(fault("d.jsonl", row, json!({"as": "document"})).contains("is there twice"), "{row}");
    }
}

/// Writes a file with a column of 96-bit timestamps: days after 1970 and nanoseconds of the day.
fn old_timestamps(path: &std::path::Path, stamps: &[(i64, i64)]) {
    let schema = parquet::schema::parser::parse_message_type("message m { required int96 t; }").unwrap();
    let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), Arc::new(schema), Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let ColumnWriter::Int96ColumnWriter(typed) = column.untyped() else { panic!("no timestamps") };
    let value = |(days, nanoseconds): &(i64, i64)| {
        let mut value = Int96::new();
        value.set_data(*nanoseconds as u32, (nanoseconds >> 32) as u32, (days + 2_440_588) as u32);
        value
    };
    typed.write_batch(&stamps.iter().map(value).collect::<Vec<_>>(), None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn old_timestamps_are_right_or_an_error() {
    let read = |stamps: &[(i64, i64)]| {
        let mut harness = Harness::new();
        harness.directory = harness.path().to_owned();
        old_timestamps(&harness.path().join("t.parquet"), stamps);
        let outcome = run(&harness, json!({"path": "t.parquet", "as": "table"}))?;
        let column = Arc::clone(&outcome.batch("rows")["t"]);
        let text = arrow::compute::cast(&column, &DataType::Utf8)?;
        let text = text.as_string::<i32>().iter().flatten().map(str::to_owned).collect::<Vec<_>>();
        Ok::<_, OperatorError>((column.data_type().clone(), text))
    };
    let (unit, text) = read(&[(19_000, 1)]).unwrap();
    assert_eq!(
        (unit, text[0].as_str()),
        (DataType::Timestamp(TimeUnit::Nanosecond, None), "2022-01-08T00:00:00.000000001")
    );
    // The years 1 and 9999, which Spark and Hive write for "unknown".
    let (unit, text) = read(&[(-719_162, 0), (2_932_896, 1_000)]).unwrap();
    assert_eq!(unit, DataType::Timestamp(TimeUnit::Microsecond, None));
    assert_eq!(text, ["0001-01-01T00:00:00", "9999-12-31T00:00:00.000001"]);
    let error = read(&[(-719_162, 1)]).unwrap_err();
    assert!(error.message.contains("the column `t` holds times"), "{error}");
}

#[test]
fn lists_that_python_wrote_are_lists_of_answers() {
    let row = |answers: Value| json!({"id": "q", "question": "Who?", "golden_answers": answers}).to_string();
    let answers = |given: Value| {
        read_text("q.jsonl", row(given), json!({"as": "question"}))
            .map(|outcome| outcome.read::<Question>("rows").remove(0).golden_answers)
    };
    assert_eq!(answers(json!("['Ada', \"O'Neil\"]")).unwrap(), ["Ada", "O'Neil"]);
    assert_eq!(answers(json!(["['Ada', 'Bob']"])).unwrap(), ["Ada", "Bob"]);
    assert_eq!(answers(json!("[\"Ada\", \"Bob\"]")).unwrap(), ["Ada", "Bob"]);
    assert_eq!(answers(json!("[Untitled]")).unwrap(), ["[Untitled]"]);
    let broken = answers(json!("['Ada' 'Bob']")).unwrap_err();
    assert!(broken.message.contains("`golden_answers` looks like a list but is neither JSON nor"), "{broken}");
    let csv = "id,question,golden_answers\nq,Who?,\"['Ada', 'Bob']\"\n";
    let rows = read_text("q.csv", csv, json!({"as": "question"})).unwrap().read::<Question>("rows");
    assert_eq!(rows[0].golden_answers, ["Ada", "Bob"]);
    let layout = json!({"as": "question", "layout": "nq-open"});
    let rows = read_text("q.jsonl", r#"{"question": "Who?", "answer": "['Ada', 'Bob']"}"#, layout.clone());
    assert_eq!(rows.unwrap().read::<Question>("rows")[0].golden_answers, ["Ada", "Bob"]);
    assert!(fault("q.jsonl", r#"{"question": "Who?", "answer": [["Ada"]]}"#, layout).contains("not a list of texts"));
}

#[test]
fn constants_of_python_are_null_and_told() {
    let harness = Harness::new();
    std::fs::write(
        harness.path().join("t.jsonl"),
        "{\"a\": 1.5, \"b\": \"x\"}\n{\"a\": NaN, \"b\": \"NaN\"}\n{\"a\": -Infinity}\n",
    )
    .unwrap();
    let path = harness.path().join("t.jsonl");
    let outcome = run(&harness, json!({"path": path, "as": "table"})).unwrap();
    assert_eq!((outcome.batch("rows").num_rows(), outcome.batch("rows")["a"].null_count()), (3, 2));
    let told = harness.logged();
    assert!(
        told.iter().any(|line| line == "warning: 2 records have NaN or Infinity, read as null; the first is t.jsonl:2"),
        "{told:?}"
    );
    // Where a value is needed, the row is a reject.
    let said = fault("d.jsonl", "{\"id\": 1, \"text\": NaN}", json!({"as": "document"}));
    assert!(said.contains("`text` is missing"), "{said}");
}

#[test]
fn numbers_are_never_rounded_in_silence() {
    let rejected = |text: &str, params: Value| fault("t.jsonl", text, params);
    let big = "{\"n\": 123456789012345678901234567890}";
    assert!(rejected(big, json!({"as": "table"})).contains("beyond 64 bits"));
    assert!(
        rejected("{\"id\": 1, \"text\": \"t\", \"n\": 18446744073709551616}", json!({"as": "document"}))
            .contains("beyond 64 bits")
    );
    let mixed = "{\"n\": 0.5}\n{\"n\": 9007199254740993}\n";
    let outcome = read_text("t.jsonl", mixed, json!({"as": "table"})).unwrap();
    assert!(outcome.rejects()[0].message.contains("a whole number that would be rounded"), "{:?}", outcome.rejects());
    // Decimal numbers of Parquet files that metadata would round.
    let numbers = Decimal128Array::from(vec![12_345_678_901_234_567_890_i128]).with_precision_and_scale(30, 2).unwrap();
    let texts = array(StringArray::from(vec!["x"]));
    let batch = RecordBatch::try_from_iter([("text", texts), ("price", array(numbers))]).unwrap();
    let rows = read_parquet(&batch, json!({"as": "document"})).unwrap().read::<Document>("rows");
    assert_eq!(rows[0].metadata.as_deref(), Some(r#"{"price":"123456789012345678.90"}"#));
    let batch = RecordBatch::try_from_iter([
        ("text", array(StringArray::from(vec!["x", "y"]))),
        ("n", array(Float64Array::from(vec![f64::NAN, 1.0]))),
    ])
    .unwrap();
    let rows = read_parquet(&batch, json!({"as": "document"})).unwrap().read::<Document>("rows");
    assert_eq!(rows.len(), 2);
    assert!(rows[0].metadata.as_deref().is_none_or(|text| text == r#"{"n":null}"#), "{rows:?}");
}

#[test]
fn later_parquet_files_keep_their_values_or_are_an_error() {
    let read = |columns: [ArrayRef; 2]| {
        let mut harness = Harness::new();
        harness.directory = harness.path().to_owned();
        for (place, column) in columns.into_iter().enumerate() {
            let batch = RecordBatch::try_from_iter([("n", column)]).unwrap();
            let file = File::create(harness.path().join(format!("{place}.parquet"))).unwrap();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
        }
        run(&harness, json!({"path": "*.parquet", "as": "table"})).map(|outcome| outcome.batch("rows"))
    };
    let ints = || array(Int32Array::from(vec![1]));
    let rows = read([ints(), array(Float64Array::from(vec![2.0]))]).unwrap();
    assert_eq!(rows["n"].as_ref(), &Int32Array::from(vec![1, 2]));
    for wrong in [array(Float64Array::from(vec![2.5])), array(Int64Array::from(vec![1 << 40]))] {
        let error = read([ints(), wrong]).unwrap_err();
        assert!(error.message.contains("1.parquet") && error.message.contains("its column `n`"), "{error}");
    }
}

#[test]
fn other_encodings_and_formats_are_named() {
    let rows = "id,text\n1,café\n2,crème brûlée\n";
    let document = || json!({"as": "document"});
    for big in [false, true] {
        let unit = |unit: u16| if big { unit.to_be_bytes() } else { unit.to_le_bytes() };
        let name = if big { "UTF-16BE" } else { "UTF-16LE" };
        for (file, text) in [("d.csv", rows), ("d.jsonl", "{\"id\": 1}"), ("d.json", "[{\"id\": 1}]")] {
            for marked in [format!("\u{feff}{text}"), text.to_owned()] {
                let said = fault(file, marked.encode_utf16().flat_map(unit).collect::<Vec<u8>>(), document());
                assert!(
                    said.contains(&format!("{file}`: it is {name}, and not UTF-8")) && said.contains("iconv"),
                    "{said}"
                );
            }
        }
    }
    let latin: Vec<u8> = rows.chars().map(|ch| u8::try_from(u32::from(ch)).unwrap()).collect();
    let said = fault("d.csv", latin, document());
    assert!(said.contains("d.csv:2") && said.contains("0xE9") && said.contains("Latin-1"), "{said}");
    let said = fault("d.jsonl", b"{\"id\": \"1\", \"text\": \"caf\xe9\"}", document());
    assert!(said.contains("d.jsonl:1") && said.contains("Latin-1"), "{said}");
    assert!(
        fault("d.csv", "{\"id\": 1, \"text\": \"x\"}\n", json!({"as": "table"})).contains("it is JSON, and not CSV")
    );
    assert!(fault("d.csv", "id\ttext\n1\tx\n", json!({"as": "table"})).contains("write `format: tsv`"));
    assert!(fault("d.jsonl", "PAR1xxxxPAR1", document()).contains("write `format: parquet`"));
    assert!(fault("d.jsonl.gz", "", document()).contains("it is empty"));
    // A byte order mark belongs to no column.
    let outcome = read_text("d.csv", "\u{feff}\"id\",text\n1,x\n", document()).unwrap();
    assert_eq!(outcome.read::<Document>("rows")[0].id, "1");
}

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "search", "description": "s", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}]"#;

/// A conversation with one search in a form of another program.
fn conversation(calls: &Value, content: &Value, tools: &Value) -> Value {
    json!({"id": "r", "question": "Which river?", "golden_answers": ["Tael"], "tools": tools, "messages": [
        {"role": "user", "content": "Which river?"},
        {"role": "assistant", "content": content, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "Velmora lies on the Tael."},
        {"role": "assistant", "content": "<answer>Tael</answer>"}]})
}

#[test]
fn conversations_of_other_programs_keep_their_calls() {
    let arguments = json!({"query": "capital of Ostrin"});
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "search", "arguments": arguments.to_string()}});
    let parsed = json!({"id": "c1", "type": "function", "function": {"name": "search", "arguments": arguments}});
    let flat = json!({"id": "c1", "name": "search", "arguments": arguments.to_string()});
    let tools: Value = serde_json::from_str(TOOLS).unwrap();
    let forms = [
        conversation(&json!([call]), &json!(""), &tools),
        conversation(&json!([parsed]), &json!(""), &tools),
        conversation(&json!([call.to_string()]), &json!(""), &tools),
        conversation(&json!([flat]), &json!(""), &tools),
        conversation(&json!([call]), &json!(null), &tools),
        conversation(&json!([call]), &json!([{"type": "text", "text": "I look."}]), &tools),
        conversation(&json!(json!([call]).to_string()), &json!(""), &tools),
        conversation(&json!([call]), &json!(""), &json!(TOOLS)),
    ];
    for form in forms {
        let rows =
            read_text("r.jsonl", form.to_string(), json!({"as": "trajectory"})).unwrap().read::<Trajectory>("rows");
        let [called] = rows[0].messages[1].tool_calls.as_slice() else { panic!("one call: {form}") };
        let given: Value = serde_json::from_str(&called.arguments).unwrap();
        assert_eq!((called.id.as_str(), called.name.as_str(), given), ("c1", "search", arguments.clone()), "{form}");
        assert_eq!((rows[0].protocol.as_str(), rows[0].prediction.as_str()), ("tool_call", "Tael"));
        let bound = inputs([("trajectories", rows_input(&rows))]);
        let examples =
            Harness::new().run(&entry::<ConvertToTrl>(), json!({}), &bound).unwrap().read::<Example>("examples");
        let row: Value = serde_json::from_str(&examples[0].row).unwrap();
        assert_eq!(row["messages"][1]["tool_calls"][0]["function"]["arguments"], arguments, "{form}");
    }
    let broken = conversation(&json!([{"id": "c1", "type": "function"}]), &json!(""), &tools);
    let said = fault("r.jsonl", broken.to_string(), json!({"as": "trajectory"}));
    assert!(said.contains("r.jsonl:1: `messages[1].tool_calls[0]` has no `name`; expected a list of calls"), "{said}");
}

#[test]
fn rows_of_the_converters_are_read_back() {
    let tools: Value = serde_json::from_str(TOOLS).unwrap();
    let call = json!([{"id": "c1", "name": "search", "arguments": "{\"query\": \"capital of Ostrin\"}"}]);
    let form = conversation(&call, &json!("I look."), &tools);
    let rows = read_text("r.jsonl", form.to_string(), json!({"as": "trajectory"})).unwrap().read::<Trajectory>("rows");
    let registry = crate::all();
    for name in ["convert-to-trl", "convert-to-openai", "convert-to-swift"] {
        let operator = registry.iter().find(|operator| operator.name == name).expect(name);
        let bound = inputs([("trajectories", rows_input(&rows))]);
        let examples = Harness::new().run(operator, json!({}), &bound).unwrap().read::<Example>("examples");
        let again =
            read_text("r.jsonl", &examples[0].row, json!({"as": "trajectory"})).unwrap().read::<Trajectory>("rows");
        let roles: Vec<&str> = again[0].messages.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "assistant"], "{name}: {}", examples[0].row);
        let [called] = again[0].messages[1].tool_calls.as_slice() else { panic!("{name}: one call") };
        let given: Value = serde_json::from_str(&called.arguments).unwrap();
        assert_eq!((called.name.as_str(), given), ("search", json!({"query": "capital of Ostrin"})), "{name}");
        assert_eq!(again[0].messages[2].tool_call_id.as_deref(), Some(called.id.as_str()), "{name}");
        assert_eq!((again[0].question.as_str(), again[0].prediction.as_str()), ("Which river?", "Tael"), "{name}");
    }
}

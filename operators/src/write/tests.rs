//! Tests of `write`: every format round-trips, and destinations are complete or unchanged.

use std::path::PathBuf;

use arrow::array::AsArray;
use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, rows_input, tree_input};
use searchmill_engine::operator::{InputArtifact, entry};
use searchmill_fixtures::test_server::TestServer;
use searchmill_schemas::{Document, Evidence, Example as ExampleRow, Question, RecordKind};
use serde_json::{Value, json};

use super::*;
use crate::read::Read;

fn harness() -> Harness {
    let mut harness = Harness::new();
    harness.directory = harness.path().to_owned();
    harness
}

fn write(harness: &Harness, input: InputArtifact, params: Value) -> Result<Outcome, OperatorError> {
    harness.run(&entry::<Write>(), params, &inputs([("input", input)]))
}

fn questions() -> Vec<Question> {
    let question = |number: usize| Question {
        id: format!("q{number}"),
        question: "Who said \"no\",\nand when?\tÄ".to_owned(),
        golden_answers: vec!["a, b".to_owned(), number.to_string()],
        question_type: number.is_multiple_of(2).then(|| "bridge".to_owned()),
        evidence: vec![Evidence { title: Some("T".to_owned()), ..Evidence::default() }],
        metadata: Some(json!({"level": number}).to_string()),
    };
    (0..20_000).map(question).collect()
}

fn examples() -> Vec<ExampleRow> {
    let rows = ["{\"b\": 1,  \"a\":[{\"x\": \"é\"}]}", "{\"b\": 2, \"a\": [], \"c\": \"late\"}"];
    let example = |(number, row): (usize, &&str)| ExampleRow {
        id: number.to_string(),
        trajectory_id: None,
        question_id: "q".to_owned(),
        format: "swift".to_owned(),
        row: (*row).to_owned(),
        text: None,
    };
    rows.iter().enumerate().map(example).collect()
}

#[test]
fn every_format_is_read_back_as_it_was() {
    let rows = questions();
    for name in ["q.jsonl", "q.jsonl.gz", "q.json", "q.json.zst", "q.csv", "q.tsv.gz", "q.parquet"] {
        let harness = harness();
        let outcome = write(&harness, rows_input(&rows), json!({"path": format!("out/{name}")})).unwrap();
        let back =
            harness.run(&entry::<Read>(), json!({"path": format!("out/{name}"), "as": "question"}), &Inputs::new());
        let back = back.unwrap();
        assert_eq!(back.rejects(), [], "{name}");
        assert_eq!(back.read::<Question>("rows"), rows, "{name}");
        let manifest = Manifest::load(&outcome.trees["files"]).unwrap();
        assert_eq!((manifest.rows, manifest.kind.as_str()), (Some(20_000), "question"));
        let written = harness.path().join("out").join(name);
        assert_eq!(manifest.bytes(), std::fs::metadata(&written).unwrap().len());
        let beside = std::fs::read_to_string(harness.path().join(format!("out/{name}.manifest.json"))).unwrap();
        assert_eq!(beside, manifest.text().unwrap());
        assert_eq!(std::fs::read(outcome.trees["files"].join(name)).unwrap(), std::fs::read(written).unwrap());
    }
}

#[test]
fn metadata_is_an_object_in_json() {
    let harness = harness();
    write(&harness, rows_input(&questions()[..1]), json!({"path": "q.jsonl"})).unwrap();
    let line: Value = serde_json::from_str(&std::fs::read_to_string(harness.path().join("q.jsonl")).unwrap()).unwrap();
    assert_eq!(line["metadata"], json!({"level": 0}));
    assert_eq!(line["evidence"][0], json!({"document_id": null, "title": "T", "fact": null}));
}

#[test]
fn example_rows_are_written_exactly() {
    let harness = harness();
    let rows = examples();
    write(&harness, rows_input(&rows), json!({"path": "train.jsonl"})).unwrap();
    let lines = std::fs::read_to_string(harness.path().join("train.jsonl")).unwrap();
    assert_eq!(lines, format!("{}\n{}\n", rows[0].row, rows[1].row));
    write(&harness, rows_input(&rows), json!({"path": "train.json"})).unwrap();
    let list: Value =
        serde_json::from_str(&std::fs::read_to_string(harness.path().join("train.json")).unwrap()).unwrap();
    assert_eq!(list[1]["c"], "late");
    write(&harness, rows_input(&rows), json!({"path": "train.parquet", "compression": "zst"})).unwrap();
    let table = harness.run(&entry::<Read>(), json!({"path": "train.parquet"}), &Inputs::new()).unwrap().batch("rows");
    let names: Vec<_> = table.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["b", "a", "c"]);
    assert_eq!(table.column(1).as_list::<i32>().value(0).len(), 1);
}

#[test]
fn no_rows_make_a_valid_file() {
    let empty = searchmill_schemas::to_batch::<Document>(&[]).unwrap();
    for (name, expected) in [("a.jsonl", ""), ("a.json", "[\n]\n"), ("a.csv", "id,title,text,metadata\n")] {
        let harness = harness();
        write(&harness, batch_input(RecordKind::Document, empty.clone()), json!({"path": name})).unwrap();
        assert_eq!(std::fs::read_to_string(harness.path().join(name)).unwrap(), expected);
    }
}

#[test]
fn a_destination_is_mended_when_it_differs_and_left_alone_when_not() {
    let harness = harness();
    let outcome = write(&harness, rows_input(&examples()), json!({"path": "train.jsonl"})).unwrap();
    let (tree, path) = (&outcome.trees["files"], harness.path().join("train.jsonl"));
    let good = std::fs::read(&path).unwrap();
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    assert!(export(tree, "train.jsonl", &harness.context()).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written);
    std::fs::write(&path, "someone was here").unwrap();
    assert!(!export(tree, "train.jsonl", &harness.context()).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), good);
    std::fs::remove_file(harness.path().join("train.jsonl.manifest.json")).unwrap();
    assert!(!export(tree, "train.jsonl", &harness.context()).unwrap());
    let left: Vec<PathBuf> = std::fs::read_dir(harness.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.iter().all(|path| !path.to_string_lossy().contains(".writing-")), "{left:?}");
}

#[test]
fn folders_are_copied_with_all_that_is_in_them() {
    let harness = harness();
    let source = harness.path().join("source");
    std::fs::create_dir_all(source.join("plots")).unwrap();
    std::fs::write(source.join("report.html"), "<html>").unwrap();
    std::fs::write(source.join("plots/a.svg"), "<svg>").unwrap();
    write(&harness, tree_input(TreeKind::Report, &source), json!({"path": "out/report"})).unwrap();
    assert_eq!(std::fs::read_to_string(harness.path().join("out/report/plots/a.svg")).unwrap(), "<svg>");
    let manifest = std::fs::read_to_string(harness.path().join("out/report.manifest.json")).unwrap();
    assert!(manifest.contains("plots/a.svg") && manifest.contains("\"report\""), "{manifest}");
}

#[test]
fn urls_are_written_once() {
    let harness = harness();
    let server = TestServer::new(&[]);
    let path = format!("{}/out/train.jsonl", server.address);
    let outcome = write(&harness, rows_input(&examples()), json!({"path": path})).unwrap();
    let stored = server.shelf.lock().unwrap().files["/out/train.jsonl"].clone();
    assert_eq!(stored, std::fs::read(outcome.trees["files"].join("train.jsonl")).unwrap());
    assert!(server.shelf.lock().unwrap().files.contains_key("/out/train.jsonl.manifest.json"));
    let puts = |server: &TestServer| server.requests().iter().filter(|request| request.starts_with("PUT")).count();
    assert_eq!(puts(&server), 2);
    assert!(export(&outcome.trees["files"], &path, &harness.context()).unwrap());
    assert_eq!(puts(&server), 2);
}

#[test]
fn wrong_destinations_are_explained() {
    let harness = harness();
    let refused = |params: Value| write(&harness, rows_input(&examples()), params).unwrap_err();
    assert!(refused(json!({"path": "out/"})).message.contains("name of a file"));
    assert!(refused(json!({"path": "train.swift"})).message.contains("cannot be told"));
    assert!(refused(json!({"path": "hf://datasets/o/n/x.jsonl"})).message.starts_with("path: "));
    std::fs::write(harness.path().join("file"), "").unwrap();
    assert!(refused(json!({"path": "file/below.jsonl"})).message.contains("cannot write"));
}

fn folder(harness: &Harness, files: &[(&str, &str)]) -> InputArtifact {
    let source = tempfile::tempdir_in(harness.path()).unwrap().keep();
    for (name, text) in files {
        std::fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        std::fs::write(source.join(name), text).unwrap();
    }
    tree_input(TreeKind::Index, &source)
}

/// Returns all files in a folder and in its parent folder, with their content.
fn delivered(harness: &Harness, path: &str) -> BTreeMap<String, String> {
    let root = harness.path().join(path);
    let beside = std::fs::read_dir(root.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    let beside: Vec<_> = beside.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with('.')).collect();
    assert_eq!(beside, Vec::<String>::new(), "nothing unfinished stays");
    let files = files_below(&root, Path::new("")).unwrap();
    let read = |file: PathBuf| (file.display().to_string(), std::fs::read_to_string(root.join(&file)).unwrap());
    files.into_iter().map(read).collect()
}

fn texts(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[test]
fn a_folder_replaces_the_one_delivered_before() {
    let harness = harness();
    let deliver = |files| write(&harness, folder(&harness, files), json!({"path": "out/index/"})).unwrap();
    let first = [("bm25/terms", "t"), ("bm25/deep/postings", "p"), ("meta", "1")];
    deliver(&first);
    assert_eq!(delivered(&harness, "out/index"), texts(&first));
    let second = [("dense/vectors", "v"), ("meta", "2")];
    let outcome = deliver(&second);
    assert_eq!(delivered(&harness, "out/index"), texts(&second));
    assert!(!harness.path().join("out/index/bm25").exists());
    assert!(harness.path().join("out/index.manifest.json").exists());
    assert!(export(&outcome.trees["files"], "out/index", &harness.context()).unwrap());
    deliver(&[("dense", "a file now")]);
    assert_eq!(delivered(&harness, "out/index"), texts(&[("dense", "a file now")]));
}

#[test]
fn files_of_others_stay_and_stale_ones_go() {
    let harness = harness();
    let deliver = |files| write(&harness, folder(&harness, files), json!({"path": "out/model"})).unwrap();
    std::fs::create_dir_all(harness.path().join("out/model/notes")).unwrap();
    std::fs::write(harness.path().join("out/model/README.md"), "mine").unwrap();
    deliver(&[("model.safetensors", "whole"), ("tokenizer/vocab", "v")]);
    deliver(&[("model-1.safetensors", "half"), ("model-2.safetensors", "half")]);
    let there = [("README.md", "mine"), ("model-1.safetensors", "half"), ("model-2.safetensors", "half")];
    assert_eq!(delivered(&harness, "out/model"), texts(&there));
    assert!(harness.path().join("out/model/notes").is_dir() && !harness.path().join("out/model/tokenizer").exists());
}

#[test]
fn a_manifest_that_names_files_elsewhere_removes_nothing_there() {
    let harness = harness();
    let outcome = write(&harness, folder(&harness, &[("a", "1")]), json!({"path": "out/x"})).unwrap();
    std::fs::write(harness.path().join("mine"), "mine").unwrap();
    let forged = Manifest::load(&outcome.trees["files"]).unwrap().text().unwrap().replace("\"a\"", "\"../../mine\"");
    std::fs::write(harness.path().join("out/x.manifest.json"), forged).unwrap();
    write(&harness, folder(&harness, &[("b", "2")]), json!({"path": "out/x"})).unwrap();
    assert_eq!(std::fs::read_to_string(harness.path().join("mine")).unwrap(), "mine");
    assert_eq!(delivered(&harness, "out/x"), texts(&[("a", "1"), ("b", "2")]));
}

#[test]
fn a_delivery_that_fails_leaves_the_old_folder() {
    let harness = harness();
    let old = [("a", "old"), ("z", "old")];
    write(&harness, folder(&harness, &old), json!({"path": "out/x"})).unwrap();
    let manifest = std::fs::read(harness.path().join("out/x.manifest.json")).unwrap();
    let new = write(&harness, folder(&harness, &[("a", "new"), ("z", "new")]), json!({"path": "elsewhere"})).unwrap();
    std::fs::remove_file(new.trees["files"].join("z")).unwrap();
    assert!(export(&new.trees["files"], "out/x", &harness.context()).is_err());
    assert_eq!(delivered(&harness, "out/x"), texts(&old));
    assert_eq!(std::fs::read(harness.path().join("out/x.manifest.json")).unwrap(), manifest);
}

#[test]
fn stale_objects_of_a_remote_folder_are_removed() {
    let harness = harness();
    let server = TestServer::new(&[("/out/other", b"not ours")]);
    let deliver = |files| write(&harness, folder(&harness, files), json!({"path": format!("{}/out", server.address)}));
    deliver(&[("bm25/terms", "t"), ("meta", "1")]).unwrap();
    deliver(&[("dense", "v"), ("meta", "2")]).unwrap();
    let there: Vec<String> = server.shelf.lock().unwrap().files.keys().cloned().collect();
    assert_eq!(there, ["/out.manifest.json", "/out/dense", "/out/meta", "/out/other"]);
}

#[test]
fn nothing_is_written_through_a_link_in_the_destination() {
    let harness = harness();
    let (out, theirs) = (harness.path().join("out"), harness.path().join("theirs"));
    std::fs::create_dir_all(&out).unwrap();
    std::fs::create_dir_all(&theirs).unwrap();
    std::fs::write(theirs.join("a.png"), "holiday").unwrap();
    std::os::unix::fs::symlink(&theirs, out.join("plots")).unwrap();
    let error = write(&harness, folder(&harness, &[("plots/a.png", "new"), ("page", "p")]), json!({"path": "out"}));
    let message = error.unwrap_err().message;
    assert!(message.contains("out/plots is a link"), "{message}");
    assert_eq!(std::fs::read_to_string(theirs.join("a.png")).unwrap(), "holiday");
    assert!(!out.join("page").exists(), "nothing else was written");
    // The destination itself may be a link.
    let real = harness.path().join("disk");
    std::fs::create_dir_all(&real).unwrap();
    std::os::unix::fs::symlink(&real, harness.path().join("linked")).unwrap();
    write(&harness, folder(&harness, &[("plots/a.png", "new")]), json!({"path": "linked"})).unwrap();
    assert_eq!(std::fs::read_to_string(real.join("plots/a.png")).unwrap(), "new");
    assert!(harness.path().join("linked").is_symlink());
}

#[test]
fn links_of_a_folder_are_not_followed() {
    let harness = harness();
    let source = harness.path().join("source");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("part"), "p").unwrap();
    std::fs::write(source.join("artifact.json"), "the program's own").unwrap();
    write(&harness, tree_input(TreeKind::Files, &source), json!({"path": "out/x"})).unwrap();
    assert_eq!(delivered(&harness, "out/x"), texts(&[("artifact.json", "the program's own"), ("part", "p")]));
    #[cfg(unix)]
    {
        std::fs::write(harness.path().join("outside"), "secret").unwrap();
        std::fs::remove_file(source.join("part")).unwrap();
        std::os::unix::fs::symlink(harness.path().join("outside"), source.join("part")).unwrap();
        let error = write(&harness, tree_input(TreeKind::Files, &source), json!({"path": "out/y"})).unwrap_err();
        assert!(error.message.contains("`part` of the folder is not a regular file"), "{error}");
    }
}

#[test]
fn example_rows_are_objects_on_one_line() {
    let harness = harness();
    let example = |row: &str| ExampleRow { id: "e7".to_owned(), row: row.to_owned(), ..examples().remove(0) };
    let pretty = "{\r\n\"x\": [1,\n 2.50], \"y\": \"a\\nb\"\n}";
    for (name, expected) in [
        ("t.jsonl", "{  \"x\": [1,  2.50], \"y\": \"a\\nb\" }\n"),
        ("t.json", "[\n{  \"x\": [1,  2.50], \"y\": \"a\\nb\" }\n]\n"),
    ] {
        write(&harness, rows_input(&[example(pretty)]), json!({"path": name})).unwrap();
        assert_eq!(std::fs::read_to_string(harness.path().join(name)).unwrap(), expected);
    }
    for row in ["garbage", "[1]", "\"{}\"", "{\"a\": 1} {\"a\": 2}", "{\"a\": \"raw\nbreak\"}", ""] {
        for name in ["bad.jsonl", "bad.json", "bad.parquet"] {
            let rows = [examples().remove(0), example(row)];
            let error = write(&harness, rows_input(&rows), json!({"path": name})).unwrap_err();
            assert!(error.message.contains("the row of the example `e7` is not one JSON object"), "{row}: {error}");
            assert!(!harness.path().join(name).exists());
        }
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_folders_in_the_way_are_refused_without_waiting() {
    let harness = harness();
    let path = |name: &str| harness.path().join(name);
    for name in ["pipe.jsonl", "x.jsonl.manifest.json"] {
        assert!(std::process::Command::new("mkfifo").arg(path(name)).status().unwrap().success());
    }
    std::fs::create_dir_all(path("folder.jsonl")).unwrap();
    std::fs::write(path("file"), "").unwrap();
    let refused = |input, path: &str| write(&harness, input, json!({"path": path})).unwrap_err().message;
    assert!(refused(rows_input(&examples()), "pipe.jsonl").contains("it is a pipe, socket or device"));
    assert!(refused(rows_input(&examples()), "x.jsonl").contains("it is a pipe, socket or device"));
    assert!(refused(rows_input(&examples()), "folder.jsonl").contains("it is a folder"));
    assert!(refused(folder(&harness, &[("a", "1")]), "file").contains("it is a file"));
    // Also in a folder with other files.
    std::fs::create_dir_all(path("shared")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path("shared/a")).status().unwrap().success());
    assert!(refused(folder(&harness, &[("a", "1")]), "shared").contains("is not a regular file"));
}

/// Writes a table of these columns; returns the text of the file, or the error.
fn table(columns: Vec<(&str, arrow::array::ArrayRef)>, name: &str) -> Result<(String, Vec<String>), OperatorError> {
    let harness = harness();
    let fields =
        columns.iter().map(|(name, array)| arrow::datatypes::Field::new(*name, array.data_type().clone(), true));
    let schema = std::sync::Arc::new(arrow::datatypes::Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = arrow::array::RecordBatch::try_new(schema, arrays).unwrap();
    write(&harness, batch_input(RecordKind::Table, batch), json!({"path": name}))?;
    Ok((String::from_utf8_lossy(&std::fs::read(harness.path().join(name)).unwrap()).into_owned(), harness.logged()))
}

#[test]
fn bytes_are_written_as_the_text_that_they_are_or_not_at_all() {
    let bytes = |values: [&[u8]; 2]| {
        std::sync::Arc::new(arrow::array::BinaryArray::from_iter_values(values)) as arrow::array::ArrayRef
    };
    for (name, wanted) in [
        ("t.jsonl", "{\"b\":\"one é\"}\n{\"b\":\"x\"}\n"),
        ("t.csv", "b\none é\nx\n"),
        ("t.json", "[\n{\"b\":\"one é\"},\n{\"b\":\"x\"}\n]\n"),
    ] {
        assert_eq!(table(vec![("b", bytes(["one é".as_bytes(), b"x"]))], name).unwrap().0, wanted);
        let error = table(vec![("b", bytes([b"ok", b"\xff\xfe"]))], name).unwrap_err();
        assert!(error.message.contains("the column `b` holds bytes that are not UTF-8"), "{name}: {error}");
        assert!(error.help.unwrap().contains("encode(b, 'base64')"), "{name}");
    }
    assert!(table(vec![("b", bytes([b"ok", b"\xff\xfe"]))], "t.parquet").unwrap().0.contains("PAR1"));
}

#[test]
fn two_columns_of_one_name_are_not_written() {
    let ints = || std::sync::Arc::new(arrow::array::Int64Array::from(vec![1])) as arrow::array::ArrayRef;
    for name in ["t.jsonl", "t.csv", "t.parquet"] {
        let error = table(vec![("a", ints()), ("a", ints())], name).unwrap_err();
        assert!(error.message.contains("two columns `a`"), "{name}: {error}");
    }
}

#[test]
fn numbers_that_json_lacks_are_null_and_told() {
    let floats =
        || std::sync::Arc::new(arrow::array::Float64Array::from(vec![f64::NAN, 1.0])) as arrow::array::ArrayRef;
    let (text, told) = table(vec![("n", floats())], "t.jsonl").unwrap();
    assert_eq!(text, "{\"n\":null}\n{\"n\":1.0}\n");
    assert!(
        told.iter().any(|line| line.starts_with("warning: NaN and infinity in the column `n` are null")),
        "{told:?}"
    );
    let (text, told) = table(vec![("n", floats())], "t.csv").unwrap();
    assert_eq!((text.as_str(), told.len()), ("n\nNaN\n1.0\n", 0));
}

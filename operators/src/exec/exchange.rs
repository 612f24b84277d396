//! Data exchange by files: named inputs and outputs of a program are paths in its arguments. What it writes, to a file or
//! to stdout, must fit its record kind.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::writer::FileWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use searchmill_data::decoded::decoded;
use searchmill_data::program::{ArrowTable, Log, Passed, unchanged};
use searchmill_engine::operator::{Context, InputArtifact, Inputs, OperatorError, Outputs, ParamIssue, RowsInput};
use searchmill_engine::{Lent, fresh_folder, lend};
use searchmill_schemas::RecordKind;

use super::conversation::converse;
use super::params::Params;
use super::repetition;
use crate::shared::columns::conformed;

/// Returns the issues of the outputs.
pub(super) fn issues(params: &Params) -> Vec<ParamIssue> {
    let tables = params.outputs.keys().map(|name| (format!("outputs.{name}"), name));
    let folders = params.folders.iter().enumerate().map(|(index, name)| (format!("folders.{index}"), name));
    let mut issues = Vec::new();
    for (path, name) in tables.chain(folders) {
        if !is_plain(name) || name == "rejects" {
            let issue = ParamIssue::new(path, format!("an output cannot be named `{name}`"));
            issues.push(issue.with_help("use letters, digits, `_` and `-`; `rejects` is taken"));
        } else if !is_passed(&params.command, name) {
            let issue = ParamIssue::new(path, format!("`command` does not pass the path of the output `{name}`"));
            issues.push(issue.with_help(format!("write `{{{name}}}` as one of its arguments")));
        }
    }
    for (index, name) in params.folders.iter().enumerate() {
        if params.outputs.contains_key(name) || params.folders[..index].contains(name) {
            issues.push(ParamIssue::new(format!("folders.{index}"), format!("there are two outputs `{name}`")));
            break;
        }
    }
    issues
}

/// Returns the issues of the inputs' names.
pub(super) fn input_issues(params: &Params, inputs: &[&str]) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    // The one input on stdin needs no name in `command`.
    if !params.exchanges_files() {
        return issues;
    }
    for name in inputs {
        if !is_plain(name) {
            let issue = ParamIssue::new("command", format!("an input cannot be named `{name}`"));
            issues.push(issue.with_help("use letters, digits, `_` and `-` in `from: {NAME: node}`"));
        } else if params.outputs.contains_key(*name) || params.folders.iter().any(|folder| folder == name) {
            issues.push(ParamIssue::new("outputs", format!("`{name}` is an input and an output: rename one")));
        } else if !is_passed(&params.command, name) {
            let issue = ParamIssue::new("command", format!("`command` does not pass the path of the input `{name}`"));
            issues.push(issue.with_help(format!("write `{{{name}}}` as one of its arguments, or remove the input")));
        }
    }
    issues
}

/// Whether a name can be that of a file.
fn is_plain(name: &str) -> bool {
    // The name becomes that of a file: a `/` or `..` would lead out of the exchange folder.
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

fn is_passed(command: &[String], name: &str) -> bool {
    // The first word is the program.
    command.iter().skip(1).any(|word| word.contains(&format!("{{{name}}}")))
}

/// Runs the program and reads what it wrote.
///
/// # Errors
/// If the program fails, does not write an output, or writes one that does not fit.
pub(super) fn run(
    params: &Params,
    inputs: &Inputs,
    outputs: &mut Outputs,
    context: &Context,
) -> Result<(), OperatorError> {
    let folder = context.scratch().join("exchange");
    let mut paths = BTreeMap::new();
    // Tables are Arrow IPC files, folders are folders.
    for (name, bound) in inputs.iter() {
        match bound.first() {
            Some(InputArtifact::Rows(_)) => paths.insert(name.to_owned(), folder.join(format!("{name}.arrow"))),
            Some(InputArtifact::Tree(_)) => paths.insert(name.to_owned(), folder.join(name)),
            None => None,
        };
    }
    for name in params.outputs.keys() {
        paths.insert(name.clone(), folder.join(format!("{name}.arrow")));
    }
    let mut trees = Vec::new();
    for name in &params.folders {
        let tree = outputs.tree(name)?;
        paths.insert(name.clone(), tree.clone());
        trees.push(tree);
    }
    let command = command(&params.command, &paths)?;
    let program = params.program(&command, context);
    let attempt = || {
        // An earlier attempt may have changed its inputs, or put links in place of its folders.
        fresh_folder(&folder)?;
        for tree in &trees {
            fresh_folder(tree)?;
        }
        // A large folder is lent as links to the store's files: `unchanged` checks that the program only read them.
        let lent = write_inputs(inputs, &paths)?;
        converse(&program, None, context, |stdout| {
            Log::new(context).listen(stdout);
            Ok(())
        })?;
        unchanged(&lent)
    };
    if params.repeatable {
        repetition::repeat(context, attempt)?;
    } else {
        attempt()?;
    }
    // What the program wrote must not hold a secret that it was given.
    let passed = Passed::of(&params.environment, context);
    for (name, kind) in &params.outputs {
        read(name, RecordKind::from(*kind), &folder.join(format!("{name}.arrow")), outputs, &passed)?;
    }
    Ok(())
}

/// Writes tables, and lends folders.
fn write_inputs(inputs: &Inputs, paths: &BTreeMap<String, PathBuf>) -> Result<Vec<Lent>, OperatorError> {
    let mut lent = Vec::new();
    for (name, bound) in inputs.iter() {
        let Some(path) = paths.get(name) else { continue };
        match bound.first() {
            Some(InputArtifact::Rows(rows)) => write(rows, path)?,
            Some(InputArtifact::Tree(tree)) => lent.push(lend(&tree.path, path)?),
            None => {}
        }
    }
    Ok(lent)
}

fn write(rows: &RowsInput, path: &Path) -> Result<(), OperatorError> {
    let mut writer = FileWriter::try_new(BufWriter::new(File::create(path)?), &rows.schema)?;
    for batch in rows.batches() {
        writer.write(&batch?)?;
    }
    Ok(writer.finish()?)
}

/// Replaces `{name}` in the arguments by paths; other braces stay.
fn command(words: &[String], paths: &BTreeMap<String, PathBuf>) -> Result<Vec<String>, OperatorError> {
    let mut texts = BTreeMap::new();
    for (name, path) in paths {
        let Some(text) = path.to_str() else {
            return Err(OperatorError::machine(format!("{} is not UTF-8, so no argument can name it", path.display())));
        };
        texts.insert(name.as_str(), text);
    }
    let mut command = words.to_vec();
    for word in command.iter_mut().skip(1) {
        *word = named(word, &texts);
    }
    Ok(command)
}

/// Replaces each `{name}` once: a path may contain such a text too.
fn named(word: &str, texts: &BTreeMap<&str, &str>) -> String {
    let mut rest = word;
    let mut named = String::with_capacity(word.len());
    while let Some((before, after)) = rest.split_once('{') {
        named.push_str(before);
        let known = after.split_once('}').and_then(|(name, left)| Some((*texts.get(name)?, left)));
        let (text, left) = known.unwrap_or(("{", after));
        named.push_str(text);
        rest = left;
    }
    named.push_str(rest);
    named
}

/// Emits the rows of a file that the program wrote.
fn read(name: &str, kind: RecordKind, at: &Path, outputs: &mut Outputs, passed: &Passed) -> Result<(), OperatorError> {
    // Opening a pipe would wait for its writer.
    let opened = if std::fs::metadata(at).is_ok_and(|found| !found.is_file()) {
        Err("the program left no file, but a folder, pipe or device".to_owned())
    } else {
        File::open(at).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => "the program did not write it".to_owned(),
            _ => error.to_string(),
        })
    };
    let mut file = opened.map_err(|what| {
        OperatorError::pipeline(format!("output `{name}`: {what}"))
            .with_help(format!("write an Arrow or Parquet file to the path that `{{{name}}}` stands for"))
    })?;
    let (schema, batches) = batches(&mut file).map_err(|error| unreadable(name, &error))?;
    // Fixes the columns, also of a table without rows.
    outputs.write(name, &checked(Some(name), kind, &RecordBatch::new_empty(schema), passed)?)?;
    for batch in batches {
        let batch = batch.map_err(|error| unreadable(name, &error))?;
        outputs.write(name, &checked(Some(name), kind, &batch, passed)?)?;
    }
    Ok(())
}

/// Returns the rows with the kind's columns first. `output`: the table of `outputs`; `None` for rows on stdout.
///
/// # Errors
/// If columns are missing or have other types, or contain a secret.
pub(super) fn checked(
    output: Option<&str>,
    kind: RecordKind,
    batch: &RecordBatch,
    passed: &Passed,
) -> Result<RecordBatch, OperatorError> {
    passed.check(batch)?;
    conformed(kind, batch).map_err(|error| match output {
        None => OperatorError::pipeline(format!("the program's output does not fit `as: {kind}`: {error}"))
            .with_help("fix the program's schema, or set `as:` to the kind that it writes"),
        Some(name) => OperatorError::pipeline(format!("output `{name}`: its rows are no {kind} rows: {error}"))
            .with_help(format!("fix the program's schema, or write the kind of its rows: `outputs: {{{name}: …}}`")),
    })
}

fn unreadable(name: &str, error: &str) -> OperatorError {
    OperatorError::pipeline(format!("output `{name}`: {error}"))
        .with_help("write one Arrow IPC file or stream (`pyarrow.feather.write_feather`) or one Parquet file")
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, String>>>;

/// Opens a file in the format that its first bytes tell.
fn batches(file: &mut File) -> Result<(SchemaRef, Batches), String> {
    fn begin(file: &mut File) -> std::io::Result<(Vec<u8>, File)> {
        let mut start = Vec::new();
        // Six bytes tell the formats apart: `PAR1`, `ARROW1`, and the marker of a stream.
        file.by_ref().take(6).read_to_end(&mut start)?;
        file.rewind()?;
        Ok((start, file.try_clone()?))
    }
    let (start, file) = begin(file).map_err(|error| error.to_string())?;
    if start.starts_with(b"PAR1") {
        let builder = decoded(|| ParquetRecordBatchReaderBuilder::try_new(file))?;
        let schema = builder.schema().clone();
        let mut reader = decoded(|| builder.build())?;
        let batches = std::iter::from_fn(move || decoded(|| reader.next().transpose()).transpose());
        return Ok((schema, Box::new(batches)));
    }
    let source = BufReader::new(file);
    let mut table = if start.starts_with(b"ARROW1") {
        ArrowTable::file(source)?
    } else if start.starts_with(&[0xff; 4]) {
        ArrowTable::stream(source)?
    } else {
        return Err(format!("it begins with {:?}", String::from_utf8_lossy(&start)));
    };
    Ok((table.schema(), Box::new(std::iter::from_fn(move || table.next_batch().transpose()))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas::Document;
    use serde_json::{Value, json};

    use super::super::Exec;
    use super::*;

    fn documents(rows: usize) -> InputArtifact {
        let one = |i| Document { id: format!("d{i}"), title: None, text: format!("Text {i}"), metadata: None };
        rows_input(&(0..rows).map(one).collect::<Vec<_>>())
    }

    fn run(script: &str, words: &[&str], more: Value) -> Result<Outcome, OperatorError> {
        let mut command = vec!["/bin/sh", "-c", script, "sh"];
        command.extend(words);
        let mut params = json!({"command": command});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run_in(&Harness::new(), params)
    }

    fn run_in(harness: &Harness, params: Value) -> Result<Outcome, OperatorError> {
        harness.run(&entry::<Exec>(), params, &inputs([("a", documents(3)), ("b", documents(2))]))
    }

    #[test]
    fn several_tables_and_folders_go_in_and_out() {
        let script = "cp $1 $3; cp $2 $4; mkdir $5/deep; echo hello > $5/deep/page.txt; echo said";
        let command = ["/bin/sh", "-c", script, "sh", "{a}", "{b}", "{first}", "{second}", "{pages}"];
        let outputs = json!({"first": "document", "second": "table"});
        let harness = Harness::new();
        let outcome = run_in(&harness, json!({"command": command, "outputs": outputs, "folders": ["pages"]})).unwrap();
        assert_eq!(outcome.read::<Document>("first").len(), 3);
        assert_eq!(outcome.batch("second").num_rows(), 2);
        let page = outcome.trees["pages"].join("deep/page.txt");
        assert_eq!(std::fs::read_to_string(page).unwrap(), "hello\n");
    }

    #[test]
    fn streams_and_parquet_are_read_too() {
        let folder = tempfile::tempdir().unwrap();
        let batch =
            RecordBatch::try_from_iter([("n", std::sync::Arc::new(Int64Array::from(vec![4, 2])) as _)]).unwrap();
        let stream = folder.path().join("stream");
        let mut writer =
            arrow::ipc::writer::StreamWriter::try_new(File::create(&stream).unwrap(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let table = folder.path().join("table");
        let mut writer =
            parquet::arrow::ArrowWriter::try_new(File::create(&table).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let script = format!("cp {} $1; cp {} $2; : $3 $4", stream.display(), table.display());
        let outcome =
            run(&script, &["{one}", "{two}", "{a}", "{b}"], json!({"outputs": {"one": "table", "two": "table"}}));
        let outcome = outcome.unwrap();
        for port in ["one", "two"] {
            assert_eq!(outcome.batch(port).column(0).as_primitive::<Int64Type>().values(), &[4, 2], "{port}");
        }
    }

    #[test]
    fn failures_name_the_output() {
        let words = ["{a}", "{b}", "{first}"];
        let message =
            |script: &str, kind: &str| run(script, &words, json!({"outputs": {"first": kind}})).unwrap_err().message;
        assert_eq!(message("true", "table"), "output `first`: the program did not write it");
        assert!(message("echo hello > $3", "table").contains("it begins with \"hello\\n\""));
        let unfit = run("cp $1 $3", &words, json!({"outputs": {"first": "chunk"}})).unwrap_err();
        assert!(unfit.message.starts_with("output `first`: its rows are no chunk rows: "), "{unfit}");
        assert!(unfit.help.unwrap().ends_with("`outputs: {first: …}`"), "`as` is refused beside `outputs`");
        assert!(message("head -c 300 $1 > $3", "table").starts_with("output `first`: "));
        assert!(message("echo bad >&2; exit 3", "table").contains("exit code 3"));
    }

    #[test]
    fn a_repeated_program_starts_with_empty_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let count = folder.path().join("count");
        let script = format!(
            "echo x >> {0}; test -e $3 && exit 9; ls $4 | grep -q . && exit 9; echo y > $4/left; cp $1 $3; test $(wc -l < {0}) -ge 2",
            count.display()
        );
        let more = json!({"outputs": {"first": "table"}, "folders": ["more"], "repeatable": true});
        let outcome = run(&script, &["{a}", "{b}", "{first}", "{more}"], more).unwrap();
        assert_eq!(outcome.batch("first").num_rows(), 3);
        assert_eq!(std::fs::read_to_string(count).unwrap().lines().count(), 2);
    }

    #[test]
    fn two_columns_of_one_name_are_named() {
        let field = || arrow::datatypes::Field::new("n", arrow::datatypes::DataType::Int64, true);
        let ints = || std::sync::Arc::new(Int64Array::from(vec![1])) as _;
        let schema = std::sync::Arc::new(arrow::datatypes::Schema::new(vec![field(), field()]));
        let batch = RecordBatch::try_new(schema, vec![ints(), ints()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.arrow");
        let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let script = format!("cp {} $1; : $2 $3", path.display());
        let error = run(&script, &["{one}", "{a}", "{b}"], json!({"outputs": {"one": "table"}})).unwrap_err();
        assert!(
            error.message.contains("output `one`") && error.message.contains("there are two columns `n`"),
            "{error}"
        );
    }

    /// Whatever a program leaves of a table, it is the whole table or an error.
    #[test]
    fn a_damaged_table_is_an_error_or_whole() {
        let folder = tempfile::tempdir().unwrap();
        let texts = arrow::array::StringArray::from_iter_values((0..40).map(|i| format!("row {i} é")));
        let batch = RecordBatch::try_from_iter([("text", std::sync::Arc::new(texts) as _)]).unwrap();
        let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        let mut stream = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        let mut parquet = parquet::arrow::ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        for part in [batch.slice(0, 20), batch.slice(20, 20)] {
            file.write(&part).unwrap();
            stream.write(&part).unwrap();
            parquet.write(&part).unwrap();
        }
        let path = folder.path().join("table");
        for bytes in [file.into_inner().unwrap(), stream.into_inner().unwrap(), parquet.into_inner().unwrap()] {
            for seed in 0..200 {
                let place = seed * 7919 % bytes.len();
                let end = bytes.len().min(place + 1 + seed % 9);
                for damaged in [bytes[..place].to_vec(), [&bytes[..place], &bytes[end..]].concat()] {
                    std::fs::write(&path, &damaged).unwrap();
                    let read = batches(&mut File::open(&path).unwrap());
                    let read = read.and_then(|(_, batches)| batches.collect::<Result<Vec<_>, _>>());
                    let rows = read.map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>());
                    assert!(rows.as_ref().map_or(true, |rows| *rows == 40), "{place} {rows:?}");
                }
            }
        }
    }

    #[test]
    fn names_are_checked_with_their_places() {
        let message = |words: &[&str], more: Value| {
            let issue = run("true", words, more).unwrap_err().message;
            issue.lines().next().unwrap_or_default().to_owned()
        };
        assert!(
            message(&["{a}", "{b}"], json!({"outputs": {"x": "table"}}))
                .starts_with("outputs.x: `command` does not pass")
        );
        assert!(
            message(&["{x y}"], json!({"outputs": {"x y": "table"}}))
                .starts_with("outputs.x y: an output cannot be named")
        );
        assert!(message(&["{x}"], json!({"outputs": {"x": "table"}, "folders": ["x"]})).contains("two outputs `x`"));
        assert!(message(&["{x}"], json!({"outputs": {"x": "table"}, "as": "document"})).starts_with("as: "));
    }

    #[test]
    fn inputs_are_files_of_the_exchange_alone() {
        let params = |command: &[&str]| -> Params {
            serde_json::from_value(json!({"command": command, "outputs": {"o": "table"}})).unwrap()
        };
        for name in ["../evil", "/tmp/evil", "a b", ""] {
            let passed = format!("{{{name}}}");
            let issues = input_issues(&params(&["sh", &passed, "{o}"]), &[name]);
            assert!(issues[0].message.contains("cannot be named"), "{name}: {issues:?}");
        }
        assert_eq!(input_issues(&params(&["sh", "{a}", "{o}"]), &["a"]), []);
    }

    #[test]
    fn each_name_is_replaced_once() {
        let texts = BTreeMap::from([("a", "/x/{b}"), ("b", "/y")]);
        assert_eq!(named("--in={a},{b} {c} {print $1} ${HOME}", &texts), "--in=/x/{b},/y {c} {print $1} ${HOME}");
    }
}

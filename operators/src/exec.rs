//! `exec`: runs any program as an operator. The program reads an Arrow IPC stream on stdin and writes one to stdout, or
//! exchanges files.
//!
//! Operators do not start programs. The exceptions are this one, `map` with a function, and `train` with an external
//! trainer; all start them in `program.rs`.

mod conversation;
mod exchange;
mod params;
mod repetition;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;

use arrow::array::RecordBatch;
use searchmill_data::program::{ArrowTable, Command, Passed, unseen, variable_issues, write_issues};
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports, Repeatability, Source, TreeKind,
};
use searchmill_schemas::RecordKind;

use self::conversation::{converse, held_open};
use self::exchange::checked;
pub use self::params::Params;
use self::repetition::repeat;

/// Maximum length of `params` as JSON, in bytes: systems limit one environment variable to 128 KiB.
const LONGEST_PARAMS: usize = 100_000;

/// The operator `exec`.
pub struct Exec;

impl Operator for Exec {
    type Params = Params;
    const NAME: &'static str = "exec";
    const VERSION: u32 = 4;
    const ABOUT: &'static str = "Runs any program on rows: the program reads an Arrow IPC stream on stdin and writes \
        one to stdout. SEARCHMILL_PARAMS holds the params as JSON, SEARCHMILL_SEED the node's seed. Its \
        stderr is logged; a non-zero exit code fails the node. The program must be deterministic.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A Python script that keeps the longer documents",
            yaml: "long: {op: exec, from: corpus, with: {command: [python3, filter_length.py], as: document, \
                   params: {min_words: 50}}}",
        },
        Example {
            title: "A program without input, with a module and an environment variable",
            yaml: "made: {op: exec, with: {command: [python3, make.py], files: [my_package], \
                   environment: [HF_HOME], as: question, timeout_seconds: 600}}",
        },
        Example {
            title: "A program that reads two tables and writes a table and a folder",
            yaml: "study:\n  op: exec\n  from: {scores: scores, corpus: corpus}\n  with:\n    command: [python3, study.py, \
                   \"{scores}\", \"{corpus}\", \"{summary}\", \"{plots}\"]\n    outputs: {summary: table}\n    \
                   folders: [plots]\n",
        },
        Example {
            title: "A program that may run again after a failure",
            yaml: "pages: {op: exec, from: corpus, retry: {max_attempts: 5, backoff: 10s}, \
                   with: {command: [python3, fetch.py], as: document, repeatable: true}}",
        },
    ];

    fn declare(params: &Params) -> Declaration {
        let (read, named) = (params.clone(), params.clone());
        Declaration::seeded(params.ports())
            .issues(issues(params))
            .checks_inputs(move |inputs| exchange::input_issues(&named, inputs))
            // The program must be deterministic.
            .repeatability(Repeatability::Processor)
            .runs_programs(true)
            .retries_if(
                params.repeatable,
                "runs its program once",
                "add the param `repeatable: true` if the program may run again after a failure, or remove `retry`",
            )
            .reads(move |directory| sources(&read, directory))
            .unseen(Some(unseen(&params.words(), &params.environment)))
    }

    fn open(params: &Params, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn sources(params: &Params, directory: &Path) -> Vec<Source> {
    let mut sources: BTreeSet<Source> = params.files.iter().cloned().map(Source::Argument).collect();
    sources.extend(params.words().sources(directory));
    sources.into_iter().collect()
}

fn issues(params: &Params) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if params.command.first().is_none_or(String::is_empty) {
        let issue = ParamIssue::new("command", "names no program");
        issues.push(issue.with_help("write the program and its arguments as a list: `[python3, script.py]`"));
    }
    issues.extend(exchange::issues(params));
    if params.exchanges_files() && RecordKind::from(params.output) != RecordKind::Table {
        let issue = ParamIssue::new("as", "has no effect with `outputs` and `folders`");
        issues.push(issue.with_help("write the kind of each table in `outputs`"));
    }
    issues.extend(variable_issues("environment", &params.environment));
    issues.extend(write_issues("writes", &params.writes));
    if params.json().len() > LONGEST_PARAMS {
        let issue = ParamIssue::new("params", format!("are longer than {LONGEST_PARAMS} bytes as JSON"));
        issues.push(issue.with_help("put the data into a file, name it in `files`, and pass its path"));
    }
    issues
}

impl Params {
    fn ports(&self) -> Ports {
        if !self.exchanges_files() {
            let about = "rows that the program reads on stdin";
            let ports = Ports::new().input_of("input", Accept::AnyRows, Arity::Optional, about);
            return ports.rows_out("rows", RecordKind::from(self.output), "rows that the program writes to stdout");
        }
        let mut ports = Ports::new().named_inputs(Accept::Any).optional_inputs().equal_outputs();
        for (name, kind) in &self.outputs {
            ports = ports.rows_out(name, RecordKind::from(*kind), "table that the program writes");
        }
        for name in &self.folders {
            ports = ports.tree_out(name, TreeKind::Files, "folder that the program fills");
        }
        ports
    }

    fn words(&self) -> Command<'_> {
        let (program, arguments) = self.command.split_at(self.command.len().min(1));
        Command { program, arguments, version: self.version.as_deref(), writes: &self.writes }
    }
}

impl BlockingKernel for Params {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        if self.exchanges_files() {
            return exchange::run(self, inputs, outputs, context);
        }
        let (program, input) = (self.program(&self.command, context), inputs.rows_optional("input"));
        if !self.repeatable {
            return converse(&program, input, context, |stdout| self.receive(stdout, outputs, context));
        }
        std::fs::create_dir_all(context.scratch())?;
        // Rows of a failed attempt must not be written: the output is read once the program has succeeded.
        let output = repeat(context, || {
            // Without a name, so that the program cannot replace it.
            let mut output = tempfile::tempfile_in(context.scratch())?;
            converse(&program, input, context, |stdout| Ok(std::io::copy(stdout, &mut output).map(drop)?))?;
            output.rewind()?;
            Ok(output)
        })?;
        self.receive(&mut BufReader::new(output), outputs, context)
    }
}

impl Params {
    /// Reads the stream to its end and emits the rows.
    fn receive(&self, bytes: &mut impl BufRead, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let (kind, passed) = (RecordKind::from(self.output), Passed::of(&self.environment, context));
        let start = bytes.fill_buf().map_err(|error| malformed(&error.to_string()))?;
        if start.is_empty() {
            return Err(malformed("it wrote nothing"));
        }
        // Every message starts with this marker. Without the check, four bytes of text would be read as a length of
        // gigabytes.
        if !start.starts_with(&[0xff; 4][..start.len().min(4)]) {
            let begins = String::from_utf8_lossy(&start[..start.len().min(40)]);
            return Err(malformed(&format!("it begins with {begins:?}")));
        }
        let mut stream = ArrowTable::beginning(&mut *bytes).map_err(|error| malformed(&error))?;
        let mut rows = 0;
        // Fixes the columns, also of a stream without batches.
        outputs.write("rows", &checked(None, kind, &RecordBatch::new_empty(stream.schema()), &passed)?)?;
        while let Some(batch) = stream.next_batch().map_err(|error| malformed(&error))? {
            outputs.write("rows", &checked(None, kind, &batch, &passed)?)?;
            rows += batch.num_rows() as u64;
            context.progress().set(rows, 0, "rows");
        }
        drop(stream);
        // A second table, or a `print` after the end, would otherwise be lost without an error.
        let mut rest = Vec::new();
        bytes.by_ref().take(40).read_to_end(&mut rest).or_else(|error| held_open(error).map(|()| 0))?;
        if rest.is_empty() {
            return Ok(());
        }
        Err(malformed(&format!("after its end there is {:?}", String::from_utf8_lossy(&rest))))
    }
}

fn malformed(reason: &str) -> OperatorError {
    OperatorError::pipeline(format!("the program's stdout is not one Arrow IPC stream: {reason}"))
        .with_help("write with `pyarrow.ipc.new_stream(sys.stdout.buffer, schema)` and print messages to stderr")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs, listened, rows_input};
    use searchmill_engine::operator::{Blame, InputArtifact, OutputSink, RowsInput, entry};
    use searchmill_schemas::Document;
    use serde_json::{Value, json};

    use super::*;

    fn run(params: Value, input: Option<InputArtifact>) -> Result<Outcome, OperatorError> {
        let bound = input.map_or_else(Inputs::new, |input| inputs([("input", input)]));
        Harness::new().run(&entry::<Exec>(), params, &bound)
    }

    fn shell(script: &str, more: Value, input: Option<InputArtifact>) -> Result<Outcome, OperatorError> {
        let mut params = json!({"command": ["/bin/sh", "-c", script]});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        run(params, input)
    }

    fn documents(rows: usize) -> Vec<Document> {
        let one = |i| Document { id: format!("d{i}"), title: None, text: format!("Text {i} äöü"), metadata: None };
        (0..rows).map(one).collect()
    }

    fn wide(batches: usize) -> InputArtifact {
        let text = StringArray::from_iter_values((0..1_000).map(|i| format!("{i:>200}")));
        let batch = RecordBatch::try_from_iter([("text", Arc::new(text) as _)]).unwrap();
        InputArtifact::Rows(RowsInput::from_batches(RecordKind::Table, batch.schema(), vec![batch; batches]))
    }

    #[test]
    fn cat_gives_back_what_it_got() {
        let given = documents(3);
        let outcome = run(json!({"command": ["cat"], "as": "document"}), Some(rows_input(&given))).unwrap();
        assert_eq!(outcome.read::<Document>("rows"), given);
    }

    #[test]
    fn forty_megabytes_pass_without_a_deadlock() {
        let outcome = run(json!({"command": ["cat"]}), Some(wide(200))).unwrap();
        assert_eq!(outcome.batch("rows").num_rows(), 200_000);
    }

    #[test]
    fn a_program_may_stop_reading_early() {
        let script = "head -c 100 >/dev/null; cat \"$SEARCHMILL_ANSWER\"";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer.arrows");
        let batch = RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(vec![4, 2])) as _)]).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = arrow::ipc::writer::StreamWriter::try_new(file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let script = script.replace("$SEARCHMILL_ANSWER", path.to_str().unwrap());
        let outcome = shell(&script, json!({}), Some(wide(50))).unwrap();
        assert_eq!(outcome.batch("rows"), batch);
    }

    #[test]
    fn the_program_sees_its_params_and_little_else() {
        let print = "env | sort >&2; exit 3";
        let failure = shell(print, json!({"params": {"words": ["ä", 1]}}), None).unwrap_err();
        assert!(failure.message.contains(r#"SEARCHMILL_PARAMS={"words":["ä",1]}"#), "{failure}");
        assert!(failure.message.contains("SEARCHMILL_SEED=0") && failure.message.contains("PATH="));
        assert!(!failure.message.contains("CARGO") && failure.message.contains("LANG=C.UTF-8"), "{failure}");
        let allowed = shell(print, json!({"environment": ["CARGO_MANIFEST_DIR"]}), None).unwrap_err();
        assert_eq!(allowed.message.contains("CARGO_MANIFEST_DIR="), std::env::var("CARGO_MANIFEST_DIR").is_ok());
    }

    #[test]
    fn failures_say_what_happened() {
        let message = |script: &str, more: Value| shell(script, more, Some(rows_input(&documents(2)))).unwrap_err();
        let failed = message("echo 'no such model' >&2; exit 7", json!({}));
        assert!(failed.message.contains("exit code 7:\n  no such model"), "{failed}");
        assert!(message("kill -9 $$", json!({})).message.contains("signal 9"));
        assert!(message("echo hello", json!({})).message.contains("begins with \"hello"));
        assert!(message("true", json!({})).message.contains("it wrote nothing"));
        assert!(message("cat; echo done", json!({})).message.contains("after its end there is \"done"));
        assert!(message("head -c 500", json!({})).message.contains("not one Arrow IPC stream"));
        let unfit = message("cat", json!({"as": "chunk"}));
        assert!(unfit.message.contains("`as: chunk`") && unfit.message.contains("`document_id`"), "{unfit}");
        let missing = run(json!({"command": ["no-such-program-anywhere"]}), None).unwrap_err();
        assert!(missing.message.contains("cannot start `no-such-program-anywhere`"));
        assert!(missing.help.unwrap().contains("install"));
    }

    #[test]
    fn extra_columns_ride_along() {
        let columns = ["text", "id", "title", "metadata", "words"];
        let text = || Arc::new(StringArray::from(vec!["x"])) as _;
        let batch = RecordBatch::try_from_iter(columns.map(|name| (name, text()))).unwrap();
        let input = Some(batch_input(RecordKind::Table, batch));
        let outcome = run(json!({"command": ["cat"], "as": "document"}), input).unwrap();
        let schema = outcome.batch("rows").schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["id", "title", "text", "metadata", "words"]);
    }

    #[test]
    fn a_program_that_takes_too_long_is_stopped_with_all_that_it_started() {
        let failure = shell("sleep 600 & wait", json!({"timeout_seconds": 1}), None).unwrap_err();
        assert!(failure.message.contains("stopped after 1 seconds"), "{failure}");
    }

    #[test]
    fn a_repeatable_program_runs_again_and_rows_of_failed_attempts_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let given = documents(3);
        // Writes all rows, then fails twice.
        let script = format!("cd {}; echo x >> runs; cat; test $(wc -l < runs) -ge 3", folder.path().display());
        let runs = || std::fs::read_to_string(folder.path().join("runs")).unwrap_or_default().lines().count();
        let once = shell(&script, json!({"as": "document"}), Some(rows_input(&given))).unwrap_err();
        assert!(once.message.contains("exit code 1") && !once.message.contains("attempt"), "{once}");
        assert_eq!(runs(), 1);
        std::fs::remove_file(folder.path().join("runs")).unwrap();
        let harness = Harness::new();
        let params = json!({"command": ["/bin/sh", "-c", script], "as": "document", "repeatable": true});
        let bound = || inputs([("input", rows_input(&given))]);
        let outcome = harness.run(&entry::<Exec>(), params.clone(), &bound()).unwrap();
        assert_eq!((outcome.read::<Document>("rows"), runs()), (given.clone(), 3));
        let told = harness.logged();
        assert!(told.iter().any(|line| line.contains("exit code 1") && line.contains("attempt 3 of 3")), "{told:?}");
        std::fs::remove_file(folder.path().join("runs")).unwrap();
        let mut harness = Harness::new();
        harness.retry.max_attempts = 2;
        let failed = harness.run(&entry::<Exec>(), params, &bound()).unwrap_err();
        assert!(failed.message.starts_with("after 2 attempts: `/bin/sh` ended with exit code 1"), "{failed}");
        assert_eq!(runs(), 2);
    }

    #[test]
    fn unset_repeatable_is_not_in_the_params() {
        let params = |more: Value| {
            let mut params = json!({"command": ["cat"]});
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            (entry::<Exec>().bind)(params).unwrap().params
        };
        assert!(params(json!({})).get("repeatable").is_none());
        assert_eq!(params(json!({"repeatable": false})), params(json!({})));
        assert_eq!(params(json!({"repeatable": true}))["repeatable"], true);
    }

    struct Nowhere;

    impl OutputSink for Nowhere {
        fn write(&mut self, _port: &str, _batch: &RecordBatch) -> Result<(), OperatorError> {
            Ok(())
        }

        fn tree(&mut self, _port: &str) -> Result<PathBuf, OperatorError> {
            Err(OperatorError::engine("no folders here"))
        }

        fn figure(&mut self, _name: &str, _value: f64) {}

        fn summary(&mut self, _text: &str) {}
    }

    #[test]
    fn cancelling_the_run_stops_the_program_and_stderr_is_logged() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (context, listener) = listened(&std::env::temp_dir(), 0, "ready", &runtime);
        let script = "echo loading >&2; echo ready >&2; sleep 600 & wait";
        let params = serde_json::from_value(json!({"command": ["/bin/sh", "-c", script]})).unwrap();
        let Kernel::Blocking(kernel) = Exec::open(&params, &Inputs::new(), &context).unwrap() else {
            panic!("exec needs everything at once")
        };
        let failure = kernel.run(&Inputs::new(), &mut Nowhere, &context).unwrap_err();
        assert_eq!(failure.blame, Blame::Cancelled);
        assert_eq!(*listener.lines.lock().unwrap(), ["loading", "ready"]);
    }

    #[test]
    fn bad_params_are_refused_with_their_place() {
        let refused = |params| run(params, None).unwrap_err().message;
        assert!(refused(json!({"command": []})).starts_with("command: names no program"));
        assert!(refused(json!({"command": ["cat"], "environment": ["A", "B=1"]})).starts_with("environment.1"));
        assert!(refused(json!({"command": ["cat"], "params": {"x": "y".repeat(100_001)}})).starts_with("params"));
        assert!(
            refused(json!({"command": ["cat"], "writes": ["log", "."]}))
                .starts_with("writes.1: it contains the working")
        );
        assert!(refused(json!({"command": ["cat"], "as": "documents"})).contains("unknown variant"));
    }

    #[test]
    fn scripts_and_files_are_sources_and_system_programs_tell_their_version() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script.py");
        std::fs::write(&script, "pass").unwrap();
        let script = script.to_str().unwrap();
        let params = json!({"command": ["/bin/sh", script, "--fast"], "files": ["words.txt"]});
        let sources = Exec::declare(&serde_json::from_value(params).unwrap()).sources(folder.path());
        let of = |path: &str| sources.contains(&Source::Argument(path.to_owned()));
        assert!(of(script) && of("words.txt"), "{sources:?}");
        assert!(sources.contains(&Source::Program("/bin/sh".into())), "{sources:?}");
    }

    /// Runs the example in `examples/python-operator` with a real interpreter.
    #[test]
    fn the_python_example_filters_by_length() {
        let python = python();
        let Some(python) = python else {
            searchmill_fixtures::skip("a python3 with pyarrow (SEARCHMILL_TEST_PYTHON names one)");
            return;
        };
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/python-operator");
        let rows = [("short", "two words"), ("long", "five words are in here")];
        let given = rows.map(|(id, text)| Document { id: id.into(), title: None, text: text.into(), metadata: None });
        let script = format!("{folder}/filter_length.py");
        let params = json!({"command": [python, script], "as": "document", "params": {"min_words": 3}});
        let outcome = run(params, Some(rows_input(&given))).unwrap();
        assert_eq!(outcome.read::<Document>("rows"), given[1..]);
        assert_eq!(outcome.batch("rows").column_by_name("words").unwrap().len(), 1);
    }

    fn python() -> Option<String> {
        let named = std::env::var("SEARCHMILL_TEST_PYTHON").ok();
        let candidates = named.into_iter().chain(["python3".to_owned()]);
        candidates.into_iter().find(|python| {
            let probe = std::process::Command::new(python).args(["-c", "import pyarrow"]).output();
            probe.is_ok_and(|output| output.status.success())
        })
    }
}

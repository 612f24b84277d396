//! Tests of what a session creates, rejects and remembers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use searchmill_schemas::{Document, RecordKind};
use serde::{Deserialize, Serialize};

use super::*;
use crate::endpoint::BudgetLimits;
use crate::error::OperatorError;
use crate::events::Lines;
use crate::execute::{NodeStatus, RunOptions};
use crate::operator::{
    BlockingKernel, Context, Declaration, Deliver, Example, Inputs, Kernel, Operator, Outputs, Ports, Registry, Secret,
    TreeKind, entry,
};
use crate::plan::Selection;
use crate::spec::Overrides;

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GreetParams {
    word: String,
    token: Option<Secret>,
}

/// Writes one document.
struct Greet;

impl Operator for Greet {
    type Params = GreetParams;
    const NAME: &'static str = "greet";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Greets.";
    const EXAMPLES: &'static [Example] = &[];

    fn declare(_params: &GreetParams) -> Declaration {
        Declaration::pure(Ports::new().rows_out("rows", RecordKind::Document, "a greeting"))
    }

    fn open(params: &GreetParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(Greeting { text: params.word.clone() })))
    }
}

struct Greeting {
    text: String,
}

impl BlockingKernel for Greeting {
    fn run(&self, _inputs: &Inputs, outputs: &mut Outputs<'_>, _context: &Context) -> Result<(), OperatorError> {
        let document = Document { id: "d".to_owned(), title: None, text: self.text.clone(), metadata: None };
        outputs.write_rows("rows", &[document])
    }
}

/// Writes a folder, and has a defect in its delivery.
struct Parcel;

impl Operator for Parcel {
    type Params = ParcelParams;
    const NAME: &'static str = "parcel";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Sends a parcel.";
    const EXAMPLES: &'static [Example] = &[];

    fn declare(params: &ParcelParams) -> Declaration {
        let ports = Ports::new().tree_out("folder", TreeKind::Files, "a folder");
        Declaration::pure(ports).delivers(params.clone())
    }

    fn open(_params: &ParcelParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(Packing)))
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct ParcelParams {
    to: String,
}

impl Deliver for ParcelParams {
    fn destinations(&self) -> Vec<String> {
        vec![self.to.clone()]
    }

    fn deliver(&self, _folders: &BTreeMap<String, PathBuf>, _context: &Context) -> Result<Vec<String>, OperatorError> {
        panic!("the defect")
    }
}

struct Packing;

impl BlockingKernel for Packing {
    fn run(&self, _inputs: &Inputs, outputs: &mut Outputs<'_>, _context: &Context) -> Result<(), OperatorError> {
        let folder = outputs.tree("folder")?;
        std::fs::write(folder.join("note"), "hello").map_err(|error| OperatorError::machine(error.to_string()))
    }
}

const TWO: &str = "nodes:\n  one: {op: greet, with: {word: hello}}\n  two: {op: greet, with: {word: \"${params.word}\"}}\nparams: {word: bye}\n";

fn session(folder: &Path) -> Session {
    let place = StorePlace::new(Path::new("store"), None, folder).unwrap();
    Session::new(place, folder, Registry::new(&[entry::<Greet>(), entry::<Parcel>()]))
}

fn check(session: &Session, text: &str, set: &[&str]) -> Result<Pipeline, Failure> {
    let file = session.directory().join("pipeline.yaml");
    std::fs::write(&file, text).unwrap();
    let set = set.iter().map(|set| (*set).to_owned()).collect();
    session.check(&file, &Overrides { set, params_files: Vec::new() })
}

/// Returns the lines that a run reports.
fn run(session: &Session, pipeline: &Pipeline, options: RunOptions) -> Vec<String> {
    let told = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&told);
    let summary = session.run(pipeline, options, Lines(move |line: &str| lines.lock().unwrap().push(line.to_owned())));
    assert_eq!(summary.unwrap().exit_code(), 0);
    let mut told = told.lock().unwrap().clone();
    told.sort();
    told
}

#[test]
fn reading_creates_no_store_and_running_does() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let pipeline = check(&session, TWO, &[]).unwrap();
    let survey = session.survey(&pipeline, &RunOptions::default()).unwrap();
    assert!(survey.nodes.values().all(|status| matches!(status, NodeStatus::Run { .. })));
    assert!(!session.store().exists().unwrap() && !folder.path().join("store").exists());
    let missing = session.rows("one").unwrap_err();
    assert!(missing.to_string().starts_with("there is no store at store yet (") && missing.exit_code() == 2);
    assert_eq!(
        run(&session, &pipeline, RunOptions::default()),
        ["ran    one: 1 rows, 0 rejects", "ran    two: 1 rows, 0 rejects"]
    );
    assert!(session.store().exists().unwrap());
    assert_eq!(run(&session, &pipeline, RunOptions::default()), ["cached one: 1 rows", "cached two: 1 rows"]);
    assert_eq!(session.rows("two").unwrap().rows, 1);
}

#[test]
fn a_delivery_that_panics_fails_its_node_and_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let pipeline = check(&session, "nodes:\n  one: {op: parcel, with: {to: out}}\n", &[]).unwrap();
    // The second run finds the result cached: its delivery has the same defect.
    for _ in 0..2 {
        let summary = session.run(&pipeline, RunOptions::default(), Lines(|_: &str| {})).unwrap();
        assert_eq!((summary.failed, summary.finished), (1, 0));
        let nodes = session.runs().nodes(&summary.run).unwrap();
        let error = nodes.last().and_then(|node| node.error.clone()).unwrap_or_default();
        assert_eq!(error, "the operator panicked: the defect");
    }
}

#[test]
fn options_name_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let pipeline = check(&session, TWO, &["word=hey"]).unwrap();
    let selection = Selection { targets: vec!["two".to_owned()], ..Selection::default() };
    let only_two = RunOptions { selection, ..RunOptions::default() };
    assert_eq!(run(&session, &pipeline, only_two.clone()), ["ran    two: 1 rows, 0 rejects"]);
    let again = RunOptions { force: vec!["two".to_owned()], ..only_two };
    assert_eq!(run(&session, &pipeline, again), ["ran    two: 1 rows, 0 rejects"]);
    let refused = |options: RunOptions| session.prepare(&pipeline, options).err().unwrap().to_string();
    let slip = RunOptions { force: vec!["tow".to_owned()], ..RunOptions::default() };
    assert_eq!(refused(slip), "there is no node `tow` (did you mean `two`?)");
    let none_failed = RunOptions { retry_rejects: true, ..RunOptions::default() };
    assert!(refused(none_failed).starts_with("no node of the pipeline has rows that failed"));
    let budget = BudgetLimits { cost: Some(1.0), ..BudgetLimits::default() };
    assert!(refused(RunOptions { budget, ..RunOptions::default() }).starts_with("a budget of cost needs prices"));
}

#[test]
fn why_compares_with_the_last_run_or_a_named_one() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    run(&session, &check(&session, TWO, &[]).unwrap(), RunOptions::default());
    let changed = check(&session, TWO, &["word=hey"]).unwrap();
    let reasons = |node: &str, against: Option<&str>| -> Vec<String> {
        let options = WhyOptions { against: against.map(str::to_owned), ..WhyOptions::default() };
        let why = session.why(&changed, node, &options).unwrap();
        why.reasons.iter().map(ToString::to_string).collect()
    };
    assert_eq!(reasons("two", None), ["param `word` changed from \"bye\" to \"hey\""]);
    assert_eq!(reasons("two", Some("latest")), reasons("two", None));
    assert!(reasons("one", None).is_empty());
    let never_ran = WhyOptions { against: Some("1999".to_owned()), ..WhyOptions::default() };
    let unknown = session.why(&changed, "one", &never_ran).unwrap_err();
    assert_eq!(unknown.exit_code(), 2);
}

#[test]
fn a_secret_that_is_not_set_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let text = "nodes:\n  one: {op: greet, with: {word: hello, token: \"${secret:GREETING}\"}}\n";
    let unset = session(folder.path()).with_secrets(Arc::new(|_| None));
    let pipeline = check(&unset, text, &[]).unwrap();
    let names = unset.unset_secrets(&pipeline.plan.nodes[0]).unwrap().names;
    assert_eq!(names, ["GREETING"]);
    let refused = unset.prepare(&pipeline, RunOptions::default()).err().unwrap();
    let line = refused.to_string();
    assert!(line.ends_with("pipeline.yaml:2:3: `one` needs the secret `GREETING`, which is not set (set the environment variable GREETING)"), "{line}");
    let set = session(folder.path()).with_secrets(Arc::new(|name| Some(format!("value of {name}"))));
    assert_eq!(run(&set, &pipeline, RunOptions::default()).len(), 1);
}

#[test]
fn every_fault_of_a_pipeline_is_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let session = session(folder.path());
    let text = "nodes:\n  one: {op: great, with: {word: hello}}\n  two: {op: greet, with: {wrod: hello}}\n";
    let failure = check(&session, text, &[]).unwrap_err();
    let text = failure.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() >= 2 && failure.exit_code() == 2, "{text}");
    assert!(lines[0].contains("pipeline.yaml:2:13: ") && lines[0].contains("(did you mean `greet`?"), "{text}");
    assert!(lines[1..].iter().all(|line| line.contains("pipeline.yaml:3:")), "{text}");
}

#[test]
fn a_store_is_a_folder_or_an_address() {
    let read = |store: &str, cache: Option<&str>| {
        StorePlace::new(Path::new(store), cache.map(Path::new), Path::new("/work")).unwrap()
    };
    assert_eq!(read("store", None), StorePlace::Folder("/work/store".into()));
    assert_eq!(read("/else", None), StorePlace::Folder("/else".into()));
    let shared = StorePlace::Shared { url: "s3://bucket/x".to_owned(), cache: "/work/cache".into() };
    assert_eq!(read("s3://bucket/x/", Some("cache")), shared);
}

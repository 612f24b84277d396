//! Tests of a new VERSION of an operator: it runs again and reports why; nodes after it stay cached if the bytes are
//! equal.

use std::sync::{Arc, Mutex};

use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, Ports, Registry,
    entry,
};
use searchmill_engine::{Event, Overrides, Reporter, RunOptions, Session};
use searchmill_schemas::{Document, RecordKind};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GreetParams {
    word: String,
}

/// Writes one document; `LOUD` stands for a code change that affects the bytes.
struct Greet<const VERSION: u32, const LOUD: bool>;

impl<const V: u32, const LOUD: bool> Operator for Greet<V, LOUD> {
    type Params = GreetParams;
    const NAME: &'static str = "greet";
    const VERSION: u32 = V;
    const ABOUT: &'static str = "Greets.";
    const EXAMPLES: &'static [Example] = &[];

    fn declare(_params: &GreetParams) -> Declaration {
        Declaration::pure(Ports::new().rows_out("rows", RecordKind::Document, "a greeting"))
    }

    fn open(params: &GreetParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let text = if LOUD { params.word.to_uppercase() } else { params.word.clone() };
        Ok(Kernel::Blocking(Box::new(Greeting { text })))
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

#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Reporter for Heard {
    fn event(&self, event: &Event) {
        let line = match event {
            Event::NodeStarted { node, reasons, .. } => {
                let why: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                format!("{node} runs: {}", why.join("; "))
            }
            Event::NodeCached { node, .. } => format!("{node} cached"),
            _ => return,
        };
        self.0.lock().expect("the list").push(line);
    }
}

const PIPELINE: &str = "\
name: version
nodes:
  greeting: {op: greet, with: {word: hello}}
  after:    {op: filter, from: greeting, with: {where: \"true\"}}
";

/// Runs the pipeline with this build of `greet` in addition to the shipped operators.
fn heard<const V: u32, const LOUD: bool>(folder: &std::path::Path) -> Vec<String> {
    let entries = [searchmill_operators::all(), vec![entry::<Greet<V, LOUD>>()]].concat();
    let file = folder.join("pipeline.yaml");
    std::fs::write(&file, PIPELINE).expect("a file");
    let session = Session::open(folder, Registry::new(&entries)).expect("a store");
    let pipeline = session.check(&file, &Overrides::default()).expect("a right pipeline");
    let (options, heard) = (RunOptions { jobs: Some(1), ..RunOptions::default() }, Heard::default());
    let summary = session.run(&pipeline, options, heard.clone()).expect("a run");
    assert_eq!(summary.failed, 0);
    heard.0.lock().expect("the list").clone()
}

#[test]
fn a_new_version_runs_again_and_equal_bytes_stop_the_wave() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(heard::<1, false>(folder.path()), ["greeting runs: no cached result", "after runs: no cached result"]);
    assert_eq!(heard::<1, false>(folder.path()), ["greeting cached", "after cached"]);
    let again = "greeting runs: the operator `greet` changed from version 1 to 2";
    assert_eq!(heard::<2, false>(folder.path()), [again, "after cached"]);
    let loud = heard::<3, true>(folder.path());
    let again = "greeting runs: the operator `greet` changed from version 2 to 3";
    assert_eq!(loud, [again, "after runs: the content of input `rows` changed"]);
    assert_eq!(
        heard::<1, false>(folder.path()),
        ["greeting cached", "after cached"],
        "the old build finds its results"
    );
}

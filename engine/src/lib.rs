//! searchmill's engine: YAML to a typed plan to cached execution with lineage.
//!
//! [`Session`] is the entry point: a program opens one with its operators, checks a pipeline, and runs it. This crate
//! has no operators. Those of searchmill are in the crate `searchmill-operators`
//! (`Registry::new(&searchmill_operators::all())`); your own ones become entries by [`operator::entry`]. Here, `Greet`
//! is an operator that writes one document:
//!
//! ```
//! use searchmill_engine::{Lines, NodeStatus, Overrides, Registry, RunOptions, Session, operator::entry};
//! # use searchmill_engine::operator::*;
//! # use searchmill_schemas::{Document, RecordKind};
//! # #[derive(Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
//! # struct GreetParams { word: String }
//! # struct Greet;
//! # impl Operator for Greet {
//! #     type Params = GreetParams;
//! #     const NAME: &'static str = "greet";
//! #     const VERSION: u32 = 1;
//! #     const ABOUT: &'static str = "Writes one document.";
//! #     const EXAMPLES: &'static [Example] = &[];
//! #     fn declare(_: &GreetParams) -> Declaration {
//! #         Declaration::pure(Ports::new().rows_out("rows", RecordKind::Document, "A greeting."))
//! #     }
//! #     fn open(params: &GreetParams, _: &Inputs, _: &Context) -> Result<Kernel, OperatorError> {
//! #         Ok(Kernel::Blocking(Box::new(Greeting(params.word.clone()))))
//! #     }
//! # }
//! # struct Greeting(String);
//! # impl BlockingKernel for Greeting {
//! #     fn run(&self, _: &Inputs, outputs: &mut Outputs<'_>, _: &Context) -> Result<(), OperatorError> {
//! #         let text = self.0.clone();
//! #         outputs.write_rows("rows", &[Document { id: "d".to_owned(), title: None, text, metadata: None }])
//! #     }
//! # }
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path();
//! std::fs::write(folder.join("hello.yaml"), "nodes: {greeting: {op: greet, with: {word: hello}}}")?;
//!
//! let session = Session::open(folder, Registry::new(&[entry::<Greet>()]))?;
//! let pipeline = session.check(folder.join("hello.yaml"), &Overrides::default())?;
//! let survey = session.survey(&pipeline, &RunOptions::default())?;
//! assert!(survey.nodes.values().all(NodeStatus::would_run), "nothing is cached yet");
//!
//! let summary = session.run(&pipeline, RunOptions::default(), Lines(|line: &str| println!("{line}")))?;
//! assert_eq!((summary.finished, summary.exit_code()), (1, 0));
//! assert_eq!(session.rows("greeting")?.rows, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | question | method |
//! |---|---|
//! | Is the pipeline valid? | [`Session::check`]; [`Session::validate`] also checks its tests and returns all findings |
//! | What would run? | [`Session::survey`]; with the calls it would make: [`Session::estimate`] |
//! | Why would this node run? | [`Session::why`] |
//! | Run it | [`Session::run`]; from async code, or to be able to stop: [`Session::prepare`] |
//! | Rows of a node | [`Session::rows`]; of a chosen run: [`StoreView::find`], then [`StoreView::artifact`] |
//! | Earlier runs and their nodes | [`Session::runs`] |
//! | What made a row? Is all as recorded? | [`Session::lineage`] |
//!
//! Beside the names on this page, programs use the modules [`diagnostic`], [`events`], [`lineage`], [`operator`] and
//! [`schedule`]. The others show how the engine works; they may change with any version.
//!
//! # Words
//!
//! - An *artifact* is a table or folder that a node wrote, named by the digest of its content.
//! - A node's *key* is the digest of its *preimage*: operator, params, inputs, sources. Equal keys, equal results.
//! - A *matrix* makes variants of a node; a *loop* repeats nodes in *rounds* and *hands on* the outputs of one round.
//! - *External* nodes call endpoints, which may cost money. Their *rejects* (rows without result) are *dead letters*.
//! - *Frozen* nodes keep their last result, whatever changed. *Released* outputs were deleted to save space; their
//!   records stay.
//! - A node is *held* if it would run but was not chosen. An output is *held back* if it is not delivered: too many
//!   rows were lost before it, or a check failed.

// The order of the modules is the allowed direction: a module uses only what stands above it.
// Findings, and the texts that they point into.
pub mod diagnostic;
// Ids of nodes: a name and coordinates.
mod node_id;
// Errors of operators, and who can mend them.
mod error;
// Calls to the outside: limits, budgets, known answers, secrets.
mod endpoint;
// What the author of an operator sees. It needs no more of the engine, so `spec` may use it.
pub mod operator;
// YAML text to a spec with a span for every value.
pub mod spec;
// Node keys, row keys, call keys: what decides whether a result is cached.
pub mod fingerprint;
// What is due and what waits: the pure core of `schedule`.
pub mod schedule;
// The only code that writes: artifacts, results, cached rows and answers, records of runs.
pub mod store;
// What made an artifact, whether it is still whole, and archives, attestations and OpenLineage events of it.
pub mod lineage;
// Events of a run.
pub mod events;
// A spec bound to operators: typed, checked, in order.
pub mod plan;
// Looks results up, runs kernels, commits.
pub mod execute;
// The entry point to all of this.
mod session;

// The entry point.
pub use session::{
    Audit, AuditOptions, Bin, Choice, ColumnSummary, Common, Direction, ExportOptions, Failure, LineageView, Located,
    Mismatch, Older, Order, PastRun, PinOptions, Pipeline, PipelineTest, PreparedRun, QuestionRounds, Rounds, Rows,
    RunEdge, RunsView, Scorer, Session, Settings, Shown, StorePlace, StoreView, Table, Trace, UnsetSecrets, Verdict,
    Why, WhyOptions, cuda_worker, visible_devices,
};
// Its arguments.
pub use execute::{RunOptions, Stop, WorkerPipes, Workers};
pub use node_id::{NodeId, Round};
pub use operator::Registry;
pub use plan::Selection;
pub use spec::{Overrides, RowLimit};
pub use store::KeepPolicy;
// Its results.
pub use diagnostic::{Diagnostic, SourceMap};
pub use execute::{Basis, Device, Machine, NodeStatus, Survey, Work, devices, unix_time};
// For code that runs programs.
pub use events::{Event, Lines, RejectReason, Reporter, RunSummary};
pub use execute::{GroupGuard, Tail, end_group, program};
pub use fingerprint::{Digest, NodeKey, Reason};
pub use plan::{End, Input, Loop, Node, NodeIndex, Plan};
pub use spec::{
    Cadence, Notify, OnFailure, Receiver as NoteReceiver, Schedule, Scripted, TestCase, Time, closest, suggest,
};
pub use store::{
    ArtifactId, CheckOutcome, Garbage, Label, Lent, LogLock, Mark, NodeOutcome, NodeResult, NodeRun, OutputRecord, Pin,
    RunRecord, ScheduleLease, Schedules, ShownPage, StoreError, Swept, Switch, fresh_folder, lend,
};

/// The names that most programs with operators of their own need: `use searchmill_engine::prelude::*`.
pub mod prelude {
    pub use crate::operator::{
        AsyncMapKernel, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator,
        OperatorError, Outputs, ParamIssue, Ports, Registry, entry,
    };
    pub use crate::{
        Event, Failure, Lines, NodeId, NodeStatus, Overrides, Pipeline, Reporter, RunOptions, RunSummary, Session,
        Stop, Survey,
    };
}

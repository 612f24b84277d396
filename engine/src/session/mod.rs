//! The entry point of the engine: [`Session`] checks, plans, runs and audits pipelines.
//!
//! A session holds the operators, a working folder and a store. The command line, servers and embedding programs use
//! the session and the names at the root of the crate. Beyond these, they use only `diagnostic`, `lineage`, `operator`,
//! `events` and `schedule`: data and pure functions. The session returns plain data; the caller turns the data into
//! text. A [`Failure`] has the exit code.
//!
//! The session opens the store when a call needs it. Calls that only read create nothing. Calls that write create the
//! store.
//!
//! [`Session`] itself checks, predicts and runs pipelines. What a store has is behind three views: [`Session::store`]
//! (`open`: artifacts, pins, labels, schedules), [`Session::runs`] (`history`: runs) and [`Session::lineage`] (`trace`:
//! traces, audits, attestations).
//!
//! `pipeline` reads and binds a file, and reads one with the settings of a command. `options` applies the options of a
//! run to a plan. `preflight` reports what a run lacks before anything is paid for. `run` runs, and uses operators
//! without a run. `survey` answers `plan`, `why` and `status`; `pipeline_test` runs the tests of a pipeline. `find`
//! interprets a word of the command line; `show`, `history`, `trace` and `audit` answer questions about results.
//! `browse` has rows for people to look at. `gc` pins and collects, `archive` exports, imports and attests.

mod failure;
mod open;
mod pipeline;
mod options;
mod preflight;
mod run;
mod survey;
mod pipeline_test;
mod find;
mod show;
mod history;
mod trace;
mod audit;
mod browse;
mod gc;
mod archive;
#[cfg(test)]
mod tests;
mod store_location;

pub use archive::ExportOptions;
pub use audit::{Audit, AuditOptions};
pub use browse::{Bin, Choice, ColumnSummary, Common, Order, QuestionRounds, Rounds, Rows, Scorer, Table};
pub use failure::Failure;
pub use gc::PinOptions;
pub use history::{PastRun, RunEdge, RunsView};
pub use open::{Session, StoreView};
pub use pipeline::{Pipeline, Settings};
pub use pipeline_test::{Mismatch, PipelineTest, Verdict};
pub use preflight::{UnsetSecrets, cuda_worker, visible_devices};
pub use run::PreparedRun;
pub use show::{Located, Older, Shown};
pub use store_location::StorePlace;
pub use survey::{Why, WhyOptions};
pub use trace::{Direction, LineageView, Trace};

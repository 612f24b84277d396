//! The entry point of the engine: [`Session`] checks, plans, runs and audits pipelines.
//!
//! A session holds the operators, a working folder and a store. The command line, servers and embedding programs use
//! the session and the names at the root of the crate. Beyond these, they use only `diagnostic`, `lineage`, `operator`,
//! `report` and `schedule`: data and pure functions. The session returns plain data; the caller turns the data into
//! text. A [`Failure`] has the exit code.
//!
//! The session opens the store when a call needs it. Calls that only read create nothing. Calls that write create the
//! store.
//!
//! `pipeline` reads and binds a file. `settings` reads a file with the settings of a command. `options` applies the
//! options of a run to a plan. `preflight` reports what a run lacks before anything is paid for. `run` runs. `ask`
//! answers `plan`, `why` and `status`. `find` interprets a word of the command line; `show`, `history`, `trace` and
//! `audit` answer questions about results. `browse` has rows for people to look at, `labels` what they say of them. `outside` uses
//! operators without a run. `keep` pins, collects, exports and imports.

mod failure;
mod open;
mod pipeline;
mod settings;
mod options;
mod preflight;
mod run;
mod find;
mod show;
mod keep;
mod labels;
mod trace;
mod audit;
mod browse;
mod history;
#[cfg(test)]
mod tests;
pub(super) mod operators;
pub(super) mod pipeline_test;
pub(super) mod store_place;
pub(super) mod survey;

pub use audit::{Audit, AuditOptions};
pub use browse::{Bin, Choice, ColumnSummary, Common, Order, QuestionRounds, Rounds, Rows, Scorer, Table};
pub use failure::Failure;
pub use history::{PastRun, RunEdge};
pub use open::Session;
pub use pipeline::Pipeline;
pub use pipeline_test::{Mismatch, PipelineTest, Verdict};
pub use preflight::{UnsetSecrets, cuda_worker, visible_devices};
pub use run::PreparedRun;
pub use settings::Settings;
pub use show::{Located, Older, Shown};
pub use store_place::StorePlace;
pub use survey::Why;
pub use trace::{Direction, Trace};

//! Lineage: which results produced an artifact, from what, back to the sources and down to single rows.
//!
//! [`Catalog`] holds every result of a store, [`resolve`] interprets a word of the command line, and [`Closure`] is
//! everything upstream of it. [`archive`] carries an artifact with its lineage to another store, [`attest`] signs its
//! provenance, [`openlineage`] describes a run to other systems. Nothing here runs a node, and only an import writes to
//! the store.

mod ancestry;
pub mod archive;
pub mod attest;
mod audit;
mod catalog;
mod closure;
mod compare;
mod descent;
mod diff;
mod findings;
mod instant;
mod ledger;
mod lookup;
pub mod openlineage;
mod remembered;
mod replaced;
mod target;
mod trace;

pub use ancestry::{Ancestor, Ancestry, ParentLink, Place, ancestry};
pub use audit::{SourceState, source_state, verify};
pub use catalog::{Catalog, Collected, Port};
pub use closure::{Closure, Step, StepInput};
pub use compare::{Difference, first_difference};
pub(crate) use compare::{difference, file_difference, row_difference};
pub use descent::{Descendants, descent};
pub use diff::{Changed, MetricChange, NodeChange, RunDiff, diff_runs};
pub use findings::{Finding, NOT_CHECKED, NodeCheck, Report, Severity, Unchecked};
pub use instant::rfc3339;
pub use ledger::{note_unfinished, verify_ledger};
pub(crate) use lookup::{read_rows, rows_with, texts};
pub use target::{NotFound, Target, came_to_nothing, resolve, run_of};
pub use trace::{Graph, GraphInput, GraphOutput, GraphSource, GraphStep, Roots, downstream, graph, sources, upstream};

//! What happened: which results made an artifact, from what, back to the sources and down to single rows; and whether
//! it is still all there.
//!
//! [`Catalog`] holds every result of a store, [`resolve`] finds what a word on the command line means, [`Closure`] is
//! everything behind it.

mod ancestry;
mod audit;
mod catalog;
mod closure;
mod compare;
mod descent;
mod diff;
mod lookup;
mod target;
mod trace;

pub use ancestry::{Ancestor, Ancestry, ParentLink, Place, ancestry};
pub use audit::{Finding, NodeCheck, Report, Severity, SourceState, source_state, verify};
pub use catalog::{Catalog, Port};
pub use closure::{Closure, Step, StepInput};
pub use compare::{Difference, first_difference};
pub(crate) use compare::{difference, file_difference, row_difference};
pub use descent::{Descendants, descent};
pub use diff::{Changed, MetricChange, NodeChange, RunDiff, diff_runs};
pub(crate) use lookup::{read_rows, rows_with, texts};
pub use target::{NotFound, Target, resolve, run_of};
pub use trace::{Graph, GraphInput, GraphOutput, GraphSource, GraphStep, Roots, downstream, graph, sources, upstream};

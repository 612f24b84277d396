//! What happened: which results made an artifact, from what, back to the sources.
//!
//! [`Catalog`] holds every result of a store, [`resolve`] finds what a word on the command line means, [`Closure`] is
//! everything behind it.

mod catalog;
mod closure;
mod target;
mod trace;

pub use catalog::{Catalog, Port};
pub use closure::{Closure, Step, StepInput};
pub use target::{NotFound, Target, resolve, run_of};
pub use trace::{Graph, GraphInput, GraphOutput, GraphSource, GraphStep, Roots, downstream, graph, sources, upstream};

//! searchmill's engine: YAML to a typed plan to cached execution with lineage. It names no operator.
//!
//! The order of these lines is the allowed direction: a module uses only what stands above it.

pub mod diagnostic;
// One step out of line: `operator` is what authors see, and it needs nothing of the engine.
pub mod operator;
pub mod spec;
pub mod fingerprint;
pub mod schedule;
pub mod store;
pub mod lineage;
pub mod report;
pub mod plan;
pub mod execute;

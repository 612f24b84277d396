//! searchmill's engine: YAML to a typed plan to cached execution with lineage. It names no operator.

pub mod diagnostic;
pub mod operator;
pub mod spec;

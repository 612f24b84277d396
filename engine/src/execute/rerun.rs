//! A recorded node that is computed again, and what came of that.

use std::sync::Arc;

use crate::fingerprint::SeenSources;
use crate::lineage::{Difference, Step};
use crate::operator::{BoundOperator, Context, Inputs};

/// A recorded node, ready to be computed again.
pub(super) struct Rerun<'a> {
    pub(super) step: &'a Step,
    pub(super) operator: BoundOperator,
    pub(super) inputs: Inputs,
    pub(super) context: Context,
    pub(super) main_port: Option<String>,
    pub(super) sources: Arc<SeenSources>,
}

/// What came of one node.
pub(super) enum Outcome {
    /// All is as recorded; how much that was.
    Same(String),
    /// What is not, by output port.
    Differs(Vec<(String, Difference, u64)>),
    /// Nothing was compared, and why.
    NotChecked(String),
}

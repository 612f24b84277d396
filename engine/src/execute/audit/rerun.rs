//! A recorded node to be recomputed, and the outcome.

use std::sync::Arc;

use crate::fingerprint::SeenSources;
use crate::lineage::{Difference, Step};
use crate::operator::{BoundOperator, Context, Inputs};

/// A recorded node, ready to be recomputed.
pub(super) struct Rerun<'a> {
    pub(crate) step: &'a Step,
    pub(crate) operator: BoundOperator,
    pub(crate) inputs: Inputs,
    pub(crate) context: Context,
    pub(crate) main_port: Option<String>,
    pub(crate) sources: Arc<SeenSources>,
}

/// The outcome of checking one node.
pub(crate) enum Outcome {
    /// Everything matches; how much was compared.
    Same(String),
    /// The differences, by output port.
    Differs(Vec<(String, Difference, u64)>),
    /// Nothing was compared, and why.
    NotChecked(String),
}

//! A recorded node to be recomputed, and the outcome.

use crate::execute::kernels::kernel_run::KernelRun;
use crate::lineage::{Difference, Step};
use crate::operator::BoundOperator;

/// A recorded node, ready to be recomputed.
pub(super) struct Rerun<'a> {
    pub(crate) step: &'a Step,
    pub(crate) operator: BoundOperator,
    pub(crate) run: KernelRun,
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

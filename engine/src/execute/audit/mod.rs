//! Looks again at recorded results. `replay` recomputes them in a separate store, `spot_check` checks single rows, and
//! `answers` compares external rows with the cached answers.

pub(super) mod answers;
pub(super) mod spot_check;
pub(super) mod replay;

use super::kernels::kernel_run::KernelRun;
use crate::lineage::{Difference, Step};
use crate::operator::BoundOperator;

/// A recorded node, ready to be recomputed.
struct Rerun<'a> {
    step: &'a Step,
    operator: BoundOperator,
    run: KernelRun,
}

/// The outcome of checking one node.
enum Outcome {
    /// Everything matches; how much was compared.
    Same(String),
    /// The differences, by output port.
    Differs(Vec<(String, Difference, u64)>),
    /// Nothing was compared, and why.
    NotChecked(String),
}

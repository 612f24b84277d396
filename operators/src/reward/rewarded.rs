//! A rollout's reward, and what a rollout needs to have one.

use crate::shared::unfit::Unfit;

/// A reward and the parts whose sum it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewarded {
    /// The sum.
    pub value: f64,
    /// Names and values, in the order in which they are added.
    pub parts: Vec<(String, f64)>,
}

/// Fails unless something of a golden answer is left after normalisation.
pub(super) fn require_answers(golden: &[String], has_text: impl Fn(&str) -> bool) -> Result<(), Unfit> {
    if golden.is_empty() {
        return Err(Unfit::new("there is no golden answer to judge the prediction by"));
    }
    if !golden.iter().any(|answer| has_text(answer)) {
        return Err(Unfit::of_empty_answers(golden));
    }
    Ok(())
}

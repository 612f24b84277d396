//! Held-out examples: some of the questions, with all their examples.

use std::collections::BTreeSet;

use searchmill_models::training::packing::shuffled;

/// Splits off the examples of a share of the questions. Returns the other examples and these.
pub(super) fn split<T>(examples: Vec<T>, question: impl Fn(&T) -> &str, share: f64, seed: u64) -> (Vec<T>, Vec<T>) {
    let questions: BTreeSet<String> = examples.iter().map(|example| question(example).to_owned()).collect();
    let count = (questions.len() as f64 * share).round() as usize;
    // At least one question on each side, where there are two.
    let count = if share > 0.0 { count.max(1).min(questions.len().saturating_sub(1)) } else { 0 };
    let questions: Vec<String> = questions.into_iter().collect();
    // A stream that no epoch uses.
    let order = shuffled(questions.len(), seed, u64::MAX);
    let chosen: BTreeSet<&str> = order.into_iter().take(count).map(|index| questions[index].as_str()).collect();
    examples.into_iter().partition(|example| !chosen.contains(question(example)))
}

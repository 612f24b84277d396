//! Held-out examples: some of the questions, with all their examples.

use std::collections::BTreeSet;

use searchmill_models::training::packing::shuffled;

/// Splits off the examples of a share of the questions. Returns the other examples and these.
pub(super) fn split<T>(examples: Vec<T>, question: impl Fn(&T) -> &str, share: f64, seed: u64) -> (Vec<T>, Vec<T>) {
    let questions: BTreeSet<String> = examples.iter().map(|example| question(example).to_owned()).collect();
    let count = (questions.len() as f64 * share).round() as usize;
    let count = if share > 0.0 { count.max(1).min(questions.len().saturating_sub(1)) } else { 0 };
    // A stream that no epoch uses.
    let chosen: BTreeSet<usize> = shuffled(questions.len(), seed, u64::MAX).into_iter().take(count).collect();
    let numbered = questions.into_iter().enumerate();
    let chosen: BTreeSet<String> =
        numbered.filter(|(place, _)| chosen.contains(place)).map(|(_, question)| question).collect();
    examples.into_iter().partition(|example| !chosen.contains(question(example)))
}

//! Held-out examples: some of the questions, with all their examples.

use std::collections::BTreeSet;

use searchmill_models::training::packing::shuffled;

/// Chooses the questions whose examples are held out.
pub(super) fn held_out_questions(questions: BTreeSet<String>, share: f64, seed: u64) -> BTreeSet<String> {
    let count = (questions.len() as f64 * share).round() as usize;
    let count = if share > 0.0 { count.max(1).min(questions.len().saturating_sub(1)) } else { 0 };
    // A stream that no epoch uses.
    let chosen: BTreeSet<usize> = shuffled(questions.len(), seed, u64::MAX).into_iter().take(count).collect();
    let numbered = questions.into_iter().enumerate();
    numbered.filter(|(place, _)| chosen.contains(place)).map(|(_, question)| question).collect()
}

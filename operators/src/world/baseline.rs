//! What can be scored without reading a document.

use std::collections::BTreeMap;

use super::question::{Draft, QuestionType};

/// Exact match of policies that retrieve nothing, over all questions, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Baselines {
    /// Always the same answer: the one that is right most often.
    pub(crate) constant: f64,
    /// The most frequent answer of the question's type, which is given away.
    pub(crate) type_majority: f64,
    /// As before, but whenever the question offers two alternatives, the first of them.
    pub(crate) first_option: f64,
}

/// How often an answer is right, by answer.
type Counts<'a> = BTreeMap<&'a str, usize>;

fn count<'a>(drafts: impl Iterator<Item = &'a Draft>) -> Counts<'a> {
    let mut counts = Counts::new();
    for answer in drafts.flat_map(|draft| &draft.answers) {
        *counts.entry(answer.as_str()).or_default() += 1;
    }
    counts
}

/// The answer that is right most often, the first of them in alphabetical order.
fn best<'a>(counts: &Counts<'a>) -> Option<(&'a str, usize)> {
    let reversed = counts.iter().rev();
    reversed.max_by_key(|(_, count)| **count).map(|(answer, count)| (*answer, *count))
}

impl Baselines {
    /// The baselines of these questions.
    pub(crate) fn of(drafts: &[Draft]) -> Self {
        let share = |right: usize| right as f64 / drafts.len().max(1) as f64;
        let constant = best(&count(drafts.iter())).map_or(0, |(_, right)| right);
        let (mut majority, mut first) = (0, 0);
        for kind in QuestionType::ALL {
            let of_kind: Vec<_> = drafts.iter().filter(|draft| draft.kind == kind).collect();
            let Some((answer, right)) = best(&count(of_kind.iter().copied())) else { continue };
            majority += right;
            first += of_kind.iter().filter(|draft| guess(draft, answer)).count();
        }
        Self { constant: share(constant), type_majority: share(majority), first_option: share(first) }
    }
}

fn guess(draft: &Draft, otherwise: &str) -> bool {
    let answer = draft.options.first().map_or(otherwise, String::as_str);
    draft.answers.iter().any(|golden| golden == answer)
}

//! Scores without reading a document: `evaluate`'s baselines, and choosing from the alternatives in the question.

use std::collections::BTreeMap;

use searchmill_text::answer_metrics::{AnswerScores, answer_scores};
use searchmill_text::baseline::{Baselines, Gold};
use searchmill_world::Draft;

/// A policy without retrieval, with its mean scores over all questions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unread {
    pub(super) name: &'static str,
    /// Description of its answers.
    pub(super) about: &'static str,
    /// Exact match, from 0 to 1.
    pub(super) em: f64,
    /// Token F1, from 0 to 1.
    pub(super) f1: f64,
}

impl Unread {
    fn new(name: &'static str, about: &'static str, scores: &[AnswerScores]) -> Self {
        let mean = |of: fn(&AnswerScores) -> f64| scores.iter().map(of).sum::<f64>() / scores.len().max(1) as f64;
        Self { name, about, em: mean(|scores| scores.em), f1: mean(|scores| scores.f1) }
    }

    /// Scores the three policies on these questions.
    pub(super) fn all(drafts: &[Draft]) -> [Self; 3] {
        let gold = |draft: &Draft| Gold { answers: draft.answers.clone(), question_type: draft.kind.name().to_owned() };
        let key = |number: usize| format!("{number:07}");
        let golds: BTreeMap<_, _> = drafts.iter().enumerate().map(|(n, draft)| (key(n), gold(draft))).collect();
        let known = Baselines::of(&golds);
        let scores = |which: usize| known.scores.values().map(|both| both[which]).collect::<Vec<_>>();
        let (constant, majority) = (scores(0), scores(1));
        let picked = drafts.iter().zip(&majority).map(|(draft, otherwise)| {
            draft.options.first().map_or(*otherwise, |option| answer_scores(option, &draft.answers))
        });
        let first = picked.collect::<Vec<_>>();
        [
            Self::new("constant", "the best single answer", &constant),
            Self::new("type_majority", "the most frequent answer of each question type", &majority),
            Self::new("first_option", "the same, but the first of two alternatives offered", &first),
        ]
    }
}

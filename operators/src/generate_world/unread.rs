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
        let count = scores.len().max(1) as f64;
        let (em, f1) = (scores.iter().map(|scores| scores.em), scores.iter().map(|scores| scores.f1));
        Self { name, about, em: em.sum::<f64>() / count, f1: f1.sum::<f64>() / count }
    }

    /// Scores the three policies on these questions.
    pub(super) fn all(drafts: &[Draft]) -> [Self; 3] {
        let mut golds = BTreeMap::new();
        for (number, draft) in drafts.iter().enumerate() {
            let gold = Gold { answers: draft.answers.clone(), question_type: draft.kind.name().to_owned() };
            // With zeros, so that the order of the keys is that of the questions.
            golds.insert(format!("{number:07}"), gold);
        }
        let (mut constant, mut majority, mut first) = (Vec::new(), Vec::new(), Vec::new());
        for (draft, scores) in drafts.iter().zip(Baselines::of(&golds).scores.values()) {
            constant.push(scores[0]);
            majority.push(scores[1]);
            first.push(draft.options.first().map_or(scores[1], |option| answer_scores(option, &draft.answers)));
        }
        [
            Self::new("constant", "the best single answer", &constant),
            Self::new("type_majority", "the most frequent answer of each question type", &majority),
            Self::new("first_option", "the same, but the first of two alternatives offered", &first),
        ]
    }
}

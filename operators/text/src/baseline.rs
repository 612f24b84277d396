//! No-retrieval baselines that put a score into perspective. Both use only the golden answers.
//!
//! On the validation part of MultiHop-RAG, the best constant ("Yes") has an F1 of 0.300. The majority answer of each
//! question type has 0.545, above several published agents.

use std::collections::{BTreeMap, BTreeSet};

use crate::answer_metrics::{AnswerScores, answer_scores, score_normalized};
use crate::normalize::normalize_answer;

/// A question's golden answers and type.
#[derive(Clone, Debug, PartialEq)]
pub struct Gold {
    /// Accepted answers; never empty.
    pub answers: Vec<String>,
    /// The question's type (`unknown` if it has none).
    pub question_type: String,
}

/// The two baselines over one set of questions.
#[derive(Clone, Debug, Default)]
pub struct Baselines {
    /// The single answer with the highest mean F1.
    pub constant: String,
    /// The most frequent golden answer of each question type.
    pub majority: BTreeMap<String, String>,
    /// Scores by question id: constant, majority.
    pub scores: BTreeMap<String, [AnswerScores; 2]>,
}

/// Names of the baselines in `metrics` rows, in the order of [`Baselines::scores`].
pub const BASELINES: [&str; 2] = ["best_constant", "majority_by_type"];

/// Limit of distinct golden answers tried as constants, most frequent first.
const CANDIDATES: usize = 2000;

impl Baselines {
    /// Computes the baselines over questions by id.
    pub fn of(questions: &BTreeMap<String, Gold>) -> Self {
        let constant = best_constant(questions);
        let majority = majority_by_type(questions);
        let mut scores = BTreeMap::new();
        for (id, gold) in questions {
            let typed = majority.get(&gold.question_type).map_or("", String::as_str);
            let both = [answer_scores(&constant, &gold.answers), answer_scores(typed, &gold.answers)];
            scores.insert(id.clone(), both);
        }
        Self { constant, majority, scores }
    }
}

/// How many questions accept an answer, and how often each spelling occurs.
#[derive(Default)]
struct Votes {
    count: usize,
    spellings: BTreeMap<String, usize>,
}

impl Votes {
    fn spelling(&self) -> String {
        // Of spellings with equal votes, the first by text.
        let best = self.spellings.iter().max_by(|a, b| a.1.cmp(b.1).then_with(|| b.0.cmp(a.0)));
        best.map(|(text, _)| text.clone()).unwrap_or_default()
    }
}

/// Counts one vote per question for each of its distinct normalised answers.
fn votes<'a>(questions: impl Iterator<Item = &'a Gold>) -> BTreeMap<String, Votes> {
    let mut votes: BTreeMap<String, Votes> = BTreeMap::new();
    for gold in questions {
        let mut voted = BTreeSet::new();
        for answer in &gold.answers {
            let normalized = normalize_answer(answer);
            if voted.insert(normalized.clone()) {
                let entry = votes.entry(normalized).or_default();
                entry.count += 1;
                *entry.spellings.entry(answer.clone()).or_default() += 1;
            }
        }
    }
    votes
}

/// Sorts by votes, highest first; ties by normalised text.
fn ranked(votes: &BTreeMap<String, Votes>) -> Vec<(&String, &Votes)> {
    let mut ranked: Vec<_> = votes.iter().collect();
    ranked.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.cmp(b.0)));
    ranked
}

fn majority_by_type(questions: &BTreeMap<String, Gold>) -> BTreeMap<String, String> {
    let mut types: BTreeMap<&str, Vec<&Gold>> = BTreeMap::new();
    for gold in questions.values() {
        types.entry(&gold.question_type).or_default().push(gold);
    }
    let mut majority = BTreeMap::new();
    for (name, golds) in types {
        if let Some((_, winner)) = ranked(&votes(golds.into_iter())).first() {
            majority.insert(name.to_owned(), winner.spelling());
        }
    }
    majority
}

/// Returns the golden answer with the highest mean F1 over all questions. Ties go to the more frequent answer, then by
/// text.
fn best_constant(questions: &BTreeMap<String, Gold>) -> String {
    let votes = votes(questions.values());
    let sets = AnswerSets::of(questions);
    let mut best: Option<(f64, &Votes)> = None;
    for (normalized, votes) in ranked(&votes).into_iter().take(CANDIDATES) {
        let total = sets.total_f1(normalized);
        // By more than rounding: the more frequent answer comes first.
        if best.is_none_or(|(highest, _)| total > highest + 1e-9) {
            best = Some((total, votes));
        }
    }
    best.map(|(_, votes)| votes.spelling()).unwrap_or_default()
}

/// Distinct sets of normalised golden answers with their number of questions, and the sets in which each token occurs.
/// An answer that shares no token has F1 0, so only sets with a shared token are scored.
struct AnswerSets {
    sets: Vec<(Vec<String>, usize)>,
    postings: BTreeMap<String, Vec<usize>>,
}

impl AnswerSets {
    fn of(questions: &BTreeMap<String, Gold>) -> Self {
        let mut counts: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for gold in questions.values() {
            *counts.entry(gold.answers.iter().map(|answer| normalize_answer(answer)).collect()).or_default() += 1;
        }
        // Many questions share their answers (`yes`): each set is scored once.
        let sets: Vec<_> = counts.into_iter().collect();
        let mut postings: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, (answers, _)) in sets.iter().enumerate() {
            let tokens: BTreeSet<&str> = answers.iter().flat_map(|answer| answer.split_whitespace()).collect();
            for token in tokens {
                postings.entry(token.to_owned()).or_default().push(index);
            }
        }
        Self { sets, postings }
    }

    fn total_f1(&self, normalized: &str) -> f64 {
        let tokens = normalized.split_whitespace();
        let indexes: BTreeSet<usize> = tokens.filter_map(|token| self.postings.get(token)).flatten().copied().collect();
        let mut total = 0.0;
        for index in indexes {
            let (answers, count) = &self.sets[index];
            // As for any question, the best answer counts.
            let f1 = answers.iter().map(|answer| score_normalized(normalized, answer).f1).fold(0.0, f64::max);
            total += f1 * *count as f64;
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn questions(rows: &[(&str, &str)]) -> BTreeMap<String, Gold> {
        let gold = |(answer, kind): &(&str, &str)| Gold {
            answers: answer.split('|').map(str::to_owned).collect(),
            question_type: (*kind).to_owned(),
        };
        rows.iter().enumerate().map(|(i, row)| (format!("{i:03}"), gold(row))).collect()
    }

    fn mean_f1(baselines: &Baselines, which: usize) -> f64 {
        baselines.scores.values().map(|scores| scores[which].f1).sum::<f64>() / baselines.scores.len() as f64
    }

    #[test]
    fn the_constant_maximises_f1_not_frequency() {
        // "Taylor Swift" shares a token with all four; "Taylor" alone is the most frequent.
        let questions =
            questions(&[("Taylor", "x"), ("Taylor", "x"), ("Taylor Swift", "x"), ("Swift", "x"), ("Swift", "x")]);
        let baselines = Baselines::of(&questions);
        assert_eq!(baselines.constant, "Taylor Swift");
        assert!((mean_f1(&baselines, 0) - (1.0 + 4.0 * 2.0 / 3.0) / 5.0).abs() < 1e-12);
    }

    #[test]
    fn majority_counts_each_spelling_once_a_question() {
        let questions =
            questions(&[("Yes", "c"), ("yes", "c"), ("yes.|Yes", "c"), ("no", "c"), ("Ada", "i"), ("Bob", "i")]);
        let baselines = Baselines::of(&questions);
        assert_eq!(baselines.majority["c"], "Yes", "written so most often, ties by text");
        assert_eq!(baselines.majority["i"], "Ada", "ties by text");
        assert_eq!(mean_f1(&baselines, 1), 4.0 / 6.0);
    }

    #[test]
    fn no_questions_no_baselines() {
        let baselines = Baselines::of(&BTreeMap::new());
        assert!(baselines.constant.is_empty() && baselines.majority.is_empty() && baselines.scores.is_empty());
    }

    proptest! {
        #[test]
        fn no_golden_answer_is_a_better_constant(
            rows in proptest::collection::vec(("(yes|no|[ab]( [abc]){0,2})(\\|[abc])?", "[xy]"), 1..25),
        ) {
            let rows: Vec<_> = rows.iter().map(|(answer, kind)| (answer.as_str(), kind.as_str())).collect();
            let questions = questions(&rows);
            let best = mean_f1(&Baselines::of(&questions), 0);
            for answer in questions.values().flat_map(|gold| &gold.answers) {
                let total: f64 = questions.values().map(|gold| answer_scores(answer, &gold.answers).f1).sum();
                prop_assert!(total / questions.len() as f64 <= best + 1e-9, "{}", answer);
            }
        }
    }

    #[test]
    fn the_index_scores_like_the_metric() {
        let questions = questions(&[("red car", "x"), ("blue car|car", "x"), ("yes", "x"), ("", "x"), ("a the", "x")]);
        let sets = AnswerSets::of(&questions);
        for candidate in ["car", "red", "yes", "", "red blue car"] {
            let plain: f64 = questions.values().map(|gold| answer_scores(candidate, &gold.answers).f1).sum();
            assert!((sets.total_f1(&normalize_answer(candidate)) - plain).abs() < 1e-12, "{candidate}");
        }
    }
}

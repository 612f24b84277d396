//! Token precision, recall and F1 of two normalised texts as bags of tokens: the core of every answer F1.

/// Precision, recall and F1 of one prediction against one golden answer, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Shared tokens over the prediction's tokens.
    pub precision: f64,
    /// Shared tokens over the golden answer's tokens.
    pub recall: f64,
}

/// Scores two normalised texts. All scores are 0 if no token is shared, also if both texts are empty.
pub(crate) fn token_scores(prediction: &str, golden: &str) -> TokenScores {
    let (shared, predicted, wanted) = token_overlap(prediction, golden);
    if shared == 0 {
        return TokenScores::default();
    }
    let (precision, recall) = (shared as f64 / predicted as f64, shared as f64 / wanted as f64);
    TokenScores { f1: (2.0 * precision * recall) / (precision + recall), precision, recall }
}

/// Scores two normalised texts; `yes`, `no` and `noanswer` match only themselves (SQuAD, HotpotQA).
pub(crate) fn guarded_token_scores(prediction: &str, golden: &str) -> TokenScores {
    let is_special = [prediction, golden].iter().any(|text| matches!(*text, "yes" | "no" | "noanswer"));
    if is_special && prediction != golden {
        return TokenScores::default();
    }
    token_scores(prediction, golden)
}

/// Returns the scores with the highest F1; the first of equal ones. All are 0 if there are none.
pub(crate) fn best_f1(scores: impl Iterator<Item = TokenScores>) -> TokenScores {
    scores.reduce(|best, next| if next.f1 > best.f1 { next } else { best }).unwrap_or_default()
}

/// Returns the tokens of a normalised text, which single spaces separate.
fn tokens(normalized: &str) -> impl Iterator<Item = &str> {
    normalized.split(' ').filter(|token| !token.is_empty())
}

/// Returns the sizes of the intersection of two token bags, and of both.
fn token_overlap(prediction: &str, golden: &str) -> (usize, usize, usize) {
    let mut wanted: Vec<&str> = tokens(golden).collect();
    let golden = wanted.len();
    let (mut shared, mut seen) = (0, 0);
    // Nearly all answers are short: looking each word up is faster than sorting.
    if golden <= 16 {
        for token in tokens(prediction) {
            seen += 1;
            if let Some(index) = wanted.iter().position(|other| *other == token) {
                wanted.swap_remove(index);
                shared += 1;
            }
        }
        return (shared, seen, golden);
    }
    let mut found: Vec<&str> = tokens(prediction).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    let (mut i, mut j) = (0, 0);
    while i < found.len() && j < wanted.len() {
        match found[i].cmp(wanted[j]) {
            std::cmp::Ordering::Less => i += 1,
            std::cmp::Ordering::Greater => j += 1,
            std::cmp::Ordering::Equal => (i, j, shared) = (i + 1, j + 1, shared + 1),
        }
    }
    (shared, found.len(), golden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_answers_take_the_sorted_path_with_the_same_result() {
        let words: Vec<_> = (0..40).map(|i| format!("w{}", i % 23)).collect();
        let prediction = words[..30].join(" ");
        let golden = words[10..].join(" ");
        let scores = token_scores(&prediction, &golden);
        let expected = naive_shared(&prediction, &golden) as f64 / 30.0;
        assert_eq!((scores.precision, scores.recall), (expected, expected));
    }

    fn naive_shared(left: &str, right: &str) -> usize {
        let mut bag: Vec<_> = right.split(' ').collect();
        let taken = |token: &str, bag: &mut Vec<&str>| {
            bag.iter().position(|other| *other == token).map(|place| bag.remove(place)).is_some()
        };
        left.split(' ').filter(|token| taken(token, &mut bag)).count()
    }

    #[test]
    fn the_first_of_equal_f1_wins() {
        let of = |f1, precision| TokenScores { f1, precision, recall: 0.0 };
        let best = best_f1([of(0.5, 0.1), of(0.5, 0.9), of(0.2, 1.0)].into_iter());
        assert_eq!(best, of(0.5, 0.1));
        assert_eq!(best_f1(std::iter::empty()), TokenScores::default());
    }
}

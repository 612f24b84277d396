//! One response reduced to what the analysis needs.

use searchmill_schemas::Trajectory;
use searchmill_text::environment::without_environment;
use searchmill_text::lexicon::{Lexicon, unify};
use searchmill_text::normalize::normalize_answer;

use super::params::ScoreName;

/// A measured response.
pub(crate) struct Response {
    pub(crate) question_id: String,
    /// Matched phrases, in order.
    pub(crate) hits: Vec<String>,
    /// Completion tokens over all turns; 0 if they were not recorded.
    pub(crate) tokens: i64,
    pub(crate) words: usize,
    /// `None` without golden answers, also if nothing of them is left after normalisation.
    pub(crate) score: Option<f64>,
}

impl Response {
    /// Measures what the model wrote in a trajectory.
    pub(crate) fn of(row: Trajectory, lexicon: &Lexicon, score: ScoreName) -> Self {
        let (mut hits, mut words) = (Vec::new(), 0);
        for message in row.messages.iter().filter(|message| message.is_model()) {
            // Reasoning and text as two texts: no phrase begins in one and ends in the other.
            for text in message.reasoning.as_deref().into_iter().chain([message.content.as_str()]) {
                let unified = unify(&without_environment(text));
                words += unified.split(' ').filter(|word| !word.is_empty()).count();
                hits.extend(lexicon.hits(&unified).map(str::to_owned));
            }
        }
        let scored = row.golden_answers.iter().any(|answer| !normalize_answer(answer).is_empty());
        Self {
            hits,
            tokens: row.completion_tokens,
            words,
            score: scored.then(|| score.of(&row.prediction, &row.golden_answers)),
            question_id: row.question_id,
        }
    }
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::{searched, trajectory};
    use searchmill_schemas::{Message, Role};
    use searchmill_text::lexicon::REFLECTION;

    use super::*;

    fn response(row: Trajectory) -> Response {
        Response::of(row, &Lexicon::new(&REFLECTION.map(str::to_owned)).expect("a lexicon"), ScoreName::Em)
    }

    #[test]
    fn only_what_the_model_wrote_counts() {
        let mut row = searched(trajectory("q", 0, "x", "x"), "d", "Wait, wait, think again");
        row.messages[0].content = "Think again before you answer.".to_owned();
        row.messages[2].content = "Wait, <result>actually, no</result> <information>double-check".to_owned();
        row.messages[2].reasoning = Some("Let me verify".to_owned());
        let found = response(row);
        assert_eq!(found.hits, ["let me verify", "wait,"]);
        assert_eq!((found.words, found.tokens, found.score), (3 + 1 + 1, 20, Some(1.0)));
    }

    #[test]
    fn documents_of_r1_searcher_are_no_text_of_the_model() {
        let mut row = trajectory("q", 0, "x", "y");
        let text = "a <|begin_of_documents|>\n(1)Actually, rethink<|end_of_documents|> on second thought";
        row.messages.push(Message::text(Role::Assistant, text));
        let found = response(row);
        assert_eq!((found.hits.len(), found.words, found.score), (1, 4, Some(0.0)));
    }
}

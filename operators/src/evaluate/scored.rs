//! A trajectory reduced to what the statistics need, so that a million of them fit in memory.

use searchmill_agent::grounding::{gold_documents, grounded, tool_results};
use searchmill_schemas::{Message, Score, Trajectory};
use searchmill_text::answer_metrics::{AnswerScores, answer_scores};

use crate::shared::relation::{Label, UNKNOWN};

/// The column that scores are grouped by unless the params say otherwise.
pub(crate) const QUESTION_TYPE: &str = "question_type";

/// A scored trajectory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: String,
    pub(crate) question_id: String,
    pub(crate) sample_index: i32,
    pub(crate) question_type: String,
    pub(crate) scores: AnswerScores,
    /// Metrics of other families, in the order of their names.
    pub(crate) further: Vec<f64>,
    /// Verdicts on the answer, in the order of their columns.
    pub(crate) verdicts: Vec<Option<bool>>,
    pub(crate) success: bool,
    pub(crate) grounded: bool,
    /// Share of gold documents seen in the observations; `None` without gold documents.
    pub(crate) seen_recall: Option<f64>,
    /// Why the trajectory ended.
    pub(crate) finish_reason: String,
    /// Whether the limit of tokens cut a message of the model.
    pub(crate) is_cut: bool,
    pub(crate) turns: i32,
    pub(crate) tool_calls: i32,
    pub(crate) last_tokens: [i64; 2],
    pub(crate) all_tokens: [i64; 2],
    /// Characters of reasoning over all messages; `None` if no message has reasoning.
    pub(crate) reasoning: Option<usize>,
    /// Values of the columns to group by, in their order.
    pub(crate) groups: Vec<Label>,
    /// Values of the user's measures, in the order of their names.
    pub(crate) own: Vec<Option<f64>>,
}

impl Scored {
    /// Scores a trajectory; an F1 of at least `threshold` is a success.
    pub(crate) fn of(trajectory: &Trajectory, threshold: f64) -> Self {
        let scores = answer_scores(&trajectory.prediction, &trajectory.golden_answers);
        let reasoning = trajectory.messages.iter().filter_map(|message| message.reasoning.as_deref());
        let reasoning: usize = reasoning.map(|text| text.chars().count()).sum();
        Self {
            id: trajectory.id.clone(),
            question_id: trajectory.question_id.clone(),
            sample_index: trajectory.sample_index,
            question_type: type_name(trajectory.question_type.as_deref()),
            scores,
            further: Vec::new(),
            verdicts: Vec::new(),
            success: scores.f1 >= threshold,
            grounded: grounded(trajectory),
            seen_recall: seen_recall(trajectory),
            finish_reason: trajectory.finish_reason.clone(),
            is_cut: trajectory.messages.iter().any(Message::is_cut),
            turns: trajectory.turns,
            tool_calls: trajectory.tool_calls,
            last_tokens: [trajectory.last_prompt_tokens, trajectory.last_completion_tokens],
            all_tokens: [trajectory.prompt_tokens, trajectory.completion_tokens],
            // An empty text of reasoning is none.
            reasoning: (reasoning > 0).then_some(reasoning),
            groups: Vec::new(),
            own: Vec::new(),
        }
    }

    /// Builds the row for `scores`.
    pub(crate) fn row(&self, trajectory: &Trajectory) -> Score {
        Score {
            id: trajectory.id.clone(),
            trajectory_id: trajectory.id.clone(),
            question_id: trajectory.question_id.clone(),
            sample_index: trajectory.sample_index,
            question_type: trajectory.question_type.clone(),
            prediction: trajectory.prediction.clone(),
            golden_answers: trajectory.golden_answers.clone(),
            em: self.scores.em,
            f1: self.scores.f1,
            acc: self.scores.acc,
            precision: self.scores.precision,
            recall: self.scores.recall,
            success: self.success,
            grounded: self.grounded,
        }
    }
}

/// Name of a question type.
pub(crate) fn type_name(question_type: Option<&str>) -> String {
    question_type.filter(|name| !name.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

fn seen_recall(trajectory: &Trajectory) -> Option<f64> {
    let gold = gold_documents(trajectory);
    if gold.is_empty() {
        return None;
    }
    let observations = tool_results(trajectory).flat_map(|message| &message.observations);
    let found: Vec<_> = observations.map(|seen| gold.found_in(&seen.document_id, seen.title.as_deref())).collect();
    // No limit of rank: the model read all observations.
    Some(gold.recall(&found, usize::MAX).recall)
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::{searched, trajectory};
    use searchmill_schemas::Evidence;

    use super::*;

    #[test]
    fn a_trajectory_is_boiled_down() {
        let mut made = searched(trajectory("q", 1, "Ada Lovelace", "Lovelace"), "d1", "about Ada Lovelace");
        made.evidence = ["d1", "d2"].map(|id| Evidence { document_id: Some(id.into()), ..Evidence::default() }).into();
        made.question_type = None;
        made.messages[2].reasoning = Some("schön".into());
        let scored = Scored::of(&made, 0.8);
        assert_eq!((scored.success, scored.grounded, scored.seen_recall), (false, true, Some(0.5)));
        assert_eq!((scored.reasoning, scored.question_type.as_str()), (Some(5), "unknown"));
        assert!(Scored::of(&made, 0.6).success, "F1 is 2/3");
        assert_eq!(scored.row(&made).id, "q@1");
    }

    #[test]
    fn without_gold_documents_or_reasoning_there_is_nothing_to_average() {
        let scored = Scored::of(&trajectory("q", 0, "x", "x"), 0.8);
        assert_eq!((scored.seen_recall, scored.reasoning), (None, None));
    }
}

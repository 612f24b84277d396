//! How rollouts without an answer ended: most often, the server and not the model is the reason.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use searchmill_schemas::{Trajectory, from_batch, text_column};

use super::calls_in_text::holds_call;

/// How a rollout ended without an answer: the name of a figure, and its hint.
type Ending = (&'static str, &'static str);

const CUT: Ending = ("ended_cut", "cut at the limit of tokens; raise `max_tokens`");
const FILTERED: Ending = ("ended_filtered", "filtered by the provider (`finish_reason`: `content_filter`)");
const CALL_IN_TEXT: Ending = (
    "ended_with_call_in_text",
    "a tool call is left in the text; the server's tool parser is missing or is that of another model (vLLM: \
     `--enable-auto-tool-choice --tool-call-parser NAME`, SGLang: `--tool-call-parser NAME`)",
);
const IN_THOUGHTS: Ending = (
    "ended_in_thoughts",
    "an empty message with thoughts (`reasoning_content`); check the server's reasoning parser, or switch off thinking \
     (`extra: {chat_template_kwargs: {enable_thinking: false}}`)",
);
const EMPTY: Ending = ("ended_empty", "an empty message");

const ALL: [Ending; 5] = [CUT, FILTERED, CALL_IN_TEXT, IN_THOUGHTS, EMPTY];

/// Returns the figures of the rollouts of a batch that ended without an answer for one of these reasons.
pub(super) fn figures(batch: &RecordBatch) -> Vec<(&'static str, f64)> {
    // Most rollouts are answered: their messages need not be read.
    if let Ok(ends) = text_column(batch, "finish_reason")
        && ends.iter().flatten().all(|end| end == "answered")
    {
        return Vec::new();
    }
    let rollouts = from_batch::<Trajectory>(batch).unwrap_or_default();
    rollouts.iter().filter_map(ending).map(|(name, _)| (name, 1.0)).collect()
}

fn ending(rollout: &Trajectory) -> Option<Ending> {
    if rollout.finish_reason == "answered" {
        return None;
    }
    let last = rollout.messages.iter().rev().find(|message| message.is_model() && !message.is_aside())?;
    let is_empty = last.content.trim().is_empty() && last.tool_calls.is_empty();
    // First: a cut message may end in half a call, which no parser could have read.
    if last.is_cut() {
        Some(CUT)
    } else if last.finish_reason.as_deref() == Some("content_filter") {
        Some(FILTERED)
    } else if !rollout.is_one_text() && holds_call(last) {
        Some(CALL_IN_TEXT)
    } else if is_empty {
        let thinks = last.reasoning.as_ref().is_some_and(|thoughts| !thoughts.trim().is_empty());
        Some(if thinks { IN_THOUGHTS } else { EMPTY })
    } else {
        None
    }
}

/// Returns a hint for each reason.
pub(super) fn hints(sums: &BTreeMap<&'static str, f64>) -> Vec<String> {
    let mut hints = Vec::new();
    for (name, hint) in ALL {
        if let Some(count) = sums.get(name) {
            let rollouts = if *count == 1.0 { "rollout has" } else { "rollouts have" };
            hints.push(format!("warning: {count} {rollouts} no answer: {hint}"));
        }
    }
    hints
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Message, to_batch};

    use super::*;
    use crate::shared::relation::testing::trajectories;

    fn told(change: impl Fn(&mut Message), reason: &str) -> Vec<String> {
        let mut rows = trajectories(2);
        for row in &mut rows {
            reason.clone_into(&mut row.finish_reason);
            change(row.messages.last_mut().expect("a message"));
        }
        let mut sums = BTreeMap::new();
        for (name, value) in figures(&to_batch(&rows).expect("rows")) {
            *sums.entry(name).or_default() += value;
        }
        hints(&sums)
    }

    #[test]
    fn what_the_server_did_to_an_answer_is_told() {
        let one = |change: &dyn Fn(&mut Message), wanted: &str| {
            let told = told(change, "no_answer");
            assert!(
                told.len() == 1 && told[0].starts_with("warning: 2 rollouts") && told[0].contains(wanted),
                "{told:?}"
            );
        };
        one(&|message| message.finish_reason = Some("length".to_owned()), "raise `max_tokens`");
        one(&|message| message.finish_reason = Some("content_filter".to_owned()), "filtered");
        one(&|message| message.content = "<tool_call>\n{}\n</tool_call>".to_owned(), "--tool-call-parser");
        one(&|message| message.content.clear(), "an empty message");
        let thinks = |message: &mut Message| {
            message.content.clear();
            message.reasoning = Some("<answer>Tael</answer>".to_owned());
        };
        one(&thinks, "reasoning parser");
        assert!(told(|_| (), "no_answer").is_empty(), "the model said something else");
        assert!(told(|message| message.content.clear(), "answered").is_empty());
    }
}

//! `logprob`: computes the log-probability of a text after each rollout, under a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Builder, Float64Array, ListBuilder, RecordBatch, StringArray, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field};
use schemars::JsonSchema;
use searchmill_agent::policy::model::chat_message;
use searchmill_engine::operator::{
    Accept, Arity, Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator, OperatorError,
    ParamIssue, Ports, Repeatability, TreeKind,
};
use searchmill_models::device::{Compute, Precision};
use searchmill_models::inference::{ModelSource, Prompt, Scored, Scorer, parse_tools};
use searchmill_schemas::{Message, RecordKind, Trajectory, from_batch};
use serde::{Deserialize, Serialize};

use super::shared::columns::with_all;
use super::shared::issues::unmet;
use super::shared::unfit::Unfit;

/// Computes the log-probability of a text after a rollout's conversation. By default, the gold answer replaces the
/// model's last turn; likelihood-trained search models use this to rate what was retrieved. Adds the columns
/// `logprob` (natural logarithm, sum over the text's tokens), `logprob_mean` (mean per token), `logprob_tokens` (one
/// per token) and `logprob_text` (the scored text).
pub(crate) struct Logprob;

/// Parameters of `logprob`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct LogprobParams {
    /// A folder, a `.gguf` file, or a Hugging Face id (`Qwen/Qwen3-0.6B`) of a Qwen2, Qwen2.5, Qwen3 or Llama model.
    /// Weights of a `.gguf` file are dequantised to 32-bit numbers. Without it, the model comes from the input
    /// `model`.
    pub(crate) model: Option<String>,
    /// Branch, tag or commit of a Hugging Face model. A commit never changes.
    #[serde(default = "crate::read_model::main_branch")]
    pub(crate) revision: String,
    /// Folder of a PEFT LoRA adapter for the model.
    pub(crate) adapter: Option<String>,
    /// The scored text.
    pub(crate) span: ScoredSpan,
    /// Additional variables of the chat template (`enable_thinking`).
    pub(crate) template_options: BTreeMap<String, serde_json::Value>,
    /// Maximum length of a conversation in tokens; longer ones are rejected (`null`: the model's maximum number of
    /// positions).
    pub(crate) context: Option<usize>,
    /// Computation precision: `f32`, or `bf16` (fastest on a GPU: `resources: {gpus: 1}`).
    pub(crate) dtype: Precision,
}

/// The scored text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ScoredSpan {
    /// The gold answer, between `<answer>` and `</answer>`, instead of the model's last turn. In a rollout that is one
    /// text (protocols such as `search-r1`): instead of the prediction, in the last turn as the model wrote it. In a chat in
    /// turns (`searchlm`): likewise, and instead of the whole last turn if that holds no prediction. If there are several
    /// answers, the one with the highest mean.
    #[default]
    GoldAnswer,
    /// The rollout's prediction, at the same position.
    Prediction,
    /// The text of the model's last turn, unchanged.
    LastTurn,
}

impl LogprobParams {
    fn source(&self) -> ModelSource {
        ModelSource { model: self.model.clone(), revision: self.revision.clone(), adapter: self.adapter.clone() }
    }
}

impl Operator for Logprob {
    type Params = LogprobParams;
    const NAME: &'static str = "logprob";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Computes the log-probability of the gold answer, or another text, after each rollout.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Log-probability of the gold answer after the retrieved documents, under a student",
            yaml: "scored: {op: logprob, from: {trajectories: rollouts, model: student}}",
        },
        Example {
            title: "Log-probability of the rollouts' predictions, under a model from the Hub",
            yaml: "scored: {op: logprob, from: rollouts, with: {model: Qwen/Qwen3-0.6B, span: prediction}}",
        },
    ];

    fn declare(params: &LogprobParams) -> Declaration {
        let arity = if params.model.is_some() { Arity::AnyNumber } else { Arity::Many };
        let about = "The model and optionally an adapter for it, in any order.";
        let ports = Ports::new()
            .rows_in("trajectories", &[RecordKind::Trajectory], "Rollouts.")
            .input_of("model", Accept::Tree(TreeKind::Model), arity, about)
            .rows_out("trajectories", RecordKind::Trajectory, "The rollouts with log-probability columns.");
        let declaration = Declaration::pure(ports).issues(issues(params));
        params.source().declared(declaration.repeatability(Repeatability::Processor).uses_gpus(true))
    }

    fn open(params: &LogprobParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let (folder, adapter) = params.source().folders(&inputs.trees("model"), context)?;
        let compute = Compute::leased(context, params.dtype)?;
        context.progress().log(&format!("device: {}", compute.name()));
        let scorer = Scorer::open(&folder, adapter.as_deref(), params.context, context.memory(), &compute)?;
        Ok(Kernel::Map(Arc::new(LogprobKernel { scorer, params: params.clone() })))
    }
}

fn issues(params: &LogprobParams) -> Vec<ParamIssue> {
    let mut issues = params.source().check("");
    // The model's params are at the top here, not below a param of their own.
    for issue in &mut issues {
        issue.path = issue.path.trim_start_matches('.').to_owned();
    }
    issues.extend(unmet(&[(params.context != Some(0), "context", "must be at least 1")]));
    issues
}

struct LogprobKernel {
    scorer: Scorer,
    params: LogprobParams,
}

impl LogprobKernel {
    /// Renders the messages before the scored text. In a rollout that is one text, those after the opening continue it.
    fn prompt(&self, trajectory: &Trajectory, before: &[Message]) -> Result<Prompt, String> {
        let opening = before.iter().position(|message| !message.is_opening()).unwrap_or(before.len());
        let (asked, text) = before.split_at(if trajectory.is_one_text() { opening } else { before.len() });
        let messages: Vec<_> = asked.iter().map(|message| chat_message(message, false)).collect();
        let tools = parse_tools(&trajectory.tools)?;
        let mut prompt = self.scorer.template().prompt(&messages, &tools, &self.params.template_options)?;
        for message in text {
            // A rollout reads each message as tokens of its own.
            prompt.cut();
            prompt.push(&message.content, self.scorer.control());
        }
        if trajectory.is_one_text() {
            prompt.cut();
        }
        Ok(prompt)
    }

    /// Returns the scored text and its score, or the reason why it has none.
    fn score(&self, trajectory: &Trajectory) -> Result<(String, Scored), String> {
        let messages = trajectory.conversation();
        let last = messages.iter().rposition(Message::is_model).ok_or("the model said nothing")?;
        let prompt = self.prompt(trajectory, &messages[..last])?;
        let said = messages[last].content.as_str();
        let (before, texts, after) = match self.params.span {
            ScoredSpan::LastTurn => ("", vec![said], ""),
            ScoredSpan::Prediction => {
                let (before, after) = frame(trajectory, said)?;
                (before, vec![trajectory.prediction.as_str()], after)
            }
            ScoredSpan::GoldAnswer => {
                let (before, after) = match frame(trajectory, said) {
                    // The answer of a chat in turns is a turn of its own: it takes the place of whatever the model said last.
                    Err(_) if trajectory.is_in_turns() => ("", ""),
                    frame => frame?,
                };
                (before, trajectory.golden_answers.iter().map(String::as_str).collect(), after)
            }
        };
        // Of several golden answers, the likeliest; of equal ones, the first.
        let mut best: Option<(String, Scored)> = None;
        for text in texts {
            let (mut whole, control) = (prompt.clone(), self.scorer.control());
            let start = whole.text.len() + before.len();
            for part in [before, text, after] {
                whole.push(part, control);
            }
            let scored = self.scorer.score(&whole, start..start + text.len())?;
            if best.as_ref().is_none_or(|(_, best)| scored.mean() > best.mean()) {
                best = Some((text.to_owned(), scored));
            }
        }
        best.ok_or_else(|| "there is no golden answer".to_owned())
    }
}

/// What stands around an answer in the model's last turn: the tags alone, or, in a text protocol, all that the model
/// wrote around its prediction.
fn frame<'t>(trajectory: &Trajectory, text: &'t str) -> Result<(&'t str, &'t str), String> {
    if !trajectory.is_of_text_protocol() {
        return Ok(("<answer>", "</answer>"));
    }
    let prediction = trajectory.prediction.as_str();
    let end = text.rfind("</answer>").unwrap_or(text.len());
    // From the end: the model may name its answer while it thinks.
    for (at, _) in text[..end].rmatch_indices(prediction) {
        let (before, after) = (&text[..at], &text[at + prediction.len()..]);
        let beside = [before.chars().next_back(), after.chars().next()];
        // Not a part of a word, and not the name in a closing tag.
        let stands_alone = beside[0] != Some('/') && !beside.into_iter().flatten().any(char::is_alphanumeric);
        if !prediction.is_empty() && stands_alone {
            return Ok((before, after));
        }
    }
    Err("the last turn holds no answer whose place could be taken".to_owned())
}

impl MapKernel for LogprobKernel {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let (mut indices, mut scores) = (Vec::new(), Vec::new());
        for (row, trajectory) in from_batch::<Trajectory>(batch)?.into_iter().enumerate() {
            match self.score(&trajectory) {
                Ok(scored) => {
                    indices.push(row as u32);
                    scores.push(scored);
                }
                Err(message) => output.reject(Unfit::new(message).reject(trajectory.id)),
            }
        }
        let batch = take_record_batch(batch, &UInt32Array::from(indices))?;
        output.push("trajectories", scored_rows(&batch, &scores)?);
        Ok(())
    }
}

/// Adds the score columns to the rows.
fn scored_rows(batch: &RecordBatch, scores: &[(String, Scored)]) -> Result<RecordBatch, OperatorError> {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let mut tokens = ListBuilder::new(Float32Builder::new()).with_field(item);
    for (_, scored) in scores {
        tokens.values().append_slice(&scored.log_probabilities);
        tokens.append(true);
    }
    let sums = Float64Array::from_iter_values(scores.iter().map(|(_, scored)| scored.sum()));
    let means = Float64Array::from_iter_values(scores.iter().map(|(_, scored)| scored.mean()));
    let columns: [(&str, ArrayRef, bool); 4] = [
        ("logprob", Arc::new(sums), false),
        ("logprob_mean", Arc::new(means), false),
        ("logprob_tokens", Arc::new(tokens.finish()), false),
        ("logprob_text", Arc::new(StringArray::from_iter_values(scores.iter().map(|(text, _)| text))), false),
    ];
    with_all(batch, &RecordBatch::try_from_iter_with_nullable(columns)?)
}

#[cfg(test)]
mod tests;

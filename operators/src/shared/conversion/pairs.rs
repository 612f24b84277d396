//! Conversion of pairs of rollouts to preference rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field};
use searchmill_engine::operator::{Inputs, Kernel, MapKernel, MapOutput, OperatorError, Ports};
use searchmill_schemas::{Example, Pair, RecordKind, from_batch, to_batch};
use searchmill_text::json::Json;

use super::carry::{put, side, values, with_extra};
use super::conversation::{Conversation, Message, require_finished};
use super::hermes::Rendered;
use super::kernel::{EXAMPLES, PORT, examples_out, require_turns, with_spans};
use crate::pair::REJECTED;
use crate::shared::columns::with_columns;
use crate::shared::unfit::Unfit;

/// Ports of a converter that also takes pairs.
pub(crate) fn ports() -> Ports {
    let kinds = [RecordKind::Trajectory, RecordKind::Pair];
    examples_out(Ports::new().rows_in(PORT, &kinds, "Rollouts to convert, or pairs of them (`pair`)."))
}

/// Whether pairs are bound to the converter. Fails if they are not, but should be `unpaired`.
pub(crate) fn are_pairs(inputs: &Inputs, unpaired: bool) -> Result<bool, OperatorError> {
    let are_pairs = inputs.rows(PORT)?.kind == RecordKind::Pair;
    if unpaired && !are_pairs {
        return Err(OperatorError::pipeline("`unpaired` is for pairs, but the input has single rollouts")
            .with_help("pair them first, with `pair`"));
    }
    Ok(are_pairs)
}

/// Two conversations with the same tools and the same beginning.
pub(crate) struct Preference {
    pub(crate) chosen: Conversation,
    pub(crate) rejected: Conversation,
    /// Number of messages with which both begin; each goes on with a message of the model.
    shared: usize,
}

impl Preference {
    fn new(pair: &Pair) -> Result<Self, Unfit> {
        let (chosen, rejected) = (Conversation::new(&pair.chosen)?, Conversation::new(&pair.rejected)?);
        if chosen.tools != rejected.tools {
            return Err(Unfit::new("the two rollouts were offered different tools"));
        }
        let (one, other) = (&chosen.messages, &rejected.messages);
        if one == other {
            return Err(Unfit::new("the two conversations are the same"));
        }
        let equal = one.iter().zip(other).take_while(|(one, other)| one == other).count();
        // The prompt ends where both go on with the model, also before equal messages of it.
        for shared in (0..=equal).rev() {
            if let (Some(Message::Assistant(_)), Some(Message::Assistant(_))) = (one.get(shared), other.get(shared)) {
                return Ok(Self { chosen, rejected, shared });
            }
        }
        Err(Unfit::new("the two conversations have different prompts"))
    }

    /// Returns the messages with which both conversations begin.
    pub(crate) fn prompt(&self) -> &[Message] {
        &self.chosen.messages[..self.shared]
    }

    /// Returns the other messages of both conversations, the chosen ones first.
    pub(crate) fn answers(&self) -> [&[Message]; 2] {
        [&self.chosen, &self.rejected].map(|conversation| &conversation.messages[self.shared..])
    }
}

/// A row made from a pair.
pub(crate) struct PairRow {
    pub(crate) row: Json,
    /// The texts of both conversations, the chosen one first, if the row is of both and the format defines them.
    pub(crate) rendered: Option<[Rendered; 2]>,
}

impl From<Json> for PairRow {
    fn from(row: Json) -> Self {
        Self { row, rendered: None }
    }
}

/// Converts a pair to one row, or to a row with a label for each conversation, the chosen one first.
type Convert = Box<dyn Fn(&Preference) -> Result<Vec<PairRow>, Unfit> + Send + Sync>;

/// Returns a kernel that converts pairs to examples in this format, with the columns `carry` in the rows. `unpaired`: an
/// example has the columns of its own rollout; `unfinished`: the chosen rollout may be cut or without an answer.
pub(crate) fn pair_converter(
    format: &'static str,
    carry: &[String],
    unpaired: bool,
    unfinished: bool,
    convert: impl Fn(&Preference) -> Result<Vec<PairRow>, Unfit> + Send + Sync + 'static,
) -> Kernel {
    let (carry, convert) = (carry.to_vec(), Box::new(convert));
    Kernel::Map(Arc::new(PairConverter { format, carry, unpaired, unfinished, convert }))
}

struct PairConverter {
    format: &'static str,
    carry: Vec<String>,
    unpaired: bool,
    unfinished: bool,
    convert: Convert,
}

impl PairConverter {
    fn rows(&self, pair: &Pair) -> Result<Vec<PairRow>, Unfit> {
        // The rejected one is there to show what is worse.
        if !self.unfinished {
            require_finished(&pair.chosen)?;
        }
        let preference = Preference::new(pair)?;
        require_turns(self.format, &preference.chosen)?;
        require_turns(self.format, &preference.rejected)?;
        (self.convert)(&preference)
    }
}

impl MapKernel for PairConverter {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let views = if self.unpaired { vec![side(batch, false)?, side(batch, true)?] } else { vec![batch.clone()] };
        let carried = views.iter().map(|view| values(view, &self.carry)).collect::<Result<Vec<_>, _>>()?;
        let (mut examples, mut origins, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for (place, pair) in from_batch::<Pair>(batch)?.into_iter().enumerate() {
            let rows = match self.rows(&pair) {
                Ok(rows) => rows,
                Err(unfit) => {
                    output.reject(unfit.reject(pair.id));
                    continue;
                }
            };
            for (number, PairRow { mut row, rendered }) in rows.into_iter().enumerate() {
                put(&mut row, &carried[number][place])?;
                origins.push((number, place));
                // 0 for the chosen rollout or the pair, 1 for the rejected one.
                let (id, trajectory) = match number {
                    0 => (pair.id.clone(), &pair.chosen_id),
                    _ => (format!("{}/rejected", pair.id), &pair.rejected_id),
                };
                examples.push(Example {
                    id,
                    trajectory_id: Some(trajectory.clone()),
                    question_id: pair.question_id.clone(),
                    format: self.format.to_owned(),
                    row: row.write(),
                    text: rendered.as_ref().map(|[chosen, _]| chosen.text.clone()),
                });
                texts.push(rendered);
            }
        }
        let made = with_texts(&to_batch(&examples)?, texts)?;
        output.push(EXAMPLES, with_extra(&made, &views, RecordKind::Pair, &origins)?);
        Ok(())
    }
}

/// Adds the texts of both conversations with their spans, if the format defines them: those of the chosen one as those of
/// single rollouts, those of the other one with `rejected_` before their names.
fn with_texts(examples: &RecordBatch, texts: Vec<Option<[Rendered; 2]>>) -> Result<RecordBatch, OperatorError> {
    let Some(texts) = texts.into_iter().collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty()) else {
        return Ok(examples.clone());
    };
    let mut rows = examples.clone();
    let (chosen, rejected): (Vec<Rendered>, Vec<Rendered>) = texts.into_iter().map(|[one, other]| (one, other)).unzip();
    for (prefix, side) in [("", chosen), (REJECTED, rejected)] {
        // The examples have the text of the chosen one already.
        if !prefix.is_empty() {
            let text: ArrayRef = Arc::new(StringArray::from_iter_values(side.iter().map(|rendered| &rendered.text)));
            rows = with_columns(&rows, vec![(Field::new(format!("{prefix}text"), DataType::Utf8, false), text)])?;
        }
        let (loss, content): (Vec<_>, Vec<_>) =
            side.into_iter().map(|rendered| (Some(rendered.loss), Some(rendered.content))).unzip();
        rows = with_spans(&rows, &format!("{prefix}loss_spans"), &loss)?;
        rows = with_spans(&rows, &format!("{prefix}content_spans"), &content)?;
    }
    Ok(rows)
}

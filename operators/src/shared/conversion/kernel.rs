//! Kernel shared by all rollout converters: writes a training example per rollout and rejects unfit rollouts.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::Field;
use searchmill_engine::operator::{Kernel, MapKernel, MapOutput, OperatorError, Ports};
use searchmill_schemas::{Example, RecordKind, Trajectory, from_batch, to_batch};
use searchmill_text::json::Json;

use super::carry;
use super::conversation::{Conversation, require_finished};
use super::hermes::Rendered;
use crate::shared::columns::{lists, with_columns};
use crate::shared::unfit::Unfit;

/// Input port of the rollouts.
pub(crate) const PORT: &str = "trajectories";
/// Output port of the examples.
pub(crate) const EXAMPLES: &str = "examples";

/// An operator that converts rollouts to rows of a chat format, with the param `thinking`, and `unpaired` if it is named.
/// `kernel` opens it.
macro_rules! chat_converter {
    (
        $(#[doc = $doc:literal])+ $operator:ident, $params:ident, $format:literal, $about:literal,
        $ports:ident, $kernel:ident $(, $unpaired:ident)?
    ) => {
        $(#[doc = $doc])+
        pub(crate) struct $operator;

        #[doc = concat!("Parameters of `convert-to-", $format, "`.")]
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, rename_all = "snake_case")]
        pub(crate) struct $params {
            /// Keep the model's reasoning (default: drop it).
            #[serde(default)]
            pub(crate) thinking: bool,
            $(
                /// For pairs: write a row with a label for each rollout, for KTO (default: a row for each pair).
                #[serde(default, skip_serializing_if = "std::ops::Not::not")]
                pub(crate) $unpaired: bool,
            )?
            /// Convert rollouts that were cut or ended without an answer, too (default: reject them).
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub(crate) unfinished: bool,
            /// Columns of the rollouts to write into the rows, for example `[weight]`. The examples have all columns beyond
            /// the kind, but files have the rows alone.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub(crate) carry: Vec<String>,
        }

        impl Operator for $operator {
            type Params = $params;
            const NAME: &'static str = concat!("convert-to-", $format);
            const VERSION: u32 = 4;
            const ABOUT: &'static str = $about;
            const EXAMPLES: &'static [Example] = &[
                Example {
                    title: "Without reasoning",
                    yaml: concat!($format, ": {op: convert-to-", $format, ", from: balanced}"),
                },
                Example {
                    title: "With reasoning",
                    yaml: concat!($format, ": {op: convert-to-", $format, ", from: balanced, with: {thinking: true}}"),
                },
                Example {
                    title: "With the weight of each rollout in its row",
                    yaml: concat!($format, ": {op: convert-to-", $format, ", from: weighted, with: {carry: [weight]}}"),
                },
                $(Example {
                    title: "Pairs as single rows with labels, for KTO",
                    yaml: concat!(
                        "labelled: {op: convert-to-", $format, ", from: pairs, with: {", stringify!($unpaired), ": true}}"
                    ),
                },)?
            ];

            fn declare(params: &$params) -> Declaration {
                $crate::shared::conversion::carry::checked(Declaration::pure($ports()), PORT, &params.carry)
            }

            fn open(params: &$params, inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
                $kernel(params, inputs)
            }
        }
    };
}
pub(crate) use chat_converter;

/// Ports of a converter.
pub(crate) fn ports() -> Ports {
    examples_out(Ports::new().rows_in(PORT, &[RecordKind::Trajectory], "rollouts to convert"))
}

/// Adds the output of a converter.
pub(crate) fn examples_out(ports: Ports) -> Ports {
    let about = "One training example per rollout, then one per aside (`searchlm`'s rankings: `ID/1`, `ID/2`, …).";
    ports.rows_out(EXAMPLES, RecordKind::Example, about)
}

/// Converts one rollout to a training row, and its rendered text if the format defines it.
type Convert = Box<dyn Fn(&Conversation) -> Result<Row, Unfit> + Send + Sync>;

/// A training row, and its rendered text if the format defines it.
type Row = (Json, Option<Rendered>);

/// Returns a kernel that converts rollouts to examples in this format, with the columns `carry` in the rows; `unfinished`:
/// also those that were cut or never answered.
pub(crate) fn converter(
    format: &'static str,
    carry: &[String],
    unfinished: bool,
    convert: impl Fn(&Conversation) -> Result<Row, Unfit> + Send + Sync + 'static,
) -> Kernel {
    Kernel::Map(Arc::new(Converter { format, carry: carry.to_vec(), unfinished, convert: Box::new(convert) }))
}

struct Converter {
    format: &'static str,
    carry: Vec<String>,
    unfinished: bool,
    convert: Convert,
}

/// The format that can leave a part of the model's turn out of the loss.
const WITH_PARTS: &str = "swift";

/// Fails if the format has no place for search results in the model's turn.
pub(crate) fn require_turns(format: &str, conversation: &Conversation) -> Result<(), Unfit> {
    if conversation.is_one_text && format != WITH_PARTS {
        return Err(Unfit::new(
            "the rollout is one text, and this format has no place for search results in the model's turn: a trainer \
             would learn to write them; use `convert-to-swift`",
        ));
    }
    Ok(())
}

impl Converter {
    fn converted(&self, conversation: &Conversation) -> Result<Row, Unfit> {
        require_turns(self.format, conversation)?;
        (self.convert)(conversation)
    }

    /// Converts the conversation of a rollout, then its asides.
    fn rows(&self, trajectory: &Trajectory) -> Result<Vec<Row>, Unfit> {
        if !self.unfinished {
            require_finished(trajectory)?;
        }
        let mut rows = vec![self.converted(&Conversation::new(trajectory)?)?];
        for aside in Conversation::asides(trajectory) {
            rows.push(self.converted(&aside)?);
        }
        Ok(rows)
    }
}

impl MapKernel for Converter {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let (mut examples, mut loss, mut content) = (Vec::new(), Vec::new(), Vec::new());
        let (carried, mut origins) = (carry::values(batch, &self.carry)?, Vec::new());
        for (index, trajectory) in from_batch::<Trajectory>(batch)?.into_iter().enumerate() {
            let rows = match self.rows(&trajectory) {
                Ok(rows) => rows,
                Err(unfit) => {
                    output.reject(unfit.reject(trajectory.id));
                    continue;
                }
            };
            for (number, (mut row, rendered)) in rows.into_iter().enumerate() {
                carry::put(&mut row, &carried[index])?;
                origins.push((0, index));
                let (text, spans) = rendered.map(|rendered| (rendered.text, (rendered.loss, rendered.content))).unzip();
                let (learnt, said) = spans.unzip();
                let id = &trajectory.id;
                examples.push(Example {
                    // The conversation has the id of its rollout, so that both can be joined.
                    id: if number == 0 { id.clone() } else { format!("{id}/{number}") },
                    trajectory_id: Some(id.clone()),
                    question_id: trajectory.question_id.clone(),
                    format: self.format.to_owned(),
                    row: row.write(),
                    text,
                });
                loss.push(learnt);
                content.push(said);
            }
        }
        let mut rows = to_batch(&examples)?;
        // Only formats that render a text have spans.
        if loss.iter().any(Option::is_some) {
            rows = with_spans(&rows, "loss_spans", &loss)?;
            rows = with_spans(&rows, "content_spans", &content)?;
        }
        let views = std::slice::from_ref(batch);
        output.push(EXAMPLES, carry::with_extra(&rows, views, RecordKind::Trajectory, &origins)?);
        Ok(())
    }
}

/// Adds a column of byte ranges of `text`: `loss_spans` are trained on; in `content_spans`, control tokens are plain
/// text.
pub(super) fn with_spans(
    batch: &RecordBatch,
    name: &str,
    spans: &[Option<Vec<Range<usize>>>],
) -> Result<RecordBatch, OperatorError> {
    let (mut starts, mut ends, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
    for ranges in spans {
        let ranges = ranges.as_deref().unwrap_or_default();
        lengths.push(ranges.len());
        for range in ranges {
            starts.push(range.start as i64);
            ends.push(range.end as i64);
        }
    }
    let (starts, ends): (ArrayRef, ArrayRef) = (Arc::new(Int64Array::from(starts)), Arc::new(Int64Array::from(ends)));
    let items = RecordBatch::try_from_iter_with_nullable([("start", starts, false), ("end", ends, false)])?;
    let spans = lists(items, lengths);
    with_columns(batch, vec![(Field::new(name, spans.data_type().clone(), false), spans)])
}

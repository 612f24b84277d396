//! Kernel shared by all rollout converters: writes a training example per rollout and rejects unfit rollouts.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Builder, ListBuilder, RecordBatch, StructBuilder};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use searchmill_engine::operator::{FailureKind, Kernel, MapKernel, MapOutput, OperatorError, Ports};
use searchmill_schemas::{Example, RecordKind, Reject, Trajectory, from_batch, to_batch};
use searchmill_text::json::Json;

use super::conversation::{Conversation, Unfit};
use super::hermes::Rendered;

/// Output port of the examples.
const EXAMPLES: &str = "examples";

/// Ports of a converter.
pub(crate) fn ports() -> Ports {
    Ports::new().rows_in("trajectories", &[RecordKind::Trajectory], "rollouts to convert").rows_out(
        EXAMPLES,
        RecordKind::Example,
        "one training example per rollout",
    )
}

/// A training row, and its rendered text if the format defines it.
pub(crate) struct Converted {
    pub(crate) row: Json,
    pub(crate) rendered: Option<Rendered>,
}

/// Converts one rollout.
pub(crate) type Convert = Box<dyn Fn(&Conversation) -> Result<Converted, Unfit> + Send + Sync>;

/// Returns a kernel that converts rollouts to examples in this format.
pub(crate) fn converter(format: &'static str, convert: Convert) -> Kernel {
    Kernel::Map(Arc::new(Converter { format, convert }))
}

struct Converter {
    format: &'static str,
    convert: Convert,
}

impl MapKernel for Converter {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let mut examples = Vec::new();
        let (mut loss, mut content) = (Vec::new(), Vec::new());
        for trajectory in from_batch::<Trajectory>(batch)? {
            match Conversation::new(&trajectory).and_then(|conversation| (self.convert)(&conversation)) {
                Ok(converted) => {
                    let spans = converted.rendered.map(|rendered| (rendered.text, (rendered.loss, rendered.content)));
                    let (text, spans) = spans.unzip();
                    let (learnt, said) = spans.unzip();
                    examples.push(self.example(&trajectory, converted.row.write(), text));
                    loss.push(learnt);
                    content.push(said);
                }
                Err(unfit) => output.reject(reject(trajectory.id, unfit)),
            }
        }
        let mut batch = to_batch(&examples)?;
        if loss.iter().any(Option::is_some) {
            batch = with_spans(&batch, "loss_spans", &loss)?;
            batch = with_spans(&batch, "content_spans", &content)?;
        }
        output.push(EXAMPLES, batch);
        Ok(())
    }
}

impl Converter {
    fn example(&self, trajectory: &Trajectory, row: String, text: Option<String>) -> Example {
        Example {
            id: trajectory.id.clone(),
            trajectory_id: Some(trajectory.id.clone()),
            question_id: trajectory.question_id.clone(),
            format: self.format.to_owned(),
            row,
            text,
        }
    }
}

fn reject(id: String, unfit: Unfit) -> Reject {
    Reject { id, kind: FailureKind::Data.name().to_owned(), message: unfit.message, attempts: 1, detail: unfit.detail }
}

/// Adds a column of byte ranges of `text`: `loss_spans` are trained on; in `content_spans`, control tokens are plain
/// text.
fn with_spans(
    batch: &RecordBatch,
    name: &str,
    spans: &[Option<Vec<std::ops::Range<usize>>>],
) -> Result<RecordBatch, OperatorError> {
    let ends =
        Fields::from(vec![Field::new("start", DataType::Int64, false), Field::new("end", DataType::Int64, false)]);
    let item = Arc::new(Field::new("item", DataType::Struct(ends.clone()), false));
    let mut lists = ListBuilder::new(StructBuilder::from_fields(ends, 0)).with_field(Arc::clone(&item));
    for ranges in spans {
        for span in ranges.iter().flatten() {
            let entry = lists.values();
            for (place, end) in [span.start, span.end].into_iter().enumerate() {
                if let Some(builder) = entry.field_builder::<Int64Builder>(place) {
                    builder.append_value(end as i64);
                }
            }
            entry.append(true);
        }
        lists.append(true);
    }
    let mut fields = batch.schema().fields().to_vec();
    fields.push(Arc::new(Field::new(name, DataType::List(item), false)));
    let mut columns = batch.columns().to_vec();
    columns.push(Arc::new(lists.finish()) as ArrayRef);
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

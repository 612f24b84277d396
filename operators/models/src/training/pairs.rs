//! Pairs of rollouts as training examples: recorded tokens, or rendered text.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use rayon::prelude::*;
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{RecordKind, RecordedTokens, Reject, text_column};

use super::example::{Example, Paired, Reader, Unfit, reject};
use super::recorded::Recording;

/// Begins the names of columns of the worse rollout of a pair.
pub const REJECTED: &str = "rejected_";

/// Reads pairs.
pub struct PairReader<'a> {
    /// Reads rendered text.
    pub reader: Reader<'a>,
    /// Reads recorded tokens.
    pub recording: Recording,
}

/// The sequences of a pair: of its better rollout, then of the other one.
pub type Pair = Vec<Example>;

/// Pairs, and the rows that cannot be trained on.
#[derive(Default)]
pub struct ReadPairs {
    pub pairs: Vec<Pair>,
    pub rejects: Vec<Reject>,
}

/// The examples of one side of a pair.
type SideOf = Result<Vec<Example>, Unfit>;

impl PairReader<'_> {
    /// Reads all rows, in order: pairs with recorded tokens, or converted pairs with rendered text.
    ///
    /// # Errors
    /// If the rows have neither, or tokens that the model does not have.
    pub fn read(&self, rows: &RowsInput) -> Result<ReadPairs, OperatorError> {
        let mut read = ReadPairs::default();
        for batch in rows.batches() {
            let batch = batch?;
            let is_recorded = rows.kind == RecordKind::Pair;
            let [chosen, rejected] = if is_recorded { self.recorded(&batch)? } else { self.rendered(&batch)? };
            let (ids, questions) = (text_column(&batch, "id")?, text_column(&batch, "question_id")?);
            for (row, (chosen, rejected)) in chosen.into_iter().zip(rejected).enumerate() {
                let (id, question) = (ids.value(row), questions.value(row));
                // A pair without one of its sides compares nothing.
                let (side, unfit) = match (chosen, rejected) {
                    (Ok(chosen), Ok(rejected)) => {
                        let mut pair = Pair::new();
                        pair.extend(chosen.into_iter().map(|example| side(example, id, question, true)));
                        pair.extend(rejected.into_iter().map(|example| side(example, id, question, false)));
                        read.pairs.push(pair);
                        continue;
                    }
                    (Err(unfit), _) => ("chosen", unfit),
                    (Ok(_), Err(unfit)) => ("rejected", unfit),
                };
                match unfit {
                    Unfit::Row(message) => read.rejects.push(reject(id, format!("the {side} rollout: {message}"))),
                    Unfit::Vocabulary(error) => return Err(error),
                }
            }
        }
        Ok(read)
    }

    fn rendered(&self, batch: &RecordBatch) -> Result<[Vec<SideOf>; 2], OperatorError> {
        if batch.column_by_name("rejected_text").is_none() {
            let message = "the examples have no `rejected_text`: they are single rollouts, or of another converter";
            let help = "pair rollouts with `pair`, and convert the pairs with `convert-to-swift`";
            return Err(OperatorError::data(message).with_help(help));
        }
        // Tokenised in parallel; the order of the rows stays.
        let (chosen, rejected) = (self.reader.rows(batch, "")?, self.reader.rows(batch, REJECTED)?);
        Ok([chosen, rejected].map(|rows| rows.par_iter().map(|row| Ok(vec![self.reader.example(row)?])).collect()))
    }

    fn recorded(&self, batch: &RecordBatch) -> Result<[Vec<SideOf>; 2], OperatorError> {
        Ok([self.recorded_side(batch)?, self.recorded_side(&rejected(batch)?)?])
    }

    fn recorded_side(&self, batch: &RecordBatch) -> Result<Vec<SideOf>, OperatorError> {
        let Some(recorded) = RecordedTokens::from_batch(batch)? else {
            let help = "write `record: tokens` in the node `rollout`, or convert the pairs with `convert-to-swift` \
                        first";
            return Err(OperatorError::data("the pairs have no recorded tokens").with_help(help));
        };
        let mut sides = Vec::with_capacity(recorded.len());
        for recorded in &recorded {
            let sequences = self.recording.sequences(recorded);
            sides.push(sequences.map(|all| all.into_iter().map(|sequence| sequence.example).collect()));
        }
        Ok(sides)
    }
}

/// Returns the columns of the worse rollouts under the names of the better ones.
fn rejected(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let schema = batch.schema();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if let Some(name) = field.name().strip_prefix(REJECTED) {
            fields.push(field.as_ref().clone().with_name(name));
            columns.push(Arc::clone(column));
        }
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Makes an example a side of a pair, which [`numbered`] gives its number.
fn side(example: Example, id: &str, question: &str, chosen: bool) -> Example {
    let paired = Some(Paired { pair: 0, chosen, reference: 0.0 });
    Example { id: id.to_owned(), question: question.to_owned(), paired, ..example }
}

/// Numbers the pairs. Returns their examples, and which of them are those of each pair.
pub fn numbered(pairs: Vec<Pair>) -> (Vec<Example>, Vec<Range<usize>>) {
    let (mut examples, mut units) = (Vec::new(), Vec::new());
    for (number, mut pair) in pairs.into_iter().enumerate() {
        for paired in pair.iter_mut().filter_map(|example| example.paired.as_mut()) {
            paired.pair = number;
        }
        units.push(examples.len()..examples.len() + pair.len());
        examples.append(&mut pair);
    }
    (examples, units)
}

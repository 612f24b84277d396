//! Pairs of rollouts as training examples: recorded tokens, or rendered text.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
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
            let sides = if rows.kind == RecordKind::Pair { self.recorded(&batch)? } else { self.rendered(&batch)? };
            let (ids, questions) = (text_column(&batch, "id")?, text_column(&batch, "question_id")?);
            let [chosen, rejected] = sides;
            for (row, (chosen, rejected)) in chosen.into_iter().zip(rejected).enumerate() {
                let side = |name: &str, made: SideOf, chosen: bool| match made {
                    Ok(examples) => Ok(examples.into_iter().map(|example| (example, chosen)).collect::<Vec<_>>()),
                    Err(Unfit::Row(message)) => Err(Unfit::Row(format!("the {name} rollout: {message}"))),
                    Err(other) => Err(other),
                };
                let both = side("chosen", chosen, true);
                let both = both.and_then(|chosen| Ok([chosen, side("rejected", rejected, false)?].concat()));
                let (id, question) = (ids.value(row), questions.value(row));
                match both {
                    Ok(sequences) => read.pairs.push(pair(id, question, sequences)),
                    Err(Unfit::Row(message)) => read.rejects.push(reject(id, message)),
                    Err(Unfit::Vocabulary(error)) => return Err(error),
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
        let side = |prefix: &str| -> Result<Vec<SideOf>, OperatorError> {
            let rows = self.reader.rows(batch, prefix)?;
            Ok(rows.par_iter().map(|row| Ok(vec![self.reader.example(row)?])).collect())
        };
        Ok([side("")?, side(REJECTED)?])
    }

    fn recorded(&self, batch: &RecordBatch) -> Result<[Vec<SideOf>; 2], OperatorError> {
        let side = |is_rejected: bool| -> Result<Vec<SideOf>, OperatorError> {
            let unrecorded = || {
                let help = "write `record: tokens` in the node `rollout`, or convert the pairs with `convert-to-swift` \
                            first";
                OperatorError::data("the pairs have no recorded tokens").with_help(help)
            };
            let recorded = if is_rejected {
                RecordedTokens::from_batch(&rejected(batch)?)
            } else {
                RecordedTokens::from_batch(batch)
            };
            let sequences = |recorded: &RecordedTokens| {
                let sequences = self.recording.sequences(recorded)?;
                Ok(sequences.into_iter().map(|sequence| sequence.example).collect())
            };
            Ok(recorded?.ok_or_else(unrecorded)?.iter().map(sequences).collect())
        };
        Ok([side(false)?, side(true)?])
    }
}

/// Returns the columns of the worse rollouts under the names of the better ones.
fn rejected(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let schema = batch.schema();
    let of_rejected = |(place, field): (usize, &Arc<Field>)| {
        let name = field.name().strip_prefix(REJECTED)?;
        Some((field.as_ref().clone().with_name(name), Arc::clone(batch.column(place))))
    };
    let (fields, columns): (Vec<Field>, Vec<_>) = schema.fields().iter().enumerate().filter_map(of_rejected).unzip();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn pair(id: &str, question: &str, sequences: Vec<(Example, bool)>) -> Pair {
    let named = |(example, chosen)| Example {
        id: id.to_owned(),
        question: question.to_owned(),
        paired: Some(Paired { pair: 0, chosen, reference: 0.0 }),
        ..example
    };
    sequences.into_iter().map(named).collect()
}

/// Numbers the pairs. Returns their examples, and which of them are those of each pair.
pub fn numbered(pairs: Vec<Pair>) -> (Vec<Example>, Vec<Range<usize>>) {
    let (mut examples, mut units) = (Vec::new(), Vec::new());
    for (number, mut pair) in pairs.into_iter().enumerate() {
        pair.iter_mut().filter_map(|example| example.paired.as_mut()).for_each(|paired| paired.pair = number);
        units.push(examples.len()..examples.len() + pair.len());
        examples.append(&mut pair);
    }
    (examples, units)
}

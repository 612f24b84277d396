//! Rollouts with advantages as training examples.

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, SchemaRef};
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{RecordedTokens, text_column};

use super::example::{Example, Read, Unfit};
use super::recorded::{Recording, Sequence};

/// The column of the advantage of each rollout.
pub const ADVANTAGE: &str = "advantage";

/// The column of the advantages of the tokens that the model sampled in each rollout, in the order of the record.
pub const TOKEN_ADVANTAGES: &str = "token_advantages";

/// Reads rollouts with recorded tokens and advantages.
pub struct RolloutReader<'a> {
    pub recording: Recording,
    /// The column of advantages: a number for each rollout, or a list of numbers, one for each token that was sampled.
    /// `None`: [`TOKEN_ADVANTAGES`] if it is there, else [`ADVANTAGE`].
    pub advantage: Option<&'a str>,
}

impl RolloutReader<'_> {
    /// Reads all rows, in order. A rollout is one example, or one for each branch of its record.
    ///
    /// # Errors
    /// If the rows have no recorded tokens or no advantages, or tokens that the model does not have.
    pub fn read(&self, rows: &RowsInput) -> Result<Read, OperatorError> {
        let (mut read, mut rollout) = (Read::default(), 0);
        for batch in rows.batches() {
            let batch = batch?;
            let (ids, questions) = (text_column(&batch, "id")?, text_column(&batch, "question_id")?);
            let (name, advantages) = advantages(self.advantage, &batch)?;
            let recorded = RecordedTokens::from_batch(&batch)?.ok_or_else(unrecorded)?;
            for (row, recorded) in recorded.iter().enumerate() {
                let mut examples = match advantages.at(row) {
                    Some(advantages) => self.sequences(recorded, name, &advantages),
                    None => Err(Unfit::Row(format!("`{name}` is null or no finite number"))),
                };
                for example in examples.iter_mut().flatten() {
                    ids.value(row).clone_into(&mut example.id);
                    questions.value(row).clone_into(&mut example.question);
                    if let Some(sampled) = &mut example.sampled {
                        sampled.rollout = rollout;
                    }
                }
                read.add(ids.value(row), examples)?;
                // Also after a reject: the number of a rollout is that of its row.
                rollout += 1;
            }
        }
        Ok(read)
    }

    /// Returns the sequences of a rollout in which the model sampled tokens.
    fn sequences(&self, recorded: &RecordedTokens, name: &str, advantages: &OfRollout) -> Result<Vec<Example>, Unfit> {
        let sampled: usize = recorded.tokens.iter().filter(|span| span.sampled).map(|span| span.ids.len()).sum();
        // A list of another length belongs to another record.
        if let Some(count) = advantages.count().filter(|count| *count != sampled) {
            return Err(Unfit::Row(format!("`{name}` has {count} numbers, but the model sampled {sampled} tokens")));
        }
        let sequences = self.recording.sampled(recorded)?.into_iter();
        Ok(sequences.map(|sequence| advantages.credited(sequence)).collect())
    }
}

/// Checks that rollouts with these columns have advantages; `column` is that of [`RolloutReader`].
///
/// # Errors
/// If there is no such column of numbers.
pub fn check_advantages(column: Option<&str>, schema: &SchemaRef) -> Result<(), OperatorError> {
    advantages(column, &RecordBatch::new_empty(SchemaRef::clone(schema))).map(drop)
}

/// Returns the advantages, and the name of their column.
fn advantages<'a>(column: Option<&'a str>, batch: &RecordBatch) -> Result<(&'a str, Advantages), OperatorError> {
    // Those of tokens count: `advantage` is then only their mean.
    let has_those_of_tokens = batch.column_by_name(TOKEN_ADVANTAGES).is_some();
    let name = column.unwrap_or(if has_those_of_tokens { TOKEN_ADVANTAGES } else { ADVANTAGE });
    if let Some(column) = batch.column_by_name(name)
        && let Some(advantages) = Advantages::of(column)?
    {
        return Ok((name, advantages));
    }
    Err(OperatorError::data(format!("the rollouts have no numbers in a column `{name}`"))
        .with_help("add the node `advantage` before this one, or name the column in `advantage_column`"))
}

/// Advantages of a batch.
enum Advantages {
    OfRollouts(Float64Array),
    OfTokens(ListArray),
}

/// Advantages of a rollout.
enum OfRollout {
    /// The same for all tokens.
    All(f32),
    /// One for each sampled token.
    Each(Vec<f32>),
}

impl Advantages {
    /// Returns `None` if the column holds no numbers.
    fn of(column: &ArrayRef) -> Result<Option<Self>, OperatorError> {
        Ok(match column.data_type() {
            kind if kind.is_numeric() => {
                Some(Self::OfRollouts(cast(column, &DataType::Float64)?.as_primitive::<Float64Type>().clone()))
            }
            DataType::List(item) | DataType::LargeList(item) if item.data_type().is_numeric() => {
                let wanted = DataType::List(Field::new("item", DataType::Float64, true).into());
                Some(Self::OfTokens(cast(column, &wanted)?.as_list::<i32>().clone()))
            }
            _ => None,
        })
    }

    /// Returns the advantages of a row if they are finite.
    fn at(&self, row: usize) -> Option<OfRollout> {
        match self {
            Self::OfRollouts(all) if all.is_valid(row) => Some(OfRollout::All(finite(all.value(row))?)),
            Self::OfTokens(all) if all.is_valid(row) => {
                let mut numbers = Vec::new();
                for number in all.value(row).as_primitive::<Float64Type>() {
                    numbers.push(finite(number?)?);
                }
                Some(OfRollout::Each(numbers))
            }
            Self::OfRollouts(_) | Self::OfTokens(_) => None,
        }
    }
}

fn finite(number: f64) -> Option<f32> {
    if number.is_finite() { Some(number as f32) } else { None }
}

impl OfRollout {
    fn count(&self) -> Option<usize> {
        match self {
            Self::All(_) => None,
            Self::Each(all) => Some(all.len()),
        }
    }

    /// Returns the example of a sequence with the advantages of its tokens.
    fn credited(&self, sequence: Sequence) -> Example {
        let mut example = sequence.example;
        let mut places = sequence.places.into_iter();
        let Some(sampled) = &mut example.sampled else { return example };
        for (advantage, learnt) in sampled.advantages.iter_mut().zip(&example.learnt) {
            if !learnt {
                continue;
            }
            // A list counts the sampled tokens of the whole rollout: a branch has only some of them.
            let Some(place) = places.next() else { break };
            *advantage = match self {
                Self::All(one) => *one,
                Self::Each(all) => all[place],
            };
        }
        example
    }
}

fn unrecorded() -> OperatorError {
    OperatorError::data("the rollouts have no recorded tokens")
        .with_help("write `record: tokens` in the node `rollout`: text that is tokenised again gives other tokens")
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::sampled_from_all;
    use searchmill_schemas::TokenSpan;

    use super::*;

    fn recorded() -> RecordedTokens {
        let span = |branch, sampled, ids: &[i32]| TokenSpan {
            message: 0,
            branch,
            sampled,
            ids: ids.to_vec(),
            logprobs: sampled.then(|| vec![-0.5; ids.len()]),
        };
        let tokens = vec![
            span(0, false, &[1, 2]),
            span(0, true, &[3]),
            span(1, false, &[1]),
            span(1, true, &[4, 5]),
            span(0, false, &[6]),
            span(0, true, &[7]),
        ];
        RecordedTokens { tokens, sampling: sampled_from_all() }
    }

    fn reader() -> RolloutReader<'static> {
        RolloutReader { recording: Recording { vocabulary: 50, max_length: 8 }, advantage: None }
    }

    #[test]
    fn each_token_has_its_own_advantage_or_that_of_the_rollout() {
        let of = |advantages: &OfRollout| -> Vec<Vec<f32>> {
            let made = reader().sequences(&recorded(), "a", advantages).expect("examples");
            made.into_iter().map(|example| example.sampled.expect("sampled").advantages).collect()
        };
        let all = [vec![0.0, 0.0, 0.5, 0.0, 0.5], vec![0.0, 0.5, 0.5]];
        assert_eq!(of(&OfRollout::All(0.5)), all);
        let each = [vec![0.0, 0.0, 1.0, 0.0, 4.0], vec![0.0, 2.0, 3.0]];
        assert_eq!(of(&OfRollout::Each(vec![1.0, 2.0, 3.0, 4.0])), each);
        match reader().sequences(&recorded(), "a", &OfRollout::Each(vec![1.0])) {
            Err(Unfit::Row(message)) => assert_eq!(message, "`a` has 1 numbers, but the model sampled 4 tokens"),
            _ => panic!("it cannot be trained on"),
        }
    }

    #[test]
    fn columns_hold_numbers_or_lists_of_them() {
        let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([
            Some(vec![Some(1.0), Some(f64::NAN)]),
            Some(vec![Some(1.0), Some(2.0)]),
            None,
            Some(vec![None]),
        ]);
        let lists: ArrayRef = std::sync::Arc::new(lists);
        let lists = Advantages::of(&lists).expect("reads").expect("numbers");
        let known: Vec<Option<usize>> = (0..4).map(|row| lists.at(row).and_then(|found| found.count())).collect();
        assert_eq!(known, [None, Some(2), None, None]);
        let numbers: ArrayRef = std::sync::Arc::new(Float64Array::from(vec![Some(0.5), None, Some(f64::INFINITY)]));
        let numbers = Advantages::of(&numbers).expect("reads").expect("numbers");
        assert_eq!((0..3).map(|row| numbers.at(row).is_some()).collect::<Vec<_>>(), [true, false, false]);
        let texts: ArrayRef = std::sync::Arc::new(arrow::array::StringArray::from(vec!["1"]));
        assert!(Advantages::of(&texts).expect("reads").is_none());
    }
}

//! Recorded rollouts as training examples: each sequence that the model saw, with the tokens that it sampled.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::{FailureKind, OperatorError, RowsInput};
use searchmill_schemas::{RecordedTokens, Reject, TokenSpan, text_column};

use super::example::{Example, Read, Sampled};

/// Reads rollouts with recorded tokens and advantages.
pub struct RolloutReader<'a> {
    /// Size of the model's vocabulary.
    pub vocabulary: usize,
    /// Longer sequences cannot be trained on.
    pub max_length: usize,
    /// The column of advantages.
    pub advantage: &'a str,
}

impl RolloutReader<'_> {
    /// Reads all rows, in order. A rollout is one example, or one for each branch of its record.
    ///
    /// # Errors
    /// If the rows have no recorded tokens or no advantages, or tokens that the model does not have.
    pub fn read(&self, rows: &RowsInput) -> Result<Read, OperatorError> {
        let mut read = Read::default();
        for batch in rows.batches() {
            let batch = batch?;
            let (ids, questions) = (text_column(&batch, "id")?, text_column(&batch, "question_id")?);
            let advantages = self.advantages(&batch)?;
            let recorded = RecordedTokens::from_batch(&batch)?.ok_or_else(unrecorded)?;
            for (row, recorded) in recorded.iter().enumerate() {
                let (id, advantage) = (ids.value(row), advantages.is_valid(row).then(|| advantages.value(row)));
                match self.sequences(recorded, advantage)? {
                    Ok(sequences) => read.examples.extend(sequences.into_iter().map(|example| Example {
                        id: id.to_owned(),
                        question: questions.value(row).to_owned(),
                        ..example
                    })),
                    Err(message) => read.rejects.push(Reject {
                        id: id.to_owned(),
                        kind: FailureKind::Data.name().to_owned(),
                        message,
                        attempts: 1,
                        detail: None,
                    }),
                }
            }
        }
        Ok(read)
    }

    fn advantages(&self, batch: &RecordBatch) -> Result<Float64Array, OperatorError> {
        let missing = || {
            OperatorError::data(format!("the rollouts have no numbers in a column `{}`", self.advantage))
                .with_help("add the node `advantage` before this one, or name the column in `advantage`")
        };
        let column = batch.column_by_name(self.advantage).filter(|column| column.data_type().is_numeric());
        Ok(cast(column.ok_or_else(missing)?, &DataType::Float64)?.as_primitive::<Float64Type>().clone())
    }

    /// Returns the sequences of a rollout in which the model sampled tokens, or why it cannot be trained on.
    fn sequences(
        &self,
        recorded: &RecordedTokens,
        advantage: Option<f64>,
    ) -> Result<Result<Vec<Example>, String>, OperatorError> {
        let Some(advantage) = advantage.filter(|advantage| advantage.is_finite()) else {
            return Ok(Err(format!("`{}` is null or no finite number", self.advantage)));
        };
        let sampling = &recorded.sampling;
        if sampling.top_p < 1.0 || sampling.top_k > 0 {
            let message = "its tokens were sampled with `top_p` or `top_k`, so that their probabilities are not those of \
                           the model: sample with `top_p: 1` and without `top_k`";
            return Ok(Err(message.to_owned()));
        }
        if (sampling.temperature - 1.0).abs() > 1e-9 {
            let message = format!("its tokens were sampled at temperature {}, not 1", sampling.temperature);
            return Ok(Err(message));
        }
        let mut branches: BTreeMap<i32, Vec<&TokenSpan>> = BTreeMap::new();
        for span in &recorded.tokens {
            branches.entry(span.branch).or_default().push(span);
        }
        let sequences =
            branches.into_values().map(|spans| self.sequence(&spans)).collect::<Result<Result<Vec<_>, _>, _>>()?;
        let sequences: Vec<Example> = match sequences {
            Ok(sequences) => sequences.into_iter().filter(|example| example.targets() > 0).collect(),
            Err(message) => return Ok(Err(message)),
        };
        if sequences.is_empty() {
            return Ok(Err("the model sampled no token".to_owned()));
        }
        let of_rollout = sequences.iter().map(Example::targets).sum();
        let whole = |example: Example| {
            let sampled = example.sampled.map(|sampled| Sampled { advantage: advantage as f32, of_rollout, ..sampled });
            Example { sampled, ..example }
        };
        Ok(Ok(sequences.into_iter().map(whole).collect()))
    }

    fn sequence(&self, spans: &[&TokenSpan]) -> Result<Result<Example, String>, OperatorError> {
        let (mut tokens, mut learnt, mut log_probabilities) = (Vec::new(), Vec::new(), Vec::new());
        for span in spans {
            for (at, id) in span.ids.iter().enumerate() {
                let token = u32::try_from(*id).ok().filter(|token| (*token as usize) < self.vocabulary);
                tokens.push(token.ok_or_else(|| self.wrong_vocabulary(*id))?);
                let known = span.logprobs.as_ref().filter(|_| span.sampled).map(|all| all.get(at).copied());
                match known {
                    None => log_probabilities.push(0.0),
                    Some(Some(known)) if known.is_finite() && known <= 1e-6 => log_probabilities.push(known),
                    Some(_) => return Ok(Err("a sampled token has no log-probability".to_owned())),
                }
                learnt.push(span.sampled);
            }
        }
        if tokens.len() > self.max_length {
            return Ok(Err(format!("{} tokens, more than max_length {}", tokens.len(), self.max_length)));
        }
        let sampled = Some(Sampled { log_probabilities, ..Sampled::default() });
        Ok(Ok(Example { id: String::new(), question: String::new(), tokens, learnt, weight: 1.0, sampled }))
    }

    fn wrong_vocabulary(&self, unknown: i32) -> OperatorError {
        let message =
            format!("the rollouts have token {unknown}, but the model's vocabulary ends at {}", self.vocabulary);
        OperatorError::data(message)
            .with_help("they were sampled from another model: connect the one that sampled them")
    }
}

fn unrecorded() -> OperatorError {
    OperatorError::data("the rollouts have no recorded tokens")
        .with_help("write `record: tokens` in the node `rollout`: text that is tokenised again gives other tokens")
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::SampledWith;

    use super::*;

    fn span(branch: i32, ids: &[i32], logprobs: Option<&[f32]>) -> TokenSpan {
        TokenSpan {
            message: 0,
            branch,
            sampled: logprobs.is_some(),
            ids: ids.to_vec(),
            logprobs: logprobs.map(<[f32]>::to_vec),
        }
    }

    fn recorded(tokens: Vec<TokenSpan>) -> RecordedTokens {
        let sampling = SampledWith {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            other: None,
            logprobs: "processed".to_owned(),
            revision: None,
        };
        RecordedTokens { tokens, sampling }
    }

    fn reader() -> RolloutReader<'static> {
        RolloutReader { vocabulary: 50, max_length: 8, advantage: "advantage" }
    }

    #[test]
    fn branches_are_sequences_of_one_rollout() {
        let spans = vec![
            span(0, &[1, 2], None),
            span(0, &[3], Some(&[-0.5])),
            span(1, &[1, 9], None),
            span(1, &[4, 5], Some(&[-0.25, -1.0])),
            span(0, &[6], None),
            span(0, &[7], Some(&[-2.0])),
            span(2, &[8], None),
        ];
        let made = reader().sequences(&recorded(spans), Some(0.75)).unwrap().unwrap();
        assert_eq!(made.len(), 2, "nothing was sampled in the third branch");
        assert_eq!((made[0].tokens.as_slice(), made[1].tokens.as_slice()), (&[1, 2, 3, 6, 7][..], &[1, 9, 4, 5][..]));
        assert_eq!(made[0].learnt, [false, false, true, false, true]);
        let sampled = made[0].sampled.as_ref().unwrap();
        assert_eq!((sampled.log_probabilities.as_slice(), sampled.advantage), (&[0.0, 0.0, -0.5, 0.0, -2.0][..], 0.75));
        assert!(made.iter().all(|example| example.sampled.as_ref().unwrap().of_rollout == 4));
    }

    #[test]
    fn what_cannot_be_trained_on_says_why() {
        let good = || recorded(vec![span(0, &[1], None), span(0, &[2, 3], Some(&[-0.5, -0.5]))]);
        let why = |recorded: &RecordedTokens, advantage| reader().sequences(recorded, advantage).unwrap().unwrap_err();
        assert!(why(&good(), Some(f64::NAN)).contains("`advantage` is null or no finite number"));
        assert!(why(&good(), None).contains("null"));
        let sampled = |change: fn(&mut SampledWith)| {
            let mut recorded = good();
            change(&mut recorded.sampling);
            recorded
        };
        assert!(why(&sampled(|with| with.top_p = 0.9), Some(1.0)).contains("`top_p: 1`"));
        assert!(why(&sampled(|with| with.top_k = 20), Some(1.0)).contains("without `top_k`"));
        assert!(why(&sampled(|with| with.temperature = 0.7), Some(1.0)).contains("temperature 0.7, not 1"));
        assert!(why(&recorded(vec![span(0, &[1], None)]), Some(1.0)).contains("no token"));
        assert!(why(&recorded(vec![span(0, &[1; 9], Some(&[-0.1; 9]))]), Some(1.0)).contains("more than max_length 8"));
        assert!(why(&recorded(vec![span(0, &[1, 2], Some(&[-0.1, f32::NAN]))]), Some(1.0)).contains("no log-prob"));
        let strange = recorded(vec![span(0, &[1], None), span(0, &[50], Some(&[-0.1]))]);
        let error = reader().sequences(&strange, Some(1.0)).unwrap_err();
        assert!(error.message.contains("token 50, but the model's vocabulary ends at 50"), "{}", error.message);
    }
}

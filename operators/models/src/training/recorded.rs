//! Recorded rollouts as training examples: each sequence that the model saw, with the tokens that it sampled.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, Float64Array, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_engine::operator::{OperatorError, RowsInput};
use searchmill_schemas::{RecordedTokens, SampledWith, TokenSpan, text_column};
use serde_json::Value;

use super::example::{Example, Read, Sampled, Unfit};

/// Fields of requests to servers that change probabilities, with the values that do not. Servers may take other defaults
/// from the model's `generation_config.json`, so they are sent when tokens are recorded.
pub const NEUTRAL: [(&str, f64); 5] = [
    ("top_k", -1.0),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
    ("frequency_penalty", 0.0),
    ("presence_penalty", 0.0),
];

/// Fields of requests to servers that change no probability.
const HARMLESS: [&str; 8] = [
    "chat_template_kwargs",
    "include_stop_str_in_output",
    "metadata",
    "priority",
    "service_tier",
    "skip_special_tokens",
    "stop_token_ids",
    "user",
];

/// Largest log-probability that counts as one: what rounding to 32 bits may leave above 0.
const ROUNDING: f32 = 1e-6;

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
                let advantage = advantages.is_valid(row).then(|| advantages.value(row));
                let named = |example| Example {
                    id: ids.value(row).to_owned(),
                    question: questions.value(row).to_owned(),
                    ..example
                };
                let made = self.sequences(recorded, advantage);
                read.add(ids.value(row), made.map(|sequences| sequences.into_iter().map(named).collect()))?;
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

    /// Returns the sequences of a rollout in which the model sampled tokens.
    fn sequences(&self, recorded: &RecordedTokens, advantage: Option<f64>) -> Result<Vec<Example>, Unfit> {
        let advantage = advantage.filter(|advantage| advantage.is_finite());
        let missing = || Unfit::Row(format!("`{}` is null or no finite number", self.advantage));
        let advantage = advantage.ok_or_else(missing)? as f32;
        if let Some(how) = reshaped(&recorded.sampling) {
            let message = format!(
                "its tokens were sampled {how}, so that their probabilities are not those of the model: sample at \
                 temperature 1, with `top_p: 1`, without `top_k` and penalties"
            );
            return Err(Unfit::Row(message));
        }
        let mut branches: BTreeMap<i32, Vec<&TokenSpan>> = BTreeMap::new();
        for span in &recorded.tokens {
            branches.entry(span.branch).or_default().push(span);
        }
        let sequences = branches.into_values().map(|spans| self.sequence(&spans, advantage));
        let mut sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        sequences.retain(|example| example.targets() > 0);
        let of_rollout = sequences.iter().map(Example::targets).sum();
        if of_rollout == 0 {
            return Err(Unfit::Row("the model sampled no token".to_owned()));
        }
        for sampled in sequences.iter_mut().filter_map(|example| example.sampled.as_mut()) {
            sampled.of_rollout = of_rollout;
        }
        Ok(sequences)
    }

    fn sequence(&self, spans: &[&TokenSpan], advantage: f32) -> Result<Example, Unfit> {
        let (mut tokens, mut learnt, mut log_probabilities) = (Vec::new(), Vec::new(), Vec::new());
        for span in spans {
            for (at, id) in span.ids.iter().enumerate() {
                let token = u32::try_from(*id).ok().filter(|token| (*token as usize) < self.vocabulary);
                tokens.push(token.ok_or_else(|| Unfit::Vocabulary(self.wrong_vocabulary(*id)))?);
                let known = span.logprobs.as_ref().filter(|_| span.sampled).map(|all| all.get(at).copied());
                match known {
                    None => log_probabilities.push(0.0),
                    Some(Some(known)) if known.is_finite() && known <= ROUNDING => log_probabilities.push(known),
                    Some(_) => return Err(Unfit::Row("a sampled token has no log-probability".to_owned())),
                }
                learnt.push(span.sampled);
            }
        }
        if tokens.len() > self.max_length {
            return Err(Unfit::Row(format!("{} tokens, more than max_length {}", tokens.len(), self.max_length)));
        }
        let sampled = Some(Sampled { log_probabilities, advantage, ..Sampled::default() });
        Ok(Example { id: String::new(), question: String::new(), tokens, learnt, weight: 1.0, sampled })
    }

    fn wrong_vocabulary(&self, unknown: i32) -> OperatorError {
        let message =
            format!("the rollouts have token {unknown}, but the model's vocabulary ends at {}", self.vocabulary);
        OperatorError::data(message)
            .with_help("they were sampled from another model: connect the one that sampled them")
    }
}

/// Returns the first setting with which tokens are not drawn by the model's own probabilities.
fn reshaped(sampling: &SampledWith) -> Option<String> {
    let SampledWith { temperature, top_p, top_k, other, .. } = sampling;
    if (temperature - 1.0).abs() > 1e-9 {
        return Some(format!("at temperature {temperature}, not 1"));
    }
    if *top_p < 1.0 || *top_k > 0 {
        return Some("with `top_p` or `top_k`".to_owned());
    }
    let other: BTreeMap<String, Value> = match serde_json::from_str(other.as_deref().unwrap_or("{}")) {
        Ok(other) => other,
        Err(_) => return Some("with settings that cannot be read".to_owned()),
    };
    let is_neutral = |name: &str, value: &Value| NEUTRAL.iter().any(|(n, v)| *n == name && value.as_f64() == Some(*v));
    let shapes = |(name, value): &(String, Value)| !HARMLESS.contains(&name.as_str()) && !is_neutral(name, value);
    other.into_iter().find(shapes).map(|(name, value)| format!("with `{name}: {value}`"))
}

fn unrecorded() -> OperatorError {
    OperatorError::data("the rollouts have no recorded tokens")
        .with_help("write `record: tokens` in the node `rollout`: text that is tokenised again gives other tokens")
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::sampled_from_all;

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
        RecordedTokens { tokens, sampling: sampled_from_all() }
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
        let made = reader().sequences(&recorded(spans), Some(0.75)).ok().unwrap();
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
        let why = |recorded: &RecordedTokens, advantage| match reader().sequences(recorded, advantage) {
            Err(Unfit::Row(message)) => message,
            Err(Unfit::Vocabulary(error)) => error.message,
            Ok(_) => panic!("it can be trained on"),
        };
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
        assert!(why(&strange, Some(1.0)).contains("token 50, but the model's vocabulary ends at 50"));
    }

    #[test]
    fn further_settings_of_a_server_must_change_no_probability() {
        let with = |other: &str| reshaped(&SampledWith { other: Some(other.to_owned()), ..sampled_from_all() });
        assert_eq!(
            with(r#"{"min_p": 0, "repetition_penalty": 1.0, "chat_template_kwargs": {"thinking": false}}"#),
            None
        );
        assert_eq!(with(r#"{"min_p": 0.1}"#).as_deref(), Some("with `min_p: 0.1`"));
        assert_eq!(with(r#"{"logit_bias": {"5": 1}}"#).as_deref(), Some("with `logit_bias: {\"5\":1}`"));
        assert_eq!(with("[").as_deref(), Some("with settings that cannot be read"));
    }
}

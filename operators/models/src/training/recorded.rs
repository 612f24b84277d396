//! Recorded tokens as training examples: each sequence that the model saw, with the tokens that it sampled.

use std::collections::BTreeMap;

use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{RecordedTokens, SampledWith, TokenSpan};
use serde_json::Value;

use super::example::{Example, Sampled, Unfit};

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

/// Turns records of tokens into training examples.
#[derive(Clone, Copy, Debug)]
pub struct Recording {
    /// Size of the model's vocabulary.
    pub vocabulary: usize,
    /// Longer sequences cannot be trained on.
    pub max_length: usize,
}

/// What the model saw in one branch of a rollout.
pub struct Sequence {
    pub example: Example,
    /// Where its sampled tokens stand among those of the rollout, in the order of the record.
    pub places: Vec<usize>,
    /// Log-probability of each token when it was sampled; `None` if it was not, or if that is unknown.
    log_probabilities: Vec<Option<f32>>,
}

/// A span, and where its first token stands among the sampled tokens of the rollout.
type Placed<'a> = (usize, &'a TokenSpan);

impl Recording {
    /// Returns the sequences of a rollout in which the model sampled tokens, however they were sampled.
    ///
    /// # Errors
    /// If there are none, a sequence is too long, or the model does not have one of the tokens.
    pub fn sequences(&self, recorded: &RecordedTokens) -> Result<Vec<Sequence>, Unfit> {
        let mut branches: BTreeMap<i32, Vec<Placed<'_>>> = BTreeMap::new();
        let mut sampled = 0;
        for span in &recorded.tokens {
            branches.entry(span.branch).or_default().push((sampled, span));
            sampled += if span.sampled { span.ids.len() } else { 0 };
        }
        let mut sequences = Vec::new();
        for spans in branches.into_values() {
            let sequence = self.sequence(&spans)?;
            // A branch may hold only what the model read.
            if sequence.example.targets() > 0 {
                sequences.push(sequence);
            }
        }
        if sequences.is_empty() {
            return Err(Unfit::Row("the model sampled no token".to_owned()));
        }
        Ok(sequences)
    }

    /// Returns the same with the log-probabilities that the tokens were sampled with. Advantages are 0.
    ///
    /// # Errors
    /// If tokens were not sampled from the model's whole distribution, or their log-probabilities are not known.
    pub fn sampled(&self, recorded: &RecordedTokens) -> Result<Vec<Sequence>, Unfit> {
        let temperature = temperature(&recorded.sampling).map_err(Unfit::Row)?;
        let mut sequences = self.sequences(recorded)?;
        let of_rollout = sequences.iter().map(|sequence| sequence.example.targets()).sum();
        for Sequence { example, log_probabilities, .. } in &mut sequences {
            let mut known = Vec::with_capacity(log_probabilities.len());
            for (number, learnt) in log_probabilities.iter().zip(&example.learnt) {
                known.push(match number {
                    Some(number) if *learnt => *number,
                    None if *learnt => return Err(Unfit::Row("a sampled token has no log-probability".to_owned())),
                    Some(_) | None => 0.0,
                });
            }
            let (log_probabilities, advantages) = (known, vec![0.0; example.tokens.len()]);
            let (reference, rollout) = (None, 0);
            let sampled = Sampled { temperature, log_probabilities, reference, advantages, rollout, of_rollout };
            example.sampled = Some(sampled);
        }
        Ok(sequences)
    }

    fn sequence(&self, spans: &[Placed<'_>]) -> Result<Sequence, Unfit> {
        let (mut tokens, mut learnt, mut places, mut log_probabilities) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (first, span) in spans {
            for (at, id) in span.ids.iter().enumerate() {
                match u32::try_from(*id) {
                    Ok(token) if (token as usize) < self.vocabulary => tokens.push(token),
                    Ok(_) | Err(_) => {
                        let last = self.vocabulary;
                        let message =
                            format!("the rollouts have token {id}, but the model's vocabulary ends at {last}");
                        let help = "they were sampled from another model: connect the one that sampled them";
                        return Err(Unfit::Vocabulary(OperatorError::data(message).with_help(help)));
                    }
                }
                learnt.push(span.sampled);
                let mut recorded = None;
                if span.sampled {
                    places.push(first + at);
                    recorded = span.logprobs.as_ref().and_then(|all| all.get(at).copied());
                }
                // What a server sent: an infinite number, or one above 0, would break the loss.
                log_probabilities.push(recorded.filter(|number| number.is_finite() && *number <= ROUNDING));
            }
        }
        if tokens.len() > self.max_length {
            return Err(Unfit::Row(format!("{} tokens, more than max_length {}", tokens.len(), self.max_length)));
        }
        let (id, question) = (String::new(), String::new());
        let example = Example { id, question, tokens, learnt, weight: 1.0, sampled: None, paired: None };
        Ok(Sequence { example, places, log_probabilities })
    }
}

/// Returns the temperature at which the recorded log-probabilities are those of the model, or why they are those at none.
fn temperature(sampling: &SampledWith) -> Result<f32, String> {
    if let Some(how) = reshaped(sampling) {
        return Err(format!(
            "its tokens were sampled {how}, so that their probabilities are not those of the model: sample at a \
             temperature above 0, with `top_p: 1`, without `top_k` and penalties"
        ));
    }
    let temperature = sampling.temperature;
    let is_one = (temperature - 1.0).abs() <= 1e-9;
    match sampling.logprobs.as_str() {
        "processed" => Ok(temperature as f32),
        "raw" if is_one => Ok(1.0),
        _ => Err(format!(
            "its tokens were sampled at temperature {temperature}, but their log-probabilities are `{}`: record those of \
             the distribution that was sampled from (`logprobs: processed`), or sample at temperature 1",
            sampling.logprobs
        )),
    }
}

/// Returns the first setting with which tokens are not drawn by the model's own probabilities.
fn reshaped(sampling: &SampledWith) -> Option<String> {
    let SampledWith { temperature, top_p, top_k, other, .. } = sampling;
    if !(temperature.is_finite() && *temperature > 0.0) {
        return Some(format!("at temperature {temperature}, not above 0"));
    }
    if *top_p < 1.0 || *top_k > 0 {
        return Some("with `top_p` or `top_k`".to_owned());
    }
    let other: BTreeMap<String, Value> = match serde_json::from_str(other.as_deref().unwrap_or("{}")) {
        Ok(other) => other,
        Err(_) => return Some("with settings that cannot be read".to_owned()),
    };
    for (name, value) in other {
        let is_neutral = NEUTRAL.iter().any(|(field, neutral)| *field == name && value.as_f64() == Some(*neutral));
        // An unknown field counts: it may be a server's own way to change probabilities.
        if !is_neutral && !HARMLESS.contains(&name.as_str()) {
            return Some(format!("with `{name}: {value}`"));
        }
    }
    None
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

    fn recording() -> Recording {
        Recording { vocabulary: 50, max_length: 8 }
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
        let made = recording().sampled(&recorded(spans)).ok().unwrap();
        assert_eq!(made.len(), 2, "nothing was sampled in the third branch");
        let tokens = [0, 1].map(|branch: usize| made[branch].example.tokens.as_slice());
        assert_eq!(tokens, [&[1, 2, 3, 6, 7][..], &[1, 9, 4, 5][..]]);
        assert_eq!(made[0].example.learnt, [false, false, true, false, true]);
        assert_eq!((made[0].places.as_slice(), made[1].places.as_slice()), (&[0, 3][..], &[1, 2][..]), "in time");
        let sampled = made[0].example.sampled.as_ref().unwrap();
        assert_eq!(
            (sampled.log_probabilities.as_slice(), sampled.temperature),
            (&[0.0, 0.0, -0.5, 0.0, -2.0][..], 1.0)
        );
        assert!(made.iter().all(|sequence| sequence.example.sampled.as_ref().unwrap().of_rollout == 4));
    }

    #[test]
    fn what_cannot_be_trained_on_says_why() {
        let good = || recorded(vec![span(0, &[1], None), span(0, &[2, 3], Some(&[-0.5, -0.5]))]);
        let why = |recorded: &RecordedTokens| match recording().sampled(recorded) {
            Err(Unfit::Row(message)) => message,
            Err(Unfit::Vocabulary(error)) => error.message,
            Ok(_) => panic!("it can be trained on"),
        };
        let sampled = |change: fn(&mut SampledWith)| {
            let mut recorded = good();
            change(&mut recorded.sampling);
            recorded
        };
        assert!(why(&sampled(|with| with.top_p = 0.9)).contains("`top_p: 1`"));
        assert!(why(&sampled(|with| with.top_k = 20)).contains("without `top_k`"));
        assert!(why(&sampled(|with| with.temperature = 0.0)).contains("at temperature 0, not above 0"));
        assert!(why(&recorded(vec![span(0, &[1], None)])).contains("no token"));
        assert!(why(&recorded(vec![span(0, &[1; 9], Some(&[-0.1; 9]))])).contains("more than max_length 8"));
        assert!(why(&recorded(vec![span(0, &[1, 2], Some(&[-0.1, f32::NAN]))])).contains("no log-prob"));
        let strange = recorded(vec![span(0, &[1], None), span(0, &[50], Some(&[-0.1]))]);
        assert!(why(&strange).contains("token 50, but the model's vocabulary ends at 50"));
        let untold = recorded(vec![span(0, &[1], None), TokenSpan { sampled: true, ..span(0, &[2], None) }]);
        assert!(why(&untold).contains("no log-prob"));
        let mut greedy = untold;
        greedy.sampling.temperature = 0.0;
        assert_eq!(recording().sequences(&greedy).ok().unwrap().len(), 1, "the tokens are those that were written");
    }

    #[test]
    fn temperatures_are_those_of_the_recorded_log_probabilities() {
        let of = |temperature: f64, logprobs: &str| {
            super::temperature(&SampledWith { temperature, logprobs: logprobs.to_owned(), ..sampled_from_all() })
        };
        assert_eq!((of(1.0, "processed"), of(1.0, "raw"), of(0.7, "processed")), (Ok(1.0), Ok(1.0), Ok(0.7)));
        let error = of(0.7, "raw").unwrap_err();
        assert!(error.contains("at temperature 0.7, but their log-probabilities are `raw`"), "{error}");
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

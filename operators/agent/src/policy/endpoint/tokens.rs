//! Token ids and log-probabilities in answers, in the fields of vLLM (`return_token_ids`, `logprobs`):
//! <https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html>.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tokens::TurnTokens;

/// The tokens of an answer, as far as the server reports them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct WireTokens {
    prompt: Option<Vec<u32>>,
    sampled: Option<Vec<u32>>,
    logprobs: Option<Vec<f32>>,
}

impl WireTokens {
    /// Adds the tokens of an answer, or of one piece of it. The prompt's stand in the answer (chats) or in its choice.
    pub(super) fn add(&mut self, prompt: Option<Value>, sampled: Option<Value>, logprobs: Option<Value>) {
        // Every piece of a stream may repeat the prompt's.
        if self.prompt.is_none() {
            self.prompt = ids(prompt);
        }
        append(&mut self.sampled, ids(sampled));
        append(&mut self.logprobs, numbers(logprobs.as_ref()));
    }

    /// Returns `None` if nothing was reported.
    pub(super) fn reported(self) -> Option<Self> {
        if self == Self::default() { None } else { Some(self) }
    }

    /// Returns the prompt's tokens and the sampled ones.
    ///
    /// # Errors
    /// If they are not complete.
    pub(super) fn whole(self) -> Result<(Vec<u32>, TurnTokens), String> {
        let prompt = match self.prompt {
            Some(ids) if !ids.is_empty() => ids,
            _ => return Err(missing("tokens of the prompt (`prompt_token_ids`)")),
        };
        let Some(sampled) = self.sampled else { return Err(missing("token ids (`token_ids`)")) };
        let Some(logprobs) = self.logprobs else { return Err(missing("log-probabilities (`logprobs`)")) };
        if sampled.len() != logprobs.len() {
            let (ids, numbers) = (sampled.len(), logprobs.len());
            return Err(format!("the server returned {ids} token ids, but {numbers} log-probabilities"));
        }
        // A little above 0 is rounding.
        if let Some(wrong) = logprobs.iter().find(|number| !number.is_finite() || **number > 1e-3) {
            return Err(format!("the server returned {wrong} as a log-probability, which is a number of at most 0"));
        }
        Ok((prompt, TurnTokens { sampled, logprobs, ..TurnTokens::default() }))
    }
}

fn missing(what: &str) -> String {
    format!(
        "the server returned no {what}: `record: tokens` needs a server with `return_token_ids` and `logprobs`, such as \
         a recent vLLM or `searchmill serve model`"
    )
}

fn ids(value: Option<Value>) -> Option<Vec<u32>> {
    serde_json::from_value(value?).ok()
}

fn append<T>(all: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
    if let Some(more) = more {
        all.get_or_insert_default().extend(more);
    }
}

/// Returns the sampled tokens' log-probabilities: `{content: [{logprob}]}` of chats, `{token_logprobs: […]}` of texts.
fn numbers(logprobs: Option<&Value>) -> Option<Vec<f32>> {
    let logprobs = logprobs?;
    match (logprobs.get("content"), logprobs.get("token_logprobs")) {
        (Some(Value::Array(tokens)), _) => tokens.iter().map(|token| Some(token["logprob"].as_f64()? as f32)).collect(),
        (_, Some(Value::Array(all))) => all.iter().map(|number| Some(number.as_f64()? as f32)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn whole_and_streamed_tokens_are_the_same() {
        let mut whole = WireTokens::default();
        whole.add(
            Some(json!([1, 2])),
            Some(json!([3, 4])),
            Some(json!({"content": [{"logprob": -0.5, "token": "x"}, {"logprob": -1}]})),
        );
        let (prompt, turn) = whole.clone().whole().expect("all tokens");
        assert_eq!((prompt, turn.sampled, turn.logprobs), (vec![1, 2], vec![3, 4], vec![-0.5, -1.0]));
        let mut streamed = WireTokens::default();
        streamed.add(Some(json!([1, 2])), None, None);
        streamed.add(None, Some(json!([3])), Some(json!({"token_logprobs": [-0.5]})));
        streamed.add(None, Some(json!([4])), Some(json!({"token_logprobs": [-1.0]})));
        assert_eq!(streamed, whole);
        let kept = serde_json::to_string(&whole).expect("JSON");
        assert_eq!(serde_json::from_str::<WireTokens>(&kept).expect("tokens"), whole);
    }

    #[test]
    fn what_is_missing_is_named() {
        let told = |prompt, sampled, logprobs| {
            let mut tokens = WireTokens::default();
            tokens.add(prompt, sampled, logprobs);
            tokens.whole().expect_err("an error")
        };
        let (ids, numbers) = (|| Some(json!([1])), || Some(json!({"content": [{"logprob": -1}]})));
        assert!(told(None, ids(), numbers()).contains("prompt_token_ids"));
        assert!(told(ids(), None, numbers()).contains("(`token_ids`)"));
        assert!(told(ids(), Some(json!(["a"])), numbers()).contains("(`token_ids`)"));
        assert!(told(ids(), ids(), Some(json!(null))).contains("`logprobs`): `record: tokens` needs"));
        assert!(told(ids(), Some(json!([1, 2])), numbers()).contains("2 token ids, but 1 log-probabilities"));
        let of = |number: f64| Some(json!({"content": [{"logprob": number}]}));
        assert!(told(ids(), ids(), of(0.5)).contains("0.5 as a log-probability"));
        assert!(told(ids(), ids(), of(-1e300)).contains("-inf as a log-probability"));
        assert_eq!(WireTokens::default().reported(), None);
    }
}

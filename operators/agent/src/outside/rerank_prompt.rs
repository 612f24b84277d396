//! A prompt as reranker: a language model orders all passages of a search, or scores each alone.

use std::collections::BTreeSet;

use futures::future::join_all;
use searchmill_engine::operator::{Context, OperatorError, RowFailure, Usage};
use serde_json::{Map, Value, json};

use super::prompt_params::{DOCUMENT, DOCUMENTS, QUERY, RerankPromptParams};
use super::prompt_service::{Answered, PromptService};
use crate::prompt::{Answer, Output, object_in, said};

/// Places and scores of passages, best first.
pub(super) type Order = Vec<(usize, f64)>;

/// A prompt that orders passages.
pub(super) struct PromptRanking {
    service: PromptService,
    /// Whether it is asked about each passage alone.
    is_alone: bool,
}

impl PromptRanking {
    /// Opens the prompt. `place` is the endpoint's in the declaration.
    ///
    /// # Errors
    /// Fails if a secret is unknown.
    pub(super) fn open(params: &RerankPromptParams, place: usize, context: &Context) -> Result<Self, OperatorError> {
        let asks = params.asks();
        // Opened as a scorer first: only the compiled prompt says whether it reads `document`.
        let score = form(json!({"score": "float"}))?;
        let described = score.described().map(str::to_owned);
        let alone = PromptService::open(&asks, &score, described, place, context)?;
        if alone.prompts.names().iter().any(|name| name == DOCUMENT) {
            return Ok(Self { service: alone, is_alone: true });
        }
        let order = form(json!({"order": ["int"]}))?;
        let described =
            order.described().map(|described| format!("{described}: the numbers of the passages, best first"));
        Ok(Self { service: PromptService::open(&asks, &order, described, place, context)?, is_alone: false })
    }

    /// Returns the order of the passages (`{id, document_id, title, text, score}`), or an error for the model.
    ///
    /// # Errors
    /// If no model can mend the failure, the budget is used up, or the run stops.
    pub(super) async fn order(
        &self,
        query: &str,
        mut documents: Vec<Value>,
        context: &Context,
    ) -> Result<Answered<Order>, RowFailure> {
        if self.is_alone {
            return self.scored(query, documents, context).await;
        }
        let mut scores = Vec::with_capacity(documents.len());
        for (index, document) in documents.iter_mut().enumerate() {
            document["number"] = json!(index + 1);
            scores.push(document["score"].as_f64().unwrap_or_default());
        }
        let values = Map::from_iter([(QUERY.to_owned(), json!(query)), (DOCUMENTS.to_owned(), json!(documents))]);
        self.service.ask(&values, |answer| order_in(answer, &scores), context).await
    }

    /// Asks about each passage. All answers are awaited, as each is paid for.
    async fn scored(
        &self,
        query: &str,
        documents: Vec<Value>,
        context: &Context,
    ) -> Result<Answered<Order>, RowFailure> {
        let mut asked = Vec::with_capacity(documents.len());
        for document in documents {
            let values = Map::from_iter([(QUERY.to_owned(), json!(query)), (DOCUMENT.to_owned(), document)]);
            // Together: the endpoint's limits say how many are in flight.
            asked.push(async move { self.service.ask(&values, score_in, context).await });
        }
        let (mut usage, mut scores) = (Usage::default(), Vec::new());
        let mut failed = None;
        for answered in join_all(asked).await {
            match answered {
                Ok((score, paid)) => {
                    usage += paid;
                    scores.push(score);
                }
                Err(failure) => {
                    usage += failure.usage;
                    // The first failure in the order of the passages, whichever came first.
                    failed.get_or_insert(failure);
                }
            }
        }
        if let Some(failure) = failed {
            return Err(RowFailure { usage, ..failure });
        }
        let scores: Result<Vec<f64>, String> = scores.into_iter().collect();
        Ok((scores.map(by_scores), usage))
    }
}

/// The form of an answer with these fields.
fn form(fields: Value) -> Result<Output, OperatorError> {
    Output::new(&fields, None).map_err(|issue| OperatorError::engine(issue.message))
}

/// Equal scores stay in the order of the search.
pub(super) fn by_scores(scores: Vec<f64>) -> Order {
    let mut order: Order = scores.into_iter().enumerate().collect();
    order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    order
}

const ORDER: &str = "the answer is no order of the passages, such as `[2] > [1]` or `{\"order\": [2, 1]}`";
const CUT: &str = "the answer is cut";
const SCORE: &str = "the answer is no score, such as `3` or `{\"score\": 3}`";

/// Reads an order of passages with these scores.
///
/// # Errors
/// Says for the model why it is none.
fn order_in(answer: Answer<'_>, scores: &[f64]) -> Result<Order, String> {
    let text = said(answer.text);
    // `[2] > [1]`.
    let words = text.split('>').map(|word| word.trim().strip_prefix('[')?.strip_suffix(']')?.trim().parse().ok());
    let chain: Option<Vec<u64>> = words.collect();
    let numbers: Vec<Value> = match (chain, serde_json::from_str::<Vec<Value>>(&text)) {
        // Its end may be a part of a number, or of the list.
        (Some(_), _) if answer.is_cut => return Err(CUT.to_owned()),
        (Some(numbers), _) => numbers.into_iter().map(Value::from).collect(),
        (None, Ok(numbers)) => numbers,
        _ => {
            let object = object_in(answer.text).map_err(|_| ORDER.to_owned())?;
            match (object.get("order"), object.get("scores")) {
                (Some(Value::Array(numbers)), None) => numbers.clone(),
                (None, Some(Value::Array(found))) => return scored(found, scores.len()),
                _ => return Err(ORDER.to_owned()),
            }
        }
    };
    if numbers.is_empty() {
        return Err("the answer names no passage".to_owned());
    }
    let (mut order, mut seen) = (Order::new(), BTreeSet::new());
    for number in &numbers {
        // Passages are numbered from 1: 0 becomes an index that no list has.
        let index = number.as_u64().ok_or(ORDER)?.wrapping_sub(1);
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let Some(score) = scores.get(index) else {
            return Err(format!("there is no passage [{number}]: they are [1] to [{}]", scores.len()));
        };
        if !seen.insert(index) {
            return Err(format!("the passage [{number}] is there twice"));
        }
        order.push((index, *score));
    }
    Ok(order)
}

fn scored(scores: &[Value], count: usize) -> Result<Order, String> {
    if scores.len() != count {
        return Err(format!("the answer has {} scores for {count} passages", scores.len()));
    }
    let scores: Option<Vec<f64>> = scores.iter().map(Value::as_f64).collect();
    Ok(by_scores(scores.ok_or("the answer has a score that is no number")?))
}

/// Reads the score of a passage.
///
/// # Errors
/// Says for the model why it is none.
fn score_in(answer: Answer<'_>) -> Result<f64, String> {
    let number = match serde_json::from_str(&said(answer.text)) {
        // `1` may be the beginning of `10`.
        Ok(Value::Number(_)) if answer.is_cut => return Err(CUT.to_owned()),
        Ok(Value::Number(number)) => number.as_f64(),
        _ => object_in(answer.text).ok().and_then(|object| object.get("score")?.as_f64()),
    };
    Ok(number.ok_or(SCORE)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f64; 3] = [9.0, 8.0, 7.0];

    #[test]
    fn orders_are_read_in_every_form() {
        let order = |text: &str| order_in(Answer { text, is_cut: false }, &SCORES);
        let expected = Ok(vec![(1, 8.0), (0, 9.0)]);
        for answer in [
            "[2] > [1]",
            " [2]>[1]\n",
            "<think>[1] is worse</think>\n[2] > [1]",
            "[2, 1]",
            r#"{"order": [2, 1]}"#,
            "```json\n{\"order\": [2, 1]}\n```",
        ] {
            assert_eq!(order(answer), expected, "{answer}");
        }
        assert_eq!(order("[3]"), Ok(vec![(2, 7.0)]));
        assert_eq!(order(r#"{"scores": [1, 2.5, 1]}"#), Ok(vec![(1, 2.5), (0, 1.0), (2, 1.0)]));
    }

    #[test]
    fn what_is_no_order_is_never_an_empty_result() {
        let wrong = |text: &str| order_in(Answer { text, is_cut: false }, &SCORES).expect_err("no order");
        assert_eq!(wrong("[4] > [1]"), "there is no passage [4]: they are [1] to [3]");
        assert_eq!(wrong("[0]"), "there is no passage [0]: they are [1] to [3]");
        assert_eq!(wrong("[1] > [1]"), "the passage [1] is there twice");
        assert_eq!(wrong(r#"{"order": []}"#), "the answer names no passage");
        assert_eq!(wrong(r#"{"scores": [1]}"#), "the answer has 1 scores for 3 passages");
        for prose in [
            "",
            "Passage [2] is best.",
            "[2] > [1], as [3] is off topic",
            "2 > 1",
            r#"{"order": ["a"]}"#,
            r#"{"order": [1], "scores": [1, 2, 3]}"#,
            r#"{"best": 1}"#,
            "<think>[2] > [1]",
            r#"{"order": [1.5]}"#,
        ] {
            assert_eq!(wrong(prose), ORDER, "{prose}");
        }
    }

    #[test]
    fn scores_are_numbers_alone_or_in_an_object() {
        let score_in = |text: &str| score_in(Answer { text, is_cut: false });
        for answer in ["3.5", " 3.5 ", r#"{"score": 3.5}"#, r#"<think>2</think>{"score": 3.5, "reason": "so"}"#] {
            assert_eq!(score_in(answer), Ok(3.5), "{answer}");
        }
        for answer in ["", "three", "3.5 of 5", r#"{"score": "3"}"#, r#"{"score": null}"#] {
            assert_eq!(score_in(answer), Err(SCORE.to_owned()), "{answer}");
        }
        for thought in ["<think>3.5", "<think>{\"score\": 3.5}", "<think>{\"score\": 3.5} no", "{\"score\": 3.5"] {
            assert_eq!(score_in(thought), Err(SCORE.to_owned()), "{thought}");
        }
        assert_eq!(by_scores(vec![1.0, 2.0, 1.0]), [(1, 2.0), (0, 1.0), (2, 1.0)]);
    }

    #[test]
    fn what_the_limit_of_tokens_cut_is_read_only_if_it_is_closed() {
        let cut = |text| Answer { text, is_cut: true };
        assert_eq!(score_in(cut("1")), Err(CUT.to_owned()));
        assert_eq!(score_in(cut(r#"{"score": 10} because"#)), Ok(10.0));
        assert_eq!(order_in(cut("[2] > [1]"), &SCORES), Err(CUT.to_owned()));
        assert_eq!(order_in(cut("[2, 1]"), &SCORES), Ok(vec![(1, 8.0), (0, 9.0)]));
        assert!(order_in(cut(r#"{"order": [2, 1"#), &SCORES).is_err());
    }
}

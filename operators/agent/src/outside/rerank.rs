//! The reranker: a function or a prompt between a search and what the model sees.

use std::collections::BTreeSet;

use searchmill_data::python::{JsonRows, Pool, PythonFunction};
use searchmill_engine::operator::{Attempt, CallFailure, Context, OperatorError, RowFailure};
use searchmill_retrieval::Found;
use serde_json::{Map, Value, json};

use super::function::{Fault, FunctionService, NO_ANSWER, pool, returned};
use super::rerank_params::RerankParams;
use super::rerank_prompt::{Order, PromptRanking, by_scores};
use super::service::{Exchange, shown};
use crate::tool::{Called, RERANKER, ToolResult};

/// A reranker of the passages of a search.
pub(super) struct Reranker {
    keep: usize,
    ranking: Ranking,
    /// Name of the search tool.
    tool: String,
}

/// What orders the passages.
enum Ranking {
    Function(FunctionService),
    Prompt(Box<PromptRanking>),
}

impl Reranker {
    /// Opens the function or the prompt. `place` is its place in the declaration, `tool` the name of the search tool.
    pub(super) fn open(
        params: &RerankParams,
        place: usize,
        tool: &str,
        fault: &Fault,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let ranking = match (params.function(), &params.prompt) {
            (Some(function), _) => Ranking::Function(FunctionService::open(function, names(), place, fault, context)?),
            (None, Some(prompt)) => Ranking::Prompt(Box::new(PromptRanking::open(prompt, place, context)?)),
            (None, None) => return Err(OperatorError::pipeline("`rerank` needs `python` or `prompt`")),
        };
        Ok(Self { keep: params.keep.unwrap_or(usize::MAX), ranking, tool: tool.to_owned() })
    }

    /// Returns the passages in their new order. A reranker that fails is an error that the model reads.
    ///
    /// # Errors
    /// If its process cannot be started, the budget is used up, or the run stops.
    pub(super) async fn call(&self, query: &str, found: &[Found], context: &Context) -> Result<Called, RowFailure> {
        let function = match &self.ranking {
            Ranking::Function(function) => function,
            Ranking::Prompt(prompt) => {
                let ranked = match prompt.order(query, documents(found), context).await {
                    Ok((Ok(order), usage)) => Ok((Ok(self.reordered(&order, found)), usage)),
                    Ok((Err(error), usage)) => Ok((Err(format!("{RERANKER}{error}")), usage)),
                    // A stopped run or a used-up budget says nothing of the reranker.
                    Err(failure) if failure.kind.is_postponed() => Err(failure),
                    Err(failure) => Err(RowFailure { message: format!("{RERANKER}{}", failure.message), ..failure }),
                };
                return shown(&self.tool, ranked);
            }
        };
        let arguments = arguments(query, found);
        let request = function.request(&arguments);
        let reranking = Reranking { reranker: self, function, arguments, found };
        function.service.call(&self.tool, &reranking, request, context).await
    }

    /// Returns the first passages of an order, with their new scores.
    fn reordered(&self, order: &[(usize, f64)], found: &[Found]) -> Vec<Found> {
        let order = order.iter().take(self.keep);
        order.filter_map(|(index, score)| Some(Found { score: *score, ..found.get(*index)?.clone() })).collect()
    }
}

/// Names of the arguments of a function.
fn names() -> Vec<String> {
    vec!["query".to_owned(), "documents".to_owned()]
}

fn arguments(query: &str, found: &[Found]) -> Map<String, Value> {
    names().into_iter().zip([json!(query), json!(documents(found))]).collect()
}

/// The passages as a reranker reads them.
fn documents(found: &[Found]) -> Vec<Value> {
    let mut documents = Vec::with_capacity(found.len());
    for one in found {
        documents.push(json!({"id": one.chunk_id, "document_id": one.document_id, "title": one.title,
            "text": one.contents, "score": one.score}));
    }
    documents
}

/// One call with the passages of a search.
struct Reranking<'a> {
    reranker: &'a Reranker,
    function: &'a FunctionService,
    arguments: Map<String, Value>,
    found: &'a [Found],
}

impl Exchange for Reranking<'_> {
    type Answer = ToolResult;

    async fn attempt(&self, context: &Context, _: &Attempt) -> Result<String, CallFailure> {
        // Checked before it is stored: a wrong order is a failed call, and must not be remembered as an answer.
        let called = self.function.attempt(&self.arguments, context, |text| order(text, self.found).map(drop));
        called.await.map_err(|failure| CallFailure { message: format!("{RERANKER}{}", failure.message), ..failure })
    }

    fn read(&self, text: &str) -> Result<ToolResult, String> {
        Ok(Ok(self.reranker.reordered(&order(text, self.found)?, self.found)))
    }
}

/// Reads what the function returned: places and scores of the passages, best first.
///
/// # Errors
/// Says why it is no order of the passages.
fn order(text: &str, found: &[Found]) -> Result<Order, String> {
    match serde_json::from_str(text).map_err(|error| error.to_string())? {
        Value::Object(answer) => {
            let Some(Value::Array(scores)) = answer.get("scores") else { return Err(FORM.to_owned()) };
            if scores.len() != found.len() {
                return Err(format!("it returned {} scores for {} documents", scores.len(), found.len()));
            }
            let scores: Option<Vec<f64>> = scores.iter().map(Value::as_f64).collect();
            Ok(by_scores(scores.ok_or("it returned a score that is no number")?))
        }
        Value::Array(documents) if documents.is_empty() => Err("it returned no document".to_owned()),
        Value::Array(documents) => {
            let mut seen = BTreeSet::new();
            documents.iter().map(|document| placed(document, found, &mut seen)).collect()
        }
        _ => Err(FORM.to_owned()),
    }
}

const FORM: &str = "it must return `{\"scores\": [...]}` or a list of `{\"id\": ...}`";

fn placed(document: &Value, found: &[Found], seen: &mut BTreeSet<usize>) -> Result<(usize, f64), String> {
    let id = document.get("id").and_then(Value::as_str).ok_or(FORM)?;
    let Some(index) = found.iter().position(|found| found.chunk_id == id) else {
        return Err(format!("it returned the document `{id}`, which was not found"));
    };
    if !seen.insert(index) {
        return Err(format!("it returned the document `{id}` twice"));
    }
    let score = match document.get("score") {
        None | Some(Value::Null) => found[index].score,
        Some(score) => score.as_f64().ok_or_else(|| format!("the score of `{id}` is no number"))?,
    };
    Ok((index, score))
}

/// A Python function that orders passages outside a run, for a server: nothing is remembered.
pub struct RankingFunction {
    pool: Pool,
}

impl RankingFunction {
    /// Opens `file.py:name`, and starts its first process: what cannot be imported is told before the first request.
    ///
    /// # Errors
    /// Fails if the function cannot be imported.
    pub fn open(name: &str, context: &Context) -> Result<Self, OperatorError> {
        let (file, function) = PythonFunction::split(name).map_err(OperatorError::pipeline)?;
        let pool = pool(PythonFunction { file, function, ..PythonFunction::default() }, names(), context);
        pool.start()?;
        Ok(Self { pool })
    }

    /// Returns the places of the passages in their new order, with their new scores.
    ///
    /// # Errors
    /// Says why there is no order: the function raised, or returned something else.
    pub fn order(&self, query: &str, found: &[Found]) -> Result<Vec<(usize, f64)>, String> {
        let row = arguments(query, found);
        let called = self.pool.call(&JsonRows::of_values(&[row])).map_err(|error| error.text())?.pop();
        let text = returned(called.ok_or(NO_ANSWER)?).map_err(|failure| failure.message)?;
        order(&text, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Vec<Found> {
        let one = |(place, id): (usize, &str)| Found {
            chunk_id: id.to_owned(),
            document_id: id.to_owned(),
            title: None,
            contents: id.to_owned(),
            score: 10.0 - place as f64,
            sources: Vec::new(),
        };
        ["a", "b", "c"].into_iter().enumerate().map(one).collect()
    }

    #[test]
    fn scores_and_lists_give_an_order() {
        let of = |answer: Value| order(&answer.to_string(), &found());
        assert_eq!(of(json!({"scores": [1, 2.5, 1]})), Ok(vec![(1, 2.5), (0, 1.0), (2, 1.0)]));
        assert_eq!(of(json!([{"id": "c", "score": 3}, {"id": "a", "text": "…"}])), Ok(vec![(2, 3.0), (0, 10.0)]));
    }

    #[test]
    fn what_is_no_order_is_never_an_empty_result() {
        let of = |answer: Value| order(&answer.to_string(), &found()).expect_err("no order");
        assert_eq!(of(json!([])), "it returned no document");
        assert_eq!(of(json!({"scores": [1]})), "it returned 1 scores for 3 documents");
        assert_eq!(of(json!({"scores": [1, "2", 3]})), "it returned a score that is no number");
        assert_eq!(of(json!([{"id": "a"}, {"id": "a"}])), "it returned the document `a` twice");
        assert_eq!(of(json!([{"id": "z"}])), "it returned the document `z`, which was not found");
        assert_eq!(of(json!({"order": ["a"]})), FORM);
        assert_eq!(of(json!([{"text": "a"}])), FORM);
    }
}

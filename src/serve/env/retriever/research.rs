//! `/search`, `/batch_search`, `/health`: the retriever of ReSearch (Agent-RL/ReSearch, branch re-search, 4bdb872), which
//! is also the remote retriever of FlashRAG (RUC-NLPIR/FlashRAG, 1ee5249).

use axum::Json;
use searchmill_retrieval::Numbered;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::View;

const TOP_N: usize = 10;

#[derive(Deserialize)]
pub(crate) struct One {
    query: String,
    top_n: Option<i64>,
    return_score: Option<bool>,
}

#[derive(Deserialize)]
pub(crate) struct Many {
    query: Vec<String>,
    top_n: Option<i64>,
    return_score: Option<bool>,
}

pub(crate) async fn search(view: View, Asked(asked): Asked<One>) -> Result<Json<Value>, Problem> {
    if asked.query.trim().is_empty() {
        return Err(Problem::bad("Query content cannot be empty"));
    }
    let top_k = view.top_k("top_n", asked.top_n, TOP_N)?;
    let found = view.search(vec![asked.query], top_k).await?.pop().unwrap_or_default();
    let documents = documents(&found);
    Ok(Json(if asked.return_score == Some(true) { json!([documents, scores(&found)]) } else { documents }))
}

/// Blank queries are no error here: a trainer sends whatever the model wrote.
pub(crate) async fn batch(view: View, Asked(asked): Asked<Many>) -> Result<Json<Value>, Problem> {
    let top_k = view.top_k("top_n", asked.top_n, TOP_N)?;
    let found = view.search(asked.query, top_k).await?;
    let documents: Value = found.iter().map(|list| documents(list)).collect();
    if asked.return_score != Some(true) {
        return Ok(Json(documents));
    }
    let scores: Value = found.iter().map(|list| scores(list)).collect();
    Ok(Json(json!([documents, scores])))
}

pub(crate) async fn health(view: View) -> Json<Value> {
    // The original counts its retrievers; here one queue searches all indexes.
    let available = u8::from(view.index.queue.is_idle());
    Json(json!({"status": "healthy", "retrievers": {"total": 1, "available": available}}))
}

fn documents(found: &[Numbered]) -> Value {
    found.iter().map(|chunk| json!({"id": chunk.found.chunk_id, "contents": chunk.found.contents})).collect()
}

fn scores(found: &[Numbered]) -> Value {
    found.iter().map(|chunk| chunk.found.score).collect()
}

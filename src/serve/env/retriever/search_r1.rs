//! `/retrieve`: the retriever of Search-R1 (PeterGriffinJin/Search-R1, a14dc3a), also used by verl (b178a3c), SkyRL and
//! slime.

use axum::Json;
use searchmill_retrieval::Numbered;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::View;

const TOP_K: usize = 3;

#[derive(Deserialize)]
pub(crate) struct Retrieve {
    queries: Vec<String>,
    /// 0 counts as absent, as in the original.
    topk: Option<i64>,
    return_scores: Option<bool>,
}

pub(crate) async fn retrieve(view: View, Asked(asked): Asked<Retrieve>) -> Result<Json<Value>, Problem> {
    let top_k = view.top_k("topk", asked.topk.filter(|count| *count != 0), TOP_K)?;
    let scored = asked.return_scores == Some(true);
    let found = view.search(asked.queries, top_k).await?;
    let result = found.iter().map(|list| list.iter().map(|chunk| document(chunk, scored)).collect::<Value>());
    Ok(Json(json!({"result": result.collect::<Value>()})))
}

fn document(chunk: &Numbered, scored: bool) -> Value {
    let document = json!({"id": chunk.found.chunk_id, "contents": chunk.found.contents});
    if scored { json!({"document": document, "score": chunk.found.score}) } else { document }
}

//! `/queries`: the retriever of R1-Searcher (RUCAIBox/R1-Searcher, 631167c). A document is a line of its corpus in KILT's
//! layout: `{number}\t{title}   {text}`.

use axum::Json;
use searchmill_retrieval::Numbered;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::env::body::Asked;
use crate::serve::env::problem::Problem;
use crate::serve::env::state::{View, lines};

const K: usize = 3;

#[derive(Deserialize)]
pub(crate) struct Queries {
    queries: Vec<String>,
    k: Option<i64>,
}

pub(crate) async fn queries(view: View, Asked(asked): Asked<Queries>) -> Result<Json<Value>, Problem> {
    let top_k = view.top_k("k", asked.k, K)?;
    let found = view.search(asked.queries.clone(), top_k).await?;
    let answers: Value = found.iter().map(|found| found.iter().map(line).collect::<Value>()).collect();
    Ok(Json(json!({"queries": asked.queries, "answers": answers})))
}

fn line(chunk: &Numbered) -> String {
    let (title, text) = lines(&chunk.found);
    format!("{}\t{title}   {text}", chunk.number)
}

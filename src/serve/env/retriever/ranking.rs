//! The reranker of a server: a Python function orders what the indexes found.

use std::sync::Arc;

use axum::http::StatusCode;
use searchmill_agent::outside::RankingFunction;
use searchmill_retrieval::{Found, Numbered};

use crate::serve::env::problem::Problem;

/// A reranker.
pub(crate) struct Ranking {
    pub(crate) function: Arc<RankingFunction>,
    /// Passages of a query that it gets.
    pub(crate) pool: usize,
}

impl Ranking {
    /// Returns at most `top_k` passages for each query, in their new order.
    ///
    /// # Errors
    /// Fails if the function does: an unordered list would pass for an ordered one.
    pub(crate) async fn rank(
        &self,
        queries: Vec<String>,
        lists: Vec<Vec<Numbered>>,
        top_k: usize,
    ) -> Result<Vec<Vec<Numbered>>, Problem> {
        let function = Arc::clone(&self.function);
        let ranked = tokio::task::spawn_blocking(move || {
            let mut ranked = Vec::with_capacity(lists.len());
            for (query, list) in queries.iter().zip(lists) {
                let (numbers, found): (Vec<u64>, Vec<Found>) =
                    list.into_iter().map(|one| (one.number, one.found)).unzip();
                let order = if found.is_empty() { Vec::new() } else { function.order(query, &found)? };
                let first = order.into_iter().take(top_k);
                let placed = first.map(|(place, score)| Numbered {
                    number: numbers[place],
                    found: Found { score, ..found[place].clone() },
                });
                ranked.push(placed.collect());
            }
            Ok::<_, String>(ranked)
        });
        let failed =
            |why: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the reranker failed: {why}"));
        ranked.await.map_err(|error| failed(error.to_string()))?.map_err(failed)
    }
}

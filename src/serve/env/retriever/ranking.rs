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
                let passages = list.into_iter().map(|passage| (passage.number, passage.found));
                let (numbers, found): (Vec<_>, Vec<_>) = passages.unzip();
                // The function is not asked about nothing.
                let order = if found.is_empty() { Vec::new() } else { function.order(query, &found)? };
                let mut first = Vec::with_capacity(order.len().min(top_k));
                for (index, score) in order.into_iter().take(top_k) {
                    first.push(Numbered { number: numbers[index], found: Found { score, ..found[index].clone() } });
                }
                ranked.push(first);
            }
            Ok::<_, String>(ranked)
        });
        let why = match ranked.await {
            Ok(Ok(ranked)) => return Ok(ranked),
            Ok(Err(why)) => why,
            // The function panicked.
            Err(error) => error.to_string(),
        };
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the reranker failed: {why}")))
    }
}

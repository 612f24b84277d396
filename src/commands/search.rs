//! `search`: tries search indexes.

use std::io::BufRead;

use searchmill_engine::operator::TreeInput;
use searchmill_engine::{Failure, Session};
use searchmill_retrieval::{Found, Search};
use serde_json::json;

use super::index::{index_tree, search_settings};
use crate::args::SearchArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn search(terminal: &Terminal, session: &Session, args: &SearchArgs) -> Result<u8, Failure> {
    if args.top_k == 0 {
        return Err(Failure::usage("`-n` must be at least 1"));
    }
    let settings = search_settings(&args.fusion, args.top_k)?;
    let mut trees = vec![index_tree(session, &args.index)?];
    for other in &args.with {
        trees.push(index_tree(session, other)?);
    }
    let trees: Vec<&TreeInput> = trees.iter().collect();
    session.with_context(|context| {
        let search = Search::open(&trees, &settings, context)?;
        match &args.query {
            Some(query) => show(terminal, query, &search.search(query)?, args.full),
            // The indexes are opened once, however many queries come.
            None => {
                for query in std::io::stdin().lock().lines() {
                    let query = query?;
                    if !query.trim().is_empty() {
                        show(terminal, &query, &search.search(&query)?, args.full);
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(OK)
}

fn show(terminal: &Terminal, query: &str, found: &[Found], full: bool) {
    for (place, one) in found.iter().enumerate() {
        if terminal.is_json() {
            let sources: Vec<_> = one
                .sources
                .iter()
                .map(|source| json!({"index": source.index, "rank": source.rank, "score": source.score}))
                .collect();
            terminal.json(&json!({
                "query": query, "rank": place + 1, "score": one.score, "chunk_id": one.chunk_id,
                "document_id": one.document_id, "title": one.title, "contents": one.contents, "sources": sources,
            }));
        } else {
            terminal.line(&display::passage(place + 1, one, terminal.width(), full));
        }
    }
    if found.is_empty() {
        terminal.note("nothing was found");
    }
}

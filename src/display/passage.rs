//! Formats a passage that a search found.

use std::fmt::Write;

use searchmill_retrieval::Found;

use super::safe::plain;
use super::style::{DIM, STRONG};
use super::wrap::wrapped;

/// Lines of a passage (at most), unless all of it is wanted.
const LINES: usize = 4;

/// Formats rank, title, score, ids and the beginning of a passage; all of it if `full`.
pub(crate) fn passage(rank: usize, found: &Found, width: usize, full: bool) -> String {
    let (title, body) = found.parts();
    let title = plain(if title.is_empty() { &found.document_id } else { title });
    let mut text =
        format!("{STRONG}{rank}. {title}{STRONG:#}  {DIM}{:.4} · {}{DIM:#}", found.score, plain(&found.chunk_id));
    let body = plain(body);
    let lines: Vec<String> = body.lines().flat_map(|paragraph| wrapped(paragraph, 3, 3, width)).collect();
    let shown = if full { lines.len() } else { lines.len().min(LINES) };
    for line in &lines[..shown] {
        write!(text, "\n   {line}").unwrap_or_default();
    }
    if lines.len() > shown {
        write!(text, "\n   {DIM}… {} more lines{DIM:#}", lines.len() - shown).unwrap_or_default();
    }
    text
}

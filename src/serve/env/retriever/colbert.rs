//! `/api/search`: the server of ColBERT (stanford-futuredata/ColBERT, 501c29d), which SearchLM (mangopy/SearchLM,
//! 457513a) asks. SearchLM's client does not encode the query, so the address is read leniently.

use axum::Json;
use axum::extract::RawQuery;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::serve::env::problem::Problem;
use crate::serve::env::state::{View, lines};

const K: usize = 10;
/// The original searches for 100 passages and returns the first k.
const MOST: i64 = 100;

pub(crate) async fn search(view: View, RawQuery(raw): RawQuery) -> Result<Json<Value>, Problem> {
    let (query, k) = asked(raw.as_deref().unwrap_or_default());
    let query = query.ok_or_else(|| Problem::bad("the address needs `query=`"))?;
    let k = match k {
        Some(text) => match text.trim().parse::<i64>() {
            // More than the original returns is no error there.
            Ok(k) => Some(k.min(MOST).min(view.env.limits.max_top_k as i64)),
            Err(_) => return Err(Problem::bad(format!("`k` must be a number: `{text}`"))),
        },
        None => None,
    };
    // The default of the server (`--top-k`) may be larger than what the original returns.
    let top_k = view.top_k("k", k, K)?.min(MOST as usize);
    let found = view.search(vec![query.clone()], top_k).await?.pop().unwrap_or_default();
    let scores: Vec<f64> = found.iter().map(|chunk| chunk.found.score).collect();
    let mut passages = Vec::with_capacity(found.len());
    for (chunk, prob) in found.into_iter().zip(softmax(&scores)) {
        let (title, text) = lines(&chunk.found);
        passages.push(json!({
            "text": format!("{title} | {text}"),
            "pid": chunk.number,
            "rank": passages.len() + 1,
            "score": chunk.found.score,
            "prob": prob,
        }));
    }
    Ok(Json(json!({"query": query, "topk": passages})))
}

/// Softmax over the returned passages. (The original overflows: it does not subtract the maximum.)
fn softmax(scores: &[f64]) -> Vec<f64> {
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// Returns query and k. The last `&k=…` is k; every other part after `query=` belongs to the query, with its `&`.
fn asked(raw: &str) -> (Option<String>, Option<&str>) {
    let (mut query, mut k): (Option<String>, _) = (None, None);
    for part in raw.split('&') {
        match (part.strip_prefix("k="), &mut query) {
            (Some(number), _) => k = Some(number),
            (None, Some(query)) => *query += &format!("&{part}"),
            (None, None) => query = part.strip_prefix("query=").map(str::to_owned),
        }
    }
    (query.map(|query| decoded(&query)), k)
}

/// Decodes `%41`, and keeps a `%` without two hexadecimal digits. A `+` is a space, unless spaces are written as `%20`:
/// then the client does not encode `+`.
fn decoded(text: &str) -> String {
    let text = if text.contains("%20") { text.to_owned() } else { text.replace('+', " ") };
    percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_without_encoding_are_read() {
        for (raw, query, k) in [
            ("query=who%20wrote%20C++%20books&k=20", Some("who wrote C++ books"), Some("20")),
            ("query=who+wrote+it", Some("who wrote it"), None),
            ("query=AT&T%20history&k=5", Some("AT&T history"), Some("5")),
            ("k=5&query=AT%26T", Some("AT&T"), Some("5")),
            ("query=100%25%20or%20100%%20of%zz&k=3&k=4", Some("100% or 100% of%zz"), Some("4")),
            ("query=&#39;", Some("&#39;"), None),
            ("query=", Some(""), None),
            ("query=%ff%C3%A9", Some("\u{fffd}é"), None),
            ("q=x", None, None),
            ("", None, None),
        ] {
            let (found, number) = asked(raw);
            assert_eq!((found.as_deref(), number), (query, k), "{raw}");
        }
    }

    #[test]
    fn large_scores_have_probabilities() {
        let found = softmax(&[2000.0, 2000.0, 1.0]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
        assert_eq!(softmax(&[]), Vec::<f64>::new());
    }
}

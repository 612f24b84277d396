//! "Did you mean": finds the nearest valid word.

/// Limit of compared candidates.
pub(super) const MAX_CANDIDATES: usize = 1000;

/// Returns the candidate that the user most likely meant, if any is near.
pub(super) fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(word);
    let limit = (wanted.chars().count() / 3).clamp(1, 4);
    let near = candidates.into_iter().take(MAX_CANDIDATES).filter_map(|candidate| {
        let distance = distance(&wanted, &fold(candidate), limit)?;
        Some((distance, candidate))
    });
    near.min().map(|(_, candidate)| candidate)
}

/// Ignores case and the choice between `-`, `_` and space.
fn fold(word: &str) -> String {
    word.chars().take(80).map(|ch| if matches!(ch, '-' | ' ') { '_' } else { ch.to_ascii_lowercase() }).collect()
}

fn distance(wanted: &str, candidate: &str, limit: usize) -> Option<usize> {
    if wanted.len().abs_diff(candidate.len()) > limit {
        let is_part = wanted.len() >= 3 && (candidate.starts_with(wanted) || candidate.ends_with(wanted));
        return is_part.then_some(limit + 1);
    }
    let distance = strsim::osa_distance(wanted, candidate);
    (distance <= limit).then_some(distance)
}

/// Advises on an invalid word: the nearest valid one, or all of them.
pub(crate) fn advice(word: &str, candidates: &[&str]) -> Option<String> {
    match closest(word, candidates.iter().copied()) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None => listing(candidates),
    }
}

/// Lists the valid words.
pub(super) fn listing(candidates: &[&str]) -> Option<String> {
    const SHOWN: usize = 24;
    if candidates.is_empty() {
        return None;
    }
    let shown: Vec<_> = candidates.iter().take(SHOWN).map(|word| format!("`{word}`")).collect();
    let more = candidates.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("available: {}{rest}", shown.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_only() {
        let words = ["chunk_tokens", "top_k", "model", "max_turns"];
        assert_eq!(closest("chunk-token", words), Some("chunk_tokens"));
        assert_eq!(closest("topk", words), Some("top_k"));
        assert_eq!(closest("mdoel", words), Some("model"));
        assert_eq!(closest("turns", words), Some("max_turns"));
        assert_eq!(closest("temperature", words), None);
    }
}

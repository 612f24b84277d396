//! "Did you mean": finds the nearest valid word.

use std::collections::BTreeSet;

use super::coordinate::{base, in_order};
use crate::node_id;

/// Names of outputs of loops that an error shows (at most).
const SHOWN: usize = 4;

/// Limit of compared candidates.
pub(super) const MAX_CANDIDATES: usize = 1000;

/// Returns the candidate that the user most likely meant, if any is near.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = fold(word);
    // One letter in three: short words that differ in two are other words.
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
    (!candidates.is_empty()).then(|| suggest(word, candidates, "available"))
}

/// Suggests the closest of `names`, or lists them.
pub fn suggest(wrong: &str, names: &[&str], what: &str) -> String {
    match closest(wrong, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None if names.is_empty() => format!("there are no {what}"),
        None => listed(names, what),
    }
}

/// Suggests a node or an output of a loop (one of `handed_on`: `rl.policy`) for an unknown `NODE`, `NODE.PORT` or
/// `LOOP.NAME`.
pub(crate) fn meant_output<'a>(wrong: &str, nodes: &[&str], handed_on: impl Iterator<Item = &'a str>) -> String {
    let of_loop: Vec<&str> = handed_on.filter(|name| base(name) == base(wrong)).collect();
    // A round has no such output: `rl@round=1` is the decision after it.
    let is_of_round = node_id::round(wrong).is_some() && in_order(wrong).is_none();
    if !of_loop.is_empty() && !is_of_round {
        return suggest(wrong, &of_loop, &format!("what the loop `{}` hands on", base(wrong)));
    }
    match in_order(wrong) {
        Some(meant) if nodes.iter().any(|id| meant.strip_prefix(id).is_some_and(|rest| rest.starts_with('.'))) => {
            format!("write `{meant}`")
        }
        _ => meant_node(wrong.rsplit_once('.').map_or(wrong, |(node, _)| node), nodes),
    }
}

/// Returns the message and the remedy for a name (`rl.policy`) that outputs of several loops of a matrix have.
pub(crate) fn several_loops(name: &str, outputs: &[&str]) -> (String, String) {
    let shown = outputs.iter().take(SHOWN).map(|output| format!("`{output}`")).collect::<Vec<_>>().join(", ");
    let more = if outputs.len() > SHOWN { format!(" (there are {})", outputs.len()) } else { String::new() };
    (format!("several loops hand on `{name}`"), format!("name one of them: {shown}{more}"))
}

/// Suggests a node for an unknown name. The name of a node with a matrix, or of one in a loop, refers to no single node.
pub(crate) fn meant_node(wrong: &str, nodes: &[&str]) -> String {
    let mut variants = nodes.to_vec();
    variants.retain(|id| matches!(id.split_once('@'), Some((base, variant)) if base == wrong && variant != "all"));
    if let Some(first) = variants.first() {
        let more = if variants.len() == 1 { String::new() } else { format!(" (there are {})", variants.len()) };
        let all = format!("{wrong}@all");
        let all = if nodes.contains(&all.as_str()) { format!("; all of them are `{all}`") } else { String::new() };
        // Nodes of a record stand in the order in which they ended: a later round may end before an earlier one.
        let of_rounds = variants.iter().filter(|id| node_id::round(id).is_some());
        return match of_rounds.max_by_key(|id| node_id::round(id)) {
            Some(last) => format!("`{wrong}` is in a loop: name one of its rounds, for example `{last}`{more}{all}"),
            None => format!("`{wrong}` has a matrix: name one of its nodes, for example `{first}`{more}{all}"),
        };
    }
    let names: Vec<&str> = nodes.iter().map(|id| node_id::name(id)).collect();
    let Some((name, variant)) = wrong.split_once('@') else {
        return match closest(wrong, names) {
            Some(name) => format!("did you mean `{name}`?"),
            None => suggest(wrong, nodes, "nodes"),
        };
    };
    let near = if names.contains(&name) { Some(name) } else { closest(name, names.iter().copied()) };
    let Some(base) = near else {
        let names: BTreeSet<&str> = names.into_iter().collect();
        return suggest(name, &names.into_iter().collect::<Vec<_>>(), "nodes");
    };
    let is_all = closest(variant, ["all"]).is_some();
    let meant = format!("{base}@{}", if is_all { "all" } else { variant });
    let mut variants = Vec::new();
    for id in nodes.iter().copied().filter(|id| node_id::name(id) == base) {
        // Another value is no slip: `size=20` does not mean `size=40`. Another order of the coordinates is.
        if parts(id) == parts(&meant) {
            return format!("did you mean `{id}`?");
        }
        variants.push(id);
    }
    match variants.as_slice() {
        [one] if !one.contains('@') => format!("`{base}` has no matrix"),
        all => listed(all, &format!("nodes of the matrix of `{base}`")),
    }
}

/// Returns the name and the coordinates of a node, in no order.
fn parts(id: &str) -> BTreeSet<&str> {
    id.split(['@', ',']).collect()
}

/// Lists the valid words.
pub(super) fn listing(candidates: &[&str]) -> Option<String> {
    (!candidates.is_empty()).then(|| listed(candidates, "available"))
}

fn listed(names: &[&str], what: &str) -> String {
    const SHOWN: usize = 24;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|word| format!("`{word}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{what}: {}{rest}", shown.join(", "))
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

    #[test]
    fn other_values_of_a_matrix_are_no_slips() {
        let nodes = ["rows", "hits@size=40", "hits@size=60", "hits@all", "long"];
        let told = |wrong| meant_node(wrong, &nodes);
        let variants = "nodes of the matrix of `hits`: `hits@size=40`, `hits@size=60`, `hits@all`";
        assert_eq!(told("hits@size=20"), variants);
        assert_eq!(told("hits@al"), "did you mean `hits@all`?");
        assert_eq!(told("long@al"), "`long` has no matrix");
        assert_eq!(told("hit@size=40"), "did you mean `hits@size=40`?");
        assert_eq!(told("hit@size=20"), variants);
        assert_eq!(told("rows@size=20"), "`rows` has no matrix");
        assert_eq!(told("q@al"), "nodes: `hits`, `long`, `rows`");
        assert_eq!(
            told("hits"),
            "`hits` has a matrix: name one of its nodes, for example `hits@size=40` (there are 2); all of them are `hits@all`"
        );
        assert_eq!(told("hit"), "did you mean `hits`?");
        let ended = ["parts@round=1", "parts@round=10", "parts@round=9"];
        assert_eq!(
            meant_node("parts", &ended),
            "`parts` is in a loop: name one of its rounds, for example `parts@round=10` (there are 3)"
        );
        let step = ["step@lr=1,round=0", "step@lr=1,round=1"];
        assert_eq!(meant_node("step@round=1,lr=1", &step), "did you mean `step@lr=1,round=1`?");
        let of_loop = meant_output("rl.policy@round=1", &["rl@round=1", "x"], ["rl.policy"].into_iter());
        assert_eq!(of_loop, "what the loop `rl` hands on: `rl.policy`");
    }
}

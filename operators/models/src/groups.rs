//! Groups of texts that are encoded together. Content decides where a group ends, so adding, removing or changing a text
//! leaves the other groups, and their cached results, valid.

use std::ops::Range;

use searchmill_text::fnv::{OFFSET, fnv1a};

/// Splits texts into groups of about `bytes` bytes. From half that size on, a group ends after a text chosen by its hash (with
/// equal probability for each byte); at twice that size it ends in any case. A cut depends only on the texts since the last
/// one. The last group may be incomplete.
pub fn groups(texts: &[&str], bytes: usize) -> Vec<Range<usize>> {
    let mut cut = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (index, text) in texts.iter().enumerate() {
        size += text.len();
        if ends(text, size, bytes.max(1)) {
            cut.push(start..index + 1);
            (start, size) = (index + 1, 0);
        }
    }
    if start < texts.len() {
        cut.push(start..texts.len());
    }
    cut
}

/// Whether a group of `size` bytes ends with this text.
fn ends(text: &str, size: usize, bytes: usize) -> bool {
    if size < bytes / 2 {
        return false;
    }
    size >= bytes * 2 || hash(text) % (bytes as u64 / 2).max(1) < text.len() as u64
}

/// FNV-1a with a final mix.
fn hash(text: &str) -> u64 {
    let hash = fnv1a(OFFSET, text.as_bytes());
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const BYTES: usize = 4096;

    fn texts() -> Vec<String> {
        (0..3000_usize).map(|n| format!("{n}: {}", "a word and another ".repeat(1 + n * 7919 % 60))).collect()
    }

    fn cut(texts: &[String]) -> Vec<Vec<&str>> {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        groups(&texts, BYTES).into_iter().map(|group| texts[group].to_vec()).collect()
    }

    #[test]
    fn groups_hold_all_texts_in_their_order_and_keep_to_their_size() {
        let texts = texts();
        let groups = cut(&texts);
        assert_eq!(groups.concat(), texts);
        let sizes: Vec<usize> = groups.iter().map(|group| group.iter().map(|text| text.len()).sum()).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((BYTES / 2..BYTES * 3 / 2).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|size| *size < BYTES * 2 + 2000), "{sizes:?}");
    }

    #[test]
    fn a_text_more_or_changed_costs_few_groups() {
        let before = texts();
        let known: BTreeSet<Vec<&str>> = cut(&before).into_iter().collect();
        let mut after = before.clone();
        after.insert(700, "a new text".to_owned());
        after[2000].push('!');
        let new = cut(&after).into_iter().filter(|group| !known.contains(group)).count();
        assert!((1..=8).contains(&new), "{new} of {}", known.len());
    }

    #[test]
    fn whole_groups_alone_are_cut_as_before() {
        let texts = texts();
        let groups = cut(&texts);
        let some: Vec<String> = [3, 4, 9].iter().flat_map(|n| &groups[*n]).map(|text| (*text).to_owned()).collect();
        assert_eq!(cut(&some), [groups[3].clone(), groups[4].clone(), groups[9].clone()]);
    }

    #[test]
    fn empty_texts_do_not_go_on_for_ever() {
        let texts = vec![""; 50];
        assert_eq!(groups(&texts, BYTES).first(), Some(&(0..50)));
        assert!(groups(&[], BYTES).is_empty());
    }
}

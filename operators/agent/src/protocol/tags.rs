//! Pairs of tags in a model's text.

use schemars::JsonSchema;
use searchmill_text::thoughts;
use serde::{Deserialize, Serialize};

/// An opening and a closing tag, written `["<search>", "</search>"]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "(String, String)", into = "(String, String)")]
#[schemars(with = "(String, String)")]
pub struct Tags {
    pub open: String,
    pub close: String,
}

impl From<(String, String)> for Tags {
    fn from(tags: (String, String)) -> Self {
        let (open, close) = tags;
        Self { open, close }
    }
}

impl From<Tags> for (String, String) {
    fn from(tags: Tags) -> Self {
        (tags.open, tags.close)
    }
}

impl Tags {
    pub(crate) fn new(open: &str, close: &str) -> Self {
        Self { open: open.to_owned(), close: close.to_owned() }
    }

    /// Whether a tag of one pair is a part of a tag of the other.
    pub(super) fn meets(&self, other: &Self) -> bool {
        for one in [self.open.trim(), self.close.trim()] {
            for two in [other.open.trim(), other.close.trim()] {
                // An empty tag is a part of every text, and stands for none.
                if !one.is_empty() && !two.is_empty() && (one.contains(two) || two.contains(one)) {
                    return true;
                }
            }
        }
        false
    }

    /// Puts a text between the tags.
    pub(super) fn around(&self, text: &str) -> String {
        format!("{}{text}{}", self.open, self.close)
    }

    /// Position of the first closing tag that ends a pair, and the text of that pair.
    pub(super) fn first<'t>(&self, text: &'t str) -> Option<(usize, &'t str)> {
        for (end, _) in text.match_indices(self.close.as_str()) {
            if let Some(open) = text[..end].rfind(self.open.as_str()) {
                return Some((end, &text[open + self.open.len()..end]));
            }
        }
        None
    }

    /// Whether the last pair is open.
    pub(super) fn is_open(&self, text: &str) -> bool {
        match (text.rfind(&self.open), text.rfind(&self.close)) {
            (Some(open), Some(close)) => close + self.close.len() < open + self.open.len(),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Returns the text between the last opening and the last closing tag after it, trimmed; `None` without such a pair.
    /// Text in thoughts (`<think>`, closed or not) does not count. (DeepSearch-RL's rule, extended by trimming and
    /// thoughts.)
    pub(crate) fn last_pair<'t>(&self, text: &'t str) -> Option<&'t str> {
        let said = thoughts::split(text).said.into_iter().rev().find(|said| said.contains(self.open.as_str()))?;
        let (_, after) = said.rsplit_once(self.open.as_str())?;
        Some(after.rsplit_once(self.close.as_str())?.0.trim())
    }

    /// Returns the text of the last pair; empty without one.
    pub(super) fn last<'t>(&self, text: &'t str) -> &'t str {
        self.last_pair(text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(text: &str) -> &str {
        Tags::new("<answer>", "</answer>").last(text)
    }

    #[test]
    fn the_answer_stands_between_the_last_tags() {
        assert_eq!(answer("so <answer> Paris\n</answer>."), "Paris");
        assert_eq!(answer("<answer>A</answer> no, <answer>B</answer>"), "B");
        assert_eq!(answer("</answer> and <answer>B"), "");
        assert_eq!(answer("<answer>B"), "");
        assert_eq!(answer("no tags"), "");
        assert_eq!(answer("<answer></answer>"), "");
        assert_eq!(answer("<answer>東京</answer>"), "東京");
    }

    #[test]
    fn thoughts_answer_nothing() {
        assert_eq!(answer("<think>maybe <answer>X</answer>"), "");
        assert_eq!(answer("<think>maybe <answer>X</answer></think> no"), "");
        assert_eq!(answer("maybe <answer>X</answer></think>"), "", "opened by the template");
        assert_eq!(answer("<think><answer>X</answer></think><answer>Y</answer>"), "Y");
        assert_eq!(answer("<answer>Y</answer><think>or <answer>X</answer>"), "Y");
        assert_eq!(answer("<answer>Y</answer><think>good</think> That is all."), "Y");
        assert_eq!(answer("<answer>Y<think>really?</think></answer>"), "", "not in one piece");
    }

    #[test]
    fn the_first_pair_ends_at_its_own_closing_tag() {
        let tags = Tags::new("<s>", "</s>");
        assert_eq!(tags.first("a </s> <s> b </s> <s>c</s>"), Some((13, " b ")));
        assert_eq!(tags.first("<s>a<s>b</s>"), Some((8, "b")));
        assert_eq!((tags.first("a</s>"), tags.first("<s>a")), (None, None));
        assert!(tags.is_open("<s>a</s> <s>b") && !tags.is_open("<s>a</s>") && !tags.is_open("a</s>"));
    }
}

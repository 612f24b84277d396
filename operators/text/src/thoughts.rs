//! Separates a model's thoughts (`<think>…</think>`, also unfinished) from its answer.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A model's text, separated into answer and thoughts.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Split<'t> {
    /// The answer, in pieces between thoughts.
    pub said: Vec<&'t str>,
    /// The thoughts. The chat template may have opened the first one; the last one may be unfinished.
    pub thought: Vec<&'t str>,
}

/// Separates thoughts from the answer. An unclosed thought extends to the end of the text.
pub fn split(text: &str) -> Split<'_> {
    let mut split = Split::default();
    let mut rest = text;
    loop {
        let opened = rest.find(OPEN);
        match rest.find(CLOSE) {
            // Closed but never opened: the prompt contains the opening tag.
            Some(close) if opened.is_none_or(|open| close < open) => {
                split.thought.append(&mut split.said);
                split.thought.push(&rest[..close]);
                rest = &rest[close + CLOSE.len()..];
            }
            close => {
                let Some(open) = opened else {
                    split.said.push(rest);
                    return split;
                };
                split.said.push(&rest[..open]);
                let start = open + OPEN.len();
                let Some(close) = close else {
                    split.thought.push(&rest[start..]);
                    return split;
                };
                split.thought.push(&rest[start..close]);
                rest = &rest[close + CLOSE.len()..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String) {
        let split = split(text);
        (split.said.join("|"), split.thought.join("|"))
    }

    #[test]
    fn thoughts_are_told_from_speech() {
        for (text, said, thought) in [
            ("plain", "plain", ""),
            ("<think>hm</think>yes", "|yes", "hm"),
            ("hm</think>yes", "yes", "hm"),
            ("a<think>b</think>c<think>d</think>e", "a|c|e", "b|d"),
            ("<think>not finished", "", "not finished"),
            ("yes<think>or no", "yes", "or no"),
            ("a</think>b</think>c", "c", "a|b"),
            ("<think>a<think>b</think>c", "|c", "a<think>b"),
            ("", "", ""),
        ] {
            assert_eq!(parts(text), (said.to_owned(), thought.to_owned()), "{text}");
        }
    }
}

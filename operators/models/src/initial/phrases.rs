//! Phrases found in nearly all texts (the fixed parts of prompts and tool calls). Each becomes one token.

use std::collections::{BTreeMap, HashMap};

use super::tokenizer::{CONTROL, MARKS};

/// Texts examined, evenly spaced.
const SAMPLE: usize = 400;
/// Minimum number of units of a phrase other than white space.
const LEAST: usize = 3;

/// Returns the common beginning of all texts, up to its last line break; then the phrases within messages that occur in at
/// least this share of the texts, in order of occurrence.
///
/// A phrase never crosses the head of a message (`<|im_start|>assistant` and its line break) or its end. The prompt of a
/// model ends there, and must be tokenised as the same text was in training.
pub fn phrases(texts: &[String], share: f64) -> Vec<String> {
    let start = beginning(texts);
    let mut names = Names::default();
    let mut cut: Vec<Vec<Vec<usize>>> = Vec::new();
    for text in texts.iter().step_by(texts.len().div_ceil(SAMPLE).max(1)) {
        let mut units = Vec::new();
        for message in messages(&text[start.len()..]) {
            units.push(names.units(message));
        }
        cut.push(units);
    }
    // At least two: what a single text repeats is no phrase.
    let wanted = (share * cut.len() as f64).ceil().max(2.0) as usize;
    while let Some((one, other)) = most_frequent(&cut, wanted) {
        let merged = names.join(one, other);
        for message in cut.iter_mut().flatten() {
            merge(message, one, other, merged);
        }
    }
    let mut phrases = Vec::new();
    if !start.trim().is_empty() {
        phrases.push(start);
    }
    let mut seen: Vec<usize> = Vec::new();
    for unit in cut.iter().flatten().flatten() {
        if names.size[*unit] >= LEAST && !seen.contains(unit) {
            seen.push(*unit);
            phrases.push(names.text[*unit].clone());
        }
    }
    phrases
}

/// Returns the common beginning of all texts, in whole lines.
fn beginning(texts: &[String]) -> String {
    let (Some(least), Some(greatest)) = (texts.iter().min(), texts.iter().max()) else { return String::new() };
    // A prefix of the first and the last text in sorted order is a prefix of all texts.
    let same = least.bytes().zip(greatest.bytes()).take_while(|(one, other)| one == other).count();
    let end = least.as_bytes()[..same].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    least[..end].to_owned()
}

/// Returns the bodies of a text's messages, without control tokens and the line with the role.
fn messages(text: &str) -> Vec<&str> {
    let mut bodies = vec![text];
    for control in CONTROL {
        bodies = bodies.into_iter().flat_map(|body| body.split(control)).collect();
    }
    // The first body continues where the common beginning ends: it has no line with the role.
    for body in bodies.iter_mut().skip(1) {
        if let Some((_, rest)) = body.split_once('\n') {
            *body = rest;
        }
    }
    bodies
}

/// Units by number: words, other single characters, marks, and units joined from these.
#[derive(Default)]
struct Names {
    text: Vec<String>,
    /// Number of its parts other than white space.
    size: Vec<usize>,
    numbers: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, text: &str, size: usize) -> usize {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        self.numbers.insert(text.to_owned(), self.text.len());
        self.text.push(text.to_owned());
        self.size.push(size);
        self.text.len() - 1
    }

    fn units(&mut self, message: &str) -> Vec<usize> {
        let (mut units, mut rest) = (Vec::new(), message);
        while let Some(first) = rest.chars().next() {
            let mark = MARKS.iter().find(|mark| rest.starts_with(**mark)).map(|mark| mark.len());
            let word = rest.find(|char: char| !char.is_alphanumeric()).unwrap_or(rest.len());
            let length = mark.unwrap_or(word.max(first.len_utf8()));
            units.push(self.number(&rest[..length], usize::from(!first.is_whitespace())));
            rest = &rest[length..];
        }
        units
    }

    fn join(&mut self, one: usize, other: usize) -> usize {
        let text = format!("{}{}", self.text[one], self.text[other]);
        let size = self.size[one] + self.size[other];
        // A joined unit differs from a word with the same letters.
        self.text.push(text);
        self.size.push(size);
        self.text.len() - 1
    }
}

/// Returns the pair of neighbours that occurs in the most texts, if in enough of them; the earliest of equals.
fn most_frequent(cut: &[Vec<Vec<usize>>], wanted: usize) -> Option<(usize, usize)> {
    let mut counts: BTreeMap<(usize, usize), (usize, usize)> = BTreeMap::new();
    for (text, messages) in cut.iter().enumerate() {
        for pair in messages.iter().flat_map(|message| message.windows(2)) {
            let (count, last) = counts.entry((pair[0], pair[1])).or_insert((0, usize::MAX));
            if *last != text {
                (*count, *last) = (*count + 1, text);
            }
        }
    }
    let (pair, (count, _)) = counts.into_iter().max_by_key(|(pair, (count, _))| (*count, std::cmp::Reverse(*pair)))?;
    if count >= wanted { Some(pair) } else { None }
}

fn merge(units: &mut Vec<usize>, one: usize, other: usize, merged: usize) {
    let mut rest = Vec::with_capacity(units.len());
    for unit in units.iter() {
        if *unit == other && rest.last() == Some(&one) {
            rest.pop();
            rest.push(merged);
        } else {
            rest.push(*unit);
        }
    }
    *units = rest;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(n: usize) -> String {
        let name = ["Zorga", "Brello", "Tinka"][n % 3];
        format!(
            "<|im_start|>system\nUse the tool.<|im_end|>\n<|im_start|>user\nWho founded {name} {n}?<|im_end|>\n\
             <|im_start|>assistant\n<tool_call>\n{{\"name\": \"search\", \"query\": \"{name} {n}\"}}\n</tool_call><|im_end|>\n\
             <|im_start|>assistant\n<answer>{name}</answer><|im_end|>"
        )
    }

    #[test]
    fn fixed_parts_are_found_and_stop_where_messages_do() {
        let texts: Vec<String> = (0..50).map(text).collect();
        let wanted = [
            "<|im_start|>system\nUse the tool.<|im_end|>\n<|im_start|>user\n",
            "Who founded ",
            "<tool_call>\n{\"name\": \"search\", \"query\": \"",
            "\"}\n</tool_call>",
            "<answer>",
            "</answer>",
        ];
        let found = phrases(&texts, 0.9);
        // "Who founded " has two words only.
        let expected: Vec<&str> = wanted.into_iter().filter(|phrase| *phrase != "Who founded ").collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_stands_in_some_texts_only_is_no_phrase() {
        let texts: Vec<String> =
            (0..40).map(|n| if n % 2 == 0 { text(n) } else { format!("Number {n} is another one") }).collect();
        assert!(phrases(&texts, 0.9).is_empty(), "{:?}", phrases(&texts, 0.9));
        assert!(phrases(&texts, 0.4).contains(&"</answer>".to_owned()));
    }

    #[test]
    fn merging_goes_from_left_to_right() {
        let mut units = vec![1, 1, 2, 1, 2, 2];
        merge(&mut units, 1, 2, 9);
        assert_eq!(units, [1, 9, 9, 2]);
        let mut same = vec![1, 1, 1];
        merge(&mut same, 1, 1, 9);
        assert_eq!(same, [9, 1]);
    }
}

//! Places at which a text can be cut without changing its token count.
//!
//! A tokenizer normalises, splits into words, and tokenises each word by itself. Between some characters it always
//! splits, and neither side affects the other. There `count(a + b) = count(a) + count(b)`, so words can be counted one
//! by one and cached. Only pipelines with that property are listed:
//!
//! - BERT ([`Segmentation::Bert`]): drops whitespace, isolates ASCII punctuation, pads ideographs with spaces. Control
//!   characters, punctuation of other scripts and combining marks stay inside a segment.
//! - Byte-level BPE with the regex of GPT-2, Llama 3 or Qwen 2 ([`Segmentation::BeforeSpace`]): no alternative matches
//!   a space after another kind of character, and none looks behind. A space after a non-whitespace character therefore
//!   always starts a new word.

use std::ops::Range;

use serde_json::Value;

/// Where the text of one tokenizer can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// Around ASCII whitespace and punctuation, and around CJK ideographs where the normaliser pads them.
    Bert { ideographs: bool },
    /// Before a space that follows a non-whitespace character.
    BeforeSpace,
}

/// The word regexes of Llama 3 and of Qwen 2 to 3, copied from their `tokenizer.json` files.
pub(super) const SPACE_LED_WORDS: [&str; 2] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

impl Segmentation {
    /// Returns the segmentation of a parsed `tokenizer.json`, or `None` if no exact one is known.
    pub(crate) fn of(file: &Value) -> Option<Self> {
        let (normalizer, words) = (&file["normalizer"], &file["pre_tokenizer"]);
        let added = file["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
        // Such tokens are found in the normalised text, which is not known here.
        if !normalizer.is_null() && added.iter().any(|token| token["normalized"] == true) {
            return None;
        }
        match (normalizer["type"].as_str(), words["type"].as_str()?) {
            (Some("BertNormalizer"), "BertPreTokenizer") => {
                Some(Self::Bert { ideographs: normalizer["handle_chinese_chars"] == true })
            }
            // A file that leaves `use_regex` out means true.
            (None | Some("NFC"), "ByteLevel") if words["use_regex"] != false => Some(Self::BeforeSpace),
            (None | Some("NFC"), "Sequence") => space_led(words["pretokenizers"].as_array()?),
            _ => None,
        }
    }

    /// Sums `count` over the segments of `text`, given as byte ranges. `marks` holds the counts of ASCII punctuation.
    #[inline]
    pub(crate) fn sum(self, text: &str, marks: &[usize; 128], mut count: impl FnMut(Range<usize>) -> usize) -> usize {
        match self {
            Self::Bert { ideographs } => sum_bert(text, ideographs, marks, count),
            Self::BeforeSpace => {
                let (mut start, mut total) = (0, 0);
                for (at, &byte) in text.as_bytes().iter().enumerate() {
                    if byte == b' ' && ends_solid(&text[start..at]) {
                        total += count(start..at);
                        start = at;
                    }
                }
                if start < text.len() { total + count(start..text.len()) } else { total }
            }
        }
    }

    /// Returns the first cut at or after `from`, or the end of `text`.
    pub(crate) fn cut_behind(self, text: &str, from: usize) -> usize {
        let bytes = text.as_bytes();
        // A cut at the beginning would cut nothing off.
        let mut places = from.max(1)..bytes.len();
        let cut = places.find(|&at| match self {
            Self::Bert { .. } => matches!(bytes[at], b' ' | b'\t' | b'\n' | b'\r'),
            Self::BeforeSpace => bytes[at] == b' ' && ends_solid(&text[..at]),
        });
        cut.unwrap_or(bytes.len())
    }
}

fn space_led(parts: &[Value]) -> Option<Segmentation> {
    let [split, bytes] = parts else { return None };
    let known = split["type"] == "Split"
        && split["behavior"] == "Isolated"
        && split["invert"] != true
        && SPACE_LED_WORDS.contains(&split["pattern"]["Regex"].as_str()?);
    let plain = bytes["type"] == "ByteLevel" && bytes["use_regex"] == false && bytes["add_prefix_space"] == false;
    if known && plain { Some(Segmentation::BeforeSpace) } else { None }
}

const WORD: u8 = 0;
const SPACE: u8 = 1;
const MARK: u8 = 2;
const WIDE: u8 = 3;

const fn classes() -> [u8; 256] {
    let mut table = [WORD; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        if matches!(b, b' ' | b'\t' | b'\n' | b'\r') {
            table[byte] = SPACE;
        } else if b.is_ascii_punctuation() {
            table[byte] = MARK;
        } else if b >= 0x80 {
            table[byte] = WIDE;
        }
        byte += 1;
    }
    table
}

static CLASSES: [u8; 256] = classes();

#[inline]
fn sum_bert(text: &str, ideographs: bool, marks: &[usize; 128], mut count: impl FnMut(Range<usize>) -> usize) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut total) = (0, 0);
    while at < bytes.len() {
        match CLASSES[usize::from(bytes[at])] {
            SPACE => at += 1,
            MARK => {
                total += marks[usize::from(bytes[at])];
                at += 1;
            }
            _ => {
                let end = word_end(text, at, ideographs);
                total += count(at..end);
                at = end;
            }
        }
    }
    total
}

/// Returns the end of the word at `start`: one ideograph, or the text up to whitespace, ASCII punctuation or an
/// ideograph.
#[inline]
fn word_end(text: &str, start: usize, ideographs: bool) -> usize {
    let bytes = text.as_bytes();
    let mut at = start;
    while at < bytes.len() {
        match CLASSES[usize::from(bytes[at])] {
            WORD => at += 1,
            // Byte by byte: the other bytes of a character have this class as well.
            WIDE if !ideographs => at += 1,
            WIDE => {
                let Some(wide) = text[at..].chars().next() else { break };
                if is_ideograph(wide) {
                    return if at == start { at + wide.len_utf8() } else { at };
                }
                at += wide.len_utf8();
            }
            _ => break,
        }
    }
    at
}

/// Whether BERT puts spaces around a character (Devlin et al. 2019, `_is_chinese_char`). In tokenizers 0.23 the fifth
/// block starts at U+2B920, so the characters before it stay inside their segment.
fn is_ideograph(character: char) -> bool {
    matches!(
        u32::from(character),
        0x3400..=0x4DBF
            | 0x4E00..=0x9FFF
            | 0xF900..=0xFAFF
            | 0x2_0000..=0x2_A6DF
            | 0x2_A700..=0x2_B81F
            | 0x2_B920..=0x2_CEAF
            | 0x2_F800..=0x2_FA1F
    )
}

fn ends_solid(text: &str) -> bool {
    match text.as_bytes().last() {
        None => false,
        Some(byte) if byte.is_ascii() => byte.is_ascii_graphic(),
        Some(_) => text.chars().next_back().is_some_and(|last| !last.is_whitespace()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn segments(rule: Segmentation, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        rule.sum(text, &[1; 128], |segment| {
            found.push(text[segment].to_owned());
            1
        });
        found
    }

    #[test]
    fn bert_words_stand_between_spaces_punctuation_and_ideographs() {
        let bert = Segmentation::Bert { ideographs: true };
        assert_eq!(segments(bert, "can't  stop,\tZoë—now 中文ok"), ["can", "t", "stop", "Zoë—now", "中", "文", "ok"]);
        assert_eq!(segments(Segmentation::Bert { ideographs: false }, "中文ok"), ["中文ok"]);
        assert_eq!(bert.sum("a, b.", &[1; 128], |_| 1), 4);
    }

    #[test]
    fn spaces_lead_the_next_word() {
        let rule = Segmentation::BeforeSpace;
        assert_eq!(segments(rule, "a  b\n c,\u{a0} d "), ["a", "  b\n c,\u{a0} d", " "]);
        assert_eq!(segments(rule, "  x y"), ["  x", " y"]);
        assert_eq!(rule.cut_behind("abc def ghi", 4), 7);
        assert_eq!(rule.cut_behind("abc", 1), 3);
    }

    #[test]
    fn only_known_pipelines_are_segmented() {
        let bert = json!({"normalizer": {"type": "BertNormalizer", "handle_chinese_chars": true},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "added_tokens": [{"content": "[SEP]", "normalized": false}]});
        assert_eq!(Segmentation::of(&bert), Some(Segmentation::Bert { ideographs: true }));
        let mut matched = bert.clone();
        matched["added_tokens"][0]["normalized"] = json!(true);
        assert_eq!(Segmentation::of(&matched), None, "an added token is matched in normalised text");
        let gpt2 = json!({"normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}});
        assert_eq!(Segmentation::of(&gpt2), Some(Segmentation::BeforeSpace));
        let mut split = json!({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": SPACE_LED_WORDS[1]}});
        let bytes = json!({"type": "ByteLevel", "use_regex": false, "add_prefix_space": false});
        let qwen = |split: &Value| {
            json!({"normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes]}})
        };
        assert_eq!(Segmentation::of(&qwen(&split)), Some(Segmentation::BeforeSpace));
        split["pattern"]["Regex"] = json!(r"\w+ \w+");
        assert_eq!(Segmentation::of(&qwen(&split)), None);
        let metaspace = json!({"normalizer": null, "pre_tokenizer": {"type": "Metaspace"}});
        assert_eq!(Segmentation::of(&metaspace), None);
    }
}

//! ReSearch's reward (Agent-RL/ReSearch, branch `re-search` at 4bdb872, arXiv 2503.19470).
//!
//! **Published** ([`published`]): 0 if the response is not in the format or does not end with the end-of-turn token,
//! else the SQuAD token F1 of the content of the last `\boxed{…}` in the answer, or 0.1 if that F1 is 0. Its faults:
//! an F1 below 0.1 earns less than a wrong answer; tags in a retrieved text break the format; `<result>` written by
//! the model counts as a result; of a response that contains the marker of the assistant's turn (`Assistant:` with a
//! base model), or of a question that does, only a part is read.
//!
//! **Mended** ([`mended`]): 0.1 + 0.9 · F1 in the format, else 0. It rises with F1, reads only what the model wrote,
//! and a result that the model wrote itself breaks the format.

use searchmill_text::normalize::python_trim;

use crate::protocol::braced;
use crate::reward::outcome::Reward;
use crate::reward::pieces::{ANSWER, ANSWER_END, THINK, THINK_END, best_f1, count, final_answer, find_from, pairs};
use crate::reward::transcript::Transcript;
use crate::reward::turns::Grammar;

/// Reward of a wrong answer in the format.
const FORMAT: f64 = 0.1;
/// Marker of the assistant's turn in Qwen's chat template.
const CHAT_MARKER: &str = "<|im_start|>assistant\n";
/// Marker of the assistant's turn in the prompt for base models.
const BASE_MARKER: &str = "Assistant:";
/// End of turn in Qwen's chat template.
const END_OF_TURN: &str = "<|im_end|>";

const GRAMMAR: Grammar = Grammar { search: "<search>", search_end: "</search>", results: ["<result>", "</result>"] };

/// Returns the published reward of a transcript. A prompt that ends with `Assistant:` is a base model's; any other one
/// is taken to be in Qwen's chat template.
pub fn published(transcript: &Transcript, golden: &[String]) -> Reward {
    let response = transcript.response();
    let prompt = &transcript.prompt;
    // The prompt of a base model ends with the marker already.
    let marker = if prompt.trim_end().ends_with(BASE_MARKER) { "" } else { CHAT_MARKER };
    let end = if transcript.finished { END_OF_TURN } else { "" };
    published_text(&format!("{prompt}{marker}{response}{end}"), END_OF_TURN, golden)
}

/// Returns the published reward of prompt and response as one decoded text that ends with the tokenizer's
/// end-of-sequence text. 0 if the text has no marker of the assistant's turn (the original fails).
pub fn published_text(text: &str, end: &str, golden: &[String]) -> Reward {
    let marker = if text.contains(CHAT_MARKER) { CHAT_MARKER } else { BASE_MARKER };
    let response = text.split(marker).nth(1).filter(|response| is_formatted(response));
    let answer = response.and_then(|response| response.strip_suffix(end)).and_then(answer_part).and_then(boxed);
    let Some(answer) = answer else { return Reward::of("format", 0.0) };
    let f1 = best_f1(Some(answer), golden);
    if f1 > 0.0 { Reward::of("f1", f1) } else { Reward::of("format", FORMAT) }
}

fn is_formatted(text: &str) -> bool {
    let (thoughts, thoughts_ended) = (count(text, THINK), count(text, THINK_END));
    thoughts > 0
        && thoughts == thoughts_ended
        && count(text, ANSWER) == 1
        && count(text, ANSWER_END) == 1
        && searches_in_order(text)
        && shows_box(text)
}

/// Whether `<search>`, `</search>`, `<result>` and `</result>` follow each other after every `<search>`.
fn searches_in_order(text: &str) -> bool {
    let mut position = 0;
    while let Some(search) = find_from(text, "<search>", position) {
        let (search_end, result) = (find_from(text, "</search>", search), find_from(text, "<result>", search));
        let (Some(search_end), Some(result)) = (search_end, result) else { return false };
        let Some(result_end) = find_from(text, "</result>", result).filter(|_| search_end < result) else {
            return false;
        };
        position = result_end;
    }
    true
}

/// Whether `\boxed{` and `}` are between the answer's tags.
fn shows_box(text: &str) -> bool {
    let (Some(start), Some(end)) = (text.find(ANSWER), text.find(ANSWER_END)) else { return false };
    // The closing tag may stand before the opening one.
    let inside = text.get(start..end).unwrap_or_default();
    inside.contains("\\boxed{") && inside.contains('}')
}

fn answer_part(response: &str) -> Option<&str> {
    pairs(python_trim(response), ANSWER, ANSWER_END).first().copied()
}

/// Returns the content of the last box as the original finds it: `\boxed ` up to `$` if it occurs anywhere, else
/// `\boxed{…}` with balanced braces, which must begin with the last `\boxed`.
fn boxed(text: &str) -> Option<&str> {
    if let Some((_, rest)) = text.rsplit_once("\\boxed ") {
        return rest.split('$').next();
    }
    let start = text.rfind("\\boxed")?;
    braced(text[start..].strip_prefix("\\boxed{")?)
}

/// Returns the mended reward.
pub fn mended(transcript: &Transcript, golden: &[String]) -> Reward {
    let (None, Some(answer)) = (fault(transcript), final_answer(transcript).and_then(boxed)) else {
        return Reward::of("format", 0.0);
    };
    Reward::of("format", FORMAT).and("f1", (1.0 - FORMAT) * best_f1(Some(answer), golden))
}

/// Returns why the model's text is not in ReSearch's format.
pub fn fault(transcript: &Transcript) -> Option<&'static str> {
    if !transcript.finished {
        return Some("cut off");
    }
    let (mut opened, mut closed) = (0, 0);
    for text in transcript.model_texts() {
        opened += count(text, THINK);
        closed += count(text, THINK_END);
    }
    if opened == 0 || opened != closed {
        return Some("no thoughts, or not closed");
    }
    let fault = GRAMMAR.fault(transcript);
    if fault.is_none() && final_answer(transcript).and_then(boxed).is_none() {
        return Some("no `\\boxed{…}` in the answer");
    }
    fault
}

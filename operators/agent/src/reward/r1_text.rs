//! What the three rewards of R1-Searcher share: how they read the decoded text, and the format of the model's turns.
//!
//! Source: `train/reward_server_*.py` of RUCAIBox/R1-Searcher at 631167c (arXiv 2503.05592).

use memchr::memmem;
use searchmill_text::answer_metrics::r1_searcher::r1_searcher_f1;
use searchmill_text::normalize::{is_python_space, python_trim};

use crate::reward::pieces::{ANSWER, ANSWER_END, THINK, THINK_END, contains, count, final_answer};
use crate::reward::transcript::Transcript;
use crate::reward::turns::Grammar;

/// End of the prompt for base models; the model's text follows.
pub(super) const BASE_MARKER: &str = "\nAssistant: <think>";
/// End of the prompt in Llama 3's chat template.
pub(super) const LLAMA_MARKER: &str = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n<think>";
/// Begin of the user's message in Llama 3's chat template.
const LLAMA_USER: &str = "<|start_header_id|>user<|end_header_id|>\n\n";
/// Text of the end-of-sequence token of Qwen2.5's base models.
pub(super) const QWEN_END: &str = "<|endoftext|>";
/// Text of Llama 3's end of turn.
pub(super) const LLAMA_END: &str = "<|eot_id|>";

const DOCUMENTS: &str = "<|begin_of_documents|>";
const DOCUMENTS_END: &str = "<|end_of_documents|>";
const QUERY: &str = "<|begin_of_query|>";
const QUERY_END: &str = "<|end_of_query|>";

pub(super) const GRAMMAR: Grammar =
    Grammar { search: QUERY, search_end: QUERY_END, results: [DOCUMENTS, DOCUMENTS_END] };

/// Returns the question of a text that a reward server receives: it stands between the instructions and the model's turn.
pub fn question_in(query: &str) -> Option<&str> {
    let between = between(query, "\n\nUser:", BASE_MARKER).or(between(query, LLAMA_USER, LLAMA_MARKER));
    let question = python_trim(between?);
    if question.is_empty() { None } else { Some(question) }
}

/// Returns the text after the first `start`, up to the first `end` of the whole text.
fn between<'t>(text: &'t str, start: &str, end: &str) -> Option<&'t str> {
    let (before, _) = text.split_once(end)?;
    Some(before.split_once(start)?.1)
}

/// Returns the text that a reward server would receive from the trainer. The line feed stands for the prompt, so that
/// nothing is stripped off the marker.
pub(super) fn query_of(transcript: &Transcript, marker: &str) -> String {
    format!("\n{marker}{}", transcript.response())
}

/// Returns the solution in a text that a reward server receives: the text after the last marker, with exactly one end
/// token. `ends` are the texts of the padding and the end-of-sequence token; the last one is put at the end.
pub(super) fn solution(query: &str, marker: &str, ends: [&str; 2]) -> String {
    let query = stripped(query, ends) + ends[1];
    let start = memmem::rfind(query.as_bytes(), marker.as_bytes()).map_or(0, |place| place + marker.len());
    python_trim(query.get(start..).unwrap_or_default()).to_owned()
}

/// Removes end tokens at both ends, at the end also before a line feed.
fn stripped(text: &str, ends: [&str; 2]) -> String {
    let [one, other] = ends;
    let mut text = text;
    while let Some(rest) = text.strip_prefix(one).or_else(|| text.strip_prefix(other)) {
        text = rest;
    }
    let (mut body, tail) = match text.strip_suffix('\n') {
        Some(body) if body.ends_with(one) || body.ends_with(other) => (body, "\n"),
        _ => (text, ""),
    };
    while let Some(rest) = body.strip_suffix(one).or_else(|| body.strip_suffix(other)) {
        body = rest;
    }
    format!("{body}{tail}")
}

/// Returns the predicted answer: the text from the last `<answer>` to the next `</answer>`. Without the tags, all of
/// it.
pub(super) fn predicted(solution: &str) -> &str {
    let after = solution.rsplit(ANSWER).next().unwrap_or_default();
    python_trim(after.split(ANSWER_END).next().unwrap_or_default())
}

/// Whether both tags of an answer occur.
pub(super) fn has_answer_tags(solution: &str) -> bool {
    contains(solution, ANSWER) && contains(solution, ANSWER_END)
}

/// Returns how often the markers of queries and documents occur, if all occur equally often.
pub(super) fn even_markers(solution: &str) -> Option<usize> {
    let markers = [
        "<|begin_of_documents|>\n",
        "<|end_of_documents|>\n\n",
        QUERY,
        QUERY_END,
        DOCUMENTS,
        DOCUMENTS_END,
        "<|begin_of_documents|>\n(1)",
    ];
    let first = count(solution, markers[0]);
    if markers[1..].iter().all(|marker| count(solution, marker) == first) { Some(first) } else { None }
}

/// Whether the text ends its thoughts once, opens none, and has one pair of answer tags.
pub(super) fn even_tags(solution: &str) -> bool {
    [THINK, THINK_END, ANSWER, ANSWER_END].map(|tag| count(solution, tag)) == [0, 1, 1, 1]
}

/// Whether a Chinese character is outside the documents.
pub(super) fn has_chinese(solution: &str) -> bool {
    // `E4` to `E9` begin U+4000 to U+9FFF in UTF-8. Without an early end: the loop can run on the vector unit.
    if !solution.as_bytes().iter().fold(false, |found, byte| found | (0xE4..=0xE9).contains(byte)) {
        return false;
    }
    let mut rest = solution;
    while let Some((before, after)) = rest.split_once(DOCUMENTS) {
        let Some((_, next)) = after.split_once(DOCUMENTS_END) else { break };
        if before.contains(is_chinese) {
            return true;
        }
        rest = next;
    }
    rest.contains(is_chinese)
}

fn is_chinese(c: char) -> bool {
    ('\u{4e00}'..='\u{9fff}').contains(&c)
}

/// Returns the first golden answer: the originals know only one.
pub(super) fn first(golden: &[String]) -> &str {
    golden.first().map_or("", String::as_str)
}

/// Counts the words of a text between white space.
pub(super) fn words(text: &str) -> usize {
    text.split(is_python_space).filter(|word| !word.is_empty()).count()
}

/// Returns the highest F1 of the model's final answer over the golden answers; `None` without an answer.
pub(super) fn final_f1(transcript: &Transcript, golden: &[String]) -> Option<f64> {
    let answer = final_answer(transcript)?;
    Some(golden.iter().map(|golden| r1_searcher_f1(answer, golden).f1).fold(0.0, f64::max))
}

/// Whether the model's thoughts end once (the prompt opens them) and one answer follows, and the model wrote no
/// documents.
pub(super) fn keeps_tags(transcript: &Transcript) -> bool {
    let said: String = transcript.model_texts().collect();
    let in_order = said.find(THINK_END) < said.find(ANSWER) && final_answer(transcript).is_some();
    in_order && even_tags(&said) && !GRAMMAR.invents_results(transcript)
}

/// Whether the model mixes Chinese into its text although neither the prompt nor a golden answer has any.
pub(super) fn mixes_chinese(transcript: &Transcript, golden: &[String]) -> bool {
    let expected = transcript.prompt.contains(is_chinese) || golden.iter().any(|answer| answer.contains(is_chinese));
    !expected && transcript.model_texts().any(|text| text.contains(is_chinese))
}

/// Returns why the model's text is not in R1-Searcher's format.
pub(super) fn fault(transcript: &Transcript) -> Option<&'static str> {
    let fault = GRAMMAR.fault(transcript);
    if fault.is_none() && !keeps_tags(transcript) {
        return Some("not one `</think>` and one answer after it");
    }
    fault
}

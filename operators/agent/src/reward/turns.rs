//! The format that ReSearch and R1-Searcher share: the model searches at the end of a turn and answers in the last
//! one. Only text that the model wrote is looked at.

use searchmill_text::normalize::python_trim;

use crate::reward::pieces::{ANSWER, ANSWER_END, count};
use crate::reward::transcript::{Author, Span, Transcript};

/// Tags of a protocol.
pub(super) struct Grammar {
    /// Opening tag of a query.
    pub(super) search: &'static str,
    /// Closing tag of a query.
    pub(super) search_end: &'static str,
    /// Markers that only the environment writes.
    pub(super) results: [&'static str; 2],
}

impl Grammar {
    /// Returns why the turns are not in the format: every turn but the last ends with one query, the last one has one
    /// answer and no query, the model wrote no result itself, and no action was refused.
    pub(super) fn fault(&self, transcript: &Transcript) -> Option<&'static str> {
        let Some(last) = transcript.last_word() else { return Some("the model does not have the last word") };
        self.searching_fault(transcript).or_else(|| self.answering_fault(last))
    }

    /// Returns why the turns before the last are not in the format.
    pub(super) fn searching_fault(&self, transcript: &Transcript) -> Option<&'static str> {
        if self.invents_results(transcript) {
            return Some("the model wrote a result itself");
        }
        if transcript.spans.iter().any(|span| span.refusal) {
            return Some("an action was refused");
        }
        // A turn and its result; the last turn, which has none, is left over.
        for [said, result] in transcript.spans.as_chunks::<2>().0 {
            if said.author != Author::Model || result.author != Author::Environment {
                return Some("turns and results do not alternate");
            }
            let text = said.text.as_str();
            if count(text, self.search) != 1 || count(text, self.search_end) != 1 {
                return Some("a turn has not exactly one query");
            }
            let query = text.split_once(self.search).and_then(|(_, after)| after.split_once(self.search_end));
            match query {
                Some((query, after)) if !python_trim(query).is_empty() && python_trim(after).is_empty() => {}
                _ => return Some("a turn does not end with a query"),
            }
            if text.contains(ANSWER) || text.contains(ANSWER_END) {
                return Some("an answer before the last turn");
            }
        }
        None
    }

    /// Whether the model wrote a marker of the environment.
    pub(super) fn invents_results(&self, transcript: &Transcript) -> bool {
        transcript.model_texts().any(|text| self.results.iter().any(|marker| text.contains(marker)))
    }

    fn answering_fault(&self, last: &Span) -> Option<&'static str> {
        let text = last.text.as_str();
        if text.contains(self.search) || text.contains(self.search_end) {
            return Some("a query in the last turn");
        }
        let one = count(text, ANSWER) == 1 && count(text, ANSWER_END) == 1;
        (!one || text.find(ANSWER) > text.find(ANSWER_END)).then_some("not exactly one answer")
    }
}

//! The teacher's sentences: short, varied, and true to the retrieved passages.

use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use searchmill_schemas::Evidence;

use super::super::EvidenceWording;

/// Maximum number of words quoted from a sentence of evidence.
const QUOTED_WORDS: usize = 40;

/// Chooses between phrasings.
pub(super) struct Wording<'a> {
    pub(super) chance: &'a mut ChaCha8Rng,
    pub(super) style: EvidenceWording,
}

// Adding, removing or moving a sentence changes what is drawn: the `VERSION` of `rollout` goes up.
const OPENINGS: &[&str] = &[
    "",
    "I will start by searching for {q}.",
    "First I need to look up {q}.",
    "Let me search for {q}.",
    "To answer this, I first have to find {q}.",
    "The place to begin is {q}.",
];

const ONWARDS: &[&str] = &[
    "Next I will search for {q}.",
    "Now let me look up {q}.",
    "I will look for {q}.",
    "Let me search again, this time for {q}.",
    "The next search is for {q}.",
    "So the next step is {q}.",
];

const FOUND: &[&str] = &[
    "The passages say: {f}",
    "This is established: {f}",
    "From the results: {f}",
    "One passage states: {f}",
    "The search shows: {f}",
    "What I need is there: {f}",
];

const STILL_OPEN: &[&str] = &[
    "That does not settle the question yet.",
    "Part of the question is still open.",
    "More is needed to answer.",
    "This is not the whole answer yet.",
];

const NOT_FOUND: &[&str] = &[
    "The passages do not contain what I need.",
    "None of these passages is about it.",
    "These results do not help.",
    "That search did not bring up the fact in question.",
    "Nothing here supports an answer yet.",
];

/// Sentences after a failed search.
pub(super) const FAILED: &[&str] =
    &["That search could not be run.", "The search gave an error.", "This search did not work."];

/// Sentences before the answer.
pub(super) const ANSWERS: &[&str] = &[
    "That settles it.",
    "With this, the question can be answered.",
    "These passages are enough to answer.",
    "Taken together, this gives the answer.",
    "Nothing more is needed.",
];

/// Sentences before giving up.
pub(super) const GIVING_UP: &[&str] = &[
    "The searches did not bring up what is needed to answer.",
    "After several searches the passages still do not support an answer.",
    "The collection does not seem to contain the facts that are asked for.",
    "What was found is not enough to answer the question.",
];

impl Wording<'_> {
    /// Picks one of the sentences; empty for a plain teacher.
    pub(super) fn pick(&mut self, among: &[&'static str]) -> &'static str {
        match self.style {
            EvidenceWording::Varied => among.choose(self.chance).copied().unwrap_or_default(),
            EvidenceWording::Plain => "",
        }
    }

    /// Sentence before the first search; may be empty.
    pub(super) fn opening(&mut self, queries: &[String]) -> String {
        match self.style {
            EvidenceWording::Varied => self.pick(OPENINGS).replace("{q}", &listed(queries)),
            EvidenceWording::Plain => self.onward(queries),
        }
    }

    /// Sentence before a further search.
    pub(super) fn onward(&mut self, queries: &[String]) -> String {
        let sentence = match self.style {
            EvidenceWording::Varied => self.pick(ONWARDS),
            EvidenceWording::Plain => "Let me search for {q}.",
        };
        sentence.replace("{q}", &listed(queries))
    }

    /// Sentence after a search: what it found, and whether evidence is still missing.
    pub(super) fn remark(&mut self, facts: &[String], open: usize) -> String {
        if facts.is_empty() {
            return self.pick(NOT_FOUND).to_owned();
        }
        if self.style == EvidenceWording::Plain {
            return facts.join(" ");
        }
        let said = self.pick(FOUND).replace("{f}", &facts.join(" "));
        if open == 0 { said } else { format!("{said} {}", self.pick(STILL_OPEN)) }
    }
}

fn listed(queries: &[String]) -> String {
    queries.iter().map(|query| format!("\"{query}\"")).collect::<Vec<_>>().join(" and ")
}

/// Quotes a piece of evidence, shortened; without a sentence, names its document.
pub(super) fn quoted(evidence: &Evidence) -> String {
    let Some(fact) = &evidence.fact else {
        let name = evidence.title.as_deref().or(evidence.document_id.as_deref()).unwrap_or("the document");
        return format!("there is a passage from {name}.");
    };
    let words: Vec<&str> = fact.split_whitespace().collect();
    let cut = words.len() > QUOTED_WORDS;
    let text = words[..words.len().min(QUOTED_WORDS)].join(" ");
    if cut {
        return text + " …";
    }
    if text.ends_with(['.', '!', '?', '"']) { text } else { text + "." }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn sentences_are_complete() {
        let evidence = Evidence { fact: Some("Rome is a  city".to_owned()), ..Evidence::default() };
        let long = Evidence { fact: Some("word ".repeat(60)), ..Evidence::default() };
        assert_eq!(quoted(&evidence), "Rome is a city.");
        assert!(quoted(&long).ends_with("word …"));
        let mut chance = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..50 {
            let mut wording = Wording { chance: &mut chance, style: EvidenceWording::Varied };
            let queries = ["Rome".to_owned(), "Paris".to_owned()];
            let said = [
                wording.opening(&queries),
                wording.onward(&queries),
                wording.remark(&[quoted(&evidence)], 1),
                wording.remark(&[], 2),
                wording.pick(FAILED).to_owned(),
                wording.pick(ANSWERS).to_owned(),
                wording.pick(GIVING_UP).to_owned(),
            ];
            assert!(said.iter().all(|text| !text.contains('{') && !text.contains("  ")), "{said:?}");
        }
    }
}

//! The teacher's search plan: which pieces of evidence to find, in which order, and with which queries.

use std::borrow::Cow;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use searchmill_schemas::{Evidence, Question};
use searchmill_text::normalize::{contains_words, normalize_sought};

use super::wording;

/// A piece of evidence to find.
pub(super) struct Piece<'a> {
    pub(super) evidence: Cow<'a, Evidence>,
    /// First query and the words for what it finds, if the question comes with a search plan.
    pub(super) step: Option<Step>,
    pub(super) found: bool,
    /// Whether the question or a passage has named it, so that a model could search for it.
    pub(super) named: bool,
    tries: u32,
    /// Index of the first query variant.
    first_way: Option<u32>,
}

/// A step of a search plan.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) search: String,
    pub(super) keyword: String,
}

/// The distinct pieces to find.
pub(super) fn pieces(question: &Question) -> Vec<Piece<'_>> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for evidence in &question.evidence {
        if pieces.iter().all(|piece| *piece.evidence != *evidence) {
            let mut piece = Piece::new(Cow::Borrowed(evidence));
            piece.notice(&question.question);
            pieces.push(piece);
        }
    }
    pieces
}

impl<'a> Piece<'a> {
    pub(super) fn new(evidence: Cow<'a, Evidence>) -> Self {
        Self { evidence, step: None, found: false, named: false, tries: 0, first_way: None }
    }

    /// Whether results can show the piece: a step of a plan counts only after its own search.
    pub(super) fn is_due(&self) -> bool {
        !self.found && (self.step.is_none() || self.tries > 0)
    }

    /// What the teacher says about the piece once it is found.
    pub(super) fn statement(&self) -> String {
        match &self.step {
            Some(step) if !step.keyword.trim().is_empty() => step.keyword.trim().to_owned(),
            _ => wording::quoted(&self.evidence),
        }
    }

    /// Marks the piece as named if the text contains its title.
    pub(super) fn notice(&mut self, text: &str) {
        let title = self.title();
        self.named |= !title.is_empty() && text.to_lowercase().contains(&title.to_lowercase());
    }

    /// The title without its disambiguation; empty if there is none.
    fn title(&self) -> &str {
        let title = self.evidence.title.as_deref().unwrap_or_default();
        // `Kiss and Tell (1945 film)` → `Kiss and Tell`.
        let bare = title.split(" (").next().unwrap_or(title).trim();
        if bare.is_empty() { title.trim() } else { bare }
    }

    pub(super) fn is_worth_a_try(&self, attempts: u32) -> bool {
        !self.found && self.tries < attempts
    }

    /// Returns the next query: the title, the title with words of the question, the sentence, or the question. No
    /// query reveals what `hidden` hides.
    pub(super) fn next_query(&mut self, question: &str, hidden: &Hidden, chance: &mut ChaCha8Rng) -> String {
        if let Some(query) = self.planned_query(hidden) {
            return query;
        }
        let ways = self.ways(question, hidden);
        // Drawn at the first try, so that the second one takes the other.
        let first = *self.first_way.get_or_insert_with(|| if ways.len() > 2 { chance.random_range(0..2) } else { 0 });
        // Chance decides which of the first two comes first; the others follow in their order.
        let place = match self.tries {
            0 => first,
            1 => 1 - first.min(1),
            later => later,
        };
        self.tries += 1;
        ways[place as usize % ways.len()].clone()
    }

    /// Returns the query of the plan if it was not asked yet and names more than hidden answers.
    fn planned_query(&mut self, hidden: &Hidden) -> Option<String> {
        if self.tries > 0 {
            return None;
        }
        let query = hidden.strip(&self.step.as_ref()?.search);
        if query.is_empty() {
            return None;
        }
        self.tries += 1;
        Some(query)
    }

    /// Returns the next query of a plain teacher, in a fixed order. The first query uses words that a student can
    /// know: those of the question if it asks only for this piece, otherwise the title with them.
    pub(super) fn next_plain_query(&mut self, question: &str, hidden: &Hidden, alone: bool) -> String {
        if let Some(query) = self.planned_query(hidden) {
            return query;
        }
        let title = if alone { "" } else { self.title() };
        let first = hidden.strip(&format!("{title} {}", key_words(question, &[title], 8)));
        let mut ways = self.ways(question, hidden);
        if !first.is_empty() {
            ways.retain(|way| *way != first);
            ways.insert(0, first);
        }
        let way = ways[self.tries as usize % ways.len()].clone();
        self.tries += 1;
        way
    }

    /// Returns the query variants, most specific first.
    fn ways(&self, question: &str, hidden: &Hidden) -> Vec<String> {
        let mut ways: Vec<String> = Vec::new();
        let title = self.title();
        if !title.is_empty() {
            ways.push(title.to_owned());
            ways.push(format!("{title} {}", key_words(question, &[title], 4)).trim().to_owned());
        }
        if let Some(fact) = &self.evidence.fact {
            ways.push(fact.split_whitespace().take(16).collect::<Vec<_>>().join(" "));
        }
        ways.push(question.trim().to_owned());
        ways.push(key_words(question, &[], 8));
        let mut unique: Vec<String> = Vec::new();
        for way in ways.iter().map(|way| hidden.strip(way)) {
            if !way.is_empty() && !unique.contains(&way) {
                unique.push(way);
            }
        }
        // A search needs a query, even if all words are hidden.
        if unique.is_empty() { vec!["?".to_owned()] } else { unique }
    }
}

/// Golden answers not shown yet, neither by the question nor by a passage. A query that contains one would teach a
/// student to search for an answer it cannot know.
pub(super) struct Hidden(Vec<String>);

impl Hidden {
    pub(super) fn new(question: &Question) -> Self {
        let mut hidden = Self(question.golden_answers.iter().map(|answer| normalize_sought(answer)).collect());
        hidden.show(&question.question);
        hidden
    }

    /// Removes the answers contained in a text that the student reads.
    pub(super) fn show(&mut self, text: &str) {
        if !self.0.is_empty() {
            let text = normalize_sought(text);
            self.0.retain(|answer| !answer.is_empty() && !contains_words(&text, answer));
        }
    }

    /// Removes the words of hidden answers from a query.
    fn strip(&self, query: &str) -> String {
        let mut query = query.trim().to_owned();
        while let Some(answer) = self.first_in(&query) {
            let words: Vec<&str> = answer.split(' ').collect();
            let mut rest: Vec<&str> = query.split_whitespace().collect();
            rest.retain(|word| !words.contains(&normalize_sought(word).as_str()));
            let rest = rest.join(" ");
            // If only normalised text separates the words, the whole query is dropped.
            query = if rest.len() < query.len() { rest } else { String::new() };
        }
        query
    }

    /// The first hidden answer that a text contains.
    fn first_in(&self, text: &str) -> Option<&String> {
        let text = normalize_sought(text);
        self.0.iter().find(|answer| contains_words(&text, answer))
    }
}

/// Words without meaning for a search.
const EMPTY_WORDS: [&str; 48] = [
    "a", "an", "and", "are", "as", "at", "be", "been", "both", "by", "did", "do", "does", "for", "from", "had", "has",
    "have", "he", "her", "his", "how", "in", "is", "it", "its", "of", "on", "or", "same", "she", "than", "that", "the",
    "their", "this", "to", "was", "were", "what", "when", "where", "which", "who", "whom", "whose", "why", "with",
];

/// Returns the first `most` meaningful words of a question that do not occur in `known`.
pub(super) fn key_words(question: &str, known: &[&str], most: usize) -> String {
    let known = known.join(" ");
    let known: Vec<String> = known.split_whitespace().map(|word| bare_word(word).to_lowercase()).collect();
    let mut words: Vec<&str> = question.split_whitespace().map(bare_word).collect();
    words.retain(|word| {
        let lower = word.to_lowercase();
        !lower.is_empty() && !EMPTY_WORDS.contains(&lower.as_str()) && !known.contains(&lower)
    });
    words.truncate(most);
    words.join(" ")
}

fn bare_word(text: &str) -> &str {
    text.trim_matches(|c: char| !c.is_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;

    #[test]
    fn key_words_are_the_telling_ones() {
        let question = "Who is the mother of the director of film Polish-Russian War (Film)?";
        assert_eq!(key_words(question, &[], 8), "mother director film Polish-Russian War Film");
        assert_eq!(key_words(question, &["Polish-Russian War"], 2), "mother director");
    }

    #[test]
    fn each_try_asks_in_other_words() {
        let evidence = Evidence {
            document_id: None,
            title: Some("Kiss and Tell (1945 film)".to_owned()),
            fact: Some("Kiss and Tell is a 1945 American comedy film.".to_owned()),
        };
        for seed in 0..4 {
            let mut piece = Piece::new(Cow::Borrowed(&evidence));
            let mut chance = ChaCha8Rng::seed_from_u64(seed);
            let none = Hidden(Vec::new());
            let ask = |_| piece.next_query("Who portrayed Corliss?", &none, &mut chance);
            let queries: Vec<_> = (0..5).map(ask).collect();
            let unique: std::collections::BTreeSet<_> = queries.iter().collect();
            assert_eq!(unique.len(), 5, "{queries:?}");
            assert!(queries[0].starts_with("Kiss and Tell") && !queries[0].contains("1945"), "{queries:?}");
        }
    }

    #[test]
    fn a_plain_teacher_asks_in_the_words_of_the_question() {
        let evidence = Evidence { title: Some("How Zorga is governed".to_owned()), ..Evidence::default() };
        let question = "In which year did Zorga receive its city charter?";
        assert_eq!(
            Piece::new(Cow::Borrowed(&evidence)).next_plain_query(question, &Hidden(Vec::new()), true),
            "year Zorga receive city charter"
        );
        let mut piece = Piece::new(Cow::Borrowed(&evidence));
        let mut ask = || piece.next_plain_query(question, &Hidden(Vec::new()), false);
        assert_eq!(ask(), "How Zorga is governed year receive city charter");
        assert_eq!(ask(), "How Zorga is governed");
    }

    #[test]
    fn evidence_without_words_is_sought_by_the_question() {
        let evidence = Evidence { document_id: Some("17".to_owned()), ..Evidence::default() };
        let mut piece = Piece::new(Cow::Borrowed(&evidence));
        let mut chance = ChaCha8Rng::seed_from_u64(0);
        let mut ask = || piece.next_query("Who was Etan Boritzer?", &Hidden(Vec::new()), &mut chance);
        assert_eq!(ask(), "Who was Etan Boritzer?");
        assert_eq!(ask(), "Etan Boritzer");
        assert!(piece.is_worth_a_try(3) && !piece.is_worth_a_try(2));
    }

    #[test]
    fn no_query_holds_an_answer_that_was_not_shown() {
        let question = Question {
            id: "q".to_owned(),
            question: "Who is the mother of Xawery?".to_owned(),
            golden_answers: vec!["Małgorzata Braunek".to_owned(), "The Braunek-Lady".to_owned()],
            question_type: None,
            evidence: Vec::new(),
            metadata: None,
        };
        let mut hidden = Hidden::new(&question);
        assert_eq!(hidden.strip("He is the son of actress małgorzata  Braunek."), "He is the son of actress");
        assert_eq!(hidden.strip("Braunek-Lady"), "");
        assert_eq!(hidden.strip(" Who is Braunek? "), "Who is Braunek?", "a part of an answer is none");
        hidden.show("[1] Małgorzata Braunek\nAn actress.");
        assert_eq!(hidden.strip("Małgorzata Braunek"), "Małgorzata Braunek");
        assert_eq!(hidden.strip("the Braunek-Lady sings"), "the sings");
        let named = Question { golden_answers: vec!["Xawery".to_owned()], ..question };
        assert_eq!(Hidden::new(&named).strip("Xawery"), "Xawery", "the question names it");
    }
}

//! Policy `evidence`: a teacher that knows the gold evidence, searches for it with the real indexes, and answers only
//! if the evidence was retrieved. It never claims evidence that it did not find.

mod annotation;
mod choice;
mod plan;
mod sighting;
mod wording;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use searchmill_engine::operator::{Context, FailureKind, RowFailure};
use searchmill_schemas::{Message, Question, Role};
use searchmill_text::normalize::{contains_words, normalize_sought};

use self::plan::{Hidden, Piece};
use self::wording::Wording;
use super::{Actor, EvidenceParams, EvidenceWording, Policy, Reply};
use crate::episode::Offer;
use crate::protocol::{INSUFFICIENT, Protocol, Speech, joined};

/// Number of searches for a question without evidence.
const SEARCHES_WITHOUT_EVIDENCE: u32 = 2;

/// Maximum number of searches in one turn, if parallel searches are allowed.
const PARALLEL_SEARCHES: usize = 3;

/// The teacher.
pub struct EvidenceTeacher {
    pub params: EvidenceParams,
    pub protocol: Arc<dyn Protocol>,
}

impl Policy for EvidenceTeacher {
    fn name(&self) -> &'static str {
        "evidence"
    }

    fn begin<'a>(&'a self, question: &'a Question, sample: u32, _context: &'a Context) -> Box<dyn Actor + 'a> {
        let chance = crate::chance::stream(self.params.seed, &question.id, sample);
        let hidden = Hidden::new(question);
        let pieces = match &self.params.plan {
            None => plan::pieces(question),
            Some(field) => match annotation::pieces(question, field) {
                Ok(pieces) => pieces,
                // `begin` cannot fail: the row is rejected at its first turn.
                Err(problem) => return Box::new(Unplanned(problem)),
            },
        };
        Box::new(Teacher { settings: self, question, chance, pieces, hidden, read: 0, searches: 0 })
    }
}

/// Rejects a question whose search plan cannot be read.
struct Unplanned(String);

impl Actor for Unplanned {
    fn act<'a>(&'a mut self, _: &'a [Message], _: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        futures::future::ready(Err(RowFailure::new(FailureKind::Data, self.0.clone()))).boxed()
    }
}

/// The teacher's state for one question.
struct Teacher<'a> {
    settings: &'a EvidenceTeacher,
    question: &'a Question,
    chance: ChaCha8Rng,
    pieces: Vec<Piece<'a>>,
    hidden: Hidden,
    /// Number of messages read so far.
    read: usize,
    searches: u32,
}

impl Actor for Teacher<'_> {
    fn act<'a>(&'a mut self, messages: &'a [Message], offer: Offer) -> BoxFuture<'a, Result<Reply, RowFailure>> {
        let (mut message, read) = if let Some(request) = messages.last().filter(|last| last.is_aside()) {
            (self.choose(request), std::slice::from_ref(request))
        } else {
            let remark = self.take_in(messages);
            let queries = if offer == Offer::Tools { self.next_queries() } else { Vec::new() };
            let ends = queries.is_empty();
            (if ends { self.conclude(&remark, messages) } else { self.search(&remark, &queries) }, messages)
        };
        message.prompt_tokens = Some(read.iter().map(words).sum());
        message.completion_tokens = Some(words(&message));
        async move { Ok(Reply { message, model: None, calls: 1, tokens: None }) }.boxed()
    }
}

impl Teacher<'_> {
    fn wording(&mut self) -> Wording<'_> {
        Wording { chance: &mut self.chance, style: self.settings.params.wording }
    }

    /// Reads new tool messages and returns a remark about them.
    fn take_in(&mut self, messages: &[Message]) -> String {
        let new = messages.get(self.read..).unwrap_or_default();
        self.read = messages.len();
        let mut results: Vec<&Message> = Vec::new();
        for message in new {
            if message.role == Role::Tool.name() && message.tool_call_id.is_some() {
                if message.error.is_none() {
                    self.hidden.show(&message.content);
                }
                results.push(message);
            }
        }
        let mut found = Vec::new();
        for piece in self.pieces.iter_mut().filter(|piece| !piece.found) {
            for message in &results {
                piece.notice(&message.content);
                piece.found |=
                    piece.is_due() && sighting::shows(message, &piece.evidence, self.settings.params.matches);
            }
            if piece.found {
                found.push(piece.statement());
            }
        }
        let open = self.pieces.iter().filter(|piece| !piece.found).count();
        let mut wording = self.wording();
        match results.as_slice() {
            [] => String::new(),
            new if new.iter().all(|message| message.error.is_some()) => wording.pick(wording::FAILED).to_owned(),
            _ => wording.remark(&found, open),
        }
    }

    /// Returns the next queries; empty if everything is found or all attempts are used.
    fn next_queries(&mut self) -> Vec<String> {
        if self.pieces.is_empty() {
            self.searches += 1;
            // The question itself, then its key words.
            return match self.searches {
                1 => vec![self.question.question.trim().to_owned()],
                2..=SEARCHES_WITHOUT_EVIDENCE => vec![plan::key_words(&self.question.question, &[], 8)],
                _ => Vec::new(),
            };
        }
        let attempts = self.settings.params.attempts;
        let open = (0..self.pieces.len()).filter(|&i| self.pieces[i].is_worth_a_try(attempts));
        // Pieces already named come first: titles of the others may appear in their passages. A plan has an order.
        let (named, unnamed): (Vec<_>, Vec<_>) =
            open.partition(|&i| self.pieces[i].named && self.pieces[i].step.is_none());
        // Both forms are taught: searches together, and one at a time.
        let together = self.settings.params.parallel && named.len() > 1 && self.chance.random_bool(0.5);
        let most = if together { named.len().min(PARALLEL_SEARCHES) } else { 1 };
        let most = most.min(self.settings.protocol.searches_at_once());
        let mut queries: Vec<String> = Vec::new();
        for place in named.into_iter().chain(unnamed) {
            let (question, alone) = (&self.question.question, self.pieces.len() == 1);
            let query = match self.settings.params.wording {
                EvidenceWording::Varied => self.pieces[place].next_query(question, &self.hidden, &mut self.chance),
                EvidenceWording::Plain => self.pieces[place].next_plain_query(question, &self.hidden, alone),
            };
            // In one turn, the same query would find the same passages twice.
            if !queries.contains(&query) {
                queries.push(query);
            }
            if queries.len() == most {
                break;
            }
        }
        self.searches += queries.len() as u32;
        queries
    }

    fn search(&mut self, remark: &str, queries: &[String]) -> Message {
        let mut wording = self.wording();
        let lead = if remark.is_empty() { wording.opening(queries) } else { wording.onward(queries) };
        let thought = joined(remark, &lead);
        self.settings.protocol.write(&Speech::Search { remark, thought, queries, place: self.read })
    }

    /// Answers with the gold answer if all evidence was seen, otherwise with "Insufficient Information".
    fn conclude(&mut self, remark: &str, messages: &[Message]) -> Message {
        let has_all = !self.pieces.is_empty() && self.pieces.iter().all(|piece| piece.found);
        let gold = if has_all { readable(&self.question.golden_answers, messages) } else { None };
        let mut wording = self.wording();
        let (close, answer) = match gold {
            Some(answer) => (wording.pick(wording::ANSWERS), answer.trim()),
            None => (wording.pick(wording::GIVING_UP), INSUFFICIENT),
        };
        // The question is the user's message, too: it stands before all messages of the model.
        let requested = messages.iter().any(Message::is_model)
            && messages.last().is_some_and(|last| last.role == Role::User.name());
        self.settings.protocol.write(&Speech::Answer { remark, thought: joined(remark, close), answer, requested })
    }

    /// Chooses the listed passages that show evidence not found yet.
    fn choose(&self, request: &Message) -> Message {
        let open = self.pieces.iter().filter(|piece| piece.is_due()).map(|piece| piece.evidence.as_ref());
        let chosen = choice::chosen(request, open, self.settings.params.matches);
        self.settings.protocol.write(&Speech::Choice(&chosen))
    }
}

/// Returns the golden answer that a passage contains, because a model learns to answer with text it can read. Falls
/// back to the first golden answer (yes and no, computed figures).
fn readable<'g>(golden: &'g [String], messages: &[Message]) -> Option<&'g String> {
    let results = messages.iter().filter(|message| message.role == Role::Tool.name() && message.error.is_none());
    let shown: Vec<String> = results.map(|message| normalize_sought(&message.content)).collect();
    for answer in golden {
        let sought = normalize_sought(answer);
        if shown.iter().any(|text| contains_words(text, &sought)) {
            return Some(answer);
        }
    }
    golden.first()
}

/// Number of words of a message, used as its token count.
fn words(message: &Message) -> i64 {
    let mut words = message.content.split_whitespace().count();
    for call in &message.tool_calls {
        words += call.arguments.split_whitespace().count();
    }
    words as i64
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Evidence, Observation, ToolCall};

    use crate::protocol::{ProtocolParams, ProtocolSettings};

    use super::*;

    #[test]
    fn the_answer_is_the_alias_that_a_passage_shows() {
        let golden = ["Testa o croce".to_owned(), "Heads I Win, Tails You Lose".to_owned()];
        let passage = Message::text(Role::Tool, "[1] Heads I Win, Tails You Lose\nA film of 1982.");
        assert_eq!(readable(&golden, &[passage]), Some(&golden[1]));
        assert_eq!(readable(&golden, &[Message::text(Role::Assistant, &golden[1])]), Some(&golden[0]));
    }

    fn piece(title: &str, fact: &str) -> Evidence {
        Evidence { document_id: None, title: Some(title.to_owned()), fact: Some(fact.to_owned()) }
    }

    fn question(evidence: Vec<Evidence>) -> Question {
        Question {
            id: "q1".to_owned(),
            question: "Who is the mother of the director of Polish-Russian War?".to_owned(),
            golden_answers: vec!["Małgorzata Braunek".to_owned()],
            question_type: None,
            evidence,
            metadata: None,
        }
    }

    fn two_hops() -> Question {
        question(vec![
            piece("Xawery Żuławski", "He is the son of actress Małgorzata Braunek."),
            piece("Polish-Russian War", "It was directed by Xawery Żuławski."),
        ])
    }

    /// Answers each call with the evidence whose title the query contains, as an index would.
    fn play(question: &Question, sample: u32, params: EvidenceParams, shown: bool) -> Vec<Message> {
        let settings = ProtocolSettings { tool: Some("search"), ..ProtocolSettings::default() };
        let teacher = EvidenceTeacher { params, protocol: ProtocolParams::ToolCall.open(&settings) };
        let harness = searchmill_engine::operator::testing::Harness::new();
        let context = harness.context();
        let mut actor = teacher.begin(question, sample, &context);
        let mut messages = vec![Message::text(Role::System, "S"), Message::text(Role::User, &question.question)];
        for _ in 0..12 {
            let reply = futures::executor::block_on(actor.act(&messages, Offer::Tools)).expect("a reply");
            let calls = reply.message.tool_calls.clone();
            messages.push(reply.message);
            if calls.is_empty() {
                return messages;
            }
            messages.extend(calls.iter().map(|call| answer(question, call, shown)));
        }
        panic!("it never answered: {messages:?}");
    }

    fn answer(question: &Question, call: &ToolCall, shown: bool) -> Message {
        let mut message = Message::text(Role::Tool, "No passages were found.");
        message.tool_call_id = Some(call.id.clone());
        for piece in question.evidence.iter().filter(|_| shown) {
            let (title, fact) = (piece.title.clone().unwrap_or_default(), piece.fact.clone().unwrap_or_default());
            if call.arguments.contains(&title) {
                message.content = format!("[1] {title}\n{fact} More.");
                let observation = Observation {
                    chunk_id: "d#0".into(),
                    document_id: "d".into(),
                    title: piece.title.clone(),
                    score: 1.0,
                };
                message.observations.push(observation);
            }
        }
        message
    }

    #[test]
    fn it_follows_the_hops_and_answers_from_what_it_saw() {
        let messages = play(&two_hops(), 0, EvidenceParams::default(), true);
        let queries: Vec<_> = messages.iter().flat_map(|t| &t.tool_calls).map(|call| call.arguments.clone()).collect();
        assert!(queries[0].contains("Polish-Russian War"), "the hop named in the question first: {queries:?}");
        assert!(queries.iter().any(|query| query.contains("Xawery Żuławski")), "{queries:?}");
        let last = messages.last().expect("messages");
        assert!(last.content.ends_with("<answer>Małgorzata Braunek</answer>"), "{}", last.content);
        assert_eq!(last.completion_tokens, Some(words(last)));
    }

    #[test]
    fn it_claims_nothing_that_was_not_shown() {
        let messages = play(&two_hops(), 0, EvidenceParams { attempts: 2, ..EvidenceParams::default() }, false);
        assert!(messages.last().expect("messages").content.ends_with("<answer>Insufficient Information</answer>"));
        let searches: usize = messages.iter().map(|message| message.tool_calls.len()).sum();
        assert_eq!(searches, 4, "two attempts for each of two pieces");
        let said: String =
            messages.iter().filter(|message| message.is_model()).map(|message| message.content.clone()).collect();
        assert!(!said.contains("Braunek"), "{said}");
    }

    #[test]
    fn a_question_without_evidence_is_searched_twice() {
        let messages = play(&question(Vec::new()), 0, EvidenceParams::default(), true);
        assert_eq!(messages.iter().map(|message| message.tool_calls.len()).sum::<usize>(), 2);
        assert!(messages.last().expect("messages").content.ends_with("<answer>Insufficient Information</answer>"));
    }

    #[test]
    fn wording_depends_on_seed_row_and_sample_alone() {
        let once = play(&two_hops(), 3, EvidenceParams::default(), true);
        assert_eq!(once, play(&two_hops(), 3, EvidenceParams::default(), true));
        let texts: std::collections::BTreeSet<_> =
            (0..8).map(|sample| format!("{:?}", play(&two_hops(), sample, EvidenceParams::default(), true))).collect();
        assert!(texts.len() > 4, "samples differ in wording: {}", texts.len());
    }

    #[test]
    fn a_plain_teacher_says_what_it_found_and_answers() {
        let params = EvidenceParams { wording: super::super::EvidenceWording::Plain, ..EvidenceParams::default() };
        let mut one = question(vec![piece("Polish-Russian War", "It was directed by Xawery Żuławski.")]);
        one.golden_answers = vec!["Xawery Żuławski".to_owned()];
        let messages = play(&one, 0, params.clone(), true);
        let said: Vec<&str> = messages
            .iter()
            .filter(|message| message.role == "assistant")
            .map(|message| message.content.as_str())
            .collect();
        let wanted = [
            "Let me search for \"mother director Polish-Russian War\".",
            "It was directed by Xawery Żuławski. <answer>Xawery Żuławski</answer>",
        ];
        assert_eq!(said, wanted);
        let messages = play(&two_hops(), 0, params, false);
        assert_eq!(
            messages.last().map(|message| message.content.as_str()),
            Some("<answer>Insufficient Information</answer>")
        );
    }

    #[test]
    fn several_searches_in_a_turn_come_only_when_allowed() {
        let mut both_named = two_hops();
        both_named.question = "Is Polish-Russian War by Xawery Żuławski?".to_owned();
        let widest = |question: &Question, parallel| {
            let params = EvidenceParams { parallel, ..EvidenceParams::default() };
            let played = (0..8).flat_map(|sample| play(question, sample, params.clone(), true));
            played.map(|message| message.tool_calls.len()).max()
        };
        assert_eq!((widest(&both_named, false), widest(&both_named, true)), (Some(1), Some(2)));
        assert_eq!(widest(&two_hops(), true), Some(1), "the second hop is learnt from the first");
    }
}

//! Recording of tokens: who wrote each, in the order in which the model read and wrote them.
//!
//! The conversation is a branch; where it is rewritten, it goes on in a new one. Each aside is a branch of its own.

use schemars::JsonSchema;
use searchmill_schemas::{Message, TokenSpan};
use serde::{Deserialize, Serialize};

/// What to do if earlier turns reach the model in other tokens than those it read or wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewrittenHistory {
    /// Start a new branch of the record.
    #[default]
    Fork,
    /// Reject the row.
    Reject,
}

impl RewrittenHistory {
    /// Checks whether a new branch may start.
    ///
    /// # Errors
    /// If rewritten history rejects the row; the message contains `why`.
    pub(crate) fn allow(self, why: &str) -> Result<(), String> {
        match self {
            Self::Fork => Ok(()),
            Self::Reject => Err(format!(
                "{why}, so the tokens of this rollout are not one sequence (`rewritten_history: reject`; `fork` records a \
                 second one)"
            )),
        }
    }
}

/// The tokens of one turn of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TurnTokens {
    /// Tokens that the model read since its last turn, by the position of the message that they begin with; messages of
    /// asides may stand before it.
    pub read: Vec<(usize, Vec<u32>)>,
    /// Whether `read` is the whole conversation in other tokens than before, so that a new branch starts.
    pub restarts: bool,
    /// Tokens that the model sampled, including the one that ended the turn.
    pub sampled: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<f32>,
}

/// Tokens that a server has reported so far.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    ids: Vec<u32>,
    /// Number of messages in them.
    messages: usize,
}

impl Reported {
    /// Returns the tokens of a turn that are new. `prompt`: all that the model read before `turn`, with these messages.
    ///
    /// # Errors
    /// If a new branch must start and may not.
    pub(crate) fn new_in(
        &mut self,
        prompt: Vec<u32>,
        turn: TurnTokens,
        messages: usize,
        record: RewrittenHistory,
    ) -> Result<TurnTokens, String> {
        // Otherwise the server read earlier turns in other tokens than before: a new branch of the record would start.
        let continues = prompt.starts_with(&self.ids);
        if !continues {
            record.allow("the server rendered or tokenised earlier turns in another way than before")?;
        }
        let known = if continues { self.ids.len() } else { 0 };
        let read = (if continues { self.messages } else { 0 }, prompt[known..].to_vec());
        self.ids = prompt;
        self.ids.extend(&turn.sampled);
        // The model's message comes next.
        self.messages = messages + 1;
        Ok(TurnTokens { read: vec![read], restarts: !continues, ..turn })
    }
}

/// The tokens of a rollout.
#[derive(Debug, Default)]
pub struct TokenLog {
    /// The spans in order.
    pub spans: Vec<TokenSpan>,
    branches: Branches,
}

impl TokenLog {
    /// Adds a turn that follows these messages.
    pub fn add(&mut self, turn: TurnTokens, messages: &[Message]) {
        let is_aside = messages.last().is_some_and(Message::is_aside);
        let branch = self.branches.of(is_aside, turn.restarts);
        for (message, ids) in turn.read.into_iter().filter(|(_, ids)| !ids.is_empty()) {
            // An aside begins with its request, the last message. In the conversation, asides are passed over.
            let asides = messages.iter().skip(message).take_while(|message| message.is_aside()).count();
            let first = if is_aside { messages.len() - 1 } else { message + asides };
            self.push(first, branch, ids, None);
        }
        self.push(messages.len(), branch, turn.sampled, Some(turn.logprobs));
    }

    fn push(&mut self, message: usize, branch: i32, ids: Vec<u32>, logprobs: Option<Vec<f32>>) {
        let message = i32::try_from(message).unwrap_or(i32::MAX);
        let ids = ids.into_iter().map(|id| i32::try_from(id).unwrap_or(i32::MAX)).collect();
        self.spans.push(TokenSpan { message, branch, sampled: logprobs.is_some(), ids, logprobs });
    }
}

/// Numbers of branches, in the order in which they begin.
#[derive(Debug, Default)]
struct Branches {
    /// That of the conversation.
    conversation: i32,
    last: i32,
}

impl Branches {
    /// Returns the branch of the next turn.
    fn of(&mut self, is_aside: bool, restarts: bool) -> i32 {
        self.last += i32::from(is_aside || restarts);
        if is_aside {
            return self.last;
        }
        if restarts {
            self.conversation = self.last;
        }
        self.conversation
    }
}

/// A difference between a record and what is derived from it: what, as recorded, as derived.
type Contradiction = (String, String, String);

/// Returns the first contradiction between recorded tokens and the messages of their rollout.
pub(crate) fn contradiction(spans: &[TokenSpan], messages: &[Message]) -> Option<Contradiction> {
    let mut reading = Reading::default();
    let mut turns = messages.iter().enumerate().filter(|(_, message)| message.is_model());
    for (number, span) in spans.iter().enumerate() {
        let (position, count) = (usize::try_from(span.message).ok(), span.ids.len());
        let is_aside = position.and_then(|position| messages.get(position)).is_some_and(Message::is_aside);
        let branch = reading.branch(span, is_aside);
        if branch != span.branch {
            return Some(differ(number, "branch", span.branch, branch));
        }
        if span.sampled != span.logprobs.is_some() || span.logprobs.as_ref().is_some_and(|all| all.len() != count) {
            let logprobs = span.logprobs.as_ref().map_or(0, Vec::len);
            return Some(differ(number, "log-probabilities", logprobs, count));
        }
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if span.sampled {
            let Some((derived, message)) = turns.next() else {
                return Some(differ(number, "author", "the model", "no message of the model is left"));
            };
            if position != Some(derived) {
                return Some(differ(number, "message", span.message, derived));
            }
            let read = reading.read(is_aside);
            // Not all servers count.
            let (prompt, completion) =
                (message.prompt_tokens.unwrap_or(read), message.completion_tokens.unwrap_or(count));
            if (prompt, completion) != (read, count) {
                let recorded = format!("{read} read, {count} sampled");
                return Some(differ(number, "counts", recorded, format!("{prompt} read, {completion} sampled")));
            }
        }
        reading.add(is_aside, span.sampled, count);
    }
    match turns.count() {
        0 => None,
        left => Some(("tokens".to_owned(), "none".to_owned(), format!("those of {left} turns of the model"))),
    }
}

fn differ(span: usize, what: &str, recorded: impl ToString, derived: impl ToString) -> Contradiction {
    (format!("tokens {span}, {what}"), recorded.to_string(), derived.to_string())
}

/// How far a record has been read.
#[derive(Debug, Default)]
struct Reading {
    branches: Branches,
    /// Branch of the turn whose tokens are being read.
    turn: Option<i32>,
    /// Number of tokens of the conversation's branch, and of the aside.
    conversation: i64,
    aside: i64,
}

impl Reading {
    /// Returns the branch in which a span must stand.
    fn branch(&mut self, span: &TokenSpan, is_aside: bool) -> i32 {
        if let Some(turn) = self.turn {
            return turn;
        }
        // A branch begins with what the model reads.
        let begins = !span.sampled && (is_aside || span.branch != self.branches.conversation);
        let branch = self.branches.of(begins && is_aside, begins && !is_aside);
        if begins && is_aside {
            self.aside = 0;
        } else if begins {
            self.conversation = 0;
        }
        *self.turn.insert(branch)
    }

    /// Number of tokens that the model has read.
    fn read(&self, is_aside: bool) -> i64 {
        if is_aside { self.aside } else { self.conversation }
    }

    fn add(&mut self, is_aside: bool, sampled: bool, count: i64) {
        let read = if is_aside { &mut self.aside } else { &mut self.conversation };
        *read = read.saturating_add(count);
        if sampled {
            self.turn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use searchmill_schemas::{Message, Role};

    use super::*;

    fn turn(read: &[u32], restarts: bool, sampled: &[u32]) -> TurnTokens {
        let logprobs = sampled.iter().map(|_| -1.0).collect();
        TurnTokens { read: vec![(0, read.to_vec())], restarts, sampled: sampled.to_vec(), logprobs }
    }

    fn said(prompt: i64, completion: i64) -> Message {
        let mut message = Message::text(Role::Assistant, "x");
        (message.prompt_tokens, message.completion_tokens) = (Some(prompt), Some(completion));
        message
    }

    #[test]
    fn a_log_agrees_with_its_messages_and_contradictions_are_named() {
        let mut log = TokenLog::default();
        let messages = [Message::text(Role::User, "Q"), said(2, 2), Message::text(Role::Tool, "D"), said(4, 1)];
        log.add(turn(&[1, 2], false, &[3, 4]), &messages[..1]);
        log.add(turn(&[1, 2, 3, 5], true, &[6]), &messages[..3]);
        let spans = log.spans;
        assert_eq!(
            spans.iter().map(|span| (span.branch, span.sampled)).collect::<Vec<_>>(),
            [(0, false), (0, true), (1, false), (1, true)]
        );
        assert_eq!(contradiction(&spans, &messages), None);
        let forged = |change: fn(&mut Vec<TokenSpan>)| {
            let mut spans = spans.clone();
            change(&mut spans);
            contradiction(&spans, &messages).expect("a contradiction").0
        };
        assert_eq!(forged(|spans| drop(spans.pop())), "tokens");
        assert_eq!(forged(|spans| spans[1].ids.push(7)), "tokens 1, log-probabilities");
        assert_eq!(forged(|spans| spans[0].ids.push(7)), "tokens 1, counts");
        assert_eq!(forged(|spans| spans[3].message = 2), "tokens 3, message");
        assert_eq!(forged(|spans| spans[3].branch = 2), "tokens 3, branch");
        assert_eq!(forged(|spans| spans.push(spans[3].clone())), "tokens 4, author");
    }

    #[test]
    fn an_aside_is_a_branch_of_its_own_and_the_conversation_goes_on_in_its_own() {
        let aside = |mut message: Message| {
            message.tool_call_id = Some("search_0".to_owned());
            message
        };
        let text = Message::text;
        let search = [aside(text(Role::User, "Which?")), aside(said(2, 1)), text(Role::Tool, "D")];
        let first = [text(Role::User, "Q"), said(2, 1)];
        let messages = [&first[..], &search, &[said(5, 1)], &search, &[said(3, 1)]].concat();
        let mut log = TokenLog::default();
        let of = |place: usize, read: &[u32], restarts, sampled| TurnTokens {
            read: vec![(place, read.to_vec())],
            ..turn(&[], restarts, sampled)
        };
        log.add(of(0, &[1, 2], false, &[3]), &messages[..1]);
        log.add(of(0, &[7, 8], false, &[9]), &messages[..3]);
        log.add(of(2, &[4, 5], false, &[6]), &messages[..5]);
        log.add(of(0, &[7, 8], false, &[9]), &messages[..7]);
        log.add(of(0, &[1, 2, 3], true, &[4]), &messages[..9]);
        let spans = log.spans;
        let branches: Vec<_> = spans.iter().map(|span| (span.message, span.branch)).collect();
        assert_eq!(branches, [(0, 0), (1, 0), (2, 1), (3, 1), (4, 0), (5, 0), (6, 2), (7, 2), (0, 3), (9, 3)]);
        assert_eq!(contradiction(&spans, &messages), None);
        let forged = |change: fn(&mut Vec<TokenSpan>)| {
            let mut spans = spans.clone();
            change(&mut spans);
            contradiction(&spans, &messages).expect("a contradiction").0
        };
        assert_eq!(forged(|spans| spans[2].branch = 0), "tokens 2, branch");
        assert_eq!(forged(|spans| spans[3].branch = 0), "tokens 3, branch");
        assert_eq!(forged(|spans| spans[4].branch = 1), "tokens 4, branch");
        assert_eq!(forged(|spans| drop(spans.remove(2))), "tokens 2, branch");
        assert_eq!(forged(|spans| spans[2].ids.push(1)), "tokens 3, counts");
        assert_eq!(forged(|spans| spans[4].ids.push(1)), "tokens 5, counts");
    }

    #[test]
    fn what_a_server_has_reported_is_not_repeated() {
        let mut reported = Reported::default();
        let said = |sampled: &[u32]| TurnTokens { sampled: sampled.to_vec(), ..TurnTokens::default() };
        let mut next = |prompt: &[u32], sampled: &[u32], messages, record| {
            reported.new_in(prompt.to_vec(), said(sampled), messages, record).map(|turn| (turn.read, turn.restarts))
        };
        assert_eq!(next(&[1, 2], &[3], 2, RewrittenHistory::Reject), Ok((vec![(0, vec![1, 2])], false)));
        assert_eq!(next(&[1, 2, 3, 4], &[5], 4, RewrittenHistory::Reject), Ok((vec![(3, vec![4])], false)));
        assert!(next(&[1, 2, 4, 5, 6], &[7], 6, RewrittenHistory::Reject).is_err());
        assert_eq!(next(&[1, 2, 4, 5, 6], &[7], 6, RewrittenHistory::Fork), Ok((vec![(0, vec![1, 2, 4, 5, 6])], true)));
    }

    #[test]
    fn rewritten_history_is_a_new_branch_or_an_error() {
        assert_eq!(RewrittenHistory::Fork.allow("x"), Ok(()));
        let told = RewrittenHistory::Reject.allow("the chat template rewrites earlier turns").expect_err("an error");
        assert!(told.starts_with("the chat template rewrites earlier turns, so"), "{told}");
    }
}

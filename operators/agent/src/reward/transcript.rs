//! A rollout as rewards read it: the prompt, then who wrote which text.

use searchmill_schemas::{Message, Trajectory};

/// Author of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The model.
    Model,
    /// The environment: results of searches, remarks on actions that are not valid.
    Environment,
}

/// A part of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Who wrote it.
    pub author: Author,
    /// The text.
    pub text: String,
    /// Of the model's: its reasoning, if the endpoint returned it separately.
    pub reasoning: Option<String>,
    /// Of the environment's: whether it refuses an action that was not valid.
    pub refusal: bool,
}

/// A rollout as one text: a prompt, and the spans after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// Texts of the opening messages, joined with line feeds, and what the protocol puts before the model's first
    /// word. The markers of a chat template are not part of it.
    pub prompt: String,
    /// What follows, in order.
    pub spans: Vec<Span>,
    /// Whether the model ended its last turn itself: it was not cut off, and no limit ended the rollout.
    pub finished: bool,
}

impl Span {
    /// A text of the model.
    pub fn model(text: impl Into<String>) -> Self {
        Self { author: Author::Model, text: text.into(), reasoning: None, refusal: false }
    }

    /// A text of the environment.
    pub fn environment(text: impl Into<String>) -> Self {
        Self { author: Author::Environment, ..Self::model(text) }
    }

    fn of(message: &Message) -> Self {
        let author = if message.is_model() { Author::Model } else { Author::Environment };
        let refusal = message.error.is_some();
        Self { author, text: message.content.clone(), reasoning: message.reasoning.clone(), refusal }
    }
}

impl From<&Trajectory> for Transcript {
    fn from(trajectory: &Trajectory) -> Self {
        let messages = &trajectory.messages;
        let opening = messages.iter().take_while(|message| message.is_opening()).count();
        // A text of the environment before the model's first word belongs to the prompt (`<think>` of R1-Searcher).
        let prefilled = messages[opening..].iter().take_while(|message| !message.is_model()).count();
        let (prompt, response) = messages.split_at(opening + prefilled);
        let texts: Vec<&str> = prompt.iter().map(|message| message.content.as_str()).collect();
        let (texts, prefill) = texts.split_at(opening);
        let ended = matches!(trajectory.finish_reason.as_str(), "answered" | "no_answer");
        Self {
            prompt: texts.join("\n") + &prefill.concat(),
            spans: response.iter().map(Span::of).collect(),
            finished: ended && messages.last().is_some_and(|last| last.is_model() && !last.is_cut()),
        }
    }
}

impl Transcript {
    /// Returns the response as one text, whoever wrote it.
    pub fn response(&self) -> String {
        self.spans.iter().map(|span| span.text.as_str()).collect()
    }

    /// Iterates over the model's texts.
    pub fn model_texts(&self) -> impl Iterator<Item = &str> {
        self.by(Author::Model).map(|span| span.text.as_str())
    }

    /// Iterates over the texts of searches that were carried out.
    pub fn results(&self) -> impl Iterator<Item = &str> {
        self.by(Author::Environment).filter(|span| !span.refusal).map(|span| span.text.as_str())
    }

    /// Returns the last span if the model wrote it: the only place of a final answer.
    pub fn last_word(&self) -> Option<&Span> {
        let last = self.spans.last()?;
        if last.author == Author::Model { Some(last) } else { None }
    }

    fn by(&self, author: Author) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(move |span| span.author == author)
    }
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::trajectory;

    use searchmill_schemas::Role;

    use super::*;

    #[test]
    fn the_prompt_ends_before_the_models_first_word() {
        let mut made = trajectory("q", 0, "x", "x");
        let mut cut = Message::text(Role::Assistant, " <answer>x");
        made.messages.push(Message::text(Role::Tool, "<think>"));
        made.messages.push(Message::text(Role::Assistant, "a <s>q</s>"));
        let mut refused = Message::text(Role::Tool, " no query");
        refused.error = Some("no query".to_owned());
        made.messages.extend([refused, cut.clone()]);
        let transcript = Transcript::from(&made);
        assert_eq!(transcript.prompt, "Search, then answer.\nWhat is asked in q?<think>");
        assert_eq!(transcript.response(), "a <s>q</s> no query <answer>x");
        assert_eq!(transcript.model_texts().collect::<Vec<_>>(), ["a <s>q</s>", " <answer>x"]);
        assert_eq!(transcript.results().count(), 0, "a refusal is no result");
        assert!(transcript.finished && transcript.last_word().is_some());
        cut.finish_reason = Some("length".to_owned());
        *made.messages.last_mut().unwrap() = cut;
        assert!(!Transcript::from(&made).finished);
        made.messages.truncate(5);
        let transcript = Transcript::from(&made);
        assert!(!transcript.finished && transcript.last_word().is_none(), "the environment had the last word");
    }

    #[test]
    fn a_limit_does_not_finish() {
        let mut made = trajectory("q", 0, "x", "x");
        made.messages.push(Message::text(Role::Assistant, "x"));
        assert!(Transcript::from(&made).finished);
        made.finish_reason = "max_turns".to_owned();
        assert!(!Transcript::from(&made).finished);
        made.messages.clear();
        assert_eq!(Transcript::from(&made), Transcript::default());
    }
}

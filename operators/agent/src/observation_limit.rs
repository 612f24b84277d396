//! Limit of a tool message in tokens. A longer one is cut at the end of its results; the tags around them stay.

use searchmill_schemas::{CutObservation, Message};

use super::protocol::{Action, Protocol};
use super::tool::ToolResult;

/// Returns the byte offsets at which the units of a text start.
pub type Starts = dyn Fn(&str) -> Result<Vec<usize>, String> + Send + Sync;

/// The most tokens of a tool message, tags included.
pub struct ObservationLimit {
    pub most: usize,
    pub starts: Box<Starts>,
}

impl ObservationLimit {
    /// Renders the results of the actions of one message, and cuts those that are too long. `first` is the position of
    /// the first message. Passages of which nothing is left are not among a message's observations.
    ///
    /// # Errors
    /// If a text cannot be tokenised.
    pub(crate) fn render(
        &self,
        protocol: &dyn Protocol,
        answered: Vec<(Action, ToolResult)>,
        first: usize,
    ) -> Result<(Vec<Message>, Vec<CutObservation>), String> {
        // A copy: the uncut results are needed again to find which passages a cut leaves (`shown`).
        let mut messages = protocol.render(answered.clone());
        let mut cuts = Vec::new();
        // A remark on a message that asked for nothing is no result.
        if !answered.iter().any(|(action, _)| action.is_call()) {
            return Ok((messages, cuts));
        }
        for (number, message) in messages.iter_mut().enumerate() {
            let (open, inner, close) = parts(protocol, &message.content);
            let Some((length, tokens)) = self.cut(open, inner, close)? else { continue };
            let shown = shown(protocol, &answered, message, inner[..length].trim_end().len());
            message.content = format!("{open}{}{close}", &inner[..length]);
            message.observations.truncate(shown);
            let position = i32::try_from(first + number).unwrap_or(i32::MAX);
            cuts.push(CutObservation { message: position, tokens: i32::try_from(tokens).unwrap_or(i32::MAX) });
        }
        Ok((messages, cuts))
    }

    /// Cuts a text between tags to the limit: returns the bytes of it that stay, and the tokens of the whole message;
    /// `None` if it is short enough. The tags alone may exceed the limit.
    fn cut(&self, open: &str, inner: &str, close: &str) -> Result<Option<(usize, usize)>, String> {
        let tokens = (self.starts)(&format!("{open}{inner}{close}"))?.len();
        if tokens <= self.most {
            return Ok(None);
        }
        let starts = (self.starts)(&format!("{open}{inner}"))?;
        // Some units count an empty text as one.
        let closing = if close.is_empty() { 0 } else { (self.starts)(close)?.len() };
        let mut left = self.most.saturating_sub(closing).min(starts.len().saturating_sub(1));
        loop {
            let mut length = starts.get(left).map_or(0, |start| start.saturating_sub(open.len())).min(inner.len());
            // The units may be bytes: tokens of byte-level tokenizers can begin within a character.
            while !inner.is_char_boundary(length) {
                length -= 1;
            }
            if length == 0 || left == 0 {
                return Ok(Some((0, tokens)));
            }
            // Tokens at a cut may be others than in the whole text, and white space at an end may count.
            for length in [length, inner[..length].trim_end().len()] {
                if (self.starts)(&format!("{open}{}{close}", &inner[..length]))?.len() <= self.most {
                    return Ok(Some((length, tokens)));
                }
            }
            left -= 1;
        }
    }
}

/// Splits a tool message into what stands around the results and the results.
fn parts<'t>(protocol: &dyn Protocol, content: &'t str) -> (&'t str, &'t str, &'t str) {
    let (open, close) = protocol.observation_tags();
    let Some(inner) = content.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)) else {
        return ("", content, "");
    };
    let end = open.len() + inner.len();
    (&content[..open.len()], inner, &content[end..])
}

/// Returns how many of a message's passages begin in the first `length` bytes of its results.
fn shown(protocol: &dyn Protocol, answered: &[(Action, ToolResult)], message: &Message, length: usize) -> usize {
    for count in 0..message.observations.len() {
        // A passage begins where the text of those before it ends.
        let begin = match count {
            0 => 0,
            _ => parts(protocol, &rendered(protocol, answered, message, count)).1.len(),
        };
        if begin >= length {
            return count;
        }
    }
    message.observations.len()
}

/// Returns the text of a message with only its first `count` passages.
fn rendered(protocol: &dyn Protocol, answered: &[(Action, ToolResult)], message: &Message, count: usize) -> String {
    let mut left = count;
    let mut first = Vec::new();
    let own = answered.iter().filter(|(action, _)| Some(&action.id) == message.tool_call_id.as_ref());
    for (action, result) in own {
        if left == 0 {
            break;
        }
        // Only what is shown is copied: the texts may be long.
        let result = match result {
            Ok(found) => Ok(found[..found.len().min(left)].to_vec()),
            Err(error) => Err(error.clone()),
        };
        left -= result.as_ref().map_or(0, Vec::len);
        first.push((action.clone(), result));
    }
    protocol.render(first).into_iter().next().map(|message| message.content).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use searchmill_retrieval::Found;
    use serde_json::json;

    use super::*;
    use crate::protocol::{ProtocolParams, ProtocolSettings};

    /// Counts characters.
    fn limit(most: usize) -> ObservationLimit {
        let starts = |text: &str| Ok(text.char_indices().map(|(at, _)| at).collect());
        ObservationLimit { most, starts: Box::new(starts) }
    }

    fn found(id: &str, contents: &str) -> Found {
        Found {
            chunk_id: id.to_owned(),
            document_id: id.to_owned(),
            title: None,
            contents: contents.to_owned(),
            score: 1.0,
            sources: Vec::new(),
        }
    }

    fn answered(id: &str, texts: &[&str]) -> (Action, ToolResult) {
        let arguments = Ok(json!({"query": "q"}));
        let action = Action { id: id.to_owned(), tool: "search".to_owned(), arguments };
        (action, Ok(texts.iter().enumerate().map(|(at, text)| found(&format!("{id}{at}"), text)).collect()))
    }

    fn protocol(params: &ProtocolParams) -> std::sync::Arc<dyn Protocol> {
        params.open(&ProtocolSettings { tool: Some("search"), ..ProtocolSettings::default() })
    }

    #[test]
    fn closing_tags_survive_and_unseen_passages_are_not_observed() {
        let protocol = protocol(&ProtocolParams::Research);
        let whole = protocol.render(vec![answered("a", &["One é text.", "Two.", "Three."])]).remove(0);
        let (open, close) = protocol.observation_tags();
        assert!(whole.content.starts_with(open) && whole.content.ends_with(close) && !close.trim().is_empty());
        let length = whole.content.chars().count();
        for most in 0..length + 3 {
            let all = vec![answered("a", &["One é text.", "Two.", "Three."])];
            let (messages, cuts) = limit(most).render(protocol.as_ref(), all, 4).expect("counted");
            let [message] = messages.as_slice() else { panic!("one message") };
            assert!(message.content.starts_with(open) && message.content.ends_with(close), "{most}: {message:?}");
            let (count, tags) = (message.content.chars().count(), open.len() + close.len());
            assert!(count <= most.max(tags), "{most}: {count}");
            if most >= length {
                assert_eq!((message, cuts.as_slice()), (&whole, &[][..]));
                continue;
            }
            assert!(count == most.max(tags), "{most}: as much as fits, {count}");
            let tokens = i32::try_from(length).expect("short");
            assert_eq!(cuts, [CutObservation { message: 4, tokens }]);
            for (number, text) in ["One", "Two", "Three"].iter().enumerate() {
                let begins = message.content.contains(&text[..1]);
                assert!(begins || message.observations.len() <= number, "{most}: {message:?}");
                assert!(!message.content.contains(text) || message.observations.len() > number, "{most}: {message:?}");
            }
        }
    }

    #[test]
    fn each_tool_message_is_cut_for_itself() {
        let protocol = protocol(&ProtocolParams::ToolCall);
        let all = vec![answered("a", &["A long passage.", "Another."]), answered("b", &["Short."])];
        let (messages, cuts) = limit(12).render(protocol.as_ref(), all, 0).expect("counted");
        let texts: Vec<_> = messages.iter().map(|message| message.content.as_str()).collect();
        assert_eq!(texts, ["[1] A long p", "[1] Short."]);
        assert_eq!(messages[0].observations.len(), 1);
        assert_eq!(cuts.iter().map(|cut| cut.message).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_remark_is_no_observation() {
        for params in [ProtocolParams::SearchR1, ProtocolParams::Research] {
            let settings =
                ProtocolSettings { tool: Some("search"), tells_invalid: true, ..ProtocolSettings::default() };
            let protocol = params.open(&settings);
            let actions = protocol.parse(&Message::text(searchmill_schemas::Role::Assistant, "Let me see."));
            let answered: Vec<_> = actions
                .into_iter()
                .map(|action| {
                    let told = action.arguments.clone().expect_err("a remark");
                    (action, Err(told))
                })
                .collect();
            let whole = protocol.render(answered.clone());
            assert!(whole.len() == 1 && whole[0].content.len() > 40, "{whole:?}");
            let shown = limit(3).render(protocol.as_ref(), answered, 0).expect("counted");
            assert_eq!(shown, (whole, Vec::new()));
        }
    }

    #[test]
    fn a_text_that_cannot_be_counted_is_an_error() {
        let broken = ObservationLimit { most: 3, starts: Box::new(|_| Err("no [UNK]".to_owned())) };
        let told = broken.render(protocol(&ProtocolParams::ToolCall).as_ref(), vec![answered("a", &["x"])], 0);
        assert_eq!(told.expect_err("an error"), "no [UNK]");
    }
}

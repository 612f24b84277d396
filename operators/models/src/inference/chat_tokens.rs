//! A chat in the tokens in which the model read and wrote it. What the model sampled is never tokenised again: of each new
//! rendering of the conversation, only the part after the model's turn is encoded and appended.
//!
//! A chat template may render earlier turns in other words than before (Qwen3 leaves out old thoughts). Then the whole
//! rendering is encoded, as it would be without this record, and the caller learns of it. A turn that is rendered in
//! another form but says the same (white space in the JSON of a call) is not rewritten: it stays as it was sampled.

use std::collections::BTreeMap;

use searchmill_text::json::Json;

use super::chat::Message;
use super::control::Prompt;
use super::hermes::{Speech, parse_calls};
use super::tools::parse_tools;
use super::{Completion, TextModel};

/// The tokens of a chat up to the model's last turn.
#[derive(Clone, Debug, Default)]
pub struct ChatTokens {
    /// The conversation as the template rendered it before the model's last turn.
    rendered: Prompt,
    /// The tokens that the model has read and written.
    tokens: Vec<u32>,
    /// The model's last turn, if it is in `tokens` but not in `rendered`.
    last_turn: Option<Turn>,
}

/// A turn of the model.
#[derive(Clone, Debug)]
struct Turn {
    text: String,
    stop_token: Option<u32>,
}

/// Tokens that the model reads for the first time in this form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newly {
    pub tokens: Vec<u32>,
    /// Whether they are the whole conversation, because earlier turns are rendered in other words than before.
    pub rewritten: bool,
}

impl ChatTokens {
    /// Returns all tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Adds a turn that the model wrote after these tokens.
    pub fn said(&mut self, model: &TextModel, turn: &Completion) {
        let text = model.continuation(&self.tokens, &turn.tokens);
        self.tokens.extend(turn.tokens.iter().chain(&turn.stop_token));
        self.last_turn = Some(Turn { text, stop_token: turn.stop_token });
    }
}

impl TextModel {
    /// Adds to a chat what the model reads next, up to the beginning of its next turn. Returns the new tokens.
    ///
    /// # Errors
    /// As [`TextModel::chat_tokens`].
    pub fn read_on(
        &self,
        chat: &mut ChatTokens,
        messages: &[Message],
        tools: &str,
        options: &BTreeMap<String, serde_json::Value>,
    ) -> Result<Newly, String> {
        let prompt = self.template.prompt(messages, &parse_tools(tools)?, options)?;
        let start = chat.last_turn.take().and_then(|turn| self.after_the_turn(&chat.rendered, &turn, &prompt));
        let rewritten = start.is_none() && !chat.tokens.is_empty();
        if start.is_none() {
            chat.tokens.clear();
        }
        let encoded = prompt.encode_part(&self.tokenizer, start.unwrap_or(0)..prompt.text.len())?;
        let tokens: Vec<u32> = encoded.into_iter().map(|(token, _)| token).collect();
        chat.tokens.extend(&tokens);
        chat.rendered = prompt;
        Ok(Newly { tokens, rewritten })
    }

    /// Returns the place in `now` after the model's turn, as far as its tokens reach. `None` if `now` does not continue
    /// `before` with that turn.
    fn after_the_turn(&self, before: &Prompt, turn: &Turn, now: &Prompt) -> Option<usize> {
        // Earlier turns are rendered in other words: what was sampled is not in this form.
        if !now.begins_with(before) {
            return None;
        }
        let start = before.text.len();
        let mut stops = Vec::new();
        for token in self.stop_tokens.iter() {
            let text = self.token_text(*token);
            // The text of another token may be content, where it ends nothing. An empty text is not found.
            stops.push(if self.template.control.has(&text) { text } else { String::new() });
        }
        let (end, number) = now.first_control(start, &stops)?;
        // A thought that the template has opened belongs to the turn.
        let opened = if before.text.trim_end().ends_with("<think>") { "<think>" } else { "" };
        let sampled = parse_calls(&format!("{opened}{}", turn.text), "");
        let rendered = parse_calls(&format!("{opened}{}", &now.text[start..end]), "");
        if !says_the_same(&sampled, &rendered) {
            return None;
        }
        match turn.stop_token {
            None => Some(end),
            Some(token) if token == self.stop_tokens[number] => Some(end + stops[number].len()),
            Some(_) => None,
        }
    }
}

/// Whether two turns differ at most in the white space around their parts and in the form of JSON.
fn says_the_same(one: &Speech, other: &Speech) -> bool {
    if one.content != other.content || one.reasoning != other.reasoning || one.calls.len() != other.calls.len() {
        return false;
    }
    for ((name, arguments), (other_name, other_arguments)) in one.calls.iter().zip(&other.calls) {
        let is_same = arguments == other_arguments
            || matches!((Json::parse(arguments), Json::parse(other_arguments)), (Ok(one), Ok(other)) if one == other);
        if name != other_name || !is_same {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::models::model_folder;

    use super::super::{Finish, Opening, Said};
    use super::*;
    use crate::device::Compute;

    fn model(template: Option<&str>) -> TextModel {
        let folder = model_folder(4096);
        if let Some(template) = template {
            std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
        }
        let opening = Opening { rows: 1, context: None, threads: 1, memory: None, compute: Compute::cpu() };
        TextModel::open(folder.path(), None, opening).unwrap()
    }

    fn message(role: &str, content: &str) -> Message {
        Message {
            role: role.to_owned(),
            content: content.to_owned(),
            reasoning: None,
            calls: Vec::new(),
            call_id: None,
        }
    }

    fn turn(model: &TextModel, text: &str, stop_token: Option<u32>) -> Completion {
        let tokens = model.tokens(text).unwrap();
        Completion {
            text: text.to_owned(),
            drawn: tokens.len(),
            tokens,
            log_probabilities: Vec::new(),
            alternatives: Vec::new(),
            finish: Finish::Stop,
            stop_token,
            stop_log_probability: None,
            stop_text: None,
            prompt_tokens: 1,
            reused: 0,
        }
    }

    const END: Option<u32> = Some(258);

    /// Reads a question, says `text`, and reads `messages` with the model's message in the words of the record.
    fn played(model: &TextModel, text: &str, stop: Option<u32>, said: Message) -> (ChatTokens, Newly, Vec<u32>) {
        let mut chat = ChatTokens::default();
        let mut messages = vec![message("user", "Q <|im_end|>")];
        let first = model.read_on(&mut chat, &messages, "[]", &BTreeMap::new()).unwrap();
        assert!(!first.rewritten);
        assert_eq!(first.tokens, model.chat_tokens(&messages, "[]", &BTreeMap::new()).unwrap());
        chat.said(model, &turn(model, text, stop));
        messages.extend([said, message("tool", "found <|im_end|> <tool_call>")]);
        let newly = model.read_on(&mut chat, &messages, "[]", &BTreeMap::new()).unwrap();
        let whole = model.chat_tokens(&messages, "[]", &BTreeMap::new()).unwrap();
        (chat, newly, whole)
    }

    #[test]
    fn what_was_sampled_stays_and_the_rest_is_appended() {
        let model = model(None);
        let (chat, newly, whole) =
            played(&model, "A text. <|im_end|>", END, message("assistant", "A text. <|im_end|>"));
        assert!(!newly.rewritten);
        assert!(chat.tokens().ends_with(&newly.tokens));
        // The model's own `<|im_end|>` in the text is a control token as it was sampled.
        assert!(chat.tokens().len() < whole.len());
        let (chat, newly, whole) = played(&model, "A text.", END, message("assistant", "A text."));
        assert_eq!((chat.tokens(), newly.rewritten), (&whole[..], false), "as if tokenised anew");
        let (cut, newly, _) = played(&model, "A text.", None, message("assistant", "A text."));
        assert_eq!((cut.tokens(), newly.rewritten), (&whole[..], false), "the template closes a turn that was cut off");
    }

    #[test]
    fn another_form_of_a_call_is_not_another_call() {
        let model = model(None);
        let mut said = message("assistant", "I look.");
        let call = |arguments: &str| Said { id: "1".into(), name: "search".into(), arguments: arguments.into() };
        said.calls = vec![call("{\"query\":\"x\"}")];
        let text = "I look.\n\n<tool_call>{\"name\":\"search\",\"arguments\":{\"query\":\"x\"}}</tool_call>";
        let (chat, newly, whole) = played(&model, text, END, said.clone());
        assert!(!newly.rewritten && chat.tokens() != whole);
        assert!(whole.ends_with(&newly.tokens));
        said.calls = vec![call("{\"query\":\"y\"}")];
        let (chat, newly, whole) = played(&model, text, END, said);
        assert_eq!((newly.rewritten, &newly.tokens, chat.tokens()), (true, &whole, &whole[..]));
    }

    #[test]
    fn rewritten_history_and_another_end_of_turn_are_noticed() {
        let plain = model(None);
        let (_, newly, whole) = played(&plain, "<think>\nHm.\n</think>\n\nYes.", END, message("assistant", "Yes."));
        assert_eq!((newly.rewritten, newly.tokens), (true, whole), "a thought is left out");
        let (_, newly, _) = played(&plain, "Yes.", Some(256), message("assistant", "Yes."));
        assert!(newly.rewritten, "the model ended with another token than the template writes");
        // A template that shows the first message only until there are others.
        let forgetful = "{% for m in messages %}{% if not loop.first or messages|length == 1 %}<|im_start|>{{ m.role }}\n\
                         {{ m.content }}<|im_end|>\n{% endif %}{% endfor %}<|im_start|>assistant\n";
        let (_, newly, whole) = played(&model(Some(forgetful)), "Yes.", END, message("assistant", "Yes."));
        assert_eq!((newly.rewritten, newly.tokens), (true, whole));
    }
}

//! `rollouts.jsonl` of NeMo Gym (NVIDIA-NeMo/Gym 0.7, `nemo_gym/base_resources_server.py`): `responses_create_params,
//! response, reward, _ng_task_index, _ng_rollout_index`, with conversations as items of OpenAI's Responses API.

use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use serde_json::{Map, Value};

use super::exchange::{
    content, definitions_of_chat, own, prediction, question, role, said, take_object, told, with_details, with_rest,
};
use super::field::{as_text, metadata, object, take_list, take_text, take_texts};
use super::outcome::{Outcome, trajectory_of};

/// Reads one rollout.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    if let Some(class) = fields.get("_ng_failure_class").and_then(as_text) {
        return Err(format!("the rollout failed: {class}"));
    }
    let mut asked = take_object(&mut fields, "responses_create_params");
    let mut response = take_object(&mut fields, "response");
    let mut conversation = Conversation::default();
    match asked.remove("input") {
        Some(Value::String(text)) => conversation.messages.push(Message::text(Role::User, text)),
        Some(Value::Array(items)) => conversation.add("responses_create_params.input", &items)?,
        _ => return Err("`responses_create_params.input` is neither a text nor a list".to_owned()),
    }
    let Some(Value::Array(output)) = response.remove("output") else {
        return Err("`response.output` is not a list".to_owned());
    };
    conversation.add("response.output", &output)?;
    let rest = own(fields.get("trajectory")).cloned();
    if rest.is_some() {
        fields.remove("trajectory");
    }
    let rest = rest.as_ref();
    let kept = rest.and_then(|rest| rest.get("messages")).and_then(Value::as_array);
    let messages = conversation.messages.into_iter().enumerate();
    let messages = messages.map(|(at, message)| with_details(message, kept.and_then(|kept| kept.get(at))));
    let messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let tools = Value::Array(definitions_of_chat(take_list(&mut asked, "tools"))).to_string();
    let index = |fields: &mut Map<String, Value>, name: &str| take_text(fields, &[name]);
    let question_id = index(&mut fields, "_ng_task_index").unwrap_or_else(|| number.to_string());
    let rollout = index(&mut fields, "_ng_rollout_index").and_then(|index| index.parse().ok()).unwrap_or(0);
    let golden_answers = take_texts(&mut fields, &["golden_answers", "expected_answer", "ground_truth", "answer"])?;
    let mut made = trajectory_of(Outcome {
        question: take_text(&mut fields, &["question"]).or_else(|| question(&messages)).unwrap_or_default(),
        golden_answers,
        protocol: "tool_call",
        tools,
        prediction: prediction(&messages),
        messages,
        finish_reason: None,
        metadata: metadata(fields),
        question_id,
    });
    made.sample_index = rollout;
    made.id = format!("{}@{rollout}", made.question_id);
    made.model = take_text(&mut response, &["model"]);
    let tokens = |name: &str| response.get("usage").and_then(|usage| usage.get(name)?.as_i64()).unwrap_or_default();
    made.prompt_tokens = tokens("input_tokens");
    made.completion_tokens = tokens("output_tokens");
    with_rest(made, rest)
}

/// Messages, as items add up to them. A message of the model is its reasoning, its text and its calls, in this order;
/// parts may be missing.
#[derive(Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Whether the last message is the model's and still without text: its text may follow.
    awaits_text: bool,
    /// Whether calls may follow.
    awaits_calls: bool,
}

impl Conversation {
    fn add(&mut self, place: &str, items: &[Value]) -> Result<(), String> {
        for (at, item) in items.iter().enumerate() {
            self.item(item).map_err(|error| format!("`{place}.{at}`: {error}"))?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Value) -> Result<(), String> {
        let text = |name: &str| item.get(name).and_then(as_text);
        match item.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => {
                let name = text("role").unwrap_or_default();
                let role = role(&name).ok_or_else(|| format!("`role` is `{name}`, not system, user or assistant"))?;
                self.message(role, content(item.get("content")));
            }
            "reasoning" => {
                let texts = [content(item.get("summary")), content(item.get("content"))];
                let thought = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
                match self.messages.last_mut().filter(|_| self.awaits_text) {
                    Some(last) => last.reasoning = last.reasoning.take().map(|before| format!("{before}\n{thought}")),
                    None => self.messages.push(said(String::new(), Some(thought), Vec::new())),
                }
                (self.awaits_text, self.awaits_calls) = (true, true);
            }
            "function_call" => {
                let name = text("name").ok_or("a call has no `name`")?;
                let arguments = text("arguments").unwrap_or_default();
                let call = ToolCall { id: text("call_id").unwrap_or_default(), name, arguments };
                match self.messages.last_mut().filter(|_| self.awaits_calls) {
                    Some(last) => last.tool_calls.push(call),
                    None => self.messages.push(said(String::new(), None, vec![call])),
                }
                (self.awaits_text, self.awaits_calls) = (false, true);
            }
            "function_call_output" => {
                self.messages.push(told(content(item.get("output")), text("call_id")));
                (self.awaits_text, self.awaits_calls) = (false, false);
            }
            other => return Err(format!("items of type `{other}` are not known")),
        }
        Ok(())
    }

    fn message(&mut self, role: Role, content: String) {
        let is_model = role == Role::Assistant;
        match self.messages.last_mut().filter(|_| is_model && self.awaits_text) {
            Some(last) => last.content = content,
            None => self.messages.push(Message::text(role, content)),
        }
        (self.awaits_text, self.awaits_calls) = (false, is_model);
    }
}

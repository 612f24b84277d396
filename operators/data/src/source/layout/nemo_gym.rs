//! `rollouts.jsonl` of NeMo Gym (NVIDIA-NeMo/Gym 0.7, `nemo_gym/base_resources_server.py`): `responses_create_params,
//! response, reward, _ng_task_index, _ng_rollout_index`, with conversations as items of OpenAI's Responses API.

use searchmill_schemas::{Message, Role, ToolCall, Trajectory};
use serde_json::Value;

use super::exchange::{
    content, definitions_of_chat, model_message, own, prediction, question, role, row_of, take_object, tool_message,
    with_details, with_rest,
};
use super::field::{count, items, metadata, object, take_id, take_list, take_text, take_texts, text_of};

/// Reads one rollout.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    if let Some(class) = text_of(fields.get("_ng_failure_class")) {
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
    // Removed only if it is ours: another `trajectory` is metadata.
    let rest = own(fields.get("trajectory")).cloned();
    if rest.is_some() {
        fields.remove("trajectory");
    }
    let details = items(rest.as_ref().and_then(|rest| rest.get("messages")));
    let mut messages = Vec::with_capacity(conversation.messages.len());
    for (at, message) in conversation.messages.into_iter().enumerate() {
        messages.push(with_details(message, details.get(at))?);
    }
    let question_id = take_id(&mut fields, &["_ng_task_index"], number);
    let rollout = take_text(&mut fields, &["_ng_rollout_index"]).unwrap_or_default().parse().unwrap_or(0);
    let golden_answers = take_texts(&mut fields, &["golden_answers", "expected_answer", "ground_truth", "answer"])?;
    let text = take_text(&mut fields, &["question"]).or_else(|| question(&messages)).unwrap_or_default();
    let prediction = prediction(&messages);
    let mut row = row_of(question_id, text, messages, prediction);
    row.golden_answers = golden_answers;
    row.tools = Value::Array(definitions_of_chat(take_list(&mut asked, "tools"))).to_string();
    row.metadata = metadata(fields);
    row.sample_index = rollout;
    row.id = format!("{}@{rollout}", row.question_id);
    row.model = take_text(&mut response, &["model"]);
    let usage = response.get("usage").unwrap_or(&Value::Null);
    row.prompt_tokens = count(usage.get("input_tokens"));
    row.completion_tokens = count(usage.get("output_tokens"));
    with_rest(row, rest.as_ref())
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
    fn add(&mut self, path: &str, items: &[Value]) -> Result<(), String> {
        for (at, item) in items.iter().enumerate() {
            self.item(item).map_err(|error| format!("`{path}.{at}`: {error}"))?;
        }
        Ok(())
    }

    fn item(&mut self, item: &Value) -> Result<(), String> {
        match item.get("type").and_then(Value::as_str).unwrap_or("message") {
            "message" => {
                let name = text_of(item.get("role")).unwrap_or_default();
                let role = role(&name).ok_or_else(|| format!("`role` is `{name}`, not system, user or assistant"))?;
                let (content, is_model) = (content(item.get("content")), role == Role::Assistant);
                match self.messages.last_mut() {
                    Some(last) if is_model && self.awaits_text => last.content = content,
                    _ => self.messages.push(Message::text(role, content)),
                }
                (self.awaits_text, self.awaits_calls) = (false, is_model);
            }
            "reasoning" => {
                // Servers of closed models give a summary, others the reasoning itself.
                let mut thought = content(item.get("summary"));
                if thought.is_empty() {
                    thought = content(item.get("content"));
                }
                match self.messages.last_mut() {
                    Some(last) if self.awaits_text => {
                        if let Some(before) = &mut last.reasoning {
                            *before += &format!("\n{thought}");
                        }
                    }
                    _ => self.messages.push(model_message(String::new(), Some(thought), Vec::new())),
                }
                (self.awaits_text, self.awaits_calls) = (true, true);
            }
            "function_call" => {
                let name = text_of(item.get("name")).ok_or("a call has no `name`")?;
                let arguments = text_of(item.get("arguments")).unwrap_or_default();
                let call = ToolCall { id: text_of(item.get("call_id")).unwrap_or_default(), name, arguments };
                match self.messages.last_mut() {
                    Some(last) if self.awaits_calls => last.tool_calls.push(call),
                    _ => self.messages.push(model_message(String::new(), None, vec![call])),
                }
                (self.awaits_text, self.awaits_calls) = (false, true);
            }
            "function_call_output" => {
                self.messages.push(tool_message(content(item.get("output")), text_of(item.get("call_id"))));
                (self.awaits_text, self.awaits_calls) = (false, false);
            }
            other => return Err(format!("items of type `{other}` are not known")),
        }
        Ok(())
    }
}

//! `rollouts.jsonl` of NeMo Gym with `rollouts_materialized_inputs.jsonl` (NVIDIA-NeMo/Gym 0.7,
//! `nemo_gym/rollout_collection.py` and `base_resources_server.py`): one line per trajectory in each, joined by
//! `_ng_task_index` (the question) and `_ng_rollout_index` (the sample).
//!
//! Conversations are items of OpenAI's Responses API. Every message of the model has a `message` item, even without text,
//! so that a reader knows where one begins. What a rollout has no field for is in `trajectory`.

use searchmill_data::source::layout::definitions_of_chat;
use searchmill_schemas::{Message, ToolCall, Trajectory};
use serde_json::{Value, json};

use super::parts::{answered, answers_nothing, lost, rest, tool, tools};
use crate::reward::Rewarded;

/// Builds the lines of both files: the materialized input, and the rollout. `indices`: the number of the question, in the
/// order of their first rollouts, and the number of the rollout among those of its question.
pub(super) fn lines(trajectory: &Trajectory, rewards: &Rewarded, agent: &str, indices: [usize; 2]) -> [Value; 2] {
    let messages = &trajectory.messages;
    let opening = messages.iter().take_while(|message| message.is_opening()).count();
    let input: Vec<Value> = messages[..opening].iter().map(|message| easy(&message.role, message)).collect();
    let definitions: Option<Vec<_>> = tools(trajectory).map(|tools| tools.iter().map(strict).collect());
    let mut own = rest(trajectory, definitions.clone().map(definitions_of_chat));
    let definitions = definitions.unwrap_or_default();
    let asked = json!({
        "responses_create_params": {"input": input, "tools": definitions},
        "agent_ref": {"type": "responses_api_agents", "name": agent},
        "question": trajectory.question,
        "golden_answers": trajectory.golden_answers,
        "_ng_task_index": indices[0],
        "_ng_rollout_index": indices[1],
    });
    let mut done = asked.clone();
    let output: Vec<Value> = (opening..messages.len()).flat_map(|index| items(index, messages)).collect();
    done["response"] = response(trajectory, output, definitions);
    done["reward"] = json!(rewards.value);
    done["reward_parts"] = rewards.parts.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    own.insert("messages".to_owned(), lost(messages));
    done["trajectory"] = Value::Object(own);
    [asked, done]
}

fn response(trajectory: &Trajectory, output: Vec<Value>, tools: Vec<Value>) -> Value {
    let (prompt, completion) = (trajectory.prompt_tokens, trajectory.completion_tokens);
    json!({
        "id": format!("resp_{}", trajectory.id),
        "object": "response",
        // OpenAI's `Response` requires a time, rows have none, and equal rows must give equal files.
        "created_at": 0.0,
        "model": trajectory.model.as_deref().unwrap_or("unknown"),
        "output": output,
        "parallel_tool_calls": true,
        "tool_choice": "auto",
        "tools": tools,
        "usage": {
            "input_tokens": prompt,
            // `ResponseUsage` requires the details, which rows do not record.
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt.saturating_add(completion),
        },
    })
}

fn easy(role: &str, message: &Message) -> Value {
    json!({"type": "message", "role": role, "content": message.content})
}

/// A tool of the Responses API; `strict` is required.
fn strict(definition: &Value) -> Value {
    let mut tool = tool(definition);
    if tool.get("strict").is_none() {
        tool["strict"] = Value::Null;
    }
    tool
}

fn items(index: usize, messages: &[Message]) -> Vec<Value> {
    let said = &messages[index];
    if !said.is_model() {
        return match answered(said, &messages[..index]) {
            Some(call) => vec![json!({"type": "function_call_output", "call_id": call.id, "output": said.content})],
            None if answers_nothing(index, messages) => vec![easy("user", said)],
            None => vec![easy(&said.role, said)],
        };
    }
    let mut items = Vec::new();
    if let Some(text) = &said.reasoning {
        let summary = json!([{"type": "summary_text", "text": text}]);
        items.push(json!({"type": "reasoning", "id": format!("rs_{index}"), "summary": summary}));
    }
    let status = if said.finish_reason.as_deref() == Some("length") { "incomplete" } else { "completed" };
    items.push(json!({
        "type": "message",
        "id": format!("msg_{index}"),
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_text", "text": said.content, "annotations": []}],
    }));
    for ToolCall { id, name, arguments } in &said.tool_calls {
        items.push(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}));
    }
    items
}

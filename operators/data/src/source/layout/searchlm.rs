//! Files of SearchLM (ExSearch; Shi et al. 2025, arXiv 2505.20128, mangopy/SearchLM at 457513a): results of its exploration
//! `{score, output: [{query_id, answer, pred, messages, rank}], config}`, and lists of training rows `{messages[, prob]}`.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use super::exchange::row_of;
use super::field::{items, metadata, object, take_id, take_list, take_text, take_texts, text_of};

/// Texts around the question in the original's prompt.
const QUESTION: [&str; 2] = ["<USER QUERY>", "Your Output:"];
const FINAL: &str = "<FINAL>";
/// Id of the call that results and rankings name, as in a rollout.
const CALL: &str = "search_0";

/// Reads one rollout. The question stands in the prompt alone. A training row has no prediction: its last message is the
/// golden answer. Rankings (`rank`) become asides after the queries that they follow.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let question_id = take_id(&mut fields, &["query_id", "id"], number);
    let mut golden_answers = take_texts(&mut fields, &["answer", "answers"])?;
    let rollout = dialogue("messages", &take_list(&mut fields, "messages"))?;
    let Some((Role::User, prompt)) = rollout.first() else {
        return Err("`messages` does not begin with a message of the user".to_owned());
    };
    let question = question(prompt)?.to_owned();
    let Some((Role::Assistant, last)) = rollout.last() else {
        return Err("`messages` does not end with a message of the assistant".to_owned());
    };
    let prediction = take_text(&mut fields, &["pred"]).unwrap_or_else(|| last.clone()).trim().to_owned();
    if golden_answers.is_empty() {
        golden_answers.push(last.trim().to_owned());
    }
    let mut rankings = Vec::new();
    for (at, ranking) in take_list(&mut fields, "rank").iter().enumerate() {
        rankings.push(dialogue(&format!("rank.{at}.messages"), items(ranking.get("messages")))?);
    }
    let mut row = row_of(question_id, question, messages(rollout, rankings), prediction);
    row.golden_answers = golden_answers;
    row.protocol = "searchlm".into();
    row.metadata = metadata(fields);
    // The model's answers in rankings are no turns of the rollout.
    let asides = i32::try_from(row.asides().count()).unwrap_or(i32::MAX);
    row.turns = row.turns.saturating_sub(asides);
    Ok(row)
}

/// The question in a prompt.
fn question(prompt: &str) -> Result<&str, String> {
    let (_, after) = prompt.rsplit_once(QUESTION[0]).unwrap_or_default();
    let (question, _) = after.rsplit_once(QUESTION[1]).unwrap_or((after, ""));
    let question = question.trim();
    if question.is_empty() {
        let mark = QUESTION[0];
        return Err(format!("the first message has no question after `{mark}` (a ranking is no rollout)"));
    }
    Ok(question)
}

/// Roles and texts of a list of messages.
fn dialogue(path: &str, messages: &[Value]) -> Result<Vec<(Role, String)>, String> {
    let mut dialogue = Vec::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        let role = match text_of(message.get("role")).as_deref() {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some(other) => return Err(format!("`{path}.{at}.role` is `{other}`, not user or assistant")),
            None => return Err(format!("`{path}.{at}` has no `role`")),
        };
        dialogue.push((role, text_of(message.get("content")).unwrap_or_default()));
    }
    Ok(dialogue)
}

/// The messages of the rollout: what the user says after a query is the result of a search.
fn messages(rollout: Vec<(Role, String)>, rankings: Vec<Vec<(Role, String)>>) -> Vec<Message> {
    let mut rankings = rankings.into_iter();
    let (mut messages, mut searched) = (Vec::new(), false);
    for (role, text) in rollout {
        if role == Role::User && searched {
            // The model ranked what the search found, before it saw the result.
            if let Some(ranking) = rankings.next()
                && matches!(ranking.as_slice(), [(Role::User, _), (Role::Assistant, _)])
            {
                messages.extend(ranking.into_iter().map(|(role, text)| of_call(role, text)));
            }
            messages.push(of_call(Role::Tool, text));
            continue;
        }
        searched = role == Role::Assistant && !text.contains(FINAL);
        let finish_reason = if role == Role::Assistant { Some("stop".to_owned()) } else { None };
        messages.push(Message { finish_reason, ..Message::text(role, text) });
    }
    messages
}

fn of_call(role: Role, text: String) -> Message {
    Message { tool_call_id: Some(CALL.to_owned()), ..Message::text(role, text) }
}

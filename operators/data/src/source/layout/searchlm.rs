//! Files of SearchLM (ExSearch; Shi et al. 2025, arXiv 2505.20128, mangopy/SearchLM at 457513a): results of its exploration
//! `{score, output: [{query_id, answer, pred, messages, rank}], config}`, and lists of training rows `{messages[, prob]}`.

use searchmill_schemas::{Message, Role, Trajectory};
use serde_json::Value;

use super::field::{as_text, metadata, object, take_list, take_text, take_texts};
use super::outcome::{Outcome, trajectory_of};

/// Texts around the question in the original's prompt.
const QUESTION: [&str; 2] = ["<USER QUERY>", "Your Output:"];
const FINAL: &str = "<FINAL>";
/// Id of the call that results and rankings name, as in a rollout.
const CALL: &str = "search_0";

/// Reads one rollout. The question stands in the prompt alone. A training row has no prediction: its last message is the
/// golden answer. Rankings (`rank`) become asides after the queries that they follow.
pub(super) fn trajectory(number: u64, record: Value) -> Result<Trajectory, String> {
    let mut fields = object(record)?;
    let question_id = take_text(&mut fields, &["query_id", "id"]).unwrap_or_else(|| number.to_string());
    let mut golden_answers = take_texts(&mut fields, &["answer", "answers"])?;
    let said = dialogue("messages", &take_list(&mut fields, "messages"))?;
    let Some((Role::User, prompt)) = said.first() else {
        return Err("`messages` does not begin with a message of the user".to_owned());
    };
    let question = question(prompt)?.to_owned();
    let Some((Role::Assistant, last)) = said.last() else {
        return Err("`messages` does not end with a message of the assistant".to_owned());
    };
    let prediction = take_text(&mut fields, &["pred"]).unwrap_or_else(|| last.clone()).trim().to_owned();
    if golden_answers.is_empty() {
        golden_answers.push(last.trim().to_owned());
    }
    let rankings = take_list(&mut fields, "rank");
    let rankings = rankings.iter().enumerate().map(|(at, ranking)| {
        let place = format!("rank.{at}.messages");
        dialogue(&place, ranking.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice))
    });
    let rankings: Vec<_> = rankings.collect::<Result<_, _>>()?;
    let mut made = trajectory_of(Outcome {
        question_id,
        question,
        golden_answers,
        protocol: "searchlm",
        tools: "[]".to_owned(),
        messages: messages(said, rankings),
        prediction,
        finish_reason: None,
        metadata: metadata(fields),
    });
    let asides = i32::try_from(made.asides().count()).unwrap_or(i32::MAX);
    made.turns = made.turns.saturating_sub(asides);
    Ok(made)
}

/// The question in a prompt.
fn question(prompt: &str) -> Result<&str, String> {
    let after = prompt.rsplit_once(QUESTION[0]).map(|(_, after)| after);
    let question = after.map(|after| after.rsplit_once(QUESTION[1]).map_or(after, |(question, _)| question).trim());
    question
        .filter(|question| !question.is_empty())
        .ok_or_else(|| format!("the first message has no question after `{}` (a ranking is no rollout)", QUESTION[0]))
}

/// Roles and texts of a list of messages.
fn dialogue(place: &str, messages: &[Value]) -> Result<Vec<(Role, String)>, String> {
    let message = |(at, message): (usize, &Value)| {
        let text = |name: &str| message.get(name).and_then(as_text);
        let role = match text("role").as_deref() {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some(other) => return Err(format!("`{place}.{at}.role` is `{other}`, not user or assistant")),
            None => return Err(format!("`{place}.{at}` has no `role`")),
        };
        Ok((role, text("content").unwrap_or_default()))
    };
    messages.iter().enumerate().map(message).collect()
}

/// The messages of the rollout: what the user says after a query is the result of a search.
fn messages(said: Vec<(Role, String)>, rankings: Vec<Vec<(Role, String)>>) -> Vec<Message> {
    let mut rankings = rankings.into_iter();
    let (mut messages, mut searched) = (Vec::new(), false);
    for (role, text) in said {
        if role == Role::User && searched {
            let ranking =
                rankings.next().filter(|ranking| matches!(ranking.as_slice(), [(Role::User, _), (Role::Assistant, _)]));
            messages.extend(ranking.into_iter().flatten().map(|(role, text)| of_call(role, text)));
            messages.push(of_call(Role::Tool, text));
            continue;
        }
        searched = role == Role::Assistant && !text.contains(FINAL);
        let finish_reason = (role == Role::Assistant).then(|| "stop".to_owned());
        messages.push(Message { finish_reason, ..Message::text(role, text) });
    }
    messages
}

fn of_call(role: Role, text: String) -> Message {
    Message { tool_call_id: Some(CALL.to_owned()), ..Message::text(role, text) }
}

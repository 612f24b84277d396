//! Trajectories of files that lack columns: what follows from those that they have.

use std::borrow::Cow;
use std::collections::BTreeMap;

use searchmill_schemas::{Message, RecordKind, Role};
use serde_json::{Value, json};

use super::layout::{prediction_of, question_of};

/// Columns of trajectories that no record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    names: Vec<String>,
    /// What stands before numbers that become ids.
    prefix: String,
    /// Places of the columns of trajectories.
    places: BTreeMap<String, usize>,
}

impl Absent {
    /// Returns the columns to derive. None if the file has all but lists, which are then empty. `prefix`: `id_prefix`.
    pub fn of(names: Vec<String>, prefix: &str) -> Option<Self> {
        let schema = RecordKind::Trajectory.schema();
        let is_list = |name: &String| schema.field_with_name(name).is_ok_and(|field| field.data_type().is_nested());
        let places =
            || schema.fields().iter().enumerate().map(|(place, field)| (field.name().clone(), place)).collect();
        (!names.iter().all(is_list)).then(|| Self { names, prefix: prefix.to_owned(), places: places() })
    }

    /// Returns the columns that do not follow from others.
    pub fn underivable(&self) -> Vec<&str> {
        let lacks = |name: &str| self.names.iter().any(|absent| absent == name);
        let no_answer = ["prediction", "answer", "messages"].into_iter().all(lacks);
        // The question may be a message of the user.
        let no_question = lacks("question") && lacks("messages");
        let mut found: Vec<&str> = no_question.then_some("question").into_iter().collect();
        found.extend(no_answer.then_some("prediction"));
        if !found.is_empty() && lacks("golden_answers") {
            found.push("golden_answers");
        }
        found
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Derives the values of a record. `values` are those of all columns, null where the record has none.
    pub(super) fn derive(&self, values: &mut [Cow<'_, Value>], number: u64) {
        let place = |name: &str| self.places.get(name).copied().filter(|place| *place < values.len());
        let text = |name: &str| place(name).and_then(|place| values[place].as_str()).unwrap_or_default().to_owned();
        let calls = |message: &Message| !message.tool_calls.is_empty();
        let given = place("messages").map(|place| messages(&values[place])).unwrap_or_default();
        let said = given.iter().rev().find(|message| message.is_model()).map(|message| message.content.clone());
        let answer = Some(text("answer")).filter(|answer| !answer.is_empty()).or(said);
        let prediction = match place("prediction") {
            Some(place) if !values[place].is_null() => text("prediction"),
            _ if !given.is_empty() => prediction_of(&given),
            _ => prediction_of(&[Message::text(Role::Assistant, answer.clone().unwrap_or_default())]),
        };
        let answer = answer.unwrap_or_else(|| prediction.clone());
        let opening = || {
            let asked = Message::text(Role::User, text("question"));
            json!([asked, Message::text(Role::Assistant, answer.clone())])
        };
        let turns = if given.is_empty() { 1 } else { count(&given, Role::Assistant) };
        let value = |name: &str| match name {
            "question" => json!(question_of(&given)),
            // Without it, a conversation without `tools` would be one text.
            "protocol" if given.iter().any(calls) => json!("tool_call"),
            "question_id" => json!(format!("{}{number}", self.prefix)),
            "policy" | "protocol" => json!("external"),
            "tools" => json!("[]"),
            "messages" => opening(),
            "answer" => json!(answer),
            "prediction" => json!(prediction),
            "turns" => json!(turns),
            "tool_calls" => json!(count(&given, Role::Tool)),
            "finish_reason" => json!(if prediction.is_empty() { "no_answer" } else { "answered" }),
            "golden_answers" | "evidence" => json!([]),
            // The sample, and tokens, which are unknown.
            _ => json!(0),
        };
        let derived: Vec<(usize, Value)> =
            self.names.iter().filter_map(|name| Some((place(name)?, value(name)))).collect();
        for (place, value) in derived {
            if values[place].is_null() {
                values[place] = Cow::Owned(value);
            }
        }
    }
}

fn count(messages: &[Message], role: Role) -> usize {
    messages.iter().filter(|message| message.role == role.name()).count()
}

/// Reads roles, texts and calls of messages; whether they fit is checked where they become columns.
fn messages(value: &Value) -> Vec<Message> {
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    let list = parsed.as_ref().unwrap_or(value).as_array().into_iter().flatten();
    let text = |message: &Value, name: &str| message.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let message = |value: &Value| {
        let calls = value.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
        let call = || searchmill_schemas::ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
        Message {
            role: text(value, "role"),
            content: text(value, "content"),
            tool_calls: calls.then(call).into_iter().collect(),
            ..Message::default()
        }
    };
    list.map(message).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the derived columns of a record that has these.
    fn derived(record: &Value, name: &str) -> Value {
        let schema = RecordKind::Trajectory.schema();
        let of = |name: &str| record.get(name).cloned().unwrap_or(Value::Null);
        let mut values: Vec<Cow<Value>> = schema.fields().iter().map(|field| Cow::Owned(of(field.name()))).collect();
        let required = schema.fields().iter().filter(|field| !field.is_nullable() && field.name() != "id");
        let absent = required.filter(|field| record.get(field.name()).is_none()).map(|field| field.name().clone());
        Absent::of(absent.collect(), "nq-").expect("columns are absent").derive(&mut values, 7);
        values[schema.index_of(name).expect(name)].clone().into_owned()
    }

    #[test]
    fn an_answer_gives_a_conversation() {
        let record = json!({"question": "Who?", "golden_answers": ["A"], "answer": " A \n"});
        let of = |name: &str| derived(&record, name);
        assert_eq!((of("prediction"), of("question_id"), of("turns")), (json!("A"), json!("nq-7"), json!(1)));
        assert_eq!(
            (of("finish_reason"), of("evidence"), of("prompt_tokens")),
            (json!("answered"), json!([]), json!(0))
        );
        let messages = of("messages");
        assert_eq!((&messages[0]["content"], &messages[1]["content"]), (&json!("Who?"), &json!(" A \n")));
        assert_eq!(derived(&json!({"question": "Who?", "prediction": ""}), "finish_reason"), json!("no_answer"));
        let tagged = json!({"question": "Who?", "answer": "I think <answer>A</answer>"});
        assert_eq!(derived(&tagged, "prediction"), json!("A"));
    }

    #[test]
    fn messages_give_the_answer_and_the_counts() {
        let said = |role: &str, content: &str| json!({"role": role, "content": content});
        let messages = [
            said("user", "Who?"),
            said("assistant", "I search"),
            said("tool", "d"),
            said("assistant", "so <answer>A</answer>"),
        ];
        for messages in [json!(messages), json!(json!(messages).to_string())] {
            let record = json!({"question": "Who?", "messages": messages});
            let of = |name: &str| derived(&record, name);
            assert_eq!((of("prediction"), of("answer")), (json!("A"), json!("so <answer>A</answer>")));
            assert_eq!((of("turns"), of("tool_calls"), of("policy")), (json!(2), json!(1), json!("external")));
        }
    }

    #[test]
    fn what_cannot_be_derived_is_named_together() {
        let absent = |names: &[&str]| Absent::of(names.iter().map(|name| (*name).to_owned()).collect(), "");
        assert_eq!(absent(&["messages", "evidence"]), None, "lists were always empty");
        let all = absent(&["question", "prediction", "answer", "messages", "golden_answers", "turns"]).expect("absent");
        assert_eq!(all.underivable(), ["question", "prediction", "golden_answers"]);
        let none = absent(&["prediction", "answer", "golden_answers", "turns"]).expect("absent");
        assert!(none.underivable().is_empty());
    }
}

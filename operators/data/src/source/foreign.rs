//! Trajectories of files that lack columns: what follows from those that they have.

use std::borrow::Cow;
use std::collections::BTreeMap;

use searchmill_schemas::{Message, RecordKind, Role, ToolCall};
use serde_json::{Value, json};

use super::layout::{prediction_of, question_of};

/// Columns of trajectories that no record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absent {
    names: Vec<String>,
    /// What stands before numbers that become ids.
    prefix: String,
    /// Places of the columns of trajectories.
    indexes: BTreeMap<String, usize>,
}

impl Absent {
    /// Returns the columns to derive. None if the file has all but lists, which are then empty. `prefix`: `id_prefix`.
    pub fn of(names: Vec<String>, prefix: &str) -> Option<Self> {
        let schema = RecordKind::Trajectory.schema();
        if names.iter().all(|name| schema.field_with_name(name).is_ok_and(|field| field.data_type().is_nested())) {
            return None;
        }
        let indexes = schema.fields().iter().enumerate().map(|(index, field)| (field.name().clone(), index)).collect();
        Some(Self { names, prefix: prefix.to_owned(), indexes })
    }

    fn lacks(&self, name: &str) -> bool {
        self.names.iter().any(|absent| absent == name)
    }

    /// Returns the columns that do not follow from others.
    pub fn underivable(&self) -> Vec<&str> {
        let mut found = Vec::new();
        // The question may be a message of the user.
        if self.lacks("question") && self.lacks("messages") {
            found.push("question");
        }
        if self.lacks("prediction") && self.lacks("answer") && self.lacks("messages") {
            found.push("prediction");
        }
        // Alone it is no fault: a question may have no golden answers.
        if !found.is_empty() && self.lacks("golden_answers") {
            found.push("golden_answers");
        }
        found
    }

    /// Returns the names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the value of a column; null if there is none.
    fn value<'v>(&self, values: &'v [Cow<'_, Value>], name: &str) -> &'v Value {
        self.indexes.get(name).and_then(|index| values.get(*index)).map_or(&Value::Null, Cow::as_ref)
    }

    /// Derives the values of a record. `values` are those of all columns, null where the record has none.
    pub(super) fn derive(&self, values: &mut [Cow<'_, Value>], number: u64) {
        let messages = messages(self.value(values, "messages"));
        let answer = match self.value(values, "answer").as_str() {
            Some(answer) if !answer.is_empty() => Some(answer),
            _ => messages.iter().rev().find(|message| message.is_model()).map(|message| message.content.as_str()),
        };
        let prediction = match self.value(values, "prediction") {
            Value::Null if messages.is_empty() => {
                prediction_of(&[Message::text(Role::Assistant, answer.unwrap_or_default())])
            }
            Value::Null => prediction_of(&messages),
            own => own.as_str().unwrap_or_default().to_owned(),
        };
        let answer = answer.unwrap_or(&prediction);
        let has_calls = messages.iter().any(|message| !message.tool_calls.is_empty());
        let mut derived: Vec<(usize, Value)> = Vec::new();
        for name in &self.names {
            let Some(index) = self.indexes.get(name) else { continue };
            if !matches!(values.get(*index).map(Cow::as_ref), Some(Value::Null)) {
                continue;
            }
            let value = match name.as_str() {
                "question" => json!(question_of(&messages)),
                // Without it, a conversation without `tools` would be one text.
                "protocol" if has_calls => json!("tool_call"),
                "question_id" => json!(format!("{}{number}", self.prefix)),
                "policy" | "protocol" => json!("external"),
                "tools" => json!("[]"),
                "messages" => {
                    let question = self.value(values, "question").as_str().unwrap_or_default();
                    json!([Message::text(Role::User, question), Message::text(Role::Assistant, answer)])
                }
                "answer" => json!(answer),
                "prediction" => json!(prediction),
                "turns" if messages.is_empty() => json!(1),
                "turns" => json!(count(&messages, Role::Assistant)),
                "tool_calls" => json!(count(&messages, Role::Tool)),
                "finish_reason" => json!(if prediction.is_empty() { "no_answer" } else { "answered" }),
                "golden_answers" | "evidence" => json!([]),
                // The sample, and tokens, which are unknown.
                _ => json!(0),
            };
            derived.push((*index, value));
        }
        // Afterwards: a derived value is no source of others.
        for (index, value) in derived {
            values[index] = Cow::Owned(value);
        }
    }
}

fn count(messages: &[Message], role: Role) -> usize {
    messages.iter().filter(|message| message.role == role.name()).count()
}

/// Reads roles, texts and calls of messages; whether they fit is checked where they become columns.
fn messages(value: &Value) -> Vec<Message> {
    let mut messages = Vec::new();
    // Cells of CSV files hold lists as text.
    let parsed = value.as_str().and_then(|text| serde_json::from_str(text).ok());
    let Value::Array(list) = parsed.as_ref().unwrap_or(value) else { return messages };
    for item in list {
        let role = item["role"].as_str().unwrap_or_default().to_owned();
        let content = item["content"].as_str().unwrap_or_default().to_owned();
        let mut message = Message { role, content, ..Message::default() };
        // One call stands for all: only whether there are any matters here.
        if matches!(&item["tool_calls"], Value::Array(calls) if !calls.is_empty()) {
            message.tool_calls.push(ToolCall { id: String::new(), name: String::new(), arguments: String::new() });
        }
        messages.push(message);
    }
    messages
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

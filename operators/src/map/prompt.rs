//! The user's prompt: templates of messages.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::Schema;
use minijinja::{Environment, UndefinedBehavior};
use schemars::JsonSchema;
use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::ParamIssue;
use searchmill_engine::suggest;
use searchmill_schemas::{Message, Role};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Variable with the description of the answer's fields.
pub(super) const OUTPUT_SCHEMA: &str = "output_schema";
/// Instructions that one template may execute. Bounds endless loops; a loop over 100,000 elements fits.
const FUEL: u64 = 10_000_000;
/// Longest prompt in bytes.
const LONGEST: usize = 64 << 20;

/// A prompt: the user's message, or several messages.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum Prompt {
    /// The user's message.
    User(String),
    /// Several messages.
    Parts(Parts),
}

/// Messages of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parts {
    /// The system's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) system: Option<String>,
    /// The user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// All messages, instead of `system` and `user`; the last one must be the user's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) messages: Vec<PromptMessage>,
}

/// A message of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptMessage {
    /// Who speaks.
    pub(crate) role: PromptRole,
    /// Template of the text.
    pub(crate) content: String,
}

/// Who speaks in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PromptRole {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model, in an example.
    Assistant,
}

impl From<PromptRole> for Role {
    fn from(role: PromptRole) -> Self {
        match role {
            PromptRole::System => Self::System,
            PromptRole::User => Self::User,
            PromptRole::Assistant => Self::Assistant,
        }
    }
}

/// A prompt as it is written: a text or a map.
#[derive(JsonSchema)]
#[schemars(rename = "Prompt", untagged)]
#[expect(dead_code, reason = "its schema is all that is used")]
enum PromptForm {
    User(String),
    Parts(Parts),
}

impl JsonSchema for Prompt {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        PromptForm::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        PromptForm::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a template, `{system: …, user: …}` or `{messages: [{role: …, content: …}]}`")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::User(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Prompt, A::Error> {
        Parts::deserialize(MapAccessDeserializer::new(map)).map(Prompt::Parts)
    }
}

impl Prompt {
    /// Returns the messages with the places of their templates.
    fn messages(&self) -> Vec<(String, Role, &str)> {
        let Parts { system, user, messages } = match self {
            Self::User(text) => return vec![("prompt".to_owned(), Role::User, text)],
            Self::Parts(parts) => parts,
        };
        let system = system.iter().map(|text| ("prompt.system".to_owned(), Role::System, text.as_str()));
        let listed = messages.iter().enumerate().map(|(place, message)| {
            (format!("prompt.messages.{place}.content"), message.role.into(), message.content.as_str())
        });
        let user = user.iter().map(|text| ("prompt.user".to_owned(), Role::User, text.as_str()));
        system.chain(listed).chain(user).collect()
    }

    fn issue(&self) -> Option<ParamIssue> {
        let Self::Parts(Parts { system, user, messages }) = self else { return None };
        let issue = match (messages.as_slice(), user) {
            ([], None) => ParamIssue::new("prompt", "has no message of the user"),
            ([_, ..], _) if system.is_some() || user.is_some() => {
                ParamIssue::new("prompt.messages", "stands for all messages")
            }
            ([.., last], _) if last.role != PromptRole::User => {
                ParamIssue::new("prompt.messages", "must end with a message of the user")
            }
            _ => return None,
        };
        Some(
            issue
                .with_help("write `{system: …, user: …}`, or all messages as `{messages: [{role: user, content: …}]}`"),
        )
    }
}

/// Compiled templates.
pub(super) struct Prompts {
    environment: Environment<'static>,
    /// Places in the params, which name the templates, and speakers.
    messages: Vec<(String, Role)>,
    /// Columns that the templates read, with the place of the first template that does.
    columns: BTreeMap<String, Reader>,
    /// Whether a template describes the output itself.
    describes: bool,
}

impl Prompts {
    /// Compiles the templates.
    ///
    /// # Errors
    /// If one is no template, or there is no message of the user.
    pub(super) fn new(prompt: &Prompt) -> Result<Self, ParamIssue> {
        if let Some(issue) = prompt.issue() {
            return Err(issue);
        }
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_keep_trailing_newline(true);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let given: BTreeSet<String> = environment.globals().map(|(name, _)| name.to_owned()).collect();
        let mut messages = Vec::new();
        let mut columns: BTreeMap<String, Reader> = BTreeMap::new();
        for (place, role, text) in prompt.messages() {
            let wrong = |error: minijinja::Error| {
                ParamIssue::new(place.clone(), format!("the prompt is no template: {}", told(&error)))
            };
            environment.add_template_owned(place.clone(), text.to_owned()).map_err(wrong)?;
            let template = environment.get_template(&place).map_err(wrong)?;
            let names = template.undeclared_variables(false).into_iter();
            let names = names.map(|name| (name.clone(), Reader { place: place.clone(), word: read_at(text, &name) }));
            // A column that several templates read stands at the first.
            columns = names.chain(columns).collect();
            messages.push((place.clone(), role));
        }
        let describes = columns.remove(OUTPUT_SCHEMA).is_some();
        columns.retain(|name, _| !given.contains(name));
        Ok(Self { environment, messages, columns, describes })
    }

    /// Returns the columns that the templates read.
    pub(super) fn columns(&self) -> Vec<String> {
        self.columns.keys().cloned().collect()
    }

    /// Returns which templates read them.
    pub(super) fn readers(&self) -> BTreeMap<String, Reader> {
        self.columns.clone()
    }

    /// Renders the messages of a row; `described`: the description of the output's fields.
    ///
    /// # Errors
    /// If a template fails for this row.
    pub(super) fn render(&self, row: &Map<String, Value>, described: Option<&str>) -> Result<Vec<Message>, String> {
        let mut variables = row.clone();
        variables.insert(OUTPUT_SCHEMA.to_owned(), described.unwrap_or_default().into());
        let mut messages = Vec::with_capacity(self.messages.len());
        for (place, role) in &self.messages {
            let rendered = self.environment.get_template(place).and_then(|template| template.render(&variables));
            let text = rendered.map_err(|error| format!("`{place}`: {}", told(&error)))?;
            if text.len() > LONGEST {
                return Err(format!("`{place}` has {} bytes; the longest prompt has {LONGEST}", text.len()));
            }
            messages.push(Message::text(*role, text));
        }
        if let (Some(described), Some(last), false) = (described, messages.last_mut(), self.describes) {
            last.content.push_str("\n\n");
            last.content.push_str(described);
        }
        Ok(messages)
    }
}

/// The template that reads a column.
#[derive(Clone)]
pub(super) struct Reader {
    /// Its place in the params.
    place: String,
    /// Where it names the column.
    word: Option<Word>,
}

/// Returns the first place inside `{{ … }}` or `{% … %}` where a template names a column.
fn read_at(template: &str, name: &str) -> Option<Word> {
    let inside = |place: usize| {
        let last = |marks: [&str; 2]| marks.iter().filter_map(|mark| template[..place].rfind(mark)).max();
        last(["{{", "{%"]) > last(["}}", "%}"])
    };
    let at = |place: usize| Word::at(template, place).filter(|word| word.text == name);
    template.match_indices(name).map(|(place, _)| place).filter(|place| inside(*place)).find_map(at)
}

/// Returns an issue for each column that a table lacks; `readers` are those of [`Prompts::readers`].
pub(super) fn missing(readers: &BTreeMap<String, Reader>, schema: &Schema) -> Vec<ParamIssue> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let missing = readers.iter().filter(|(name, _)| schema.column_with_name(name).is_none());
    let issue = |(name, reader): (&String, &Reader)| {
        let issue = ParamIssue::new(reader.place.clone(), format!("the input has no column `{name}`"));
        issue.about(reader.word.clone()).with_help(suggest(name, &names, "columns"))
    };
    missing.map(issue).collect()
}

/// Returns an error of a template with its line.
fn told(error: &minijinja::Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
    format!("{line}{}{detail}", error.kind())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompts(value: Value) -> Result<Prompts, String> {
        let prompt: Prompt = serde_json::from_value(value).map_err(|error| error.to_string())?;
        Prompts::new(&prompt).map_err(|issue| format!("{}: {}", issue.path, issue.message))
    }

    fn rendered(value: Value, row: Value) -> Result<Vec<(String, String)>, String> {
        let Value::Object(row) = row else { panic!("an object") };
        let messages = prompts(value)?.render(&row, Some("FIELDS"))?;
        Ok(messages.into_iter().map(|message| (message.role.as_str().to_owned(), message.content)).collect())
    }

    #[test]
    fn a_prompt_reads_the_columns_that_it_names() {
        let made = prompts(json!({"system": "{% set x = 1 %}{{ x }}{{ topic }}", "user":
            "{% for m in messages %}{{ m.content }}{% endfor %}{{ range(3) }}{{ title or 'none' }}"}));
        assert_eq!(made.unwrap().columns(), ["messages", "title", "topic"]);
        let made = rendered(json!("Say {{ word|upper }}.\n"), json!({"word": "a{{ b }}"})).unwrap();
        assert_eq!(made, [("user".to_owned(), "Say A{{ B }}.\n\n\nFIELDS".to_owned())], "values are no templates");
        let made = rendered(json!({"system": "{{ output_schema }}!", "user": "x"}), json!({})).unwrap();
        assert_eq!(made.iter().map(|message| message.1.as_str()).collect::<Vec<_>>(), ["FIELDS!", "x"]);
    }

    #[test]
    fn what_is_no_prompt_is_told_with_its_place() {
        let refused = |value| prompts(value).err().unwrap();
        assert!(
            refused(json!("a\n{{ b")).starts_with("prompt: the prompt is no template: line 2"),
            "{}",
            refused(json!("a\n{{ b"))
        );
        assert!(refused(json!({"user": "{% for %}"})).starts_with("prompt.user: "));
        assert!(refused(json!({"system": "x"})).contains("no message of the user"));
        assert!(refused(json!({"messages": [{"role": "assistant", "content": ""}]})).contains("must end"));
        assert!(refused(json!({"messages": [{"role": "user", "content": ""}], "user": ""})).contains("stands for all"));
        assert!(refused(json!({"users": "x"})).contains("unknown field `users`"));
        assert!(refused(json!(3)).contains("expected a template"));
    }

    #[test]
    fn templates_end_and_say_what_is_missing() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
        let error = rendered(json!(endless), json!({})).unwrap_err();
        assert!(error.contains("fuel"), "{error}");
        let error = rendered(json!("{{ a.b }}"), json!({"a": {}})).unwrap_err();
        assert!(error.contains("undefined"), "{error}");
    }
}

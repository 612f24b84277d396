//! A prompt of the user: templates of messages.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::WhitespaceConfig;
use minijinja::{Environment, UndefinedBehavior};
use schemars::JsonSchema;
use searchmill_engine::diagnostic::Word;
use searchmill_engine::operator::ParamIssue;
use searchmill_engine::suggest;
use searchmill_models::template::{Bounded, FUEL, LONGEST, prepare};
use searchmill_schemas::{Message, Role};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::names;

/// Variable with the description of the answer's fields.
const OUTPUT_SCHEMA: &str = "output_schema";
/// Characters of a line of a template that an error shows.
const LONGEST_LINE: usize = 160;

/// A prompt: the user's message, or several messages.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(description = "A prompt as it is written: a text or a map.")]
pub enum Prompt {
    /// The user's message.
    #[schemars(description = "")]
    User(String),
    /// Several messages.
    #[schemars(description = "")]
    Parts(Parts),
}

/// Messages of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// The system's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The user's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// All messages, instead of `system` and `user`; the last one must be the user's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<PromptMessage>,
}

/// A message of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptMessage {
    /// Who speaks.
    pub role: PromptRole,
    /// Template of the text.
    pub content: String,
}

/// Who speaks in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptRole {
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
        let (path, message) = match (messages.as_slice(), user) {
            ([], None) => ("prompt", "has no message of the user"),
            ([_, ..], _) if system.is_some() || user.is_some() => ("prompt.messages", "stands for all messages"),
            ([.., last], _) if last.role != PromptRole::User => {
                ("prompt.messages", "must end with a message of the user")
            }
            _ => return None,
        };
        let help = "write `{system: …, user: …}`, or all messages as `{messages: [{role: user, content: …}]}`";
        Some(ParamIssue::new(path, message).with_help(help))
    }
}

/// Compiled templates of a prompt.
pub struct Prompts {
    environment: Environment<'static>,
    /// Places in the params, speakers and templates.
    messages: Vec<(String, Role, Bounded)>,
    /// Names that the templates read, with the place of the first template that does.
    readers: BTreeMap<String, Reader>,
    /// Whether a template describes the output itself.
    describes: bool,
    /// Filters, tests, functions and methods that no template has.
    unknown: Vec<ParamIssue>,
}

impl Prompts {
    /// Compiles the templates.
    ///
    /// # Errors
    /// If one is no template, or there is no message of the user.
    pub fn new(prompt: &Prompt) -> Result<Self, ParamIssue> {
        if let Some(issue) = prompt.issue() {
            return Err(issue);
        }
        let mut environment = Environment::new();
        // A misspelt name fails instead of leaving a gap in the prompt.
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // By default, Jinja drops the last line break of a template.
        environment.set_keep_trailing_newline(true);
        // A template that loops without end must not hang the node.
        environment.set_fuel(Some(FUEL));
        let whitespace = WhitespaceConfig { keep_trailing_newline: true, ..WhitespaceConfig::default() };
        let globals: BTreeSet<String> = environment.globals().map(|(name, _)| name.to_owned()).collect();
        let (mut messages, mut unknown) = (Vec::new(), Vec::new());
        let mut readers: BTreeMap<String, Reader> = BTreeMap::new();
        for (place, role, text) in prompt.messages() {
            let bounded = Bounded::new(&place, text, whitespace).map_err(|error| no_template(&place, &error))?;
            let added = environment.add_template_owned(place.clone(), text.to_owned());
            added.map_err(|error| no_template(&place, &error))?;
            let template = environment.get_template(&place).map_err(|error| no_template(&place, &error))?;
            let undeclared: BTreeSet<String> = template.undeclared_variables(false).into_iter().collect();
            unknown.extend(names::unknown(&environment, &template, &undeclared));
            let called = names::unknown_functions(&environment, &template, &undeclared);
            for name in undeclared.difference(&called) {
                // A name that several templates read stands at the first.
                let entry = readers.entry(name.clone());
                entry.or_insert_with(|| Reader { place: place.clone(), word: read_at(text, name) });
            }
            messages.push((place.clone(), role, bounded));
        }
        // A template that another one included would not be bounded.
        environment.clear_templates();
        prepare(&mut environment);
        let describes = readers.remove(OUTPUT_SCHEMA).is_some();
        // No row or call has to give what every template has (`range`, `namespace`).
        readers.retain(|name, _| !globals.contains(name));
        Ok(Self { environment, messages, readers, describes, unknown })
    }

    /// Returns the names that the templates read: columns of a row, arguments of a call.
    pub fn names(&self) -> Vec<String> {
        self.readers.keys().cloned().collect()
    }

    /// Returns which templates read them.
    pub fn readers(&self) -> BTreeMap<String, Reader> {
        self.readers.clone()
    }

    /// Returns an issue for each filter, test, function and method that the templates use and no template has.
    pub fn unknown_names(&self) -> Vec<ParamIssue> {
        self.unknown.clone()
    }

    /// Renders the messages for these values; `described`: the description of the output's fields.
    ///
    /// # Errors
    /// If a template fails for these values.
    pub fn render(&self, values: &Map<String, Value>, described: Option<&str>) -> Result<Vec<Message>, String> {
        let mut variables = values.clone();
        variables.insert(OUTPUT_SCHEMA.to_owned(), described.unwrap_or_default().into());
        let mut messages = Vec::with_capacity(self.messages.len());
        let variables = minijinja::Value::from_serialize(&variables);
        for (place, role, template) in &self.messages {
            let text = template
                .render(&self.environment, variables.clone())
                .map_err(|error| format!("`{place}`: {}{}", message_of(&error), quoted(&error, template.source())))?;
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

/// The template that reads a name.
#[derive(Clone)]
pub struct Reader {
    /// Its place in the params.
    place: String,
    /// Where it stands there.
    word: Option<Word>,
}

/// Returns the first place inside `{{ … }}` or `{% … %}` where a template reads a name.
fn read_at(template: &str, name: &str) -> Option<Word> {
    for (position, _) in template.match_indices(name) {
        let before = &template[..position];
        let opened = before.rfind("{{").max(before.rfind("{%"));
        let closed = before.rfind("}}").max(before.rfind("%}"));
        // The name may also be a part of a longer one.
        if opened > closed
            && let Some(word) = Word::at(template, position)
            && word.text == name
        {
            return Some(word);
        }
    }
    None
}

fn no_template(place: &str, error: &minijinja::Error) -> ParamIssue {
    ParamIssue::new(place, format!("the prompt is no template: {}", message_of(error)))
}

/// Returns an issue for each name that is not among the known ones. `readers` are those of [`Prompts::readers`]; `lack`
/// says what lacks a name, `what` what the names are, in the plural.
pub fn missing(
    readers: &BTreeMap<String, Reader>,
    known: &[&str],
    lack: impl Fn(&str) -> String,
    what: &str,
) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (name, reader) in readers {
        if !known.contains(&name.as_str()) {
            let issue = ParamIssue::new(reader.place.clone(), lack(name));
            issues.push(issue.about(reader.word.clone()).with_help(suggest(name, known, what)));
        }
    }
    issues
}

/// Returns an error of a template with its line.
fn message_of(error: &minijinja::Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    let detail = error.detail().map_or_else(String::new, |detail| format!(" ({detail})"));
    format!("{line}{}{detail}", error.kind())
}

/// Returns the line of the template that an error is about.
fn quoted(error: &minijinja::Error, template: &str) -> String {
    let line = error.line().and_then(|line| template.lines().nth(line.checked_sub(1)?));
    let Some(line) = line.map(str::trim).filter(|line| !line.is_empty()) else { return String::new() };
    let shown: String = line.chars().take(LONGEST_LINE).collect();
    let more = if shown.len() < line.len() { "…" } else { "" };
    format!(" in: {shown}{more}")
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
        assert_eq!(made.unwrap().names(), ["messages", "title", "topic"]);
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
    fn no_text_of_a_template_grows_without_bound() {
        let doubled = |step: &str| format!("{{% set x = 'x' %}}{}{{{{ x }}}}", step.repeat(60));
        for step in [
            "{% set x = x ~ x %}",
            "{% set x = x + x %}",
            "{% set x = x * 2 %}",
            "{% set x %}{{ x }}{{ x }}{% endset %}",
        ] {
            let error = rendered(json!(doubled(step)), json!({})).unwrap_err();
            assert!(error.contains("a text has more than 67108864 bytes"), "{step}: {error}");
        }
        for text in [
            "{% for a in range(9999) %}{{ x }}{% endfor %}",
            "{{ ([x] * 9999)|join }}",
            "{{ ''.join([x] * 9999) }}",
            "{{ x|replace('x', x) }}",
            "{{ x.replace('x', x) }}",
        ] {
            let error = rendered(json!(text), json!({"x": "x".repeat(9999)})).unwrap_err();
            assert!(error.contains("a text has more than"), "{text}: {error}");
        }
        let lists = "{% set x = [1] %}".to_owned() + &"{% set x = (x + x)|list %}".repeat(60);
        let error = rendered(json!(lists), json!({})).unwrap_err();
        assert!(error.contains("a list has more than"), "{error}");
        // What the engine makes of short ones stays.
        for (text, made) in [
            ("{{ 'a' ~ 1 ~ none }}", "a1None"),
            ("{{ ('a' if false) ~ 'b' }}", "b"),
            (
                "{{ n + 2 }} {{ n * 2.5 }} {{ 'a' + 'b' }} {{ 'ab' * n }} {{ [n] + [2] }} {{ [n] * 2 }}",
                "3 2.5 ab ab [1, 2] [1, 1]",
            ),
            (
                "{{ ['a', n]|join('-') }} {{ 'aa'|replace('a', 'b') }} {{ '-'.join(['a', 'b']) }} {{ 'aa'.replace('a', 'b') }}",
                "a-1 bb a-b bb",
            ),
            (
                "{% macro twice(x) %}{{ x ~ x }}{% endmacro %}{{ twice('ab') }}{% for i in range(n + 1) %}{{ loop.index }}{% endfor %}\n",
                "abab12\n",
            ),
        ] {
            let made_of = rendered(json!({"user": text, "system": "{{ output_schema }}"}), json!({"n": 1}));
            assert_eq!(made_of.unwrap()[1].1, made, "{text}");
        }
        let error = rendered(json!("{{ a.b ~ 'x' }}"), json!({"a": {}})).unwrap_err();
        assert!(error.contains("undefined"), "{error}");
    }

    #[test]
    fn templates_end_and_say_what_is_missing() {
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}";
        let error = rendered(json!(endless), json!({})).unwrap_err();
        assert!(error.contains("fuel"), "{error}");
        let error = rendered(json!("{{ a.b }}"), json!({"a": {}})).unwrap_err();
        assert!(error.contains("undefined"), "{error}");
        let error =
            rendered(json!("Rate this:\n{% for e in evidence %}{{ e.fcat }}{% endfor %}"), json!({"evidence": [{}]}));
        let wanted = "`prompt`: line 2: undefined value in: {% for e in evidence %}{{ e.fcat }}{% endfor %}";
        assert_eq!(error.unwrap_err(), wanted);
    }
}

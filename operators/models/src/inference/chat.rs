//! Chat templates: the Jinja of `chat_template.jinja` or `tokenizer_config.json`, rendered as in transformers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use minijinja::machinery::WhitespaceConfig;
use minijinja::value::{Enumerator, Kwargs, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use searchmill_engine::operator::OperatorError;
use searchmill_text::json::Json;

use super::control::{ControlTokens, Prompt, unused_mark};
use crate::files::broken;
use crate::template::{Bounded, FUEL, LONGEST, check_json, prepare};

/// Template of models without one: ChatML with Hermes tool calls.
const CHATML: &str = include_str!("chatml.jinja");

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// Templates by name.
    templates: BTreeMap<String, Bounded>,
    special_tokens: BTreeMap<String, String>,
    /// Control tokens of the tokenizer, which are plain text in content.
    pub(super) control: ControlTokens,
}

/// A message as seen by templates.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text.
    pub content: String,
    /// The model's reasoning before the text.
    pub reasoning: Option<String>,
    /// Tool calls in it.
    pub calls: Vec<Said>,
    /// Id of the call that a tool's message answers.
    pub call_id: Option<String>,
}

impl Message {
    /// Returns the content texts of the message.
    fn texts(&self) -> impl Iterator<Item = &str> + Clone {
        let calls = self.calls.iter().flat_map(|call| [call.name.as_str(), call.arguments.as_str()]);
        [self.content.as_str()].into_iter().chain(self.reasoning.as_deref()).chain(calls)
    }
}

/// Where a rendered conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After the beginning of the model's next turn.
    NextTurn,
    /// After the last message.
    Conversation,
    /// After the content of the last message, which the model continues.
    LastMessage,
}

/// A tool call, with its arguments as the model wrote them (JSON).
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// Id that the tool's answer refers to.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// The arguments.
    pub arguments: String,
}

impl ChatTemplate {
    /// Loads the template of a model folder.
    ///
    /// # Errors
    /// When it is not Jinja, or `tokenizer_config.json` is not JSON; the message names the file.
    pub fn read(folder: &Path) -> Result<Self, OperatorError> {
        let path = folder.join("tokenizer_config.json");
        let config = match std::fs::read_to_string(&path) {
            Ok(text) => Json::parse(&text).map_err(|problem| broken(&path, problem))?,
            Err(_) => Json::Null,
        };
        // The file counts, where a folder has both: transformers reads it first.
        let jinja = folder.join("chat_template.jinja");
        let (templates, origin) = match std::fs::read_to_string(&jinja) {
            Ok(text) => (vec![("default".to_owned(), text)], jinja),
            Err(_) => (configured(&config), path),
        };
        Self::new(templates, special_tokens(&config)).map_err(|problem| broken(&origin, problem))
    }

    /// Compiles a template (`None`: ChatML). `origin` is for messages.
    ///
    /// # Errors
    /// When it is not Jinja.
    pub fn of(
        template: Option<String>,
        special_tokens: BTreeMap<String, String>,
        origin: &str,
    ) -> Result<Self, OperatorError> {
        let templates = template.into_iter().map(|text| ("default".to_owned(), text)).collect();
        Self::new(templates, special_tokens)
            .map_err(|problem| OperatorError::data(format!("{origin}: the chat template: {problem}")))
    }

    /// Compiles templates by name: `default`, and `tool_use` for requests with tools, if present.
    fn new(templates: Vec<(String, String)>, special_tokens: BTreeMap<String, String>) -> Result<Self, String> {
        let mut environment = Environment::new();
        // A template of somebody else may neither run without end nor make texts without end.
        environment.set_fuel(Some(FUEL));
        prepare(&mut environment);
        // Writes JSON as Python does; the guard of `prepare` calls it by its name.
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // As transformers renders: a tag leaves neither its line break nor the white space before it.
        let whitespace = WhitespaceConfig { trim_blocks: true, lstrip_blocks: true, ..WhitespaceConfig::default() };
        let mut compiled = BTreeMap::new();
        // Of two templates with one name, the last one counts.
        for (name, text) in std::iter::once(("default".to_owned(), CHATML.to_owned())).chain(templates) {
            let template =
                Bounded::new(&name, &without_marks(&text)?, whitespace).map_err(|error| message_of(&error))?;
            compiled.insert(name, template);
        }
        Ok(Self { environment, templates: compiled, special_tokens, control: ControlTokens::default() })
    }

    /// Sets the tokenizer's control tokens.
    pub(crate) fn guarding(self, control: ControlTokens) -> Self {
        Self { control, ..self }
    }

    /// Renders a conversation as the prompt for the model's next turn. `options` are additional variables of the template
    /// (`enable_thinking`).
    ///
    /// # Errors
    /// When the template rejects the conversation.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[Json],
        options: &BTreeMap<String, serde_json::Value>,
    ) -> Result<Prompt, String> {
        self.prompt_until(messages, tools, options, Ending::NextTurn)
    }

    /// Like [`Self::prompt`], with another ending.
    ///
    /// # Errors
    /// When the template rejects the conversation or does not contain the message to be continued.
    pub fn prompt_until(
        &self,
        messages: &[Message],
        tools: &[Json],
        options: &BTreeMap<String, serde_json::Value>,
        ending: Ending,
    ) -> Result<Prompt, String> {
        let texts = messages.iter().flat_map(Message::texts);
        let mark = unused_mark(texts.clone()).ok_or(NO_MARK)?;
        let mut messages = messages.to_vec();
        let mut end = None;
        if let (Ending::LastMessage, Some(last)) = (ending, messages.last_mut()) {
            // A second mark, since the template may write something behind the content.
            end = unused_mark(texts.chain([mark.encode_utf8(&mut [0; 4]) as &str]));
            last.content.push(end.ok_or(NO_MARK)?);
        }
        let mut rendered = self.render(&messages, tools, options, mark, ending == Ending::NextTurn)?;
        if let Some(end) = end {
            let at = rendered.rfind(end).ok_or("the chat template does not contain the last message")?;
            rendered.truncate(at);
        }
        Ok(Prompt::of_marked(&rendered, mark))
    }

    fn render(
        &self,
        messages: &[Message],
        tools: &[Json],
        options: &BTreeMap<String, serde_json::Value>,
        mark: char,
        next_turn: bool,
    ) -> Result<String, String> {
        let name = if tools.is_empty() { "default" } else { "tool_use" };
        let template = self.templates.get(name).or_else(|| self.templates.get("default"));
        let template = template.ok_or("the model has no chat template")?;
        // In this order: options cannot replace the tokens or the conversation.
        let mut variables = BTreeMap::new();
        for (name, value) in options {
            variables.insert(name.clone(), Value::from_serialize(value));
        }
        for (name, token) in &self.special_tokens {
            variables.insert(name.clone(), Value::from(token.as_str()));
        }
        let list: Vec<Value> = messages.iter().map(|message| value(&self.message_json(message, mark))).collect();
        variables.insert("messages".to_owned(), Value::from(list));
        if !tools.is_empty() {
            variables.insert("tools".to_owned(), Value::from(tools.iter().map(value).collect::<Vec<_>>()));
        }
        variables.insert("add_generation_prompt".to_owned(), Value::from(next_turn));
        let text = template.render(&self.environment, Value::from_serialize(variables));
        let text = text.map_err(|error| format!("the chat template: {}", message_of(&error)))?;
        if text.len() > LONGEST {
            return Err(format!("the chat template: the prompt has {} bytes (limit {LONGEST})", text.len()));
        }
        Ok(text)
    }

    /// Converts a message for templates. Adds marks where content would be read as control tokens.
    fn message_json(&self, message: &Message, mark: char) -> Json {
        let content = Json::Text(self.control.marked(&message.content, mark));
        let mut entries = vec![("role", Json::text(&message.role)), ("content", content)];
        if let Some(reasoning) = &message.reasoning {
            entries.push(("reasoning_content", Json::Text(self.control.marked(reasoning, mark))));
        }
        if let Some(id) = &message.call_id {
            entries.push(("tool_call_id", Json::text(id)));
        }
        if !message.calls.is_empty() {
            let calls = message.calls.iter().map(|call| self.call_json(call, mark)).collect();
            entries.push(("tool_calls", Json::List(calls)));
        }
        Json::Object(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// Converts a call for templates. Arguments that are valid JSON become values, others stay text.
    fn call_json(&self, call: &Said, mark: char) -> Json {
        let text = self.control.marked(&call.arguments, mark);
        let arguments = match Json::parse(&text) {
            Ok(object @ Json::Object(_)) => object,
            Ok(_) | Err(_) => Json::Text(text),
        };
        let name = Json::Text(self.control.marked(&call.name, mark));
        let function = Json::object([("name", name), ("arguments", arguments)]);
        Json::object([("id", Json::text(&call.id)), ("type", Json::text("function")), ("function", function)])
    }
}

const NO_MARK: &str = "a message holds every noncharacter of Unicode";

/// Replaces the tags that mark what the model writes (`{% generation %}`, for the loss of trainers) by tags that have
/// no effect. Like them, they trim white space.
fn without_marks(template: &str) -> Result<String, String> {
    static MARKS: LazyLock<Result<regex::Regex, regex::Error>> =
        LazyLock::new(|| regex::Regex::new(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})"));
    let marks = MARKS.as_ref().map_err(ToString::to_string)?;
    let plain = marks.replace_all(template, |tag: &regex::Captures<'_>| {
        let word = if tag.get(2).is_some() { "endif" } else { "if true" };
        format!("{}{word}{}", &tag[1], &tag[3])
    });
    Ok(plain.into_owned())
}

/// Formats an error with its line and its causes.
fn message_of(error: &Error) -> String {
    let detail = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// Returns the templates of a `tokenizer_config.json`: one, or several with names.
fn configured(config: &Json) -> Vec<(String, String)> {
    let mut templates = Vec::new();
    match config.get("chat_template") {
        Some(Json::Text(text)) => templates.push(("default".to_owned(), text.clone())),
        Some(Json::List(items)) => {
            for item in items {
                if let (Some(Json::Text(name)), Some(Json::Text(text))) = (item.get("name"), item.get("template")) {
                    templates.push((name.clone(), text.clone()));
                }
            }
        }
        _ => {}
    }
    templates
}

/// Returns the tokens that templates refer to by name (`bos_token`, …).
fn special_tokens(config: &Json) -> BTreeMap<String, String> {
    let mut tokens = BTreeMap::new();
    for name in ["bos_token", "eos_token", "unk_token", "pad_token"] {
        let Some(token) = config.get(name) else { continue };
        // Older files write a token with its settings: `{"content": "</s>", "lstrip": false, …}`.
        if let Some(text) = token.as_text().or_else(|| token.get("content").and_then(Json::as_text)) {
            tokens.insert(name.to_owned(), text.to_owned());
        }
    }
    tokens
}

/// A JSON object that keeps the order of its keys in a template.
#[derive(Debug)]
struct Ordered(Json);

impl Object for Ordered {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).map(value)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match &self.0 {
            Json::Object(entries) => Enumerator::Values(entries.keys().map(|key| Value::from(key.as_str())).collect()),
            _ => Enumerator::Empty,
        }
    }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => {
            if let Ok(whole) = number.parse::<i64>() {
                Value::from(whole)
            } else {
                number.parse::<f64>().map(Value::from).unwrap_or_default()
            }
        }
        Json::Text(text) => Value::from(text.as_str()),
        Json::List(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(_) => Value::from_object(Ordered(json.clone())),
    }
}

/// Converts a template's value to JSON.
fn json(value: &Value) -> Json {
    if let Some(ordered) = value.downcast_object_ref::<Ordered>() {
        return ordered.0.clone();
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => Json::Null,
        ValueKind::Bool => Json::Bool(value.is_true()),
        ValueKind::Number => Json::parse(&value.to_string()).unwrap_or(Json::Null),
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            Json::Object(
                keys.map(|key| (key.to_string(), value.get_item(&key).map_or(Json::Null, |item| json(&item))))
                    .collect(),
            )
        }
        ValueKind::Seq | ValueKind::Iterable => {
            Json::List(value.try_iter().into_iter().flatten().map(|item| json(&item)).collect())
        }
        _ => Json::text(value.to_string()),
    }
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`, as in transformers' templates.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Python's other options are ignored.
    drop(options);
    check_json(value, indent)?;
    let json = json(value);
    let text = match indent {
        Some(indent) => indented(&json, indent, 0),
        None => json.write(),
    };
    // Not escaped: templates print it into prompts, not into HTML.
    Ok(Value::from_safe_string(text))
}

fn indented(json: &Json, indent: usize, depth: usize) -> String {
    let (inner, outer) = (" ".repeat(indent * (depth + 1)), " ".repeat(indent * depth));
    let mut parts = Vec::new();
    let (open, close) = match json {
        Json::List(items) if !items.is_empty() => {
            parts.extend(items.iter().map(|item| indented(item, indent, depth + 1)));
            ('[', ']')
        }
        Json::Object(entries) if !entries.is_empty() => {
            for (key, item) in entries {
                parts.push(format!("{}: {}", Json::text(key).write(), indented(item, indent, depth + 1)));
            }
            ('{', '}')
        }
        // Python writes empty ones in one line.
        other => return other.write(),
    };
    format!("{open}\n{inner}{}\n{outer}{close}", parts.join(&format!(",\n{inner}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: &str, content: &str) -> Message {
        let (role, content) = (role.to_owned(), content.to_owned());
        Message { role, content, reasoning: None, calls: Vec::new(), call_id: None }
    }

    fn template(text: &str) -> ChatTemplate {
        let tokens = BTreeMap::from([("bos_token".to_owned(), "<s>".to_owned())]);
        ChatTemplate::new(vec![("default".to_owned(), text.to_owned())], tokens).unwrap()
    }

    /// Converts the messages of a golden vector to a chat, where calls belong to an assistant's message.
    fn messages(agent: &Json) -> Vec<Message> {
        let Json::List(items) = agent else { panic!("a list") };
        let mut all: Vec<Message> = Vec::new();
        for item in items {
            let text = |key: &str| item.get(key).and_then(Json::as_text).unwrap_or_default().to_owned();
            match text("role").as_str() {
                "tool_call" => {
                    if all.last().is_none_or(|last| last.role != "assistant") {
                        all.push(message("assistant", ""));
                    }
                    let call = Json::parse(&text("content")).unwrap();
                    let arguments = call.get("arguments").unwrap();
                    let arguments = arguments.as_text().map_or_else(|| arguments.write(), str::to_owned);
                    let name = call.get("name").and_then(Json::as_text).unwrap().to_owned();
                    all.last_mut().unwrap().calls.push(Said { id: String::new(), name, arguments });
                }
                "tool_response" => all.push(message("tool", &text("content"))),
                role => all.push(message(role, &text("content"))),
            }
        }
        all
    }

    #[test]
    fn the_fallback_renders_the_golden_vectors_of_ms_swift() {
        let lines = searchmill_fixtures::golden("hermes.jsonl");
        let template = ChatTemplate::new(Vec::new(), BTreeMap::new()).unwrap();
        let mut equal = 0;
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let vector = Json::parse(line).unwrap();
            let Some(Json::List(tools)) = vector.get("tools") else { panic!("tools") };
            let messages = messages(vector.get("messages").unwrap());
            let rendered = template.prompt(&messages, tools, &BTreeMap::new()).unwrap().text;
            let rendered = rendered.strip_suffix("\n<|im_start|>assistant\n").unwrap();
            let expected = vector.get("text").and_then(Json::as_text).unwrap();
            // Between an assistant's text and a call, chat templates put a line break and ms-swift puts nothing.
            let Some(Json::List(agent)) = vector.get("messages") else { panic!("messages") };
            let role = |place: usize| agent[place].get("role").and_then(Json::as_text);
            let joined = (1..agent.len()).any(|at| role(at - 1) == Some("assistant") && role(at) == Some("tool_call"));
            if !joined {
                assert_eq!(rendered, expected, "{line}");
                equal += 1;
            }
        }
        println!("{equal} vectors");
        assert!(equal >= 2);
    }

    #[test]
    fn templates_make_no_text_without_end() {
        let doubled = |step: &str| {
            let start = "{% set ns = namespace(x=['ab' * n, 'ab' * n], y='ab' * n) %}";
            format!("{{% set n = 500000 %}}{start}{{% for i in range(60) %}}{step}{{% endfor %}}")
        };
        let literal = "literal text ".repeat(1000);
        for text in [
            doubled("{% set ns.y = ns.y ~ ns.y %}"),
            doubled("{% set ns.y = ns.y + ns.y %}"),
            doubled("{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x | tojson }}",
            doubled("{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x | upper }}",
            "{{ [[1], [2]] | tojson(indent=100000000) }}".to_owned(),
            "{{ 'a\nb' | indent(1000000000) }}".to_owned(),
            "{{ '%1000000000d' | format(1) }}".to_owned(),
            "{{ 'ab' * 1000000000 }}".to_owned(),
            format!("{{% set x %}}{{% for i in range(100000) %}}{literal}{{% endfor %}}{{% endset %}}"),
            format!(
                "{{% macro m() %}}{literal}{{% endmacro %}}{{% set x %}}{{% for i in range(100000) %}}{{{{ m() }}}}{{% endfor %}}{{% endset %}}"
            ),
            "{% set n = 30000000 %}{% for i in range(1000) %}{% set y = 'ab' * n %}{% endfor %}".to_owned(),
        ] {
            let failed = template(&text).prompt(&[message("user", "a")], &[], &BTreeMap::new());
            let error = failed.map(|prompt| prompt.text.len()).expect_err(&text[..60.min(text.len())]);
            assert!(error.starts_with("the chat template: "), "{error}");
        }
        let endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        assert!(template(endless).prompt(&[message("user", "a")], &[], &BTreeMap::new()).is_err());
        // What the engine makes of other templates stays.
        let kept = "{% if true %}a{% else %}b{% endif %}{% for i in [1, 2] %}\n<{{ i }}>\n{% endfor %}{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) }}{{ m('<&>') }}{% set y %}lit{% endset %}{{ y ~ 'z' }}";
        let rendered = template(kept).prompt(&[message("user", "a")], &[], &BTreeMap::new()).unwrap().text;
        assert_eq!(rendered, "a<1>\n<2>\n[1][<&>]litz");
    }

    #[test]
    fn python_in_templates() {
        let text = "{{ bos_token }}{% for m in messages[::-1] %}\n  {% if m.content.startswith('a') and m.role is string %}\n{{ m.content.split(' ')[-1].strip() | upper }};\n  {% endif %}\n{% endfor %}{{ extra.x }}{% if tools is defined %}T{% endif %}{{ 'q' if add_generation_prompt }}";
        let options = BTreeMap::from([("extra".to_owned(), serde_json::json!({"x": 3}))]);
        let found = template(text).prompt(
            &[message("user", "a b "), message("user", "c"), message("user", "a z")],
            &[],
            &options,
        );
        assert_eq!(found.unwrap().text, "<s>Z;\nB;\n3q".replace("B;", ";"));
    }

    #[test]
    fn tools_keep_their_order_and_json_is_pythons() {
        let tool = Json::parse(r#"{"type":"function","b":{"z":1,"a":[1.0,true,null,"ß<>'"]}}"#).unwrap();
        let text = "{% for t in tools %}{{ t | tojson }}|{{ t.b.a[3] }}|{% for k, v in t.b.items() %}{{ k }}{% endfor %}|{{ t.b | tojson(indent=2) }}{% endfor %}";
        let found = template(text).prompt(&[message("user", "")], &[tool], &BTreeMap::new()).unwrap().text;
        let json = "{\"type\": \"function\", \"b\": {\"z\": 1, \"a\": [1.0, true, null, \"ß<>'\"]}}";
        let lines = "{\n  \"z\": 1,\n  \"a\": [\n    1.0,\n    true,\n    null,\n    \"ß<>'\"\n  ]\n}";
        assert_eq!(found, format!("{json}|ß<>'|za|{lines}"));
    }

    #[test]
    fn the_last_message_is_continued_where_its_content_ends() {
        let chatml = ChatTemplate::new(Vec::new(), BTreeMap::new()).unwrap();
        let messages = [message("user", "a\u{FDD0}"), message("assistant", "Then \n")];
        let rendered = |ending| chatml.prompt_until(&messages, &[], &BTreeMap::new(), ending).unwrap().text;
        let open = "<|im_start|>user\na\u{FDD0}<|im_end|>\n<|im_start|>assistant\nThen \n";
        assert_eq!(rendered(Ending::LastMessage), open);
        assert_eq!(rendered(Ending::Conversation), format!("{open}<|im_end|>"));
        assert_eq!(rendered(Ending::NextTurn), format!("{open}<|im_end|>\n<|im_start|>assistant\n"));
        let silent = template("{{ messages[0].content }}");
        assert!(silent.prompt_until(&messages, &[], &BTreeMap::new(), Ending::LastMessage).is_err());
    }

    #[test]
    fn marks_for_trainers_trim_white_space_and_nothing_else() {
        let text =
            "{{ 'a' }}  {%- generation -%}  b  {%- endgeneration %}  {% generation %}\nc\n  {% endgeneration %}\nd";
        assert_eq!(template(text).prompt(&[], &[], &BTreeMap::new()).unwrap().text, "ab  c\nd");
    }

    #[test]
    fn what_a_template_refuses_is_told() {
        let refusing = template("{{ raise_exception('Only user messages, please') }}");
        let error = refusing.prompt(&[message("tool", "x")], &[], &BTreeMap::new()).unwrap_err();
        assert!(error.contains("Only user messages, please"), "{error}");
        assert!(ChatTemplate::new(vec![("default".to_owned(), "{% if".to_owned())], BTreeMap::new()).is_err());
    }
}

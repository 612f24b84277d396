//! `tests:` as written: rows given to nodes, a scripted model, and expected rows.

use serde_json::Value as Json;

use super::field::{self, Problems, refuse, take, take_as};
use super::value::{Key, OVER, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

const KEYS: &[&str] = &["name", "description", "params", "given", "model", "expect"];
/// Largest difference of two numbers that count as equal (default).
const TOLERANCE: f64 = 1e-6;

/// A test of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct TestCase {
    /// Its name.
    pub name: String,
    /// Its location.
    pub span: Span,
    /// Values of params.
    pub params: Vec<TestParam>,
    /// Rows of outputs: the nodes do not run.
    pub given: Vec<Rows>,
    /// Answers of the model.
    pub model: Vec<Scripted>,
    /// Rows that the nodes must have.
    pub expect: Vec<Expected>,
}

/// A param that a test sets.
#[derive(Clone, Debug, PartialEq)]
pub struct TestParam {
    /// As `--set` takes it: `a.b=value`, or `a.b~=value` to lie over the param.
    pub set: String,
    /// Location of the key.
    pub key: Span,
    /// Location of the value.
    pub value: Span,
}

/// Rows of an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// `NODE` or `NODE.PORT`.
    pub output: String,
    /// Location of that name.
    pub span: Span,
    /// The rows.
    pub rows: Vec<Json>,
}

/// Expected rows of an output.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// The rows; only the columns that are written are compared.
    pub rows: Rows,
    /// Whether the order of the rows does not matter.
    pub unordered: bool,
    /// Largest difference of two numbers that count as equal.
    pub tolerance: f64,
}

/// Answers of the scripted model.
#[derive(Clone, Debug, PartialEq)]
pub struct Scripted {
    /// Text that the first user message must contain; `None`: the next request that nothing else answers.
    pub when: Option<String>,
    /// A text, or a whole message: the first answer of the conversation, the second one, ….
    pub answers: Vec<Json>,
}

/// Reads the tests: a list, or a map by name.
pub(super) fn read(value: Spanned, problems: &mut Problems) -> Vec<TestCase> {
    let tests: Vec<(Option<Key>, Spanned)> = match value.value {
        Value::List(items) => items.into_iter().map(|item| (None, item)).collect(),
        Value::Map(entries) => entries.into_iter().map(|(key, item)| (Some(key), item)).collect(),
        Value::Null | Value::Broken => Vec::new(),
        _ => {
            problems.push(field::wrong_type(&value, "`tests`", "a list of tests"));
            Vec::new()
        }
    };
    let mut read: Vec<TestCase> = Vec::with_capacity(tests.len());
    for (place, (key, body)) in tests.into_iter().enumerate() {
        let Some(test) = one(key, body, place, problems) else { continue };
        // A report lists tests by name.
        if let Some(first) = read.iter().find(|first| first.name == test.name) {
            let fault = Diagnostic::error("duplicate-test", format!("two tests are called `{}`", test.name));
            problems.push(fault.at(test.span, "again here").at(first.span, "first here"));
        }
        read.push(test);
    }
    read
}

fn one(key: Option<Key>, body: Spanned, place: usize, problems: &mut Problems) -> Option<TestCase> {
    let span = key.as_ref().map_or(body.span, |key| key.span);
    if !field::is_map(&body, "a test", "write `given:` and `expect:` below its `name:`", problems) {
        return None;
    }
    let known = problems.len();
    let mut fields = field::fields(body, "a test", KEYS, problems);
    let written = take_as(&mut fields, "name", field::text, problems);
    let name = written.or(key.map(|key| key.text)).unwrap_or_else(|| format!("test {}", place + 1));
    let params = take(&mut fields, "params").map(|params| settings(&params)).unwrap_or_default();
    let given = field::take_map(&mut fields, "given", problems);
    let model = take(&mut fields, "model").map(|model| script(&model, problems)).unwrap_or_default();
    let mut expect = Vec::new();
    for (key, value) in field::take_map(&mut fields, "expect", problems) {
        expect.extend(expected(&key, value, problems));
    }
    // A mistake in the test may be why nothing is left of what it expects.
    if expect.is_empty() && problems.len() == known {
        let fault = Diagnostic::error("missing-key", format!("the test `{name}` expects nothing")).at(span, "");
        problems.push(fault.help("write `expect: {NODE: [{column: value}]}`"));
    }
    let given = given.iter().filter_map(|(key, value)| rows(key, value, problems)).collect();
    Some(TestCase { name, span, params, given, model, expect })
}

/// Flattens a map of params to `a.b=value`. One that chooses an option stays whole: it may choose another than the pipeline
/// does.
fn settings(params: &Spanned) -> Vec<TestParam> {
    let mut found = Vec::new();
    // The last one is taken first: params stay in the order written.
    let entries = params.entries().iter().rev();
    let mut pending: Vec<(String, Span, &Spanned)> =
        entries.map(|(key, value)| (key.text.clone(), key.span, value)).collect();
    while let Some((path, key, value)) = pending.pop() {
        match &value.value {
            Value::Map(_) if value.choice().is_some() => {
                let set = format!("{path}{}={}", OVER, value.to_json());
                found.push(TestParam { set, key, value: value.span });
            }
            Value::Map(entries) if !entries.is_empty() => {
                let below = entries.iter().rev();
                pending.extend(below.map(|(key, value)| (format!("{path}.{}", key.text), key.span, value)));
            }
            _ => found.push(TestParam { set: format!("{path}={}", value.to_json()), key, value: value.span }),
        }
    }
    found
}

fn rows(key: &Key, value: &Spanned, problems: &mut Problems) -> Option<Rows> {
    let other = value.items().iter().find(|item| !matches!(item.value, Value::Map(_) | Value::Broken));
    if !matches!(value.value, Value::List(_)) || other.is_some() {
        let fault = match other {
            Some(item) => field::wrong_type(item, &format!("a row of `{}`", key.text), "a map"),
            None => field::wrong_type(value, &format!("`{}`", key.text), "a list of rows"),
        };
        if value.value != Value::Broken {
            problems.push(fault.help("write each row as `{column: value}`"));
        }
        return None;
    }
    let rows = value.items().iter().map(Spanned::to_json).collect();
    Some(Rows { output: key.text.clone(), span: key.span, rows })
}

fn expected(key: &Key, value: Spanned, problems: &mut Problems) -> Option<Expected> {
    if !matches!(value.value, Value::Map(_)) {
        return Some(Expected { rows: rows(key, &value, problems)?, unordered: false, tolerance: TOLERANCE });
    }
    let span = value.span;
    let what = format!("`{}`", key.text);
    let mut fields = field::fields(value, &what, &["rows", "unordered", "tolerance"], problems);
    let unordered = take_as(&mut fields, "unordered", field::flag, problems).unwrap_or_default();
    let mut tolerance = TOLERANCE;
    if let Some(value) = take(&mut fields, "tolerance")
        && let Some(text) = field::text(&value, "`tolerance`", problems)
    {
        match text.parse::<f64>() {
            Ok(number) if number >= 0.0 => tolerance = number,
            _ => problems.push(field::fault("bad-value", &value, "`tolerance` must be a number of at least 0")),
        }
    }
    let Some(given) = take(&mut fields, "rows") else {
        let fault = Diagnostic::error("missing-key", format!("{what} has no `rows`")).at(span, "");
        return refuse(problems, fault.help("write `rows: [{column: value}]`"));
    };
    Some(Expected { rows: rows(key, &given, problems)?, unordered, tolerance })
}

fn script(value: &Spanned, problems: &mut Problems) -> Vec<Scripted> {
    if !matches!(value.value, Value::List(_) | Value::Null | Value::Broken) {
        let fault = field::wrong_type(value, "`model`", "a list of answers");
        problems.push(fault.help("write `- {when: TEXT OF THE PROMPT, answer: TEXT}` for each"));
    }
    value.items().iter().filter_map(|item| scripted(item, problems)).collect()
}

fn scripted(item: &Spanned, problems: &mut Problems) -> Option<Scripted> {
    // A text alone answers the next request.
    if matches!(item.value, Value::String(_)) {
        return Some(Scripted { when: None, answers: vec![item.to_json()] });
    }
    let mut fields = field::fields(item.clone(), "an answer of `model`", &["when", "answer", "answers"], problems);
    let when = take_as(&mut fields, "when", field::text, problems);
    let (one, several) = (take(&mut fields, "answer"), take(&mut fields, "answers"));
    let answers: Vec<Json> = match (&one, &several) {
        (Some(one), None) => vec![one.to_json()],
        (None, Some(several)) => several.items().iter().map(Spanned::to_json).collect(),
        (Some(one), Some(_)) => {
            let fault = Diagnostic::error("bad-value", "an answer of `model` has both `answer` and `answers`");
            let fault = fault.at(one.span, "");
            return refuse(problems, fault.help("write one of them; `answers` are the turns of one conversation"));
        }
        (None, None) => Vec::new(),
    };
    if answers.is_empty() {
        let fault = Diagnostic::error("missing-key", "an answer of `model` has no text").at(item.span, "");
        return refuse(problems, fault.help("write `answer: TEXT`, or `answers: [FIRST, SECOND]` for a conversation"));
    }
    Some(Scripted { when, answers })
}

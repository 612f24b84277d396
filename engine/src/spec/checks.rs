//! `checks:` of a node as written: what must hold of its result, and what happens if it does not.

use std::fmt;

use searchmill_schemas::named;
use serde::{Deserialize, Serialize};

use super::field::{self, Fields, Problems, refuse, take, take_as};
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// The words that name a rule.
const RULES: &[&str] = &["rows", "rejects", "unique", "not_null", "range", "sql"];
const KEYS: &[&str] = &["rows", "rejects", "unique", "not_null", "range", "sql", "port", "on_failure"];
/// Characters of an SQL text in a message (at most).
const SHOWN: usize = 80;

/// A check of a node's result. Never part of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// What must hold.
    #[serde(flatten)]
    pub rule: Rule,
    /// The checked output; `None` for the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// What happens if it does not hold.
    pub on_failure: OnFailure,
}

/// What must hold of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Number of rows.
    Rows {
        /// At least.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<u64>,
        /// At most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<u64>,
    },
    /// Share of rows that the node rejected or dropped.
    Rejects {
        /// At most.
        max: f64,
    },
    /// No two rows have the same values in these columns. Rows with a null in one of them are not compared.
    Unique(Vec<String>),
    /// These columns contain no null.
    NotNull(Vec<String>),
    /// All values of a column that are not null are in this range.
    Range {
        /// The column.
        column: String,
        /// At least.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        min: Option<f64>,
        /// At most.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max: Option<f64>,
    },
    /// A predicate that is true for every row, or a query over `rows` that returns no row.
    Sql(String),
}

named! {
    /// What a failed check does.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OnFailure {
        /// The node fails. Its result is kept.
        #[default]
        Fail = "fail",
        /// No output behind the node is delivered.
        Hold = "hold",
        /// The run reports it.
        Warn = "warn",
    }
}

impl Rule {
    /// Returns the word in YAML.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rows { .. } => "rows",
            Self::Rejects { .. } => "rejects",
            Self::Unique(_) => "unique",
            Self::NotNull(_) => "not_null",
            Self::Range { .. } => "range",
            Self::Sql(_) => "sql",
        }
    }

    /// Returns the only column that the rule names.
    pub fn column(&self) -> Option<&str> {
        match self {
            Self::Unique(columns) | Self::NotNull(columns) if columns.len() == 1 => columns.first().map(String::as_str),
            Self::Range { column, .. } => Some(column),
            _ => None,
        }
    }

    /// Whether an SQL text is a query and no predicate.
    pub fn is_query(sql: &str) -> bool {
        let first = sql.trim_start().split(|ch: char| !ch.is_ascii_alphanumeric()).next().unwrap_or_default();
        first.eq_ignore_ascii_case("select") || first.eq_ignore_ascii_case("with")
    }
}

/// `rows: at least 100`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows { min, max } => write!(f, "rows: {}", between(min.as_ref(), max.as_ref())),
            Self::Rejects { max } => write!(f, "rejects: at most {}", percent(*max)),
            Self::Unique(columns) => write!(f, "unique: {}", columns.join(", ")),
            Self::NotNull(columns) => write!(f, "not_null: {}", columns.join(", ")),
            Self::Range { column, min, max } => {
                write!(f, "range: {column} {}", between(min.as_ref(), max.as_ref()))
            }
            Self::Sql(sql) => {
                let line = sql.split_whitespace().collect::<Vec<_>>().join(" ");
                let cut: String = line.chars().take(SHOWN).collect();
                let more = if cut.len() < line.len() { "…" } else { "" };
                write!(f, "sql: {cut}{more}")
            }
        }
    }
}

/// `rows: at least 100 (rejects)`.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.port {
            None => self.rule.fmt(f),
            Some(port) => write!(f, "{} ({port})", self.rule),
        }
    }
}

fn between<T: fmt::Display + PartialEq>(min: Option<&T>, max: Option<&T>) -> String {
    match (min, max) {
        (Some(min), Some(max)) if min == max => format!("exactly {min}"),
        (Some(min), Some(max)) => format!("from {min} to {max}"),
        (Some(min), None) => format!("at least {min}"),
        (None, Some(max)) => format!("at most {max}"),
        (None, None) => String::new(),
    }
}

/// Formats a share: `5 %`.
pub(crate) fn percent(share: f64) -> String {
    // Two digits: 1/3 is `33.33 %`.
    let rounded = (share * 1e4).round() / 1e2;
    format!("{rounded} %")
}

/// A check with its places in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckSpec {
    /// The check.
    pub check: Check,
    /// Location of the rule's value.
    pub span: Span,
    /// The `${…}` that inserted it, if it was written elsewhere.
    pub via: Option<Span>,
    /// Location of `port:`, if it is written.
    pub port_span: Option<Span>,
    /// The columns that the rule names, with their locations.
    pub columns: Vec<(String, Span)>,
}

/// Reads the list of checks.
pub(super) fn read(value: &Spanned, problems: &mut Problems) -> Vec<CheckSpec> {
    if !matches!(value.value, Value::List(_) | Value::Null | Value::Broken) {
        let fault = field::wrong_type(value, "`checks`", "a list of checks");
        problems.push(fault.help("write `- rows: {min: 1}` below it, one line for each check"));
    }
    value.items().iter().filter_map(|item| one(item, problems)).collect()
}

fn one(item: &Spanned, problems: &mut Problems) -> Option<CheckSpec> {
    if !field::is_map(item, "a check", &format!("write one of `{}`", RULES.join("`, `")), problems) {
        return None;
    }
    let known = problems.len();
    let mut fields = field::fields(item.clone(), "a check", KEYS, problems);
    let (port, on_failure) = (take(&mut fields, "port"), take(&mut fields, "on_failure"));
    // Unknown keys were reported.
    fields.retain(|(key, _)| RULES.contains(&key.text.as_str()));
    let mut rules = fields.into_iter();
    let Some((key, value)) = rules.next() else {
        // A misspelt key is why the rule is missing, and was reported.
        if problems.len() == known {
            let fault = Diagnostic::error("missing-key", "a check has no rule").at(item.span, "");
            problems.push(fault.help(format!("write one of {}", RULES.join(", "))));
        }
        return None;
    };
    if let Some((second, _)) = rules.next() {
        let message = format!("a check has one rule, here are `{}` and `{}`", key.text, second.text);
        let fault = Diagnostic::error("too-many-rules", message).at(second.span, "");
        return refuse(problems, fault.help("write each as an item of its own: `- unique: [id]`"));
    }
    let port_span = port.as_ref().map(|port| port.span);
    let port = port.and_then(|port| field::text(&port, "`port`", problems));
    let on_failure = field::named(on_failure.as_ref(), "`on_failure`", &OnFailure::ALL, OnFailure::name, problems)
        .unwrap_or_default();
    let (rule, columns) = rule(&key, &value, problems)?;
    // A whole check may come from a param.
    let via = value.via.or(item.via).filter(|via| *via != value.span);
    Some(CheckSpec { check: Check { rule, port, on_failure }, span: value.span, via, port_span, columns })
}

type Columns = Vec<(String, Span)>;

fn rule(key: &Key, value: &Spanned, problems: &mut Problems) -> Option<(Rule, Columns)> {
    let what = format!("`{}`", key.text);
    match key.text.as_str() {
        "rows" => {
            let mut fields = bounds(value, "rows", &["min", "max"], problems)?;
            let (min, max) = ordered(&mut fields, "rows", |v, what, p| field::whole(v, what, 0, p), value, problems)?;
            Some((Rule::Rows { min, max }, Vec::new()))
        }
        "rejects" => {
            let max = take(&mut bounds(value, "rejects", &["max"], problems)?, "max")?;
            let share = number(&max, "`max`", problems)?;
            if !(0.0..=1.0).contains(&share) {
                let fault = field::fault("bad-value", &max, format!("`max` of `rejects` cannot be {share}"));
                return refuse(problems, fault.help("a share is a number from 0 to 1: `{max: 0.05}`"));
            }
            Some((Rule::Rejects { max: share }, Vec::new()))
        }
        "unique" | "not_null" => {
            let columns = columns(value, &what, problems)?;
            let names = columns.iter().map(|(name, _)| name.clone()).collect();
            let rule = if key.text == "unique" { Rule::Unique(names) } else { Rule::NotNull(names) };
            Some((rule, columns))
        }
        "range" => range(value, problems),
        _ => {
            let text = field::text(value, &what, problems)?;
            if text.trim().is_empty() {
                let fault = field::fault("bad-value", value, "`sql` is empty");
                return refuse(problems, fault.help("write a predicate that is true for every row: `f1 >= 0`"));
            }
            Some((Rule::Sql(text), Vec::new()))
        }
    }
}

fn range(value: &Spanned, problems: &mut Problems) -> Option<(Rule, Columns)> {
    let mut fields = bounds(value, "range", &["column", "min", "max"], problems)?;
    let Some(column) = take(&mut fields, "column") else {
        let fault = Diagnostic::error("missing-key", "`range` has no `column`").at(value.span, "");
        return refuse(problems, fault.help("write `range: {column: f1, min: 0, max: 1}`"));
    };
    let name = field::text(&column, "`column`", problems)?;
    let (min, max) = ordered(&mut fields, "range", number, value, problems)?;
    Some((Rule::Range { column: name.clone(), min, max }, vec![(name, column.span)]))
}

/// Reads a map of limits; reports a value that is no map, and unknown keys.
fn bounds(value: &Spanned, name: &str, keys: &[&str], problems: &mut Problems) -> Option<Fields> {
    let help = match name {
        "rows" => "write `rows: {min: 100}`",
        "rejects" => "write `rejects: {max: 0.05}`",
        _ => "write `range: {column: f1, min: 0, max: 1}`",
    };
    let what = format!("`{name}`");
    if !field::is_map(value, &what, help, problems) {
        return None;
    }
    let known = problems.len();
    let fields = field::fields(value.clone(), &what, keys, problems);
    if fields.iter().any(|(key, _)| matches!(key.text.as_str(), "min" | "max")) {
        return Some(fields);
    }
    // A misspelt key may be why the limit is missing, and was reported.
    if problems.len() == known {
        let fault = Diagnostic::error("missing-key", format!("{what} has no limit")).at(value.span, "");
        problems.push(fault.help(help));
    }
    None
}

fn number(value: &Spanned, what: &str, problems: &mut Problems) -> Option<f64> {
    let text = field::text(value, what, problems)?;
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Some(number),
        _ => refuse(problems, field::fault("bad-value", value, format!("{what} must be a number, not `{text}`"))),
    }
}

/// Reads both limits; reports limits in the wrong order. `None` if neither could be read.
fn ordered<T: PartialOrd + fmt::Display>(
    fields: &mut Fields,
    name: &str,
    read: field::Reader<T>,
    value: &Spanned,
    problems: &mut Problems,
) -> Option<(Option<T>, Option<T>)> {
    let (min, max) = (take_as(fields, "min", read, problems), take_as(fields, "max", read, problems));
    if let (Some(min), Some(max)) = (&min, &max)
        && min > max
    {
        let message = format!("`{name}`: `min` {min} is greater than `max` {max}");
        return refuse(problems, field::fault("bad-value", value, message));
    }
    (min.is_some() || max.is_some()).then_some((min, max))
}

/// Reads the name of one column, or a list of names.
fn columns(value: &Spanned, what: &str, problems: &mut Problems) -> Option<Columns> {
    let items = value.as_list();
    let mut names = Columns::new();
    for item in items {
        names.extend(field::text(item, what, problems).map(|name| (name, item.span)));
    }
    if items.is_empty() {
        let fault = field::fault("bad-value", value, format!("{what} names no column"));
        problems.push(fault.help(format!("write {what} as a list of columns: `[id]`")));
    }
    (!names.is_empty() && names.len() == items.len()).then_some(names)
}

//! Reads the fixed fields of a pipeline (everything except operator params) and reports what does not fit.

use std::time::Duration;

use super::suggest;
use super::value::{Key, Spanned, Value};
use crate::diagnostic::{Diagnostic, Span};

/// The entries of a map.
pub(super) type Fields = Vec<(Key, Spanned)>;
/// Reads a value that `what` names in messages.
pub(super) type Reader<T> = fn(&Spanned, &str, &mut Problems) -> Option<T>;
/// Receives diagnostics.
pub(super) type Problems = Vec<Diagnostic>;

/// Reports why there is no value.
pub(super) fn refuse<T>(problems: &mut Problems, fault: Diagnostic) -> Option<T> {
    problems.push(fault);
    None
}

/// Reads a map with a fixed set of keys; empty if it is not a map. Reports unknown keys.
pub(super) fn fields(value: Spanned, what: &str, known: &[&str], problems: &mut Problems) -> Fields {
    let entries = map(value, what, problems).unwrap_or_default();
    for (key, _) in &entries {
        if !known.contains(&key.text.as_str()) {
            problems.push(unknown_key(key, what, known));
        }
    }
    entries
}

/// Removes a field by name and returns its value.
pub(super) fn take(fields: &mut Fields, name: &str) -> Option<Spanned> {
    let at = fields.iter().position(|(key, _)| key.text == name)?;
    // The last field moves here: the order of the rest decides which error comes first.
    Some(fields.swap_remove(at).1)
}

/// Removes a field by name, and reads it.
pub(super) fn take_as<T>(fields: &mut Fields, name: &str, read: Reader<T>, problems: &mut Problems) -> Option<T> {
    read(&take(fields, name)?, &format!("`{name}`"), problems)
}

/// Removes a field by name, and reads an integer of at least `least`.
pub(super) fn take_whole(fields: &mut Fields, name: &str, least: u64, problems: &mut Problems) -> Option<u64> {
    whole(&take(fields, name)?, &format!("`{name}`"), least, problems)
}

/// An unknown key.
pub(super) fn unknown_key(key: &Key, what: &str, known: &[&str]) -> Diagnostic {
    let fault = Diagnostic::error("unknown-key", format!("{what} has no key `{}`", key.text)).at(key.span, "");
    fault.help_some(suggest::advice(&key.text, known))
}

/// An error at a value, and where the value was inserted.
pub(super) fn fault(code: &'static str, value: &Spanned, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(code, message).at(value.span, "").used_at(value.via)
}

/// A value of the wrong type.
pub(super) fn wrong_type(value: &Spanned, what: &str, wanted: &str) -> Diagnostic {
    fault("wrong-type", value, format!("{what} must be {wanted}, not {}", value.kind()))
}

/// Reads the entries of a map. `null` is an empty map.
pub(super) fn map(value: Spanned, what: &str, problems: &mut Problems) -> Option<Fields> {
    match value.value {
        Value::Map(entries) => Some(entries),
        Value::Null => Some(Vec::new()),
        Value::Broken => None,
        _ => refuse(problems, wrong_type(&value, what, "a map")),
    }
}

/// Removes a field by name, and reads the entries of a map; none if it is not one.
pub(super) fn take_map(fields: &mut Fields, name: &str, problems: &mut Problems) -> Fields {
    take(fields, name).and_then(|value| map(value, &format!("`{name}`"), problems)).unwrap_or_default()
}

/// Reads text; numbers keep their spelling.
pub(super) fn text(value: &Spanned, what: &str, problems: &mut Problems) -> Option<String> {
    let text = value.scalar_text();
    // What is broken was reported where it could not be resolved.
    if text.is_none() && value.value != Value::Broken {
        problems.push(wrong_type(value, what, "a string"));
    }
    text
}

/// Reads `true` or `false`.
pub(super) fn flag(value: &Spanned, what: &str, problems: &mut Problems) -> Option<bool> {
    match value.value {
        Value::Bool(flag) => Some(flag),
        Value::Broken => None,
        _ => refuse(problems, wrong_type(value, what, "`true` or `false`")),
    }
}

/// Reads an integer of at least `least`.
pub(super) fn whole(value: &Spanned, what: &str, least: u64, problems: &mut Problems) -> Option<u64> {
    let number = match &value.value {
        Value::Broken => return None,
        Value::Int(number) => u64::try_from(*number).ok(),
        // Beyond `i64`, YAML has floats: the text of a seed of 64 bits is exact.
        Value::Float(_) => value.text.as_deref().and_then(|text| text.parse().ok()),
        _ => return refuse(problems, wrong_type(value, what, "a whole number")),
    };
    if number.is_some_and(|number| number >= least) {
        return number;
    }
    let shown = value.scalar_text().unwrap_or_default();
    let message = format!("{what} must be a whole number of at least {least}, not `{shown}`");
    refuse(problems, fault("bad-value", value, message))
}

/// Reads a duration: `500ms`, `1s`, `2m`, `1h`; a bare number means seconds.
pub(super) fn duration(value: &Spanned, what: &str, problems: &mut Problems) -> Option<Duration> {
    // `m` is minutes, as in Go.
    const UNITS: &[(&str, f64)] = &[("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("min", 60.0), ("h", 3600.0)];
    let help = "a duration is written as `500ms`, `1s`, `2m` or `1h`";
    let seconds = amount(value, UNITS, what, help, problems)?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// Reads a size: `512MB`, `2GiB`; a bare number means bytes.
pub(super) fn bytes(value: &Spanned, what: &str, problems: &mut Problems) -> Option<u64> {
    const UNITS: &[(&str, f64)] = &[
        ("b", 1.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("tb", 1e12),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
    ];
    amount(value, UNITS, what, "a size is written as `512MB` or `2GiB`", problems).map(|bytes| bytes as u64)
}

fn amount(value: &Spanned, units: &[(&str, f64)], what: &str, help: &str, problems: &mut Problems) -> Option<f64> {
    let text = text(value, what, problems)?;
    let digits = text.trim_end_matches(|ch: char| ch.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let factor = match units.iter().find(|(name, _)| *name == unit) {
        Some((_, factor)) => Some(*factor),
        None => unit.is_empty().then_some(1.0),
    };
    if let (Some(factor), Ok(number)) = (factor, digits.trim().parse::<f64>())
        // Not negative, and small enough that every unit leaves a finite number.
        && (0.0..1e15).contains(&number)
    {
        return Some(number * factor);
    }
    refuse(problems, fault("bad-value", value, format!("{what} cannot be `{text}`")).help(help))
}

/// Reads one of several words.
pub(super) fn choice<'w>(value: &Spanned, what: &str, words: &[&'w str], problems: &mut Problems) -> Option<&'w str> {
    let text = text(value, what, problems)?;
    // `dead-letter` is `dead_letter`.
    let folded = text.replace('-', "_");
    let found = words.iter().find(|word| **word == folded).copied();
    if found.is_none() {
        let fault = fault("bad-value", value, format!("{what} cannot be `{text}`"));
        problems.push(fault.help_some(suggest::advice(&text, words)));
    }
    found
}

/// Reads the name of one of several values.
pub(super) fn named<T: Copy>(
    value: Option<&Spanned>,
    what: &str,
    all: &[T],
    name: fn(T) -> &'static str,
    problems: &mut Problems,
) -> Option<T> {
    let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
    let found = choice(value?, what, &names, problems)?;
    all.iter().copied().find(|one| name(*one) == found)
}

/// Whether the value is a map. Reports any other one, with advice.
pub(super) fn is_map(value: &Spanned, what: &str, help: &str, problems: &mut Problems) -> bool {
    let is_map = matches!(value.value, Value::Map(_));
    if !is_map && value.value != Value::Broken {
        problems.push(wrong_type(value, what, "a map").help(help));
    }
    is_map
}

/// Whether a text is a node id. Reports if not.
pub(super) fn node_id(text: &str, span: Span, problems: &mut Problems) -> bool {
    let good = is_id(text);
    if !good {
        let fault = Diagnostic::error("bad-node-id", format!("`{text}` is not a valid node id")).at(span, "");
        problems.push(fault.help("an id is made of letters, digits, `_` and `-`"));
    }
    good
}

/// Whether a text consists of letters, digits, `_` and `-`.
pub(super) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|ch| ch.is_alphanumeric() || matches!(ch, '_' | '-'))
}

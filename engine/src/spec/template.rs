//! The syntax of `${…}` in strings.

/// The target of a `${…}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// `${params.a.b}`
    Param(Vec<String>),
    /// `${env:NAME}`, `${env:NAME:-default}`
    Env { name: String, default: Option<String> },
    /// `${secret:NAME}`
    Secret(String),
    /// `${matrix.x}`, `${matrix.x.field}`
    Matrix(Vec<String>),
    /// `${repeat.round}`
    Round,
    /// `${service.x}`
    Service(String),
}

/// A part of a string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Literal text with escapes (`$${`) undone.
    Text(String),
    /// A reference and its byte range in the string.
    Reference { target: Target, range: std::ops::Range<usize> },
}

/// Why a `${…}` is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Byte range in the string.
    pub(super) range: std::ops::Range<usize>,
    /// The reason.
    pub(super) message: String,
}

/// Whether the string may contain references.
pub(super) fn has_reference(text: &str) -> bool {
    text.contains("${")
}

/// Returns the reference if the whole string is one.
pub(super) fn whole(parts: &[Part]) -> Option<&Target> {
    match parts {
        [Part::Reference { target, .. }] => Some(target),
        _ => None,
    }
}

/// Limit of parts of a string.
const MAX_PARTS: usize = 1000;

/// Splits a string into parts.
pub(super) fn parse(text: &str) -> Result<Vec<Part>, Fault> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut at = 0;
    while let Some(found) = text[at..].find("${").map(|offset| at + offset) {
        // `$${` is an escaped `${`.
        if text[at..found].ends_with('$') {
            literal.push_str(&text[at..found - 1]);
            literal.push_str("${");
            at = found + 2;
            continue;
        }
        literal.push_str(&text[at..found]);
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        if parts.len() > MAX_PARTS {
            return Err(fault(found..found + 2, "too many `${…}` in one string"));
        }
        let end = match text[found..].find('}') {
            // An inner reference would end the outer one at its own brace.
            Some(length) if !text[found + 2..found + length].contains("${") => found + length + 1,
            Some(_) => return Err(fault(found..found + 2, "`${…}` cannot be nested")),
            None => return Err(fault(found..text.len(), "this `${` is never closed with `}`")),
        };
        let target = target(&text[found + 2..end - 1]).map_err(|message| Fault { range: found..end, message })?;
        parts.push(Part::Reference { target, range: found..end });
        at = end;
    }
    literal.push_str(&text[at..]);
    if !literal.is_empty() || parts.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

fn fault(range: std::ops::Range<usize>, message: &str) -> Fault {
    Fault { range, message: message.to_owned() }
}

fn target(body: &str) -> Result<Target, String> {
    let body = body.trim();
    if let Some(name) = body.strip_prefix("env:") {
        let (name, default) = match name.split_once(":-") {
            Some((name, default)) => (name, Some(default.to_owned())),
            None => (name, None),
        };
        return Ok(Target::Env { name: variable(name)?, default });
    }
    if let Some(name) = body.strip_prefix("secret:") {
        return Ok(Target::Secret(variable(name)?));
    }
    if let Some(path) = body.strip_prefix("params.") {
        return steps(path).map(Target::Param).ok_or_else(|| format!("`{path}` is not a param path"));
    }
    if let Some(path) = body.strip_prefix("matrix.") {
        return steps(path).map(Target::Matrix).ok_or_else(|| "a key of the matrix is missing".to_owned());
    }
    if let Some(name) = body.strip_prefix("repeat.") {
        if name.trim() != "round" {
            return Err(format!("`repeat` has only `round`, not `{name}`"));
        }
        return Ok(Target::Round);
    }
    if let Some(name) = body.strip_prefix("service.") {
        if name.is_empty() {
            return Err("the name of a service is missing".to_owned());
        }
        return Ok(Target::Service(name.to_owned()));
    }
    Err(if body.is_empty() { "`${}` is empty".to_owned() } else { format!("unknown reference `{body}`") })
}

/// Splits a dotted path; `None` if a step is missing.
fn steps(path: &str) -> Option<Vec<String>> {
    let steps: Vec<String> = path.split('.').map(|step| step.trim().to_owned()).collect();
    if steps.iter().any(String::is_empty) { None } else { Some(steps) }
}

fn variable(name: &str) -> Result<String, String> {
    let well_formed = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|ch| ch.is_ascii_alphanumeric() || ch == '_');
    if well_formed { Ok(name.to_owned()) } else { Err(format!("`{name}` is not a variable name")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    #[test]
    fn strings_come_apart() {
        let param = |path: &str| Target::Param(path.split('.').map(str::to_owned).collect());
        assert_eq!(parse("plain").unwrap(), [text("plain")]);
        assert_eq!(parse("").unwrap(), [text("")]);
        assert_eq!(parse("costs $5, $ {x}").unwrap(), [text("costs $5, $ {x}")]);
        assert_eq!(parse("a $${params.x} b").unwrap(), [text("a ${params.x} b")]);
        let parts = parse("${params.a.b}").unwrap();
        assert_eq!(whole(&parts), Some(&param("a.b")));
        let parts = parse("x-${ params.a }${env:HOME:-/tmp}").unwrap();
        assert_eq!(parts[0], text("x-"));
        assert_eq!(parts[1], Part::Reference { target: param("a"), range: 2..15 });
        let field = Target::Matrix(vec!["retriever".into(), "k".into()]);
        assert_eq!(whole(&parse("${matrix.retriever.k}").unwrap()), Some(&field));
        let home = Target::Env { name: "HOME".into(), default: Some("/tmp".into()) };
        assert_eq!(parts[2], Part::Reference { target: home, range: 15..32 });
    }

    #[test]
    fn what_is_none_is_told() {
        for (text, range) in [
            ("a ${params.x", 2..12),
            ("${", 0..2),
            ("${}", 0..3),
            ("${params.}", 0..10),
            ("${matrix.a.}", 0..12),
            ("${repeat.rounds}", 0..16),
            ("${nope}", 0..7),
            ("${a ${b}}", 0..2),
            ("${env:1X}", 0..9),
        ] {
            assert_eq!(parse(text).unwrap_err().range, range, "{text}");
        }
    }
}

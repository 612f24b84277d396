//! Files that hold one map and no pipeline: params (`--params`), and settings of a command.

use std::path::Path;

use serde_json::Value as Json;

use super::arguments::arguments;
use super::field::{Problems, refuse, wrong_type};
use super::syntax;
use super::value::{Spanned, Value};
use crate::diagnostic::{Diagnostic, SourceMap};

/// Reads a file with one map; `what` names it in messages.
pub(super) fn read_map(path: &Path, what: &str, sources: &mut SourceMap, problems: &mut Problems) -> Option<Spanned> {
    let file = syntax::read_file(path, None, sources).map_err(|fault| problems.push(fault)).ok()?;
    let value = syntax::parse(file, sources, problems)?;
    if matches!(value.value, Value::Map(_)) { Some(value) } else { refuse(problems, wrong_type(&value, what, "a map")) }
}

/// Reads the settings of a command by their JSON Schema: with their places, and as JSON. `${…}` stays text.
///
/// # Errors
/// All errors, with locations.
pub(crate) fn settings(
    path: &Path,
    schema: &Json,
    command: &str,
    sources: &mut SourceMap,
) -> Result<(Spanned, Json), Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let Some(value) = read_map(path, "a file of settings", sources, &mut problems) else { return Err(problems) };
    match arguments(&value, schema, command) {
        Ok(typed) if problems.is_empty() => return Ok((value, typed)),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(problems)
}

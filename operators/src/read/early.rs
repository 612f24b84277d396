//! What can be told of the files before anything runs: headers that cannot be read, and fields that `columns:` names and
//! that they lack.

use std::collections::BTreeSet;
use std::path::Path;

use searchmill_data::source::fields::{fields_of, header_problem};
use searchmill_data::source::layout::Layout;
use searchmill_data::source::location;
use searchmill_data::source::mapping::Origin;
use searchmill_data::source::table::Splitting;
use searchmill_engine::operator::{OperatorError, ParamIssue};
use searchmill_engine::spec::closest;

use super::params::ReadParams;

/// Maximum number of fields listed in an error.
pub(super) const FIELDS_TOLD: usize = 40;

/// Returns how files are split into records.
pub(super) fn splitting_of(params: &ReadParams) -> Splitting {
    Splitting {
        format: params.format,
        compression: params.compression,
        cut: params.layout.map(Layout::cut).unwrap_or_default(),
        quotes: params.quotes,
        // An issue says if it is no single byte.
        delimiter: params.delimiter.and_then(|sign| u8::try_from(sign).ok()),
    }
}

/// The error of a field that no record has.
pub(super) fn no_field(column: &str, field: &str, seen: &BTreeSet<String>) -> OperatorError {
    let message = format!("no record has the field `{field}` that `columns.{column}` names");
    let near = closest(field, seen.iter().map(String::as_str));
    let listed = seen.iter().take(FIELDS_TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
    let help = match near {
        Some(near) => format!("did you mean `{near}`? The records have {listed}"),
        None => format!("the records have {listed}"),
    };
    OperatorError::pipeline(message).with_help(help)
}

/// Returns an issue for each header that cannot be read, and each field that no file has. Nothing is said of files that
/// are elsewhere, large, or not there yet: the run tells.
pub(super) fn file_issues(params: &ReadParams, directory: &Path) -> Vec<ParamIssue> {
    if params.layout.is_some() {
        return Vec::new();
    }
    let mut issues = Vec::new();
    for path in params.path.list().iter().filter(|path| is_one_here(path)) {
        if let Some((message, help)) = header_problem(&directory.join(path), splitting_of(params)) {
            issues.push(ParamIssue::new("path", format!("cannot read `{path}`: {message}")).with_help(help));
        }
    }
    if !issues.is_empty() || params.columns.is_empty() {
        return issues;
    }
    // Files without records lack no field.
    let Some(seen) = fields_of_all(params, directory).filter(|seen| !seen.is_empty()) else { return issues };
    for (column, text) in &params.columns {
        // What is no origin has an issue of its own.
        let Ok(origin) = Origin::parse(text) else { continue };
        for field in origin.required() {
            if !seen.contains(field) {
                let error = no_field(column, field, &seen);
                let issue = ParamIssue::new(format!("columns.{column}"), error.message);
                issues.push(issue.with_help(error.help.unwrap_or_default()));
            }
        }
    }
    issues
}

/// Whether a location is one file of this machine.
fn is_one_here(path: &str) -> bool {
    location::scheme(path).is_none() && !path.contains(['*', '?', '['])
}

/// Returns the fields of all files; `None` if those of one are not known.
fn fields_of_all(params: &ReadParams, directory: &Path) -> Option<BTreeSet<String>> {
    let mut seen = BTreeSet::new();
    for path in params.path.list() {
        // A file that is not looked at may have the field.
        if !is_one_here(&path) {
            return None;
        }
        seen.extend(fields_of(&directory.join(path), splitting_of(params))?);
    }
    Some(seen)
}

//! Issues of params, a line for each rule.

use searchmill_engine::operator::ParamIssue;

/// Returns an issue with path and message for each demand that does not hold.
pub(crate) fn unmet(demands: &[(bool, &str, &str)]) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (holds, path, message) in demands {
        if !holds {
            issues.push(ParamIssue::new(*path, *message));
        }
    }
    issues
}

/// Returns an issue with path, message and help for each setting that is refused.
pub(crate) fn refused(settings: &[(bool, &str, &str, &str)]) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (is_refused, path, message, help) in settings {
        if *is_refused {
            issues.push(ParamIssue::new(*path, *message).with_help(*help));
        }
    }
    issues
}

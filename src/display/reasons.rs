//! Why a node runs, in one line.

use std::fmt::Write as _;

use searchmill_engine::Reason;

/// Maximum number of reasons in a line: thousands of files of a folder may change. `why` lists all.
const NAMED: usize = 4;

/// Returns the first reasons, and how many more there are.
pub(crate) fn sentence(reasons: &[Reason]) -> String {
    let named: Vec<String> = reasons.iter().take(NAMED).map(ToString::to_string).collect();
    let mut text = named.join("; ");
    if reasons.len() > NAMED {
        write!(text, "; and {} more", reasons.len() - NAMED).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_reasons_are_counted() {
        let all = |count: usize| vec![Reason::NeverRan; count];
        assert_eq!(sentence(&all(1)), Reason::NeverRan.to_string());
        assert!(!sentence(&all(4)).contains("more"));
        assert!(sentence(&all(400)).ends_with("; and 396 more"), "{}", sentence(&all(400)));
    }
}

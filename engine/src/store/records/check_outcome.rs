//! The recorded outcome of a check.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spec::Check;
use crate::store::artifacts::artifact::ArtifactId;

/// The outcome of one check of a node's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckOutcome {
    /// The check.
    #[serde(flatten)]
    pub check: Check,
    /// The checked table; missing for checks of numbers of rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactId>,
    /// Whether it holds.
    pub passed: bool,
    /// What was found: a number of rows, the first row that breaks the rule, or why nothing could be found out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// Version of the code that evaluated it; 0 in records of earlier versions.
    #[serde(default)]
    pub version: u32,
    /// Whether the same table may give another outcome later.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fleeting: bool,
}

/// `rows: at least 100: 12 rows`.
impl fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.found)
    }
}

//! Parameters of `split`: the parts with their sizes, and what stays together.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of `split`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct SplitParams {
    /// The parts by name, each an output port: a share (`0.9`), a number of rows (`200`), or `rest`. Numbers of rows
    /// are taken first; shares are of the rows that are left and add up to 1 unless a part is `rest`. With numbers
    /// alone, the other rows are in no part.
    pub parts: BTreeMap<String, PartSize>,
    /// What stays together.
    #[serde(default)]
    pub by: By,
}

/// The size of a part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PartSize {
    /// So many rows.
    Rows(u64),
    /// That share of the rows, above 0 and at most 1.
    Share(f64),
    /// `rest`: whatever no other part takes.
    Rest(Rest),
}

/// The word `rest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rest {
    /// Whatever no other part takes.
    Rest,
}

/// What stays together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// Nothing: each row goes where its id and the seed put it, whatever other rows there are, so rows added later
    /// leave the others where they were (with shares; a number of rows is filled up by rank).
    #[default]
    Row,
    /// Rows with the same value in that column.
    Group(String),
    /// Rows that share a document: no evidence document or title (for chunks and hits: no document) is in two parts.
    /// Linked rows go to the part that lacks most rows, largest links first; rows without evidence fill the gaps.
    Document,
}

/// The share that a part is given, if it is given one.
pub(super) fn share_of(size: PartSize) -> Option<f64> {
    match size {
        PartSize::Share(share) => Some(share),
        _ => None,
    }
}

//! Parameters of `split`: the parts with their sizes, and the unit that stays together.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Parameters of `split`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct SplitParams {
    /// Parts by name, each an output port: a share, written with a decimal point (`0.9`; `1.0` is all rows), a number of
    /// rows (`200`), or `rest`. Row counts are filled first; shares refer to the remaining rows and must sum to 1 unless a part is `rest`. If all sizes are
    /// row counts, the remaining rows are in no part.
    pub parts: BTreeMap<String, PartSize>,
    /// Rows that must stay together.
    #[serde(default)]
    pub by: By,
}

/// The size of a part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PartSize {
    /// A number of rows.
    Rows(u64),
    /// A share of the rows, above 0 and at most 1.
    Share(f64),
    /// `rest`: all rows that no other part takes.
    Rest(Rest),
}

/// The word `rest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Rest {
    /// All rows that no other part takes.
    Rest,
}

/// Rows that must stay together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum By {
    /// None: only the row's id and the seed decide its part. With shares, rows added later do not move existing rows;
    /// row counts are filled by rank.
    #[default]
    Row,
    /// Rows with the same value in this column.
    Group(String),
    /// Rows that share a document: no evidence document or title (for chunks and hits: no document) appears in two
    /// parts. Linked rows go to the part that lacks the most rows, largest groups first; rows without evidence fill
    /// the gaps.
    Document,
}

/// Returns the share of a part, if its size is a share.
pub(super) fn share_of(size: PartSize) -> Option<f64> {
    match size {
        PartSize::Share(share) => Some(share),
        _ => None,
    }
}

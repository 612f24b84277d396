//! How many rows of its sources a run reads: `--limit 100`, `--limit questions=5`.

use crate::node_id;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// How many rows sources give (at most).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct RowLimit {
    /// Rows of every source that is not named.
    pub every: Option<u64>,
    /// Rows of sources by node; the name of a node with a matrix means all its variants.
    pub nodes: BTreeMap<String, u64>,
}

/// As it stands in records of runs. Earlier versions knew the number alone.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Rows(u64),
    Parts {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        every: Option<u64>,
        #[serde(default)]
        nodes: BTreeMap<String, u64>,
    },
}

impl From<Written> for RowLimit {
    fn from(written: Written) -> Self {
        match written {
            Written::Rows(rows) => Self { every: Some(rows), nodes: BTreeMap::new() },
            Written::Parts { every, nodes } => Self { every, nodes },
        }
    }
}

impl From<RowLimit> for Written {
    fn from(limit: RowLimit) -> Self {
        match limit.every {
            Some(rows) if limit.nodes.is_empty() => Self::Rows(rows),
            every => Self::Parts { every, nodes: limit.nodes },
        }
    }
}

impl RowLimit {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.every.is_none() && self.nodes.is_empty()
    }

    /// Adds a value of `--limit`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        // From the end: the id of a node with a matrix contains `=`.
        let (name, rows) = match text.rsplit_once('=') {
            Some((name, rows)) => (Some(name.trim()), rows),
            None => (None, text),
        };
        let rows: u64 = rows.trim().parse().map_err(|_| format!("`{}` is no number of rows", rows.trim()))?;
        if rows == 0 {
            return Err("must be at least 1".to_owned());
        }
        match name {
            None => self.every = Some(rows),
            Some("") => return Err("names no node".to_owned()),
            Some(name) => {
                self.nodes.insert(name.to_owned(), rows);
            }
        }
        Ok(())
    }

    /// Returns the rows that a source gives (at most).
    pub fn of(&self, node: &str) -> Option<u64> {
        // The limit of one variant counts before that of all.
        self.nodes.get(node).or_else(|| self.nodes.get(node_id::name(node))).copied().or(self.every)
    }
}

/// Formats the options as they would be given; empty if nothing is limited.
impl fmt::Display for RowLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self.every.iter().map(|rows| format!("--limit {rows}")).collect();
        parts.extend(self.nodes.iter().map(|(node, rows)| format!("--limit {node}={rows}")));
        f.write_str(&parts.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_limited_by_name_or_all() {
        let mut limit = RowLimit::default();
        assert!(limit.is_none() && limit.of("a").is_none());
        for text in ["10", "questions=5", "docs@lang=de=2"] {
            limit.add(text).unwrap();
        }
        assert_eq!((limit.of("docs@lang=de"), limit.of("docs@lang=fr")), (Some(2), Some(10)));
        limit.nodes.remove("docs@lang=de");
        assert_eq!((limit.of("questions"), limit.of("questions@k=1"), limit.of("other")), (Some(5), Some(5), Some(10)));
        assert_eq!(limit.to_string(), "--limit 10 --limit questions=5");
        for wrong in ["", "many", "0", "a=0", "=3", "-1"] {
            assert!(limit.clone().add(wrong).is_err(), "{wrong}");
        }
        let text = serde_json::to_string(&limit).unwrap();
        assert_eq!(serde_json::from_str::<RowLimit>(&text).unwrap(), limit);
        let old: RowLimit = serde_json::from_str("7").unwrap();
        assert_eq!((old.every, serde_json::to_string(&old).unwrap()), (Some(7), "7".to_owned()));
    }
}

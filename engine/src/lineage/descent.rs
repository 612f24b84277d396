//! Traces rows forward: from one row to all rows derived from it.

use std::collections::{BTreeMap, BTreeSet};

use searchmill_schemas::{RecordKind, repeated_id};
use serde::Serialize;

use super::closure::Closure;
use super::lookup::{RowPlace, rows_with, table};
use crate::error::OperatorError;
use crate::node_id::NodeId;
use crate::operator::RowsInput;
use crate::store::{ArtifactId, Store};

/// Rows of one table that derive from the requested row.
#[derive(Clone, Debug, Serialize)]
pub struct Descendants {
    /// The table.
    pub artifact: ArtifactId,
    /// Its record kind.
    pub kind: String,
    /// The node that produced it.
    pub node: NodeId,
    /// Its output port.
    pub port: String,
    /// Ids of the rows, in table order.
    pub ids: Vec<String>,
    /// Total number of rows in the table.
    pub of: u64,
}

/// Ids by record kind.
type Ids = BTreeMap<RecordKind, BTreeSet<String>>;

/// Returns all rows that derive from the row with that id in `start`, table by table. `graph` holds the results to
/// search, in topological order.
///
/// # Errors
/// Fails if `start` has no such row or a table cannot be read.
pub fn descent(store: &Store, graph: &Closure, start: ArtifactId, id: &str) -> Result<Vec<Descendants>, OperatorError> {
    let wanted = BTreeSet::from([id.to_owned()]);
    let kind = match table(store, &start) {
        Some(first) if !rows_with(&first, &["id"], &wanted)?.is_empty() => first.kind,
        _ => return Err(OperatorError::pipeline(format!("no row has the id `{id}` there"))),
    };
    // The known rows behind each artifact that derives from the start.
    let mut behind: BTreeMap<ArtifactId, Ids> = BTreeMap::from([(start, Ids::from([(kind, wanted)]))]);
    let mut found = Vec::new();
    for step in &graph.steps {
        // The known rows behind its inputs: their ids, and those that they have once they are gathered.
        let (mut known, mut gathered) = (Ids::new(), Ids::new());
        for input in &step.inputs {
            for (kind, ids) in behind.get(&input.id).into_iter().flatten() {
                known.entry(*kind).or_default().extend(ids.iter().cloned());
                let renamed = ids.iter().map(|id| searchmill_schemas::gathered(id, &input.port));
                gathered.entry(*kind).or_default().extend(renamed);
            }
        }
        if known.is_empty() {
            continue;
        }
        for (port, output) in &step.result.outputs {
            let mut ids = known.clone();
            if let Some(table) = table(store, &output.id) {
                let renamed = graph.renames(step, table.kind);
                if renamed {
                    // An equal id is another row's.
                    ids.remove(&table.kind);
                }
                let rows = derived_rows(&table, &known, renamed.then_some(&gathered))?;
                if rows.is_empty() {
                    continue;
                }
                ids.entry(table.kind).or_default().extend(rows.iter().cloned());
                let (kind, node) = (table.kind.name().to_owned(), step.name().into());
                let (artifact, of) = (output.id, table.rows);
                found.push(Descendants { artifact, kind, node, port: port.clone(), ids: rows, of });
            }
            // A node that changes nothing produces its own input.
            let all = behind.entry(output.id).or_default();
            for (kind, ids) in ids {
                all.entry(kind).or_default().extend(ids);
            }
        }
    }
    Ok(found)
}

/// Returns the ids of rows that continue a known row (same id, repeats included; in a node that gathers, one of
/// `gathered`) or name one as their parent.
fn derived_rows(table: &RowsInput, known: &Ids, gathered: Option<&Ids>) -> Result<Vec<String>, OperatorError> {
    let mut places = Vec::new();
    if let Some(same) = gathered.unwrap_or(known).get(&table.kind) {
        places.extend(rows_with(table, &["id"], same)?);
        if gathered.is_none() {
            places.extend(repeats(table, same)?);
        }
    }
    for column in table.kind.parents() {
        let ids: BTreeSet<String> = match column.kind {
            Some(kind) => known.get(&kind).cloned().unwrap_or_default(),
            None => known.values().flatten().cloned().collect(),
        };
        places.extend(rows_with(table, column.path, &ids)?);
    }
    let mut rows: BTreeMap<u64, String> = BTreeMap::new();
    for place in places {
        rows.entry(place.row).or_insert_with(|| place.own_id().to_owned());
    }
    Ok(rows.into_values().collect())
}

/// Returns rows that repeat a known row: their ids are the known id, `~` and a number from 1.
fn repeats(table: &RowsInput, known: &BTreeSet<String>) -> Result<Vec<RowPlace>, OperatorError> {
    let mut found = Vec::new();
    let mut candidates: BTreeSet<String> = known.iter().map(|id| format!("{id}~1")).collect();
    while !candidates.is_empty() {
        let places = rows_with(table, &["id"], &candidates)?;
        candidates = places.iter().filter_map(|place| next_repeat(&place.matched)).collect();
        found.extend(places);
    }
    Ok(found)
}

fn next_repeat(id: &str) -> Option<String> {
    let first = repeated_id(id)?;
    let number: u64 = id.get(first.len() + 1..)?.parse().ok()?;
    Some(format!("{first}~{}", number + 1))
}

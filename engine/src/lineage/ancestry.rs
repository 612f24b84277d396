//! Traces one row back to its sources: through the nodes that passed it on, to the rows that it names as parents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrow::array::RecordBatch;
use indexmap::IndexMap;
use searchmill_schemas::{RecordKind, gathered_id, repeated_id};
use serde::Serialize;

use super::catalog::Port;
use super::closure::{Closure, Step};
use super::lookup::{RowPlace, located, read_row, rows_with, table};
use crate::error::OperatorError;
use crate::fingerprint::NodeKey;
use crate::operator::RowsInput;
use crate::store::{ArtifactId, Store};

/// A row and everything it derives from.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ancestry {
    /// Rows: the requested one, then its parents, each once.
    pub rows: Vec<Ancestor>,
}

/// A row with all its locations.
#[derive(Clone, Debug, Serialize)]
pub struct Ancestor {
    /// Its record kind.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// The tables that contain it, from the last one back to the first.
    pub places: Vec<Place>,
    /// The rows that it names as parents.
    pub parents: Vec<ParentLink>,
}

/// The location of a row in a table.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The table.
    pub artifact: ArtifactId,
    /// Row number, from 0.
    pub row: u64,
    /// Id of the row in this table.
    pub id: String,
    /// The node that produced the table.
    pub node: Option<String>,
    /// Its output port.
    pub port: Option<String>,
    /// Key of the node's result.
    pub key: Option<NodeKey>,
    /// Columns that differ from the same row in the previous table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
}

/// A parent named by a row.
#[derive(Clone, Debug, Serialize)]
pub struct ParentLink {
    /// The column that names the parent.
    pub column: String,
    /// Id of the parent.
    pub id: String,
    /// Positions in nested lists, outermost first, from 0: `[3, 0]` is the first observation of turn 3.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<Vec<usize>>,
    /// Index among the rows; `None` if no upstream table contains it.
    pub row: Option<usize>,
    /// Why it was not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// An artifact as the output of one result: several nodes may have passed on equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    artifact: ArtifactId,
    maker: Option<Port>,
}

struct Walk<'a> {
    store: &'a Store,
    closure: &'a Closure,
    by_key: BTreeMap<NodeKey, &'a Step>,
    tables: BTreeMap<ArtifactId, Option<RowsInput>>,
    found: Ancestry,
    known: BTreeMap<(ArtifactId, u64), usize>,
}

/// Returns the row with that id in `start` (for a folder: in the nearest upstream table), and all its ancestors.
///
/// # Errors
/// Fails if the row does not exist or a table cannot be read.
pub fn ancestry(
    store: &Store,
    closure: &Closure,
    start: (ArtifactId, Option<NodeKey>),
    id: &str,
) -> Result<Ancestry, OperatorError> {
    let by_key = closure.steps.iter().map(|step| (step.key, step)).collect();
    let (tables, known) = (BTreeMap::new(), BTreeMap::new());
    let mut walk = Walk { store, closure, by_key, tables, found: Ancestry::default(), known };
    let start = walk.start(start.0, start.1);
    let wanted = BTreeSet::from([id.to_owned()]);
    let mut found = match walk.table(&start.artifact) {
        Some(table) => in_table(&start, &table, &wanted)?,
        None => walk.behind(&start, None, &wanted)?,
    };
    let Some((at, place)) = found.remove(id) else {
        return Err(OperatorError::pipeline(format!("no row has the id `{id}` there")));
    };
    let mut pending = VecDeque::from([walk.add(at, place)?]);
    while let Some(row) = pending.pop_front() {
        pending.extend(walk.parents(row)?);
    }
    Ok(walk.found)
}

type Found = BTreeMap<String, (At, RowPlace)>;

impl<'a> Walk<'a> {
    /// Returns the artifact as the output of that result, or of the last result of the closure that has it.
    fn start(&self, artifact: ArtifactId, key: Option<NodeKey>) -> At {
        // Steps stand in topological order: of those that have it, the last one is the nearest.
        let meant = key.and_then(|key| self.by_key.get(&key).copied());
        for step in meant.into_iter().chain(self.closure.steps.iter().rev()) {
            for (port, output) in &step.result.outputs {
                if output.id == artifact {
                    return At { artifact, maker: Some(Port { key: step.key, port: port.clone() }) };
                }
            }
        }
        At { artifact, maker: None }
    }

    fn maker(&self, at: &At) -> Option<&'a Step> {
        self.by_key.get(&at.maker.as_ref()?.key).copied()
    }

    /// Returns the inputs of the result that produced an artifact, with their ports.
    fn inputs(&self, at: &At) -> Vec<(&'a str, At)> {
        let inputs = self.maker(at).into_iter().flat_map(|step| &step.inputs);
        inputs.map(|input| (input.port.as_str(), At { artifact: input.id, maker: input.maker.clone() })).collect()
    }

    /// Returns the table of an artifact; `None` for folders and missing artifacts.
    fn table(&mut self, id: &ArtifactId) -> Option<RowsInput> {
        self.tables.entry(*id).or_insert_with(|| table(self.store, id)).clone()
    }

    /// Returns rows of a kind from upstream tables, searching the nearest table first.
    fn behind(&mut self, at: &At, kind: Option<RecordKind>, wanted: &BTreeSet<String>) -> Result<Found, OperatorError> {
        let mut found = Found::new();
        let mut missing = wanted.clone();
        let mut seen = BTreeSet::from([at.clone()]);
        let mut pending = VecDeque::from([at.clone()]);
        while !missing.is_empty()
            && let Some(at) = pending.pop_front()
        {
            for (_, input) in self.inputs(&at) {
                if !seen.insert(input.clone()) {
                    continue;
                }
                pending.push_back(input.clone());
                let Some(table) = self.table(&input.artifact) else { continue };
                if kind.is_none_or(|kind| kind == table.kind) {
                    found.extend(in_table(&input, &table, &missing)?);
                    missing.retain(|id| !found.contains_key(id));
                }
            }
        }
        Ok(found)
    }

    /// Adds a row with all its earlier locations. Returns its index among the rows.
    fn add(&mut self, at: At, place: RowPlace) -> Result<usize, OperatorError> {
        if let Some(known) = self.known.get(&(at.artifact, place.row)) {
            return Ok(*known);
        }
        let kind = self.table(&at.artifact).map_or(RecordKind::Table, |table| table.kind);
        let id = place.own_id().to_owned();
        let number = self.found.rows.len();
        self.found.rows.push(Ancestor { kind: kind.name().to_owned(), id, places: Vec::new(), parents: Vec::new() });
        let mut next = Some((at, place));
        let mut after: Option<RecordBatch> = None;
        let mut seen = BTreeSet::new();
        while let Some((at, place)) = next.take() {
            // Forged records could form a cycle.
            if !seen.insert((at.clone(), place.row)) {
                break;
            }
            // By each of its locations: another row may name it by an id that it had earlier.
            self.known.entry((at.artifact, place.row)).or_insert(number);
            let row = match self.table(&at.artifact) {
                Some(table) => read_row(&table, place.row)?,
                None => None,
            };
            if let (Some(after), Some(row), Some(last)) = (&after, &row, self.found.rows[number].places.last_mut()) {
                last.changed = differing(after, row);
            }
            next = self.before(&at, kind, place.own_id())?;
            let location = Place {
                artifact: at.artifact,
                row: place.row,
                id: place.own_id().to_owned(),
                node: self.maker(&at).map(|step| step.name().to_owned()),
                key: at.maker.as_ref().map(|maker| maker.key),
                port: at.maker.map(|maker| maker.port),
                changed: Vec::new(),
            };
            self.found.rows[number].places.push(location);
            after = row;
        }
        Ok(number)
    }

    /// Returns the same row in an input of this table's node: by its id, or by its id before it was repeated. In a node
    /// that gathers: by its id before it was gathered from that input.
    fn before(&mut self, at: &At, kind: RecordKind, id: &str) -> Result<Option<(At, RowPlace)>, OperatorError> {
        let inputs = self.inputs(at);
        let mut looks: Vec<(&str, &At)> = Vec::new();
        if self.maker(at).is_some_and(|step| self.closure.renames(step, kind)) {
            looks.extend(inputs.iter().filter_map(|(port, input)| Some((gathered_id(id, port)?, input))));
        } else {
            // The same id in all inputs first: an id that ends like a repeated one may be a source's own.
            for id in [Some(id), repeated_id(id)].into_iter().flatten() {
                looks.extend(inputs.iter().map(|(_, input)| (id, input)));
            }
        }
        for (id, input) in looks {
            if let Some(table) = self.table(&input.artifact)
                && table.kind == kind
                && let Some((_, found)) = in_table(input, &table, &BTreeSet::from([id.to_owned()]))?.pop_first()
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Adds the parents of a row, as named where it was produced. Returns those that are new.
    fn parents(&mut self, number: usize) -> Result<Vec<usize>, OperatorError> {
        let Some(place) = self.found.rows[number].places.last().cloned() else { return Ok(Vec::new()) };
        let Some(table) = self.table(&place.artifact) else { return Ok(Vec::new()) };
        let Some(row) = read_row(&table, place.row)? else { return Ok(Vec::new()) };
        let maker = place.key.zip(place.port).map(|(key, port)| Port { key, port });
        let standing = At { artifact: place.artifact, maker };
        let mut fresh = Vec::new();
        for column in table.kind.parents() {
            let mut ids: IndexMap<&str, Vec<Vec<usize>>> = IndexMap::new();
            for (at, id) in located(&row, 0, column.path) {
                let positions = ids.entry(id).or_default();
                if !at.is_empty() {
                    positions.push(at);
                }
            }
            let wanted = ids.keys().map(|id| (*id).to_owned()).collect();
            let mut found = self.behind(&standing, column.kind, &wanted)?;
            for (id, at) in ids {
                let before = self.found.rows.len();
                let (row, missing) = match found.remove(id) {
                    Some((at, place)) => (Some(self.add(at, place)?), None),
                    None => (None, Some(self.why_missing(&standing, column.kind))),
                };
                fresh.extend(row.filter(|row| *row >= before));
                let link = ParentLink { column: column.path.join("."), id: id.to_owned(), at, row, missing };
                self.found.rows[number].parents.push(link);
            }
        }
        Ok(fresh)
    }

    fn why_missing(&self, at: &At, kind: Option<RecordKind>) -> String {
        let Some(step) = self.maker(at) else { return "no record in the store names the inputs of this table".into() };
        for input in self.closure.steps.iter().flat_map(|step| &step.inputs) {
            if !input.artifact_type.ends_with(" rows") || self.store.artifact(&input.id).is_some() {
                continue;
            }
            let short = input.id.digest().short();
            let maker = input.maker.as_ref().and_then(|maker| self.closure.step(&maker.key));
            return match maker.and_then(|maker| maker.collected.as_ref()) {
                Some(collected) => format!("its upstream artifact {short} was {collected}"),
                None => format!("its upstream artifact {short} is gone from the store"),
            };
        }
        match kind {
            Some(kind) => format!("no {kind} table upstream of `{}` contains it", step.name()),
            None => format!("no table upstream of `{}` contains it", step.name()),
        }
    }
}

/// Returns the first row of each id in a table.
fn in_table(at: &At, table: &RowsInput, wanted: &BTreeSet<String>) -> Result<Found, OperatorError> {
    let mut found = Found::new();
    for place in rows_with(table, &["id"], wanted)? {
        found.entry(place.matched.clone()).or_insert((at.clone(), place));
    }
    Ok(found)
}

/// Returns the names of columns of both rows whose values differ.
fn differing(after: &RecordBatch, before: &RecordBatch) -> Vec<String> {
    let mut names = Vec::new();
    for (field, column) in after.schema().fields().iter().zip(after.columns()) {
        let earlier = before.column_by_name(field.name());
        if earlier.is_some_and(|earlier| column.to_data() != earlier.to_data()) {
            names.push(field.name().clone());
        }
    }
    names
}

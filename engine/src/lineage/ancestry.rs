//! Walks one row back to its sources: through the nodes that passed it on, to the rows that it names as parents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use arrow::array::RecordBatch;
use indexmap::IndexMap;
use searchmill_schemas::{RecordKind, repeated_id};
use serde::Serialize;

use super::catalog::Port;
use super::closure::{Closure, Step};
use super::lookup::{RowPlace, located, read_row, rows_with};
use crate::fingerprint::NodeKey;
use crate::operator::{InputArtifact, OperatorError, RowsInput};
use crate::store::{ArtifactId, Store};

/// One row and all it came from.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ancestry {
    /// Rows: the one asked for, then its parents, each once.
    pub rows: Vec<Ancestor>,
}

/// A row, wherever it stands.
#[derive(Clone, Debug, Serialize)]
pub struct Ancestor {
    /// Its record kind.
    pub kind: String,
    /// Its id.
    pub id: String,
    /// Where it stands, from the last table that holds it back to the first.
    pub places: Vec<Place>,
    /// The rows that it names.
    pub parents: Vec<ParentLink>,
}

/// A row in a table.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// The table.
    pub artifact: ArtifactId,
    /// Number of the row there, from 0.
    pub row: u64,
    /// Its id there.
    pub id: String,
    /// The node that made the table.
    pub node: Option<String>,
    /// Its output port.
    pub port: Option<String>,
    /// Its key.
    pub key: Option<NodeKey>,
    /// Columns in which it differs from the same row of the table before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
}

/// A parent that a row names.
#[derive(Clone, Debug, Serialize)]
pub struct ParentLink {
    /// The column that names it.
    pub column: String,
    /// Its id.
    pub id: String,
    /// Where it is named in lists, outermost first, from 0: `[3, 0]` is the first observation of turn 3.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<Vec<usize>>,
    /// Its place among the rows; `None` when no table behind this one has it.
    pub row: Option<usize>,
    /// Why it was not found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// An artifact as one result gave it: equal bytes may have been passed on by several nodes.
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

/// The row of that id in `start` (or, where that is a folder, in the nearest table behind it), and all its ancestors.
///
/// # Errors
/// When there is no such row, or a table cannot be read.
pub fn ancestry(
    store: &Store,
    closure: &Closure,
    start: (ArtifactId, Option<NodeKey>),
    id: &str,
) -> Result<Ancestry, OperatorError> {
    let mut walk = Walk::new(store, closure);
    let start = walk.start(start.0, start.1);
    let wanted = BTreeSet::from([id.to_owned()]);
    let mut found = match walk.table(&start.artifact) {
        Some(table) => in_table(&start, &table, &wanted)?,
        None => walk.behind(&start, None, &wanted)?,
    };
    let (at, place) = found.remove(id).ok_or_else(|| OperatorError::data(format!("no row has the id `{id}` there")))?;
    let mut pending = VecDeque::from([walk.add(at, place)?]);
    while let Some(row) = pending.pop_front() {
        pending.extend(walk.parents(row)?);
    }
    Ok(walk.found)
}

type Found = BTreeMap<String, (At, RowPlace)>;

impl<'a> Walk<'a> {
    fn new(store: &'a Store, closure: &'a Closure) -> Self {
        let by_key = closure.steps.iter().map(|step| (step.key, step)).collect();
        let (tables, known) = (BTreeMap::new(), BTreeMap::new());
        Self { store, closure, by_key, tables, found: Ancestry::default(), known }
    }

    /// The artifact as that result gave it, or as the last one of the closure did that has it.
    fn start(&self, artifact: ArtifactId, key: Option<NodeKey>) -> At {
        let port = |step: &Step| {
            let (port, _) = step.result.outputs.iter().find(|(_, output)| output.id == artifact)?;
            Some(Port { key: step.key, port: port.clone() })
        };
        let meant = key.and_then(|key| self.by_key.get(&key)).and_then(|step| port(step));
        let maker = meant.or_else(|| self.closure.steps.iter().rev().find_map(port));
        At { artifact, maker }
    }

    fn maker(&self, at: &At) -> Option<&'a Step> {
        self.by_key.get(&at.maker.as_ref()?.key).copied()
    }

    /// What the result took that gave this.
    fn inputs(&self, at: &At) -> Vec<At> {
        let inputs = self.maker(at).map(|step| step.inputs.as_slice()).unwrap_or_default();
        inputs.iter().map(|input| At { artifact: input.id, maker: input.maker.clone() }).collect()
    }

    /// The table of an artifact; `None` for folders and for what is gone.
    fn table(&mut self, id: &ArtifactId) -> Option<RowsInput> {
        let open = || match self.store.open_input(id) {
            Ok(InputArtifact::Rows(rows)) => Some(rows),
            _ => None,
        };
        self.tables.entry(*id).or_insert_with(open).clone()
    }

    /// Rows of a kind in the tables behind an artifact, the nearest table first.
    fn behind(&mut self, at: &At, kind: Option<RecordKind>, wanted: &BTreeSet<String>) -> Result<Found, OperatorError> {
        let mut found = Found::new();
        let mut missing = wanted.clone();
        let mut seen = BTreeSet::from([at.clone()]);
        let mut pending = VecDeque::from([at.clone()]);
        while let Some(at) = pending.pop_front().filter(|_| !missing.is_empty()) {
            for input in self.inputs(&at) {
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

    /// Takes a row in: itself, and where it stood before. Gives its place among the rows.
    fn add(&mut self, at: At, place: RowPlace) -> Result<usize, OperatorError> {
        if let Some(known) = self.known.get(&(at.artifact, place.row)) {
            return Ok(*known);
        }
        let kind = self.table(&at.artifact).map_or(RecordKind::Table, |table| table.kind);
        let id = place.id.clone().unwrap_or_else(|| place.matched.clone());
        let number = self.found.rows.len();
        self.found.rows.push(Ancestor { kind: kind.name().to_owned(), id, places: Vec::new(), parents: Vec::new() });
        let mut next = Some((at, place));
        let mut after: Option<RecordBatch> = None;
        let mut seen = BTreeSet::new();
        // Records that were forged could go round in a circle.
        while let Some((at, place)) = next.take().filter(|(at, place)| seen.insert((at.clone(), place.row))) {
            self.known.entry((at.artifact, place.row)).or_insert(number);
            let row = self.table(&at.artifact).map(|table| read_row(&table, place.row)).transpose()?.flatten();
            if let (Some(after), Some(row), Some(last)) = (&after, &row, self.found.rows[number].places.last_mut()) {
                last.changed = differing(after, row);
            }
            let id = place.id.clone().unwrap_or_else(|| place.matched.clone());
            next = self.before(&at, kind, &id)?;
            let place = self.stands(at, &place, id);
            self.found.rows[number].places.push(place);
            after = row;
        }
        Ok(number)
    }

    fn stands(&self, at: At, place: &RowPlace, id: String) -> Place {
        Place {
            artifact: at.artifact,
            row: place.row,
            id,
            node: self.maker(&at).map(|step| step.name().to_owned()),
            key: at.maker.as_ref().map(|maker| maker.key),
            port: at.maker.map(|maker| maker.port),
            changed: Vec::new(),
        }
    }

    /// The same row in a table that the maker of this one took: by its id, or by the id that it had before it was
    /// repeated.
    fn before(&mut self, at: &At, kind: RecordKind, id: &str) -> Result<Option<(At, RowPlace)>, OperatorError> {
        let inputs = self.inputs(at);
        let ids: Vec<String> = [Some(id), repeated_id(id)].into_iter().flatten().map(str::to_owned).collect();
        for id in ids {
            let wanted = BTreeSet::from([id]);
            for input in &inputs {
                let Some(table) = self.table(&input.artifact).filter(|table| table.kind == kind) else { continue };
                if let Some((_, found)) = in_table(input, &table, &wanted)?.pop_first() {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// Finds the parents of a row where it was made; gives those that were not known before.
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
                ids.entry(id).or_default().extend((!at.is_empty()).then_some(at));
            }
            let wanted = ids.keys().map(|id| (*id).to_owned()).collect();
            let mut found = self.behind(&standing, column.kind, &wanted)?;
            for (id, at) in ids {
                let before = self.found.rows.len();
                let row = found.remove(id).map(|(at, place)| self.add(at, place)).transpose()?;
                fresh.extend(row.filter(|row| *row >= before));
                let missing = row.is_none().then(|| self.why_missing(&standing, column.kind));
                let link = ParentLink { column: column.path.join("."), id: id.to_owned(), at, row, missing };
                self.found.rows[number].parents.push(link);
            }
        }
        Ok(fresh)
    }

    fn why_missing(&self, at: &At, kind: Option<RecordKind>) -> String {
        let kind = kind.map_or_else(String::new, |kind| format!("{kind} "));
        let Some(step) = self.maker(at) else {
            return "no record in the store says what this table was made from".to_owned();
        };
        let gone = self.closure.steps.iter().flat_map(|step| &step.inputs).find(|input| {
            let is_table = input.artifact_type.ends_with(" rows");
            is_table && self.store.artifact(&input.id).is_none()
        });
        match gone {
            Some(input) => {
                let maker = input.maker.as_ref().and_then(|maker| self.closure.step(&maker.key));
                let gone = maker.and_then(|maker| maker.collected.as_ref());
                let gone = gone.map_or_else(|| "is gone from the store".to_owned(), |gone| format!("was {gone}"));
                format!("the artifact {} behind it {gone}", input.id.digest().short())
            }
            None => format!("no {kind}table behind `{}` has it", step.name()),
        }
    }
}

/// The first row of each id in a table.
fn in_table(at: &At, table: &RowsInput, wanted: &BTreeSet<String>) -> Result<Found, OperatorError> {
    let mut found = Found::new();
    for place in rows_with(table, &["id"], wanted)? {
        found.entry(place.matched.clone()).or_insert((at.clone(), place));
    }
    Ok(found)
}

/// Names of the columns of both rows whose values differ.
fn differing(after: &RecordBatch, before: &RecordBatch) -> Vec<String> {
    let schema = after.schema();
    let differs = |name: &&String| match (after.column_by_name(name), before.column_by_name(name)) {
        (Some(one), Some(other)) => one.to_data() != other.to_data(),
        _ => false,
    };
    schema.fields().iter().map(|field| field.name()).filter(differs).cloned().collect()
}

//! Traces an artifact or row to its sources, and a source to everything made from it.

use std::collections::BTreeSet;

use super::failure::Failure;
use super::open::Session;
use crate::error::{Blame, OperatorError};
use crate::fingerprint::NodeKey;
use crate::lineage::{
    Ancestry, Catalog, Closure, Descendants, Graph, GraphStep, Roots, Step, Target, ancestry, descent, downstream,
    graph, resolve, upstream,
};
use crate::store::{ArtifactId, Store, StoreUse};

/// The direction of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the sources.
    Up,
    /// To the results made from it.
    Down,
}

/// Results connected by their inputs and outputs, and access to their rows.
pub struct Trace {
    /// The results.
    pub graph: Graph,
    /// The direction of the trace.
    pub direction: Direction,
    store: Store,
    closure: Closure,
    roots: Roots,
    /// Prevents garbage collection during the trace. `None` for a read-only store, which cannot be collected either.
    _in_use: Option<StoreUse>,
}

/// What results were made from, and whether they are still what was recorded. [`Session::lineage`] returns it.
pub struct LineageView<'s> {
    pub(super) session: &'s Session,
}

impl Session {
    /// Returns traces, audits and attestations of results.
    pub fn lineage(&self) -> LineageView<'_> {
        LineageView { session: self }
    }
}

impl LineageView<'_> {
    /// Traces a run, a node, a port, what a loop hands on, an artifact, a result or a file. Without a direction, files are
    /// traced down, everything else up.
    ///
    /// # Errors
    /// Fails if the name is unknown.
    pub fn trace(&self, what: &str, run: Option<&str>, direction: Option<Direction>) -> Result<Trace, Failure> {
        let store = self.session.existing()?.clone();
        // Before anything is read, so that no collection comes in between. A read-only store cannot be entered.
        let in_use = store.enter().ok();
        let catalog = Catalog::read(&store);
        let target = resolve(&store, &catalog, what, run, self.session.directory())?;
        let roots = Roots::of(&store, &catalog, &target);
        let by_target = if matches!(target, Target::Source { .. }) { Direction::Down } else { Direction::Up };
        let direction = direction.unwrap_or(by_target);
        let mut closure = match direction {
            Direction::Up => upstream(&catalog, &roots),
            Direction::Down => downstream(&catalog, &roots),
        };
        let gatherers = self.session.registry().iter().filter(|entry| entry.gathers);
        closure.gatherers = gatherers.map(|entry| entry.name.to_owned()).collect();
        let graph = graph(&store, &closure, &roots.artifacts);
        Ok(Trace { graph, direction, store, closure, roots, _in_use: in_use })
    }
}

impl Trace {
    /// Returns the rows that one row was made from.
    ///
    /// # Errors
    /// Fails if no table of the trace's root has the row, or if several may have it.
    pub fn ancestry(&self, row: &str) -> Result<Ancestry, Failure> {
        let (mut artifacts, key) = (self.roots.artifacts.iter(), self.roots.keys.first().copied());
        let start = match (artifacts.next(), artifacts.next()) {
            (Some(id), None) => (*id, key),
            (None, _) => return Err(Failure::usage("`--row` needs a table: name a node or an artifact")),
            _ => {
                // Of the outputs of one node, the first that has the row counts.
                if let (Some(key), 1) = (key, self.roots.keys.len())
                    && let Some(step) = self.closure.step(&key)
                {
                    return self.of_any_output(step, row);
                }
                let failure = Failure::usage(format!("several tables may contain the row `{row}`"));
                return Err(failure.with_help("name one output: NODE.PORT"));
            }
        };
        ancestry(&self.store, &self.closure, start, row).map_err(|error| match error.blame {
            Blame::Pipeline => Failure::usage(error.message),
            _ => error.into(),
        })
    }

    /// Returns the rows made from one row, by table.
    ///
    /// # Errors
    /// Fails if no table of the trace's root has the row.
    pub fn descent(&self, row: &str) -> Result<Vec<Descendants>, Failure> {
        let mut tables: Vec<ArtifactId> = self.roots.artifacts.iter().copied().collect();
        // A source file stands for the tables read from it.
        if tables.is_empty() {
            for step in &self.closure.steps {
                if self.roots.keys.contains(&step.key) {
                    tables.extend(step.result.outputs.values().map(|output| output.id));
                }
            }
        }
        for table in tables {
            if let Some(found) = if_found(descent(&self.store, &self.closure, table, row))? {
                return Ok(found);
            }
        }
        let failure = Failure::usage(format!("no table contains a row `{row}`"));
        Err(failure.with_help("name the table that contains it: NODE.PORT"))
    }

    /// Returns the results that the rows passed through, and the results that produced their inputs.
    pub fn involved(&self, found: &Ancestry) -> Vec<&GraphStep> {
        let passed: BTreeSet<NodeKey> =
            found.rows.iter().flat_map(|row| &row.places).filter_map(|place| place.key).collect();
        let mut keys = passed.clone();
        for step in &self.graph.steps {
            if passed.contains(&step.key) {
                keys.extend(step.inputs.iter().filter_map(|input| input.made_by));
            }
        }
        self.graph.steps.iter().filter(|step| keys.contains(&step.key)).collect()
    }

    /// Traces the row in the first output of the node that has it.
    fn of_any_output(&self, step: &Step, row: &str) -> Result<Ancestry, Failure> {
        for output in step.result.outputs.values() {
            if self.roots.artifacts.contains(&output.id)
                && let Some(found) = if_found(ancestry(&self.store, &self.closure, (output.id, Some(step.key)), row))?
            {
                return Ok(found);
            }
        }
        let ports: Vec<&str> = step.result.outputs.keys().map(String::as_str).collect();
        let failure = Failure::usage(format!("no output of `{}` has a row `{row}`", step.name()));
        Err(failure.with_help(format!("its outputs: {}", ports.join(", "))))
    }
}

/// Returns a table's answer; `None` if it has no such row.
///
/// # Errors
/// Fails if the table cannot be read.
fn if_found<T>(answer: Result<T, OperatorError>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // The user named a row that is not there; any other blame means that the table could not be searched.
        Err(error) if error.blame == Blame::Pipeline => Ok(None),
        Err(error) => Err(error.into()),
    }
}

//! The runs of the store: records, events, and differences between two runs.

use super::failure::Failure;
use super::open::Session;
use crate::lineage::{Catalog, RunDiff, diff_runs, run_of};
use crate::store::{NodeRun, RunRecord, Store};

/// A run of the store.
#[derive(Clone, Debug)]
pub struct PastRun {
    /// The run's record; `None` if it is damaged.
    pub record: Option<RunRecord>,
    /// Whether the run was imported with an archive.
    pub imported: bool,
}

impl Session {
    /// Returns the ids of all runs, oldest first.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn run_ids(&self) -> Result<Vec<String>, Failure> {
        Ok(self.look()?.run_ids())
    }

    /// Returns one run.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn past_run(&self, id: &str) -> Result<PastRun, Failure> {
        let store = self.look()?;
        Ok(PastRun { record: store.run(id), imported: store.is_imported(id) })
    }

    /// Returns the records of a run's nodes.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub fn run_nodes(&self, id: &str) -> Result<Vec<NodeRun>, Failure> {
        Ok(self.look()?.run_nodes(id))
    }

    /// Returns the events of a run, or of the newest one: one JSON object per line.
    ///
    /// # Errors
    /// Fails if there is no such run.
    pub fn run_events(&self, run: Option<&str>) -> Result<String, Failure> {
        let store = self.existing()?;
        Ok(store.run_events(&run_of(store, run.unwrap_or("latest"))?))
    }

    /// Compares two runs. If `one` is `previous`, it is the run of the same pipeline before `other`.
    ///
    /// # Errors
    /// Fails if a run does not exist or its record is damaged.
    pub fn diff(&self, one: &str, other: &str) -> Result<RunDiff, Failure> {
        let store = self.existing()?;
        let other = record(store, other)?;
        let one = match one {
            "previous" => previous(store, &other).ok_or_else(|| no_earlier(&other))?,
            named => record(store, named)?,
        };
        Ok(diff_runs(store, &Catalog::read(store), &one, &other))
    }
}

fn record(store: &Store, text: &str) -> Result<RunRecord, Failure> {
    let id = run_of(store, text)?;
    store.run(&id).ok_or_else(|| Failure::Other(format!("the record of run {id} cannot be read")))
}

/// Returns the newest run of the same pipeline before that one.
fn previous(store: &Store, run: &RunRecord) -> Option<RunRecord> {
    let ids = store.run_ids();
    let earlier = ids.iter().rev().filter(|id| **id < run.id && !store.is_imported(id));
    earlier.filter_map(|id| store.run(id)).find(|record| record.pipeline == run.pipeline)
}

fn no_earlier(run: &RunRecord) -> Failure {
    let message = format!("there is no earlier run of the pipeline `{}` than {}", run.pipeline, run.id);
    Failure::usage(message).with_help("`searchmill runs` lists runs; name the two to compare")
}

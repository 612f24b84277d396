//! The ledger: one folder a run, with what was asked, what every node came to, and the events.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::StoreError;
use super::layout::Store;
use super::manifest::OutputRecord;
use super::remote::Pending;
use crate::fingerprint::{NodeKey, Reason};

/// A run as it was asked for, and how it ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Sortable by time: `20261120-131502-1a2bf00d`.
    pub id: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The file it was read from.
    pub file: String,
    /// Params after overrides.
    pub params: Value,
    /// What was given with `--set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// What was given with `--params`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params_files: Vec<PathBuf>,
    /// What was given with `--limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Unix time (seconds) of the start.
    pub started: f64,
    /// Unix time (seconds) of the end; missing when it was killed.
    pub finished: Option<f64>,
    /// Exit code; missing when it was killed.
    pub exit: Option<i32>,
    /// Nodes in the plan.
    pub nodes: usize,
}

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeOutcome {
    /// Its result was known.
    Cached,
    /// It ran.
    Finished,
    /// It failed.
    Failed,
    /// Something before it failed, or the run was stopped.
    Skipped,
}

/// What a node of a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRun {
    /// Its id in the pipeline.
    pub node: String,
    /// Operator.
    pub operator: String,
    /// Its key, once it was known.
    pub key: Option<NodeKey>,
    /// How it ended.
    pub outcome: NodeOutcome,
    /// Why it ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
    /// Its outputs.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub outputs: IndexMap<String, OutputRecord>,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Seconds it took (0 when cached).
    pub seconds: f64,
}

/// Writes the record of one run.
#[derive(Debug)]
pub struct RunWriter {
    folder: PathBuf,
    nodes: BufWriter<File>,
    events: BufWriter<File>,
    store: Store,
}

impl Store {
    /// Starts the record of a run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn start_run(&self, record: &RunRecord) -> Result<RunWriter, StoreError> {
        let folder = self.runs_folder().join(&record.id);
        self.note_pending(&Pending::Run(record.id.clone()))?;
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        let nodes = BufWriter::new(append(&folder.join("nodes.jsonl"))?);
        let events = BufWriter::new(append(&folder.join("events.jsonl"))?);
        let writer = RunWriter { folder, nodes, events, store: self.clone() };
        writer.write_record(record)?;
        Ok(writer)
    }

    /// Ids of all runs, oldest first.
    #[must_use]
    pub fn run_ids(&self) -> Vec<String> {
        let entries = fs::read_dir(self.runs_folder()).into_iter().flatten().filter_map(Result::ok);
        let mut ids: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        ids.sort();
        ids
    }

    /// The record of a run.
    #[must_use]
    pub fn run(&self, id: &str) -> Option<RunRecord> {
        let text = fs::read(self.runs_folder().join(id).join("run.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// What the nodes of a run came to, in the order they ended. A torn last line is ignored.
    #[must_use]
    pub fn run_nodes(&self, id: &str) -> Vec<NodeRun> {
        let text = fs::read_to_string(self.runs_folder().join(id).join("nodes.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The events of a run, one JSON object a line.
    #[must_use]
    pub fn run_events(&self, id: &str) -> String {
        fs::read_to_string(self.runs_folder().join(id).join("events.jsonl")).unwrap_or_default()
    }

    /// The newest run of a pipeline that got as far as recording nodes.
    #[must_use]
    pub fn last_run(&self, pipeline: &str) -> Option<(RunRecord, Vec<NodeRun>)> {
        self.run_ids().iter().rev().find_map(|id| {
            let record = self.run(id).filter(|record| record.pipeline == pipeline)?;
            let nodes = self.run_nodes(id);
            (!nodes.is_empty()).then_some((record, nodes))
        })
    }
}

impl RunWriter {
    /// Appends what a node came to.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn node(&mut self, node: &NodeRun) -> Result<(), StoreError> {
        line(&mut self.nodes, node, &self.folder)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn event(&mut self, event: &impl Serialize) -> Result<(), StoreError> {
        line(&mut self.events, event, &self.folder)
    }

    /// Makes what was appended so far visible to others.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.nodes.flush().and_then(|()| self.events.flush()).map_err(StoreError::io("write", &self.folder))
    }

    /// Writes the final record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self, record: &RunRecord) -> Result<(), StoreError> {
        self.flush()?;
        self.write_record(record)
    }

    fn write_record(&self, record: &RunRecord) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(record).map_err(|error| StoreError::Location(error.to_string()))?;
        self.store.write_file(&self.folder.join("run.json"), &text)
    }
}

fn append(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().create(true).append(true).open(path).map_err(StoreError::io("open", path))
}

fn line(out: &mut impl Write, value: &impl Serialize, path: &Path) -> Result<(), StoreError> {
    let mut text = serde_json::to_vec(value).map_err(|error| StoreError::Location(error.to_string()))?;
    text.push(b'\n');
    out.write_all(&text).map_err(StoreError::io("write", path))
}

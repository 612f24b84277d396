//! The run ledger: one folder per run with the request, the outcome of every node and its checks, and the events.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::checksum::{Seal, look, seal, sealed_json, sealed_line, unsealed};
use super::node_result::OutputRecord;
use crate::endpoint::Usage;
use crate::fingerprint::{Digest, InputIdentity, NodeKey, Preimage, Reason, hash_bytes};
use crate::node_id::NodeId;
use crate::spec::{Check, RowLimit};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{if_there, names_in};
use crate::store::layout::Store;
use crate::store::nofollow;
use crate::store::remote::Pending;

/// Part of the last event of a run that ended.
const RUN_FINISHED: &str = "\"event\":\"run_finished\"";

/// Bytes of events that are read at once (at most).
const EVENT_BYTES: u64 = 4 << 20;

/// Bytes at the end of the events in which the last one is looked for first.
const END_BYTES: u64 = 64 << 10;

/// Marks an imported run.
pub(crate) const IMPORTED: &str = "imported";

/// Returns the time (Unix, seconds) in a run's id; `None` for other ids. An id like `20261120-131502-1a2bf00d` contains
/// date, time, a fraction in 1/65,536 seconds, and a random number.
pub(crate) fn run_time(id: &str) -> Option<f64> {
    let mut bytes = id.bytes().enumerate();
    let is_plain = bytes.all(|(index, byte)| match index {
        8 | 15 => byte == b'-',
        0..15 => byte.is_ascii_digit(),
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    });
    if id.len() != 24 || !is_plain {
        return None;
    }
    let moment = chrono::NaiveDateTime::parse_from_str(&id[..15], "%Y%m%d-%H%M%S").ok()?;
    let fraction = u32::from_str_radix(&id[16..20], 16).ok()?;
    Some(moment.and_utc().timestamp() as f64 + f64::from(fraction) / 65_536.0)
}

/// A run: the request and the outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Sortable by time: `20261120-131502-1a2bf00d`.
    pub id: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The pipeline's file.
    pub file: String,
    /// Params after overrides.
    pub params: Value,
    /// Values of `--set`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// Values of `--params`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub params_files: Vec<PathBuf>,
    /// Value of `--limit`.
    #[serde(default, skip_serializing_if = "RowLimit::is_none")]
    pub limit: RowLimit,
    /// What loops hand on, by name (`rl.policy`): `NODE` or `NODE.PORT`, or null if rows had not decided of which round.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handed_on: BTreeMap<String, Option<String>>,
    /// Unix time (seconds) of the start.
    pub started: f64,
    /// Unix time (seconds) of the end; missing if the run was killed.
    pub finished: Option<f64>,
    /// Exit code; missing if the run was killed.
    pub exit: Option<i32>,
    /// Number of nodes in the plan.
    pub nodes: usize,
    /// Digest of the plan whose params fitted all known columns; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fits: Option<Digest>,
    /// Checksum of the nodes' records when the run ended; missing in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerSeal>,
}

/// Checksum of a run's `nodes.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerSeal {
    /// Number of lines.
    pub lines: usize,
    /// Digest of all bytes.
    pub digest: Digest,
}

/// The files of a run.
pub(crate) const RUN_FILES: [&str; 3] = ["run.json", "nodes.jsonl", "events.jsonl"];

/// How a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeOutcome {
    /// Started without a recorded end: it is still running, or the run was killed.
    Begun,
    /// Its result was cached.
    Cached,
    /// It ran.
    Finished,
    /// Its result is known, but was not delivered: too many rows were lost upstream.
    HeldBack,
    /// Its result is known, but a check of it failed or could not be evaluated: nothing after it ran.
    CheckFailed,
    /// It failed.
    Failed,
    /// An upstream node failed, or the run was stopped.
    Skipped,
    /// It is of a round after the end of its loop, or needs one.
    Ended,
}

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
impl std::fmt::Display for CheckOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.found)
    }
}

/// The record of a node in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRun {
    /// Node id in the pipeline.
    pub node: NodeId,
    /// Operator.
    pub operator: String,
    /// Node key, if known.
    pub key: Option<NodeKey>,
    /// How it ended.
    pub outcome: NodeOutcome,
    /// Why it ran.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<Reason>,
    /// Its outputs.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub outputs: IndexMap<String, OutputRecord>,
    /// The error, or why its outputs were held back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Duration in seconds (0 if cached).
    pub seconds: f64,
    /// The key's preimage, for a node that started: it may never have a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preimage: Option<Value>,
    /// The outcomes of its checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckOutcome>,
    /// Of a node that decided how its loop ended: the nodes of the round that the loop hands on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hands_on: Vec<NodeId>,
}

impl NodeOutcome {
    /// Whether the node's result is known.
    pub fn has_result(self) -> bool {
        matches!(self, Self::Cached | Self::Finished | Self::HeldBack | Self::CheckFailed)
    }
}

impl NodeRun {
    /// Whether it had started when the run was stopped.
    pub fn was_interrupted(&self) -> bool {
        self.outcome == NodeOutcome::Skipped && self.seconds > 0.0
    }

    /// The record of a node that starts.
    pub fn begun(node: &str, operator: &str, key: NodeKey, reasons: Vec<Reason>, preimage: Value) -> Self {
        Self {
            node: node.into(),
            operator: operator.to_owned(),
            key: Some(key),
            outcome: NodeOutcome::Begun,
            reasons,
            outputs: IndexMap::new(),
            error: None,
            seconds: 0.0,
            preimage: Some(preimage),
            checks: Vec::new(),
            hands_on: Vec::new(),
        }
    }
}

/// Damage in a run's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerDamage {
    /// The run.
    pub run: String,
    /// The damaged file of the run.
    pub file: &'static str,
    /// Line number, from 1.
    pub line: usize,
    /// The damage.
    pub what: &'static str,
    /// Whether it is the last line of an unfinished file, which a dead writer may leave.
    pub torn: bool,
}

/// Returns the records in a file of a run; `run.json` is one record.
fn lines_of<'t>(file: &str, text: &'t str) -> Vec<&'t str> {
    if file == "run.json" && !text.is_empty() { vec![text] } else { text.lines().collect() }
}

/// Writes the record of one run.
#[derive(Debug)]
pub struct RunWriter {
    folder: PathBuf,
    nodes: BufWriter<File>,
    events: BufWriter<File>,
    store: Store,
    /// Whether any node started.
    computed: bool,
}

impl Store {
    /// Returns the preimage of a recorded node's key, if the store still has it.
    pub fn preimage_of(&self, node: &NodeRun) -> Option<Value> {
        let key = node.key.as_ref()?;
        let result = self.result(key).or_else(|| self.tombstone(key));
        result.map(|result| result.preimage).or_else(|| node.preimage.clone())
    }

    /// Returns what a recorded node read, as it stands in its key.
    pub fn inputs_of(&self, node: &NodeRun) -> Vec<InputIdentity> {
        self.preimage_of(node).map(|preimage| Preimage::read(&preimage).inputs).unwrap_or_default()
    }

    /// Starts the record of a run.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn start_run(&self, record: &RunRecord) -> Result<RunWriter, StoreError> {
        let folder = self.run_folder(&record.id);
        // Noted first: even a run that is killed at once is uploaded by the next one.
        self.note_pending(&Pending::Run(record.id.clone()))?;
        nofollow::create_folder(&folder).context("create", &folder)?;
        let (nodes, events) = (folder.join("nodes.jsonl"), folder.join("events.jsonl"));
        let nodes = BufWriter::new(nofollow::append(&nodes).context("open", &nodes)?);
        let events = BufWriter::new(nofollow::append(&events).context("open", &events)?);
        // Held to the end of this process: `is_running` looks at it, and holds it for an instant at most.
        if let Err(error) = events.get_ref().lock() {
            tracing::debug!("the run cannot be seen to run: {error}");
        }
        let writer = RunWriter { folder, nodes, events, store: self.clone(), computed: false };
        writer.describe(record)?;
        Ok(writer)
    }

    /// Returns the ids of all runs, oldest first.
    pub fn run_ids(&self) -> Vec<String> {
        names_in(&self.root().join("runs")).into_iter().map(|(name, _)| name).collect()
    }

    /// Whether there is a run of that id. An id from outside may be a path: it then names no run.
    pub fn has_run(&self, id: &str) -> bool {
        let mut parts = Path::new(id).components();
        let is_name = matches!(parts.next(), Some(Component::Normal(name)) if name == id) && parts.next().is_none();
        is_name && self.run_folder(id).is_dir()
    }

    /// Whether the run was imported. Imported runs are informative only.
    pub fn is_imported(&self, id: &str) -> bool {
        self.run_folder(id).join(IMPORTED).exists()
    }

    /// Returns the ids of all runs, newest first, imported ones last.
    pub fn newest_runs(&self) -> Vec<String> {
        let newest = self.run_ids().into_iter().rev();
        let (imported, own): (Vec<_>, Vec<_>) = newest.partition(|id| self.is_imported(id));
        [own, imported].concat()
    }

    fn run_text(&self, id: &str, file: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.run_folder(id).join(file)).unwrap_or_default()).into_owned()
    }

    /// Returns the record of a run; `None` if it is missing or damaged.
    pub fn run(&self, id: &str) -> Option<RunRecord> {
        sealed_json(self.run_text(id, "run.json").as_bytes())
    }

    /// Returns the nodes of a run in the order they ended, then those without an end. Torn and damaged lines are
    /// skipped; [`Store::ledger_damage`] reports them.
    pub fn run_nodes(&self, id: &str) -> Vec<NodeRun> {
        ended(self.run_text(id, "nodes.jsonl").lines().filter_map(|line| sealed_json(line.as_bytes())))
    }

    /// Returns the events of a run, one JSON object per line.
    pub fn run_events(&self, id: &str) -> String {
        self.run_text(id, "events.jsonl").lines().map(|line| unsealed(line) + "\n").collect()
    }

    /// Whether a process on this machine is writing the events of a run.
    pub fn is_running(&self, id: &str) -> bool {
        let file = nofollow::open(&self.run_folder(id).join("events.jsonl"));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Returns the events of a run from a byte of their file on, in whole lines, and the byte after them.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn run_events_from(&self, id: &str, byte: u64) -> Result<(String, u64), StoreError> {
        let path = self.run_folder(id).join("events.jsonl");
        let (found, mut bytes) = (if_there(File::open(&path)).context("read", &path)?, Vec::new());
        let Some(mut file) = found else { return Ok((String::new(), byte)) };
        file.seek(SeekFrom::Start(byte)).context("read", &path)?;
        file.take(EVENT_BYTES).read_to_end(&mut bytes).context("read", &path)?;
        // The rest of a line that is being written comes with the next call.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let text = String::from_utf8_lossy(&bytes[..whole]);
        Ok((text.lines().map(|line| unsealed(line) + "\n").collect(), byte + whole as u64))
    }

    /// Returns the last event of a run that ended; `None` if it is damaged.
    pub fn run_end(&self, id: &str) -> Option<Value> {
        let mut file = File::open(self.run_folder(id).join("events.jsonl")).ok()?;
        let length = file.metadata().ok()?.len();
        // The end is enough, unless the last event is very long.
        for bytes in [END_BYTES, length] {
            file.seek(SeekFrom::Start(length.saturating_sub(bytes))).ok()?;
            let mut end = Vec::new();
            (&file).take(bytes).read_to_end(&mut end).ok()?;
            let text = String::from_utf8_lossy(&end);
            if let Some(last) = text.lines().rev().find(|line| line.contains(RUN_FINISHED))
                && let Some(event) = sealed_json(last.as_bytes())
            {
                return Some(event);
            }
        }
        None
    }

    /// Returns what a run spent by its events, with the times (Unix, seconds): a lower bound, if it was killed.
    pub(super) fn recorded_spending(&self, id: &str) -> Vec<(f64, Usage)> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Spent {
            event: String,
            time: f64,
            calls: u64,
            prompt_tokens: u64,
            completion_tokens: u64,
            cost: f64,
        }
        let text = self.run_text(id, "events.jsonl");
        let (mut nodes, mut whole) = (Vec::new(), Vec::new());
        for line in text.lines().filter(|line| line.contains("_finished\"") && look(line) != Seal::Broken) {
            let Ok(spent) = serde_json::from_str::<Spent>(line) else { continue };
            let Spent { calls, prompt_tokens, completion_tokens, .. } = spent;
            let cost_nanos = (spent.cost.max(0.0) * 1e9).round() as u64;
            let usage = Usage { calls, prompt_tokens, completion_tokens, cost_nanos, ..Usage::default() };
            match spent.event.as_str() {
                "node_finished" => nodes.push((spent.time, usage)),
                // It counts failed nodes, too.
                "run_finished" => whole.push((spent.time, usage)),
                _ => {}
            }
        }
        if whole.is_empty() { nodes } else { whole }
    }

    /// Returns damaged lines in a run's records. The last lines of a killed run may be torn.
    pub fn ledger_damage(&self, id: &str) -> Vec<LedgerDamage> {
        let files = RUN_FILES.map(|file| (file, self.run_text(id, file)));
        // Either all lines have checksums, or none has (earlier versions).
        let sealed = files.iter().flat_map(|(file, text)| lines_of(file, text)).any(|line| look(line) == Seal::Whole);
        let mut found = Vec::new();
        let [(run_file, run), _, (events_file, events)] = &files;
        if run.is_empty() && self.run_folder(id).join(run_file).is_file() {
            found.push(LedgerDamage { run: id.to_owned(), file: run_file, line: 1, what: "was emptied", torn: false });
        }
        // The last event of a run that ended says so; the number of nodes is in its record.
        let has_ended = self.run(id).is_some_and(|record| record.finished.is_some()) && !self.is_imported(id);
        if has_ended && sealed && self.run_folder(id).join(events_file).is_file() && !events.contains(RUN_FINISHED) {
            let what = "and others after it are not all there: the end of the run is missing";
            found.push(LedgerDamage { run: id.to_owned(), file: events_file, line: 1, what, torn: false });
        }
        for (file, text) in &files {
            let lines = lines_of(file, text);
            let ended = *file == "run.json" || text.ends_with('\n');
            for (index, line) in lines.iter().enumerate() {
                let torn = !ended && index + 1 == lines.len();
                let readable = serde_json::from_str::<Value>(line).is_ok();
                let what = match look(line) {
                    Seal::Broken => "was changed: its checksum does not fit",
                    _ if !readable && torn => "is cut off",
                    _ if !readable => "cannot be read",
                    Seal::Missing if sealed => "was changed: it has no checksum",
                    _ => continue,
                };
                found.push(LedgerDamage { run: id.to_owned(), file, line: index + 1, what, torn });
            }
        }
        found
    }

    /// Returns the missing files of a run.
    pub fn missing_run_files(&self, id: &str) -> Vec<&'static str> {
        RUN_FILES.into_iter().filter(|file| !self.run_folder(id).join(file).is_file()).collect()
    }

    /// Computes the checksum of a run's `nodes.jsonl`.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub fn ledger_seal(&self, id: &str) -> Result<LedgerSeal, StoreError> {
        let path = self.run_folder(id).join("nodes.jsonl");
        let bytes = fs::read(&path).context("read", &path)?;
        Ok(LedgerSeal { lines: bytes.split_inclusive(|byte| *byte == b'\n').count(), digest: hash_bytes(&bytes) })
    }

    /// Returns the newest run of a pipeline that recorded nodes; imported runs do not count.
    pub fn last_run(&self, pipeline: &str) -> Option<(RunRecord, Vec<NodeRun>)> {
        for id in self.run_ids().iter().rev() {
            if !self.is_imported(id)
                && let Some(record) = self.run(id)
                && record.pipeline == pipeline
            {
                let nodes = self.run_nodes(id);
                if !nodes.is_empty() {
                    return Some((record, nodes));
                }
            }
        }
        None
    }
}

/// Merges lines of a ledger to one record per node: its outcome, with the preimage from its start.
fn ended(lines: impl Iterator<Item = NodeRun>) -> Vec<NodeRun> {
    let mut begun: IndexMap<NodeId, NodeRun> = IndexMap::new();
    let mut nodes: Vec<NodeRun> = Vec::new();
    for mut line in lines {
        if line.outcome == NodeOutcome::Begun {
            begun.insert(line.node.clone(), line);
            continue;
        }
        // Under another key, the node was started again: its first preimage is not that of the outcome.
        let before = begun.shift_remove(&line.node);
        line.preimage = before.filter(|before| before.key == line.key).and_then(|before| before.preimage);
        nodes.push(line);
    }
    nodes.extend(begun.into_values());
    nodes
}

impl RunWriter {
    /// Appends the record of a node.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn node(&mut self, node: &NodeRun) -> Result<(), StoreError> {
        self.computed |= node.outcome == NodeOutcome::Begun;
        self.nodes.write_all(&sealed_line(node)?).context("write", &self.folder)
    }

    /// Appends an event.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn event(&mut self, event: &impl Serialize) -> Result<(), StoreError> {
        self.events.write_all(&sealed_line(event)?).context("write", &self.folder)
    }

    /// Makes everything appended so far visible to others.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.nodes.flush().and_then(|()| self.events.flush()).context("write", &self.folder)
    }

    /// Writes the final record with the checksum of the nodes' file. If something was computed, that file is flushed
    /// first, so that the record never refers to lines lost in a power failure.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn finish(&mut self, record: &RunRecord) -> Result<(), StoreError> {
        self.flush()?;
        if self.computed {
            self.nodes.get_ref().sync_data().context("flush", &self.folder)?;
        }
        let ledger = self.store.ledger_seal(&record.id).ok();
        self.describe(&RunRecord { ledger, ..record.clone() })
    }

    /// Replaces the record of a run that goes on.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn describe(&self, record: &RunRecord) -> Result<(), StoreError> {
        self.store.write_file(&self.folder.join("run.json"), &seal(serde_json::to_vec_pretty(record)?))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_of_runs_have_one_form() {
        assert_eq!(run_time("20261120-131502-8000f00d"), Some(1_795_180_502.5));
        for odd in [
            "",
            "latest",
            "20261120-131502-8000f00",
            "20261120-131502-8000f00d0",
            "20261120-131502-8000F00D",
            "20261120-131502_8000f00d",
            "20261320-131502-8000f00d",
            "zzzzzzzz-zzzzzz-zzzzzzzz",
            "../../../../../etc/passw",
        ] {
            assert_eq!(run_time(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_node_has_one_record_with_what_its_key_was_made_of() {
        let key = NodeKey(hash_bytes(b"key"));
        let begun = |node: &str| NodeRun::begun(node, "chunk", key, Vec::new(), json!({"size": node}));
        let failed =
            |node: &str, key| NodeRun { outcome: NodeOutcome::Failed, preimage: None, key: Some(key), ..begun(node) };
        let other = NodeKey(hash_bytes(b"other"));
        let lines = [begun("a"), begun("b"), failed("b", key), begun("c"), failed("c", other)];
        let nodes = ended(lines.into_iter());
        let told: Vec<_> = nodes.iter().map(|node| (node.node.as_str(), node.outcome, node.preimage.clone())).collect();
        assert_eq!(
            told,
            [
                ("b", NodeOutcome::Failed, Some(json!({"size": "b"}))),
                ("c", NodeOutcome::Failed, None),
                ("a", NodeOutcome::Begun, Some(json!({"size": "a"}))),
            ],
            "what began and did not end comes last; a key's preimage belongs to that key alone"
        );
    }
}

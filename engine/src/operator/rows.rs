//! Inputs and outputs of a kernel.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use indexmap::IndexMap;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use searchmill_schemas::{Record, RecordKind, Reject, from_batch, to_batch};

use super::port::TreeKind;
use crate::error::OperatorError;

/// Rows of one input, read batch by batch.
#[derive(Clone, Debug)]
pub struct RowsInput {
    /// Record kind.
    pub kind: RecordKind,
    /// All columns, extra ones included.
    pub schema: SchemaRef,
    /// Number of rows.
    pub rows: u64,
    /// Content digest of the artifact (hex): for identities only, never hashed again.
    pub digest: String,
    parts: Vec<PathBuf>,
    part_digests: Vec<String>,
    memory: Arc<Vec<RecordBatch>>,
}

impl RowsInput {
    /// Creates an input from Parquet files.
    pub fn from_parts(kind: RecordKind, schema: SchemaRef, rows: u64, digest: String, parts: Vec<PathBuf>) -> Self {
        Self { kind, schema, rows, digest, parts, part_digests: Vec::new(), memory: Arc::default() }
    }

    /// Creates an input from rows in memory.
    pub fn from_batches(kind: RecordKind, schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        let rows = batches.iter().map(|batch| batch.num_rows() as u64).sum();
        Self { memory: Arc::new(batches), ..Self::from_parts(kind, schema, rows, String::new(), Vec::new()) }
    }

    /// Returns the Parquet files, in order (empty for rows in memory).
    pub fn parts(&self) -> &[PathBuf] {
        &self.parts
    }

    /// Adds the content digests (hex) of the parts, in order.
    #[must_use]
    pub fn with_part_digests(self, part_digests: Vec<String>) -> Self {
        Self { part_digests, ..self }
    }

    /// Returns the content digest (hex) of a part, if known.
    pub fn part_digest(&self, part: usize) -> Option<&str> {
        self.part_digests.get(part).map(String::as_str)
    }

    /// Iterates over the rows of one part, in order, at most 8,192 at a time.
    pub fn part_batches(&self, part: usize) -> impl Iterator<Item = Result<RecordBatch, OperatorError>> + Send + use<> {
        self.parts.get(part).cloned().into_iter().flat_map(read_part)
    }

    /// Iterates over all rows, in order, at most 8,192 at a time.
    pub fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, OperatorError>> + Send + use<> {
        let memory = Arc::clone(&self.memory);
        // By index: the iterator outlives the borrow of `self`, so that it cannot borrow the batches.
        let held = (0..memory.len()).map(move |i| Ok(memory[i].clone()));
        held.chain(self.parts.clone().into_iter().flat_map(read_part))
    }

    /// Reads all rows as structs. For small inputs; use [`Self::batches`] for large ones.
    ///
    /// # Errors
    /// Fails if a part cannot be read or does not fit the kind.
    pub fn read_all<R: Record>(&self) -> Result<Vec<R>, OperatorError> {
        let mut rows = Vec::with_capacity(usize::try_from(self.rows).unwrap_or(0));
        for batch in self.batches() {
            rows.extend(from_batch::<R>(&batch?)?);
        }
        Ok(rows)
    }
}

type BatchIterator = Box<dyn Iterator<Item = Result<RecordBatch, OperatorError>> + Send>;

/// Opens a part once its first rows are wanted: an input of many parts has few files open.
fn read_part(path: PathBuf) -> BatchIterator {
    let reader = match open_part(&path) {
        Ok(reader) => reader,
        Err(error) => return Box::new(std::iter::once(Err(error))),
    };
    Box::new(reader.map(move |batch| {
        batch.map_err(|error| OperatorError::machine(format!("cannot read {}: {error}", path.display())))
    }))
}

fn open_part(path: &Path) -> Result<ParquetRecordBatchReader, OperatorError> {
    let file =
        File::open(path).map_err(|error| OperatorError::machine(format!("cannot open {}: {error}", path.display())))?;
    Ok(ParquetRecordBatchReaderBuilder::try_new(file)?.with_batch_size(8192).build()?)
}

/// A folder artifact.
#[derive(Clone, Debug)]
pub struct TreeInput {
    /// Kind of folder.
    pub kind: TreeKind,
    /// Path, read-only.
    pub path: PathBuf,
    /// Content digest of the artifact (hex).
    pub digest: String,
}

/// An artifact bound to an input port.
#[derive(Clone, Debug)]
pub enum InputArtifact {
    /// A table.
    Rows(RowsInput),
    /// A folder.
    Tree(TreeInput),
}

/// All artifacts bound to the input ports.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    ports: IndexMap<String, Vec<InputArtifact>>,
}

impl Inputs {
    /// Starts without bound artifacts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds another artifact to a port.
    pub fn bind(&mut self, port: &str, artifact: InputArtifact) {
        self.ports.entry(port.to_owned()).or_default().push(artifact);
    }

    /// Iterates over bound ports and their artifacts, in port order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[InputArtifact])> {
        self.ports.iter().map(|(name, bound)| (name.as_str(), bound.as_slice()))
    }

    /// Returns all artifacts bound to a port.
    pub fn many(&self, port: &str) -> &[InputArtifact] {
        self.ports.get(port).map_or(&[], Vec::as_slice)
    }

    /// Returns the table bound to a port.
    ///
    /// # Errors
    /// Fails if there is none: a bug, since the plan has checked it.
    pub fn rows(&self, port: &str) -> Result<&RowsInput, OperatorError> {
        self.rows_optional(port).ok_or_else(|| OperatorError::engine(format!("no rows are bound to the port `{port}`")))
    }

    /// Returns the table bound to a port, if any.
    pub fn rows_optional(&self, port: &str) -> Option<&RowsInput> {
        match self.many(port).first() {
            Some(InputArtifact::Rows(rows)) => Some(rows),
            _ => None,
        }
    }

    /// Returns all folders bound to a port.
    pub fn trees(&self, port: &str) -> Vec<&TreeInput> {
        let mut trees = Vec::new();
        for artifact in self.many(port) {
            if let InputArtifact::Tree(tree) = artifact {
                trees.push(tree);
            }
        }
        trees
    }

    /// Returns the folder bound to a port.
    ///
    /// # Errors
    /// Fails if there is none: a bug, since the plan has checked it.
    pub fn tree(&self, port: &str) -> Result<&TreeInput, OperatorError> {
        let tree = self.trees(port).first().copied();
        tree.ok_or_else(|| OperatorError::engine(format!("no folder is bound to the port `{port}`")))
    }
}

/// Receives outputs; implemented by the store.
pub trait OutputSink: Send {
    /// Appends rows to a port.
    ///
    /// # Errors
    /// Fails if the rows do not fit the port or cannot be written.
    fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError>;
    /// Returns the folder of a tree port: fill it with files before returning.
    ///
    /// # Errors
    /// Fails if there is no such port or the folder cannot be created.
    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError>;
    /// Records a figure about this node's run (rows dropped, recall, loss …) in its manifest.
    fn figure(&mut self, name: &str, value: f64);
    /// Adds text shown to the user after the run (a table), stored with the node's record.
    fn summary(&mut self, text: &str);
}

/// The outputs of a kernel.
pub type Outputs<'a> = dyn OutputSink + 'a;

impl dyn OutputSink + '_ {
    /// Appends row structs to a port.
    ///
    /// # Errors
    /// Fails if the rows cannot be written.
    pub fn write_rows<R: Record>(&mut self, port: &str, rows: &[R]) -> Result<(), OperatorError> {
        if rows.is_empty() { Ok(()) } else { self.write(port, &to_batch(rows)?) }
    }

    /// Appends a failed row to the `rejects` port.
    ///
    /// # Errors
    /// Fails if the row cannot be written.
    pub fn reject(&mut self, reject: Reject) -> Result<(), OperatorError> {
        self.write_rows("rejects", &[reject])
    }
}

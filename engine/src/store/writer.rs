//! Writes the outputs of one node and commits them.
//!
//! Tables become Parquet parts with fixed settings, cut by their rows alone: the same rows give the same bytes however
//! the kernel cut its batches.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{BatchCoalescer, cast};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use indexmap::IndexMap;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use searchmill_schemas::{RecordKind, conform};

use super::artifact::{Artifact, ArtifactType, Part};
use super::error::StoreError;
use super::layout::Store;
use super::manifest::OutputRecord;
use crate::fingerprint::hash_file;
use crate::operator::{OperatorError, OutputSink, PortType};

/// Rows are handed to the Parquet writer in batches of this size.
const BATCH_ROWS: usize = 2048;
/// A row group ends after so many encoded bytes.
const ROW_GROUP_BYTES: usize = 32 << 20;
/// A part ends after so many rows.
const PART_ROWS: u64 = 1 << 20;

/// What a node wrote.
#[derive(Debug, Default)]
pub struct Written {
    /// Committed outputs by port.
    pub outputs: IndexMap<String, OutputRecord>,
    /// Figures recorded.
    pub figures: BTreeMap<String, f64>,
    /// Text for people.
    pub summary: String,
}

/// The outputs of one node while it runs.
pub struct StoreSink {
    store: Store,
    folder: PathBuf,
    ports: IndexMap<String, PortType>,
    tables: BTreeMap<String, TableWriter>,
    trees: BTreeMap<String, PathBuf>,
    written: Written,
    limit: Option<u64>,
    limit_reached: bool,
}

impl StoreSink {
    /// A sink for those ports.
    ///
    /// # Errors
    /// When its folder cannot be made.
    pub fn new(store: &Store, ports: IndexMap<String, PortType>) -> Result<Self, StoreError> {
        let folder = store.temporary();
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        let (tables, trees) = (BTreeMap::new(), BTreeMap::new());
        let (store, written) = (store.clone(), Written::default());
        Ok(Self { store, folder, ports, tables, trees, written, limit: None, limit_reached: false })
    }

    /// Takes at most so many rows for each table: once the first one is full, writing it fails.
    #[must_use]
    pub fn with_limit(mut self, limit: Option<u64>) -> Self {
        self.limit = limit;
        self
    }

    /// Was a write refused because the limit is reached?
    #[must_use]
    pub fn limit_reached(&self) -> bool {
        self.limit_reached
    }

    /// A folder for temporary files, removed with the sink.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn scratch(&self) -> Result<PathBuf, StoreError> {
        let path = self.folder.join("scratch");
        fs::create_dir_all(&path).map_err(StoreError::io("create", &path))?;
        Ok(path)
    }

    /// Flushes everything to disk and moves it to its place. Nothing is visible before.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn commit(mut self) -> Result<Written, OperatorError> {
        let ports = self.ports.clone();
        for (port, port_type) in &ports {
            let record = match port_type {
                PortType::Rows(kind) => self.commit_table(port, *kind)?,
                PortType::Tree(_) => self.commit_tree(port, port_type)?,
            };
            self.written.outputs.insert(port.clone(), record);
        }
        Ok(std::mem::take(&mut self.written))
    }

    fn commit_table(&mut self, port: &str, kind: RecordKind) -> Result<OutputRecord, OperatorError> {
        let table = match self.tables.remove(port) {
            Some(table) => table,
            None => TableWriter::new(self.folder.join(port), kind, &kind.schema())?,
        };
        let folder = table.folder.clone();
        let parts = table.finish()?;
        self.place(&folder, Artifact { artifact_type: (&PortType::Rows(kind)).into(), parts })
    }

    fn commit_tree(&mut self, port: &str, port_type: &PortType) -> Result<OutputRecord, OperatorError> {
        let folder = self.tree(port)?;
        let parts = tree_parts(&folder)?;
        self.place(&folder, Artifact { artifact_type: port_type.into(), parts })
    }

    /// Moves a finished folder to the place that its content names.
    fn place(&self, folder: &Path, artifact: Artifact) -> Result<OutputRecord, OperatorError> {
        let id = artifact.id();
        let (rows, bytes) = (artifact.rows(), artifact.bytes());
        let artifact_type: ArtifactType = artifact.artifact_type.clone();
        let target = self.store.artifact_folder(&id);
        if self.store.check(&id).is_err() {
            self.store.discard(&id)?;
            write_description(folder, &artifact)?;
            match self.store.rename(folder, &target) {
                Ok(()) => {}
                // Another process committed the same content first.
                Err(_) if self.store.check(&id).is_ok() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(OutputRecord { id, artifact_type, rows, bytes })
    }
}

impl Drop for StoreSink {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::debug!("left {} behind: {error}", self.folder.display());
        }
    }
}

impl OutputSink for StoreSink {
    fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Some(PortType::Rows(kind)) = self.ports.get(port) else {
            return Err(OperatorError::engine(format!("there is no output table `{port}`")));
        };
        let kind = *kind;
        let batch = as_stored(kind, batch)?;
        let table = match self.tables.entry(port.to_owned()) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(TableWriter::new(self.folder.join(port), kind, &batch.schema())?)
            }
        };
        let Some(limit) = self.limit else { return table.write(port, &batch) };
        let room = limit.saturating_sub(table.rows);
        table.write(port, &batch.slice(0, batch.num_rows().min(usize::try_from(room).unwrap_or(usize::MAX))))?;
        let all_full = || self.tables.values().all(|table| table.rows >= limit);
        if room < batch.num_rows() as u64 && self.ports.len() <= self.tables.len() + 1 && all_full() {
            self.limit_reached = true;
            return Err(OperatorError::cancelled());
        }
        Ok(())
    }

    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError> {
        if !matches!(self.ports.get(port), Some(PortType::Tree(_))) {
            return Err(OperatorError::engine(format!("there is no output folder `{port}`")));
        }
        if let Some(path) = self.trees.get(port) {
            return Ok(path.clone());
        }
        let path = self.folder.join(port);
        fs::create_dir_all(&path).map_err(StoreError::io("create", &path))?;
        self.trees.insert(port.to_owned(), path.clone());
        Ok(path)
    }

    fn figure(&mut self, name: &str, value: f64) {
        self.written.figures.insert(name.to_owned(), value);
    }

    fn summary(&mut self, text: &str) {
        self.written.summary.push_str(text);
    }
}

/// The kind's columns first, then the extra ones.
fn with_kind(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    if kind == RecordKind::Table {
        return Ok(batch.clone());
    }
    let known = conform(kind, batch)?;
    let schema = batch.schema();
    let extra: Vec<usize> =
        (0..batch.num_columns()).filter(|i| known.schema().index_of(schema.field(*i).name()).is_err()).collect();
    if extra.is_empty() {
        return Ok(known);
    }
    let mut fields: Vec<Arc<Field>> = known.schema().fields().iter().cloned().collect();
    let mut columns = known.columns().to_vec();
    for index in extra {
        fields.push(Arc::clone(&schema.fields()[index]));
        columns.push(Arc::clone(batch.column(index)));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// Rows as they are stored: the kind's columns first, plain types.
///
/// # Errors
/// When they do not fit the kind.
pub fn as_stored(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    plain(&with_kind(kind, batch)?)
}

/// Without view types and metadata, which are matters of execution.
fn plain(batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let schema = batch.schema();
    let mut fields = Vec::with_capacity(schema.fields().len());
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        let data_type = plain_type(field.data_type());
        let same = data_type == *field.data_type();
        columns.push(if same { Arc::clone(column) } else { cast(column, &data_type)? });
        fields.push(Field::new(field.name(), data_type, field.is_nullable()));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => plain_type(value),
        other => other.clone(),
    }
}

fn properties() -> WriterProperties {
    WriterProperties::builder()
        .set_created_by("searchmill".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_write_batch_size(BATCH_ROWS)
        .build()
}

struct TableWriter {
    folder: PathBuf,
    kind: RecordKind,
    schema: SchemaRef,
    coalescer: BatchCoalescer,
    writer: Option<ArrowWriter<File>>,
    rows: u64,
    part_rows: u64,
    parts: Vec<(String, u64)>,
}

impl TableWriter {
    fn new(folder: PathBuf, kind: RecordKind, schema: &SchemaRef) -> Result<Self, OperatorError> {
        fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        let coalescer = BatchCoalescer::new(Arc::clone(schema), BATCH_ROWS);
        let schema = Arc::clone(schema);
        Ok(Self { folder, kind, schema, coalescer, writer: None, rows: 0, part_rows: 0, parts: Vec::new() })
    }

    fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        let batch = self.fit(port, batch)?;
        self.rows += batch.num_rows() as u64;
        self.coalescer.push_batch(batch)?;
        while let Some(full) = self.coalescer.next_completed_batch() {
            self.append(&full)?;
        }
        Ok(())
    }

    /// All batches of a port have the columns of its first one; nullability may differ.
    fn fit(&self, port: &str, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        if batch.schema().fields() == self.schema.fields() {
            return Ok(batch.clone());
        }
        RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec()).map_err(|_| {
            let names = |schema: &Schema| {
                let field = |field: &Arc<Field>| format!("{} {}", field.name(), field.data_type());
                schema.fields().iter().map(field).collect::<Vec<_>>().join(", ")
            };
            let (first, now) = (names(&self.schema), names(&batch.schema()));
            OperatorError::engine(format!("output `{port}` changed its columns: first {first}; now {now}"))
        })
    }

    fn append(&mut self, batch: &RecordBatch) -> Result<(), OperatorError> {
        if self.writer.is_none() {
            let name = format!("part-{:05}.parquet", self.parts.len());
            let path = self.folder.join(&name);
            let file = File::create(&path).map_err(StoreError::io("create", &path))?;
            self.writer = Some(ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties()))?);
            self.parts.push((name, 0));
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        writer.write(batch)?;
        self.part_rows += batch.num_rows() as u64;
        if writer.in_progress_size() >= ROW_GROUP_BYTES {
            writer.flush()?;
        }
        if self.part_rows >= PART_ROWS { self.close_part() } else { Ok(()) }
    }

    fn close_part(&mut self) -> Result<(), OperatorError> {
        if let Some(writer) = self.writer.take() {
            let file = writer.into_inner()?;
            file.sync_data()?;
            if let Some(part) = self.parts.last_mut() {
                part.1 = self.part_rows;
            }
            self.part_rows = 0;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<Part>, OperatorError> {
        self.coalescer.finish_buffered_batch()?;
        while let Some(last) = self.coalescer.next_completed_batch() {
            self.append(&last)?;
        }
        if self.parts.is_empty() && self.kind == RecordKind::Table && !self.schema.fields().is_empty() {
            // An open table without rows still has columns.
            self.append(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
        }
        self.close_part()?;
        let part = |(name, rows): &(String, u64)| file_part(&self.folder, name, *rows);
        self.parts.iter().map(part).collect()
    }
}

fn file_part(folder: &Path, name: &str, rows: u64) -> Result<Part, OperatorError> {
    let path = folder.join(name);
    let digest = hash_file(&path).map_err(StoreError::io("read", &path))?;
    let bytes = fs::metadata(&path).map_err(StoreError::io("read", &path))?.len();
    Ok(Part { name: name.to_owned(), digest, bytes, rows })
}

fn tree_parts(folder: &Path) -> Result<Vec<Part>, OperatorError> {
    let mut names = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        for entry in fs::read_dir(&current).map_err(StoreError::io("read", &current))? {
            let path = entry.map_err(StoreError::io("read", &current))?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                File::open(&path).and_then(|file| file.sync_data()).map_err(StoreError::io("flush", &path))?;
                let name = path.strip_prefix(folder).unwrap_or(&path);
                if name == Path::new("artifact.json") {
                    return Err(OperatorError::engine(
                        "`artifact.json` is the store's own file: give yours another name",
                    ));
                }
                names.push(name.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    names.sort();
    names.iter().map(|name| file_part(folder, name, 0)).collect()
}

fn write_description(folder: &Path, artifact: &Artifact) -> Result<(), OperatorError> {
    let path = folder.join("artifact.json");
    let text = serde_json::to_vec_pretty(artifact).map_err(|error| OperatorError::engine(error.to_string()))?;
    let mut file = File::create(&path).map_err(StoreError::io("create", &path))?;
    std::io::Write::write_all(&mut file, &text).map_err(StoreError::io("write", &path))?;
    // Not flushed: a torn description is found by its name, the digest of what it says, and is a miss.
    Ok(())
}

impl std::fmt::Debug for StoreSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreSink").field("folder", &self.folder).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use searchmill_schemas::{Document, to_batch};

    fn sink(store: &Store) -> StoreSink {
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(RecordKind::Document))]);
        StoreSink::new(store, ports).unwrap()
    }

    fn documents(range: std::ops::Range<usize>) -> RecordBatch {
        let row = |i| Document { id: format!("d{i}"), title: None, text: "word ".repeat(i % 50), metadata: None };
        to_batch(&range.map(row).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_same_rows_give_the_same_artifact_however_they_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut whole = sink(&store);
        whole.write("rows", &documents(0..10_000)).unwrap();
        let whole = whole.commit().unwrap();
        let mut pieces = sink(&store);
        for start in (0..10_000).step_by(777) {
            pieces.write("rows", &documents(start..(start + 777).min(10_000))).unwrap();
        }
        let pieces = pieces.commit().unwrap();
        assert_eq!(whole.outputs["rows"], pieces.outputs["rows"]);
        assert_eq!(whole.outputs["rows"].rows, 10_000);
        assert!(store.verify(&whole.outputs["rows"].id).is_ok());
    }

    #[test]
    fn damage_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut one = sink(&store);
        one.write("rows", &documents(0..10)).unwrap();
        let id = one.commit().unwrap().outputs["rows"].id;
        let part = store.artifact_folder(&id).join("part-00000.parquet");
        let mut bytes = fs::read(&part).unwrap();
        bytes[20] ^= 1;
        fs::write(&part, &bytes).unwrap();
        assert_eq!(store.verify(&id), Err(super::super::Damage::Corrupt));
        fs::remove_file(&part).unwrap();
        assert_eq!(store.check(&id), Err(super::super::Damage::Missing));
    }
}

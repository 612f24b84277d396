//! Writes the outputs of one node and commits them.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use indexmap::IndexMap;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use searchmill_schemas::{RecordKind, conform, name_twice};
use serde::{Deserialize, Serialize};

use super::artifact::{Artifact, Part};
use super::output_folder;
use super::table::{PART_LEAST_ROWS, TableWriter};
use super::unique::Table;
use crate::endpoint::Redactor;
use crate::error::OperatorError;
use crate::fingerprint::RowKey;
use crate::operator::{OutputSink, PortType};
use crate::store::error::IoContext;
use crate::store::files::clear;
use crate::store::layout::Store;
use crate::store::memo::map_blocks::Block;
use crate::store::nofollow;
use crate::store::records::node_result::OutputRecord;

/// The committed outputs of a node.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Written {
    /// Committed outputs by port.
    pub outputs: IndexMap<String, OutputRecord>,
    /// Recorded metrics.
    pub figures: BTreeMap<String, f64>,
    /// Human-readable summary.
    pub summary: String,
    /// Outputs for each part of the row input, if they can be reused.
    #[serde(skip)]
    pub blocks: Vec<(RowKey, Block)>,
}

/// Output parts of each port for one block.
struct OpenBlock {
    key: RowKey,
    rows: u64,
    parts: BTreeMap<String, Range<usize>>,
}

/// The outputs of a running node.
pub struct StoreSink {
    store: Store,
    folder: PathBuf,
    ports: IndexMap<String, PortType>,
    tables: BTreeMap<String, TableWriter>,
    written: Written,
    limit: Option<u64>,
    limit_reached: bool,
    redactor: Redactor,
    blocks: Vec<OpenBlock>,
    /// Number of parts of each port before the current block.
    block_start: BTreeMap<String, usize>,
    /// Parts of the tables committed so far.
    committed: BTreeMap<String, Vec<Part>>,
    /// Whether parts of other artifacts were linked.
    adopted: bool,
    /// Whether programs may have written to the folders.
    programs: bool,
}

impl StoreSink {
    /// Creates a sink for the ports. Folders are created with the first write.
    pub fn new(store: &Store, ports: IndexMap<String, PortType>) -> Self {
        Self {
            store: store.clone(),
            folder: store.temporary(),
            ports,
            tables: BTreeMap::new(),
            written: Written::default(),
            limit: None,
            limit_reached: false,
            redactor: Redactor::default(),
            blocks: Vec::new(),
            block_start: BTreeMap::new(),
            committed: BTreeMap::new(),
            adopted: false,
            programs: false,
        }
    }

    /// Returns the temporary folder of an output. All are siblings under `tmp/`, to create and remove few folders: when
    /// creating one, ext4 scans all files removed in the last seconds.
    fn output_folder(&self, port: &str) -> PathBuf {
        let mut path = self.folder.clone().into_os_string();
        path.push(format!("-{port}"));
        path.into()
    }

    /// Limits each table to a number of rows. Once all tables but the rejects are full, writing more rows fails.
    #[must_use]
    pub fn with_limit(mut self, limit: Option<u64>) -> Self {
        self.limit = limit;
        self
    }

    /// Takes the files of folders from programs that may still run.
    #[must_use]
    pub fn with_programs(mut self, programs: bool) -> Self {
        self.programs = programs;
        self
    }

    /// Removes secrets from rejects and summaries, whose texts come from outside.
    #[must_use]
    pub fn with_redactor(mut self, redactor: Redactor) -> Self {
        self.redactor = redactor;
        self
    }

    /// Whether no output but the rejects can take another row.
    fn all_full(&self, limit: u64) -> bool {
        self.ports.iter().all(|(port, kind)| match kind {
            PortType::Rows(RecordKind::Reject) => true,
            PortType::Rows(_) => self.tables.get(port).is_some_and(|table| table.rows >= limit),
            PortType::Tree(_) => false,
        })
    }

    /// Whether a write was refused because of the limit.
    pub fn limit_reached(&self) -> bool {
        self.limit_reached
    }

    /// Returns the path for a folder of temporary files; removed with the sink.
    pub fn scratch(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Ends a block of the row input: cuts the outputs here, so that they can be reused under `key`.
    ///
    /// # Errors
    /// Fails if an output cannot be written.
    pub fn end_block(&mut self, key: RowKey, rows: u64) -> Result<(), OperatorError> {
        let mut refitted = false;
        let mut parts = BTreeMap::new();
        for (port, table) in &mut self.tables {
            table.cut()?;
            refitted |= std::mem::take(&mut table.refitted);
            let start = self.block_start.insert(port.clone(), table.part_count()).unwrap_or_default();
            parts.insert(port.clone(), start..table.part_count());
        }
        // A batch that was adapted to the previous one would have other bytes elsewhere.
        if !refitted && rows >= PART_LEAST_ROWS as u64 {
            self.blocks.push(OpenBlock { key, rows, parts });
        }
        Ok(())
    }

    /// Links the cached outputs of a block. Returns false and does nothing if the outputs have different columns.
    ///
    /// # Errors
    /// Fails if a file is missing.
    pub fn adopt_block(&mut self, key: RowKey, block: &Block) -> Result<bool, OperatorError> {
        // Opens outputs that nothing was written to.
        for (port, parts) in &block.outputs {
            let Some((artifact, part)) = parts.first() else { continue };
            let Some(PortType::Rows(kind)) = self.ports.get(port) else { return Ok(false) };
            let path = self.store.artifact_folder(artifact).join(&part.name);
            let file = File::open(&path).context("open", &path)?;
            let schema = Arc::clone(ParquetRecordBatchReaderBuilder::try_new(file)?.schema());
            match self.tables.get(port) {
                Some(table) if table.schema.fields() != schema.fields() => return Ok(false),
                Some(_) => {}
                None => {
                    self.tables.insert(port.clone(), TableWriter::new(self.output_folder(port), *kind, &schema));
                }
            }
        }
        self.adopted = true;
        for (port, parts) in &block.outputs {
            for (artifact, part) in parts {
                let path = self.store.artifact_folder(artifact).join(&part.name);
                if let Some(table) = self.tables.get_mut(port) {
                    table.adopt(&path, part)?;
                }
            }
        }
        self.end_block(key, block.rows)?;
        Ok(true)
    }

    /// Flushes everything to disk and moves it into place. Nothing is visible before.
    ///
    /// # Errors
    /// Fails if something cannot be written.
    pub fn commit(mut self) -> Result<Written, OperatorError> {
        let ports = self.ports.clone();
        for (port, port_type) in &ports {
            let record = match port_type {
                PortType::Rows(kind) => self.commit_table(port, *kind)?,
                PortType::Tree(_) => self.commit_tree(port, port_type)?,
            };
            self.written.outputs.insert(port.clone(), record);
        }
        // A block names the artifacts of its parts, which have ids only now.
        for OpenBlock { key, rows, parts } in std::mem::take(&mut self.blocks) {
            let mut outputs = BTreeMap::new();
            for (port, range) in parts {
                let id = self.written.outputs[&port].id;
                let parts = self.committed[&port][range].iter();
                outputs.insert(port, parts.map(|part| (id, part.clone())).collect());
            }
            self.written.blocks.push((key, Block { rows, outputs }));
        }
        Ok(std::mem::take(&mut self.written))
    }

    fn commit_table(&mut self, port: &str, kind: RecordKind) -> Result<OutputRecord, OperatorError> {
        let table = self.tables.remove(port);
        let table = table.unwrap_or_else(|| TableWriter::new(self.output_folder(port), kind, &kind.schema()));
        let folder = table.folder.clone();
        let parts = table.finish()?;
        // Of the finished parts, so that parts linked from other artifacts are checked too.
        Table { port, kind, folder: &folder, parts: &parts }.check_ids()?;
        self.committed.insert(port.to_owned(), parts.clone());
        self.place(&folder, Artifact { artifact_type: (&PortType::Rows(kind)).into(), parts })
    }

    fn commit_tree(&mut self, port: &str, port_type: &PortType) -> Result<OutputRecord, OperatorError> {
        let folder = self.output_folder(port);
        // Nothing was written to it: it is empty.
        if nofollow::is_missing(&folder) {
            self.tree(port)?;
        }
        if !self.programs {
            let parts = output_folder::described(&folder, port, &self.store.temporary())?;
            return self.place(&folder, Artifact { artifact_type: port_type.into(), parts });
        }
        let own = self.store.temporary();
        let parts = output_folder::taken(&folder, &own, port);
        let record = parts.and_then(|parts| self.place(&own, Artifact { artifact_type: port_type.into(), parts }));
        // Left only if the artifact exists already, or if it failed.
        clear(&own);
        record
    }

    /// Moves a finished folder to the path given by its content.
    fn place(&self, folder: &Path, artifact: Artifact) -> Result<OutputRecord, OperatorError> {
        let id = artifact.id();
        // An existing artifact is kept only if it is intact.
        if self.store.read_whole(&id).is_err() {
            if artifact.parts.is_empty() {
                // A table without rows has no files, and perhaps no folder yet.
                nofollow::create_folder(folder).context("create", folder)?;
            }
            // Parts linked from other artifacts were not read.
            if self.store.settle(&id, &artifact, folder)? && !self.adopted {
                self.store.intact_ids().insert(id);
            }
            // After the files are there: until then, the note explains why they are not.
            self.store.forget_release(&id);
        }
        let (rows, bytes) = (artifact.rows(), artifact.bytes());
        Ok(OutputRecord { id, artifact_type: artifact.artifact_type, rows, bytes })
    }
}

impl Drop for StoreSink {
    fn drop(&mut self) {
        for port in self.ports.keys() {
            clear(&self.output_folder(port));
        }
        clear(&self.folder);
    }
}

impl OutputSink for StoreSink {
    fn write(&mut self, port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        let Some(&PortType::Rows(kind)) = self.ports.get(port) else {
            return Err(OperatorError::engine(format!("there is no output table `{port}`")));
        };
        let mut batch = as_stored(kind, batch)?;
        if kind == RecordKind::Reject && !self.redactor.is_empty() {
            batch = struck(&batch, &self.redactor)?;
        }
        if !self.tables.contains_key(port) {
            // Readers find columns by name: the second of two with one name would show the values of the first.
            if let Some(name) = name_twice(batch.schema().fields()) {
                let error = OperatorError::pipeline(format!("the output `{port}` has two columns `{name}`"));
                return Err(error.with_help("give one of them another name (in SQL: `AS other_name`)"));
            }
            self.tables.insert(port.to_owned(), TableWriter::new(self.output_folder(port), kind, &batch.schema()));
        }
        let Some(table) = self.tables.get_mut(port) else {
            return Err(OperatorError::engine(format!("there is no output table `{port}`")));
        };
        let Some(limit) = self.limit else { return table.write(port, &batch) };
        let room = limit.saturating_sub(table.rows);
        table.write(port, &batch.slice(0, batch.num_rows().min(usize::try_from(room).unwrap_or(usize::MAX))))?;
        if room < batch.num_rows() as u64 && self.all_full(limit) {
            self.limit_reached = true;
            return Err(OperatorError::cancelled());
        }
        Ok(())
    }

    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError> {
        if !matches!(self.ports.get(port), Some(PortType::Tree(_))) {
            return Err(OperatorError::engine(format!("there is no output folder `{port}`")));
        }
        let path = self.output_folder(port);
        nofollow::create_folder(&path).context("create", &path)?;
        Ok(path)
    }

    fn figure(&mut self, name: &str, value: f64) {
        self.written.figures.insert(name.to_owned(), value);
    }

    fn summary(&mut self, text: &str) {
        self.written.summary.push_str(&self.redactor.strike(text));
    }
}

/// Removes secrets from the texts of rows.
fn struck(batch: &RecordBatch, redactor: &Redactor) -> Result<RecordBatch, OperatorError> {
    let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
    for column in &mut columns {
        if let Some(texts) = column.as_string_opt::<i32>() {
            let texts = texts.iter().map(|text| text.map(|text| redactor.strike(text)));
            *column = Arc::new(texts.collect::<StringArray>());
        }
    }
    table(batch.schema(), columns, batch.num_rows())
}

/// Makes a batch that may have no columns.
fn table(schema: SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, OperatorError> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
}

/// Returns rows as they are stored: the kind's columns first, then the extra ones, without view types and metadata, which
/// only matter for execution.
///
/// # Errors
/// Fails if they do not fit the kind.
pub(crate) fn as_stored(kind: RecordKind, batch: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let known = if kind == RecordKind::Table { batch.clone() } else { conform(kind, batch)? };
    let (first, schema) = (known.schema(), batch.schema());
    let extra = schema.fields().iter().zip(batch.columns()).filter(|(field, _)| first.index_of(field.name()).is_err());
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in first.fields().iter().zip(known.columns()).chain(extra) {
        let data_type = plain_type(field.data_type());
        let same = data_type == *field.data_type();
        columns.push(if same { Arc::clone(column) } else { cast(column, &data_type)? });
        fields.push(Field::new(field.name(), data_type, field.is_nullable()));
    }
    table(Arc::new(Schema::new(fields)), columns, batch.num_rows())
}

fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => plain_type(value),
        other => other.clone(),
    }
}

impl std::fmt::Debug for StoreSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreSink").field("folder", &self.folder).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::operator::InputArtifact;
    use searchmill_schemas::{Document, to_batch};

    fn sink(store: &Store) -> StoreSink {
        let ports = IndexMap::from([("rows".to_owned(), PortType::Rows(RecordKind::Document))]);
        StoreSink::new(store, ports)
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
    fn parts_are_cut_by_the_rows_alone() {
        let rows = 40_000;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut artifacts = Vec::new();
        for (step, changed) in [(rows, rows), (611, rows), (5000, 20_000)] {
            let row = |i: usize| Document {
                id: format!("d{i}"),
                title: (i == changed).then(|| "changed".to_owned()),
                text: format!("{i} ").repeat(i % 10),
                metadata: None,
            };
            let batch = to_batch(&(0..rows).map(row).collect::<Vec<_>>()).unwrap();
            let mut cut = sink(&store);
            for start in (0..rows).step_by(step) {
                cut.write("rows", &batch.slice(start, step.min(rows - start))).unwrap();
            }
            let id = cut.commit().unwrap().outputs["rows"].id;
            let InputArtifact::Rows(read) = store.open_input(&id).unwrap() else { panic!("a table") };
            let read: Vec<_> = read.batches().map(Result::unwrap).collect();
            assert_eq!(arrow::compute::concat_batches(&batch.schema(), &read).unwrap().columns(), batch.columns());
            artifacts.push(store.artifact(&id).unwrap());
        }
        assert_eq!(artifacts[0], artifacts[1]);
        let parts = artifacts[0].parts.len();
        assert!((3..20).contains(&parts), "{parts}");
        let same = artifacts[2].parts.iter().filter(|part| artifacts[0].parts.contains(part)).count();
        assert_eq!(same, parts - 1, "one row changed");
    }

    #[test]
    fn parts_with_large_rows_end_by_their_bytes() {
        let row = |i: usize| Document { id: format!("d{i}"), title: None, text: "long ".repeat(4000), metadata: None };
        let batch = to_batch(&(0..5000).map(row).collect::<Vec<_>>()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut large = sink(&store);
        large.write("rows", &batch).unwrap();
        let id = large.commit().unwrap().outputs["rows"].id;
        let rows: Vec<u64> = store.artifact(&id).unwrap().parts.iter().map(|part| part.rows).collect();
        assert_eq!(rows, [2048, 2048, 904]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_a_folder_becomes_the_file_that_it_leads_to() {
        use crate::operator::TreeKind;
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let made = |target: &str| {
            let ports = IndexMap::from([("files".to_owned(), PortType::Tree(TreeKind::Files))]);
            let mut sink = StoreSink::new(&store, ports);
            let tree = sink.tree("files").unwrap();
            fs::write(tree.join("one"), "content").unwrap();
            symlink(target, tree.join("two")).unwrap();
            sink.commit()
        };
        let id = made("one").unwrap().outputs["files"].id;
        assert_eq!(store.check(&id), Ok(()));
        assert!(fs::symlink_metadata(store.artifact_folder(&id).join("two")).unwrap().is_file());
        for nowhere in [".", "nothing"] {
            assert!(made(nowhere).unwrap_err().message.contains("neither file nor folder"), "{nowhere}");
        }
        // Files added to the folder later are damage.
        fs::write(store.artifact_folder(&id).join("three"), "more").unwrap();
        assert_eq!(store.check(&id), Err(crate::store::Damage::Corrupt));
        assert!(store.open_input(&id).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn files_whose_names_no_artifact_can_have_are_refused() {
        use crate::operator::TreeKind;
        use std::os::unix::ffi::OsStrExt;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        for (name, fits) in [(&b"a\\b"[..], false), (b"a\xffb", false), (b"a\nb", true), ("\u{202e}é".as_bytes(), true)]
        {
            let ports = IndexMap::from([("files".to_owned(), PortType::Tree(TreeKind::Files))]);
            let mut sink = StoreSink::new(&store, ports);
            let tree = sink.tree("files").unwrap();
            // The name must not be taken for this path.
            fs::create_dir(tree.join("a")).unwrap();
            fs::write(tree.join("a/b"), "other").unwrap();
            fs::write(tree.join(std::ffi::OsStr::from_bytes(name)), "content").unwrap();
            match sink.commit() {
                Ok(committed) => {
                    let id = committed.outputs["files"].id;
                    assert!(fits, "{name:?}");
                    assert_eq!((store.check(&id), store.artifact(&id).unwrap().parts.len()), (Ok(()), 2));
                }
                Err(error) => assert!(!fits && error.message.contains("no artifact can have"), "{}", error.message),
            }
        }
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
        assert_eq!(store.verify(&id), Err(crate::store::Damage::Corrupt));
        fs::remove_file(&part).unwrap();
        assert_eq!(store.check(&id), Err(crate::store::Damage::Missing));
        // Read as a whole, this would take all memory.
        let description = fs::File::options().write(true).open(store.description_path(&id)).unwrap();
        description.set_len(1 << 40).unwrap();
        assert_eq!(store.check(&id), Err(crate::store::Damage::Corrupt));
    }
}

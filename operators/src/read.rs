//! `read`: reads rows from files, object stores, HTTP servers and the Hugging Face Hub.

mod early;
mod params;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{Schema, SchemaRef};
use searchmill_data::documents::files::{Documents, MAX_BYTES};
use searchmill_data::documents::kind;
use searchmill_data::row_kind::RowKind;
use searchmill_data::source::decode::{Added, Decoder, Direct, Ids, Mapped, Raw};
use searchmill_data::source::foreign::Absent;
use searchmill_data::source::format::Format;
use searchmill_data::source::identity::{Identity, Rule};
use searchmill_data::source::layout::Layout;
use searchmill_data::source::location::{self, SourceFile};
use searchmill_data::source::mapping::Origin;
use searchmill_data::source::notes::Notes;
use searchmill_data::source::ordered::{Flow, map_in_order};
use searchmill_data::source::parquet_file;
use searchmill_data::source::record::{Block, Decoded, Fault};
use searchmill_data::source::shape::{Shape, Widen};
use searchmill_data::source::strict::with_constants;
use searchmill_data::source::table::{self, Splitting};
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, Ports,
    Repeatability, Source,
};
use searchmill_schemas::{RecordKind, Reject, cast_exactly, has_bytes, text_column};
use serde::de::DeserializeSeed;
use serde_json::Value;

use self::early::{FIELDS_TOLD, no_field, splitting_of};
use self::params::issues;
pub use self::params::{Paths, ReadParams};

/// Reads rows from outside the pipeline.
pub struct Read;

impl Operator for Read {
    type Params = ReadParams;
    const NAME: &'static str = "read";
    const VERSION: u32 = 8;
    const ABOUT: &'static str = "Reads rows from files, object stores, HTTP servers and the Hugging Face Hub.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A JSONL file of documents with its own field names",
            yaml: "corpus: {op: read, with: {path: data/*.jsonl.gz, as: document, columns: {id: doc_id, text: \"{lead}\\n{body}\"}}}",
        },
        Example {
            title: "A CSV file of questions, with one document as evidence and optionally a sentence in it",
            yaml: r#"questions: {op: read, with: {path: questions.csv, as: question, columns: {id: nr, golden_answers: answer, evidence: '[{{"document_id": "{doc}", "fact": "{sentence?}"}}]'}}}"#,
        },
        Example {
            title: "A CSV file with semicolons, and several answers in a cell",
            yaml: "questions: {op: read, with: {path: questions.csv, as: question, delimiter: \";\", columns: {golden_answers: answers}, split: \"|\"}}",
        },
        Example {
            title: "The same with bars between cells, and a separator for each column",
            yaml: "questions: {op: read, with: {path: questions.csv, as: question, delimiter: \"|\", split: {golden_answers: \";\"}}}",
        },
        Example {
            title: "HotpotQA's questions, and the corpus of their contexts",
            yaml: "questions: {op: read, with: {path: hotpot_dev.json, as: question, layout: hotpotqa}}",
        },
        Example {
            title: "A folder of texts, Markdown, HTML, PDF and DOCX files",
            yaml: "corpus: {op: read, with: {path: papers, as: document, layout: files}}",
        },
        Example {
            title: "A file on the Hugging Face Hub, as a table",
            yaml: "rows: {op: read, with: {path: \"hf://datasets/org/name/data/train.parquet@main\", as: table, limit: 1000}}",
        },
    ];

    fn declare(params: &ReadParams) -> Declaration {
        let ports = Ports::new().rows_out("rows", RecordKind::from(params.kind), "the rows, in the order of the files");
        let paths = params.path.list();
        let mut sources = Vec::with_capacity(paths.len());
        for path in &paths {
            sources.push(match params.layout {
                Some(Layout::Files) => location::named_source(path, kind::ENDINGS),
                _ => location::source(path),
            });
        }
        // The content behind a URL may change.
        let remote = sources.iter().any(Source::is_remote);
        let checked = params.clone();
        let declaration = Declaration::pure(ports).issues(issues(params));
        let declaration = declaration.checks_files(move |directory| early::file_issues(&checked, directory));
        // Layouts may add columns.
        let is_plain = matches!(params.layout, None | Some(Layout::Files));
        let declaration = if is_plain { declaration.gives_plain_columns() } else { declaration };
        declaration
            .repeatability(if remote { Repeatability::Not } else { Repeatability::Everywhere })
            .reads(move |_| sources.clone())
            .retries(paths.iter().any(|path| location::scheme(path) == Some("hf")))
    }

    fn open(params: &ReadParams, _inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        if params.layout == Some(Layout::Files) {
            let files = location::files_ending(kind::ENDINGS, &params.path.list(), context)?;
            return Ok(Kernel::Blocking(Box::new(ReadKernel { params: params.clone(), files })));
        }
        let files = location::files(&params.path.list(), context)?;
        for file in &files {
            params.format.of_file(&file.name, &file.shown)?;
        }
        Ok(Kernel::Blocking(Box::new(ReadKernel { params: params.clone(), files })))
    }
}

/// A column and the field that it is read from.
type Sought<'a> = (&'a str, String);

struct ReadKernel {
    params: ReadParams,
    files: Vec<SourceFile>,
}

impl BlockingKernel for ReadKernel {
    fn run(&self, _: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let is_plain_table = self.params.kind == RowKind::Table && self.params.columns.is_empty();
        // Parquet files have names and types, so that nothing is inferred and no value is converted.
        if is_plain_table && self.formats().all(|format| format == Some(Format::Parquet)) {
            return self.copy_parquet(outputs, context);
        }
        // Before the rows: a wrong name in `columns` would otherwise show as a reject of every record.
        self.check_fields(context)?;
        let rule = match (self.params.kind, self.params.layout) {
            (RowKind::Table, _) => Rule::None,
            (RowKind::Document, Some(layout)) => layout.document_ids(),
            _ => Rule::Unique,
        };
        let mut sink = Sink::new(outputs, &self.params, Identity::new(rule));
        if self.params.layout == Some(Layout::Files) {
            let limit = self.params.max_bytes.unwrap_or(MAX_BYTES);
            let documents = Documents::new(context, self.params.compression, limit);
            map_in_order(
                context.threads(),
                |push| documents.parts(&self.files, push),
                |part| documents.read(part),
                |decoded| self.accept(&mut sink, decoded, context),
            )?;
            return sink.finish(&RecordKind::Document.schema(), self, context);
        }
        let decoder = self.decoder(context)?;
        map_in_order(
            context.threads(),
            |push| table::blocks(&self.files, splitting_of(&self.params), context, push),
            |block| decoder.decode(block),
            |decoded| self.accept(&mut sink, decoded, context),
        )?;
        sink.finish(&decoder.schema(), self, context)
    }
}

/// Number of records on which other layouts are tried if none could be read.
const TRIED_RECORDS: usize = 5;

impl ReadKernel {
    /// Takes the rows and rejects of a block.
    fn accept(&self, sink: &mut Sink<'_, '_>, decoded: Decoded, context: &Context) -> Result<Flow, OperatorError> {
        context.check_cancelled()?;
        sink.notes.dropped.extend(decoded.dropped.iter().cloned());
        sink.skipped += decoded.skipped;
        sink.notes.nulled(&decoded.file, &decoded.nulled);
        sink.notes.remarks.extend(decoded.remarks.iter().copied());
        let (mut batch, rejects) = sink.identity.apply(decoded)?;
        if let Some(prefix) = &self.params.id_prefix {
            let ids = text_column(&batch, "id")?.iter();
            let ids: StringArray = ids.map(|id| id.map(|id| format!("{prefix}{id}"))).collect();
            let (schema, mut columns, _) = batch.into_parts();
            columns[schema.index_of("id")?] = Arc::new(ids);
            batch = RecordBatch::try_new(schema, columns)?;
        }
        let flow = sink.take(batch, &rejects)?;
        context.progress().set(sink.rows, self.params.limit.unwrap_or(0), "rows");
        Ok(flow)
    }

    fn formats(&self) -> impl Iterator<Item = Option<Format>> {
        self.files.iter().map(|file| self.params.format.or_of_name(&file.name))
    }

    fn decoder(&self, context: &Context) -> Result<Decoder, OperatorError> {
        let kind = RecordKind::from(self.params.kind);
        if let Some(layout) = self.params.layout {
            let mut added = Vec::new();
            for (name, origin) in &self.params.columns {
                let origin = Origin::parse(origin).map_err(OperatorError::pipeline)?;
                added.push(Added { name: name.clone(), origin });
            }
            return Ok(Decoder::Layout(layout, kind, added));
        }
        if kind == RecordKind::Table { self.table_decoder(context) } else { self.kind_decoder(kind, context) }
    }

    /// Returns where a column comes from.
    fn origin(&self, column: &str, text: &str) -> Result<Origin, String> {
        let origin = Origin::parse(text)?;
        Ok(match self.params.separator_of(column) {
            Some(separator) => origin.split_at(separator),
            None => origin,
        })
    }

    fn kind_decoder(&self, kind: RecordKind, context: &Context) -> Result<Decoder, OperatorError> {
        let schema = kind.schema();
        let (mut absent, mut conversation) = (None, None);
        // Conversations have many forms.
        if kind == RecordKind::Trajectory {
            absent = self.absent(context)?;
            conversation = Some([schema.index_of("messages")?, schema.index_of("protocol")?]);
        }
        let columns = &self.params.columns;
        let mut origins = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let source = columns.get(field.name()).unwrap_or(field.name());
            origins.push(self.origin(field.name(), source).map_err(OperatorError::pipeline)?);
        }
        let mut fields: Vec<&str> = origins.iter().flat_map(Origin::fields).collect();
        fields.sort_unstable();
        // A field that two columns read needs the slower decoder, which looks up each column's source in the record.
        let once = fields.windows(2).all(|pair| pair[0] != pair[1]);
        let plain = origins.iter().all(|origin| matches!(origin, Origin::Field(_)));
        let cells = self.formats().any(|format| matches!(format, Some(Format::Csv | Format::Tsv)));
        let ids = if columns.contains_key("id") { Ids::Required } else { Ids::Numbered };
        let target = Direct::kind(
            kind,
            |name| match columns.get(name) {
                // Messages show the column name instead of a template.
                Some(source) if !Origin::parse(source).is_ok_and(|origin| origin.is_template()) => source.clone(),
                _ => name.to_owned(),
            },
            schema.fields(),
            ids,
        );
        if once && plain && !cells && conversation.is_none() {
            return Ok(Decoder::Direct(target));
        }
        Ok(Decoder::Mapped(Mapped { origins, target, absent, conversation }))
    }

    fn table_decoder(&self, context: &Context) -> Result<Decoder, OperatorError> {
        let origins = self.params.columns.iter().map(|(name, origin)| self.origin(name, origin));
        let origins = origins.collect::<Result<Vec<_>, _>>().map_err(OperatorError::pipeline)?;
        let mut shapes: Vec<Shape> = vec![Shape::Unknown; origins.len()];
        let mut row = Shape::row();
        let most = match self.params.infer_rows {
            0 => u64::MAX,
            // With many files, an equal share of rows could be too small to show the types of a file.
            rows => (rows / self.files.len() as u64).max(100),
        };
        // The first rows of every file.
        for file in &self.files {
            let mut left = most;
            table::blocks(std::slice::from_ref(file), splitting_of(&self.params), context, &mut |block: Block| {
                for (_, _, record) in block.raw().into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                    // A record that cannot be parsed is ignored here and rejected when it is read.
                    drop(if origins.is_empty() {
                        widen(&mut row, record)
                    } else {
                        widen_mapped(&mut shapes, &origins, record)
                    });
                }
                left = left.saturating_sub(block.count() as u64);
                if left == 0 { Flow::Stop } else { Flow::Continue }
            })?;
            context.check_cancelled()?;
        }
        if origins.is_empty() {
            return Ok(Decoder::Direct(Direct::table(row.columns())));
        }
        let object = Shape::Object(self.params.columns.keys().cloned().zip(shapes).collect());
        let target = Direct::table(object.columns());
        Ok(Decoder::Mapped(Mapped { origins, target, absent: None, conversation: None }))
    }

    /// Returns the columns of trajectories to derive: those that no record has. Fails if one does not follow from others.
    fn absent(&self, context: &Context) -> Result<Option<Absent>, OperatorError> {
        let schema = RecordKind::Trajectory.schema();
        let mut required = Vec::new();
        for field in schema.fields() {
            let name = field.name();
            // Rows without an id are numbered.
            if !field.is_nullable() && name != "id" && !self.params.columns.contains_key(name) {
                required.push((name.as_str(), name.clone()));
            }
        }
        let (absent, seen) = self.unseen(required, context)?;
        let names: Vec<String> = absent.into_iter().map(|(_, name)| name).collect();
        // An empty input lacks no field.
        let prefix = self.params.id_prefix.as_deref().unwrap_or_default();
        let Some(absent) = Absent::of(names, prefix).filter(|_| !seen.is_empty()) else { return Ok(None) };
        let lacking = absent.underivable();
        if !lacking.is_empty() {
            let named = lacking.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let message = format!("no record has {named}, which trajectories need and nothing else tells");
            let fields = seen.iter().take(FIELDS_TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
            let fitting = match self.fitting(context)?.as_slice() {
                [] => String::new(),
                names => format!(", those of `layout: {}`", names.join("` or `layout: ")),
            };
            let chat = if seen.contains("conversations") { "; write `columns: {messages: conversations}`" } else { "" };
            let help = format!("name the fields in `columns:`; the records have {fields}{fitting}{chat}");
            return Err(OperatorError::data(message).with_help(help));
        }
        context.progress().log(&format!("derived columns, which no record has: {}", absent.names().join(", ")));
        Ok(Some(absent))
    }

    /// Fails if no record has a field that `columns:` names.
    fn check_fields(&self, context: &Context) -> Result<(), OperatorError> {
        let mut missing = Vec::new();
        for (column, text) in &self.params.columns {
            let origin = Origin::parse(text).map_err(OperatorError::pipeline)?;
            missing.extend(origin.required().into_iter().map(|field| (column.as_str(), field.to_owned())));
        }
        let (missing, seen) = self.unseen(missing, context)?;
        match missing.first() {
            // An empty input lacks no field.
            Some((column, field)) if !seen.is_empty() => Err(no_field(column, field, &seen)),
            _ => Ok(()),
        }
    }

    /// Returns the fields, each after the column that needs it, that no record has, and the fields of the records. This
    /// reads the files before their rows are read; it stops when all fields have been found.
    fn unseen<'a>(
        &self,
        mut missing: Vec<Sought<'a>>,
        context: &Context,
    ) -> Result<(Vec<Sought<'a>>, BTreeSet<String>), OperatorError> {
        let mut seen = BTreeSet::new();
        for file in &self.files {
            if missing.is_empty() {
                break;
            }
            table::blocks(std::slice::from_ref(file), splitting_of(&self.params), context, &mut |block: Block| {
                for (_, _, record) in block.raw() {
                    // The names of its fields, those of empty cells too; none of an unreadable record.
                    let fields: BTreeSet<String> = match record {
                        Raw::Cells(cells) => cells.into_iter().flatten().map(|(name, _)| name.to_owned()).collect(),
                        Raw::Json(_) => match record.value() {
                            Ok((Value::Object(fields), _)) => fields.into_iter().map(|(name, _)| name).collect(),
                            _ => BTreeSet::new(),
                        },
                    };
                    missing.retain(|(_, field)| !fields.contains(field));
                    seen.extend(fields.into_iter().take(FIELDS_TOLD));
                    if missing.is_empty() {
                        return Flow::Stop;
                    }
                }
                Flow::Continue
            })?;
            context.check_cancelled()?;
        }
        Ok((missing, seen))
    }

    /// Returns the names of the other layouts that fit the first records of the first file: those with the most typical
    /// fields.
    fn fitting(&self, context: &Context) -> Result<Vec<String>, OperatorError> {
        let kind = RecordKind::from(self.params.kind);
        // From 1: a layout none of whose typical fields is there does not fit.
        let (mut best, mut names) = (1, Vec::new());
        for layout in Layout::of_kind(kind).filter(|layout| self.params.layout != Some(*layout)) {
            let splitting = Splitting { cut: layout.cut(), ..splitting_of(&self.params) };
            // How well the worst of the records fits; one that cannot be parsed fits no layout.
            let mut worst = None;
            table::blocks(self.files.get(..1).unwrap_or_default(), splitting, context, &mut |block: Block| {
                let records = block.raw().into_iter().take(TRIED_RECORDS);
                let fits = records.map(|(at, _, one)| one.value().map_or(0, |(read, _)| layout.fit(kind, at, &read)));
                worst = fits.min();
                Flow::Stop
            })?;
            let fit = worst.unwrap_or(0);
            if fit > best {
                (best, names) = (fit, Vec::new());
            }
            if fit == best {
                names.push(layout.name());
            }
        }
        Ok(names)
    }

    /// Copies Parquet tables with their columns and types. Later files must have the columns of the first; they are
    /// matched by name.
    fn copy_parquet(&self, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let mut sink = Sink::new(outputs, &self.params, Identity::new(Rule::None));
        let mut schema: Option<SchemaRef> = None;
        for file in &self.files {
            let (own, batches) = parquet_file::batches(file, context)?;
            for field in own.fields().iter().filter(|field| has_bytes(field.data_type())) {
                let (shown, name) = (&file.shown, field.name());
                let remark = format!("`{shown}`: the column `{name}` holds bytes that are no text; they stay bytes");
                context.progress().log(&remark);
            }
            let schema = schema.get_or_insert_with(|| Arc::new(Schema::new(own.fields().clone())));
            for batch in batches {
                context.check_cancelled()?;
                if sink.take(aligned(&batch?, schema, file)?, &[])? == Flow::Stop {
                    return sink.finish(schema, self, context);
                }
            }
        }
        sink.finish(&schema.unwrap_or_else(|| Arc::new(Schema::empty())), self, context)
    }
}

fn widen(row: &mut Shape, record: Raw<'_>) -> Result<(), Fault> {
    match record {
        Raw::Json(bytes) => {
            // On a copy: a record that is broken behind its first fields must not leave them behind.
            let (next, _) = with_constants(&bytes, |bytes| {
                let mut next = row.clone();
                let mut parser = serde_json::Deserializer::from_slice(bytes);
                Widen(&mut next).deserialize(&mut parser)?;
                parser.end()?;
                Ok::<_, Fault>(next)
            })?;
            if matches!(next, Shape::Object(_)) {
                *row = next;
            }
            Ok(())
        }
        Raw::Cells(cells) => {
            if let Shape::Object(fields) = row {
                for (name, text) in cells? {
                    fields.entry(name.to_owned()).or_default().cell(text);
                }
            }
            Ok(())
        }
    }
}

fn widen_mapped(shapes: &mut [Shape], origins: &[Origin], record: Raw<'_>) -> Result<(), Fault> {
    let (value, _) = record.value()?;
    for (shape, origin) in shapes.iter_mut().zip(origins) {
        match origin.find(&value) {
            // Template results are text columns in a table.
            Ok(found) if origin.is_template() && !found.is_null() => Widen(shape).deserialize(&Value::from(""))?,
            Ok(found) => Widen(shape).deserialize(found.as_ref())?,
            // The record will be rejected when it is read.
            Err(_) => {}
        }
    }
    Ok(())
}

fn aligned(batch: &RecordBatch, schema: &SchemaRef, file: &SourceFile) -> Result<RecordBatch, OperatorError> {
    if let Some(extra) = batch.schema().fields().iter().find(|field| schema.field_with_name(field.name()).is_err()) {
        return Err(misfit(file, &format!("it has an extra column `{}`", extra.name())));
    }
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let (name, wanted) = (field.name(), field.data_type());
        let Some(column) = batch.column_by_name(name) else {
            return Err(misfit(file, &format!("it has no column `{name}`")));
        };
        columns.push(cast_exactly(column, wanted).map_err(|error| {
            misfit(file, &format!("its column `{name}` is {}, not {wanted}: {error}", column.data_type()))
        })?);
    }
    // A table without columns has rows too.
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

fn misfit(file: &SourceFile, message: &str) -> OperatorError {
    OperatorError::data(format!("`{}` does not match the first file: {message}", file.shown))
}

/// Writes accepted rows and rejects.
struct Sink<'a, 'b> {
    outputs: &'a mut Outputs<'b>,
    limit: Option<u64>,
    identity: Identity,
    rows: u64,
    rejected: u64,
    /// Records that are no documents.
    skipped: u64,
    first_reject: Option<Reject>,
    notes: Notes,
}

impl<'a, 'b> Sink<'a, 'b> {
    fn new(outputs: &'a mut Outputs<'b>, params: &ReadParams, identity: Identity) -> Self {
        let notes = Notes::new(params.kind.into());
        Self { outputs, limit: params.limit, identity, rows: 0, rejected: 0, skipped: 0, first_reject: None, notes }
    }

    fn take(&mut self, batch: RecordBatch, rejects: &[Reject]) -> Result<Flow, OperatorError> {
        // The last batch may go beyond the limit.
        let left = self.limit.map_or(u64::MAX, |limit| limit - self.rows);
        let batch = if batch.num_rows() as u64 > left { batch.slice(0, left as usize) } else { batch };
        self.rejected += rejects.len() as u64;
        self.first_reject = self.first_reject.take().or_else(|| rejects.first().cloned());
        self.outputs.write_rows("rejects", rejects)?;
        self.rows += batch.num_rows() as u64;
        if batch.num_rows() > 0 {
            self.notes.look(&batch);
            self.outputs.write("rows", &batch)?;
        }
        Ok(if self.limit == Some(self.rows) { Flow::Stop } else { Flow::Continue })
    }

    fn finish(self, schema: &SchemaRef, kernel: &ReadKernel, context: &Context) -> Result<(), OperatorError> {
        if self.rows == 0 {
            // If no record can be read, the params are wrong rather than the records.
            if let Some(reject) = self.first_reject {
                if kernel.params.layout == Some(Layout::Files) {
                    let Reject { id, message, .. } = reject;
                    let count = self.rejected;
                    let message = format!("none of the {count} files or records could be read; {id}: {message}");
                    return Err(OperatorError::data(message).with_help("see `layout: files` in `searchmill ops read`"));
                }
                return Err(nothing_readable(&reject, self.rejected, &kernel.fitting(context)?, kernel));
            }
            self.outputs.write("rows", &RecordBatch::new_empty(Arc::clone(schema)))?;
        }
        for line in self.notes.lines() {
            context.progress().log(&line);
        }
        self.outputs.figure("files", kernel.files.len() as f64);
        self.outputs.figure("rejected", self.rejected as f64);
        if self.skipped > 0 {
            self.outputs.figure("skipped_records", self.skipped as f64);
        }
        if self.identity.repeated > 0 {
            self.outputs.figure("repeated_passages", self.identity.repeated as f64);
        }
        Ok(())
    }
}

fn nothing_readable(reject: &Reject, rejected: u64, fitting: &[String], kernel: &ReadKernel) -> OperatorError {
    let kind = RecordKind::from(kernel.params.kind);
    let message =
        format!("none of the {rejected} records could be read as {kind} rows; {}: {}", reject.id, reject.message);
    let detail: String = reject.detail.as_deref().unwrap_or_default().chars().take(120).collect();
    let advice = match fitting {
        [] => "see `columns:`, `layout:` and `format:` in `searchmill ops read`".to_owned(),
        names => format!("its fields are those of `layout: {}`", names.join("` or `layout: ")),
    };
    OperatorError::data(message).with_help(format!("the first one begins with `{detail}`; {advice}"))
}

#[cfg(test)]
pub(crate) mod tests;

//! Writes rows to a file, in the formats of `write`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use searchmill_data::destination::encode;
use searchmill_data::source::format::{Compression, Format};
use searchmill_engine::operator::RowsInput;
use searchmill_engine::{Failure, Session, Table};
use serde_json::json;

use super::chosen::{columns, each_chosen, is_whole};
use crate::args::{ShowArgs, ShowFormat};
use crate::commands::target::{self, unwritable};
use crate::display::{self, Terminal};

/// Writes the chosen rows to the file completely or not at all.
pub(super) fn write(
    terminal: &Terminal,
    session: &Session,
    table: &Table,
    args: &ShowArgs,
    file: &Path,
) -> Result<(), Failure> {
    let Some(name) = file.file_name() else {
        return Err(Failure::usage(format!("`{}` does not name a file", file.display())));
    };
    let name = name.to_string_lossy().into_owned();
    let format = format(args.format, &name)?;
    let path = target::path_of(session, file)?;
    // Beside the file, so that it can be renamed into place. Removed if anything fails.
    let folder = path.parent().unwrap_or(session.directory());
    let folder = tempfile::Builder::new().prefix(".searchmill-show-").tempdir_in(folder);
    let folder = folder.map_err(|error| unwritable(file, &error))?;
    let rows = &table.rows;
    let chosen = if is_whole(args) { rows.clone() } else { spooled(session, table, args, folder.path())? };
    let partial = folder.path().join("rows");
    let created = File::create_new(&partial).map_err(|error| unwritable(file, &error))?;
    let target = BufWriter::with_capacity(1 << 20, created);
    let mut target = session.with_context(|context| match (format, Compression::of_name(&name)) {
        (Format::Parquet, _) => encode::parquet(&chosen, Compression::Auto, target, context),
        (format, compression) => encode::text(&chosen, format, compression, target, context),
    })?;
    // On disk before the rename: a power cut must not leave a file of that name without its rows.
    let written = target.flush().and_then(|()| target.get_ref().sync_all());
    let renamed = written.and_then(|()| std::fs::rename(&partial, &path));
    renamed.map_err(|error| unwritable(file, &error))?;
    if terminal.is_json() {
        terminal.json(&json!({"file": file, "rows": chosen.rows}));
        return Ok(());
    }
    let bytes = display::bytes(path.metadata()?.len());
    let (some, all) = (chosen.rows, rows.rows);
    terminal.note(&format!("{}: {some} of {all} {} rows ({bytes})", file.display(), rows.kind));
    Ok(())
}

fn format(asked: Option<ShowFormat>, name: &str) -> Result<Format, Failure> {
    match asked {
        Some(ShowFormat::Jsonl) => Ok(Format::Jsonl),
        Some(ShowFormat::Json) => Ok(Format::Json),
        Some(ShowFormat::Csv) => Ok(Format::Csv),
        Some(ShowFormat::Tsv) => Ok(Format::Tsv),
        Some(ShowFormat::Parquet) => Ok(Format::Parquet),
        Some(ShowFormat::Table | ShowFormat::Conversation) => {
            let failure = Failure::usage("tables and conversations are not written to files");
            Err(failure.with_help("use `--format jsonl` (or json, csv, tsv, parquet), or redirect stdout"))
        }
        None => Format::of_name(name).ok_or_else(|| {
            let failure = Failure::usage(format!("the format of `{name}` cannot be told from its name"));
            failure.with_help("add `--format jsonl` (or json, csv, tsv, parquet)")
        }),
    }
}

/// Copies the chosen rows to a file, since an encoder may read them twice.
fn spooled(session: &Session, table: &Table, args: &ShowArgs, folder: &Path) -> Result<RowsInput, Failure> {
    let path = folder.join("chosen.parquet");
    let schema = table.read(&[], &columns(table, args))?.schema();
    let writer = ArrowWriter::try_new(File::create_new(&path)?, Arc::clone(&schema), None);
    let mut writer = writer.map_err(|error| Failure::Other(error.to_string()))?;
    let chosen = each_chosen(session, table, args, &mut |batch| {
        // The schema of the file: a batch may say that a column has no nulls where another batch has some.
        let batch = RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec());
        let batch = batch.map_err(|error| Failure::Other(error.to_string()))?;
        writer.write(&batch).map_err(|error| Failure::Other(error.to_string()))
    })?;
    writer.close().map_err(|error| Failure::Other(error.to_string()))?;
    Ok(RowsInput::from_parts(table.kind(), schema, chosen.rows as u64, String::new(), vec![path]))
}

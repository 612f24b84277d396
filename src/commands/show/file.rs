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
use crate::display::{self, Terminal};

/// Writes the chosen rows to the file completely or not at all.
pub(super) fn write(
    terminal: &Terminal,
    session: &Session,
    table: &Table,
    args: &ShowArgs,
    file: &Path,
) -> Result<(), Failure> {
    let path = session.directory().join(file);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.ok_or_else(|| Failure::usage(format!("`{}` does not name a file", file.display())))?;
    let format = format(args.format, &name)?;
    let unwritable = |error: std::io::Error| Failure::Other(format!("cannot write {}: {error}", file.display()));
    if path.is_dir() {
        return Err(Failure::usage(format!("cannot write {}: it is a folder", file.display())));
    }
    // Beside the file, so that it can be renamed into place. Removed if anything fails.
    let folder = path.parent().unwrap_or(session.directory());
    if !folder.is_dir() {
        let message = format!("cannot write {}: the folder {} does not exist", file.display(), folder.display());
        return Err(Failure::usage(message));
    }
    let folder = tempfile::Builder::new().prefix(".searchmill-show-").tempdir_in(folder).map_err(unwritable)?;
    let rows = &table.rows;
    let chosen = if is_whole(args) { rows.clone() } else { spooled(session, table, args, folder.path())? };
    let partial = folder.path().join("rows");
    let target = BufWriter::with_capacity(1 << 20, File::create_new(&partial).map_err(unwritable)?);
    let mut target = session.with_context(|context| match (format, Compression::of_name(&name)) {
        (Format::Parquet, _) => encode::parquet(&chosen, Compression::Auto, target, context),
        (format, compression) => encode::text(&chosen, format, compression, target, context),
    })?;
    let written = target.flush().and_then(|()| target.get_ref().sync_all());
    written.and_then(|()| std::fs::rename(&partial, &path)).map_err(unwritable)?;
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
    let wrong = |error: parquet::errors::ParquetError| Failure::Other(error.to_string());
    let path = folder.join("chosen.parquet");
    let schema = table.read(&[], &columns(table, args))?.schema();
    let mut writer = ArrowWriter::try_new(File::create_new(&path)?, Arc::clone(&schema), None).map_err(wrong)?;
    let chosen = each_chosen(session, table, args, &mut |batch| {
        let batch = RecordBatch::try_new(Arc::clone(&schema), batch.columns().to_vec());
        writer.write(&batch.map_err(|error| Failure::Other(error.to_string()))?).map_err(wrong)
    })?;
    writer.close().map_err(wrong)?;
    Ok(RowsInput::from_parts(table.kind(), schema, chosen.rows as u64, String::new(), vec![path]))
}

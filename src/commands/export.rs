//! `export`: writes an artifact and its lineage to one file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use searchmill_engine::lineage::archive::Export;
use searchmill_engine::{ExportOptions, Failure, Session};
use serde_json::json;

use crate::args::ExportArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn export(terminal: &Terminal, session: &Session, args: &ExportArgs) -> Result<u8, Failure> {
    let options = ExportOptions { run: args.run.clone(), shallow: args.shallow, memo: args.memo };
    let export = session.store().export(args.what.as_deref(), &options)?;
    let census = export.census.clone();
    let path = session.directory().join(&args.file);
    write(&path, export)?;
    if terminal.is_json() {
        terminal.json(&json!({"file": args.file, "holds": census}));
        return Ok(OK);
    }
    let size = std::fs::metadata(&path).map(|metadata| metadata.len()).unwrap_or_default();
    let rows = if args.memo { format!(", {} cached rows", census.rows) } else { String::new() };
    let (artifacts, results, runs) = (census.artifacts, census.results, census.runs);
    let (file, size) = (args.file.display(), display::bytes(size));
    terminal.line(&format!("{file}: {artifacts} artifacts, {results} results, {runs} runs{rows} ({size})"));
    if census.released > 0 {
        let released = census.released;
        terminal.note(&format!("{released} artifacts of its lineage were released: described, without their files"));
    }
    if census.missing > 0 {
        let missing = census.missing;
        terminal.warn(&format!("{missing} artifacts of its lineage are not in the store any more: left out"));
    }
    Ok(OK)
}

/// Writes the file completely or not at all.
fn write(path: &Path, export: Export) -> Result<(), Failure> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Beside the file, so that the rename stays on one file system; the process id, as two exports may run.
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let written = File::create(&partial).and_then(|file| {
        let mut out = BufWriter::new(file);
        export.write(&mut out)?;
        out.flush()?;
        out.get_ref().sync_all()?;
        std::fs::rename(&partial, path)
    });
    written.map_err(|error| {
        if let Err(left) = std::fs::remove_file(&partial) {
            tracing::debug!("cannot remove {}: {left}", partial.display());
        }
        Failure::Other(format!("cannot write {}: {error}", path.display()))
    })
}

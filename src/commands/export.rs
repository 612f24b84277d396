//! `export`: writes an artifact and its lineage to one file.

use searchmill_engine::{ExportOptions, Failure, Session};
use serde_json::json;

use super::target;
use crate::args::ExportArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn export(terminal: &Terminal, session: &Session, args: &ExportArgs) -> Result<u8, Failure> {
    let options = ExportOptions { run: args.run.clone(), shallow: args.shallow, memo: args.memo };
    let path = target::path_of(session, &args.file)?;
    let export = session.store().export(args.what.as_deref(), &options)?;
    let census = export.census.clone();
    target::replace(&path, |out| export.write(out))?;
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

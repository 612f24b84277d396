//! `import`: adds an archive of `export` to a store.

use std::fs::File;
use std::io::{BufRead, BufReader};

use searchmill_engine::{Failure, Session};

use crate::args::ImportArgs;
use crate::display::Terminal;
use crate::exit::OK;

/// Exports are compressed with zstd, whose frames start with these bytes (RFC 8878, 3.1.1).
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

pub(super) fn import(terminal: &Terminal, session: &Session, args: &ImportArgs) -> Result<u8, Failure> {
    let path = session.directory().join(&args.file);
    let unreadable = |error| Failure::usage(format!("cannot read {}: {error}", args.file.display()));
    let mut file = BufReader::new(File::open(&path).map_err(unreadable)?);
    if !file.fill_buf().map_err(unreadable)?.starts_with(&MAGIC) {
        let message = format!("{} is not an export of searchmill", args.file.display());
        return Err(Failure::usage(message).with_help("`searchmill export` writes one"));
    }
    let imported = session.store().import(file)?;
    if terminal.is_json() {
        terminal.json(&imported);
        return Ok(OK);
    }
    terminal.line(&format!(
        "added: {} artifacts, {} results, {} runs, {} cached rows; already present: {} items",
        imported.artifacts, imported.results, imported.runs, imported.rows, imported.known
    ));
    if let (Some(name), Some(artifact)) = (&imported.root, &imported.artifact) {
        terminal.line(&format!("{name} is {}", artifact.digest().short()));
    }
    if imported.different > 0 {
        let count = imported.different;
        terminal.warn(&format!("{count} results were here with other outputs: those here were left as they are"));
    }
    Ok(OK)
}

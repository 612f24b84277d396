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
    let opened = File::open(&path).and_then(|file| {
        let mut file = BufReader::new(file);
        // Looked at, not taken: the import reads the file from its first byte.
        let is_export = file.fill_buf()?.starts_with(&MAGIC);
        Ok((file, is_export))
    });
    let (file, is_export) =
        opened.map_err(|error| Failure::usage(format!("cannot read {}: {error}", args.file.display())))?;
    if !is_export {
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

//! `import`: takes what `export` wrote into a store.

use std::fs::File;
use std::io::BufReader;

use searchmill_engine::lineage::archive;

use super::Session;
use crate::args::ImportArgs;
use crate::exit::{Failure, OK};

pub(super) fn import(session: &Session<'_>, args: &ImportArgs) -> Result<u8, Failure> {
    let path = session.directory.join(&args.file);
    let unreadable = |error| Failure::usage(format!("cannot read {}: {error}", args.file.display()));
    let file = File::open(&path).map_err(unreadable)?;
    let imported = archive::import(&session.store()?, BufReader::new(file))?;
    if session.terminal.is_json() {
        session.terminal.line(&serde_json::to_string(&imported).unwrap_or_default());
        return Ok(OK);
    }
    session.terminal.line(&format!(
        "new here: {} artifacts, {} results, {} runs, {} remembered rows; {} things were known",
        imported.artifacts, imported.results, imported.runs, imported.rows, imported.known
    ));
    if let (Some(name), Some(artifact)) = (&imported.root, &imported.artifact) {
        session.terminal.line(&format!("{name} is {}", artifact.digest().short()));
    }
    if imported.different > 0 {
        let count = imported.different;
        session
            .terminal
            .warn(&format!("{count} results were here with other outputs: those here were left as they are"));
    }
    Ok(OK)
}

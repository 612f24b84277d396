//! `diff`: shows the differences between two runs.

use searchmill_engine::{Failure, Session};

use crate::args::DiffArgs;
use crate::display::{Terminal, lineage};
use crate::exit::OK;

pub(super) fn diff(terminal: &Terminal, session: &Session, args: &DiffArgs) -> Result<u8, Failure> {
    let found = session.diff(&args.one, &args.other)?;
    if terminal.is_json() {
        let text = serde_json::to_string(&found).map_err(|error| Failure::Other(error.to_string()))?;
        terminal.line(&text);
    } else {
        terminal.line(lineage::run_diff(&found).trim_end());
    }
    Ok(OK)
}

//! `diff`: shows the differences between two runs.

use searchmill_engine::{Failure, Session};

use crate::args::DiffArgs;
use crate::display::{Terminal, lineage};
use crate::exit::OK;

pub(super) fn diff(terminal: &Terminal, session: &Session, args: &DiffArgs) -> Result<u8, Failure> {
    let found = session.diff(&args.one, &args.other)?;
    terminal.tell(&found, lineage::run_diff(&found).trim_end());
    Ok(OK)
}

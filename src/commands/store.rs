//! Note about a missing store.

use searchmill_engine::{Failure, Session};

use crate::display::Terminal;

/// Prints a note if there is no store, for commands that continue without one.
pub(super) fn note_if_missing(terminal: &Terminal, session: &Session) -> Result<(), Failure> {
    if !session.store().exists()? {
        terminal.note(&session.store().missing_message());
    }
    Ok(())
}

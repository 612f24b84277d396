//! What is said of a store that does not exist.

use searchmill_engine::{Failure, Session};

use crate::display::Terminal;

/// Says that there is no store, for commands that go on without one.
pub(super) fn note_if_missing(terminal: &Terminal, session: &Session) -> Result<(), Failure> {
    if !session.has_store()? {
        terminal.note(&session.no_store());
    }
    Ok(())
}

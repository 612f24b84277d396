//! `schema`: prints the JSON Schema of pipelines, generated from the operators' types.

use searchmill_engine::Session;

use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn schema(terminal: &Terminal, session: &Session) -> u8 {
    terminal.line(&serde_json::to_string_pretty(&session.schema()).unwrap_or_default());
    OK
}

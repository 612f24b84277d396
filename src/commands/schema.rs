//! `schema`: the JSON Schema of pipelines, generated from the operators' types.

use super::Session;
use crate::exit::OK;
use crate::pipeline;

pub(super) fn schema(session: &Session<'_>) -> u8 {
    let schema = searchmill_engine::plan::pipeline_schema(&pipeline::registry());
    session.terminal.line(&serde_json::to_string_pretty(&schema).unwrap_or_default());
    OK
}

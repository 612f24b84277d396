//! `schema`: the JSON Schema of pipelines, generated from the operators' types.

use super::Session;
use crate::exit::{Failure, OK};
use crate::pipeline;

pub(super) fn schema(session: &Session<'_>) -> Result<u8, Failure> {
    let schema = searchmill_engine::plan::pipeline_schema(&pipeline::registry());
    session.terminal.line(&serde_json::to_string_pretty(&schema).unwrap_or_default());
    Ok(OK)
}

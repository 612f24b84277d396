//! FlashRAG's questions (Jin et al. 2024): `id, question, golden_answers, metadata`.

use searchmill_schemas::Question;
use serde_json::Value;

use super::{hotpotqa, multihop_rag, musique};

/// Reads one question. Takes evidence from metadata in the forms that FlashRAG's own sets use.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    if record.pointer("/metadata/evidence_list").is_some() {
        multihop_rag::question(number, record)
    } else if record.pointer("/metadata/question_decomposition").is_some() {
        musique::question(number, record)
    } else {
        hotpotqa::question(number, record)
    }
}

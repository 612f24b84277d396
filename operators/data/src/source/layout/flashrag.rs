//! FlashRAG's questions (Jin et al. 2024): `id, question, golden_answers, metadata`.

use searchmill_schemas::Question;
use serde_json::Value;

use super::{hotpotqa, multihop_rag, musique};

/// Reads one question. Takes evidence from metadata in the forms that FlashRAG's own sets use.
pub(super) fn question(number: u64, record: Value) -> Result<Question, String> {
    let known = |name: &str| record.get("metadata").is_some_and(|inner| inner.get(name).is_some());
    if known("evidence_list") {
        multihop_rag::question(number, record)
    } else if known("question_decomposition") {
        musique::question(number, record)
    } else {
        hotpotqa::question(number, record)
    }
}

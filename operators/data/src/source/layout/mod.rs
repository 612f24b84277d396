//! Layouts of published data sets: how their records become questions and documents. One file per layout.

mod beir;
mod contents;
mod context;
mod field;
mod flashrag;
mod hipporag;
mod hotpotqa;
mod multihop_rag;
mod musique;
mod open_question;
mod title_sentences;

use schemars::JsonSchema;
use searchmill_schemas::{Document, Question, RecordKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::identity::Rule;
use super::record::Fault;

/// The layout of a published data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// HotpotQA, original (`_id, question, answer, supporting_facts, context`) or FlashRAG's
    /// (`metadata.context.sentences`). Questions, or documents of their contexts.
    Hotpotqa,
    /// 2WikiMultiHopQA, original or FlashRAG's (`metadata.context.content`). Questions, or documents of their contexts.
    #[serde(rename = "2wikimultihopqa")]
    TwoWikiMultihopqa,
    /// MuSiQue, original (`paragraphs`) or FlashRAG's (supporting paragraphs only). Questions, or their paragraphs as
    /// documents.
    Musique,
    /// Bamboogle and R1-Searcher's sets: `idx, question, answer`. Questions only.
    Bamboogle,
    /// Natural Questions, open: `question, answer[]`. Questions only.
    NqOpen,
    /// FlashRAG: questions `id, question, golden_answers, metadata`; documents `id, contents` with the title on the
    /// first line.
    Flashrag,
    /// MultiHop-RAG: official `MultiHopRAG.json` or rows in FlashRAG's layout as questions; `corpus.json` as documents.
    MultihopRag,
    /// BEIR: corpus `_id, title, text` as documents, queries `_id, text` as questions.
    Beir,
    /// HippoRAG: corpus `title, text` as documents; ids are titles.
    Hipporag,
    /// One JSON object `{title: [sentence, …]}` as documents; ids are titles.
    TitleSentences,
}

impl Layout {
    /// Returns the record kinds that the layout can produce.
    pub fn kinds(self) -> &'static [RecordKind] {
        match self {
            Self::Bamboogle | Self::NqOpen => &[RecordKind::Question],
            Self::Hipporag | Self::TitleSentences => &[RecordKind::Document],
            _ => &[RecordKind::Question, RecordKind::Document],
        }
    }

    /// Whether the file is one object whose members are the records.
    pub fn has_members(self) -> bool {
        self == Self::TitleSentences
    }

    /// Returns how its documents get their ids.
    pub fn document_ids(self) -> Rule {
        match self {
            Self::Flashrag | Self::MultihopRag | Self::Beir => Rule::Unique,
            _ => Rule::Title,
        }
    }

    /// Reads one question.
    ///
    /// # Errors
    /// What the record lacks.
    pub fn question(self, number: u64, record: Value) -> Result<Question, Fault> {
        let question = match self {
            Self::Hotpotqa | Self::TwoWikiMultihopqa => hotpotqa::question(number, record),
            Self::Musique => musique::question(number, record),
            Self::Bamboogle | Self::NqOpen => open_question::question(number, record),
            Self::MultihopRag => multihop_rag::question(number, record),
            Self::Beir => beir::question(number, record),
            Self::Flashrag | Self::Hipporag | Self::TitleSentences => flashrag::question(number, record),
        };
        question.map_err(Fault::row)
    }

    /// Reads the documents of one record.
    ///
    /// # Errors
    /// What the record lacks.
    pub fn documents(self, number: u64, record: Value) -> Result<Vec<Document>, Fault> {
        let documents = match self {
            Self::Hotpotqa | Self::TwoWikiMultihopqa => hotpotqa::documents(&record),
            Self::Musique => musique::documents(&record),
            Self::MultihopRag => multihop_rag::document(number, record).map(|document| vec![document]),
            Self::Beir => beir::document(number, record).map(|document| vec![document]),
            Self::Hipporag => hipporag::document(record).map(|document| vec![document]),
            Self::TitleSentences => title_sentences::documents(&record),
            Self::Flashrag | Self::Bamboogle | Self::NqOpen => {
                contents::document(number, record).map(|document| vec![document])
            }
        };
        documents.map_err(Fault::row)
    }
}

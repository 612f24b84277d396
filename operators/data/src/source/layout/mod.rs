//! Data sets by name: how their records become questions and documents. One file each.

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
    /// HotpotQA, original (`_id, question, answer, supporting_facts, context`) or FlashRAG's (`metadata.context.sentences`).
    /// Questions, or the documents of their contexts.
    Hotpotqa,
    /// 2WikiMultiHopQA, original or FlashRAG's (`metadata.context.content`). Questions, or the documents of their contexts.
    #[serde(rename = "2wikimultihopqa")]
    TwoWikiMultihopqa,
    /// MuSiQue, original (`paragraphs`) or FlashRAG's (supporting paragraphs only). Questions, or their paragraphs.
    Musique,
    /// Bamboogle and R1-Searcher's sets: `idx, question, answer`. Questions.
    Bamboogle,
    /// Natural Questions, open: `question, answer[]`. Questions.
    NqOpen,
    /// FlashRAG: questions `id, question, golden_answers, metadata`; documents `id, contents`, title on the first line.
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
    /// The kinds of rows it can give.
    pub fn kinds(self) -> &'static [RecordKind] {
        match self {
            Self::Bamboogle | Self::NqOpen => &[RecordKind::Question],
            Self::Hipporag | Self::TitleSentences => &[RecordKind::Document],
            _ => &[RecordKind::Question, RecordKind::Document],
        }
    }

    /// Is the file one object whose members are the records?
    pub fn has_members(self) -> bool {
        self == Self::TitleSentences
    }

    /// How its documents get their ids.
    pub fn document_ids(self) -> Rule {
        match self {
            Self::Flashrag | Self::MultihopRag | Self::Beir => Rule::Unique,
            _ => Rule::Title,
        }
    }

    /// One question.
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

    /// The documents of one record.
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

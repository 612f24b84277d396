//! Layouts of published data sets: how their records become questions, documents and trajectories. One file
//! per layout.

mod atif;
mod beir;
mod browsecomp_plus;
mod colbert;
mod contents;
mod context;
mod deepsearch_rl;
mod dpr;
mod exchange;
mod field;
mod fit;
mod hipporag;
mod hotpotqa;
mod inspect;
mod kilt;
mod longbench;
mod multihop_rag;
mod musique;
mod nemo_gym;
mod open_question;
mod popqa;
mod r1_searcher;
mod searchlm;
mod title_sentences;
mod triviaqa;
mod verifiers;

use schemars::JsonSchema;
use searchmill_schemas::{Document, Question, RecordKind, Trajectory};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::exchange::definitions_of_chat;
pub(super) use self::exchange::{prediction as prediction_of, question as question_of};
use super::identity::Rule;
use super::record::{Cut, Fault};

/// The layout of a published data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// Each file is a document: texts (`.txt`), Markdown, HTML (its main text), PDF, DOCX; each record of a WARC or WET
    /// file is one. All of them also with `.gz` or `.zst`. In a folder, visible files with these endings count, at any
    /// depth; a pattern reads other files too, by what they contain. The id is the path below the folder or pattern (a
    /// WARC record: its own id), the title that of the document or else the file name. Metadata holds `path`,
    /// `media_type`, `encoding` (`encoding_guessed`), `sections`, `pages` and their `page_offsets` in the text, `url`,
    /// `language`. A file that is damaged, encrypted, without text or not what its name says is a reject.
    Files,
    /// HotpotQA, original (`_id, question, answer, supporting_facts, context`) or FlashRAG's
    /// (`metadata.context.sentences`). Questions, or documents of their contexts.
    Hotpotqa,
    /// 2WikiMultiHopQA, original or FlashRAG's (`metadata.context.content`). Questions, or documents of their contexts.
    #[serde(rename = "2wikimultihopqa")]
    TwoWikiMultihopqa,
    /// MuSiQue, original (`paragraphs`) or FlashRAG's (supporting paragraphs only). Questions, or their paragraphs as
    /// documents; also a corpus `title, text`. Different paragraphs share a title, so ids are derived from the texts, and
    /// evidence names these ids.
    Musique,
    /// Bamboogle: `idx, question, answer`. Questions only.
    Bamboogle,
    /// R1-Searcher's training and evaluation sets (`idx, question, answer`; `pred_anses` stays in the metadata) as
    /// questions; results of its evaluation (`question, answer, pred_ans, gen_text_store`) as trajectories of the protocol
    /// `r1-searcher`. The files lack the prompt: the first message is the question. Verdicts of the judge stay in the
    /// metadata. A file holds one rollout of each question; a second one is rejected.
    R1Searcher,
    /// DeepSearch-RL's `trajectory.jsonl` (`messages, tools, question, golden_answers, pred`) as trajectories of the
    /// protocol `tool_call`; scores and settings of the requests stay in the metadata, token sums do not. A file holds one
    /// rollout of each question; a second one is rejected.
    DeepsearchRl,
    /// ATIF 1.7 of Harbor as trajectories: one document per file or line. In files that `export-trajectories` did not
    /// write, the question is the last message of the user before the model's first, the prediction the model's last
    /// message (in it, the last `<answer>…</answer>`), there are no golden answers, and times, images and `extra` of steps
    /// are dropped.
    Atif,
    /// Logs of Inspect as trajectories: JSON (`inspect log convert --to json` for `.eval` files). An epoch is a sample of
    /// the question `input`; golden answers are the `target`. In logs that `export-trajectories` did not write, the
    /// prediction is the last `<answer>…</answer>` or the answer that was scored, tool definitions are those of the first
    /// model call, other events are dropped. Samples with an error are rejects.
    Inspect,
    /// `traces.jsonl` of verifiers 0.4 as trajectories: episodes with one trace, or traces. The last branch is read. In
    /// files that `export-trajectories` did not write, every row is sample 0 of its task under the trace's id, and token
    /// ids are dropped. Traces that failed are rejects.
    Verifiers,
    /// `rollouts.jsonl` of NeMo Gym 0.7 as trajectories. In files that `export-trajectories` did not write, the id of the
    /// question is `_ng_task_index`, golden answers are `golden_answers`, `expected_answer`, `ground_truth` or `answer`,
    /// and token ids are dropped. Rollouts with a `_ng_failure_class` are rejects.
    NemoGym,
    /// SearchLM (ExSearch): results of its exploration (`output[].{query_id, answer, pred, messages, rank}`) and lists of
    /// training rows (`messages[, prob]`) as trajectories of the protocol `searchlm`. Rankings in `rank` become asides; rows
    /// that are rankings themselves are rejected. `prob`, which is a negative log-likelihood, stays in the metadata.
    #[serde(rename = "searchlm")]
    SearchLm,
    /// Natural Questions, open: `question, answer[]`. Questions only.
    NqOpen,
    /// TriviaQA: the official `Data[].{Question, Answer.{Value, Aliases}}`, or rows of the Hub with lower-case names.
    /// Questions only, without pages and search results.
    Triviaqa,
    /// PopQA: TSV `id, …, prop, …, question, possible_answers`, where `possible_answers` is a list as JSON text.
    /// Questions only; their type is the relation.
    Popqa,
    /// LongBench: `input, context, answers, dataset, …, _id`. Questions, or the passages of their contexts as documents.
    Longbench,
    /// LongBench-E: the same, with the bucket of `length` in the metadata (`length_bucket`: `0-4k`, `4-8k`, `8k+`).
    LongbenchE,
    /// KILT: task files `id, input, output[].{answer, provenance}` as questions; the knowledge source `wikipedia_id,
    /// wikipedia_title, text[]` as documents.
    Kilt,
    /// BrowseComp-Plus: decrypted rows `query_id, query, answer, evidence_docs` as questions; corpus `docid, text, url` as
    /// documents.
    BrowsecompPlus,
    /// DPR's passages: TSV with the header `id, text, title` as documents.
    Dpr,
    /// ColBERT's collections: TSV `pid, passage[, title]` without header and quoting as documents. `pid` is the index of
    /// the line; the text of a titled passage is `title | passage`, so `chunk` needs `title_prefix: false`.
    Colbert,
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
            Self::Bamboogle | Self::NqOpen | Self::Triviaqa | Self::Popqa => &[RecordKind::Question],
            Self::R1Searcher => &[RecordKind::Question, RecordKind::Trajectory],
            Self::DeepsearchRl | Self::Atif | Self::Inspect | Self::Verifiers | Self::NemoGym | Self::SearchLm => {
                &[RecordKind::Trajectory]
            }
            Self::Files | Self::Dpr | Self::Colbert | Self::Hipporag | Self::TitleSentences => &[RecordKind::Document],
            _ => &[RecordKind::Question, RecordKind::Document],
        }
    }

    /// Returns how its files are cut into records.
    pub fn cut(self) -> Cut {
        match self {
            Self::TitleSentences => Cut::Members,
            Self::Triviaqa => Cut::Items("Data"),
            Self::Inspect => Cut::Items("samples"),
            Self::SearchLm => Cut::Items("output"),
            Self::Colbert => Cut::Plain(colbert::COLUMNS),
            _ => Cut::Values,
        }
    }

    /// Returns how its documents get their ids.
    pub fn document_ids(self) -> Rule {
        match self {
            Self::Flashrag
            | Self::MultihopRag
            | Self::Beir
            | Self::Kilt
            | Self::BrowsecompPlus
            | Self::Dpr
            | Self::Colbert => Rule::Unique,
            Self::Files => Rule::Named,
            _ => Rule::Title,
        }
    }

    /// Reads one question.
    ///
    /// # Errors
    /// What the record lacks.
    pub fn question(self, number: u64, record: Value) -> Result<Question, Fault> {
        // FlashRAG's questions have evidence in metadata, in the forms that its own sets use.
        let noted = &record["metadata"];
        let question = match self {
            Self::Flashrag if noted.get("evidence_list").is_some() => multihop_rag::question(number, record),
            Self::Flashrag if noted.get("question_decomposition").is_some() => musique::question(number, record),
            Self::Hotpotqa | Self::TwoWikiMultihopqa | Self::Flashrag => hotpotqa::question(number, record),
            Self::Musique => musique::question(number, record),
            Self::Bamboogle | Self::R1Searcher | Self::NqOpen => open_question::question(number, record),
            Self::Triviaqa => triviaqa::question(number, record),
            Self::Popqa => popqa::question(number, record),
            Self::Longbench => longbench::question(number, record),
            Self::LongbenchE => longbench::question_e(number, record),
            Self::Kilt => kilt::question(number, record),
            Self::BrowsecompPlus => browsecomp_plus::question(number, record),
            Self::MultihopRag => multihop_rag::question(number, record),
            Self::Beir => beir::question(number, record),
            _ => Err(self.lacks(RecordKind::Question)),
        };
        question.map_err(Fault::row)
    }

    /// Reads the documents of the record on `line`, counted from 1.
    ///
    /// # Errors
    /// What the record lacks.
    pub fn documents(self, number: u64, line: u64, record: Value) -> Result<Vec<Document>, Fault> {
        let document = match self {
            // A record with several documents, or none.
            Self::Hotpotqa | Self::TwoWikiMultihopqa => return hotpotqa::documents(&record).map_err(Fault::row),
            Self::Musique => return musique::documents(&record).map_err(Fault::row),
            Self::TitleSentences => return title_sentences::documents(&record).map_err(Fault::row),
            Self::Longbench | Self::LongbenchE => return longbench::documents(number, record).map_err(Fault::row),
            Self::Colbert => return colbert::documents(line, record).map_err(Fault::row),
            Self::MultihopRag => multihop_rag::document(number, record),
            Self::Beir => beir::document(number, record),
            Self::Hipporag => hipporag::document(record),
            Self::Kilt => kilt::document(record),
            Self::BrowsecompPlus => browsecomp_plus::document(record),
            Self::Dpr => dpr::document(record),
            Self::Flashrag => contents::document(number, record),
            _ => Err(self.lacks(RecordKind::Document)),
        };
        Ok(vec![document.map_err(Fault::row)?])
    }

    /// Reads one trajectory.
    ///
    /// # Errors
    /// What the record lacks.
    pub fn trajectory(self, number: u64, record: Value) -> Result<Trajectory, Fault> {
        let trajectory = match self {
            Self::R1Searcher => r1_searcher::trajectory(number, record),
            Self::DeepsearchRl => deepsearch_rl::trajectory(number, record),
            Self::Atif => atif::trajectory(number, record),
            Self::Inspect => inspect::trajectory(number, record),
            Self::Verifiers => verifiers::trajectory(number, record),
            Self::NemoGym => nemo_gym::trajectory(number, record),
            Self::SearchLm => searchlm::trajectory(number, record),
            _ => Err(self.lacks(RecordKind::Trajectory)),
        };
        trajectory.map_err(Fault::row)
    }

    fn lacks(self, kind: RecordKind) -> String {
        format!("the layout `{}` has no {kind} rows", self.name())
    }
}

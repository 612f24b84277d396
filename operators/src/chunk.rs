//! `chunk`: splits documents into chunks for indexing and retrieval.

mod sections;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, Int32Builder, Int64Builder, RecordBatch, StringBuilder};
use schemars::JsonSchema;
use searchmill_data::hub::{Hub, HubModel};
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator, OperatorError, ParamIssue, Ports,
    Source,
};
use searchmill_schemas::{RecordKind, Reject, text_column, text_value};
use searchmill_text::chunking::{
    Counter, Memo, Piece, Recursive, Sentences, TokenCounter, TokenWindow, tokenizer_file,
};
use serde::{Deserialize, Serialize};

use self::sections::Cut;
use super::shared::columns::{carried, carried_fields};

/// Text size in bytes at which a batch of chunks is emitted, whatever the size of the documents.
const FLUSH_BYTES: usize = 32 << 20;

/// Where to split documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum By {
    /// At line ends; pieces that are still too large are split at sentence ends, then pauses, then spaces, then
    /// tokens. Small neighbours are merged. Same rules as RecursiveChunker in chonkie 1.2.1. A chunk of merged pieces
    /// stays below `size`.
    #[default]
    Recursive,
    /// Windows of `size` units with `overlap`.
    Token,
    /// Whole sentences, as many as fit in `size`.
    Sentence,
    /// At the headings of Markdown; sections that are too large are split as by `recursive`. No chunk is in two sections.
    /// The title of a chunk is that of the document and the headings above the chunk: `Salt pans > History > Decline`.
    /// Metadata keeps these `headings` in place of `sections`, and the `page` (`last_page`) in place of `page_offsets`.
    /// Texts of HTML, DOCX and PDF files (`read` with `layout: files`) can be split so, too.
    Markdown,
}

/// Path or address of a tokenizer. Its content is part of the cache key; its location is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("x-searchmill-key" = false))]
pub struct TokenizerPath(pub(crate) String);

/// The tokenizer file of a model folder.
const TOKENIZER: &str = "tokenizer.json";

impl TokenizerPath {
    fn source(&self) -> Source {
        match HubModel::parse(&self.0) {
            Some(model) => {
                let (hub, address) = (Hub::from_environment(), model.to_string());
                match hub.commit(&model) {
                    Some(commit) => Source::Fetched { path: hub.place(&model, &commit, TOKENIZER), address },
                    // The cache knows no commit of the branch: the run asks the Hub.
                    None => Source::Awaited { address },
                }
            }
            None => Source::Path(tokenizer_file(&self.0)),
        }
    }

    /// Returns the local path of the file; downloads it first if it is on the Hub.
    fn file(&self, context: &Context) -> Result<PathBuf, OperatorError> {
        match HubModel::parse(&self.0) {
            Some(model) => {
                let hub = Hub::from_environment();
                Ok(hub.folder(&model, &hub.resolve(&model, context)?, &[TOKENIZER], context)?.join(TOKENIZER))
            }
            None => Ok(context.resolve(&tokenizer_file(&self.0))),
        }
    }
}

/// The unit of `size` and `overlap`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Count {
    /// Text between single spaces, as chonkie's word tokenizer counts (line ends do not separate words).
    #[default]
    Words,
    /// Unicode characters (scalar values).
    Characters,
    /// Tokens of a Hugging Face tokenizer, without special tokens: the path of a `tokenizer.json`, of a folder that
    /// contains one (a downloaded model), or a model on the Hub (`hf://ORG/NAME`, `hf://ORG/NAME@REVISION`). A run
    /// downloads a Hub model once, into the Hub tools' cache.
    Tokenizer(TokenizerPath),
}

/// What to do with a document without text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Empty {
    /// Reject the row (kind `empty`); the summary reports it.
    #[default]
    Reject,
    /// Skip it silently.
    Skip,
}

/// Parameters of `chunk`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case", default)]
pub(crate) struct ChunkParams {
    /// Where to split documents.
    pub(crate) by: By,
    /// Chunk size in the unit of `count`; the title is not counted.
    #[schemars(range(min = 1))]
    pub(crate) size: u32,
    /// What a chunk repeats from the previous one: units for `by: token`, sentences for `by: sentence`.
    pub(crate) overlap: u32,
    /// Unit of `size` and `overlap`.
    pub(crate) count: Count,
    /// For `by: recursive` and `by: markdown`: pieces with fewer characters are joined with the next piece before counting (default:
    /// half of `size`, as in DeepSearch-RL).
    pub(crate) min_characters: Option<u32>,
    /// Put the title and a line end before the text in `contents`, the text that is indexed and shown to a model.
    pub(crate) title_prefix: bool,
    /// What to do with a document without text (only whitespace).
    pub(crate) empty: Empty,
}

impl Default for ChunkParams {
    fn default() -> Self {
        let (by, count, empty) = (By::default(), Count::default(), Empty::default());
        Self { by, size: 200, overlap: 0, count, min_characters: None, title_prefix: true, empty }
    }
}

/// See [`Operator::ABOUT`].
pub(crate) struct Chunk;

impl Operator for Chunk {
    type Params = ChunkParams;
    const NAME: &'static str = "chunk";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Splits documents into chunks: recursively, by token windows, by sentences or \
        by headings. Each chunk records its position in the document, and no text is lost.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Recursive chunks of fewer than 200 tokens, as in DeepSearch-RL",
            yaml: "chunks: {op: chunk, from: corpus, with: {by: recursive, size: 200, count: {tokenizer: models/e5-base-v2}}}",
        },
        Example {
            title: "Sections of Markdown, with the headings above them in the title",
            yaml: "chunks: {op: chunk, from: corpus, with: {by: markdown, size: 300}}",
        },
        Example {
            title: "Windows of 256 words, each repeating the last 32 words of the previous window",
            yaml: "chunks: {op: chunk, from: corpus, with: {by: token, size: 256, overlap: 32, count: words}}",
        },
        Example {
            title: "Whole sentences up to 1,000 characters, with one sentence of overlap",
            yaml: "chunks: {op: chunk, from: corpus, with: {by: sentence, size: 1000, overlap: 1, count: characters}}",
        },
    ];

    fn declare(params: &ChunkParams) -> Declaration {
        let ports = Ports::new().rows_in("documents", &[RecordKind::Document], "Documents to split.");
        let ports = ports.rows_out("chunks", RecordKind::Chunk, "Chunks, document by document, in text order.");
        let declaration = Declaration::pure(ports).issues(issues(params)).gives(|inputs| {
            let Some(documents) = inputs.get("documents") else { return BTreeMap::new() };
            let chunks = carried_fields(&RecordKind::Chunk.schema(), documents, RecordKind::Document);
            BTreeMap::from([("chunks".to_owned(), chunks)])
        });
        params.count.declared(declaration)
    }

    fn open(params: &ChunkParams, _inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let counter = params.count.counter(context)?;
        Ok(Kernel::Map(Arc::new(Chunker { params: params.clone(), counter, memos: Mutex::default() })))
    }
}

fn issues(params: &ChunkParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if params.size == 0 {
        issues.push(ParamIssue::new("size", "a chunk cannot have size 0").with_help("give at least 1; 200 is usual"));
    }
    match params.by {
        By::Recursive | By::Markdown if params.overlap > 0 => {
            let issue = ParamIssue::new("overlap", "recursive chunks do not overlap");
            issues.push(issue.with_help("leave it out, or use `by: token` or `by: sentence`"));
        }
        // A size of 0 is one issue, not two.
        By::Token if params.overlap >= params.size && params.size > 0 => {
            let message = format!("an overlap of {} leaves no room in windows of {}", params.overlap, params.size);
            issues.push(ParamIssue::new("overlap", message).with_help("make it smaller than `size`"));
        }
        _ => {}
    }
    match (params.by, params.min_characters) {
        (By::Recursive | By::Markdown, Some(0)) => {
            issues.push(ParamIssue::new("min_characters", "must be at least 1").with_help("leave it out for size / 2"));
        }
        (By::Token | By::Sentence, Some(_)) => {
            issues.push(ParamIssue::new("min_characters", "is for `by: recursive` only").with_help("leave it out"));
        }
        _ => {}
    }
    issues.extend(params.count.issues());
    issues
}

impl Count {
    /// Declares the tokenizer's file.
    pub(crate) fn declared(&self, declaration: Declaration) -> Declaration {
        let Self::Tokenizer(path) = self else { return declaration };
        let (read, fetched) = (path.clone(), path.clone());
        declaration.reads(move |_| vec![read.source()]).fetches(move |context| fetched.file(context).map(drop))
    }

    /// Returns what is wrong, below the param `count`.
    pub(crate) fn issues(&self) -> Option<ParamIssue> {
        let Self::Tokenizer(TokenizerPath(path)) = self else { return None };
        let (message, help) = if path.trim().is_empty() {
            let help = "give the path of a tokenizer.json, or of the folder that holds one, or `hf://ORG/NAME`";
            ("the path is empty".to_owned(), help)
        } else if HubModel::is_meant(path) && HubModel::parse(path).is_none() {
            (format!("`{path}` names no model of the Hub"), "write `hf://ORG/NAME` or `hf://ORG/NAME@REVISION`")
        } else {
            return None;
        };
        Some(ParamIssue::new("count.tokenizer", message).with_help(help))
    }

    /// Returns the counter; loads the tokenizer.
    pub(crate) fn counter(&self, context: &Context) -> Result<Counter, OperatorError> {
        Ok(match self {
            Self::Words => Counter::Words,
            Self::Characters => Counter::Characters,
            Self::Tokenizer(path) => match TokenCounter::load(&path.file(context)?) {
                Ok(counter) => Counter::Tokens(Box::new(counter)),
                Err(fault) => return Err(OperatorError::pipeline(fault.message).with_help(fault.help)),
            },
        })
    }
}

struct Chunker {
    params: ChunkParams,
    counter: Counter,
    /// One memo for each batch processed concurrently; locked twice a batch.
    memos: Mutex<Vec<Memo>>,
}

impl MapKernel for Chunker {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        // Words recur: what a tokenizer counted for one batch serves the next.
        let mut memo = self.memos.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        let mut rows = ChunkRows::default();
        let (ids, titles) = (text_column(batch, "id")?, text_column(batch, "title")?);
        let (texts, metadata) = (text_column(batch, "text")?, text_column(batch, "metadata")?);
        for row in 0..batch.num_rows() {
            let (title, metadata) = (text_value(titles, row), text_value(metadata, row));
            let document = Document { id: ids.value(row), title, text: texts.value(row), metadata };
            match self.cut(&document, &mut memo) {
                Ok(cuts) => rows.push(&document, row as u32, &cuts, self.params.title_prefix)?,
                Err(reject) => output.rejects.extend(reject),
            }
            // A long document has many chunks: the batch's are not all held in memory.
            if rows.bytes >= FLUSH_BYTES {
                output.push("chunks", std::mem::take(&mut rows).finish(batch)?);
            }
        }
        self.memos.lock().unwrap_or_else(PoisonError::into_inner).push(memo);
        output.push("chunks", rows.finish(batch)?);
        Ok(())
    }
}

impl Chunker {
    /// Returns the pieces of a document, or the reject (`None` if empty documents are skipped).
    fn cut<'a>(&self, document: &Document<'a>, memo: &mut Memo) -> Result<Vec<Cut<'a>>, Option<Reject>> {
        let (params, text) = (&self.params, document.text);
        if text.trim().is_empty() {
            let message = "the document has no text, so it gives no chunk";
            return Err((params.empty == Empty::Reject).then(|| document.reject("empty", message.to_owned())));
        }
        let (size, overlap) = (params.size as usize, params.overlap as usize);
        // A `size` of 1 halves to 0, which `issues` rejects as `min_characters`.
        let min_characters = params.min_characters.unwrap_or(params.size / 2).max(1) as usize;
        let recursive = Recursive { size, min_characters };
        let mut tally = self.counter.tally(memo, text);
        let mut cuts = match params.by {
            By::Recursive => document.whole(recursive.cut(text, &mut tally)),
            By::Markdown => sections::cut(&recursive, document.title, text, document.metadata, &mut tally),
            By::Token => document.whole(TokenWindow { size, overlap }.cut(text, &mut tally)),
            By::Sentence => document.whole(Sentences { size, overlap }.cut(text, &mut tally)),
        };
        // Counting goes on after a fault, so that the rules need no errors; the pieces are then dropped.
        if let Some(fault) = tally.fault() {
            return Err(Some(document.reject("tokenizer", format!("the tokenizer cannot encode the text: {fault}"))));
        }
        // `recursive` may leave an empty piece where a space precedes a word that is too large.
        cuts.retain(|cut| cut.piece.start < cut.piece.end);
        Ok(cuts)
    }
}

/// One document.
struct Document<'a> {
    id: &'a str,
    title: Option<&'a str>,
    text: &'a str,
    metadata: Option<&'a str>,
}

impl<'a> Document<'a> {
    /// Returns pieces with the title and the metadata of the document.
    fn whole(&self, pieces: Vec<Piece>) -> Vec<Cut<'a>> {
        let (title, metadata) = (self.title.map(Cow::Borrowed), self.metadata.map(Cow::Borrowed));
        pieces.into_iter().map(|piece| Cut { piece, title: title.clone(), metadata: metadata.clone() }).collect()
    }

    fn reject(&self, kind: &str, message: String) -> Reject {
        let detail = self.title.map(|title| format!("title: {title}"));
        Reject { id: self.id.to_owned(), kind: kind.to_owned(), message, attempts: 1, detail }
    }
}

/// Column builders for chunk rows.
#[derive(Default)]
struct ChunkRows {
    id: StringBuilder,
    document_id: StringBuilder,
    position: Int32Builder,
    document_chunks: Int32Builder,
    title: StringBuilder,
    text: StringBuilder,
    contents: StringBuilder,
    start: Int64Builder,
    end: Int64Builder,
    tokens: Int32Builder,
    metadata: StringBuilder,
    /// The row of the document behind each chunk.
    origins: Vec<u32>,
    bytes: usize,
}

impl ChunkRows {
    fn push(&mut self, document: &Document, row: u32, cuts: &[Cut], title_prefix: bool) -> Result<(), OperatorError> {
        use std::fmt::Write as _;
        for (position, Cut { piece, title, metadata }) in cuts.iter().enumerate() {
            let (title, metadata) = (title.as_deref(), metadata.as_deref());
            let prefix = title.filter(|title| title_prefix && !title.is_empty());
            let repeated = title.map_or(0, str::len) + metadata.map_or(0, str::len);
            let text = &document.text[piece.start..piece.end];
            // Formatted into the builders, without a text of their own for each chunk.
            let mut written = write!(self.id, "{}#{position}", document.id);
            if let Some(title) = prefix {
                written = written.and_then(|()| writeln!(self.contents, "{title}"));
            }
            written.map_err(|_| OperatorError::engine("a chunk's id could not be written"))?;
            // Ends the value that was formatted.
            self.id.append_value("");
            self.contents.append_value(text);
            self.document_id.append_value(document.id);
            self.position.append_value(position as i32);
            self.document_chunks.append_value(cuts.len() as i32);
            self.title.append_option(title);
            self.text.append_value(text);
            self.start.append_value(piece.start as i64);
            self.end.append_value(piece.end as i64);
            self.tokens.append_value(piece.tokens as i32);
            self.metadata.append_option(metadata);
            self.origins.push(row);
            // Text is there twice, as `text` and in `contents`; titles and metadata are carried once more.
            self.bytes += 2 * text.len() + 2 * repeated;
        }
        Ok(())
    }

    fn finish(mut self, documents: &RecordBatch) -> Result<RecordBatch, OperatorError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.id.finish()),
            Arc::new(self.document_id.finish()),
            Arc::new(self.position.finish()),
            Arc::new(self.document_chunks.finish()),
            Arc::new(self.title.finish()),
            Arc::new(self.text.finish()),
            Arc::new(self.contents.finish()),
            Arc::new(self.start.finish()),
            Arc::new(self.end.finish()),
            Arc::new(self.tokens.finish()),
            Arc::new(self.metadata.finish()),
        ];
        let chunks = RecordBatch::try_new(RecordKind::Chunk.schema(), columns)?;
        carried(&chunks, documents, RecordKind::Document, self.origins)
    }
}

#[cfg(test)]
mod tests;

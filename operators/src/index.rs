//! `index`: builds a search index of chunks.

#[cfg(test)]
pub(crate) mod tests;

use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, Ports, TreeKind,
};
use searchmill_engine::operator::{allow_names, named_or_tagged};
use searchmill_retrieval::{IndexKind, build};
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

/// Parameters of `index`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct IndexParams {
    /// Kind of index, by name (`bm25`) or with options (`bm25: {language: german}`): `bm25` searches by words,
    /// `dense` by vectors, `late` by the vectors of all tokens (ColBERT).
    #[serde(deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub kind: IndexKind,
}

/// Builds a search index of chunks.
pub struct Index;

impl Operator for Index {
    type Params = IndexParams;
    const NAME: &'static str = "index";
    const VERSION: u32 = 4;
    const ABOUT: &'static str = "Builds a search index of chunks: by words (BM25), by vectors (dense) or by vectors of tokens (late interaction).";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "BM25 over English text", yaml: "bm25: {op: index, from: chunks, with: {kind: bm25}}" },
        Example {
            title: "BM25 over Japanese text",
            yaml: "bm25: {op: index, from: chunks, with: {kind: {bm25: {language: cjk}}}}",
        },
        Example {
            title: "Vectors without a model",
            yaml: "dense: {op: index, from: chunks, with: {kind: {dense: {encoder: hashing}}}}",
        },
        Example {
            title: "E5 vectors in an HNSW graph",
            yaml: "dense:\n  op: index\n  from: chunks\n  with:\n    kind:\n      dense:\n        encoder: {bert: {model: intfloat/e5-base-v2, query_prefix: 'query: ', passage_prefix: 'passage: '}}\n        factory: HNSW32",
        },
        Example {
            title: "ColBERT vectors of all tokens, in 36 bytes each",
            yaml: "late: {op: index, from: chunks, with: {kind: {late: {encoder: {colbert: {model: colbert-ir/colbertv2.0}}, storage: {residual: {bits: 2}}}}}}",
        },
        Example {
            title: "The same in 16-bit floats, 256 bytes each, with short documents",
            yaml: "late: {op: index, from: chunks, with: {kind: {late: {encoder: {colbert: {model: colbert-ir/colbertv2.0, query_maxlen: 32, doc_maxlen: 128}}, storage: fp16}}}}",
        },
    ];

    fn declare(params: &IndexParams) -> Declaration {
        let about = "The index. It is self-contained: `retrieve` and `rollout` need no other input.";
        let ports = Ports::new()
            .rows_in("chunks", &[RecordKind::Chunk], "Chunks to index, by their `contents`.")
            .tree_out("index", TreeKind::Index, about);
        let (read, fetched) = (params.kind.clone(), params.kind.clone());
        Declaration::pure(ports)
            .issues(params.kind.check("kind"))
            .repeatability(params.kind.repeatability())
            .variant(params.kind.name())
            .uses_gpus(params.kind.has_model())
            // 1: words have one Unicode form. Vectors of models, which take hours, stay as they are.
            .revision(u32::from(params.kind.has_words()))
            .reads(move |directory| read.sources(directory))
            .fetches(move |context| fetched.fetch(context))
    }

    fn open(params: &IndexParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for IndexParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let chunks = inputs.rows("chunks")?;
        let folder = outputs.tree("index")?;
        build(&self.kind, chunks, &folder, context)?;
        outputs.figure("chunks", chunks.rows as f64);
        Ok(())
    }
}

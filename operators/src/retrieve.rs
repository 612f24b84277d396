//! `retrieve`: searches indexes for questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, Context, Declaration, Example, Inputs, Kernel, MapKernel, MapOutput, Operator, OperatorError, Ports,
    TreeKind, allow_names, named_or_tagged,
};
use searchmill_retrieval::{Fusion, Search, SearchSettings, default_pool, default_top_k, is_zero};
use searchmill_schemas::{Hit, RecordKind, text_column, text_value, to_batch};
use serde::{Deserialize, Serialize};

use super::shared::columns::{carried, carried_fields};
use super::shared::relation::{Keys, columns_checked};
use super::shared::unfit::Unfit;

/// Parameters of `retrieve`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RetrieveParams {
    /// Maximum number of hits per question.
    #[serde(default = "default_top_k")]
    pub top_k: usize,
    /// Number of chunks to take from each index before fusion (at least `top_k`). No effect with a single index.
    #[serde(default = "default_pool")]
    pub pool: usize,
    /// How to fuse the rankings of several indexes: `rrf` (reciprocal ranks, k = 60), `weighted`, `concat` or `none` (one index,
    /// or one `late` index with `candidates`). Ties go to the chunk from the earlier index, then to the better rank in it.
    #[serde(default, deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub fusion: Fusion,
    /// Number of chunks from each other index that a `late` index ranks, at least `top_k` (0: it compares the query
    /// with every chunk). All indexes must be built from the same chunks. With `fusion: none`, the ranking of the
    /// `late` index is the result.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub candidates: usize,
    /// Text column to search for.
    #[serde(default = "default_query")]
    pub query: String,
}

fn default_query() -> String {
    "question".to_owned()
}

impl RetrieveParams {
    fn settings(&self) -> SearchSettings {
        let Self { top_k, pool, candidates, .. } = *self;
        SearchSettings { top_k, pool, fusion: self.fusion.clone(), candidates }
    }
}

/// Searches indexes for questions.
pub struct Retrieve;

impl Operator for Retrieve {
    type Params = RetrieveParams;
    const NAME: &'static str = "retrieve";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Searches one or more indexes for each question and fuses their rankings.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Ten hits from one index",
            yaml: "hits: {op: retrieve, from: {questions: dev, search: bm25}, with: {top_k: 10}}",
        },
        Example {
            title: "Two indexes, fused by reciprocal ranks over a pool of 100 each",
            yaml: "hits: {op: retrieve, from: {questions: dev, search: [bm25, dense]}, with: {top_k: 10, pool: 100, fusion: rrf}}",
        },
        Example {
            title: "Two indexes, fused by weighted scores",
            yaml: "hits: {op: retrieve, from: {questions: dev, search: [bm25, dense]}, with: {fusion: {weighted: {weights: [0.3, 0.7]}}}}",
        },
        Example {
            title: "The 100 best of BM25, ranked by late interaction",
            yaml: "hits: {op: retrieve, from: {questions: dev, search: [bm25, late]}, with: {top_k: 10, candidates: 100, fusion: none}}",
        },
    ];

    fn declare(params: &RetrieveParams) -> Declaration {
        let about = "Indexes to search; their order breaks ties.";
        let ports = Ports::new()
            .rows_in("questions", &[RecordKind::Question], "Questions to search for.")
            .input_of("search", Accept::Tree(TreeKind::Index), Arity::Many, about)
            .rows_out("hits", RecordKind::Hit, "Hits of each question, best first.");
        let (settings, query) = (params.settings(), params.query.clone());
        Declaration::pure(ports)
            .issues(settings.check(""))
            .checks_variants("search", move |kinds| settings.check_kinds("", kinds))
            .gives(|inputs| {
                let Some(questions) = inputs.get("questions") else { return BTreeMap::new() };
                let hits = carried_fields(&RecordKind::Hit.schema(), questions, RecordKind::Question);
                BTreeMap::from([("hits".to_owned(), hits)])
            })
            .checks_columns(move |tables| {
                columns_checked(tables, "questions", |schema| check_query(schema, &query)).into_iter().collect()
            })
            // The indexes' encoders run on the GPU, for queries.
            .uses_gpus(true)
    }

    fn open(params: &RetrieveParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let search = Search::open(&inputs.trees("search"), &params.settings(), context)?;
        Ok(Kernel::Map(Arc::new(Retrieval { search, query: params.query.clone() })))
    }
}

/// Checks that the queries are a column of texts; an expression would be none.
fn check_query(questions: &SchemaRef, query: &str) -> Result<(), OperatorError> {
    if questions.column_with_name(query).is_none() {
        // Names columns like it.
        Keys::new(questions, "query", &[query])?;
        return Err(OperatorError::pipeline(format!("`query`: `{query}` is an expression, not a column"))
            .with_help("add it to the questions as a column, by `sql`"));
    }
    match text_column(&RecordBatch::new_empty(SchemaRef::clone(questions)), query) {
        Ok(_) => Ok(()),
        Err(error) => Err(OperatorError::pipeline(format!("`query`: {error}"))),
    }
}

struct Retrieval {
    search: Search,
    query: String,
}

impl MapKernel for Retrieval {
    fn map(&self, batch: &RecordBatch, output: &mut MapOutput) -> Result<(), OperatorError> {
        let ids = text_column(batch, "id")?;
        let queries = text_column(batch, &self.query)?;
        let (mut rows, mut texts, mut rejects) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..batch.num_rows() {
            if let Some(text) = text_value(queries, row) {
                rows.push(row);
                texts.push(text);
            } else {
                let unfit = Unfit::new(format!("the column `{}` is null: nothing to search for", self.query));
                rejects.push(unfit.reject(ids.value(row).to_owned()));
            }
        }
        // All queries of a batch at a time: an encoder computes them together.
        let (mut hits, mut origins) = (Vec::new(), Vec::new());
        for ((row, text), found) in rows.into_iter().zip(&texts).zip(self.search.search_batch(&texts)?) {
            origins.extend(std::iter::repeat_n(row as u32, found.len()));
            for (rank, found) in (1..).zip(found) {
                hits.push(Hit {
                    id: format!("{}@{rank}", ids.value(row)),
                    question_id: ids.value(row).to_owned(),
                    query: (*text).to_owned(),
                    rank,
                    score: found.score,
                    chunk_id: found.chunk_id,
                    document_id: found.document_id,
                    title: found.title,
                    contents: found.contents,
                    sources: found.sources,
                });
            }
        }
        // After the search: if that fails, the batch has no output at all.
        for reject in rejects {
            output.reject(reject);
        }
        output.push("hits", carried(&to_batch(&hits)?, batch, RecordKind::Question, origins)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_a_column_of_texts() {
        let questions = RecordKind::Question.schema();
        let checked = |query: &str| check_query(&questions, query).map_err(|error| error.message);
        assert_eq!([checked("question"), checked("question_type")], [Ok(()), Ok(())]);
        let expression = checked("lower(question)").expect_err("no column");
        assert_eq!(expression, "`query`: `lower(question)` is an expression, not a column");
        assert!(
            checked("golden_answers").expect_err("a list").starts_with("`query`: column `golden_answers` must be text")
        );
        assert!(checked("questoin").expect_err("no column").starts_with("`query`: "));
    }
}

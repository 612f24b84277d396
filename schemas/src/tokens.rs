//! Additional columns of trajectories: recorded tokens, and observations that were cut.

use std::sync::Arc;

use arrow::array::RecordBatch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::batch::made;
use crate::described::{Cell, Column, described, schema_of};
use crate::record::SchemaError;

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// Columns of a trajectory whose tokens were recorded. They are missing if nothing was recorded.
    pub struct RecordedTokens {
        /// The tokens in the order in which the model read and wrote them. The concatenated `ids` of one branch are exactly
        /// what the model saw, up to and including its last sampled token of that branch.
        pub tokens: Vec<TokenSpan>,
        /// Settings that all tokens of the rollout were sampled with.
        pub sampling: SampledWith,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// Consecutive tokens of one author.
    pub struct TokenSpan {
        /// Number of the message in `messages` (from 0) that the tokens belong to. Tokens of the environment begin with this
        /// message and reach up to the model's next one; the chat template's own tokens are among them.
        pub message: i32,
        /// Number of the sequence (from 0). A new branch starts where the model read earlier turns in other tokens than
        /// before; it repeats the whole prompt, with earlier turns as tokens of the environment. A request about results
        /// that is no part of the conversation (`searchlm`) is a branch of its own, with the model's reply; the conversation
        /// then goes on in its branch. Every sampled token stands in one branch as sampled.
        pub branch: i32,
        /// Whether the model sampled the tokens; otherwise it only read them.
        pub sampled: bool,
        /// Token ids. Those of a turn that ended with an end-of-turn token include it.
        pub ids: Vec<i32>,
        /// Natural logarithms of the probabilities with which the tokens were sampled, one per id; null if they were not
        /// sampled. See `sampling.logprobs`.
        pub logprobs: Option<Vec<f32>>,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// Settings of sampling.
    pub struct SampledWith {
        /// Divisor of the logits; 0: always the most probable token.
        pub temperature: f64,
        /// Share of probability that tokens were sampled from; 1: all.
        pub top_p: f64,
        /// Number of most probable tokens that tokens were sampled from; 0: all.
        pub top_k: i64,
        /// Further fields of the request to a server, such as penalties (JSON object); null if there are none.
        pub other: Option<String>,
        /// Distribution of `logprobs`: `processed`: the one that was sampled from, after temperature, `top_k` and `top_p`;
        /// `raw`: the model's own. At temperature 0, both are the model's own.
        pub logprobs: String,
        /// Commit, digest or declared revision of the model; null if it is only known by its name or path.
        pub revision: Option<String>,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    /// Column of a trajectory whose observations have a limit. It is missing if there is none.
    pub struct CutObservations {
        /// Tool messages that were cut to `max_observation_tokens`, in order.
        pub cut_observations: Vec<CutObservation>,
    }
}

described! {
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    /// A tool message that was cut.
    pub struct CutObservation {
        /// Number of the message in `messages` (from 0).
        pub message: i32,
        /// Its length before the cut, in the unit of the limit.
        pub tokens: i32,
    }
}

macro_rules! additional {
    ($($name:ident: $what:literal),+) => {
        $(impl $name {
            /// Describes the columns.
            pub fn described() -> Vec<Column> {
                Self::columns()
            }

            /// Converts rows to columns.
            ///
            /// # Errors
            /// If a value does not fit its column.
            pub fn to_batch(rows: &[Self]) -> Result<RecordBatch, SchemaError> {
                made(schema_of(Self::data_type()), rows).map_err(|error| unfit("make", $what, error))
            }

            /// Reads the columns of trajectories; `None` if they have none of them.
            ///
            /// # Errors
            /// If one of the columns is missing or has another type.
            pub fn from_batch(batch: &RecordBatch) -> Result<Option<Vec<Self>>, SchemaError> {
                read(batch, $what)
            }
        })+
    };
}

additional!(RecordedTokens: "recorded tokens", CutObservations: "cut observations");

fn unfit(verb: &str, what: &str, error: impl std::fmt::Display) -> SchemaError {
    SchemaError(format!("cannot {verb} the columns of {what}: {error}"))
}

fn read<R: Cell + DeserializeOwned>(batch: &RecordBatch, what: &str) -> Result<Option<Vec<R>>, SchemaError> {
    let schema = schema_of(R::data_type());
    let (mut columns, mut missing) = (Vec::new(), None);
    for field in schema.fields() {
        match batch.column_by_name(field.name()) {
            Some(column) => columns.push(Arc::clone(column)),
            None => missing = missing.or(Some(field.name().clone())),
        }
    }
    if columns.is_empty() {
        return Ok(None);
    }
    if let Some(name) = missing {
        return Err(unfit("read", what, format!("there is no column `{name}`")));
    }
    let known = RecordBatch::try_new(schema, columns).map_err(|error| unfit("read", what, error))?;
    serde_arrow::from_record_batch(&known).map(Some).map_err(|error| unfit("read", what, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(sampled: bool, ids: &[i32]) -> TokenSpan {
        let logprobs = sampled.then(|| ids.iter().map(|id| -0.5 * *id as f32).collect());
        TokenSpan { message: 2, branch: 0, sampled, ids: ids.to_vec(), logprobs }
    }

    #[test]
    fn recorded_tokens_read_back_and_their_absence_is_known() {
        let sampling = SampledWith {
            temperature: 1.0,
            top_p: 0.9,
            top_k: 0,
            other: None,
            logprobs: "processed".to_owned(),
            revision: Some("abc".to_owned()),
        };
        let rows = [
            RecordedTokens { tokens: vec![span(false, &[1, 2]), span(true, &[3])], sampling: sampling.clone() },
            RecordedTokens { tokens: Vec::new(), sampling },
        ];
        let batch = RecordedTokens::to_batch(&rows).expect("columns");
        assert_eq!(RecordedTokens::from_batch(&batch).expect("columns").expect("recorded"), rows);
        let part = batch.project(&[0]).expect("a column");
        assert!(RecordedTokens::from_batch(&part).expect_err("an error").0.contains("there is no column `sampling`"));
        let none = batch.project(&[]).expect("no column");
        assert_eq!(RecordedTokens::from_batch(&none).expect("nothing"), None);
        let other = [("tokens", batch.column(1).clone()), ("sampling", batch.column(0).clone())];
        let other = RecordBatch::try_from_iter(other).expect("a batch");
        assert!(RecordedTokens::from_batch(&other).is_err());
    }

    #[test]
    fn every_column_says_what_it_holds() {
        let columns = RecordedTokens::described();
        let kinds: Vec<_> = columns.iter().map(|column| (column.name.as_str(), column.kind.as_str())).collect();
        assert_eq!(kinds, [("tokens", "list of objects"), ("sampling", "objects")]);
        let ids = &columns[0].fields[3];
        assert_eq!((ids.name.as_str(), ids.kind.as_str()), ("ids", "list of whole number"));
        assert!(!columns[0].fields[4].required);
    }
}

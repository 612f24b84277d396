//! Training examples: tokens of rendered text, with a mark on each token that is learnt.

use std::ops::Range;

use arrow::array::{ArrayRef, AsArray, Int64Array, ListArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_engine::operator::{FailureKind, OperatorError, RowsInput};
use searchmill_schemas::{Reject, text_column, text_value};
use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use crate::inference::{ControlTokens, Prompt};

/// What to do with examples longer than `max_length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Truncation {
    /// Reject them: half a conversation teaches the model to stop early.
    #[default]
    Delete,
    /// Cut off the end.
    Right,
    /// Cut off the beginning.
    Left,
}

/// A training example.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    pub id: String,
    pub question: String,
    pub tokens: Vec<u32>,
    /// Whether the model wrote the token, so that it is learnt.
    pub learnt: Vec<bool>,
    /// Weight of its tokens.
    pub weight: f32,
    /// How its tokens were sampled, for reinforcement learning.
    pub sampled: Option<Sampled>,
    /// The side of a pair that it is, or one of whose sequences it is, for preference training.
    pub paired: Option<Paired>,
}

/// How the tokens of an example were sampled, and what they earned. Numbers of tokens are 0 where none was sampled.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Divisor of the logits, above 0.
    pub temperature: f32,
    /// Log-probability of each token when it was sampled, at this temperature.
    pub log_probabilities: Vec<f32>,
    /// Those of the reference model, at this temperature.
    pub reference: Option<Vec<f32>>,
    /// Advantage of each token.
    pub advantages: Vec<f32>,
    /// Number of the rollout: its sequences have the same one.
    pub rollout: usize,
    /// Tokens that the model wrote in the whole rollout, of which the example may be one of several sequences.
    pub of_rollout: usize,
}

/// The side of a pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paired {
    /// Number of the pair.
    pub pair: usize,
    pub chosen: bool,
    /// Log-probability of the example's learnt tokens under the reference model.
    pub reference: f64,
}

impl Example {
    /// Returns the number of learnt tokens. The first token is never predicted.
    pub fn targets(&self) -> usize {
        self.learnt.iter().skip(1).filter(|learnt| **learnt).count()
    }

    /// Returns the divisor of the logits from which its tokens are predicted.
    pub fn temperature(&self) -> f32 {
        self.sampled.as_ref().map_or(1.0, |sampled| sampled.temperature)
    }
}

/// Reads rows as examples.
pub struct Reader<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Control tokens of the template; the same texts in content are plain text.
    pub control: ControlTokens,
    /// Size of the model's vocabulary.
    pub vocabulary: usize,
    pub max_length: usize,
    pub truncation: Truncation,
    pub weight_column: Option<&'a str>,
}

/// Examples, and the rows that cannot be trained on.
#[derive(Default)]
pub struct Read {
    pub examples: Vec<Example>,
    pub rejects: Vec<Reject>,
}

impl Read {
    /// Takes the examples of a row, or why there are none.
    pub(super) fn add(&mut self, id: &str, examples: Result<Vec<Example>, Unfit>) -> Result<(), OperatorError> {
        match examples {
            Ok(examples) => self.examples.extend(examples),
            Err(Unfit::Row(message)) => self.rejects.push(reject(id, message)),
            Err(Unfit::Vocabulary(error)) => return Err(error),
        }
        Ok(())
    }
}

/// A row before it is tokenised.
pub(super) struct Row<'a> {
    id: &'a str,
    question: &'a str,
    text: Option<&'a str>,
    spans: Vec<Range<usize>>,
    content: Vec<Range<usize>>,
    weight: f64,
}

impl Reader<'_> {
    /// Reads all rows, in order.
    pub fn read(&self, rows: &RowsInput) -> Result<Read, OperatorError> {
        let mut read = Read::default();
        for batch in rows.batches() {
            let batch = batch?;
            let rows = self.rows(&batch, "")?;
            // Tokenised in parallel, taken in order.
            let examples: Vec<_> = rows.par_iter().map(|row| self.example(row)).collect();
            for (row, example) in rows.iter().zip(examples) {
                read.add(row.id, example.map(|example| vec![example]))?;
            }
        }
        Ok(read)
    }

    /// Returns the rows of text in the columns whose names begin with `prefix`.
    pub(super) fn rows<'a>(&self, batch: &'a RecordBatch, prefix: &str) -> Result<Vec<Row<'a>>, OperatorError> {
        let (ids, questions) = (text_column(batch, "id")?, text_column(batch, "question_id")?);
        let texts = text_column(batch, &format!("{prefix}text"))?;
        let Some(spans) = list(batch, &format!("{prefix}loss_spans")) else {
            return Err(OperatorError::data(
                "the examples have no `loss_spans`, so the text that the model wrote is not known",
            )
            .with_help("convert them with `convert-to-swift`, which writes `text` and `loss_spans`"));
        };
        let weights = self.weights(batch)?;
        let content = list(batch, &format!("{prefix}content_spans"));
        let mut rows = Vec::with_capacity(batch.num_rows());
        for (row, weight) in weights.into_iter().enumerate() {
            rows.push(Row {
                id: ids.value(row),
                question: questions.value(row),
                text: text_value(texts, row),
                spans: ranges_at(spans, row),
                content: content.map_or_else(Vec::new, |content| ranges_at(content, row)),
                weight,
            });
        }
        Ok(rows)
    }

    fn weights(&self, batch: &RecordBatch) -> Result<Vec<f64>, OperatorError> {
        let Some(name) = self.weight_column else { return Ok(vec![1.0; batch.num_rows()]) };
        let Some(column) = batch.column_by_name(name) else {
            return Err(OperatorError::data(format!("the examples have no column `{name}`"))
                .with_help("`weight_column` must name a numeric column"));
        };
        let column = cast(column, &DataType::Float64)?;
        // A null is no weight: the example is not learnt.
        Ok(column.as_primitive::<Float64Type>().iter().map(Option::unwrap_or_default).collect())
    }

    pub(super) fn example(&self, row: &Row<'_>) -> Result<Example, Unfit> {
        let Some(text) = row.text else { return Err(Unfit::Row("there is no rendered text".to_owned())) };
        if !(row.weight.is_finite() && row.weight >= 0.0) {
            return Err(Unfit::Row(format!("the weight is {}, it must be 0 or more", row.weight)));
        }
        let text = Prompt::of_text(text, &row.content, &self.control);
        let mut tokens = self.tokenise(&text, &row.spans)?;
        let over = tokens.len().saturating_sub(self.max_length);
        match self.truncation {
            _ if over == 0 => {}
            Truncation::Delete => {
                let message = format!("{} tokens, more than max_length {}", tokens.len(), self.max_length);
                return Err(Unfit::Row(message));
            }
            Truncation::Right => tokens.truncate(self.max_length),
            Truncation::Left => drop(tokens.drain(..over)),
        }
        let (tokens, learnt) = tokens.into_iter().unzip();
        let (id, question) = (row.id.to_owned(), row.question.to_owned());
        let weight = row.weight as f32;
        let example = Example { id, question, tokens, learnt, weight, sampled: None, paired: None };
        // A cut may leave only what the model read.
        match example.targets() {
            0 => Err(Unfit::Row("no token of the model's own is left to learn".to_owned())),
            _ => Ok(example),
        }
    }

    /// Returns the tokens and whether each is learnt. Text of the model and other text are tokenised separately, as in
    /// ms-swift, so that no token spans both.
    fn tokenise(&self, text: &Prompt, spans: &[Range<usize>]) -> Result<Vec<(u32, bool)>, Unfit> {
        let (mut parts, mut end) = (Vec::new(), 0);
        for span in spans {
            parts.push((end..span.start, false));
            parts.push((span.clone(), true));
            end = span.end;
        }
        parts.push((end..text.text.len(), false));
        let mut tokens = Vec::new();
        for (range, is_learnt) in parts {
            // Spans may overlap, run backwards or split a character in rows that were not converted here.
            if text.text.get(range.clone()).is_none() {
                return Err(Unfit::Row("`loss_spans` do not fit the text".to_owned()));
            }
            let encoded = text.encode_part(self.tokenizer, range).map_err(Unfit::Row)?;
            tokens.extend(encoded.into_iter().map(|(token, _)| (token, is_learnt)));
        }
        let Some((unknown, _)) = tokens.iter().find(|(token, _)| *token as usize >= self.vocabulary) else {
            return Ok(tokens);
        };
        let token = self.tokenizer.id_to_token(*unknown).unwrap_or_default();
        let message = format!(
            "the tokenizer has token {unknown} (`{token}`), but the model's vocabulary ends at {}",
            self.vocabulary
        );
        Err(Unfit::Vocabulary(
            OperatorError::data(message).with_help("`tokenizer.json` and `config.json` must belong to the same model"),
        ))
    }
}

/// Returns a column of lists.
fn list<'a>(batch: &'a RecordBatch, name: &str) -> Option<&'a ListArray> {
    batch.column_by_name(name)?.as_list_opt::<i32>()
}

/// Why a row is no example.
#[derive(Debug)]
pub enum Unfit {
    /// The row cannot be trained on.
    Row(String),
    /// No row can: tokens and model do not belong together.
    Vocabulary(OperatorError),
}

/// Returns the byte ranges of a row in a column of lists.
fn ranges_at(column: &ListArray, row: usize) -> Vec<Range<usize>> {
    let list = column.value(row);
    let (Some(starts), Some(ends)) = (offsets(&list, "start"), offsets(&list, "end")) else { return Vec::new() };
    starts.values().iter().zip(ends.values()).map(|(start, end)| *start as usize..*end as usize).collect()
}

/// Returns a field of the ranges of a row.
fn offsets(list: &ArrayRef, name: &str) -> Option<Int64Array> {
    let column = list.as_struct_opt()?.column_by_name(name)?;
    // SQL computes lengths of 32 bits.
    cast(column, &DataType::Int64).ok()?.as_primitive_opt::<Int64Type>().cloned()
}

/// Returns the reject of a row.
pub(super) fn reject(id: &str, message: String) -> Reject {
    Reject { id: id.to_owned(), kind: FailureKind::Data.name().to_owned(), message, attempts: 1, detail: None }
}

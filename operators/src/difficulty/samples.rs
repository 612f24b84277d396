//! The samples of questions: from trajectories, or from predictions that the questions list.

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::DataType;
use indexmap::IndexMap;
use searchmill_engine::operator::OperatorError;
use searchmill_schemas::{Question, Trajectory, from_batch};
use serde_json::Value;

use super::correct::Correct;
use super::cut::{Cut, Rating};
use crate::shared::unfit::Unfit;

/// One judged trajectory: its sample index, its id (for the order of equal indices), whether it is correct.
type Sample = (i32, String, bool);

/// Judged trajectories by question.
#[derive(Default)]
pub(crate) struct Sampled {
    questions: IndexMap<String, (Question, Vec<Sample>)>,
    /// Number of trajectories without golden answers.
    pub(crate) unjudged: usize,
}

impl Sampled {
    /// Judges a trajectory; it does not count if its golden answers are empty after normalisation.
    pub(crate) fn add(&mut self, row: Trajectory, correct: &Correct) -> Result<(), Unfit> {
        let fit = correct.require_texts(&row.golden_answers);
        let sample = (row.sample_index, row.id, correct.judge(&row.prediction, &row.golden_answers));
        let judged = !row.golden_answers.is_empty();
        let (_, samples) = self.questions.entry(row.question_id.clone()).or_insert_with(|| {
            let question = Question {
                id: row.question_id,
                question: row.question,
                golden_answers: row.golden_answers,
                question_type: row.question_type,
                evidence: row.evidence,
                metadata: row.metadata,
            };
            (question, Vec::new())
        });
        // The question is there even if this sample does not count.
        if judged && fit.is_ok() {
            samples.push(sample);
        }
        self.unjudged += usize::from(!judged);
        fit
    }

    /// Takes the samples of a question, in order.
    pub(crate) fn take(&mut self, id: &str) -> Vec<bool> {
        // The order of the questions is that of the other input here, and `shift_remove` takes linear time.
        match self.questions.swap_remove(id) {
            Some((_, samples)) => in_order(samples),
            None => Vec::new(),
        }
    }

    /// Number of samples not taken.
    pub(crate) fn left(&self) -> usize {
        self.questions.values().map(|(_, samples)| samples.len()).sum()
    }

    /// Returns the questions in the order of their first trajectory, each with its rating.
    pub(crate) fn into_questions(self, cut: &Cut) -> (Vec<Question>, Vec<Rating>) {
        let (mut questions, mut ratings) = (Vec::new(), Vec::new());
        for (question, samples) in self.questions.into_values() {
            questions.push(question);
            ratings.push(cut.rate(&in_order(samples)));
        }
        (questions, ratings)
    }
}

fn in_order(mut samples: Vec<Sample>) -> Vec<bool> {
    // By the index of a sample: the rows may be in any order.
    samples.sort();
    samples.into_iter().map(|(_, _, correct)| correct).collect()
}

/// The predictions that a question lists, or the reason why they cannot be read.
type Listed = Result<Vec<String>, Unfit>;

/// Returns each question with the predictions in its column `field`, or in this field of `metadata`.
pub(crate) fn predictions(batch: &RecordBatch, field: &str) -> Result<Vec<(Question, Listed)>, OperatorError> {
    let questions: Vec<Question> = from_batch(batch)?;
    let lists = match batch.column_by_name(field) {
        Some(column) => listed(column, field)?,
        None => questions.iter().map(|question| noted(question.metadata.as_deref(), field)).collect(),
    };
    Ok(questions.into_iter().zip(lists).collect())
}

/// Reads a column of lists of texts. A null text is an empty prediction.
fn listed(column: &dyn Array, field: &str) -> Result<Vec<Listed>, OperatorError> {
    let lists = cast(column, &DataType::new_list(DataType::Utf8, true));
    let (Ok(lists), true) = (lists, column.data_type().is_list()) else {
        let message = format!("column `{field}` must be a list of texts, found {}", column.data_type());
        let help = "name another column or metadata field in `predictions`";
        return Err(OperatorError::pipeline(message).with_help(help));
    };
    let mut rows = Vec::with_capacity(lists.len());
    for list in lists.as_list::<i32>().iter() {
        let mut texts = Vec::new();
        if let Some(list) = list {
            texts.extend(list.as_string::<i32>().iter().map(|text| text.unwrap_or_default().to_owned()));
        }
        rows.push(Ok(texts));
    }
    Ok(rows)
}

/// Reads a field of a question's metadata. A null is an empty prediction, a number or boolean counts as its text.
fn noted(metadata: Option<&str>, field: &str) -> Listed {
    let Some(metadata) = metadata else { return Ok(Vec::new()) };
    let fields: Value =
        serde_json::from_str(metadata).map_err(|error| Unfit::new(format!("`metadata` is not JSON: {error}")))?;
    let items = match fields.get(field) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(Unfit::new(format!("`{field}` in `metadata` is not a list of texts"))),
    };
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        texts.push(match item {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            Value::Number(_) | Value::Bool(_) => item.to_string(),
            Value::Array(_) | Value::Object(_) => {
                return Err(Unfit::new(format!("`{field}` in `metadata` has entries that are no texts")));
            }
        });
    }
    Ok(texts)
}

//! `difficulty`: rates questions by how often, or how late, rollouts of them were right.

mod correct;
mod cut;
mod samples;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{DataType, Field};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    ParamIssue, Ports,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch, to_batch};
use serde::{Deserialize, Serialize};

use super::shared::columns::with_columns;
use correct::Correct;
use cut::{Cut, Rating};
use samples::{Sampled, predictions};
use summary::Tally;

/// Rates questions by their rollouts. Adds four columns: `difficulty` (a label of `cut`, or `undetermined` if the
/// samples are too few to decide), `attempts` (number of the first correct sample, counted from 1; null if none is
/// correct), `pass_rate` (share of correct samples; null without samples) and `samples` (their number). Samples of a
/// question count in the order of `sample_index`; failed rollouts do not count. Samples without golden answers cannot
/// be judged and do not count either; with golden answers of nothing but punctuation and articles they are rejects.
pub(crate) struct Difficulty;

/// Parameters of `difficulty`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct DifficultyParams {
    /// How to name the difficulty of a question.
    pub(crate) cut: Cut,
    /// When a sample counts as correct.
    pub(crate) correct: Correct,
    /// The field with the list of predicted answers of each question, in the order they were sampled: a column of
    /// `questions`, or a field of their `metadata` (`pred_anses` in R1-Searcher's `stage_1.jsonl`). It replaces the
    /// input `trajectories`. Questions without the field have no samples.
    pub(crate) predictions: Option<String>,
}

impl Operator for Difficulty {
    type Params = DifficultyParams;
    const NAME: &'static str = "difficulty";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Rates questions by how often, or how late, rollouts of them were right.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "R1-Searcher's cut: easy, medium or difficult by the first correct rollout",
            yaml: "rated: {op: difficulty, from: rollouts}",
        },
        Example {
            title: "By the share of correct rollouts, also for questions without one",
            yaml: "rated:\n  op: difficulty\n  from: {trajectories: rollouts, questions: train}\n  with: {correct: {f1: 0.8}, cut: {pass_rate: {easy: 0.7, medium: 0.2, difficult: 0}}}",
        },
        Example {
            title: "From predictions that came with the questions",
            yaml: "rated: {op: difficulty, from: {questions: stage_1}, with: {predictions: pred_anses, correct: em, cut: {first_correct: {easy_below: 6, difficult_above: 10}}}}",
        },
    ];

    fn declare(params: &DifficultyParams) -> Declaration {
        let [trajectories, questions] =
            [RecordKind::Trajectory, RecordKind::Question].map(|kind| Accept::Rows(vec![kind]));
        let about = "The questions to rate, with all their columns. Not given: the questions of the trajectories, without \
            columns beyond the kind, in the order of their first appearance.";
        let ports = Ports::new()
            .input_of("trajectories", trajectories, Arity::Optional, "Rollouts, several per question.")
            .input_of("questions", questions, Arity::Optional, about)
            .rows_out("questions", RecordKind::Question, "The questions with their difficulty, in input order.");
        let given = params.clone();
        Declaration::pure(ports).issues(issues(params)).checks_inputs(move |inputs| given.input_issues(inputs))
    }

    fn open(params: &DifficultyParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &DifficultyParams) -> Vec<ParamIssue> {
    let mut issues = params.cut.issues();
    issues.extend(params.correct.issue());
    if params.predictions.as_deref() == Some("") {
        issues.push(ParamIssue::new("predictions", "the text is empty").with_help("name a column or a metadata field"));
    }
    issues
}

impl DifficultyParams {
    /// Checks that the samples have exactly one origin.
    fn input_issues(&self, inputs: &[&str]) -> Vec<ParamIssue> {
        let issue = match (&self.predictions, inputs.contains(&"trajectories"), inputs.contains(&"questions")) {
            (None, false, _) => ParamIssue::new("predictions", "there is nothing to rate the questions by")
                .with_help("connect `trajectories`, or name the field of `questions` that lists predicted answers"),
            (Some(_), true, _) => ParamIssue::new("predictions", "the samples have two origins")
                .with_help("remove `predictions`, or the input `trajectories`"),
            (Some(_), _, false) => {
                ParamIssue::new("predictions", "needs the input `questions`").with_help("write `from: {questions: …}`")
            }
            _ => return Vec::new(),
        };
        vec![issue]
    }
}

impl BlockingKernel for DifficultyParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let Some(field) = &self.predictions else {
            let tally = self.of_rollouts(inputs, outputs, context)?;
            tally.report(&self.cut, outputs);
            return Ok(());
        };
        let mut tally = Tally::default();
        for batch in inputs.rows("questions")?.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (mut rated, mut ratings) = (Vec::new(), Vec::new());
            for (row, (question, list)) in predictions(&batch, field)?.into_iter().enumerate() {
                let fit = self.correct.require_texts(&question.golden_answers);
                match fit.and(list) {
                    Ok(list) => {
                        let mut samples = Vec::new();
                        // Without golden answers, nothing is right or wrong: the question has no samples.
                        if question.golden_answers.is_empty() {
                            tally.unjudged += list.len();
                        } else {
                            samples.extend(list.iter().map(|text| self.correct.judge(text, &question.golden_answers)));
                        }
                        ratings.push(self.cut.rate(&samples));
                        rated.push(row as u32);
                    }
                    Err(unfit) => outputs.reject(unfit.reject(question.id))?,
                }
            }
            emit(&take_record_batch(&batch, &UInt32Array::from(rated))?, &ratings, &mut tally, outputs)?;
        }
        tally.report(&self.cut, outputs);
        Ok(())
    }
}

impl DifficultyParams {
    fn of_rollouts(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<Tally, OperatorError> {
        let (mut sampled, mut tally) = (Sampled::default(), Tally::default());
        for batch in inputs.rows("trajectories")?.batches() {
            context.check_cancelled()?;
            for trajectory in from_batch::<Trajectory>(&batch?)? {
                // Taken first: the sample consumes the row.
                let id = trajectory.id.clone();
                if let Err(unfit) = sampled.add(trajectory, &self.correct) {
                    outputs.reject(unfit.reject(id))?;
                }
            }
        }
        tally.unjudged = sampled.unjudged;
        // All samples are read before a question is rated: its rollouts may be in any batch.
        let Some(questions) = inputs.rows_optional("questions") else {
            let (rows, ratings) = sampled.into_questions(&self.cut);
            emit(&to_batch(&rows)?, &ratings, &mut tally, outputs)?;
            return Ok(tally);
        };
        for batch in questions.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let ids = searchmill_schemas::text_column(&batch, "id")?;
            let ratings: Vec<_> = ids.iter().flatten().map(|id| self.cut.rate(&sampled.take(id))).collect();
            emit(&batch, &ratings, &mut tally, outputs)?;
        }
        // What no question took.
        tally.strangers = sampled.left();
        Ok(tally)
    }
}

/// Writes questions with their ratings.
fn emit(rows: &RecordBatch, ratings: &[Rating], tally: &mut Tally, outputs: &mut Outputs) -> Result<(), OperatorError> {
    for rating in ratings {
        tally.count(rating);
    }
    if ratings.is_empty() {
        return Ok(());
    }
    let labels = StringArray::from_iter_values(ratings.iter().map(|rating| &rating.label));
    let attempts: Int64Array = ratings.iter().map(|rating| rating.attempts).collect();
    let rates: Float64Array = ratings.iter().map(|rating| rating.pass_rate).collect();
    let samples = Int64Array::from_iter_values(ratings.iter().map(|rating| rating.samples));
    let columns: Vec<(Field, ArrayRef)> = vec![
        (Field::new("difficulty", DataType::Utf8, false), Arc::new(labels)),
        (Field::new("attempts", DataType::Int64, true), Arc::new(attempts)),
        (Field::new("pass_rate", DataType::Float64, true), Arc::new(rates)),
        (Field::new("samples", DataType::Int64, false), Arc::new(samples)),
    ];
    outputs.write("questions", &with_columns(rows, columns)?)
}

//! The rounds of a loop, question by question.

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use searchmill_schemas::{RecordKind, text_column};
use serde::Serialize;

use super::super::failure::Failure;
use super::super::history::RunsView;
use super::{Table, scorers_among};
use crate::node_id::{NodeId, Round};
use crate::store::NodeRun;

/// Columns that pair the rounds' rows.
const QUESTION: &str = "question_id";
/// Columns that say how good a rollout is, the first that there is.
const MEASURES: [&str; 7] = ["reward", "f1", "em", "acc", "success", "correct", "score"];
/// Rows that are read together.
const BLOCK: usize = 8192;

/// How good each question was in each round.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rounds {
    /// The nodes of the rounds, in order.
    pub nodes: Vec<NodeId>,
    /// Number of each round.
    pub numbers: Vec<u64>,
    /// The column that is shown.
    pub measure: String,
    /// Columns that can be shown.
    pub measures: Vec<String>,
    /// Mean of each round over its questions; `None` without any.
    pub means: Vec<Option<f64>>,
    /// The questions, by id.
    pub questions: Vec<QuestionRounds>,
}

/// One question over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuestionRounds {
    /// Its id.
    pub id: String,
    /// Mean over its rollouts of each round; `None` where it was not asked.
    pub values: Vec<Option<f64>>,
    /// Difference of its best and its worst rollout, the largest of all rounds.
    pub spread: f64,
}

/// Sum, count, smallest and largest value of a question's rollouts in a round.
#[derive(Clone, Copy)]
struct Sum {
    total: f64,
    count: u32,
    least: f64,
    most: f64,
}

impl RunsView<'_> {
    /// Returns how good each question was in each round of the loop that `node` (`scores@round=3`) is of. Rollouts have the
    /// columns of what scored them.
    ///
    /// # Errors
    /// Fails if the node is of no loop, if its rows have no questions or no such column, or if a table is gone.
    pub fn rounds(&self, run: &str, node: &str, measure: Option<&str>) -> Result<Rounds, Failure> {
        let asked = NodeId::from(node);
        if asked.round().is_none() {
            let failure = Failure::usage(format!("`{node}` is of no loop"));
            return Err(failure.with_help("name a node of a round: `scores@round=3`"));
        }
        let series = asked.without_round();
        let store = self.session.existing()?;
        let all = store.run_nodes(run);
        let mut nodes: Vec<(Round, &NodeRun)> = Vec::new();
        for other in &all {
            if let Some(round) = other.node.round()
                && other.node.without_round() == series
                && !other.outputs.is_empty()
            {
                nodes.push((round, other));
            }
        }
        nodes.sort_by_key(|(round, _)| *round);
        let mut found = Rounds {
            nodes: nodes.iter().map(|(_, node)| node.node.clone()).collect(),
            numbers: nodes.iter().map(|(round, _)| round.0 as u64).collect(),
            ..Rounds::default()
        };
        let mut sums: BTreeMap<String, Vec<Option<Sum>>> = BTreeMap::new();
        for (place, (_, node)) in nodes.iter().enumerate() {
            let Some(output) = node.outputs.values().next() else { continue };
            let mut table = self.session.store().browse(&output.id, None)?;
            // Rollouts alone do not say how good they are.
            if table.kind() == RecordKind::Trajectory
                && let Some(scorer) = scorers_among(store, &all, &output.id).first()
            {
                table = self.session.store().browse(&output.id, Some(scorer))?;
            }
            // The first round decides: all rounds are shown by one measure.
            if found.measures.is_empty() {
                found.measures = measures(&table);
                let chosen = match measure {
                    Some(asked) => found.measures.iter().find(|name| *name == asked).cloned(),
                    None => found.measures.first().cloned(),
                };
                found.measure = chosen.ok_or_else(|| no_measure(&node.node, measure, &found.measures))?;
            }
            let values = question_sums(&table, &found.measure)?;
            let total: f64 = values.values().map(|sum| sum.total / f64::from(sum.count)).sum();
            found.means.push((!values.is_empty()).then(|| total / values.len() as f64));
            for (question, sum) in values {
                let rounds = sums.entry(question).or_insert_with(|| vec![None; nodes.len()]);
                rounds[place] = Some(sum);
            }
        }
        for (id, rounds) in sums {
            let (mut spread, mut values) = (0.0_f64, Vec::with_capacity(rounds.len()));
            for sum in rounds {
                spread = sum.map_or(spread, |sum| spread.max(sum.most - sum.least));
                values.push(sum.map(|sum| sum.total / f64::from(sum.count)));
            }
            found.questions.push(QuestionRounds { id, values, spread });
        }
        Ok(found)
    }
}

fn no_measure(node: &str, asked: Option<&str>, there: &[String]) -> Failure {
    let failure = match asked {
        Some(asked) => Failure::usage(format!("`{node}` has no numbers `{asked}` of questions")),
        None => Failure::usage(format!("`{node}` has no rows with questions and numbers that say how good they are")),
    };
    let help =
        if there.is_empty() { "name the rollouts of a loop, or their scores".to_owned() } else { there.join(", ") };
    failure.with_help(help)
}

/// Returns the columns with numbers that say how good a row is, the most telling first; then other numbers.
fn measures(table: &Table) -> Vec<String> {
    let mut numbers = Vec::new();
    let mut has_questions = false;
    for field in table.columns() {
        has_questions |= field.name() == QUESTION;
        let is_number = field.data_type().is_numeric() || *field.data_type() == DataType::Boolean;
        if is_number && field.name() != "sample_index" {
            numbers.push(field.name().clone());
        }
    }
    let mut names = Vec::new();
    for measure in MEASURES {
        if let Some(place) = numbers.iter().position(|name| name == measure) {
            names.push(numbers.remove(place));
        }
    }
    if names.is_empty() || !has_questions {
        return Vec::new();
    }
    names.extend(numbers);
    names
}

/// Adds the values of a column up by question.
fn question_sums(table: &Table, measure: &str) -> Result<BTreeMap<String, Sum>, Failure> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    let columns = [QUESTION.to_owned(), measure.to_owned()];
    let all: Vec<u64> = (0..table.rows.rows).collect();
    // In blocks: a table may not fit into memory.
    for block in all.chunks(BLOCK) {
        let batch = table.read(block, &columns)?;
        let questions = text_column(&batch, QUESTION).map_err(|error| Failure::Other(error.to_string()))?;
        let values = cast(batch.column(1), &DataType::Float64);
        let values = values.map_err(|error| Failure::Other(error.to_string()))?;
        let values = values.as_primitive::<Float64Type>();
        for (row, question) in questions.iter().enumerate() {
            let Some(question) = question.filter(|_| values.is_valid(row)) else { continue };
            let value = values.value(row);
            let sum =
                sums.entry(question.to_owned()).or_insert(Sum { total: 0.0, count: 0, least: value, most: value });
            sum.total += value;
            sum.count += 1;
            sum.least = sum.least.min(value);
            sum.most = sum.most.max(value);
        }
    }
    Ok(sums)
}

//! `pair`: pairs the best and the worst rollouts of each question.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float64Array, UInt32Array};
use arrow::compute::{SortOptions, interleave_record_batch, take_record_batch};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow::row::{RowConverter, SortField};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    RowsInput,
};
pub(crate) use searchmill_models::training::pairs::REJECTED;
use searchmill_schemas::{self as schemas, RecordKind, Trajectory, from_batch, to_batch};
use serde::{Deserialize, Serialize};

use super::shared::columns::{extra, id_at, id_column, with_all};
use super::shared::issues::unmet;
use super::shared::numbers::numbers;
use super::shared::relation::{Grouping, Keys, check_key, check_keys, columns_checked, directed, direction_advice};
use super::shared::unfit::Unfit;

const TRAJECTORIES: &str = "trajectories";
const PAIRS: &str = "pairs";

/// Pairs the best and the worst rollouts of each question, for preference training. The rollouts of a question are ranked
/// by `order_by`, ties by their order in the input. The first pair is the best and the worst, the next one the second of
/// each end, and so on; no rollout is in two pairs. Rollouts that rank equally are not paired. Questions are in the order
/// of their first rollout. Rollouts without a rank (null or NaN) are rejects. `convert-to-swift`, `convert-to-trl` and
/// `convert-to-openai` write pairs in preference layouts.
///
/// Columns beyond the kind ride along: those of the better rollout under their names, those of the other one as
/// `rejected_NAME`.
pub(crate) struct Pair;

/// Parameters of `pair`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct PairParams {
    /// What to rank by, the most important first: columns or SQL expressions, each with `desc` (higher is better) or `asc`
    /// (lower is better), for example `[reward desc, turns asc]`. Scores of `evaluate` become columns with `join`.
    pub(crate) order_by: Vec<String>,
    /// Pair rollouts that agree in these columns or SQL expressions (`[question_id]`).
    #[serde(default = "question")]
    pub(crate) by: Vec<String>,
    /// Minimum difference of what comes first in `order_by` (0).
    #[serde(default)]
    pub(crate) margin: f64,
    /// Maximum number of pairs per question (1).
    #[serde(default = "one")]
    pub(crate) pairs_per_question: usize,
}

fn question() -> Vec<String> {
    vec!["question_id".to_owned()]
}

fn one() -> usize {
    1
}

impl Operator for Pair {
    type Params = PairParams;
    const NAME: &'static str = "pair";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Pairs the best and the worst rollouts of each question.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "By reward; of two that earn the same, the shorter rollout is better",
            yaml: "pairs: {op: pair, from: rewarded, with: {order_by: [reward desc, turns asc]}}",
        },
        Example {
            title: "By F1, joined from the scores of `evaluate`: up to two pairs that are clearly apart",
            yaml: "pairs: {op: pair, from: scored, with: {order_by: [f1 desc], margin: 0.5, pairs_per_question: 2}}",
        },
        Example {
            title: "Per question and model",
            yaml: "pairs: {op: pair, from: rewarded, with: {order_by: [reward desc, completion_tokens asc], by: [question_id, model]}}",
        },
    ];

    fn declare(params: &PairParams) -> Declaration {
        let ports = Ports::new()
            .rows_in(TRAJECTORIES, &[RecordKind::Trajectory], "Rollouts, several per question.")
            .rows_out(PAIRS, RecordKind::Pair, "The pairs, the best and the worst of a question first.");
        let (by, order_by, margin) = (params.by.clone(), params.order_by.clone(), params.margin);
        Declaration::pure(ports).issues(issues(params)).checks_columns(move |tables| {
            let mut issues = Vec::new();
            issues.extend(columns_checked(tables, TRAJECTORIES, |schema| Keys::new(schema, "by", &by)));
            issues.extend(columns_checked(tables, TRAJECTORIES, |schema| {
                let ranking = Ranking::new(schema, &order_by)?;
                let empty = ranking.values(&RecordBatch::new_empty(SchemaRef::clone(schema)))?;
                empty.require_margin(margin, &order_by)
            }));
            issues
        })
    }

    fn open(params: &PairParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn issues(params: &PairParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (index, text) in params.order_by.iter().enumerate() {
        let path = format!("order_by.{index}");
        match directed(text) {
            Some((key, _)) => issues.extend(check_key(&path, key)),
            None => issues
                .push(ParamIssue::new(path, format!("`{text}` has no direction")).with_help(direction_advice(text))),
        }
    }
    issues.extend(check_keys("by", &params.by));
    let margin = format!("must be 0 or more, found {}", params.margin);
    issues.extend(unmet(&[
        (!params.order_by.is_empty(), "order_by", "name at least one column"),
        (!params.by.is_empty(), "by", "name at least one column"),
        (params.margin.is_finite() && params.margin >= 0.0, "margin", &margin),
        (params.pairs_per_question > 0, "pairs_per_question", "must be at least 1"),
    ]));
    issues
}

/// Ranks rows.
struct Ranking {
    keys: Keys,
    converter: RowConverter,
}

/// Values of a batch to rank by.
struct Values {
    columns: Vec<ArrayRef>,
    /// The columns that are numbers, as floats.
    numbers: Vec<Option<Float64Array>>,
}

impl Ranking {
    fn new(schema: &SchemaRef, order_by: &[String]) -> Result<Self, OperatorError> {
        let (names, descends): (Vec<&str>, Vec<bool>) = order_by.iter().filter_map(|text| directed(text)).unzip();
        let keys = Keys::new(schema, "order_by", &names)?;
        // The types of expressions are known by computing them without rows.
        let columns = keys.values(&RecordBatch::new_empty(SchemaRef::clone(schema)))?;
        let mut fields = Vec::new();
        for (column, descending) in columns.iter().zip(descends) {
            let options = SortOptions { descending, nulls_first: false };
            fields.push(SortField::new_with_options(column.data_type().clone(), options));
        }
        Ok(Self { converter: RowConverter::new(fields)?, keys })
    }

    fn values(&self, batch: &RecordBatch) -> Result<Values, OperatorError> {
        let columns = self.keys.values(batch)?;
        let mut floats = Vec::new();
        for column in &columns {
            floats.push(if column.data_type().is_null() { None } else { numbers(column)? });
        }
        Ok(Values { columns, numbers: floats })
    }
}

impl Values {
    /// Fails if there is a margin between values that are no numbers.
    fn require_margin(&self, margin: f64, order_by: &[String]) -> Result<(), OperatorError> {
        if margin > 0.0 && self.numbers.first().is_some_and(Option::is_none) {
            let message = format!("`margin`: `{}` is not a number", order_by[0]);
            return Err(OperatorError::pipeline(message).with_help("remove `margin`, or rank by a number first"));
        }
        Ok(())
    }

    /// Returns the first column at `row` if it is a number.
    fn score(&self, row: usize) -> Option<f64> {
        self.numbers.first()?.as_ref().map(|numbers| numbers.value(row))
    }

    /// Whether the row has no rank.
    fn lacks(&self, row: usize) -> bool {
        if self.columns.iter().any(|column| column.is_null(row)) {
            return true;
        }
        // Sorted, a NaN would be above all numbers.
        self.numbers.iter().flatten().any(|numbers| numbers.is_valid(row) && numbers.value(row).is_nan())
    }
}

/// A row of the input.
struct Ranked {
    /// Better rows have smaller keys.
    key: Box<[u8]>,
    row: u32,
    score: Option<f64>,
}

/// Two rows of the input.
struct Chosen {
    best: Ranked,
    worst: Ranked,
    question: String,
}

/// Why questions have no pair.
#[derive(Default)]
struct Tally {
    questions: usize,
    single: usize,
    equal: usize,
    close: usize,
}

impl BlockingKernel for PairParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let rows = inputs.rows(TRAJECTORIES)?;
        let ranking = Ranking::new(&rows.schema, &self.order_by)?;
        let mut grouping = Grouping::new(&rows.schema, "by", &self.by)?;
        let mut groups: Vec<Vec<Ranked>> = Vec::new();
        let mut start = 0_u32;
        for batch in rows.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (ids, values) = (id_column(&batch), ranking.values(&batch)?);
            values.require_margin(self.margin, &self.order_by)?;
            let keys = ranking.converter.convert_columns(&values.columns)?;
            for (index, group) in grouping.assign(&batch)?.into_iter().enumerate() {
                // Also for a row that is rejected: each label has its list.
                groups.resize_with(groups.len().max(group as usize + 1), Vec::new);
                if values.lacks(index) {
                    let unfit = Unfit::new("the rollout has no rank: a value of `order_by` is null or NaN");
                    outputs.reject(unfit.reject(id_at(ids.as_ref(), index).unwrap_or_default()))?;
                    continue;
                }
                let (key, row) = (keys.row(index).as_ref().into(), start + index as u32);
                groups[group as usize].push(Ranked { key, row, score: values.score(index) });
            }
            start += batch.num_rows() as u32;
        }
        let (mut pairs, mut tally) = (Vec::new(), Tally::default());
        for (question, mut ranked) in grouping.labels().zip(groups) {
            // Stable: of equal ranks, the first row in input order.
            ranked.sort_by(|a, b| a.key.cmp(&b.key));
            pairs.extend(self.pairs(question, ranked, &mut tally));
        }
        let count = pairs.len();
        write(rows, pairs, outputs, context)?;
        tally.report(count, outputs);
        Ok(())
    }
}

impl PairParams {
    /// Pairs the rows of a question from both ends.
    fn pairs(&self, question: &str, ranked: Vec<Ranked>, tally: &mut Tally) -> Vec<Chosen> {
        let (mut pairs, mut ranked) = (Vec::new(), ranked.into_iter());
        tally.questions += 1;
        while pairs.len() < self.pairs_per_question {
            let (Some(best), Some(worst)) = (ranked.next(), ranked.next_back()) else {
                // A question that already has a pair has merely used up its rows.
                tally.single += usize::from(pairs.is_empty());
                break;
            };
            // The rows between these two rank equally too, so that no further pair can follow.
            if best.key == worst.key {
                tally.equal += usize::from(pairs.is_empty());
                break;
            }
            // 0.7 − 0.2 is less than 0.5 by rounding.
            if margin(&best, &worst).is_some_and(|margin| margin + 1e-9 < self.margin) {
                tally.close += usize::from(pairs.is_empty());
                break;
            }
            pairs.push(Chosen { best, worst, question: question.to_owned() });
        }
        pairs
    }
}

/// Returns the difference of the scores.
fn margin(best: &Ranked, worst: &Ranked) -> Option<f64> {
    Some((best.score? - worst.score?).abs())
}

/// Writes each pair as soon as both of its rollouts were read again.
fn write(rows: &RowsInput, pairs: Vec<Chosen>, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
    let mut wanted = vec![false; rows.rows as usize];
    for pair in &pairs {
        wanted[pair.best.row as usize] = true;
        wanted[pair.worst.row as usize] = true;
    }
    let (mut read, mut pairs) = (HashMap::new(), pairs.into_iter().peekable());
    let mut others = Vec::new();
    let mut start = 0;
    for (number, batch) in rows.batches().enumerate() {
        context.check_cancelled()?;
        let batch = batch?;
        let rows: Vec<u32> = (0..batch.num_rows() as u32).filter(|row| wanted[start + *row as usize]).collect();
        let paired = take_record_batch(&batch, &UInt32Array::from(rows.clone()))?;
        others.extend(extra(&paired, RecordKind::Trajectory, &RecordKind::Pair.schema())?);
        let rollouts = from_batch::<Trajectory>(&paired)?;
        for (index, (row, rollout)) in rows.into_iter().zip(rollouts).enumerate() {
            read.insert(start as u32 + row, Rollout { rollout, place: (number, index) });
        }
        start += batch.num_rows();
        // In the order of the pairs: one that waits for a later row holds up those behind it.
        let (mut ready, mut best_places, mut worst_places) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(Chosen { best, worst, question }) =
            pairs.next_if(|pair| read.contains_key(&pair.best.row) && read.contains_key(&pair.worst.row))
        {
            let (Some(chosen), Some(rejected)) = (read.remove(&best.row), read.remove(&worst.row)) else { continue };
            best_places.push(chosen.place);
            worst_places.push(rejected.place);
            ready.push(schemas::Pair {
                id: chosen.rollout.id.clone(),
                chosen_id: chosen.rollout.id.clone(),
                rejected_id: rejected.rollout.id.clone(),
                margin: margin(&best, &worst),
                chosen_score: best.score,
                rejected_score: worst.score,
                question_id: question,
                chosen: chosen.rollout,
                rejected: rejected.rollout,
            });
        }
        if ready.is_empty() {
            continue;
        }
        let mut batch = to_batch(&ready)?;
        // The other columns of both rollouts.
        if !others.is_empty() {
            let others: Vec<&RecordBatch> = others.iter().collect();
            batch = with_all(&batch, &interleave_record_batch(&others, &best_places)?)?;
            batch = with_all(&batch, &renamed(&interleave_record_batch(&others, &worst_places)?)?)?;
        }
        outputs.write(PAIRS, &batch)?;
    }
    Ok(())
}

/// A rollout of a pair. `place`: the batch and the row where its other columns are.
struct Rollout {
    rollout: Trajectory,
    place: (usize, usize),
}

/// Renames columns of the worse rollout; leaves out what pairs have themselves under the new name.
fn renamed(others: &RecordBatch) -> Result<RecordBatch, OperatorError> {
    let own = RecordKind::Pair.schema();
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in others.schema().fields().iter().zip(others.columns()) {
        let name = format!("{REJECTED}{}", field.name());
        if own.column_with_name(&name).is_none() {
            fields.push(field.as_ref().clone().with_name(name));
            columns.push(Arc::clone(column));
        }
    }
    // Without columns, the number of rows must be said.
    let options = RecordBatchOptions::new().with_row_count(Some(others.num_rows()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?)
}

impl Tally {
    fn report(&self, pairs: usize, outputs: &mut Outputs) {
        let without = self.single + self.equal + self.close;
        outputs.figure("questions", self.questions as f64);
        outputs.figure("questions_paired", (self.questions - without) as f64);
        outputs.figure("pairs", pairs as f64);
        let mut text = format!("{pairs} pairs of {} questions.\n", self.questions);
        for (count, why) in [
            (self.single, "have fewer than two ranked rollouts."),
            (self.equal, "have rollouts of equal rank only."),
            (self.close, "have rollouts closer than `margin` only."),
        ] {
            if count > 0 {
                text += &format!("{count} questions {why}\n");
            }
        }
        outputs.summary(&text);
    }
}

#[cfg(test)]
mod tests;

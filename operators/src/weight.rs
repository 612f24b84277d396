//! `weight`: turns log-probabilities of answers into sample weights for training.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Float64Type, SchemaRef};
use indexmap::IndexSet;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
};
use searchmill_schemas::{RecordKind, text_column};
use serde::{Deserialize, Serialize};

use super::shared::columns::{with_columns, with_fields};
use super::shared::issues::{refused, unmet};
use super::shared::relation::{Keys, columns_checked};
use super::shared::unfit::Unfit;

/// Adds the column `weight`: how much each rollout counts in training, from the log-probability of the gold answer
/// after it (`logprob`). All columns pass unchanged, in order. Examples that converters make of the rollouts keep
/// it: write `weight_column: weight` in `train`, or `carry: [weight]` in the converter for other trainers.
pub(crate) struct Weight;

/// Parameters of `weight`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct WeightParams {
    /// How weights follow from log-probabilities.
    pub(crate) formula: Formula,
    /// The column of log-probabilities (natural logarithm, at most 0). Default: `logprob` (sum over the tokens) for
    /// `question_softmax`, `logprob_mean` (mean per token) for SearchLM's formulas.
    pub(crate) column: Option<String>,
}

/// How weights follow from log-probabilities. SearchLM (mangopy/SearchLM, `WeightedTrainer.compute_loss`) documents one
/// formula and runs two others, one in each branch. In all three, `nll` is minus the mean log-probability per token,
/// and a micro-batch is a run of consecutive rows, whatever their questions; the last one may be smaller.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum Formula {
    /// Softmax of the log-probabilities over the rollouts of the same question: the importance weights of ExSearch
    /// (arXiv 2505.20128). The weights of each question sum to 1.
    #[default]
    QuestionSoftmax,
    /// What SearchLM's comment intends: softmax of `-nll` over the micro-batch.
    SearchlmIntended {
        /// Rows per micro-batch.
        #[serde(default = "micro_batch")]
        batch: usize,
    },
    /// What SearchLM's branch `main` runs: `nll / Σ nll` over the micro-batch. The WORSE a rollout, the more it counts.
    /// If all `nll` are 0, the weights are equal.
    SearchlmMain {
        /// Rows per micro-batch.
        #[serde(default = "micro_batch")]
        batch: usize,
    },
    /// What SearchLM's branch `v1` runs: `4 · exp(-nll)`, not normalised.
    SearchlmV1,
}

/// Rows per device and step in SearchLM's training scripts.
fn micro_batch() -> usize {
    2
}

impl Formula {
    /// Returns the default of the param `column`.
    fn column(&self) -> &'static str {
        if matches!(self, Self::QuestionSoftmax) { "logprob" } else { "logprob_mean" }
    }

    /// Returns the weight of each row from its question and its log-probability.
    fn weights(&self, questions: &[u32], logprobs: &[f64]) -> Vec<f64> {
        match self {
            Self::QuestionSoftmax => question_softmax(questions, logprobs),
            // The scripts ignore questions: rows that are in a micro-batch by chance are compared.
            Self::SearchlmIntended { batch } => logprobs.chunks((*batch).max(1)).flat_map(softmax).collect(),
            Self::SearchlmMain { batch } => logprobs.chunks((*batch).max(1)).flat_map(shares).collect(),
            Self::SearchlmV1 => logprobs.iter().map(|logprob| 4.0 * logprob.exp()).collect(),
        }
    }
}

fn question_softmax(questions: &[u32], logprobs: &[f64]) -> Vec<f64> {
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (row, question) in questions.iter().enumerate() {
        groups.entry(*question).or_default().push(row);
    }
    let mut weights = vec![0.0; logprobs.len()];
    for members in groups.values() {
        let known: Vec<f64> = members.iter().map(|row| logprobs[*row]).collect();
        for (row, weight) in members.iter().zip(softmax(&known)) {
            weights[*row] = weight;
        }
    }
    weights
}

fn softmax(logprobs: &[f64]) -> Vec<f64> {
    // Less the highest one: the powers of very negative numbers would all be 0.
    let highest = logprobs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logprobs.iter().map(|logprob| (logprob - highest).exp()).collect();
    let whole: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / whole).collect()
}

/// Each row's share of the micro-batch's negative log-likelihood.
fn shares(logprobs: &[f64]) -> Vec<f64> {
    let whole: f64 = logprobs.iter().map(|logprob| -logprob).sum();
    // Where all probabilities are 1, nothing is left to share.
    let equal = 1.0 / logprobs.len() as f64;
    logprobs.iter().map(|logprob| if whole > 0.0 { -logprob / whole } else { equal }).collect()
}

impl Operator for Weight {
    type Params = WeightParams;
    const NAME: &'static str = "weight";
    const VERSION: u32 = 1;
    const ABOUT: &'static str = "Turns log-probabilities of answers into sample weights for training.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Weights that sum to 1 for each question: likelier answers count more",
            yaml: "weighted: {op: weight, from: scored}",
        },
        Example {
            title: "SearchLM's documented formula, over micro-batches of 4 rows",
            yaml: "weighted: {op: weight, from: scored, with: {formula: {searchlm_intended: {batch: 4}}}}",
        },
        Example {
            title: "SearchLM's branch `main` as it runs, from a column of its own",
            yaml: "weighted: {op: weight, from: scored, with: {formula: {searchlm_main: {batch: 2}}, column: mean}}",
        },
    ];

    fn declare(params: &WeightParams) -> Declaration {
        let ports = Ports::new()
            .rows_in("trajectories", &[RecordKind::Trajectory], "Rollouts with a column of log-probabilities.")
            .rows_out("trajectories", RecordKind::Trajectory, "The rollouts with the column `weight`.");
        let (column, checked) = ([params.column().to_owned()], params.clone());
        let declaration = Declaration::pure(ports).issues(issues(params)).gives(|inputs| {
            let columns = inputs.get(ROWS).map(|schema| (ROWS.to_owned(), with_fields(schema, &[weight_field()])));
            columns.into_iter().collect()
        });
        declaration.checks_columns(move |tables| {
            Vec::from_iter(columns_checked(tables, ROWS, |schema| {
                // An unknown name first: its message names columns like it.
                Keys::new(schema, "column", &column)?;
                checked.logprobs(&RecordBatch::new_empty(SchemaRef::clone(schema)))
            }))
        })
    }

    fn open(params: &WeightParams, inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let column = params.column().to_owned();
        if inputs.rows(ROWS)?.schema.column_with_name(&column).is_none() {
            return Err(OperatorError::pipeline(format!("the trajectories have no column `{column}`"))
                .with_help("add the node `logprob` before this one, or name the column in `column`"));
        }
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

/// Port of the rows, in and out.
const ROWS: &str = "trajectories";

fn issues(params: &WeightParams) -> Vec<ParamIssue> {
    let intended = matches!(params.formula, Formula::SearchlmIntended { batch: 0 });
    let main = matches!(params.formula, Formula::SearchlmMain { batch: 0 });
    let mut issues = unmet(&[
        (!intended, "formula.searchlm_intended.batch", "must be at least 1"),
        (!main, "formula.searchlm_main.batch", "must be at least 1"),
    ]);
    let unnamed = params.column.as_deref() == Some("");
    issues.extend(refused(&[(unnamed, "column", "the text is empty", "name a column of the trajectories")]));
    issues
}

impl BlockingKernel for WeightParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let (questions, logprobs) = self.read(inputs, context)?;
        let mut weights = self.formula.weights(&questions, &logprobs).into_iter();
        for batch in inputs.rows(ROWS)?.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let ids = text_column(&batch, "id")?;
            let mut fit = Vec::new();
            for (row, logprob) in self.logprobs(&batch)?.into_iter().enumerate() {
                match logprob {
                    Ok(_) => fit.push(row as u32),
                    Err(unfit) => outputs.reject(unfit.reject(ids.value(row).to_owned()))?,
                }
            }
            if fit.is_empty() {
                continue;
            }
            let of_batch: ArrayRef = Arc::new(Float64Array::from_iter_values(weights.by_ref().take(fit.len())));
            let rows = take_record_batch(&batch, &UInt32Array::from(fit))?;
            outputs.write(ROWS, &with_columns(&rows, vec![(weight_field(), of_batch)])?)?;
        }
        Ok(())
    }
}

fn weight_field() -> Field {
    Field::new("weight", DataType::Float64, false)
}

impl WeightParams {
    fn column(&self) -> &str {
        self.column.as_deref().unwrap_or(self.formula.column())
    }

    /// Reads the question (as a number) and the log-probability of each valid row.
    fn read(&self, inputs: &Inputs, context: &Context) -> Result<(Vec<u32>, Vec<f64>), OperatorError> {
        let mut known: IndexSet<String> = IndexSet::new();
        let (mut questions, mut logprobs) = (Vec::new(), Vec::new());
        for batch in inputs.rows(ROWS)?.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let ids = text_column(&batch, "question_id")?;
            for (row, logprob) in self.logprobs(&batch)?.into_iter().enumerate() {
                // Rows without a log-probability are rejects, and weigh on no other row.
                if let Ok(logprob) = logprob {
                    questions.push(known.insert_full(ids.value(row).to_owned()).0 as u32);
                    logprobs.push(logprob);
                }
            }
        }
        Ok((questions, logprobs))
    }

    /// Returns the log-probability of each row, or why it has none.
    fn logprobs(&self, batch: &RecordBatch) -> Result<Vec<Result<f64, Unfit>>, OperatorError> {
        let name = self.column();
        let Some(column) = batch.column_by_name(name) else {
            return Err(OperatorError::pipeline(format!("the trajectories have no column `{name}`")));
        };
        if !column.data_type().is_numeric() {
            let message = format!("`column`: `{name}` is {}, not a number", column.data_type());
            return Err(OperatorError::pipeline(message).with_help("name a column of log-probabilities in `column`"));
        }
        let column = cast(column, &DataType::Float64)?;
        Ok(column.as_primitive::<Float64Type>().iter().map(|value| checked(name, value)).collect())
    }
}

/// Largest log-probability that counts as 0: what rounding to 32 bits may leave above it.
const ROUNDING: f64 = 1e-6;

fn checked(column: &str, value: Option<f64>) -> Result<f64, Unfit> {
    match value {
        // A probability above 1 is rounding, or no probability.
        Some(value) if value.is_finite() && value <= ROUNDING => Ok(value.min(0.0)),
        Some(value) => Err(Unfit::new(format!("`{column}` is {value}, no log-probability (finite and at most 0)"))),
        None => Err(Unfit::new(format!("there is no `{column}`"))),
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, batch_input, inputs};
    use searchmill_fixtures::trajectories::trajectory;
    use searchmill_schemas::{Trajectory, to_batch};
    use serde_json::{Value, json};

    use super::*;

    /// Rows of (question, log-probability) with the columns `logprob` and `logprob_mean` (half of it).
    fn scored(rows: &[(&str, Option<f64>)]) -> RecordBatch {
        let made = rows.iter().enumerate().map(|(place, (id, _))| trajectory(id, place as i32, "x", "y"));
        let batch = to_batch(&made.collect::<Vec<_>>()).unwrap();
        let sums: Float64Array = rows.iter().map(|(_, logprob)| *logprob).collect();
        let means: Float64Array = rows.iter().map(|(_, logprob)| logprob.map(|sum| sum / 2.0)).collect();
        let field = |name: &str| Field::new(name, DataType::Float64, true);
        with_columns(&batch, vec![(field("logprob"), Arc::new(sums)), (field("logprob_mean"), Arc::new(means))])
            .unwrap()
    }

    fn try_run(params: Value, batch: RecordBatch) -> Result<Outcome, OperatorError> {
        let bound = inputs([(ROWS, batch_input(RecordKind::Trajectory, batch))]);
        Harness::new().run(&entry::<Weight>(), params, &bound)
    }

    fn weights(params: Value, rows: &[(&str, Option<f64>)]) -> Vec<f64> {
        let outcome = try_run(params, scored(rows)).unwrap();
        outcome.batch(ROWS)["weight"].as_primitive::<Float64Type>().values().to_vec()
    }

    fn assert_near(found: &[f64], wanted: &[f64]) {
        let near = |(found, wanted): (&f64, &f64)| (found - wanted).abs() < 1e-12;
        assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(near), "{found:?} {wanted:?}");
    }

    #[test]
    fn golden_weights_of_searchlm() {
        let Some(text) = searchmill_fixtures::shared_text("golden/rewards.jsonl") else { return };
        let mut seen = 0;
        for line in text.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            if row["system"] != "searchlm_sample_weights" {
                continue;
            }
            let nll: Vec<f64> =
                serde_json::from_value(row["input"]["mean_nll_per_sample_in_microbatch"].clone()).unwrap();
            // The helper halves the sums, and different questions share a micro-batch.
            let rows: Vec<_> = nll.iter().map(|nll| if *nll < 1.0 { ("q", nll) } else { ("r", nll) }).collect();
            let rows: Vec<_> = rows.into_iter().map(|(id, nll)| (id, Some(-nll * 2.0))).collect();
            let batch = json!({"batch": nll.len()});
            for (formula, expected) in [
                (json!({"searchlm_intended": batch}), "intended_softmax"),
                (json!({"searchlm_main": batch}), "as_run_main_branch"),
                (json!("searchlm_v1"), "v1_branch_4exp"),
            ] {
                let expected: Vec<f64> = serde_json::from_value(row["expected"][expected].clone()).unwrap();
                assert_near(&weights(json!({"formula": formula}), &rows), &expected);
                seen += 1;
            }
        }
        assert!(seen >= 9, "{seen}");
    }

    #[test]
    fn the_weights_of_a_question_sum_to_one() {
        let rows = [("a", Some(-1.0)), ("b", Some(-700.0)), ("a", Some(-2.0)), ("b", Some(-1000.0))];
        let found = weights(json!({}), &rows);
        let first = 1.0 / (1.0 + (-1.0_f64).exp());
        assert_near(&found, &[first, 1.0, 1.0 - first, 0.0]);
        assert!(found[3] > 0.0, "no underflow of small probabilities");
        let means = weights(json!({"column": "logprob_mean"}), &rows);
        assert_near(&[means[0]], &[1.0 / (1.0 + (-0.5_f64).exp())]);
    }

    #[test]
    fn micro_batches_are_consecutive_rows_and_the_last_may_be_smaller() {
        let rows = [("a", Some(-2.0)), ("b", Some(-6.0)), ("b", Some(-1.0)), ("a", Some(0.0)), ("c", Some(0.0))];
        let found = weights(json!({"formula": {"searchlm_main": {}}}), &rows);
        assert_near(&found, &[0.25, 0.75, 1.0, 0.0, 1.0]);
        let zeros =
            weights(json!({"formula": {"searchlm_main": {"batch": 3}}}), &[("a", Some(0.0)), ("b", Some(1e-9))]);
        assert_near(&zeros, &[0.5, 0.5]);
    }

    #[test]
    fn rows_without_a_log_probability_are_rejected_before_batches_form() {
        let rows = [("a", Some(-2.0)), ("b", None), ("b", Some(f64::NAN)), ("b", Some(0.5)), ("b", Some(-6.0))];
        let outcome = try_run(json!({"formula": {"searchlm_main": {"batch": 2}}}), scored(&rows)).unwrap();
        let rejects: Vec<_> = outcome.rejects().into_iter().map(|reject| (reject.id, reject.message)).collect();
        assert_eq!(rejects.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["b@1", "b@2", "b@3"]);
        assert_eq!(rejects[0].1, "there is no `logprob_mean`");
        assert!(rejects[2].1.contains("0.25, no log-probability"), "{}", rejects[2].1);
        let kept = outcome.batch(ROWS);
        assert_near(kept["weight"].as_primitive::<Float64Type>().values(), &[0.25, 0.75]);
        assert_eq!(outcome.read::<Trajectory>(ROWS)[1].id, "b@4");
        assert_eq!(kept.schema().fields().last().unwrap().name(), "weight");
        let again = try_run(json!({"formula": "searchlm_v1"}), kept).unwrap().batch(ROWS);
        assert_eq!(again.schema().fields().iter().filter(|field| field.name() == "weight").count(), 1);
    }

    #[test]
    fn many_rows_empty_input_and_wrong_params() {
        let ids: Vec<String> = (0..9_001).map(|row| format!("q{}", row % 7)).collect();
        let rows: Vec<_> = ids.iter().enumerate().map(|(at, id)| (id.as_str(), Some(-(at as f64) / 9e3))).collect();
        let sum: f64 = weights(json!({}), &rows).iter().sum();
        assert!((sum - 7.0).abs() < 1e-9);
        assert!(try_run(json!({}), scored(&[])).unwrap().rows.is_empty());
        let refused = |params: Value| try_run(params, scored(&[("a", Some(-1.0))])).unwrap_err();
        assert!(
            refused(json!({"formula": {"searchlm_main": {"batch": 0}}}))
                .message
                .starts_with("formula.searchlm_main.batch")
        );
        assert!(refused(json!({"column": ""})).message.starts_with("column"));
        let absent = refused(json!({"column": "absent"}));
        assert!(absent.message.contains("no column `absent`") && absent.help.is_some());
        assert!(refused(json!({"column": "answer"})).message.contains("not a number"));
    }
}

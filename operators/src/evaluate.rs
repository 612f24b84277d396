//! `evaluate`: scores trajectories and ranked lists, with intervals, baselines and a report.

mod dynamics;
mod family;
mod figures;
mod measure;
mod own;
mod page;
mod retrieval;
mod scored;
mod showcase;
mod terminal;
#[cfg(test)]
mod tests;
mod verdicts;

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{AsArray, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::{Int32Type, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, InputArtifact, Inputs, Kernel, Operator,
    OperatorError, Outputs, ParamIssue, Ports, Tables, TreeKind,
};
use searchmill_schemas::{Hit, Question, RecordKind, Reject, Trajectory, from_batch};
use searchmill_text::baseline::{Baselines, Gold};
use searchmill_text::normalize::normalize_answer;
use serde::{Deserialize, Serialize};

use super::shared::columns::TOOL_ERRORS;
use super::shared::html;
use super::shared::relation::{check_keys, require_few_groups, unknown_keys};
use super::shared::statistics::{Bootstrap, bootstrap_issues};
use dynamics::Dynamics;
pub use family::Family;
use family::{flashrag, is_flashrag};
use figures::Evaluation;
use measure::{Further, measure_groups, measure_questions};
use own::{Own, OwnMeasures};
pub use own::{OwnMeasure, QuantileOf};
use retrieval::Retrieval;
use scored::{QUESTION_TYPE, Scored, type_name};
use showcase::{Showcase, Shown};

/// Scores trajectories, or ranked lists, or both.
pub struct Evaluate;

const METRICS: &str = "Every figure with its interval. Groups: `all`, `<column>=<value>`, and before either \
    `baseline:best_constant` or `baseline:majority_by_type`. Names: em, f1, acc, precision, recall, success, grounded, \
    f1_over_best_constant, f1_over_majority_by_type (paired differences), turns, tool_calls, total_tokens, \
    seen_document_recall, seen_all_documents, pass@k; of other families (`metrics`): kilt/em, r1-searcher/cover_em_1, \
    …; with `verdicts`: verdict/…, agreement/…, kappa/…; from hits: hits@4, hits@10, map@10, mrr@10, recall@k, all_found@k.";

/// Parameters of `evaluate`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case", default)]
pub struct EvaluateParams {
    /// F1 from which a trajectory counts as a success (0 to 1).
    pub success_threshold: f64,
    /// Columns or SQL expressions to break the scores down by, each separately: of the trajectories, and `em`, `f1`, `acc`,
    /// `precision`, `recall`, `success` and `grounded`.
    pub group_by: Vec<String>,
    /// Bootstrap resamples for the intervals (0 = no intervals). Each resample draws whole questions with all their
    /// samples.
    pub resamples: u32,
    /// Coverage of the intervals, between 0 and 1.
    pub confidence: f64,
    /// Depths k for recall of supporting documents in `hits`.
    pub ks: Vec<u32>,
    /// Values of k for pass@k. Empty: 1, 2, 4, … up to the highest number of samples of any question. A question with
    /// fewer than k samples is excluded from pass@k.
    pub pass_at: Vec<u32>,
    /// Trajectories per category (best, lucky, near miss, failure) shown in full in the report.
    pub examples: u32,
    /// Answer metrics to report. FlashRAG's are always among them: success, baselines and the rows of `scores` follow
    /// from them. Those of the other families are rows of `metrics` and tables of their own; every family has its own
    /// rules, so that figures with similar names differ. All follow published code, for which two Unicode forms of one
    /// answer differ: `nfkc` in `sql` gives prediction and golden answers one form first.
    #[serde(skip_serializing_if = "is_flashrag")]
    pub metrics: Vec<Family>,
    /// Columns with verdicts on the answers: `judged` of the operator `judge`, or verdicts that came with the data (see
    /// `columns:` of `read`). A verdict is a boolean, 1 or 0, or a text such as `True`, `incorrect` or `yes`.
    /// `verdict/COLUMN` is the share of right answers among those with a verdict (R1-Searcher's ACC_L). Every two columns
    /// have `agreement/ONE/OTHER` (share of equal verdicts) and `kappa/ONE/OTHER` (Cohen's kappa) over the rows with both.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verdicts: Vec<String>,
    /// Measures of your own by name: `{mean: …}`, `{share: …}` or `{quantile: {of: …, at: 0.9}}` of a column or SQL
    /// expression over what `group_by` may name. Each has an interval and is a column of `scores`. Rows in which it is
    /// null, NaN or infinite do not count.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<String, OwnMeasure>,
    /// Heading of the report.
    pub title: String,
}

impl Default for EvaluateParams {
    fn default() -> Self {
        Self {
            success_threshold: 0.8,
            group_by: vec![QUESTION_TYPE.to_owned()],
            resamples: 1000,
            confidence: 0.95,
            ks: vec![2, 5, 10],
            pass_at: Vec::new(),
            examples: 2,
            metrics: flashrag(),
            verdicts: Vec::new(),
            measures: OwnMeasures::new(),
            title: "Evaluation".to_owned(),
        }
    }
}

impl Operator for Evaluate {
    type Params = EvaluateParams;
    const NAME: &'static str = "evaluate";
    const VERSION: u32 = 6;
    const ABOUT: &'static str = "Scores trajectories and ranked lists: answer and retrieval metrics with intervals, no-retrieval baselines, a report.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "Score rollouts by question type", yaml: "scores: {op: evaluate, from: rollouts}" },
        Example {
            title: "Report failed rollouts separately and break down by tool calls",
            yaml: "scores:\n  op: evaluate\n  from: {trajectories: rollouts, rejects: rollouts.rejects}\n  with: {group_by: [question_type, tool_calls], success_threshold: 0.8}",
        },
        Example {
            title: "Evaluate retrieval alone",
            yaml: "recall: {op: evaluate, from: {questions: questions, hits: hits}, with: {ks: [2, 5, 10, 20]}}",
        },
        Example {
            title: "Also with R1-Searcher's metrics (ACC_R is `r1-searcher/cover_em_1`) and KILT's",
            yaml: "scores: {op: evaluate, from: rollouts, with: {metrics: [flashrag, r1-searcher, kilt]}}",
        },
        Example {
            title: "The share of answers that a judge calls right, and its agreement with stored verdicts",
            yaml: "scores: {op: evaluate, from: judged, with: {verdicts: [judged, stored]}}",
        },
        Example {
            title: "Measures of your own, and groups by a column of the questions",
            yaml: "scores:\n  op: evaluate\n  from: rollouts\n  with:\n    group_by: [source, tool_calls > 3]\n    measures:\n      cost: {mean: prompt_tokens * 2e-6 + completion_tokens * 6e-6}\n      long: {share: turns > 4}\n      slow: {quantile: {of: completion_tokens, at: 0.9}}\n",
        },
    ];

    fn declare(params: &Self::Params) -> Declaration {
        let [trajectories, questions, hits, rejects] =
            [RecordKind::Trajectory, RecordKind::Question, RecordKind::Hit, RecordKind::Reject]
                .map(|kind| Accept::Rows(vec![kind]));
        let of_questions =
            "Questions: required for `hits` without trajectories; also used to report unanswered questions.";
        let of_rejects = "Rollouts that failed: counted apart, never scored as wrong answers. Not given: the rejects of \
            the rollouts behind `trajectories`.";
        let of_scores = "One row per trajectory with golden answers, in input order, with the columns of the trajectories \
            beyond their kind, and the `measures`.";
        let ports = Ports::new()
            .input_of("trajectories", trajectories, Arity::Optional, "Trajectories to score.")
            .input_of("questions", questions, Arity::Optional, of_questions)
            .input_of("hits", hits, Arity::Optional, "Ranked lists, for the retrieval metrics.")
            .input_of("rejects", rejects, Arity::AnyNumber, of_rejects)
            .or_rejects_of("trajectories")
            .rows_out("scores", RecordKind::Score, of_scores)
            .rows_out("metrics", RecordKind::Metric, METRICS)
            .tree_out("report", TreeKind::Report, "`report.html` (a single page without scripts) and `report.json`.");
        let (measures, checked) = (params.measures.clone(), params.clone());
        Declaration::seeded(ports)
            .issues(issues(params))
            .issues(own::issues(&params.measures, measure::is_taken))
            .checks_columns(move |tables| checked.column_issues(tables))
            .gives(move |tables| {
                let mut schemas = BTreeMap::from([("metrics".to_owned(), RecordKind::Metric.schema())]);
                if let Some(trajectories) = tables.get("trajectories") {
                    schemas.insert("scores".to_owned(), own::output_schema(trajectories, &measures));
                }
                schemas
            })
    }

    fn open(params: &Self::Params, inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        let [trajectories, questions, hits] =
            ["trajectories", "questions", "hits"].map(|port| inputs.rows_optional(port));
        if trajectories.is_some() || questions.is_some() {
            return Ok(Kernel::Blocking(Box::new(params.clone())));
        }
        if hits.is_none() {
            let help = "connect `trajectories`, or `questions` and `hits`";
            return Err(OperatorError::pipeline("`evaluate` has nothing to score").with_help(help));
        }
        let message = "`evaluate` has `hits`, but neither `questions` nor `trajectories` with their evidence";
        Err(OperatorError::pipeline(message).with_help("add `questions:` with the questions that were searched for"))
    }
}

fn issues(params: &EvaluateParams) -> Vec<ParamIssue> {
    fn listed_twice<T: PartialEq>(path: &str, list: &[T]) -> Option<ParamIssue> {
        let index = (0..list.len()).find(|index| list[..*index].contains(&list[*index]))?;
        Some(ParamIssue::new(format!("{path}.{index}"), "is listed twice"))
    }
    let mut issues = Vec::new();
    for (name, list) in [("ks", &params.ks), ("pass_at", &params.pass_at)] {
        if let Some(index) = list.iter().position(|k| *k == 0) {
            issues.push(ParamIssue::new(format!("{name}.{index}"), "must be at least 1"));
        }
    }
    if !(0.0..=1.0).contains(&params.success_threshold) {
        issues.push(ParamIssue::new("success_threshold", "must be between 0 and 1"));
    }
    issues.extend(bootstrap_issues(params.resamples, params.confidence));
    issues.extend(listed_twice("group_by", &params.group_by));
    issues.extend(check_keys("group_by", &params.group_by));
    issues.extend(listed_twice("metrics", &params.metrics));
    issues.extend(listed_twice("verdicts", &params.verdicts));
    issues
}

/// Data collected while the inputs stream.
#[derive(Default)]
struct Collected {
    scored: Vec<Scored>,
    gold: BTreeMap<String, Gold>,
    without_gold: usize,
    emptied_gold: usize,
    answered: BTreeSet<String>,
    shown: Vec<Shown>,
    unanswered: usize,
    tool_errors: Option<usize>,
    retrieval: Retrieval,
}

impl Collected {
    /// Records the question of a trajectory; returns false if it has no golden answers and cannot be scored.
    fn note_trajectory(&mut self, trajectory: &Trajectory) -> bool {
        let (kind, golden) = (trajectory.question_type.as_deref(), &trajectory.golden_answers);
        // All samples of a question carry the same evidence.
        if self.answered.insert(trajectory.question_id.clone()) {
            self.retrieval.expect(&trajectory.question_id, &type_name(kind), &trajectory.evidence);
        }
        self.note_question(&trajectory.question_id, golden, kind);
        self.without_gold += usize::from(golden.is_empty());
        // Then an empty prediction equals them.
        let is_emptied = golden.iter().all(|answer| normalize_answer(answer).is_empty());
        self.emptied_gold += usize::from(!golden.is_empty() && is_emptied);
        !golden.is_empty()
    }

    fn note_question(&mut self, id: &str, answers: &[String], question_type: Option<&str>) {
        if !answers.is_empty() && !self.gold.contains_key(id) {
            let gold = Gold { answers: answers.to_vec(), question_type: type_name(question_type) };
            self.gold.insert(id.to_owned(), gold);
        }
    }
}

impl BlockingKernel for EvaluateParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let mut collected = self.collect(inputs, outputs, context)?;
        read_questions(&mut collected, inputs, context)?;
        publish(&self.evaluate(collected, inputs, context)?, outputs)
    }
}

impl EvaluateParams {
    fn column_issues(&self, tables: &Tables) -> Vec<ParamIssue> {
        let Some(schema) = tables.get("trajectories") else { return Vec::new() };
        let mut issues = own::column_issues(schema, &self.group_by, &self.measures);
        let unknown = unknown_keys(schema, "verdicts", &self.verdicts);
        // `of_rows` fails at the first unknown column; `unknown_keys` lists all of them.
        if unknown.is_empty() {
            let empty = RecordBatch::new_empty(SchemaRef::clone(schema));
            issues.extend(verdicts::of_rows(&empty, &self.verdicts).err().map(ParamIssue::from));
        }
        issues.extend(unknown);
        issues
    }

    /// Scores the trajectories.
    fn collect(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<Collected, OperatorError> {
        let mut collected = Collected::default();
        let Some(input) = inputs.rows_optional("trajectories") else { return Ok(collected) };
        let own = Own::new(&input.schema, &self.group_by, &self.measures)?;
        let mut showcase = Showcase::new(self.examples as usize);
        // Fixes the columns of `scores`, also if no row is scored.
        outputs.write("scores", &RecordBatch::new_empty(own::output_schema(&input.schema, &self.measures)))?;
        for batch in input.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let (mut rows, mut scored_rows, mut indices) = (Vec::new(), Vec::new(), Vec::new());
            let verdicts = verdicts::of_rows(&batch, &self.verdicts)?;
            if let Some(column) = batch.column_by_name(TOOL_ERRORS)
                && let Some(errors) = column.as_primitive_opt::<Int32Type>()
            {
                let sum: usize = errors.iter().flatten().map(|count| count as usize).sum();
                // `None` stays if the rollouts do not count errors: a 0 would claim that no call failed.
                *collected.tool_errors.get_or_insert_default() += sum;
            }
            let trajectories = from_batch::<Trajectory>(&batch)?.into_iter().zip(verdicts);
            for (index, (trajectory, verdicts)) in trajectories.enumerate() {
                if !collected.note_trajectory(&trajectory) {
                    continue;
                }
                let mut scored = Scored::of(&trajectory, self.success_threshold);
                scored.further = family::scores(&self.metrics, &trajectory.prediction, &trajectory.golden_answers);
                scored.verdicts = verdicts;
                rows.push(scored.row(&trajectory));
                showcase.offer(&scored, &trajectory);
                scored_rows.push(scored);
                indices.push(index as u32);
            }
            let trajectories = take_record_batch(&batch, &UInt32Array::from(indices))?;
            outputs.write("scores", &own.complete(&trajectories, &mut scored_rows, &rows)?)?;
            collected.scored.extend(scored_rows);
            context.progress().set(collected.scored.len() as u64, input.rows, "trajectories");
        }
        verdicts::require(&collected.scored, &self.verdicts)?;
        for (index, key) in self.group_by.iter().enumerate() {
            let labels: BTreeSet<_> = collected.scored.iter().map(|row| &row.groups[index]).collect();
            require_few_groups(labels.len(), index, key)?;
        }
        collected.shown = showcase.into_shown();
        // A fixed order makes sums and draws independent of the input order.
        collected.scored.sort_by_cached_key(|row| (row.question_id.clone(), row.sample_index, row.id.clone()));
        Ok(collected)
    }

    /// Reads the hits and the rejects, and computes all figures.
    fn evaluate(&self, collected: Collected, inputs: &Inputs, context: &Context) -> Result<Evaluation, OperatorError> {
        let bootstrap = Bootstrap { resamples: self.resamples, confidence: self.confidence, seed: context.seed() };
        let mut retrieval = None;
        if let Some(input) = inputs.rows_optional("hits") {
            // Evidence is that of `questions` and of the trajectories, read before.
            let (mut lists, mut done) = (collected.retrieval, 0);
            for batch in input.batches() {
                context.check_cancelled()?;
                let hits = from_batch::<Hit>(&batch?)?;
                for hit in &hits {
                    lists.add(hit);
                }
                done += hits.len() as u64;
                context.progress().set(done, input.rows, "hits");
            }
            retrieval = Some(lists.finish(&self.ks, &bootstrap));
        }
        let mut failed_rollouts: BTreeMap<String, usize> = BTreeMap::new();
        for input in inputs.many("rejects") {
            let InputArtifact::Rows(rows) = input else { continue };
            for batch in rows.batches() {
                for reject in from_batch::<Reject>(&batch?)? {
                    *failed_rollouts.entry(reject.kind).or_default() += 1;
                }
            }
        }
        context.check_cancelled()?;
        let baselines = Baselines::of(&collected.gold);
        let has_trajectories = inputs.rows_optional("trajectories").is_some();
        let groups = if has_trajectories {
            let further = Further { families: &self.metrics, verdicts: &self.verdicts, own: &self.measures };
            measure_groups(&collected.scored, &self.group_by, &self.pass_at, further, &baselines, &bootstrap)
        } else {
            // Without trajectories, the baselines alone can be scored.
            let gold = collected.gold.iter();
            let questions: Vec<_> = gold.map(|(id, gold)| (id.as_str(), gold.question_type.as_str())).collect();
            measure_questions(&questions, &baselines, &bootstrap)
        };
        Ok(Evaluation {
            title: self.title.clone(),
            threshold: self.success_threshold,
            bootstrap,
            has_trajectories,
            groups,
            without_verdict: verdicts::absent(&collected.scored, &self.verdicts),
            baselines,
            dynamics: Dynamics::of(&collected.scored),
            retrieval,
            failed_rollouts,
            tool_errors: collected.tool_errors,
            without_gold: collected.without_gold,
            emptied_gold: collected.emptied_gold,
            unanswered: collected.unanswered,
            own: self.measures.clone(),
            shown: collected.shown,
        })
    }
}

/// Reads the question table: evidence for the hits, golden answers if there are no trajectories, and unanswered
/// questions.
fn read_questions(collected: &mut Collected, inputs: &Inputs, context: &Context) -> Result<(), OperatorError> {
    let Some(input) = inputs.rows_optional("questions") else { return Ok(()) };
    let has_trajectories = inputs.rows_optional("trajectories").is_some();
    for batch in input.batches() {
        context.check_cancelled()?;
        for question in from_batch::<Question>(&batch?)? {
            let kind = question.question_type.as_deref();
            collected.retrieval.expect(&question.id, &type_name(kind), &question.evidence);
            // Trajectories carry their golden answers: those of the table would count a question twice.
            if has_trajectories {
                collected.unanswered += usize::from(!collected.answered.contains(&question.id));
            } else {
                collected.without_gold += usize::from(question.golden_answers.is_empty());
                collected.note_question(&question.id, &question.golden_answers, kind);
            }
        }
    }
    Ok(())
}

fn publish(evaluation: &Evaluation, outputs: &mut Outputs) -> Result<(), OperatorError> {
    outputs.write_rows("metrics", &evaluation.metrics())?;
    let folder = outputs.tree("report")?;
    html::write(&folder.join("report.html"), &page::render(evaluation))?;
    html::write_json(&folder.join("report.json"), &evaluation.json())?;
    outputs.summary(&terminal::summary(evaluation));
    let all = evaluation.all();
    for name in ["f1", "em", "success", "grounded"] {
        if let Some(estimate) = all.measure(name) {
            outputs.figure(name, estimate.value);
        }
    }
    for (name, estimate) in &all.measures {
        if verdicts::is_of_verdicts(name) || evaluation.own.contains_key(name) {
            outputs.figure(name, estimate.value);
        }
    }
    for (which, name) in searchmill_text::baseline::BASELINES.iter().enumerate() {
        if let Some(estimate) = all.baseline(which, "f1") {
            outputs.figure(&measure::baseline_figure(name), estimate.value);
        }
    }
    if let Some(lists) = evaluation.retrieval.as_ref().and_then(|retrieval| retrieval.groups.first()) {
        for (name, estimate) in &lists.measures {
            outputs.figure(name, estimate.value);
        }
    }
    let counts = [Some(evaluation.dynamics.total.all), Some(evaluation.failed()), evaluation.tool_errors];
    for (name, count) in measure::COUNTS.iter().zip(counts) {
        if let Some(count) = count {
            outputs.figure(name, count as f64);
        }
    }
    Ok(())
}

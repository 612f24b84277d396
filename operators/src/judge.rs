//! `judge`: a language model decides whether the answers of rollouts are right.

mod verdict;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, StringArray};
use arrow::datatypes::Field;
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_agent::policy::{Api, ChatModel, PolicyParams, RowSample};
use searchmill_agent::prompt::hint;
use searchmill_engine::operator::{
    AsyncMapKernel, Context, Declaration, Example, FailureKind, Inputs, Kernel, Operator, OperatorError, ParamIssue,
    Ports, Recheck, Rechecked, RowDifference, RowFailure, RowOutput, RowShape, Usage,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch, text_column};
use searchmill_text::normalize::normalize_answer;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::shared::columns::{with_columns, with_fields};
use verdict::{JudgeRule, PORT, Verdict};

/// Asks a model whether the prediction of each rollout agrees with its golden answers. Adds the columns `judged` (true
/// if the answer is right), `rationale` (the judge's reason, if the rule asks for one) and `judge` (the judge's name).
/// An empty prediction is wrong and costs no call. A rollout without golden answers, and one whose judge gives no
/// verdict, is a reject: it is neither right nor wrong. Question, golden answers and prediction alone decide a verdict.
pub(crate) struct Judge;

/// Parameters of `judge`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct JudgeParams {
    /// The judge: `{endpoint: {base_url: …, model: …, temperature: 0}}` or `{model: {temperature: 0}}`. The published
    /// judges run at temperature 0.
    pub(crate) policy: PolicyParams,
    /// What the judge is asked, and how its answer is read.
    #[serde(default)]
    pub(crate) rule: JudgeRule,
    /// Instructions to the judge (its system message), instead of those of the rule. The judge still gets a JSON object
    /// with `golden_answers`, `predicted_answer` and `question`, and its answer is read by the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<String>,
}

impl Operator for Judge {
    type Params = JudgeParams;
    const NAME: &'static str = "judge";
    const VERSION: u32 = 5;
    const ABOUT: &'static str = "Asks a language model whether the answers of rollouts are right.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "A served judge, by ReSearch's rule",
            yaml: "judged:\n  op: judge\n  from: rollouts\n  with: {policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: gpt-4o-mini, api_key: \"${secret:OPENAI_API_KEY}\", temperature: 0, prices: {prompt: 0.15, completion: 0.6}}}}\n  resources: {concurrency: 32}\n",
        },
        Example {
            title: "Your own instructions; the judge is a model of this pipeline, served while the node runs",
            yaml: "judged:\n  op: judge\n  from: rollouts\n  services:\n    judge: {model: base}\n  with: {policy: {endpoint: {base_url: \"${service.judge}/v1\", model: judge, temperature: 0, max_tokens: 8}}, rule: r1-searcher, instructions: \"Is the predicted answer one of the golden answers? Reply True or False.\"}\n",
        },
        Example {
            title: "A judge in this process, by R1-Searcher's rule",
            yaml: "judged: {op: judge, from: {trajectories: rollouts, model: base}, with: {policy: {model: {temperature: 0, max_tokens: 8}}, rule: r1-searcher}}",
        },
    ];

    fn declare(params: &JudgeParams) -> Declaration {
        let ports = Ports::new().rows_in(PORT, &[RecordKind::Trajectory], "Rollouts to judge.");
        let ports = params.policy.with_port(ports);
        let ports = ports.rows_out(PORT, RecordKind::Trajectory, "The rollouts with their verdicts, in input order.");
        let declaration = Declaration::external(ports)
            .issues(issues(params))
            .passes_variant(PORT)
            .uses_gpus(matches!(params.policy, PolicyParams::Model(_)))
            .rows(RowShape { columns: columns(&params.policy), samples: 1, goal: None })
            .gives(|inputs| {
                inputs.get(PORT).map(|schema| (PORT.to_owned(), with_fields(schema, &fields()))).into_iter().collect()
            })
            .rechecks(|inputs, _| {
                let rollouts = inputs.rows(PORT)?.read_all::<Trajectory>()?.into_iter();
                let rollouts = rollouts.map(|rollout| (rollout.id.clone(), rollout)).collect();
                Ok(Box::new(JudgeRecheck { rollouts }))
            });
        params.policy.declared(declaration)
    }

    fn open(params: &JudgeParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let model = params.policy.open_chat(None, inputs, context)?;
        Ok(Kernel::AsyncMap(Arc::new(JudgeKernel { model, params: params.clone() })))
    }
}

fn issues(params: &JudgeParams) -> Vec<ParamIssue> {
    let mut issues = params.policy.check();
    if matches!(params.policy, PolicyParams::Evidence(_)) {
        let issue = ParamIssue::new("policy", "the evidence teacher is no judge");
        issues.push(issue.with_help("write `policy: {endpoint: {…}}` or `policy: {model: {…}}`"));
    }
    if params.instructions.as_ref().is_some_and(|text| text.trim().is_empty()) {
        issues.push(ParamIssue::new("instructions", "is empty").with_help("leave it out for those of the rule"));
    }
    if params.policy.api() == Api::Completions {
        issues.push(ParamIssue::new("policy", "a judge needs `api: chat`"));
    }
    issues
}

/// Columns that decide a verdict. A local model seeds its sampling by the id of the question.
fn columns(policy: &PolicyParams) -> Vec<String> {
    let id = matches!(policy, PolicyParams::Model(_)).then_some("question_id");
    id.into_iter().chain(["question", "golden_answers", "prediction"]).map(str::to_owned).collect()
}

struct JudgeKernel {
    model: Box<dyn ChatModel>,
    params: JudgeParams,
}

impl JudgeKernel {
    /// Asks for the verdict on a rollout, with its usage.
    async fn verdict(&self, rollout: Trajectory, context: &Context) -> Result<(Verdict, Usage), RowFailure> {
        // Neither right nor wrong, whatever was predicted.
        if rollout.golden_answers.iter().all(|answer| normalize_answer(answer).is_empty()) {
            return Err(unusable("there is no golden answer to judge by"));
        }
        // An empty prediction is wrong under every rule: no call is paid for that.
        if rollout.prediction.trim().is_empty() {
            return Ok((Verdict::no_answer(), Usage::default()));
        }
        let JudgeParams { rule, instructions, .. } = &self.params;
        let case = (rollout.question.as_str(), rollout.golden_answers.as_slice(), rollout.prediction.as_str());
        let asked = rule.messages(instructions.as_deref(), case);
        let sample = RowSample { row: &rollout.question_id, number: 0, context };
        let reply = self.model.reply(&asked, sample).await?;
        let usage = reply.usage().at(&self.model.prices());
        match self.params.rule.read(&reply.message.content) {
            Ok(verdict) => Ok((Verdict { judge: reply.model, ..verdict }, usage)),
            Err(message) => {
                let message = format!("{message}{}", hint(&reply.message));
                let failure = RowFailure::new(FailureKind::BadResponse, message);
                // The call is paid for, even if its answer holds no verdict.
                Err(RowFailure { detail: Some(reply.message.content), usage, ..failure })
            }
        }
    }
}

impl AsyncMapKernel for JudgeKernel {
    fn reads(&self) -> Vec<String> {
        columns(&self.params.policy)
    }

    /// Puts the remembered verdict beside the columns of this row.
    fn label(&self, row: &RecordBatch, _sample: u32, output: RowOutput) -> Option<RowOutput> {
        let [(port, judged)] = <[_; 1]>::try_from(output.batches).ok()?;
        let mut columns = Vec::new();
        for field in fields() {
            let column = Arc::clone(judged.column_by_name(field.name())?);
            columns.push((field, column));
        }
        Some(RowOutput { batches: vec![(port, with_columns(row, columns).ok()?)], usage: output.usage })
    }

    fn said(&self, rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        let ids = text_column(rows, "id")?;
        let Some(verdicts) = Verdict::of_rows(rows) else {
            return Err(OperatorError::data("the rows hold no verdicts"));
        };
        let said = verdicts.iter().map(|verdict| json!([verdict.right, verdict.rationale, verdict.judge]).to_string());
        Ok(ids.iter().flatten().map(str::to_owned).zip(said).collect())
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        _sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let mut rollouts = from_batch::<Trajectory>(row).map_err(|error| unusable(error.0))?;
            let Some(rollout) = rollouts.pop() else { return Err(unusable("there is no rollout in the row")) };
            let (verdict, usage) = self.verdict(rollout, context).await?;
            let columns: [ArrayRef; 3] = [
                Arc::new(BooleanArray::from(vec![verdict.right])),
                Arc::new(StringArray::from(vec![verdict.rationale])),
                Arc::new(StringArray::from(vec![verdict.judge])),
            ];
            let columns = fields().into_iter().zip(columns).collect();
            let judged = with_columns(row, columns).map_err(|error| unusable(error.message))?;
            Ok(RowOutput { batches: vec![(PORT.to_owned(), judged)], usage })
        }
        .boxed()
    }
}

fn unusable(message: impl Into<String>) -> RowFailure {
    RowFailure::new(FailureKind::Data, message)
}

/// The columns of a verdict.
fn fields() -> [Field; 3] {
    use arrow::datatypes::DataType::{Boolean, Utf8};
    [Field::new("judged", Boolean, false), Field::new("rationale", Utf8, true), Field::new("judge", Utf8, true)]
}

/// Compares judged rollouts with those that were given, and the verdicts on empty predictions. The judge's own words are
/// compared with its remembered answers.
struct JudgeRecheck {
    rollouts: BTreeMap<String, Trajectory>,
}

impl Recheck for JudgeRecheck {
    fn port(&self) -> &'static str {
        PORT
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let verdicts = Verdict::of_rows(rows).ok_or_else(|| OperatorError::data("the rows hold no verdicts"))?;
        // No judge is asked about an empty prediction, so its verdict is known.
        let (known, mut found) = (Verdict::no_answer(), Rechecked::default());
        for (judged, verdict) in from_batch::<Trajectory>(rows)?.into_iter().zip(verdicts) {
            found.compared += 1;
            let mut differences = Vec::new();
            match self.rollouts.get(&judged.id) {
                None => differences.push(("rollout", "judged".to_owned(), "not given".to_owned())),
                Some(original) if *original != judged => {
                    let [recorded, derived] = [&judged, original].map(serde_json::to_string);
                    differences.push(("rollout", recorded.unwrap_or_default(), derived.unwrap_or_default()));
                }
                Some(_) => {}
            }
            if judged.prediction.trim().is_empty() && verdict != known {
                differences.push(("verdict", format!("{verdict:?}"), format!("{known:?}")));
            }
            for (what, recorded, derived) in differences {
                let row = judged.id.clone();
                found.differences.push(RowDifference { row, what: what.to_owned(), recorded, derived });
            }
        }
        Ok(found)
    }
}

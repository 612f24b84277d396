//! `export-trajectories`: writes trajectories in the formats of other tools.

mod atif;
mod inspect;
mod nemo_gym;
mod parts;
#[cfg(test)]
mod tests;
mod verifiers;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use schemars::JsonSchema;
use searchmill_engine::operator::{
    BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs, ParamIssue, Ports,
    TreeKind,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::shared::conversion::carry;
use super::shared::numbers::finite;
use super::shared::unfit::Unfit;
use crate::reward::Rewarded;

const TRAJECTORIES: &str = "trajectories";
const FILES: &str = "files";

/// Writes trajectories in the format of another tool to a folder, which `write` delivers. System prompts and tool
/// definitions are always included.
pub(crate) struct ExportTrajectories;

/// Parameters of `export-trajectories`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct ExportTrajectoriesParams {
    /// Format of the files.
    pub(crate) format: Format,
    /// Name of the task and the data set in an Inspect log, of the environment in `traces.jsonl`, and of the agent in
    /// NeMo Gym's files; otherwise unused.
    #[serde(default = "default_name")]
    pub(crate) name: String,
    /// Columns beyond the kind to write, for example `[weight]`, in an object `carried`: under `extra` of an ATIF document,
    /// `metadata` of a sample of Inspect, `info` of a trace of verifiers, and in the rollout of NeMo Gym.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) carry: Vec<String>,
}

/// The format of another tool. `read` with the `layout` of the same name gives all columns of the kind back, also those
/// that the format has no field for (question, evidence, chunks shown, …), and texts that are not plain JSON. Columns
/// beyond the kind are not in the files, but for those in `carry`, and for `reward` and `reward_parts`, which `verifiers`
/// and `nemo-gym` show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Format {
    /// ATIF 1.7 of Harbor: `trajectories.jsonl`, one document per line. Fields that ATIF lacks are under `extra`.
    Atif,
    /// A log of Inspect: `1970-01-01T00-00-00+00-00_trajectories.json`, for `inspect view` and `read_eval_log`. A sample is a question, an epoch a
    /// sample of it; scores are exact match and F1 (FlashRAG's). Tool definitions and fields that Inspect lacks are in the
    /// metadata of the samples and messages.
    Inspect,
    /// verifiers 0.4: `traces.jsonl`, one episode with one trace per line. The rollouts of a question are a group. Rewards
    /// are those of the columns `reward` and `reward_parts`, if the rows have them. Fields that a trace lacks are in
    /// `info.trajectory`. Text of the environment that answers no call (protocols whose rollout is one text) is a message
    /// of the user.
    Verifiers,
    /// NeMo Gym 0.7: `rollouts.jsonl` and `rollouts_materialized_inputs.jsonl`, one line per trajectory in each.
    /// `_ng_task_index` numbers the questions, `_ng_rollout_index` their rollouts. Needs the column `reward` of the
    /// operator `reward`; a row without a reward is a reject. Fields that a rollout lacks are in `trajectory`. Text of the
    /// environment that answers no call is a message of the user.
    NemoGym,
}

fn default_name() -> String {
    TRAJECTORIES.to_owned()
}

impl Operator for ExportTrajectories {
    type Params = ExportTrajectoriesParams;
    const NAME: &'static str = "export-trajectories";
    const VERSION: u32 = 4;
    const ABOUT: &'static str = "Writes trajectories in the format of ATIF, Inspect, verifiers or NeMo Gym.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Trajectories for tools that read ATIF",
            yaml: "atif: {op: export-trajectories, from: rollouts, with: {format: atif}}",
        },
        Example {
            title: "A log for `inspect view`",
            yaml: "log: {op: export-trajectories, from: rollouts, with: {format: inspect, name: hotpotqa}}",
        },
        Example {
            title: "Rewarded rollouts for prime-rl and other readers of verifiers' traces",
            yaml: "traces: {op: export-trajectories, from: rewarded, with: {format: verifiers, name: hotpotqa}}",
        },
        Example {
            title: "Rewarded rollouts for NeMo Gym's tools",
            yaml: "gym: {op: export-trajectories, from: rewarded, with: {format: nemo-gym, name: search_agent}}",
        },
        Example {
            title: "With the weight of each rollout",
            yaml: "atif: {op: export-trajectories, from: weighted, with: {format: atif, carry: [weight]}}",
        },
    ];

    fn declare(params: &ExportTrajectoriesParams) -> Declaration {
        let ports = Ports::new().rows_in(TRAJECTORIES, &[RecordKind::Trajectory], "trajectories to export");
        let ports = ports.tree_out(FILES, TreeKind::Files, "the files of the format");
        let is_unnamed = params.name.trim().is_empty();
        let issue = ParamIssue::new("name", "is blank").with_help("write a name, or remove the param");
        carry::checked(Declaration::pure(ports).issues(is_unnamed.then_some(issue)), TRAJECTORIES, &params.carry)
    }

    fn open(params: &ExportTrajectoriesParams, _: &Inputs, _: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl BlockingKernel for ExportTrajectoriesParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        fn file(folder: &Path, name: &str) -> std::io::Result<BufWriter<File>> {
            Ok(BufWriter::with_capacity(1 << 20, File::create(folder.join(name))?))
        }
        let folder = outputs.tree(FILES)?;
        match self.format {
            Format::Atif => {
                let mut target = file(&folder, "trajectories.jsonl")?;
                self.each(inputs, context, |row, _, carried| {
                    Ok(writeln!(target, "{}", with_carried(atif::document(row), "/extra", carried))?)
                })?;
                // Dropping the writer would flush too, but hide a full disk.
                target.flush()?;
            }
            Format::Inspect => {
                let mut target = file(&folder, inspect::FILE)?;
                self.inspect_log(&mut target, inputs, context)?;
                target.flush()?;
            }
            Format::Verifiers => {
                let mut target = file(&folder, "traces.jsonl")?;
                self.each(inputs, context, |row, rewards, carried| {
                    let episode = verifiers::episode(row, rewards, &self.name);
                    Ok(writeln!(target, "{}", with_carried(episode, "/traces/0/info", carried))?)
                })?;
                target.flush()?;
            }
            Format::NemoGym => {
                let mut asked_file = file(&folder, "rollouts_materialized_inputs.jsonl")?;
                let mut done_file = file(&folder, "rollouts.jsonl")?;
                // An error: without the column, every row would be a reject.
                if inputs.rows(TRAJECTORIES)?.schema.field_with_name("reward").is_err() {
                    let message = "a rollout of NeMo Gym has a reward, and the rows have no column `reward`";
                    let help = "put `{op: reward, from: …, with: {sum: [{f1: 1}]}}` before the node";
                    return Err(OperatorError::pipeline(message).with_help(help));
                }
                let mut questions: HashMap<String, [usize; 2]> = HashMap::new();
                let mut rejects = Vec::new();
                self.each(inputs, context, |row, rewards, carried| {
                    let Some(rewards) = rewards else {
                        rejects.push(Unfit::new("its `reward` is null or not a finite number").reject(row.id.clone()));
                        return Ok(());
                    };
                    let next = questions.len();
                    let indices = questions.entry(row.question_id.clone()).or_insert([next, 0]);
                    let [asked, done] = nemo_gym::lines(row, rewards, &self.name, *indices);
                    indices[1] += 1;
                    writeln!(asked_file, "{asked}")?;
                    Ok(writeln!(done_file, "{}", with_carried(done, "", carried))?)
                })?;
                asked_file.flush()?;
                done_file.flush()?;
                drop((asked_file, done_file));
                outputs.write_rows("rejects", &rejects)?;
            }
        }
        Ok(())
    }
}

impl ExportTrajectoriesParams {
    /// Writes the head of the log, and its samples as they stream.
    fn inspect_log(&self, target: &mut impl Write, inputs: &Inputs, context: &Context) -> Result<(), OperatorError> {
        // The head comes first, and has sums of all rows: the rows are read twice.
        let mut totals = inspect::Totals::default();
        self.each(inputs, context, |row, _, _| {
            totals.add(row);
            Ok(())
        })?;
        let head = totals.head(&self.name).to_string();
        // The samples stream into the object of the head, so that the log may be larger than the memory.
        write!(target, "{},\"samples\":[", head.strip_suffix('}').unwrap_or(&head))?;
        let mut between = "\n";
        self.each(inputs, context, |row, _, carried| {
            let sample = with_carried(inspect::sample(row), "/metadata", carried);
            write!(target, "{between}{sample}")?;
            between = ",\n";
            Ok(())
        })?;
        Ok(writeln!(target, "\n]}}")?)
    }

    /// Returns the values of the columns `carry`, an object for each row; null without such columns.
    fn carried(&self, batch: &RecordBatch) -> Result<Vec<Value>, OperatorError> {
        if self.carry.is_empty() {
            return Ok(vec![Value::Null; batch.num_rows()]);
        }
        let lines = carry::lines(batch, &self.carry)?;
        let values = lines.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>();
        values.map_err(|error| OperatorError::engine(error.to_string()))
    }

    /// Passes every trajectory to `take`, in order, with its reward if the format has rewards, and the values of `carry`.
    fn each(
        &self,
        inputs: &Inputs,
        context: &Context,
        mut take: impl FnMut(&Trajectory, Option<&Rewarded>, &Value) -> Result<(), OperatorError>,
    ) -> Result<(), OperatorError> {
        let with_rewards = matches!(self.format, Format::Verifiers | Format::NemoGym);
        for batch in inputs.rows(TRAJECTORIES)?.batches() {
            context.check_cancelled()?;
            let batch = batch?;
            let rewards = if with_rewards { rewards(&batch)? } else { vec![None; batch.num_rows()] };
            let carried = self.carried(&batch)?;
            for ((row, rewards), carried) in from_batch::<Trajectory>(&batch)?.iter().zip(&rewards).zip(&carried) {
                take(row, rewards.as_ref(), carried)?;
            }
        }
        Ok(())
    }
}

/// Adds the values of the columns `carry` to the object at `pointer`.
fn with_carried(mut written: Value, pointer: &str, carried: &Value) -> Value {
    if let Some(object) = written.pointer_mut(pointer).and_then(Value::as_object_mut)
        && !carried.is_null()
    {
        object.insert("carried".to_owned(), carried.clone());
    }
    written
}

/// Returns the rewards of the rows, as the operator `reward` writes them; `None` without a column `reward`, and for null.
fn rewards(batch: &RecordBatch) -> Result<Vec<Option<Rewarded>>, OperatorError> {
    let Some(column) = batch.column_by_name("reward") else { return Ok(vec![None; batch.num_rows()]) };
    let kind = column.data_type();
    if !kind.is_numeric() {
        return Err(OperatorError::pipeline(format!("the column `reward` is {kind}, not numbers"))
            .with_help("connect the output of `reward`, or rename the column"));
    }
    let values = cast(column, &DataType::Float64)?;
    let values = values.as_primitive::<Float64Type>();
    let mut rewards = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        rewards.push(finite(values, row).map(|value| {
            // Rewards of another node have no parts: the whole is the only one.
            let parts = reward_parts(batch, row).unwrap_or_else(|| vec![("reward".to_owned(), value)]);
            Rewarded { value, parts }
        }));
    }
    Ok(rewards)
}

/// The list `{name, value}` of `reward_parts`, if there is one.
fn reward_parts(batch: &RecordBatch, row: usize) -> Option<Vec<(String, f64)>> {
    let lists = batch.column_by_name("reward_parts")?.as_list_opt::<i32>()?;
    let list = lists.value(row);
    let fields = list.as_struct_opt()?;
    let names = fields.column_by_name("name")?.as_string_opt::<i32>()?;
    let values = fields.column_by_name("value")?.as_primitive_opt::<Float64Type>()?;
    let mut parts = Vec::new();
    for (name, value) in names.iter().zip(values) {
        parts.push((name?.to_owned(), value?));
    }
    if parts.is_empty() { None } else { Some(parts) }
}

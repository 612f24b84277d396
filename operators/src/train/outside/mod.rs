//! External trainers: pass examples and a model to a program, follow it, and take over the model it leaves.

mod files;
mod metrics;
pub(in crate::train) mod swift;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use searchmill_data::program::{Log, Program, unchanged};
use searchmill_engine::lend;
use searchmill_engine::operator::{Context, Inputs, OperatorError, Outputs, RowsInput};
use searchmill_models::decoder::Decoder;
use searchmill_models::on_path;
use searchmill_models::training::fit::Keep;
use searchmill_schemas::{Reject, text_column};

use self::files::Files;
use self::metrics::Metrics;
use super::backend::{Backend, ExecParams};
use super::held_out::split;
use super::page;
use super::params::{Method, TrainParams, checkpoint};
pub(super) use tables::{EVAL, ROWS, names};

/// Interval between two reads of the trainer's metrics.
const LOOK: Duration = Duration::from_secs(1);
/// Environment variable with the GPUs that a program may use.
const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Trains with the program named by the params.
///
/// # Errors
/// When there are no examples or rows, the program fails, or it leaves no model.
pub(super) fn train(
    params: &TrainParams,
    inputs: &Inputs,
    outputs: &mut Outputs,
    context: &Context,
) -> Result<(), OperatorError> {
    // Absolute: the program may change its working folder.
    let folder = context.scratch().join("training");
    let folder = std::path::absolute(&folder).map_err(on_path(&folder))?;
    let prepared = match params.method {
        Method::External => raw_tables(params, inputs, &folder, context)?,
        _ => examples(params, inputs, &folder, context)?,
    };
    // The trainer's own copy: it may lock it, or change it.
    let lent = lend(&inputs.tree("model")?.path, &folder.join("model"))?;
    let model = lent.folder.clone();
    let trainer = Trainer { params, context, model: &model, prepared: &prepared };
    let metrics = trainer.run()?;
    // A large copy is made of hard links: a program that wrote to them has changed the store's files.
    unchanged(std::slice::from_ref(&lent))?;
    files::check_output(&prepared.files.output)?;
    if let Some(step) = metrics.diverged {
        let help = "lower `learning_rate` or set `max_grad_norm`";
        return Err(OperatorError::data(format!("step {step}: the loss is not a number")).with_help(help));
    }
    let output = &prepared.files.output;
    // Copies, and first: the last model may be one of them, and is moved.
    let models = if params.checkpoints.is_empty() { BTreeMap::new() } else { files::models_by_step(output)? };
    for step in &params.checkpoints {
        let folder = match models.get(step).map(Vec::as_slice) {
            Some([one]) => one.clone(),
            // The training is paid: that it is shorter than expected must not lose it.
            None if metrics.at > 0 && metrics.at < *step => {
                let (last, name) = (metrics.at, checkpoint(*step));
                let warning = format!("warning: the training ended after step {last}: `{name}` has its last weights");
                context.progress().log(&warning);
                trainer.trained(&metrics)?
            }
            other => return Err(no_checkpoint(*step, other.map_or(0, <[_]>::len), &models)),
        };
        files::take_model(&folder, &model, &outputs.tree(&checkpoint(*step))?, false)?;
    }
    let to = outputs.tree("model")?;
    let trained = trainer.trained(&metrics)?;
    // A folder behind a link is not the trainer's own: its files may be the user's, and are copied.
    let real_trained = trained.canonicalize().map_err(on_path(&trained))?;
    let own = real_trained.starts_with(output.canonicalize().map_err(on_path(output))?);
    files::take_model(&trained, &model, &to, own)?;
    let trained = if params.method == Method::External { Some(files::elements(&to)?) } else { None };
    trainer.publish(&metrics, trained, outputs)?;
    outputs.write_rows::<Reject>("rejects", &[])
}

/// The error of a step of which a trainer left no model, or several.
fn no_checkpoint(step: u64, count: usize, models: &BTreeMap<u64, Vec<PathBuf>>) -> OperatorError {
    let others: Vec<String> = models.keys().map(u64::to_string).collect();
    let message = match count {
        0 if others.is_empty() => format!("the trainer left no model of step {step}, nor of another one"),
        0 => format!("the trainer left no model of step {step}, but of {}", others.join(", ")),
        _ => format!("the trainer left {count} models of step {step}"),
    };
    let help = "let it save and keep one model for each step of `checkpoints`, in a folder such as `checkpoint-50`";
    OperatorError::data(message).with_help(help)
}

/// What the trainer gets.
struct Prepared {
    files: Files,
    /// Raw tables, by their names in arguments.
    tables: Vec<(&'static str, PathBuf)>,
    examples: usize,
    held_out: usize,
}

/// Writes the examples as the trainer's lines.
fn examples(params: &TrainParams, inputs: &Inputs, to: &Path, context: &Context) -> Result<Prepared, OperatorError> {
    // A script of the user's may read any layout.
    let format = matches!(params.backend, Backend::Swift(_)).then_some("swift");
    let examples = rows(inputs.rows("examples")?, format)?;
    let (examples, held_out) = match inputs.rows_optional("eval") {
        Some(eval) => (examples, rows(eval, format)?),
        None => split(examples, |row| &row.question, params.eval_share, context.seed()),
    };
    // Before the program starts, whose own message may be a traceback.
    if examples.is_empty() {
        return Err(OperatorError::data("no example to train on"));
    }
    let examples: Vec<String> = examples.into_iter().map(|row| row.text).collect();
    let held_out: Vec<String> = held_out.into_iter().map(|row| row.text).collect();
    let files = Files::make(to, &examples, &held_out)?;
    Ok(Prepared { files, tables: Vec::new(), examples: examples.len(), held_out: held_out.len() })
}

/// Writes the raw tables that the arguments name.
fn raw_tables(params: &TrainParams, inputs: &Inputs, to: &Path, context: &Context) -> Result<Prepared, OperatorError> {
    let Backend::Exec(own) = &params.backend else {
        return Err(OperatorError::engine("only a program of `backend: exec` trains on rows"));
    };
    let rows = inputs.rows("rows")?;
    if rows.rows == 0 {
        return Err(OperatorError::data("no row to train on"));
    }
    let files = Files::make(to, &[], &[])?;
    let mut tables = tables::write(rows, ROWS, &own.arguments, to, context)?;
    let eval = inputs.rows_optional("eval");
    if let Some(eval) = eval {
        tables.extend(tables::write(eval, EVAL, &own.arguments, to, context)?);
    }
    let held_out = eval.map_or(0, |eval| eval.rows as usize);
    Ok(Prepared { files, tables, examples: rows.rows as usize, held_out })
}

/// A row of the trainer's JSONL file.
struct Row {
    question: String,
    text: String,
}

fn rows(input: &RowsInput, format: Option<&str>) -> Result<Vec<Row>, OperatorError> {
    let mut rows = Vec::new();
    for batch in input.batches() {
        let batch = batch?;
        let (questions, texts) = (text_column(&batch, "question_id")?, text_column(&batch, "row")?);
        let (ids, formats) = (text_column(&batch, "id")?, text_column(&batch, "format")?);
        for row in 0..batch.num_rows() {
            if let Some(wanted) = format.filter(|wanted| formats.value(row) != *wanted) {
                let message = format!("example `{}` has the layout `{}`", ids.value(row), formats.value(row));
                let help = format!("convert the examples with `convert-to-{wanted}`");
                return Err(OperatorError::data(message).with_help(help));
            }
            rows.push(Row { question: questions.value(row).to_owned(), text: texts.value(row).to_owned() });
        }
    }
    Ok(rows)
}

/// An external training.
struct Trainer<'a> {
    params: &'a TrainParams,
    context: &'a Context,
    model: &'a Path,
    prepared: &'a Prepared,
}

impl Trainer<'_> {
    fn run(&self) -> Result<Metrics, OperatorError> {
        let (command, variables, environment, writes, seconds) = match &self.params.backend {
            Backend::Candle => return Err(OperatorError::engine("the backend `candle` is not an external program")),
            Backend::Swift(own) => {
                let facts = swift::Facts::of(own, self.model, self.prepared.held_out > 0, self.context);
                let command = swift::command(own, self.params, &facts, self.model, &self.prepared.files)?;
                self.context.progress().log(&command.join(" "));
                let mut variables = self.variables();
                if self.context.gpus() > 1 {
                    // swift then starts one process per device.
                    variables.insert("NPROC_PER_NODE".to_owned(), self.context.gpus().to_string());
                }
                (command, variables, &own.environment, [].as_slice(), own.timeout_seconds)
            }
            Backend::Exec(own) => {
                let (command, variables) = (self.exec_command(own), self.exec_variables(own)?);
                (command, variables, &own.environment, own.writes.as_slice(), own.timeout_seconds)
            }
        };
        let mut allowed = environment.clone();
        // The lease has set which devices the node may use; without a lease `variables` hides all.
        if self.context.gpus() > 0 {
            allowed.push(DEVICES.to_owned());
        }
        self.follow(&Program { command: &command, given: variables, allowed: &allowed, writes, seconds })?;
        Ok(metrics::read(&self.prepared.files.metrics))
    }

    fn exec_command(&self, own: &ExecParams) -> Vec<String> {
        let files = &self.prepared.files;
        let mut values = vec![
            ("{examples}", files.examples.display().to_string()),
            ("{held_out}", files.held_out.display().to_string()),
            ("{model}", self.model.display().to_string()),
            ("{output}", files.output.display().to_string()),
            ("{metrics}", files.metrics.display().to_string()),
            ("{seed}", self.context.seed().to_string()),
        ];
        for (name, path) in &self.prepared.tables {
            values.push((*name, path.display().to_string()));
        }
        let mut command = own.program.clone();
        for argument in &own.arguments {
            let mut argument = argument.clone();
            for (name, value) in &values {
                argument = argument.replace(name, value);
            }
            command.push(argument);
        }
        command
    }

    /// Returns the variables of both backends: the node's share of the machine, and unbuffered output.
    fn variables(&self) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::from([("PYTHONUNBUFFERED".to_owned(), "1".to_owned())]);
        if self.context.gpus() == 0 {
            variables.insert(DEVICES.to_owned(), String::new());
            variables.insert("OMP_NUM_THREADS".to_owned(), self.context.threads().to_string());
        }
        variables
    }

    fn exec_variables(&self, own: &ExecParams) -> Result<BTreeMap<String, String>, OperatorError> {
        let training = serde_json::to_value(self.params);
        let mut training = training.map_err(|error| OperatorError::engine(error.to_string()))?;
        // The program has its own params in a variable of their own.
        if let Some(fields) = training.as_object_mut() {
            fields.remove("backend");
        }
        let own = serde_json::to_string(&own.params).map_err(|error| OperatorError::engine(error.to_string()))?;
        let mut variables = self.variables();
        variables.insert("SEARCHMILL_TRAINING".to_owned(), training.to_string());
        variables.insert("SEARCHMILL_PARAMS".to_owned(), own);
        variables.insert("SEARCHMILL_SEED".to_owned(), self.context.seed().to_string());
        Ok(variables)
    }

    /// Runs the program to its end. Logs its lines and reports its progress.
    fn follow(&self, program: &Program<'_>) -> Result<(), OperatorError> {
        let mut running = program.start(Stdio::null(), self.context)?;
        let Some((stdout, stderr)) = running.outputs() else {
            return Err(OperatorError::engine("the program was started without pipes"));
        };
        let (log, ended) = (Log::new(self.context), AtomicBool::new(false));
        running.watched(self.context, &log, |process| {
            thread::scope(|threads| {
                let listeners = [threads.spawn(|| log.listen(stdout)), threads.spawn(|| log.listen(stderr))];
                let reporter = threads.spawn(|| {
                    let mut training = metrics::Progress::default();
                    while !ended.load(Ordering::Acquire) {
                        // The trainer may not have begun its log.
                        if training.follow(&self.prepared.files.metrics).is_ok() && training.at > 0 {
                            self.context.progress().set(training.at, training.total.unwrap_or_default(), "steps");
                        }
                        thread::park_timeout(LOOK);
                    }
                });
                let status = process.wait();
                // First the flag, then the wake-up: otherwise the reporter could sleep for another second.
                ended.store(true, Ordering::Release);
                reporter.thread().unpark();
                // The pipes may still hold its last lines.
                for listener in listeners {
                    drop(listener.join());
                }
                Ok((status?, ()))
            })
        })
    }

    /// Returns the folder of the trained model.
    fn trained(&self, metrics: &Metrics) -> Result<PathBuf, OperatorError> {
        let output = &self.prepared.files.output;
        if self.params.method == Method::External {
            return files::newest_model(output);
        }
        if matches!(self.params.backend, Backend::Swift(_)) {
            return swift::checkpoint(output, metrics.summary.as_ref(), self.params.keep);
        }
        if files::holds_model(output) {
            return Ok(output.clone());
        }
        // transformers' trainer leaves checkpoints too. `take_model` reports a folder without a model.
        Ok(swift::checkpoint(output, None, Keep::Last).unwrap_or_else(|_| output.clone()))
    }

    /// Writes the steps and the report. `trained` is the number of parameters that the program trained, if it is known.
    fn publish(&self, metrics: &Metrics, trained: Option<u64>, outputs: &mut Outputs) -> Result<(), OperatorError> {
        let Self { params, prepared, .. } = *self;
        let config = Decoder::read_config(self.model).ok();
        let trainer = if matches!(params.backend, Backend::Swift(_)) { "ms-swift" } else { "a program of its own" };
        let (parameters, trainable) = match &config {
            Some(config) => (config.parameter_count(), params.tuning.trained_parameters(config)),
            // Of a model that only the program knows, nothing is known.
            None => (0, 0),
        };
        let (steps, more) = match params.method {
            Method::External => metrics.everything(),
            _ => (metrics.steps.clone(), BTreeMap::new()),
        };
        let measured = metrics.steps.iter().filter_map(|step| Some((step.eval_loss?, step.step)));
        // Of equal losses the first one: a trainer replaces its best checkpoint only by a better one.
        let kept = match measured.min_by(|(one, _), (two, _)| one.total_cmp(two)) {
            Some((_, best)) if params.keep == Keep::Best => best,
            _ => metrics.at,
        };
        let report = page::Report {
            params,
            device: trainer.to_owned(),
            steps: &steps,
            more: &more,
            kept,
            stopped: metrics.total.is_some_and(|total| metrics.at < total),
            examples: prepared.examples,
            held_out: prepared.held_out,
            trainable: trained.unwrap_or(trainable) as usize,
            parameters,
        };
        let folder = report.publish(outputs)?;
        // A program need not log.
        let log = &prepared.files.metrics;
        if log.is_file() {
            std::fs::copy(log, folder.join("logging.jsonl")).map_err(on_path(log))?;
        }
        files::keep_tensorboard(&prepared.files.output, &folder)?;
        if let Some(memory) = metrics.memory.filter(|memory| *memory > 0.0) {
            outputs.figure("peak_gpu_memory_mib", memory * 1024.0);
        }
        Ok(())
    }
}

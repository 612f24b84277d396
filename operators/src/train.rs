//! `train`: trains a model on converted examples.

mod backend;
mod check;
mod data;
mod earned;
mod held_out;
mod outside;
mod page;
mod params;
mod policy;
mod start;
mod tensorboard;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Outputs,
    Ports, Repeatability, TreeKind,
};
use searchmill_models::decoder::Decoder;
use searchmill_models::device::Compute;
use searchmill_models::inference::{ADAPTER, WHOLE};
use searchmill_models::training::fit::{Fit, Fitted};
use searchmill_models::training::memory::TrainingNeed;
use searchmill_models::training::objective::{Objective, Sft};
use searchmill_models::training::policy_gradient::PolicyGradient;
use searchmill_models::training::preference::Preference;
use searchmill_models::training::state::{copied, set_all};
use searchmill_models::training::student::Student;
use searchmill_schemas::{RecordKind, Reject};

use self::data::Data;
use self::earned::Earned;
use self::params::{Method, TrainParams, checkpoint};
use self::start::{MODEL, Start};

/// Trains a model on converted examples: all its weights, or a LoRA adapter. Only tokens that the model wrote have
/// loss (`loss_spans` of `convert-to-swift`). Packed examples do not see each other. The loss of a step is the mean
/// over all its learnt tokens. On the CPU the same inputs, params and seed give the same bytes for any number of
/// threads. A GPU (`resources: {gpus: 1}`) gives different bytes; the report names the device. A killed training
/// resumes from its last saved state with the same result, bit for bit.
///
/// With `backend: swift` or `backend: exec` an external program trains. Its output goes to the node's log, its
/// metrics become the rows of `steps`, and its checkpoint becomes the model. If killed, it starts over. `audit` does
/// not repeat it, because another run may give different bytes.
///
/// With `method: external` the program of `backend: exec` gets the raw rows of any table, for example the questions of
/// `convert-to-verl`, and trains as it likes. The input is then called `rows` instead of `examples`, and `eval` takes
/// any table. searchmill passes its own params on (`SEARCHMILL_TRAINING`) and applies none of them.
///
/// With `method: grpo` or `method: reinforce++`, the input is `trajectories`: rollouts with recorded tokens and advantages.
/// Tokens sampled at another temperature than 1 are learnt from logits divided by it. The table `steps` has further columns:
/// `ratio`, `kl`, `clip_share`, `reference_kl`, `logprob_gap`, `entropy`, and means over the rollouts of the step: `reward`,
/// `rollout_tokens`, `searches`, `unanswered`.
///
/// A LoRA adapter is trained further if it is named with its base: `model: [base, adapter]`, with the options that it was
/// trained with. In a loop, `model: [base, policy]` begins an adapter in the first round and goes on with it in the others;
/// with the input `state`, the optimiser's moments carry. `reference: base` is the model without the adapter.
///
/// With `checkpoints: [50, 100]`, the weights after these steps are outputs beside `model`, for an evaluation of each: in a
/// matrix, `from: {model: "student.checkpoint_${matrix.step}"}`.
///
/// With `method: dpo`, the input is `pairs`. Only tokens that the model wrote count; those of turns that both rollouts have
/// cancel out. Further columns of `steps`: `chosen_reward`, `rejected_reward`, `reward_margin`, `reward_accuracy`.
pub(crate) struct Train;

impl Operator for Train {
    type Params = TrainParams;
    const NAME: &'static str = "train";
    const VERSION: u32 = 6;
    const ABOUT: &'static str =
        "Trains a language model on examples, rewards or preferences: all weights, or a LoRA adapter.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "All weights of a small model",
            yaml: "student:\n  op: train\n  from: {examples: swift, model: blank}\n  with: {epochs: 4, batch_size: 16, learning_rate: 3e-3, eval_share: 0.05, keep: best}\n  seed: 1\n",
        },
        Example {
            title: "A LoRA adapter with the settings of DeepSearch-RL",
            yaml: "adapter:\n  op: train\n  from: {examples: swift, model: base}\n  with:\n    tuning: {lora: {rank: 64, alpha: 128, dropout: 0.05, target_modules: [all-linear]}}\n    epochs: 2\n    batch_size: 8\n    learning_rate: 1e-4\n    eval_share: 0.05\n    early_stopping: 3\n",
        },
        Example {
            title: "An adapter of attention only, with weighted examples and a separate held-out set",
            yaml: "student:\n  op: train\n  from: {examples: weighted, model: base, eval: validation}\n  with: {tuning: {lora: {target_modules: [q_proj]}}, weight_column: weight, schedule: linear, max_steps: 200, checkpointing: true, optimizer: {weight_decay: 0}}\n",
        },
        Example {
            title: "With the weights after steps 50 and 100 as outputs, beside the last ones",
            yaml: "student:\n  op: train\n  from: {examples: swift, model: base}\n  with: {tuning: {lora: {rank: 64, alpha: 128}}, batch_size: 8, max_steps: 120, checkpoints: [50, 100]}\n",
        },
        Example {
            title: "By ms-swift on a GPU, with all settings of DeepSearch-RL",
            yaml: "adapter:\n  op: train\n  from: {examples: swift, model: base}\n  with:\n    tuning: {lora: {rank: 64, alpha: 128}}\n    epochs: 2\n    batch_size: 8\n    max_length: 32768\n    eval_share: 0.05\n    backend:\n      swift:\n        version: 3.8.3\n        attn_impl: flash_attn\n        packing: true\n        use_liger_kernel: true\n        dataloader_num_workers: 4\n        dataset_num_proc: 16\n        report_to: tensorboard\n        model_type: qwen3_nothinking\n        template: qwen3_nothinking\n        flags: {loss_scale: default}\n        environment: [HF_HOME]\n  resources: {gpus: 1}\n",
        },
        Example {
            title: "By your own script",
            yaml: "student:\n  op: train\n  from: {examples: trl, model: base}\n  with:\n    epochs: 1\n    backend:\n      exec:\n        program: [python3]\n        version: trl 0.20\n        arguments: [train.py, --data, \"{examples}\", --model, \"{model}\", --out, \"{output}\", --log, \"{metrics}\"]\n        files: [my_trainer]\n        params: {loss: dft}\n        environment: [HF_HOME]\n",
        },
        Example {
            title: "GRPO on rollouts with recorded tokens and advantages, one step of a round",
            yaml: "step:\n  op: train\n  from: {trajectories: scored, model: policy, state: optimizer, reference: student}\n  with:\n    method: grpo\n    epochs: 1\n    batch_size: 256\n    learning_rate: 1e-6\n    schedule: constant\n    warmup_ratio: 0\n    policy_loss: {clip_high: 0.28, kl: {coefficient: 0.001}}\n",
        },
        Example {
            title: "A step of GRPO that goes on with the adapter of the round before (in the first round: begins one)",
            yaml: "step:\n  op: train\n  from: {trajectories: scored, model: [base, policy], state: optimizer, reference: base}\n  with:\n    method: grpo\n    tuning: {lora: {rank: 16, alpha: 32, dropout: 0}}\n    epochs: 1\n    batch_size: 64\n    learning_rate: 1e-5\n    schedule: constant\n    warmup_ratio: 0\n    policy_loss: {kl: {coefficient: 0.001}, entropy: 0.001}\n",
        },
        Example {
            title: "DPO on pairs, tied to the model that it starts from",
            yaml: "preferred:\n  op: train\n  from: {pairs: converted, model: student}\n  with: {method: dpo, epochs: 1, batch_size: 8, learning_rate: 5e-6, eval_share: 0.1, preference_loss: {beta: 0.1}}\n",
        },
        Example {
            title: "GRPO by a script of yours that starts verl, on the rows of `convert-to-verl`",
            yaml: "policy:\n  op: train\n  from: {rows: rl_rows, model: base}\n  with:\n    method: external\n    backend:\n      exec:\n        program: [bash]\n        version: verl 0.7\n        arguments: [grpo.sh, \"{rows}\", \"{model}\", \"{output}\", \"{metrics}\"]\n",
        },
    ];

    fn declare(params: &TrainParams) -> Declaration {
        let outside = params.backend.is_outside();
        let (backend, checked) = (params.backend.clone(), params.clone());
        let method = params.method;
        let ports = ports(params, outside);
        let merges = params.lora().map(|lora| lora.merge);
        let (variant, merged) = (if merges == Some(false) { ADAPTER } else { WHOLE }, merges == Some(true));
        let column = params.advantage_column.clone();
        Declaration::seeded(ports)
            // What an external program leaves is known only after it has run.
            .variant((!outside).then_some(variant))
            .checks_variants(MODEL, move |kinds| if outside { Vec::new() } else { start::issues(kinds, merged) })
            .issues(check::issues(params))
            .gives_at_most(move |_| {
                let steps = if outside { None } else { page::columns(method).ok() };
                steps.map(|columns| ("steps".to_owned(), columns)).into_iter().collect()
            })
            .checks_variants(policy::ROLLOUTS, move |sampled| check::sampling_issues(method, sampled))
            .checks_columns(move |tables| check::advantage_issues(method, column.as_deref(), tables))
            .checks_inputs(move |inputs| check::input_issues(&checked, inputs))
            .repeatability(if outside { Repeatability::Not } else { Repeatability::Processor })
            .runs_programs(outside)
            .uses_gpus(true)
            .reads(move |directory| backend.sources(directory))
            .unseen(params.backend.unseen())
    }

    fn open(params: &TrainParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

fn ports(params: &TrainParams, outside: bool) -> Ports {
    let method = params.method;
    let sampled = "Rollouts of `model` with recorded tokens (`record: tokens`) and advantages.";
    let pairs = "Pairs as `convert-to-swift` renders them, or those of `pair` with recorded tokens (`record: tokens`).";
    let (name, rows, about) = match method {
        Method::Sft => {
            let examples = Accept::Rows(vec![RecordKind::Example]);
            ("examples", examples, "The examples, with `text` and `loss_spans`.")
        }
        Method::External => ("rows", Accept::AnyRows, "The rows that the program reads, of any kind."),
        Method::Grpo | Method::ReinforcePlusPlus => {
            (policy::ROLLOUTS, Accept::Rows(vec![RecordKind::Trajectory]), sampled)
        }
        Method::Dpo => (policy::PAIRS, Accept::Rows(policy::PAIR_KINDS.into()), pairs),
    };
    // The rows come first: the first input is the main one.
    let ports = Ports::new().input_of(name, rows.clone(), Arity::One, about);
    let arity = if outside { Arity::One } else { Arity::Many };
    let about = "The base model: a Hugging Face folder. With an adapter to train further: `[base, adapter]`.";
    let ports = ports.input_of(MODEL, Accept::Tree(TreeKind::Model), arity, about);
    let about = match method {
        Method::External => "Rows for evaluation, of any kind.",
        Method::Dpo => "Held-out pairs, instead of a share of `pairs`.",
        _ => "Held-out examples, instead of a share of `examples`.",
    };
    let ports = if method.learns_from_rewards() { ports } else { ports.input_of("eval", rows, Arity::Optional, about) };
    let ports = match method {
        Method::Sft | Method::External => ports,
        Method::Dpo => policy::more_inputs(ports, "The model that the policy is tied to (default: `model`)."),
        Method::Grpo | Method::ReinforcePlusPlus => {
            policy::more_inputs(ports, "The model from which the divergence is measured (`policy_loss.kl`).")
        }
    };
    let mut ports = ports.tree_out(MODEL, TreeKind::Model, "The trained model, or the PEFT adapter.");
    for step in &params.checkpoints {
        ports = ports.tree_out(&checkpoint(*step), TreeKind::Model, &format!("The weights after step {step}."));
    }
    let about = "One row per step: step, epoch, loss, learning_rate, grad_norm, tokens, targets, token_accuracy, \
                 eval_loss, eval_token_accuracy.";
    let ports = ports
        .rows_out("steps", RecordKind::Table, about)
        .tree_out("report", TreeKind::Report, "`report.html` with the curves (one page, no scripts), `report.json`, and the steps for TensorBoard. With ms-swift: its TensorBoard files, too.");
    let ports = if params.optimizer_state { policy::state_input(ports) } else { ports };
    if params.has_state() { policy::outputs(ports) } else { ports }
}

impl BlockingKernel for TrainParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        if self.backend.is_outside() {
            return outside::train(self, inputs, outputs, context);
        }
        let start = Start::of(MODEL, inputs, context)?;
        let folder = &start.folder;
        let config = Decoder::read_config(folder)?;
        let mut data = self.read(inputs, folder, &config, context.seed())?;
        // Before the model is loaded, which takes longer than reading the rows.
        if data.examples.is_empty() {
            return Err(nothing_left(&data.rejects));
        }
        let compute = Compute::leased(context, self.dtype)?;
        // A pass holds at least one example.
        let tokens = self.pass_tokens.max(data.longest());
        TrainingNeed::of(&config, &self.tuning, tokens, self.checkpointing, &compute)
            .check(available(context, &compute))?;
        context.progress().log(&format!("device: {}", compute.name()));
        let mut reference = None;
        if !inputs.trees(policy::REFERENCE).is_empty() {
            reference = Some(Start::of(policy::REFERENCE, inputs, context)?);
        }
        // Before the student is loaded: two models at a time need twice the memory.
        for examples in [&mut data.examples, &mut data.held_out] {
            policy::measure_reference(self, examples, &start, reference.as_ref(), &compute)?;
        }
        let has_state = !inputs.trees(policy::STATE).is_empty();
        let student = start.student(&self.tuning, has_state, context.seed(), &compute)?;
        let (fitted, batches) = self.fit(&student, &data, inputs, context)?;
        let mut more = BTreeMap::new();
        if self.method.learns_from_rewards() {
            let earned = Earned::read(inputs.rows(policy::ROLLOUTS)?, &data.examples)?;
            for (step, batch) in (1..).zip(&batches) {
                // One rollout may have several examples: it counts once.
                let ids = batch.iter().map(|example| data.examples[*example].id.as_str());
                more.insert(step, earned.means(&ids.collect()));
            }
            earned.publish(outputs);
        }
        self.publish(&student, folder, &fitted, &data, &more, outputs)?;
        if self.has_state() {
            policy::publish_state(&fitted, outputs)?;
        }
        outputs.write_rows("rejects", &data.rejects)
    }
}

impl TrainParams {
    /// Trains the student. Returns what became of it, and the numbers of the examples of each step.
    fn fit(
        &self,
        student: &Student,
        data: &Data,
        inputs: &Inputs,
        context: &Context,
    ) -> Result<(Fitted, Vec<Vec<usize>>), OperatorError> {
        // Held-out examples are measured without the context, so that losses can be compared between trainings.
        let (sft, plain) = (Sft { context_weight: self.context_weight as f32 }, Sft::default());
        let policy = PolicyGradient::new(self.policy_loss.unwrap_or_default());
        let preference = Preference { settings: self.preference_loss.unwrap_or_default() };
        let (objective, evaluation): (&dyn Objective, &dyn Objective) = match self.method {
            Method::Grpo | Method::ReinforcePlusPlus => (&policy, &policy),
            Method::Dpo => (&preference, &preference),
            Method::Sft | Method::External => (&sft, &plain),
        };
        let optimizer = policy::optimizer_state(inputs)?;
        let fit = Fit {
            settings: self.fit_settings(),
            objective,
            evaluation,
            student,
            examples: &data.examples,
            units: &data.units,
            held_out: &data.held_out,
            optimizer: optimizer.as_deref(),
            context,
        };
        let fitted = fit.run()?;
        let batches = (0..fitted.progressed.steps.len() as u64).map(|step| fit.batch(step)).collect();
        Ok((fitted, batches))
    }

    fn publish(
        &self,
        student: &Student,
        from: &Path,
        fitted: &Fitted,
        data: &Data,
        more: &BTreeMap<u64, BTreeMap<String, f64>>,
        outputs: &mut Outputs,
    ) -> Result<(), OperatorError> {
        student.write(from, &outputs.tree(MODEL)?)?;
        if !fitted.progressed.checkpoints.is_empty() {
            // The student writes its own weights: it takes those of each checkpoint, then its last ones again.
            let last = copied(&student.weights)?;
            for (step, weights) in &fitted.progressed.checkpoints {
                set_all(&student.weights, weights)?;
                student.write(from, &outputs.tree(&checkpoint(*step))?)?;
            }
            set_all(&student.weights, &last)?;
        }
        let report = page::Report {
            params: self,
            steps: &fitted.progressed.steps,
            more,
            kept: fitted.kept,
            stopped: fitted.progressed.stopped,
            examples: data.units.len(),
            held_out: data.held_out_units,
            trainable: student.trainable(),
            parameters: student.decoder.config().parameter_count(),
            device: student.compute.name(),
        };
        report.publish(outputs)?;
        // The speed differs between runs, so it goes to the node's record and not into an artifact.
        if fitted.tokens > 0 {
            outputs.figure("tokens_per_second", fitted.tokens as f64 / fitted.time.as_secs_f64().max(1e-9));
        }
        if let Some(bytes) = status_bytes("/proc/self/status", "VmHWM:") {
            outputs.figure("peak_memory_mib", bytes as f64 / f64::from(1 << 20));
        }
        Ok(())
    }
}

fn nothing_left(rejects: &[Reject]) -> OperatorError {
    match rejects.first() {
        Some(Reject { id, message, .. }) => {
            OperatorError::data(format!("no example to train on ({} rejected: `{id}`: {message})", rejects.len()))
        }
        None => OperatorError::data("no example to train on (0 rejected)").with_help(
            "its input has no rows: an earlier node rejected or filtered all of them (`searchmill show NODE --rejects`); in \
             reinforcement learning, all rollouts of each question may have earned the same",
        ),
    }
}

/// Returns the memory limit of the node, or what the machine has available.
fn available(context: &Context, compute: &Compute) -> Option<u64> {
    if !compute.device.is_cpu() {
        return compute.memory(None);
    }
    context.memory().or_else(|| status_bytes("/proc/meminfo", "MemAvailable:"))
}

/// Reads a line `name   123 kB` of a system file, in bytes.
fn status_bytes(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

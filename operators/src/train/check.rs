//! Checks of the params of `train`.

use searchmill_data::program::{variable_issues, write_issues};
use searchmill_engine::operator::{ParamIssue, Tables};
use searchmill_models::training::example::Truncation;
use searchmill_models::training::fit::Keep;
use searchmill_models::training::policy_gradient::{Aggregation, ImportanceSampling};
use searchmill_models::training::preference::PreferenceKind;
use searchmill_models::training::rollouts::check_advantages;
use searchmill_models::training::student::{ALL_LINEAR, LoraParams, MODULES};

use super::backend::{Backend, no_program};
use super::outside::{EVAL, ROWS, names, swift};
use super::params::{Method, TrainParams};
use super::policy::{REFERENCE, ROLLOUTS};
use crate::rollout::recorded::{FROM_SOME, GREEDY, UNRECORDED};
use crate::shared::issues::{refused, unmet};
use crate::shared::relation::columns_checked;

/// Returns all issues of the params.
pub(super) fn issues(params: &TrainParams) -> Vec<ParamIssue> {
    let is_outside = params.backend.is_outside();
    let decay = params.optimizer.weight_decay;
    let has_state = params.method == Method::Sft && !is_outside;
    let continues = params.schedule_steps.is_none() || !is_outside;
    let demands = [
        (is_positive(params.epochs), "epochs", "must be greater than 0"),
        (params.max_steps != Some(0), "max_steps", "must be at least 1"),
        (params.batch_size > 0, "batch_size", "must be at least 1"),
        (params.pass_tokens > 0, "pass_tokens", "must be at least 1"),
        (params.max_length > 1, "max_length", "must be at least 2"),
        ((0.0..=1.0).contains(&params.context_weight), "context_weight", "must be between 0 and 1"),
        (is_positive(params.learning_rate), "learning_rate", "must be greater than 0"),
        ((0.0..=1.0).contains(&params.warmup_ratio), "warmup_ratio", "must be between 0 and 1"),
        (params.schedule_steps != Some(0), "schedule_steps", "must be at least 1"),
        (continues, "schedule_steps", "only the backend `candle` continues a schedule"),
        (params.max_grad_norm.is_none_or(is_positive), "max_grad_norm", "must be greater than 0, or null"),
        (is_share(params.eval_share), "eval_share", "must be from 0 to under 1"),
        (params.eval_steps > 0, "eval_steps", "must be at least 1"),
        (params.early_stopping != Some(0), "early_stopping", "must be at least 1"),
        (params.save_steps > 0, "save_steps", "must be at least 1"),
        (is_share(params.optimizer.beta1), "optimizer.beta1", "must be from 0 to under 1"),
        (is_share(params.optimizer.beta2), "optimizer.beta2", "must be from 0 to under 1"),
        (is_positive(params.optimizer.epsilon), "optimizer.epsilon", "must be greater than 0"),
        (decay.is_finite() && decay >= 0.0, "optimizer.weight_decay", "must be 0 or more"),
        (has_state || !params.optimizer_state, "optimizer_state", "belongs to `method: sft` of the backend `candle`"),
    ];
    let mut issues = unmet(&demands);
    if let Some(lora) = params.lora() {
        issues.extend(unmet(&[
            (lora.rank > 0, "tuning.lora.rank", "must be at least 1"),
            (is_positive(lora.alpha), "tuning.lora.alpha", "must be greater than 0"),
            (is_share(lora.dropout), "tuning.lora.dropout", "must be from 0 to under 1"),
        ]));
        issues.extend(module_issues(lora, is_outside));
    }
    issues.extend(checkpoint_issues(params));
    issues.extend(external_issues(params));
    issues.extend(policy_issues(params));
    issues.extend(preference_issues(params));
    issues.extend(backend_issues(params));
    issues
}

fn is_positive(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

fn is_share(number: f64) -> bool {
    (0.0..1.0).contains(&number)
}

/// Checks the steps whose weights are outputs.
fn checkpoint_issues(params: &TrainParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let mut before = 0;
    for (index, step) in params.checkpoints.iter().enumerate() {
        let path = format!("checkpoints.{index}");
        // After one such step, all that follow would be reported too.
        if *step <= before {
            issues.push(ParamIssue::new(path, "the steps count from 1 and must rise"));
            break;
        }
        if params.max_steps.is_some_and(|most| *step > most) {
            issues.push(ParamIssue::new(path, "is behind `max_steps`"));
        }
        before = *step;
    }
    // The steps are outputs: each must be there.
    if !params.checkpoints.is_empty() && params.early_stopping.is_some() {
        let issue = ParamIssue::new("early_stopping", "may end the training before a step of `checkpoints`");
        issues.push(issue.with_help("leave one of them out"));
    }
    issues
}

/// Checks the modules of LoRA. External trainers know more modules than our decoders have.
fn module_issues(lora: &LoraParams, outside: bool) -> Vec<ParamIssue> {
    if lora.target_modules.is_empty() {
        return vec![ParamIssue::new("tuning.lora.target_modules", "must name at least one module")];
    }
    let mut issues = Vec::new();
    for (index, name) in lora.target_modules.iter().enumerate() {
        let is_known = outside && !name.is_empty() || name == ALL_LINEAR || MODULES.contains(&name.as_str());
        if !is_known {
            let path = format!("tuning.lora.target_modules.{index}");
            let help = format!("write `{ALL_LINEAR}`, or any of {}", MODULES.join(", "));
            issues.push(ParamIssue::new(path, format!("unknown module `{name}`")).with_help(help));
        }
    }
    issues
}

/// Checks the params of the backend, and those that it does not support.
fn backend_issues(params: &TrainParams) -> Vec<ParamIssue> {
    match &params.backend {
        Backend::Candle => Vec::new(),
        Backend::Swift(own) => {
            let mut issues = foreign(params, "ms-swift", "set `backend.swift.gradient_checkpointing`");
            issues.extend(swift::issues(own, params));
            issues
        }
        Backend::Exec(own) => {
            let help = "pass it to the program in `arguments` or `params`";
            let mut issues = foreign(params, "an external trainer", help);
            issues.extend(no_program("backend.exec.program", &own.program));
            issues.extend(variable_issues("backend.exec.environment", &own.environment));
            issues.extend(write_issues("backend.exec.writes", &own.writes));
            // The trained model would not be found, after the training was paid.
            if !own.arguments.iter().any(|argument| argument.contains("{output}")) {
                let issue = ParamIssue::new("backend.exec.arguments", "do not name the folder of the trained model");
                issues.push(issue.with_help("use `{output}` in one of them"));
            }
            issues.extend(placeholder_issues(params.method, &own.arguments));
            issues
        }
    }
}

/// Checks that the arguments name the files of the method, and not those of the other one.
fn placeholder_issues(method: Method, arguments: &[String]) -> Vec<ParamIssue> {
    let (foreign, help) = match method {
        Method::External => (vec!["{examples}", "{held_out}"], "there are rows: use `{rows}` or `{rows_jsonl}`"),
        _ => ([ROWS, EVAL].concat(), "there are examples: use `{examples}`, or set `method: external`"),
    };
    let mut issues = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        if let Some(name) = foreign.iter().find(|name| argument.contains(**name)) {
            let path = format!("backend.exec.arguments.{index}");
            let message = format!("`{name}` does not exist with this `method`");
            issues.push(ParamIssue::new(path, message).with_help(help));
        }
    }
    if method == Method::External && !names(arguments, &ROWS) {
        let issue = ParamIssue::new("backend.exec.arguments", "do not name the file of the rows");
        issues.push(issue.with_help("use `{rows}` (Parquet) or `{rows_jsonl}` (JSON lines) in one of them"));
    }
    issues
}

/// Checks the settings of reinforcement learning, and those that mean nothing to it.
fn policy_issues(params: &TrainParams) -> Vec<ParamIssue> {
    if !params.method.learns_from_rewards() {
        let none = "belongs to `method: grpo` and `method: reinforce++`";
        return refused(&[
            (params.policy_loss.is_some(), "policy_loss", none, "leave it out"),
            (params.advantage_column.is_some(), "advantage_column", none, "leave it out"),
        ]);
    }
    let none = "has no meaning for rollouts with advantages";
    let outside = "only the backend `candle` learns from advantages";
    let run_program = "run the program of an RL trainer with `method: external`";
    let unmeasured = "no loss is measured on other examples";
    let loss = params.policy_loss.unwrap_or_default();
    // With more than 1, the lower bound would be below 0, which no ratio is.
    let low = is_positive(loss.clip_low) && loss.clip_low <= 1.0;
    let dual = loss.dual_clip.is_some_and(|most| !(most.is_finite() && most > 1.0));
    let constant = loss.aggregation == Aggregation::Constant(0);
    let kl = loss.kl.is_some_and(|kl| !(kl.coefficient.is_finite() && kl.coefficient >= 0.0));
    // The ratio of a rollout is no weight of one token's estimate.
    let mixed = loss.kl.is_some_and(|kl| kl.importance_weighted)
        && loss.importance_sampling_level == ImportanceSampling::Sequence;
    let weighs = "weighs tokens, and the ratio is that of the whole rollout";
    let of_token = "leave it out, or write `importance_sampling_level: token`";
    let entropy = loss.entropy.is_some_and(|factor| !(factor.is_finite() && factor >= 0.0));
    refused(&[
        (params.backend.is_outside(), "method", outside, run_program),
        (params.weight_column.is_some(), "weight_column", none, "advantages weigh the rollouts"),
        (params.context_weight != 0.0, "context_weight", none, "only what the model wrote is learnt"),
        (params.eval_share != 0.0, "eval_share", none, "evaluate the model with rollouts of other questions"),
        (params.early_stopping.is_some(), "early_stopping", none, unmeasured),
        (params.keep != Keep::Last, "keep", none, unmeasured),
        (params.truncation != Truncation::Delete, "truncation", none, "a rollout that is cut has another reward"),
        (!low, "policy_loss.clip_low", "must be greater than 0 and at most 1", "0.2 is common"),
        (!is_positive(loss.clip_high), "policy_loss.clip_high", "must be greater than 0", "0.2 is common"),
        (dual, "policy_loss.dual_clip", "must be greater than 1, or null", "verl has 3"),
        (constant, "policy_loss.aggregation.constant", "must be at least 1", "the most tokens that a rollout may have"),
        (kl, "policy_loss.kl.coefficient", "must be 0 or more", "0.001 is common"),
        (mixed, "policy_loss.kl.importance_weighted", weighs, of_token),
        (entropy, "policy_loss.entropy", "must be 0 or more, or null", "0.001 is common"),
    ])
}

/// Checks the settings of preference training, and those that mean nothing to it.
fn preference_issues(params: &TrainParams) -> Vec<ParamIssue> {
    if params.method != Method::Dpo {
        let other = "belongs to `method: dpo`";
        return refused(&[(params.preference_loss.is_some(), "preference_loss", other, "leave it out")]);
    }
    let none = "has no meaning for pairs";
    let run_program = "train `backend: candle`, or run a program with `method: external`";
    let loss = params.preference_loss.unwrap_or_default();
    let share = (0.0..0.5).contains(&loss.label_smoothing);
    // A share out of range is one issue, not two.
    let smoothed = share && loss.label_smoothing > 0.0 && loss.kind == PreferenceKind::Ipo;
    let weight = loss.sft_weight.is_finite() && loss.sft_weight >= 0.0;
    let smoothing = "preference_loss.label_smoothing";
    refused(&[
        (params.backend.is_outside(), "method", "only the backend `candle` has `dpo`", run_program),
        (params.weight_column.is_some(), "weight_column", none, "leave pairs out with `filter`"),
        (params.context_weight != 0.0, "context_weight", none, "only what the model wrote is compared"),
        (!is_positive(loss.beta), "preference_loss.beta", "must be greater than 0", "0.1 is common"),
        (!share, smoothing, "must be from 0 to under 0.5", "0 trusts the order of the pairs"),
        (smoothed, smoothing, "has no meaning with `kind: ipo`", "leave it out"),
        (!weight, "preference_loss.sft_weight", "must be 0 or more", "leave it out for plain DPO"),
    ])
}

/// Checks that the tokens of the rollouts can be learnt, where the node that sampled them is known.
pub(super) fn sampling_issues(method: Method, sampled: &[Option<&str>]) -> Vec<ParamIssue> {
    let [Some(sampled)] = sampled else { return Vec::new() };
    let from_all =
        "let the node that rolls out sample at a temperature above 0, with `top_p: 1`, without `top_k` and penalties";
    let (message, help) = match *sampled {
        _ if !method.learns_from_rewards() => return Vec::new(),
        // What a node samples is known from its params, before it runs.
        UNRECORDED => (
            "the rollouts have no recorded tokens",
            "write `record: tokens` below `with:` of the node that rolls out: text that is tokenised again gives other tokens",
        ),
        GREEDY => ("the rollouts are sampled at temperature 0, so all rollouts of a question are the same", from_all),
        FROM_SOME => (
            "the rollouts are sampled with `top_p` or `top_k`, so that the probabilities of their tokens are not those of \
             the model",
            from_all,
        ),
        _ => return Vec::new(),
    };
    vec![ParamIssue::new("method", message).with_help(help)]
}

/// Checks that the rollouts have advantages, where their columns are known.
pub(super) fn advantage_issues(method: Method, column: Option<&str>, tables: &Tables) -> Vec<ParamIssue> {
    if !method.learns_from_rewards() {
        return Vec::new();
    }
    let path = if column.is_some() { "advantage_column" } else { "method" };
    let unfit = columns_checked(tables, ROLLOUTS, |schema| check_advantages(column, schema));
    // The message names a column; the path is that of the param which asks for it.
    unfit.map(|issue| ParamIssue { path: path.to_owned(), ..issue }).into_iter().collect()
}

/// Checks that the input `eval` is there if the arguments name it, and a reference if the divergence from it is part of
/// the loss.
pub(super) fn input_issues(params: &TrainParams, inputs: &[&str]) -> Vec<ParamIssue> {
    let named = matches!(&params.backend, Backend::Exec(own) if names(&own.arguments, &EVAL));
    let no_eval = params.method == Method::External && named && !inputs.contains(&"eval");
    let add_eval = "add `eval:` to `from`, or leave `{eval}` and `{eval_jsonl}` out";
    let no_reference = params.policy_loss.is_some_and(|loss| loss.kl.is_some()) && !inputs.contains(&REFERENCE);
    let (unknown, add_reference) =
        ("there is no model to measure the divergence from", "add `reference: NODE.model` to `from`");
    refused(&[
        (no_eval, "backend.exec.arguments", "name the input `eval`, which is not connected", add_eval),
        (no_reference, "policy_loss.kl", unknown, add_reference),
    ])
}

/// Checks the params that mean nothing to a program that trains on rows.
fn external_issues(params: &TrainParams) -> Vec<ParamIssue> {
    if params.method != Method::External {
        return Vec::new();
    }
    let is_exec = matches!(params.backend, Backend::Exec(_));
    let none = "has no meaning with `method: external`";
    let help = "let the program leave the wanted checkpoint alone in `{output}`";
    refused(&[
        (!is_exec, "method", "`external` needs a program", "set `backend: {exec: {program: …, arguments: …}}`"),
        (params.eval_share != 0.0, "eval_share", none, "connect the input `eval`"),
        (params.weight_column.is_some(), "weight_column", none, "the program gets all columns of the rows"),
        (params.early_stopping.is_some(), "early_stopping", none, "let the program stop itself"),
        (params.keep != Keep::Last, "keep", none, help),
    ])
}

/// Returns an issue for each param that only the backend `candle` supports.
fn foreign(params: &TrainParams, who: &str, checkpointing: &str) -> Vec<ParamIssue> {
    let default = TrainParams::default();
    let message = format!("not supported by {who}");
    let candle = "leave it out: only the backend `candle` has it";
    refused(&[
        (params.checkpointing != default.checkpointing, "checkpointing", &message, checkpointing),
        (params.pass_tokens != default.pass_tokens, "pass_tokens", &message, candle),
        (params.context_weight != 0.0, "context_weight", &message, candle),
        (params.save_steps != default.save_steps, "save_steps", &message, candle),
    ])
}

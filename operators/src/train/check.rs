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
use crate::shared::relation::columns_checked;

/// Returns all issues of the params.
pub(super) fn issues(params: &TrainParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let mut demand = |holds: bool, path: &str, message: &str| {
        if !holds {
            issues.push(ParamIssue::new(path, message));
        }
    };
    let positive = |number: f64| number.is_finite() && number > 0.0;
    let share = |number: f64| (0.0..1.0).contains(&number);
    demand(positive(params.epochs), "epochs", "must be greater than 0");
    demand(params.max_steps != Some(0), "max_steps", "must be at least 1");
    demand(params.batch_size > 0, "batch_size", "must be at least 1");
    demand(params.pass_tokens > 0, "pass_tokens", "must be at least 1");
    demand(params.max_length > 1, "max_length", "must be at least 2");
    demand((0.0..=1.0).contains(&params.context_weight), "context_weight", "must be between 0 and 1");
    demand(positive(params.learning_rate), "learning_rate", "must be greater than 0");
    demand((0.0..=1.0).contains(&params.warmup_ratio), "warmup_ratio", "must be between 0 and 1");
    demand(params.schedule_steps != Some(0), "schedule_steps", "must be at least 1");
    let is_known = params.schedule_steps.is_none() || !params.backend.is_outside();
    demand(is_known, "schedule_steps", "only the backend `candle` continues a schedule");
    demand(params.max_grad_norm.is_none_or(positive), "max_grad_norm", "must be greater than 0, or null");
    demand(share(params.eval_share), "eval_share", "must be from 0 to under 1");
    demand(params.eval_steps > 0, "eval_steps", "must be at least 1");
    demand(params.early_stopping != Some(0), "early_stopping", "must be at least 1");
    demand(params.save_steps > 0, "save_steps", "must be at least 1");
    demand(share(params.optimizer.beta1), "optimizer.beta1", "must be from 0 to under 1");
    demand(share(params.optimizer.beta2), "optimizer.beta2", "must be from 0 to under 1");
    demand(positive(params.optimizer.epsilon), "optimizer.epsilon", "must be greater than 0");
    let decay = params.optimizer.weight_decay;
    demand(decay.is_finite() && decay >= 0.0, "optimizer.weight_decay", "must be 0 or more");
    let gives_state = params.method == Method::Sft && !params.backend.is_outside();
    demand(
        gives_state || !params.optimizer_state,
        "optimizer_state",
        "belongs to `method: sft` of the backend `candle`",
    );
    if let Some(lora) = params.lora() {
        demand(lora.rank > 0, "tuning.lora.rank", "must be at least 1");
        demand(positive(lora.alpha), "tuning.lora.alpha", "must be greater than 0");
        demand(share(lora.dropout), "tuning.lora.dropout", "must be from 0 to under 1");
    }
    issues.extend(params.lora().into_iter().flat_map(|lora| module_issues(lora, params.backend.is_outside())));
    issues.extend(checkpoint_issues(params));
    issues.extend(external_issues(params));
    issues.extend(policy_issues(params));
    issues.extend(preference_issues(params));
    issues.extend(backend_issues(params));
    issues
}

/// Checks the steps whose weights are outputs.
fn checkpoint_issues(params: &TrainParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let mut before = 0;
    for (place, step) in params.checkpoints.iter().enumerate() {
        let path = format!("checkpoints.{place}");
        if *step <= before {
            issues.push(ParamIssue::new(path, "the steps count from 1 and must rise"));
            break;
        }
        if params.max_steps.is_some_and(|most| *step > most) {
            issues.push(ParamIssue::new(path, "is behind `max_steps`"));
        }
        before = *step;
    }
    if !params.checkpoints.is_empty() && params.early_stopping.is_some() {
        let issue = ParamIssue::new("early_stopping", "may end the training before a step of `checkpoints`");
        issues.push(issue.with_help("leave one of them out"));
    }
    issues
}

/// Checks the modules of LoRA. External trainers know more modules than our decoders have.
fn module_issues(lora: &LoraParams, outside: bool) -> Vec<ParamIssue> {
    let known = |name: &str| outside && !name.is_empty() || name == ALL_LINEAR || MODULES.contains(&name);
    let path = |place: usize| format!("tuning.lora.target_modules.{place}");
    if lora.target_modules.is_empty() {
        return vec![ParamIssue::new("tuning.lora.target_modules", "must name at least one module")];
    }
    let strange = lora.target_modules.iter().enumerate().filter(|(_, name)| !known(name));
    let issue = |(place, name): (usize, &String)| {
        let help = format!("write `{ALL_LINEAR}`, or any of {}", MODULES.join(", "));
        ParamIssue::new(path(place), format!("unknown module `{name}`")).with_help(help)
    };
    strange.map(issue).collect()
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
            let mut issues =
                foreign(params, "an external trainer", "pass it to the program in `arguments` or `params`");
            issues.extend(no_program("backend.exec.program", &own.program));
            issues.extend(variable_issues("backend.exec.environment", &own.environment));
            issues.extend(write_issues("backend.exec.writes", &own.writes));
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
    for (place, argument) in arguments.iter().enumerate() {
        if let Some(name) = foreign.iter().find(|name| argument.contains(**name)) {
            let path = format!("backend.exec.arguments.{place}");
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
    let mut issues = Vec::new();
    let mut refuse = |given: bool, path: &str, message: &str, help: &str| {
        if given {
            issues.push(ParamIssue::new(path, message).with_help(help));
        }
    };
    if !params.method.learns_from_rewards() {
        let none = "belongs to `method: grpo` and `method: reinforce++`";
        refuse(params.policy_loss.is_some(), "policy_loss", none, "leave it out");
        refuse(params.advantage_column.is_some(), "advantage_column", none, "leave it out");
        return issues;
    }
    let none = "has no meaning for rollouts with advantages";
    let help = "run the program of an RL trainer with `method: external`";
    refuse(params.backend.is_outside(), "method", "only the backend `candle` learns from advantages", help);
    refuse(params.weight_column.is_some(), "weight_column", none, "advantages weigh the rollouts");
    refuse(params.context_weight != 0.0, "context_weight", none, "only what the model wrote is learnt");
    refuse(params.eval_share != 0.0, "eval_share", none, "evaluate the model with rollouts of other questions");
    refuse(params.early_stopping.is_some(), "early_stopping", none, "no loss is measured on other examples");
    refuse(params.keep != Keep::Last, "keep", none, "no loss is measured on other examples");
    refuse(params.truncation != Truncation::Delete, "truncation", none, "a rollout that is cut has another reward");
    let loss = params.policy_loss.unwrap_or_default();
    let positive = |number: f64| number.is_finite() && number > 0.0;
    let low = positive(loss.clip_low) && loss.clip_low <= 1.0;
    refuse(!low, "policy_loss.clip_low", "must be greater than 0 and at most 1", "0.2 is common");
    refuse(!positive(loss.clip_high), "policy_loss.clip_high", "must be greater than 0", "0.2 is common");
    let dual = loss.dual_clip.is_some_and(|most| !(most.is_finite() && most > 1.0));
    refuse(dual, "policy_loss.dual_clip", "must be greater than 1, or null", "verl has 3");
    let none = loss.aggregation == Aggregation::Constant(0);
    refuse(none, "policy_loss.aggregation.constant", "must be at least 1", "the most tokens that a rollout may have");
    let kl = loss.kl.is_some_and(|kl| !(kl.coefficient.is_finite() && kl.coefficient >= 0.0));
    refuse(kl, "policy_loss.kl.coefficient", "must be 0 or more", "0.001 is common");
    let mixed = loss.kl.is_some_and(|kl| kl.importance_weighted)
        && loss.importance_sampling_level == ImportanceSampling::Sequence;
    let (path, help) =
        ("policy_loss.kl.importance_weighted", "leave it out, or write `importance_sampling_level: token`");
    refuse(mixed, path, "weighs tokens, and the ratio is that of the whole rollout", help);
    let entropy = loss.entropy.is_some_and(|factor| !(factor.is_finite() && factor >= 0.0));
    refuse(entropy, "policy_loss.entropy", "must be 0 or more, or null", "0.001 is common");
    issues
}

/// Checks the settings of preference training, and those that mean nothing to it.
fn preference_issues(params: &TrainParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let mut refuse = |given: bool, path: &str, message: &str, help: &str| {
        if given {
            issues.push(ParamIssue::new(path, message).with_help(help));
        }
    };
    if params.method != Method::Dpo {
        refuse(params.preference_loss.is_some(), "preference_loss", "belongs to `method: dpo`", "leave it out");
        return issues;
    }
    let none = "has no meaning for pairs";
    let help = "train `backend: candle`, or run a program with `method: external`";
    refuse(params.backend.is_outside(), "method", "only the backend `candle` has `dpo`", help);
    refuse(params.weight_column.is_some(), "weight_column", none, "leave pairs out with `filter`");
    refuse(params.context_weight != 0.0, "context_weight", none, "only what the model wrote is compared");
    let loss = params.preference_loss.unwrap_or_default();
    let positive = loss.beta.is_finite() && loss.beta > 0.0;
    refuse(!positive, "preference_loss.beta", "must be greater than 0", "0.1 is common");
    let share = (0.0..0.5).contains(&loss.label_smoothing);
    let path = "preference_loss.label_smoothing";
    refuse(!share, path, "must be from 0 to under 0.5", "0 trusts the order of the pairs");
    let smoothed = share && loss.label_smoothing > 0.0 && loss.kind == PreferenceKind::Ipo;
    refuse(smoothed, path, "has no meaning with `kind: ipo`", "leave it out");
    let weight = loss.sft_weight.is_finite() && loss.sft_weight >= 0.0;
    refuse(!weight, "preference_loss.sft_weight", "must be 0 or more", "leave it out for plain DPO");
    issues
}

/// Checks that the tokens of the rollouts can be learnt, where the node that sampled them is known.
pub(super) fn sampling_issues(method: Method, sampled: &[Option<&str>]) -> Vec<ParamIssue> {
    let [Some(sampled)] = sampled else { return Vec::new() };
    let from_all =
        "let the node that rolls out sample at a temperature above 0, with `top_p: 1`, without `top_k` and penalties";
    let (message, help) = match *sampled {
        _ if !method.learns_from_rewards() => return Vec::new(),
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
    unfit.map(|issue| ParamIssue { path: path.to_owned(), ..issue }).into_iter().collect()
}

/// Checks that a reference is connected if the divergence from it is part of the loss.
pub(super) fn reference_issues(params: &TrainParams, inputs: &[&str]) -> Vec<ParamIssue> {
    let needed = params.policy_loss.is_some_and(|loss| loss.kl.is_some()) && !inputs.contains(&REFERENCE);
    let issue = ParamIssue::new("policy_loss.kl", "there is no model to measure the divergence from")
        .with_help("add `reference: NODE.model` to `from`");
    needed.then_some(issue).into_iter().collect()
}

/// Checks that the input `eval` is there if the arguments name it.
pub(super) fn input_issues(needs_eval: bool, inputs: &[&str]) -> Vec<ParamIssue> {
    let missing = needs_eval && !inputs.contains(&"eval");
    let issue = ParamIssue::new("backend.exec.arguments", "name the input `eval`, which is not connected")
        .with_help("add `eval:` to `from`, or leave `{eval}` and `{eval_jsonl}` out");
    missing.then_some(issue).into_iter().collect()
}

/// Checks the params that mean nothing to a program that trains on rows.
fn external_issues(params: &TrainParams) -> Vec<ParamIssue> {
    if params.method != Method::External {
        return Vec::new();
    }
    let mut issues = Vec::new();
    let mut refuse = |given: bool, path: &str, message: &str, help: &str| {
        if given {
            issues.push(ParamIssue::new(path, message).with_help(help));
        }
    };
    let is_exec = matches!(params.backend, Backend::Exec(_));
    refuse(!is_exec, "method", "`external` needs a program", "set `backend: {exec: {program: …, arguments: …}}`");
    let none = "has no meaning with `method: external`";
    refuse(params.eval_share != 0.0, "eval_share", none, "connect the input `eval`");
    refuse(params.weight_column.is_some(), "weight_column", none, "the program gets all columns of the rows");
    refuse(params.early_stopping.is_some(), "early_stopping", none, "let the program stop itself");
    let help = "let the program leave the wanted checkpoint alone in `{output}`";
    refuse(params.keep != Keep::Last, "keep", none, help);
    issues
}

/// Returns an issue for each param that only the backend `candle` supports.
fn foreign(params: &TrainParams, who: &str, checkpointing: &str) -> Vec<ParamIssue> {
    let default = TrainParams::default();
    let mut issues = Vec::new();
    let mut refuse = |given: bool, path: &str, help: &str| {
        if given {
            issues.push(ParamIssue::new(path, format!("not supported by {who}")).with_help(help));
        }
    };
    refuse(params.checkpointing != default.checkpointing, "checkpointing", checkpointing);
    refuse(params.pass_tokens != default.pass_tokens, "pass_tokens", "leave it out: only the backend `candle` has it");
    refuse(params.context_weight != 0.0, "context_weight", "leave it out: only the backend `candle` has it");
    refuse(params.save_steps != default.save_steps, "save_steps", "leave it out: only the backend `candle` has it");
    issues
}

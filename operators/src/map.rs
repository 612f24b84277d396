//! `map`: asks a language model about each row, with the user's own prompt, or calls the user's own function.

mod cells;
mod params;
mod prompt_kernel;
mod python;
mod recheck;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use searchmill_agent::policy::{Api, PolicyParams};
use searchmill_agent::prompt::{Output, Prompt, Prompts, Reader, missing};
use searchmill_agent::protocol::{ProtocolParams, ProtocolSettings};
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, ParamIssue, Ports, RowShape, Tables,
};

use super::shared::columns::with_fields;
use super::shared::until::Until;

use params::{MapParams, ROWS};
use prompt_kernel::PromptKernel;
use recheck::MapRecheck;
use rows::MadeRows;

/// Asks a language model about each row and adds its answer as columns. The prompt is a Jinja template over the columns
/// of the row; the columns that it names decide the answer. An answer that
/// does not fit `output` is asked again with the error; after `repairs` such requests the row is a reject, and the answer
/// is kept in its `detail`.
///
/// With `python`, the user's function is called with each row instead.
pub(crate) struct Map;

impl Operator for Map {
    type Params = MapParams;
    const NAME: &'static str = "map";
    const VERSION: u32 = 2;
    const ABOUT: &'static str =
        "Asks a language model about each row, with your own prompt, or calls your own Python function.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Rate answers, with a reason; the columns ride along",
            yaml: "rated:\n  op: map\n  from: rollouts\n  with:\n    prompt:\n      system: You rate answers to questions.\n      user: \"Question: {{ question }}\\nAnswer: {{ prediction }}\\nHow complete is the answer, from 1 to 5?\"\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-30b-a3b-instruct-2507, temperature: 0, prices: {prompt: 0.2, completion: 0.6}}}\n    output: [{reason: text}, {score: int}]\n  resources: {concurrency: 32}\n",
        },
        Example {
            title: "Questions made from chunks, three per chunk",
            yaml: "questions:\n  op: map\n  from: chunks\n  with:\n    prompt: \"Write three questions that this text answers.\\n\\n{{ text }}\"\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-30b-a3b-instruct-2507}}\n    output: {made: [{question: text, golden_answers: [text]}]}\n    explode: made\n    as: question\n",
        },
        Example {
            title: "Four drafts of each row, as plain text, by a model of this pipeline",
            yaml: "drafts:\n  op: map\n  from: {rows: questions, model: student}\n  with: {prompt: \"{{ question }}\", policy: {model: {temperature: 1, max_tokens: 64}}, output: draft, samples: 4}\n",
        },
        Example {
            title: "Questions rated until 1,000 are good",
            yaml: "good:\n  op: map\n  from: questions\n  with:\n    prompt: \"{{ question }}\\nHow clear is this question, from 1 to 5?\"\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b, temperature: 1}}\n    output: [{reason: text}, {score: int}]\n    samples: 2\n    until: {rows: 1000, where: \"score >= 4\", per_question: 1, at_most: 5000}\n",
        },
        Example {
            title: "A Python function: `def shorten(text, *, most): return {\"text\": …}`",
            yaml: "short: {op: map, from: corpus, with: {python: \"steps/clean.py:shorten\", arguments: {most: 100}, output: {words: int}, files: [steps/words.txt], environment: [HF_HOME]}}",
        },
        Example {
            title: "A function that pays for its calls: each row is remembered",
            yaml: "judged:\n  op: map\n  from: rollouts\n  with: {python: \"steps/judge.py:Judge\", interpreter: [python3], remember: row, output: {score: float}, timeout_seconds: 120}\n  resources: {concurrency: 8}\n  retry: {max_attempts: 5}\n",
        },
        Example {
            title: "Arrow batches",
            yaml: "lengths: {op: map, from: chunks, with: {python: \"steps/lengths.py:lengths\", batch: 1024, output: {words: \"int?\"}}}",
        },
    ];

    fn declare(params: &MapParams) -> Declaration {
        let one = params.prompt.is_some() != params.python.is_some();
        let issue = (!one).then(|| ParamIssue::new("", "write either `prompt` or `python`"));
        if params.python.is_some() {
            return python::declare(params, Ports::new()).issues(issue);
        }
        let prompts = Prompts::new(&params.prompt.clone().unwrap_or(Prompt::User(String::new())));
        let columns = prompts.as_ref().map(Prompts::names).unwrap_or_default();
        let readers = prompts.as_ref().map(Prompts::readers).unwrap_or_default();
        let unknown_names = prompts.as_ref().map(Prompts::unknown_names).unwrap_or_default();
        let (until, checked) = (params.until.clone(), params.clone());
        let declaration = Declaration::external(ports(params))
            // Answers are read otherwise than before; the rows of functions are what they were.
            .revision(2)
            .issues(issue)
            .issues(issues(params))
            .issues(prompts.err())
            .issues(unknown_names)
            .uses_gpus(matches!(params.policy, Some(PolicyParams::Model(_))))
            .rows(RowShape { columns, samples: params.samples, goal: params.until.as_ref().map(Until::goal) })
            .checks_columns(move |inputs| {
                let missing = inputs.get(ROWS).map(|schema| unknown(&readers, schema)).unwrap_or_default();
                let given = until.as_ref().zip(given_columns(&checked, inputs));
                missing.into_iter().chain(given.and_then(|(until, given)| until.column_issue(&given))).collect()
            });
        let given = params.clone();
        let declaration = declaration.gives(move |inputs| {
            given_columns(&given, inputs).map(|schema| (ROWS.to_owned(), schema)).into_iter().collect()
        });
        let of_kind = params.clone();
        let declaration = declaration.gives_at_most(move |inputs| {
            columns_of_kind(&of_kind, inputs).map(|schema| (ROWS.to_owned(), schema)).into_iter().collect()
        });
        let rechecked = params.clone();
        let declaration = declaration.rechecks(move |inputs, _| Ok(Box::new(MapRecheck::open(&rechecked, inputs)?)));
        match &params.policy {
            Some(policy) => policy.declared(declaration),
            None => {
                declaration.issues([ParamIssue::new("policy", "a prompt needs a model: `policy: {endpoint: {…}}`")])
            }
        }
    }

    fn open(params: &MapParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let (Some(prompt), Some(policy)) = (&params.prompt, &params.policy) else {
            return python::open(params, inputs, context);
        };
        let prompts = Prompts::new(prompt).map_err(refused)?;
        let output = Output::new(&params.answer(), params.explode.as_deref()).map_err(refused)?;
        let input = inputs.rows(ROWS)?;
        if let Some(issue) = unknown(&prompts.readers(), &input.schema).into_iter().next() {
            return Err(refused(issue));
        }
        let made = MadeRows::new(params, &output, input)?;
        let mut policy = policy.clone();
        if let PolicyParams::Endpoint(endpoint) = &mut policy {
            let format = output.response_format().filter(|_| params.constrained);
            endpoint.extra.extend(format.map(|format| ("response_format".to_owned(), format)));
        }
        let chat = ProtocolParams::ToolCall.open(&ProtocolSettings::default());
        let policy = policy.open(chat, "", None, inputs, context)?;
        let passing = params.until.as_ref().map(|until| until.open(&made.columns(input)?)).transpose()?;
        let (samples, repairs) = (params.samples, params.repairs);
        let kernel = PromptKernel { prompts, output, made, policy, passing, samples, repairs };
        Ok(Kernel::AsyncMap(Arc::new(kernel)))
    }
}

/// Returns the columns of the output, if they are known.
fn given_columns(params: &MapParams, inputs: &Tables) -> Option<SchemaRef> {
    let output = Output::new(&params.answer(), params.explode.as_deref()).ok()?;
    let input = inputs.get(ROWS).filter(|_| params.kind.is_none())?;
    let new: Vec<Field> = rows::sample_field(params.samples).into_iter().chain(output.fields()).collect();
    Some(with_fields(input, &new))
}

/// Returns an issue for each column that a prompt reads and the input lacks.
fn unknown(readers: &BTreeMap<String, Reader>, schema: &Schema) -> Vec<ParamIssue> {
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    missing(readers, &names, |name: &str| format!("the input has no column `{name}`"), "columns")
}

/// Returns the columns of rows of another kind, with those that only some inputs have.
fn columns_of_kind(params: &MapParams, inputs: &Tables) -> Option<SchemaRef> {
    let output = Output::new(&params.answer(), params.explode.as_deref()).ok()?;
    MadeRows::known(params, params.kind?.into(), &output, inputs.get(ROWS)?)
}

fn refused(issue: ParamIssue) -> OperatorError {
    let error = OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message));
    issue.help.into_iter().fold(error, OperatorError::with_help)
}

fn ports(params: &MapParams) -> Ports {
    let ports = Ports::new().any_rows_in(ROWS, "Rows to ask about.");
    let ports = params.policy.iter().fold(ports, |ports, policy| policy.with_port(ports));
    let about = "One row per row and sample, in input order; with `explode`, one per element.";
    match params.kind {
        None => ports.same_out(ROWS, ROWS, about),
        Some(kind) => ports.rows_out(ROWS, kind.into(), about),
    }
}

fn issues(params: &MapParams) -> Vec<ParamIssue> {
    let mut issues = python::issues_without(params);
    issues.extend(params.policy.iter().flat_map(PolicyParams::check));
    let mut require = |path: &str, fine: bool, message: &str| {
        if !fine {
            issues.push(ParamIssue::new(path, message));
        }
    };
    require(
        "policy",
        !matches!(params.policy, Some(PolicyParams::Evidence(_))),
        "the evidence teacher answers no prompts",
    );
    require(
        "policy",
        params.policy.as_ref().is_none_or(|policy| policy.api() == Api::Chat),
        "a prompt needs `api: chat`",
    );
    require("samples", params.samples > 0, "must be at least 1");
    require("repairs", params.repairs <= 20, "must be at most 20");
    let output = Output::new(&params.answer(), params.explode.as_deref());
    let of_endpoint = matches!(params.policy, Some(PolicyParams::Endpoint(_)));
    require("constrained", !params.constrained || of_endpoint, "only an endpoint takes a schema");
    let has_schema = output.as_ref().is_ok_and(|output| output.response_format().is_some());
    require(
        "constrained",
        !params.constrained || output.is_err() || has_schema,
        "`output` is plain text: it has no schema",
    );
    issues.extend(output.err());
    issues.extend(params.until.iter().flat_map(|until| until.issues(params.samples, params.explode.is_none())));
    issues
}

//! `map`: asks a language model about each row, with the user's own prompt, or calls the user's own function.

mod params;
mod prompt_kernel;
mod python;
mod recheck;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use searchmill_agent::policy::{Api, PolicyParams};
use searchmill_agent::prompt::{Output, Prompt, Prompts, Reader, missing, unusable};
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, ParamIssue, Ports, RowShape, Tables,
};

use super::shared::columns::with_fields;
use super::shared::issues::unmet;
use super::shared::until::Until;

use params::{MapParams, ROWS};
use prompt_kernel::PromptKernel;
use recheck::MapRecheck;
use rows::OutputRows;

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
        let mut found = Vec::new();
        if params.prompt.is_some() == params.python.is_some() {
            found.push(ParamIssue::new("", "write either `prompt` or `python`"));
        }
        if params.python.is_some() {
            return python::declare(params, Ports::new()).issues(found);
        }
        found.extend(issues(params));
        let (mut columns, mut readers) = (Vec::new(), BTreeMap::new());
        match Prompts::new(&params.prompt.clone().unwrap_or(Prompt::User(String::new()))) {
            Ok(prompts) => {
                columns = prompts.names();
                readers = prompts.readers();
                found.extend(prompts.unknown_names());
            }
            Err(issue) => found.push(issue),
        }
        // Each rule of the declaration owns its params.
        let (checked, known, typed, recorded) = (params.clone(), params.clone(), params.clone(), params.clone());
        let declaration = Declaration::external(ports(params))
            // Answers are read otherwise than before; the rows of functions are what they were.
            .revision(2)
            .issues(found)
            .uses_gpus(matches!(params.policy, Some(PolicyParams::Model(_))))
            .rows(RowShape { columns, samples: params.samples, goal: params.until.as_ref().map(Until::goal) })
            .checks_columns(move |inputs| column_issues(&checked, &readers, inputs))
            .gives(move |inputs| of_rows(given_columns(&known, inputs)))
            .gives_at_most(move |inputs| of_rows(columns_of_kind(&typed, inputs)))
            .rechecks(move |inputs, _| Ok(Box::new(MapRecheck::open(&recorded, inputs)?)));
        let Some(policy) = &params.policy else {
            return declaration
                .issues([ParamIssue::new("policy", "a prompt needs a model: `policy: {endpoint: {…}}`")]);
        };
        policy.declared(declaration)
    }

    fn open(params: &MapParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let (Some(prompt), Some(policy)) = (&params.prompt, &params.policy) else {
            return python::open(params, inputs, context);
        };
        let prompts = Prompts::new(prompt).map_err(unusable)?;
        let output = Output::new(&params.answer(), params.explode.as_deref()).map_err(unusable)?;
        let input = inputs.rows(ROWS)?;
        // What the declaration could not check: the columns of some inputs are known only now.
        if let Some(issue) = unknown(&prompts.readers(), &input.schema).into_iter().next() {
            return Err(unusable(issue));
        }
        let rows = OutputRows::new(params, &output, input)?;
        let format = if params.constrained { output.response_format() } else { None };
        let model = policy.open_chat(format, inputs, context)?;
        let passing = params.until.as_ref().map(|until| until.open(&rows.columns(input)?)).transpose()?;
        let (samples, repairs) = (params.samples, params.repairs);
        let kernel = PromptKernel { prompts, output, rows, model, passing, samples, repairs };
        Ok(Kernel::AsyncMap(Arc::new(kernel)))
    }
}

/// The columns of the output port, if they are known.
fn of_rows(columns: Option<SchemaRef>) -> Tables {
    columns.into_iter().map(|columns| (ROWS.to_owned(), columns)).collect()
}

/// Returns issues of the columns that the prompt and the predicate of `until` read.
fn column_issues(params: &MapParams, readers: &BTreeMap<String, Reader>, inputs: &Tables) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if let Some(schema) = inputs.get(ROWS) {
        issues.extend(unknown(readers, schema));
    }
    if let Some(until) = &params.until
        && let Some(columns) = given_columns(params, inputs)
    {
        issues.extend(until.column_issue(&columns));
    }
    issues
}

/// Returns the columns of the output, if they are known.
fn given_columns(params: &MapParams, inputs: &Tables) -> Option<SchemaRef> {
    let output = Output::new(&params.answer(), params.explode.as_deref()).ok()?;
    // Which id the rows keep depends on the kind of the input, which is unknown here.
    if params.kind.is_some() {
        return None;
    }
    let input = inputs.get(ROWS)?;
    let mut new = Vec::from_iter(rows::sample_field(params.samples));
    new.extend(output.fields());
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
    OutputRows::known(params, params.kind?.into(), &output, inputs.get(ROWS)?)
}

fn ports(params: &MapParams) -> Ports {
    let mut ports = Ports::new().any_rows_in(ROWS, "Rows to ask about.");
    if let Some(policy) = &params.policy {
        ports = policy.with_port(ports);
    }
    let about = "One row per row and sample, in input order; with `explode`, one per element.";
    match params.kind {
        None => ports.same_out(ROWS, ROWS, about),
        Some(kind) => ports.rows_out(ROWS, kind.into(), about),
    }
}

fn issues(params: &MapParams) -> Vec<ParamIssue> {
    let mut issues = python::issues_without(params);
    if let Some(policy) = &params.policy {
        issues.extend(policy.check());
        issues.extend(unmet(&[
            (!matches!(policy, PolicyParams::Evidence(_)), "policy", "the evidence teacher answers no prompts"),
            (policy.api() == Api::Chat, "policy", "a prompt needs `api: chat`"),
        ]));
    }
    let takes_schema = matches!(params.policy, Some(PolicyParams::Endpoint(_)));
    issues.extend(unmet(&[
        (params.samples > 0, "samples", "must be at least 1"),
        (params.repairs <= 20, "repairs", "must be at most 20"),
        (!params.constrained || takes_schema, "constrained", "only an endpoint takes a schema"),
    ]));
    match Output::new(&params.answer(), params.explode.as_deref()) {
        Ok(output) if params.constrained && output.response_format().is_none() => {
            issues.push(ParamIssue::new("constrained", "`output` is plain text: it has no schema"));
        }
        Ok(_) => {}
        Err(issue) => issues.push(issue),
    }
    if let Some(until) = &params.until {
        issues.extend(until.issues(params.samples, params.explode.is_none()));
    }
    issues
}

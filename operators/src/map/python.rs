//! `python`: calls the user's function with each row.

mod kernel;
mod output_rows;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::RecordBatch;
use searchmill_agent::prompt::Output;
use searchmill_data::python::{Pool, PythonFunction, Signature, Width};
use searchmill_engine::operator::{
    Context, Declaration, Inputs, Kernel, OperatorError, ParamIssue, Ports, Repeatability, RowShape, Source,
};
use searchmill_schemas::RecordKind;

use super::params::{MapParams, ROWS, Remember};
use crate::shared::issues::{refused, unmet};
use crate::shared::until::Until;
use kernel::{Calls, EachRow, Parts};
use output_rows::PythonRows;

/// Processes of a function without a stated number (at most): each imports the file.
const PROCESSES: usize = 4;

/// Returns the function that the params name.
fn function(params: &MapParams) -> Result<PythonFunction, ParamIssue> {
    let (file, function) = PythonFunction::split(params.python.as_deref().unwrap_or_default()).map_err(|message| {
        let help = "write the file and the function: `python: steps/clean.py:shorten`";
        ParamIssue::new("python", message).with_help(help)
    })?;
    Ok(PythonFunction {
        file,
        function,
        interpreter: params.interpreter.clone(),
        files: params.files.clone(),
        writes: params.writes.clone(),
        arguments: params.arguments.clone(),
        environment: params.environment.clone(),
        seconds: params.timeout_seconds,
        batch: params.batch.is_some(),
    })
}

/// Returns the columns of `output`, or those of a signature.
fn output(params: &MapParams, signature: Option<&Signature>) -> Result<Option<Output>, ParamIssue> {
    match (&params.output, signature) {
        (Some(written), _) | (None, Some(Signature { output: written, .. })) => Ok(Some(Output::new(written, None)?)),
        (None, None) => Ok(None),
    }
}

/// Returns the issues of a signature.
fn signature_issues(params: &MapParams, signature: &Signature) -> Vec<ParamIssue> {
    let typed = "the function's signature types its columns already";
    let of_rows = "the function's signature types rows, and batches have their own types";
    let mut issues = refused(&[
        (params.output.is_some(), "output", typed, "remove `output`, or the mark `map` from the function"),
        (params.batch.is_some(), "batch", of_rows, "remove `batch`, or the mark `map` from the function"),
    ]);
    issues.extend(Output::new(&signature.output, None).err());
    issues
}

pub(super) fn declare(params: &MapParams, ports: Ports) -> Declaration {
    let ports = ports.any_rows_in(ROWS, "Rows that the function is called with.");
    let ports = match params.kind {
        None => ports.same_out(ROWS, ROWS, "The rows that the function returned, in input order."),
        Some(kind) => ports.rows_out(ROWS, kind.into(), "The rows that the function returned, in input order."),
    };
    let declaration = match params.remember {
        // Its calls may be paid, and what it returns need not be the same again.
        Some(Remember::Row) => {
            let shape = RowShape { columns: Vec::new(), samples: 1, goal: params.until.as_ref().map(Until::goal) };
            Declaration::external(ports).rows(shape).retries(true)
        }
        // The function must be deterministic.
        // Columns of batches are no longer cast to other values.
        None => Declaration::seeded(ports)
            .revision(u32::from(params.batch.is_some()))
            .repeatability(Repeatability::Processor),
    };
    let declaration = declaration.runs_programs(true).issues(issues(params));
    let function = match function(params) {
        Ok(function) => function,
        Err(issue) => return declaration.issues([issue]),
    };
    // Each rule of the declaration owns its function.
    let (read, checked, typed) = (function.clone(), function.clone(), params.clone());
    let remembers = params.remember.is_some();
    declaration
        .issues(function.issues())
        .unseen(Some(function.unseen()))
        .checks_files(move |directory| {
            let written = typed.python.as_deref().unwrap_or_default();
            let mut issues = Vec::from_iter(checked.file_issue("python", written, directory));
            if let Some(signature) = checked.signature(directory) {
                issues.extend(signature_issues(&typed, &signature));
            }
            issues
        })
        .reads(move |directory| {
            let mut sources = read.sources(directory);
            // Rows that are remembered are known by the columns that were passed. Other results of before may lack
            // some: they were told from the text of the file.
            if !remembers {
                sources.push(Source::Identity("columns of the loaded function".to_owned()));
            }
            sources
        })
        .fetches(move |context| function.fetch(context))
}

fn issues(params: &MapParams) -> Vec<ParamIssue> {
    let remembers = params.remember.is_some();
    let undrawn = "a function needs `remember: row`: what was drawn must be known";
    let mut issues = unmet(&[
        (params.policy.is_none(), "policy", "is for `prompt`: a function calls what it likes"),
        (params.explode.is_none(), "explode", "is for `prompt`: a function may return several rows"),
        (params.samples == 1, "samples", "is for `prompt`"),
        (params.repairs == 2, "repairs", "is for `prompt`"),
        (!params.constrained, "constrained", "is for `prompt`"),
        (params.batch != Some(0), "batch", "must be at least 1"),
        (params.until.is_none() || remembers, "until", undrawn),
        (params.batch.is_none() || !remembers, "batch", "`remember: row` calls the function with one row at a time"),
    ]);
    match output(params, None) {
        Ok(Some(output)) if output.described().is_none() => {
            issues.push(ParamIssue::new("output", "must be a map of fields: `{score: int}`"));
        }
        Ok(_) => {}
        Err(issue) => issues.push(issue),
    }
    if let Some(until) = &params.until {
        issues.extend(until.issues(params.samples, false));
    }
    issues
}

/// Reports params that only a function has.
pub(super) fn issues_without(params: &MapParams) -> Vec<ParamIssue> {
    let given = [
        ("batch", params.batch.is_some()),
        ("arguments", !params.arguments.is_empty()),
        ("remember", params.remember.is_some()),
        ("interpreter", params.interpreter.is_some()),
        ("files", !params.files.is_empty()),
        ("writes", !params.writes.is_empty()),
        ("environment", !params.environment.is_empty()),
        ("timeout_seconds", params.timeout_seconds != 0),
    ];
    let given = given.into_iter().filter(|(_, is_given)| *is_given);
    given.map(|(path, _)| ParamIssue::new(path, "is for `python`")).collect()
}

pub(super) fn open(params: &MapParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
    let function = function(params).map_err(unusable)?;
    let signature = function.signature(&context.resolve(""));
    let output = output(params, signature.as_ref()).map_err(unusable)?;
    let input = inputs.rows(ROWS)?;
    let names: Vec<String> = input.schema.fields().iter().map(|field| field.name().clone()).collect();
    let kind = params.kind.map_or(input.kind, RecordKind::from);
    let made = PythonRows::new(kind, output, input);
    let mut passing = None;
    if let Some(until) = &params.until {
        let none = made.make(&RecordBatch::new_empty(Arc::clone(&input.schema)), &[])?;
        passing = Some(until.open(&none.schema())?);
    }
    let few = if params.remember.is_some() { 1 } else { context.threads().min(PROCESSES) };
    let stated = context.processes();
    // Each process creates the class again, with all that it loads, so a class has one process unless more are stated.
    let width = Width { function: stated.unwrap_or(few), class: stated.unwrap_or(1) };
    let (pool, passed) = Pool::of_table(function, names, width, context)?;
    let columns = passed.iter().map(|name| input.schema.index_of(name)).collect::<Result<Vec<_>, _>>()?;
    for place in &columns {
        let (name, kind) = (input.schema.field(*place).name(), input.schema.field(*place).data_type());
        if let Some(wanted) = signature.as_ref().and_then(|types| types.contradicts(name, kind)) {
            let message = format!("the function wants `{name}` as {wanted}, and the column is {kind}");
            return Err(OperatorError::pipeline(message));
        }
    }
    let calls = Calls { pool, made, columns };
    Ok(match params.remember {
        Some(Remember::Row) => Kernel::AsyncMap(Arc::new(EachRow::new(calls, passed, passing))),
        None => Kernel::Map(Arc::new(Parts { calls, batch: params.batch.map(|rows| rows as usize) })),
    })
}

fn unusable(issue: ParamIssue) -> OperatorError {
    OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message))
}

//! `trace`: from an artifact or a row to its sources, and from a source to all that was made of it.

use std::collections::BTreeSet;

use searchmill_engine::fingerprint::NodeKey;
use searchmill_engine::lineage::{
    Ancestry, Catalog, Closure, Graph, Roots, Target, ancestry, descent, downstream, graph, resolve, upstream,
};
use searchmill_engine::store::{ArtifactId, Store};
use serde_json::json;

use super::Session;
use crate::args::{TraceArgs, TraceFormat};
use crate::display::lineage;
use crate::exit::{Failure, OK};

pub(super) fn trace(session: &Session<'_>, args: &TraceArgs) -> Result<u8, Failure> {
    let store = session.existing_store()?;
    // What is looked at stays while it is looked at; a store that cannot be written cannot be collected either.
    let _in_use = store.enter().ok();
    let catalog = Catalog::read(&store);
    let target = resolve(&store, &catalog, &args.what, args.run.as_deref(), &session.directory)?;
    let roots = Roots::of(&store, &catalog, &target);
    let down = args.down || (!args.up && matches!(target, Target::Source { .. }));
    let closure = if down { downstream(&catalog, &roots) } else { upstream(&catalog, &roots) };
    let traced = graph(&closure, &roots.artifacts);
    match (&args.row, down) {
        (Some(row), false) => up_row(session, &store, &closure, &roots, row, &traced, args.format),
        (Some(row), true) => down_row(session, &store, &closure, &roots, row),
        (None, _) => {
            show(session, &traced, args, down);
            Ok(OK)
        }
    }
}

fn show(session: &Session<'_>, traced: &Graph, args: &TraceArgs, down: bool) {
    if session.terminal.is_json() {
        session.terminal.line(&json!({"target": args.what, "down": down, "steps": traced.steps}).to_string());
        return;
    }
    match args.format {
        TraceFormat::Mermaid => session.terminal.line(lineage::mermaid(traced).trim_end()),
        TraceFormat::Dot => session.terminal.line(lineage::dot(traced).trim_end()),
        TraceFormat::Text if down => {
            let (header, rows) = lineage::table(traced);
            session.terminal.table(&header, &rows);
        }
        TraceFormat::Text => session.terminal.line(lineage::tree(traced).trim_end()),
    }
}

/// The artifact whose rows are meant, and the result that made it.
fn start(roots: &Roots, row: &str) -> Result<(ArtifactId, Option<NodeKey>), Failure> {
    let (mut artifacts, key) = (roots.artifacts.iter(), roots.keys.first().copied());
    match (artifacts.next(), artifacts.next()) {
        (Some(id), None) => Ok((*id, key)),
        (None, _) => Err(Failure::usage("a row stands in a table: name a node or an artifact")),
        _ => Err(Failure::usage(format!("the row `{row}` may stand in several tables of this"))
            .with_help("name one output: NODE.PORT")),
    }
}

fn up_row(
    session: &Session<'_>,
    store: &Store,
    closure: &Closure,
    roots: &Roots,
    row: &str,
    traced: &Graph,
    format: TraceFormat,
) -> Result<u8, Failure> {
    let found = if roots.artifacts.len() > 1 {
        of_any_output(store, closure, roots, row)?
    } else {
        ancestry(store, closure, start(roots, row)?, row).map_err(|error| Failure::usage(error.message))?
    };
    let involved = involved(&found, traced);
    if session.terminal.is_json() {
        let steps: Vec<_> = traced.steps.iter().filter(|step| involved.contains(&step.key)).collect();
        session.terminal.line(&json!({"row": row, "rows": found.rows, "steps": steps}).to_string());
        return Ok(OK);
    }
    session.terminal.line(&match format {
        TraceFormat::Text => lineage::ancestry(&found, traced),
        TraceFormat::Mermaid => lineage::ancestry_mermaid(&found),
        TraceFormat::Dot => lineage::ancestry_dot(&found),
    });
    Ok(OK)
}

/// A node stands for all its outputs: the first one that has the row.
fn of_any_output(store: &Store, closure: &Closure, roots: &Roots, row: &str) -> Result<Ancestry, Failure> {
    let key = roots.keys.first().copied();
    let step = key.filter(|_| roots.keys.len() == 1).and_then(|key| closure.step(&key));
    let Some(step) = step else { return start(roots, row).map(|_| Ancestry::default()) };
    let mut outputs = step.result.outputs.values().filter(|output| roots.artifacts.contains(&output.id));
    let found = outputs.find_map(|output| ancestry(store, closure, (output.id, key), row).ok());
    found.ok_or_else(|| {
        let ports: Vec<&str> = step.result.outputs.keys().map(String::as_str).collect();
        Failure::usage(format!("no output of `{}` has a row `{row}`", step.name()))
            .with_help(format!("its outputs: {}", ports.join(", ")))
    })
}

/// Results that the rows passed through, and those that made what these used.
fn involved(found: &Ancestry, traced: &Graph) -> BTreeSet<NodeKey> {
    let mut keys: BTreeSet<NodeKey> =
        found.rows.iter().flat_map(|row| &row.places).filter_map(|place| place.key).collect();
    let used = traced.steps.iter().filter(|step| keys.contains(&step.key)).flat_map(|step| &step.inputs);
    let makers: Vec<NodeKey> = used.filter_map(|input| input.made_by).collect();
    keys.extend(makers);
    keys
}

fn down_row(session: &Session<'_>, store: &Store, closure: &Closure, roots: &Roots, row: &str) -> Result<u8, Failure> {
    // A file that was read stands for the tables that were read from it.
    let readers = closure.steps.iter().filter(|step| roots.artifacts.is_empty() && roots.keys.contains(&step.key));
    let tables = readers.flat_map(|step| step.result.outputs.values().map(|output| &output.id));
    let mut tables = roots.artifacts.iter().chain(tables);
    let found = tables.find_map(|id| descent(store, closure, *id, row).ok());
    let missing = || {
        let help = "name the table that holds it: NODE.PORT";
        Failure::usage(format!("no table of this has a row `{row}`")).with_help(help)
    };
    let found = found.ok_or_else(missing)?;
    if session.terminal.is_json() {
        session.terminal.line(&json!({"row": row, "down": true, "tables": found}).to_string());
        return Ok(OK);
    }
    let (header, rows) = lineage::descendants(&found);
    session.terminal.table(&header, &rows);
    if found.is_empty() {
        session.terminal.note("nothing was made of it");
    }
    Ok(OK)
}

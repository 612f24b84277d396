//! `why`: why a node would run, or why it would not.

use std::path::PathBuf;

use searchmill_engine::execute::{NodeStatus, survey};
use searchmill_engine::fingerprint::diff;
use serde_json::json;

use super::Session;
use crate::args::WhyArgs;
use crate::exit::{Failure, OK};
use crate::pipeline;

pub(super) fn why(session: &Session<'_>, args: &WhyArgs) -> Result<u8, Failure> {
    let store = session.store()?;
    let file = match &args.file {
        Some(file) => file.clone(),
        None => last_file(&store)?,
    };
    let plan = pipeline::plan(&file, &args.set, &args.params, &session.directory)?;
    let (place, node) = plan.node(&args.node).ok_or_else(|| super::run::unknown_node(&plan, &args.node))?;
    let status = &survey(&plan, &store, &session.directory, None).nodes[place];
    let mut lines = Vec::new();
    match (status, &args.against) {
        (NodeStatus::Cached { key, .. } | NodeStatus::Run { key, .. }, Some(run)) => {
            let ids = store.run_ids();
            let run = ids.iter().rev().find(|id| id.starts_with(run)).unwrap_or(run);
            let runs = store.run_nodes(run);
            let before = runs.iter().find(|before| before.node == node.id()).and_then(|before| before.key);
            let before =
                before.ok_or_else(|| Failure::usage(format!("run `{run}` has no key of node `{}`", node.id())))?;
            let before = store.result(&before).or_else(|| store.tombstone(&before));
            let now = store.result(key).or_else(|| store.tombstone(key));
            match (before, now) {
                _ if runs.iter().any(|before| before.node == node.id() && before.key == Some(*key)) => {}
                (Some(before), Some(now)) => {
                    lines.extend(diff(&before.preimage, &now.preimage).iter().map(ToString::to_string));
                }
                _ => lines.push("one of the two results is not in the store".to_owned()),
            }
        }
        (NodeStatus::Run { reasons, .. }, None) => lines.extend(reasons.iter().map(ToString::to_string)),
        _ => {}
    }
    let (word, detail) = super::plan::words(status);
    if session.terminal.is_json() {
        let answer = json!({"node": node.id(), "status": word, "reasons": lines, "detail": detail});
        session.terminal.line(&answer.to_string());
        return Ok(OK);
    }
    let text = match word {
        "cached" if !detail.is_empty() => format!("{}: cached, {detail}", node.id()),
        "cached" if lines.is_empty() => format!("{}: cached, nothing changed", node.id()),
        "decided later" => format!("{}: {detail}; it runs only if they give other bytes than before", node.id()),
        _ => format!("{}: {word}", node.id()),
    };
    session.terminal.line(&text);
    for line in lines {
        session.terminal.line(&format!("  {line}"));
    }
    Ok(OK)
}

fn last_file(store: &searchmill_engine::store::Store) -> Result<PathBuf, Failure> {
    let runs = store.run_ids();
    let record = runs.iter().rev().find_map(|id| store.run(id));
    let missing = || Failure::usage("there is no run in the store yet").with_help("name the pipeline with --file");
    record.map(|record| PathBuf::from(record.file)).ok_or_else(missing)
}

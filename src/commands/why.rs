//! `why`: explains why a node would or would not run.

use std::path::PathBuf;

use searchmill_engine::{Failure, NodeStatus, Overrides, RowLimit, RunRecord, Session, WhyOptions};
use serde_json::json;

use super::store::note_if_missing;
use crate::args::WhyArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn why(terminal: &Terminal, session: &Session, args: &WhyArgs) -> Result<u8, Failure> {
    let (file, overrides, limit) = asked(terminal, session, args)?;
    let pipeline = session.check(&file, &overrides)?;
    let options = WhyOptions { against: args.against.clone(), limit };
    let why = session.why(&pipeline, &args.node, &options)?;
    let (node, lines) = (why.node.as_str(), why.reasons.iter().map(ToString::to_string).collect::<Vec<_>>());
    let (word, detail) = crate::display::planned::words(node, &why.status);
    let is_of_loop = node != args.node;
    if terminal.is_json() {
        terminal.json(&json!({"node": node, "status": word, "reasons": lines, "detail": detail}));
        return Ok(OK);
    }
    let is_decided_later = matches!(why.status, NodeStatus::Unknown { .. });
    let text = match &why.status {
        NodeStatus::Cached { .. } | NodeStatus::Frozen { .. } if !detail.is_empty() || lines.is_empty() => {
            format!("{node}: cached, {}", if detail.is_empty() { "nothing changed" } else { detail.as_str() })
        }
        NodeStatus::Ended { .. } => format!("{node}: ended, {detail}"),
        NodeStatus::Unknown { .. } if is_of_loop && lines.is_empty() => {
            format!("{}: {detail}, which decides of which round it is", args.node)
        }
        NodeStatus::Unknown { waits_for, reasons, .. } => {
            let waits =
                format!("{node}: waits for {}", crate::display::planned::listed(waits_for.iter().map(String::as_str)));
            let may_stay = "it runs only if they give other bytes than before";
            if reasons.is_empty() { format!("{waits}; {may_stay}") } else { waits }
        }
        _ => format!("{node}: {word}"),
    };
    terminal.line(&text);
    if is_of_loop && !is_decided_later {
        terminal.note(&format!("`{}` is what the loop hands on: an output of `{node}`", args.node));
    }
    for line in lines {
        terminal.line(&format!("  {line}"));
    }
    Ok(OK)
}

/// Returns the given pipeline or, without a file, that of the last run with its overrides; given params come on top.
fn asked(terminal: &Terminal, session: &Session, args: &WhyArgs) -> Result<(PathBuf, Overrides, RowLimit), Failure> {
    let (set, params) = (args.set.clone(), args.params.clone());
    if let Some(file) = &args.file {
        note_if_missing(terminal, session)?;
        return Ok((file.clone(), Overrides { set, params_files: params }, RowLimit::default()));
    }
    let Some(last) = session.runs().last()? else {
        return Err(Failure::usage("there is no run in the store yet").with_help("name the pipeline with --file"));
    };
    terminal.note(&format!("as in the last run: {}", written(&last)));
    let overrides = Overrides { set: [last.set, set].concat(), params_files: [last.params_files, params].concat() };
    Ok((PathBuf::from(last.file), overrides, last.limit))
}

/// Formats a run's pipeline and overrides as on the command line.
fn written(run: &RunRecord) -> String {
    let mut words = vec![display::quoted(&run.file)];
    words.extend(run.params_files.iter().map(|file| format!("--params {}", display::quoted(&file.to_string_lossy()))));
    words.extend(run.set.iter().map(|text| format!("--set {}", display::quoted(text))));
    if !run.limit.is_none() {
        words.push(run.limit.to_string());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_written_as_it_was_called() {
        let run = RunRecord {
            id: "1".to_owned(),
            pipeline: "p".to_owned(),
            file: "pipelines/p.yaml".to_owned(),
            params: serde_json::Value::Null,
            set: vec!["teacher.model=q 3".to_owned()],
            params_files: vec!["small.yaml".into()],
            limit: RowLimit { every: Some(9), ..RowLimit::default() },
            handed_on: std::collections::BTreeMap::new(),
            started: 0.0,
            finished: None,
            exit: None,
            nodes: 1,
            fits: None,
            ledger: None,
        };
        let wanted = "pipelines/p.yaml --params small.yaml --set \"teacher.model=q 3\" --limit 9";
        assert_eq!(written(&run), wanted);
    }
}

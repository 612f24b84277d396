//! `logs`: what a run told.

use serde_json::Value;

use super::Session;
use crate::args::LogsArgs;
use crate::exit::{Failure, OK};

pub(super) fn logs(session: &Session<'_>, args: &LogsArgs) -> Result<u8, Failure> {
    let store = session.store()?;
    let ids = store.run_ids();
    let missing = || Failure::usage("there is no such run").with_help("`searchmill runs` lists them");
    let run = match &args.run {
        Some(prefix) => ids.iter().rev().find(|id| id.starts_with(prefix)).ok_or_else(missing)?,
        None => ids.last().ok_or_else(missing)?,
    };
    for line in store.run_events(run).lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        if args.node.as_ref().is_some_and(|node| event["node"] != node.as_str()) {
            continue;
        }
        session.terminal.line(&if session.terminal.is_json() { line.to_owned() } else { plain(&event) });
    }
    Ok(OK)
}

fn plain(event: &Value) -> String {
    let word = event["event"].as_str().unwrap_or("event").replace('_', " ");
    let mut text = format!("{word:<14}");
    for (key, value) in event.as_object().into_iter().flatten().filter(|(key, _)| *key != "event") {
        match value {
            Value::String(value) if key == "summary" => text.push_str(&format!("\n{value}")),
            Value::String(value) => text.push_str(&format!(" {key}={value}")),
            Value::Null => {}
            value => text.push_str(&format!(" {key}={value}")),
        }
    }
    text
}

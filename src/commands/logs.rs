//! `logs`: prints the events of a run.

use searchmill_engine::lineage::rfc3339;
use searchmill_engine::{CheckOutcome, Failure, Reason, Session};
use serde_json::Value;

use crate::args::LogsArgs;
use crate::display::planned::sentence;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn logs(terminal: &Terminal, session: &Session, args: &LogsArgs) -> Result<u8, Failure> {
    for line in session.runs().events(args.run.as_deref())?.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        // Progress is for those who follow the run.
        if event["event"] == "node_progress" && !terminal.is_json() {
            continue;
        }
        if args.node.as_ref().is_some_and(|node| event["node"] != node.as_str()) {
            continue;
        }
        terminal.line(&if terminal.is_json() { line.to_owned() } else { plain(&event) });
    }
    Ok(OK)
}

/// Formats an event: `2026-11-20T16:10:23.092Z  node started   node=chunks operator=chunk (no cached result)`.
fn plain(event: &Value) -> String {
    let time = event["time"].as_f64().map(rfc3339).unwrap_or_default();
    let word = event["event"].as_str().unwrap_or("event").replace('_', " ");
    let mut text = format!("{time:<24}  {word:<14}");
    if let Some(node) = event["node"].as_str().filter(|node| !node.is_empty()) {
        text.push_str(&format!(" node={}", display::quoted(node)));
    }
    for (key, value) in event.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("event" | "time" | "node", _) | (_, Value::Null) => {}
            // Most counts are zero and say nothing; an output without rows is worth a word.
            (key, Value::Number(value)) if key != "rows" && value.as_u64() == Some(0) => {}
            ("summary", Value::String(value)) => text.push_str(&format!("\n{}", value.trim_end())),
            ("line" | "message", Value::String(value)) => text.push_str(&format!(" {value}")),
            ("reasons", value) => text.push_str(&in_words(value)),
            ("checks", value) => text.push_str(&outcomes(value)),
            ("seconds", Value::Number(value)) => {
                text.push_str(&format!(" seconds={:.3}", value.as_f64().unwrap_or_default()));
            }
            (key, Value::String(value)) => text.push_str(&format!(" {key}={}", display::quoted(value))),
            (key, value) => text.push_str(&format!(" {key}={value}")),
        }
    }
    text
}

/// Formats the outcomes of checks: how many passed, and those that failed.
fn outcomes(checks: &Value) -> String {
    let checks: Vec<CheckOutcome> = serde_json::from_value(checks.clone()).unwrap_or_default();
    let failed: Vec<String> = checks.iter().filter(|check| !check.passed).map(ToString::to_string).collect();
    let passed = checks.len() - failed.len();
    let rest = if failed.is_empty() { String::new() } else { format!(" ({})", failed.join("; ")) };
    format!(" passed={passed}/{}{rest}", checks.len())
}

fn in_words(reasons: &Value) -> String {
    let reasons: Vec<Reason> = serde_json::from_value(reasons.clone()).unwrap_or_default();
    if reasons.is_empty() { String::new() } else { format!(" ({})", sentence(&reasons)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_and_reasons_are_words() {
        let started = json!({
            "event": "node_started", "node": "chunks", "operator": "chunk", "time": 1_795_191_023.092_369,
            "reasons": [{"reason": "param_changed", "path": "size", "from": 6, "to": 7}],
        });
        let wanted =
            "2026-11-20T16:10:23.092Z  node started   node=chunks operator=chunk (param `size` changed from 6 to 7)";
        assert_eq!(plain(&started), wanted);
        let finished = json!({"event": "node_finished", "output": "chunk rows", "calls": 0, "seconds": 0.046_124, "summary": "a\nb\n"});
        assert_eq!(plain(&finished), format!("{:24}  node finished  output=\"chunk rows\" seconds=0.046\na\nb", ""));
    }
}

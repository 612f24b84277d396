//! Log of the daemon: one line per event.

use serde_json::Value;

use super::style::{ERROR, GOOD, WARN};

/// Maximum number of next ticks listed.
const SHOWN: usize = 12;

/// Formats `run 7 starts (tick 03:00:00)`.
pub(super) fn text(notice: &Value) -> String {
    let [id, tick] = ["id", "tick"].map(|name| word(notice, name));
    match word(notice, "event").as_str() {
        "daemon_started" => format!("serving {}; health at http://{}/healthz", next(notice), word(notice, "address")),
        "daemon_stopped" => "stopped".to_owned(),
        "stopping" => match (notice["signal"].as_u64(), count(notice, "running")) {
            (Some(1), 0) => "stopping".to_owned(),
            (Some(1), running) => format!("stopping: waiting for {running} active runs; a second signal stops them"),
            (Some(2), _) => "stopping the active runs".to_owned(),
            _ => "exiting; the runs continue".to_owned(),
        },
        "adopted" => format!("run {id} (tick {tick}) of an earlier daemon is still active"),
        "missed" => missed(notice),
        "skipped" => format!("tick {tick} skipped: a run is active"),
        "paused" => format!("tick {tick} skipped: paused"),
        "queued" => format!("run {id} (tick {tick}) waits, {} in all", word(notice, "waiting")),
        "starting" => format!("run {id} starts ({} {tick})", word(notice, "cause")),
        "stopping_run" => stopping_run(notice),
        "ended" => ended(notice),
        "changed" => format!("new cadence: `{}` in {}", word(notice, "cron"), word(notice, "timezone")),
        "clock_set_back" => {
            format!("{WARN}the clock was set back{WARN:#} from {}: counting from now", word(notice, "accounted"))
        }
        "problem" => format!("{ERROR}{}{ERROR:#}", word(notice, "message")),
        _ => notice.to_string(),
    }
}

/// Returns a field as text.
fn word(notice: &Value, name: &str) -> String {
    match &notice[name] {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

/// Returns a field that is a number; 0 if it is not there.
fn count(notice: &Value, name: &str) -> u64 {
    notice[name].as_u64().unwrap_or_default()
}

fn next(notice: &Value) -> String {
    let (mut shown, mut more) = (Vec::new(), 0);
    for (name, tick) in notice["next"].as_object().into_iter().flatten() {
        // One daemon may serve a folder of pipelines: the line stays readable.
        if shown.len() < SHOWN {
            shown.push(format!("{name} (next {})", tick.as_str().unwrap_or("never")));
        } else {
            more += 1;
        }
    }
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

fn missed(notice: &Value) -> String {
    let (ticks, made_up) = (count(notice, "ticks"), count(notice, "made_up"));
    let more = if notice["more"] == true { " at least" } else { "" };
    let first = notice["first"].as_str().unwrap_or_default();
    let last = notice["last"].as_str().unwrap_or_default();
    let span = if ticks == 1 { last.to_owned() } else { format!("{first} to {last}") };
    let verb = match made_up {
        0 => "none is caught up".to_owned(),
        made_up if made_up == ticks => "caught up now".to_owned(),
        made_up => format!("{made_up} caught up now"),
    };
    format!("{WARN}missed{WARN:#}{more} {ticks} tick{} ({span}): {verb}", if ticks == 1 { "" } else { "s" })
}

fn stopping_run(notice: &Value) -> String {
    let reason = match notice["reason"].as_str() {
        Some("overran") => "exceeded `max_runtime`",
        Some("replaced") => "replaced by a later tick",
        _ => "the daemon is stopping",
    };
    let told = match notice["signal"].as_u64() {
        Some(1) => "told to finish work in flight",
        Some(2) => "told to stop immediately",
        _ => "killed",
    };
    format!("run {} {WARN}{told}{WARN:#}: {reason}", notice["id"])
}

fn ended(notice: &Value) -> String {
    let outcome = notice["outcome"].as_str().unwrap_or_default().replace('_', " ");
    let style = match outcome.as_str() {
        "succeeded" => GOOD,
        "failed" | "lost" => ERROR,
        _ => WARN,
    };
    let mut parts = vec![format!("{} s", notice["seconds"])];
    if notice["run"].is_string() {
        let (cached, ran, calls) = (count(notice, "cached"), count(notice, "finished"), count(notice, "calls"));
        parts.push(format!("{cached} cached, {ran} ran, {calls} calls"));
        parts.push(format!("run {}", notice["run"].as_str().unwrap_or_default()));
    }
    if let (Some(exit), true) = (notice["exit"].as_i64(), outcome != "succeeded") {
        parts.push(format!("exit {exit}"));
    }
    parts.extend(notice["message"].as_str().map(str::to_owned));
    parts.extend(notice["log"].as_str().map(|log| format!("log {log}")));
    format!("run {} {style}{outcome}{style:#}: {}", notice["id"], parts.join(" · "))
}

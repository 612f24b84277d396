//! Log of the daemon: one line per event.

use searchmill_engine::Time;
use serde_json::Value;

use super::style::{DIM, ERROR, GOOD, STRONG, WARN};

/// Maximum number of next ticks listed.
const SHOWN: usize = 12;

/// Adds time and schedule to a notice.
pub(super) fn json_line(now: Time, schedule: &str, notice: &Value) -> String {
    let mut line = notice.clone();
    line["time"] = iso(now, chrono::SecondsFormat::Millis).into();
    if !schedule.is_empty() {
        line["schedule"] = schedule.into();
    }
    line.to_string()
}

/// Whether to print the notice even with `--quiet`.
pub(super) fn is_trouble(notice: &Value) -> bool {
    let event = notice["event"].as_str().unwrap_or_default();
    event == "problem" || (event == "ended" && notice["outcome"] != "succeeded")
}

/// Formats `2026-11-20T03:00:00Z nightly run 7 starts (tick 03:00:00)`.
pub(super) fn text_line(now: Time, schedule: &str, notice: &Value) -> String {
    let time = iso(now, chrono::SecondsFormat::Secs);
    let name = if schedule.is_empty() { String::new() } else { format!(" {STRONG}{schedule}{STRONG:#}") };
    format!("{DIM}{time}{DIM:#}{name} {}", text(notice))
}

fn iso(time: Time, format: chrono::SecondsFormat) -> String {
    time.to_rfc3339_opts(format, true)
}

fn text(notice: &Value) -> String {
    match word(notice, "event").as_str() {
        "daemon_started" => format!("serving {}; health at http://{}/healthz", next(notice), word(notice, "address")),
        "daemon_stopped" => "stopped".to_owned(),
        "stopping" => stopping_daemon(notice),
        "adopted" => {
            format!("run {} (tick {}) of an earlier daemon is still active", word(notice, "id"), word(notice, "tick"))
        }
        "missed" => missed(notice),
        "skipped" => format!("tick {} skipped: a run is active", word(notice, "tick")),
        "paused" => format!("tick {} skipped: paused", word(notice, "tick")),
        "queued" => {
            let (id, tick, waiting) = (word(notice, "id"), word(notice, "tick"), word(notice, "waiting"));
            format!("run {id} (tick {tick}) waits, {waiting} in all")
        }
        "starting" => {
            format!("run {} starts ({} {})", word(notice, "id"), word(notice, "cause"), word(notice, "tick"))
        }
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

fn stopping_daemon(notice: &Value) -> String {
    let running = notice["running"].as_u64().unwrap_or_default();
    match (notice["signal"].as_u64(), running) {
        (Some(1), 0) => "stopping".to_owned(),
        (Some(1), _) => format!("stopping: waiting for {running} active runs; a second signal stops them"),
        (Some(2), _) => "stopping the active runs".to_owned(),
        _ => "exiting; the runs continue".to_owned(),
    }
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

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
    let word = |name: &str| match &notice[name] {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    };
    match word("event").as_str() {
        "daemon_started" => format!("serving {}; health at http://{}/healthz", next(notice), word("address")),
        "daemon_stopped" => "stopped".to_owned(),
        "stopping" => stopping_daemon(notice),
        "adopted" => format!("run {} (tick {}) of an earlier daemon is still active", word("id"), word("tick")),
        "missed" => missed(notice),
        "skipped" => format!("tick {} skipped: a run is active", word("tick")),
        "paused" => format!("tick {} skipped: paused", word("tick")),
        "queued" => format!("run {} (tick {}) waits, {} in all", word("id"), word("tick"), word("waiting")),
        "starting" => format!("run {} starts ({} {})", word("id"), word("cause"), word("tick")),
        "stopping_run" => stopping_run(notice),
        "ended" => ended(notice),
        "changed" => format!("new cadence: `{}` in {}", word("cron"), word("timezone")),
        "clock_set_back" => {
            format!("{WARN}the clock was set back{WARN:#} from {}: counting from now", word("accounted"))
        }
        "problem" => format!("{ERROR}{}{ERROR:#}", word("message")),
        _ => notice.to_string(),
    }
}

fn next(notice: &Value) -> String {
    let all = notice["next"].as_object().into_iter().flatten();
    let shown: Vec<String> =
        all.take(SHOWN).map(|(name, tick)| format!("{name} (next {})", tick.as_str().unwrap_or("never"))).collect();
    let more = notice["next"].as_object().map_or(0, |all| all.len().saturating_sub(SHOWN));
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
    let count = |name: &str| notice[name].as_u64().unwrap_or_default();
    let (ticks, made_up) = (count("ticks"), count("made_up"));
    let more = if notice["more"] == true { " at least" } else { "" };
    let text = |name: &str| notice[name].as_str().unwrap_or_default().to_owned();
    let span = if ticks == 1 { text("last") } else { format!("{} to {}", text("first"), text("last")) };
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
    let count = |name: &str| notice[name].as_u64().unwrap_or_default();
    let mut parts = vec![format!("{} s", notice["seconds"])];
    if notice["run"].is_string() {
        parts.push(format!("{} cached, {} ran, {} calls", count("cached"), count("finished"), count("calls")));
        parts.push(format!("run {}", notice["run"].as_str().unwrap_or_default()));
    }
    if let (Some(exit), true) = (notice["exit"].as_i64(), outcome != "succeeded") {
        parts.push(format!("exit {exit}"));
    }
    parts.extend(notice["message"].as_str().map(str::to_owned));
    parts.extend(notice["log"].as_str().map(|log| format!("log {log}")));
    format!("run {} {style}{outcome}{style:#}: {}", notice["id"], parts.join(" · "))
}

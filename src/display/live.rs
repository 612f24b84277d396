//! The progress of a run: live lines on a terminal, plain lines without one, JSON lines when asked.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use searchmill_engine::plan::Plan;
use searchmill_engine::report::{Event, Reporter, RunSummary};
use searchmill_engine::store::Store;

use super::table::{bytes, duration};
use super::terminal::{DIM, ERROR, GOOD, HELP, STRONG, WARN, err, out};

/// Cached nodes that are listed one by one; beyond that they are only counted.
const LISTED: usize = 40;

/// Shows the events of a run.
pub(crate) struct Live {
    json: bool,
    quiet: bool,
    bars: Option<MultiProgress>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<String, (ProgressBar, Instant)>,
    cached: usize,
    summaries: Vec<(String, String)>,
    delivered: Vec<(String, String)>,
    name_width: usize,
}

impl Live {
    pub(crate) fn new(plan: &Plan, json: bool, quiet: bool) -> Self {
        let live = !json && !quiet && std::io::stderr().is_terminal();
        let bars = live.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        let name_width = plan.nodes().iter().map(|node| node.id().chars().count()).max().unwrap_or(0).min(40);
        Self { json, quiet, bars, state: Mutex::new(State { name_width, ..State::default() }) }
    }

    /// The end of a run: what the nodes had to say, what was written, and the balance.
    pub(crate) fn finish(&self, summary: &RunSummary, store: &Store) {
        if self.json {
            return;
        }
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (node, text) in &state.summaries {
            out(&format!("\n{STRONG}{node}{STRONG:#}\n{}", text.trim_end()));
        }
        for (node, destination) in &state.delivered {
            out(&format!("{STRONG}{node}{STRONG:#} → {destination}"));
        }
        out(&balance(summary));
        if !self.quiet {
            let shown = store.root().strip_prefix(std::env::current_dir().unwrap_or_default()).unwrap_or(store.root());
            err(&format!("{DIM}run {} in {}{DIM:#}", summary.run, shown.display()));
        }
    }

    fn print(&self, line: &str) {
        match &self.bars {
            Some(bars) => bars.suspend(|| err(line)),
            None => err(line),
        }
    }

    fn start(&self, state: &mut State, node: &str, operator: &str) {
        let Some(bars) = &self.bars else { return };
        let bar = bars.add(ProgressBar::no_length());
        let width = state.name_width;
        let template = format!("{{spinner:.cyan}} {{prefix:{width}}} {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            bar.set_style(style);
        }
        bar.set_prefix(node.to_owned());
        bar.set_message(operator.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        state.running.insert(node.to_owned(), (bar, Instant::now()));
    }

    fn advance(state: &State, node: &str, done: u64, total: u64, unit: &str, cached: u64) {
        let Some((bar, start)) = state.running.get(node) else { return };
        let seconds = start.elapsed().as_secs_f64().max(1e-9);
        let rate = done.saturating_sub(cached) as f64 / seconds;
        let mut message = if total > 0 { format!("{done}/{total} {unit}") } else { format!("{done} {unit}") };
        message.push_str(&format!(" · {rate:.0}/s"));
        if total > done && rate > 0.0 {
            message.push_str(&format!(" · {} left", duration((total - done) as f64 / rate)));
        }
        if cached > 0 {
            message.push_str(&format!(" · {:.0} % cached", 100.0 * cached as f64 / done.max(1) as f64));
        }
        bar.set_message(message);
    }

    fn clear(&self, state: &mut State, node: &str) {
        if let (Some(bars), Some((bar, _))) = (&self.bars, state.running.remove(node)) {
            bar.finish_and_clear();
            bars.remove(&bar);
        }
    }

    fn text(&self, state: &mut State, event: &Event) -> Option<String> {
        let width = state.name_width;
        let line = |style: anstyle::Style, word: &str, node: &str, rest: &str| {
            Some(format!("{style}{word:<8}{style:#} {node:<width$} {rest}"))
        };
        match event {
            Event::RunStarted { run, pipeline, nodes, .. } => {
                Some(format!("{STRONG}{pipeline}{STRONG:#} {DIM}{nodes} nodes · run {run}{DIM:#}"))
            }
            Event::NodeCached { node, output, rows, bytes, rejects, .. } => {
                state.cached += 1;
                let rejects = if *rejects > 0 { format!(" · {rejects} rejects") } else { String::new() };
                (state.cached <= LISTED)
                    .then(|| line(DIM, "cached", node, &format!("{}{rejects}", amount(output, *rows, *bytes))))?
            }
            Event::NodeStarted { node, operator, reasons, .. } => {
                self.start(state, node, operator);
                let why = reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                line(HELP, "start", node, &format!("{DIM}{operator}: {why}{DIM:#}"))
            }
            Event::NodeWaiting { node } => line(WARN, "wait", node, "another run computes it"),
            Event::NodeProgress { node, done, total, unit, cached } => {
                Self::advance(state, node, *done, *total, unit, *cached);
                None
            }
            Event::NodeLog { node, line: text } if node.is_empty() => Some(format!("{WARN}{text}{WARN:#}")),
            Event::NodeLog { node, line: text } => line(DIM, "", node, &format!("{DIM}{text}{DIM:#}")),
            Event::NodeFinished { node, summary, .. } => {
                self.clear(state, node);
                if !summary.is_empty() {
                    state.summaries.push((node.clone(), summary.clone()));
                }
                line(GOOD, "done", node, &finished(event))
            }
            Event::Delivered { node, destination } => {
                state.delivered.push((node.clone(), destination.clone()));
                None
            }
            Event::NodeFailed { node, message, help, .. } => {
                self.clear(state, node);
                let help = help.as_ref().map(|help| format!("\n  {HELP}help{HELP:#}: {help}")).unwrap_or_default();
                line(ERROR, "failed", node, &format!("{message}{help}"))
            }
            Event::NodeSkipped { node } => {
                self.clear(state, node);
                line(DIM, "skipped", node, "")
            }
            Event::RunFinished(_) => {
                let hidden = state.cached.saturating_sub(LISTED);
                (hidden > 0).then(|| format!("{DIM}… and {hidden} more cached nodes{DIM:#}"))
            }
        }
    }
}

fn finished(event: &Event) -> String {
    let Event::NodeFinished {
        output,
        bytes,
        rows,
        rejects,
        cached_rows,
        calls,
        prompt_tokens,
        completion_tokens,
        seconds,
        ..
    } = event
    else {
        return String::new();
    };
    let mut text = format!("{} · {}", amount(output, *rows, *bytes), duration(*seconds));
    if *cached_rows > 0 {
        text.push_str(&format!(" · {cached_rows} rows known"));
    }
    if *calls > 0 {
        text.push_str(&format!(" · {calls} calls · {prompt_tokens} + {completion_tokens} tokens"));
    }
    if *rejects > 0 {
        text.push_str(&format!(" · {WARN}{rejects} rejects{WARN:#}"));
    }
    text
}

/// `55 question rows`, or `index of 1.2 MiB`.
fn amount(output: &str, rows: u64, size: u64) -> String {
    if output.ends_with("rows") { format!("{rows} {output}") } else { format!("{output} of {}", bytes(size)) }
}

fn balance(summary: &RunSummary) -> String {
    let mut parts = vec![format!("{} cached", summary.cached), format!("{} ran", summary.finished)];
    if summary.failed > 0 {
        parts.push(format!("{ERROR}{} failed{ERROR:#}", summary.failed));
    }
    if summary.skipped > 0 {
        parts.push(format!("{} skipped", summary.skipped));
    }
    if summary.dead_letters > 0 {
        parts
            .push(format!("{WARN}{} rows failed{WARN:#} (see `searchmill show NODE --rejects`)", summary.dead_letters));
    }
    if summary.calls > 0 {
        let tokens = summary.prompt_tokens + summary.completion_tokens;
        parts.push(format!("{} calls, {tokens} tokens", summary.calls));
    }
    let word = match summary {
        _ if summary.interrupted => format!("{WARN}interrupted{WARN:#}"),
        _ if summary.failed > 0 => format!("{ERROR}failed{ERROR:#}"),
        _ => format!("{GOOD}done{GOOD:#}"),
    };
    format!("{word} in {}: {}", duration(summary.seconds), parts.join(" · "))
}

impl Reporter for Live {
    fn event(&self, event: &Event) {
        if self.json {
            // Progress is for those who watch.
            if self.quiet && matches!(event, Event::NodeProgress { .. }) {
                return;
            }
            if let Ok(line) = serde_json::to_string(event) {
                out(&line);
            }
            return;
        }
        let text = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            self.text(&mut state, event)
        };
        let Some(text) = text else { return };
        if !self.quiet || matches!(event, Event::NodeFailed { .. }) {
            self.print(&text);
        }
    }
}

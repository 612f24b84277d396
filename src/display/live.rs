//! Progress of a run: live lines on a terminal, plain lines otherwise, JSON lines on request.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use searchmill_engine::{CheckOutcome, Event, NodeId, OnFailure, Plan, Reporter, RunSummary};

use super::matrix::Matrices;
use super::planned::sentence;
use super::print::{err, out};
use super::rounds::Rounds;
use super::style::{DIM, ERROR, GOOD, HELP, STRONG, WARN};
use super::table::{bytes, duration};
use super::{ending, money};

/// Maximum number of cached nodes listed; further ones are only counted.
const LISTED: usize = 40;

/// Interval of progress lines per node without a terminal.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Displays the events of a run.
pub(crate) struct Live {
    json: bool,
    quiet: bool,
    bars: Option<MultiProgress>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<NodeId, Running>,
    cached: usize,
    summaries: Vec<(NodeId, String)>,
    delivered: Vec<(NodeId, String)>,
    matrices: Matrices,
    rounds: Rounds,
    /// Nodes that write outside the store.
    writers: BTreeSet<NodeId>,
    name_width: usize,
    /// Currency of the pipeline's prices.
    currency: String,
    /// Addresses of pages that show the store now.
    pages: Vec<String>,
}

/// A running node.
struct Running {
    /// Progress bar, on a terminal.
    bar: Option<ProgressBar>,
    start: Instant,
    /// Time of its last line, without a terminal.
    told: Instant,
    progress: Option<Advance>,
}

/// Progress of a node.
struct Advance {
    done: u64,
    total: u64,
    unit: String,
    cached: u64,
    calls: u64,
    /// Those of them that ask no model.
    service_calls: u64,
    tokens: u64,
    cost: f64,
}

impl Advance {
    fn of(event: &Event) -> Option<Self> {
        let &Event::NodeProgress { done, total, ref unit, cached, calls, service_calls, tokens, cost, .. } = event
        else {
            return None;
        };
        Some(Self { done, total, unit: unit.clone(), cached, calls, service_calls, tokens, cost })
    }

    /// Formats `120/300 rows · 40/s · 4.5 s left · 240 calls · 96,000 tokens · 0.12 USD`.
    fn words(&self, elapsed: Duration, currency: &str) -> String {
        let Self { done, total, unit, cached, calls, service_calls, tokens, cost } = self;
        // Cached rows come at once: they say nothing of the rate.
        let rate = done.saturating_sub(*cached) as f64 / elapsed.as_secs_f64().max(1e-9);
        let mut words = if *total > 0 { format!("{done}/{total} {unit}") } else { format!("{done} {unit}") };
        words.push_str(&if rate < 10.0 { format!(" · {rate:.1}/s") } else { format!(" · {rate:.0}/s") });
        if total > done && rate > 0.0 {
            words.push_str(&format!(" · {} left", duration((total - done) as f64 / rate)));
        }
        if *cached > 0 {
            words.push_str(&format!(" · {:.0} % cached", 100.0 * *cached as f64 / (*done).max(1) as f64));
        }
        if calls > service_calls {
            let asked = calls - service_calls;
            words.push_str(&format!(" · {} calls · {} tokens", money::count(asked), money::count(*tokens)));
        }
        if *service_calls > 0 {
            words.push_str(&format!(" · {}", ending::services(*service_calls)));
        }
        if *cost > 0.0 {
            words.push_str(&format!(" · {}", money::cost(*cost, currency)));
        }
        words
    }
}

impl Running {
    fn new(bar: Option<ProgressBar>, now: Instant) -> Self {
        Self { bar, start: now, told: now, progress: None }
    }

    /// Returns a progress line if one is due.
    fn line(&mut self, now: Instant, currency: &str) -> Option<String> {
        if self.bar.is_some() || now.saturating_duration_since(self.told) < TOLD_EVERY {
            return None;
        }
        self.told = now;
        let elapsed = now.saturating_duration_since(self.start);
        let since = format!("for {}", duration(elapsed.as_secs_f64()));
        Some(match &self.progress {
            Some(progress) => format!("{} · {since}", progress.words(elapsed, currency)),
            None => since,
        })
    }
}

/// Prints lines for long-running nodes from a separate thread, since a node may report nothing for minutes. The
/// thread ends with the run.
fn print_long_nodes(live: Weak<Live>) {
    let thread = std::thread::Builder::new().name("progress".to_owned());
    let started = thread.spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(1));
            // Held for one round only: the thread must not keep the run's display alive.
            let Some(live) = live.upgrade() else { return };
            for line in live.long_nodes(Instant::now()) {
                live.print(&line);
            }
        }
    });
    if let Err(error) = started {
        tracing::debug!("progress of long nodes is not reported: {error}");
    }
}

/// Width of the column of nodes at most. (A formatted width is limited to 65,535.)
const LONGEST_NAME: usize = 80;

/// Formats a line about a node.
fn line(style: anstyle::Style, word: &str, node: &str, width: usize, rest: &str) -> String {
    let width = width.min(LONGEST_NAME);
    format!("{style}{word:<8}{style:#} {node:<width$} {rest}")
}

/// Formats the beginning of a run, with the addresses at which pages show it.
fn begun(pages: &[String], run: &str, pipeline: &str, nodes: usize) -> String {
    let mut text = format!("{STRONG}{pipeline}{STRONG:#} {DIM}{nodes} nodes · run {run}{DIM:#}");
    for page in pages {
        text.push_str(&format!("\n{DIM}{page}/r/{run}{DIM:#}"));
    }
    text
}

impl Live {
    /// Starts displaying a run, which is seen at these addresses of pages.
    pub(crate) fn start(plan: &Plan, all: bool, pages: Vec<String>, json: bool, quiet: bool) -> Arc<Self> {
        let is_told = !json && !quiet;
        let has_bars = is_told && std::io::stderr().is_terminal();
        let bars = has_bars.then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        // At most 40: one long id of a matrix must not move the text of all lines out of sight.
        let name_width = plan.nodes.iter().map(|node| node.id().chars().count()).max().unwrap_or(0).min(40);
        let currency = plan.currency().unwrap_or_default();
        let writers = plan.nodes.iter().filter(|node| !node.operator.declaration.destinations().is_empty());
        let writers = writers.map(|node| node.id().to_owned()).collect();
        let (matrices, rounds) = (Matrices::of(plan, all), Rounds::of(plan, all));
        let state = State { matrices, rounds, writers, name_width, currency, pages, ..State::default() };
        let live = Arc::new(Self { json, quiet, bars, state: Mutex::new(state) });
        if is_told && !has_bars {
            print_long_nodes(Arc::downgrade(&live));
        }
        live
    }

    fn long_nodes(&self, now: Instant) -> Vec<String> {
        let state = &mut *self.state();
        let mut lines = Vec::new();
        for (node, running) in &mut state.running {
            if let Some(words) = running.line(now, &state.currency) {
                lines.push(line(HELP, "running", node, state.name_width, &words));
            }
        }
        lines
    }

    /// Prints the end of a run: summaries, written files, and totals.
    pub(crate) fn finish(&self, summary: &RunSummary, store: &Path) {
        // The events were JSON lines, the summary among them.
        if self.json {
            return;
        }
        let state = self.state();
        for text in ending::summaries(&state.summaries).into_iter().chain(state.matrices.tables()) {
            out(&text);
        }
        for (node, destination) in &state.delivered {
            out(&format!("{STRONG}{node}{STRONG:#} → {destination}"));
        }
        out(&ending::balance(summary));
        if !self.quiet {
            let shown = store.strip_prefix(std::env::current_dir().unwrap_or_default()).unwrap_or(store);
            err(&format!("{DIM}run {} in {}{DIM:#}", summary.run, shown.display()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print(&self, line: &str) {
        match &self.bars {
            // The bars are taken off the screen meanwhile: the line would be written into them.
            Some(bars) => bars.suspend(|| err(line)),
            None => err(line),
        }
    }

    fn begin(&self, state: &mut State, node: &str, operator: &str) {
        let bar = self.bars.as_ref().map(|bars| bars.add(ProgressBar::no_length()));
        if let Some(bar) = &bar {
            let width = state.name_width;
            let template = format!("{{spinner:.cyan}} {{prefix:{width}}} {{msg}}");
            if let Ok(style) = ProgressStyle::with_template(&template) {
                bar.set_style(style);
            }
            bar.set_prefix(node.to_owned());
            bar.set_message(operator.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        state.running.insert(node.into(), Running::new(bar, Instant::now()));
    }

    fn advance(state: &mut State, node: &str, advance: Advance) {
        let Some(running) = state.running.get_mut(node) else { return };
        if let Some(bar) = &running.bar {
            bar.set_message(advance.words(running.start.elapsed(), &state.currency));
        }
        running.progress = Some(advance);
    }

    fn clear(&self, state: &mut State, node: &str) {
        let bar = state.running.remove(node).and_then(|running| running.bar);
        if let (Some(bars), Some(bar)) = (&self.bars, bar) {
            bar.finish_and_clear();
            bars.remove(&bar);
        }
    }

    fn text(&self, state: &mut State, event: &Event) -> Option<String> {
        let width = state.name_width;
        let line = |style, word: &str, node: &str, rest: &str| Some(line(style, word, node, width, rest));
        match event {
            Event::RunStarted { run, pipeline, nodes, .. } => Some(begun(&state.pages, run, pipeline, *nodes)),
            Event::NodeCached { node, .. } if state.rounds.folds(node) => None,
            Event::NodeCached { node, output, rows, bytes, rejects, .. } => {
                state.cached += 1;
                let rejects = if *rejects > 0 { format!(" · {rejects} rejects") } else { String::new() };
                // Hundreds of cached nodes would hide the first one that runs.
                if state.cached > LISTED {
                    return None;
                }
                line(DIM, "cached", node, &format!("{}{rejects}", amount(output, *rows, *bytes)))
            }
            Event::NodeStarted { node, operator, reasons, .. } => {
                self.begin(state, node, operator);
                let why = sentence(reasons);
                line(HELP, "run", node, &format!("{operator}  {DIM}({why}){DIM:#}"))
            }
            Event::NodeWaiting { node } => line(WARN, "wait", node, "the same result is being computed already"),
            Event::NodeProgress { node, .. } => {
                Self::advance(state, node, Advance::of(event)?);
                None
            }
            Event::NodeLog { node, line: text } if node.is_empty() => Some(format!("{WARN}{text}{WARN:#}")),
            Event::NodeLog { node, line: text } => match text.strip_prefix("warning: ") {
                Some(text) => line(WARN, "warning", node, text),
                None => line(DIM, "", node, &format!("{DIM}{text}{DIM:#}")),
            },
            Event::NodeFinished { node, summary, rejects, .. } => {
                self.clear(state, node);
                if !summary.is_empty() {
                    state.summaries.push((node.clone(), summary.clone()));
                }
                // A delivered output was reported before; any other output is about to be held back.
                let delivered = state.delivered.iter().any(|(done, _)| done == node);
                let word = if state.writers.contains(node) && !delivered { "computed" } else { "done" };
                let style = if *rejects > 0 { WARN } else { GOOD };
                line(style, word, node, &finished(event, &state.currency))
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
            Event::NodeChecked { node, checks } => line(DIM, "checked", node, &checked(checks)),
            Event::HeldBack { node, destinations, reason } => {
                line(WARN, "held back", node, &held_back(node, destinations, reason))
            }
            Event::NodeSkipped { node } => {
                let (style, word) =
                    if state.running.contains_key(node) { (WARN, "interrupted") } else { (DIM, "skipped") };
                self.clear(state, node);
                line(style, word, node, "")
            }
            Event::LoopEnded { repeats, round, left_out, reason, hands_on } => {
                Some(ending::of_loop(repeats, *round, *left_out, *hands_on, reason))
            }
            Event::NodeEnded { node, needs: Some(_), reason, .. } if state.rounds.is_first_ended(node) => {
                line(WARN, "ended", node, reason)
            }
            Event::NodeReleased { .. } | Event::NodeEnded { .. } | Event::CallRetried { .. } => None,
            Event::EndpointSilent { endpoint, seconds, waiting } => {
                let silent = duration(*seconds);
                Some(format!("{WARN}{endpoint} has been silent for {silent}, calls waiting: {waiting}{WARN:#}"))
            }
            Event::EndpointHeard { endpoint } => Some(format!("{WARN}{endpoint} responds again{WARN:#}")),
            Event::BudgetUsedUp { limit } => Some(format!(
                "{WARN}the budget is used up: {limit}; paid results are cached; a run with budget left resumes{WARN:#}"
            )),
            Event::RunFinished(_) => {
                let hidden = state.cached.saturating_sub(LISTED);
                (hidden > 0).then(|| format!("{DIM}… and {hidden} more cached nodes{DIM:#}"))
            }
        }
    }
}

/// Formats why an output was not written, and what to do.
fn held_back(node: &str, destinations: &[String], reason: &str) -> String {
    let help = format!("fix the cause and run again, or write it anyway: --deliver-anyway {node}");
    format!("{reason}; {} stays as it was\n  {HELP}help{HELP:#}: {help}", destinations.join(", "))
}

/// Formats the outcomes of a node's checks: the number that passed, and a line for each that failed.
fn checked(checks: &[CheckOutcome]) -> String {
    let passed = checks.iter().filter(|check| check.passed).count();
    let mut text = format!("{DIM}{passed} of {} checks passed{DIM:#}", checks.len());
    for check in checks.iter().filter(|check| !check.passed) {
        let (style, word) = match check.check.on_failure {
            OnFailure::Fail => (ERROR, "fails"),
            OnFailure::Hold => (WARN, "holds"),
            OnFailure::Warn => (WARN, "warns"),
        };
        text.push_str(&format!("\n  {style}{word}{style:#}: {check}"));
    }
    text
}

fn finished(event: &Event, currency: &str) -> String {
    let Event::NodeFinished {
        output,
        bytes,
        rows,
        rejects,
        reject_reasons,
        cached_rows,
        calls,
        service_calls,
        failed_calls,
        prompt_tokens,
        completion_tokens,
        cost,
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
    let (answered, of_services) = ending::answered(*calls, *service_calls, failed_calls);
    if calls > service_calls {
        text.push_str(&format!(" · {answered} calls · {prompt_tokens} + {completion_tokens} tokens"));
    }
    if *service_calls > 0 {
        text.push_str(&format!(" · {}", ending::services(of_services)));
    }
    for part in ending::attempts(failed_calls) {
        text.push_str(&format!(" · {part}"));
    }
    if *cost > 0.0 {
        text.push_str(&format!(" · {}", money::cost(*cost, currency)));
    }
    if *rejects > 0 {
        text.push_str(&format!(" · {WARN}{rejects} rejects{WARN:#}"));
        let why = ending::reasons(reject_reasons, *rejects);
        if !why.is_empty() {
            text.push_str(&format!(" ({why})"));
        }
    }
    text
}

/// Formats `55 question rows`, or `index of 1.2 MiB`.
fn amount(output: &str, rows: u64, size: u64) -> String {
    if output.ends_with("rows") { format!("{rows} {output}") } else { format!("{output} of {}", bytes(size)) }
}

impl Reporter for Live {
    fn event(&self, event: &Event) {
        if self.json {
            // `--quiet` omits progress.
            if self.quiet && matches!(event, Event::NodeProgress { .. }) {
                return;
            }
            if let Ok(line) = serde_json::to_string(event) {
                out(&line);
            }
            return;
        }
        let mut state = self.state();
        state.matrices.note(event);
        let told = state.rounds.note(event, Instant::now());
        let width = state.name_width;
        let before = told.before.into_iter().map(|(node, rest)| line(DIM, "cached", &node, width, &rest));
        let mut texts: Vec<String> = before.collect();
        let text = self.text(&mut state, event);
        texts.extend(text.filter(|_| !told.folds));
        // Before printing: events without a line, such as progress, do not wait for a slow terminal.
        drop(state);
        if texts.is_empty() {
            return;
        }
        let text = texts.join("\n");
        if !self.quiet || matches!(event, Event::NodeFailed { .. }) {
            self.print(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_node_is_told_of_every_ten_seconds() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut node = Running::new(None, start);
        assert_eq!(node.line(at(9), "USD"), None);
        assert_eq!(node.line(at(11), "USD").as_deref(), Some("for 11.0 s"), "it has not reported anything yet");
        node.progress = Some(Advance {
            done: 600,
            total: 3000,
            unit: "rows".to_owned(),
            cached: 150,
            calls: 1290,
            service_calls: 90,
            tokens: 40_000,
            cost: 0.25,
        });
        assert_eq!(node.line(at(20), "USD"), None, "it was told of nine seconds ago");
        let told = "600/3000 rows · 15/s · 2:40 min left · 25 % cached · 1,200 calls · 40,000 tokens · 90 calls of tools and functions · 0.250 USD · for 30.0 s";
        assert_eq!(node.line(at(30), "USD").as_deref(), Some(told));
        node.progress = Some(Advance {
            done: 7,
            total: 0,
            unit: "documents".to_owned(),
            cached: 0,
            calls: 0,
            service_calls: 0,
            tokens: 0,
            cost: 0.0,
        });
        assert_eq!(node.line(at(70), "USD").as_deref(), Some("7 documents · 0.1/s · for 1:10 min"));
    }

    #[test]
    fn on_a_terminal_the_bar_is_enough() {
        let start = Instant::now();
        let mut node = Running::new(Some(ProgressBar::hidden()), start);
        assert_eq!(node.line(start + Duration::from_mins(1), "USD"), None);
    }
}

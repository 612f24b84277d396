//! Output to the terminal: results on stdout, everything else on stderr, with or without colours.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anstream::ColorChoice;
use anstyle::Style;
use chrono::SecondsFormat;
use searchmill_engine::diagnostic::{Diagnostic, SourceMap};
use searchmill_engine::operator::without_user_info;
use searchmill_engine::{Failure, Plan, Time};
use serde_json::{Value, json};

use super::diagnostic::render;
use super::live::Live;
use super::print::{err, err_open, lost, out};
use super::schedule::text;
use super::style::{DIM, ERROR, GOOD, HELP, STRONG, WARN};
use super::table::{coloured_table, text_table};
use crate::args::ColorWhen;
use crate::exit::{DISK, OK, USAGE};

/// The terminal, or the stream that replaces it.
#[derive(Clone)]
pub struct Terminal {
    quiet: bool,
    json: bool,
}

impl Terminal {
    /// Sets the colour choice once, for both streams.
    pub(crate) fn new(quiet: bool, json: bool, color: ColorWhen) -> Self {
        let choice = match color {
            ColorWhen::Auto => ColorChoice::Auto,
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        choice.write_global();
        // The progress bars have a separate switch.
        if color != ColorWhen::Auto {
            console::set_colors_enabled(color == ColorWhen::Always);
            console::set_colors_enabled_stderr(color == ColorWhen::Always);
        }
        Self { quiet, json }
    }

    /// Whether JSON output was requested.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Number of columns, from 60 to 200.
    pub fn width(&self) -> usize {
        usize::from(console::Term::stderr().size().1).clamp(60, 200)
    }

    /// Number of columns for pages of text; `None` if stdout is not a terminal.
    pub fn page(&self) -> Option<usize> {
        std::io::stdout().is_terminal().then(|| self.width())
    }

    /// Prints a line of the result.
    pub fn line(&self, text: &str) {
        out(text);
    }

    /// Whether somebody can be asked.
    pub(crate) fn is_asking(&self) -> bool {
        !self.json && !self.quiet && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// Prints a question; the answer follows in the same line.
    pub(crate) fn prompt(&self, text: &str) {
        if self.is_asking() {
            err_open(text);
        }
    }

    /// Prints a value as one line of JSON.
    pub(crate) fn json(&self, value: &impl serde::Serialize) {
        self.line(&serde_json::to_string(value).unwrap_or_default());
    }

    /// Prints a value as JSON, or as text.
    pub(crate) fn tell(&self, value: &impl serde::Serialize, text: &str) {
        if self.json { self.json(value) } else { self.line(text) }
    }

    /// Prints a note that is not part of the result.
    pub fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            err(&format!("{DIM}{text}{DIM:#}"));
        }
    }

    /// Prints a warning.
    pub fn warn(&self, text: &str) {
        err(&format!("{WARN}warning{WARN:#}: {text}"));
    }

    /// Prints a table of the result.
    pub fn table(&self, header: &[&str], rows: &[Vec<String>]) {
        out(&text_table(header, rows, self.page()));
    }

    /// Prints the table of a plan; the statuses, in the third column, are coloured.
    pub(crate) fn plan_table(&self, header: &[&str], rows: &[Vec<String>]) {
        out(&coloured_table(header, rows, self.page(), 2, style_of_status));
    }

    /// Reports a valid pipeline.
    pub fn valid(&self, file: &Path, nodes: usize) {
        let file = file.display().to_string();
        let told = json!({"file": file, "valid": true, "nodes": nodes});
        self.tell(&told, &format!("{GOOD}ok{GOOD:#} {file} ({nodes} nodes)"));
    }

    /// Prints the reason for a failure and returns the exit code.
    pub fn failure(&self, failure: &Failure) -> u8 {
        match failure {
            Failure::Pipeline(findings, sources) => {
                let color = anstream::AutoStream::choice(&std::io::stderr()) != ColorChoice::Never;
                for finding in findings {
                    if self.json {
                        self.json(&finding_json(finding, sources));
                    } else {
                        err(&render(finding, sources, color));
                    }
                }
            }
            Failure::Usage { message, help } => self.error(message, help.as_deref()),
            other => self.error(&other.to_string(), None),
        }
        failure.exit_code()
    }

    fn error(&self, message: &str, help: Option<&str>) {
        if self.json {
            self.json(&json!({"severity": "error", "message": message, "help": help}));
        }
        // Also printed for people who read only the text output.
        error(message, help);
    }

    /// Prints a line of the daemon's log: on stderr with its time, or as JSON on stdout.
    pub(crate) fn journal(&self, now: Time, schedule: &str, notice: &Value) {
        if self.json {
            let mut line = notice.clone();
            line["time"] = now.to_rfc3339_opts(SecondsFormat::Millis, true).into();
            if !schedule.is_empty() {
                line["schedule"] = schedule.into();
            }
            return self.json(&line);
        }
        // Trouble is told even with `--quiet`.
        let event = notice["event"].as_str().unwrap_or_default();
        if !self.quiet || event == "problem" || (event == "ended" && notice["outcome"] != "succeeded") {
            let time = now.to_rfc3339_opts(SecondsFormat::Secs, true);
            let name = if schedule.is_empty() { String::new() } else { format!(" {STRONG}{schedule}{STRONG:#}") };
            err(&format!("{DIM}{time}{DIM:#}{name} {}", text(notice)));
        }
    }

    /// Returns the reporter for the events of a run, which is seen at these addresses of pages; without `all`, it folds
    /// the rounds of loops.
    pub(crate) fn reporter(&self, plan: &Plan, all: bool, pages: Vec<String>) -> Arc<Live> {
        Live::start(plan, all, pages, self.json, self.quiet)
    }
}

/// Returns the style of a status of a plan, or of the counts of statuses of the rounds of a node.
fn style_of_status(status: &str) -> Style {
    match status {
        "cached" | "ended" => DIM,
        "run" => HELP,
        "decided later" | "held" => WARN,
        "broken" => ERROR,
        counts if counts.contains("broken") => ERROR,
        counts if counts.contains("to run") => HELP,
        _ => Style::new(),
    }
}

fn finding_json(finding: &Diagnostic, sources: &SourceMap) -> Value {
    let place = match finding.span() {
        Some(span) => {
            let (line, column) = sources.line_col(span.file, span.start);
            let file = sources.get(span.file).map(|(path, _)| path.display().to_string());
            json!({"file": file, "line": line, "column": column})
        }
        None => Value::Null,
    };
    json!({
        "severity": "error",
        "code": finding.code,
        "message": without_user_info(&finding.message),
        "at": place,
        "notes": finding.notes,
        "help": finding.help,
    })
}

fn error(message: &str, help: Option<&str>) {
    err(&format!("{ERROR}error{ERROR:#}: {message}"));
    if let Some(help) = help {
        err(&format!("  {HELP}help{HELP:#}: {help}"));
    }
}

/// Prints a command-line error, a help text or the version.
pub fn usage(error: &clap::Error) -> ExitCode {
    if let Err(problem) = error.print() {
        tracing::debug!("cannot print: {problem}");
    }
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

/// Reports that the CPU lacks instructions required by this binary, and ends the process.
pub fn wrong_machine(missing: &str) -> ! {
    let help = "build it on this machine without the CXXFLAGS line of .cargo/config.toml";
    error(&format!("this binary needs a CPU with {missing}"), Some(help));
    leave_now(i32::from(USAGE))
}

/// Reports that the system gives the process no more threads, and ends it.
pub fn no_threads() -> ! {
    let help = "raise the limit (`ulimit -u`, `pids.max` of the container), or use fewer with `--jobs` and `resources: {threads: …}`; a run resumes";
    error("the system allows no more threads", Some(help));
    leave_now(5)
}

/// Starts the program's log on stderr: warnings, details with `-v`, everything with `-vv`. RUST_LOG overrides it.
pub fn start_logging(verbose: u8) {
    // What a library says of a damaged document is in its reject.
    let level =
        ["warn,lopdf=off", "searchmill=info,searchmill_engine=info,searchmill_operators=info,warn,lopdf=off", "debug"];
    let default = level[usize::from(verbose).min(level.len() - 1)];
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| default.into());
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) || !std::io::stderr().is_terminal();
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
    // A line of the log that cannot be written must not end the program.
    let subscriber = subscriber.with_ansi(!plain).log_internal_errors(false);
    if subscriber.try_init().is_err() {
        tracing::debug!("logging was started before");
    }
}

/// Returns the exit code of a command that would end with `code`: that of a full disk, with a message, if stdout did not
/// take all it printed.
pub fn code_of_output(code: u8) -> u8 {
    let Some(problem) = lost() else { return code };
    error(&format!("cannot write to stdout: {problem}"), Some("what was printed is incomplete: print it again"));
    if code == OK { DISK } else { code }
}

/// Returns the stream on which a worker reports events to its parent: one JSON object per line.
pub fn worker_pipe() -> Box<dyn Write + Send> {
    Box::new(std::io::stdout())
}

/// Exits immediately: for a second Ctrl-C, and for a lack of threads.
#[expect(clippy::exit, reason = "it must end the program whatever its threads do")]
pub fn leave_now(code: i32) -> ! {
    std::process::exit(code)
}

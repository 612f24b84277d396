//! Command-line arguments as clap types; their doc comments are the help texts.

mod look;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};

pub(crate) use self::look::{CompletionsArgs, Goal, InitArgs, SearchArgs, ShowArgs, ShowFormat, UiArgs};
pub(crate) use self::serve::{DtypeArg, EntranceArgs, FusionArgs, ServeArgs, ServeEnvArgs, ServeModelArgs, ServeWhat};

/// Declare search-agent experiments in one YAML file; run them as a cached, resumable, auditable Arrow DAG.
#[derive(Parser)]
#[command(name = "searchmill", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Working directory: relative paths and the default store start here.
    #[arg(short = 'C', long, global = true, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Store for artifacts and results: a folder, or a shared store (`s3://BUCKET/PREFIX`, `gs://`, `az://`,
    /// `file://`; credentials come from the environment).
    #[arg(long, global = true, value_name = "FOLDER|URL", default_value = ".searchmill", env = "SEARCHMILL_STORE")]
    pub(crate) store: PathBuf,
    /// Local copy of a shared store (default: a folder per store in the user's cache folder).
    #[arg(long, global = true, value_name = "FOLDER", env = "SEARCHMILL_STORE_CACHE")]
    pub(crate) store_cache: Option<PathBuf>,
    /// Print one JSON object per line on stdout instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only errors and the result.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Print more detail; twice for debugging.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colours (NO_COLOR is respected).
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) color: ColorWhen,
}

const EXIT_CODES: &str = "Exit codes: 0 ok · 1 a node, a check or a test failed · 2 usage or validation · 3 completed with failed rows of calls, held-back outputs or checks that hold · \
4 the budget is used up · 5 store or lock I/O · 6 `audit` could not check everything · 10 `plan --detailed-exitcode` has work · 130 interrupted";

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline; cached results are reused.
    Run(RunArgs),
    /// Show what a run would do, and why, without running it.
    Plan(PlanArgs),
    /// Check pipelines offline and report all errors with their locations.
    Validate(ValidateArgs),
    /// Run the tests of a pipeline: given rows, a scripted model, expected rows.
    ///
    /// Each test runs in an empty temporary store. Endpoints are played by the script of the test: no real one is
    /// called. Nothing is written outside the temporary store. Exit code 1: a test failed.
    Test(TestArgs),
    /// Explain why a node would run.
    Why(WhyArgs),
    /// Show which nodes of a pipeline are up to date.
    Status(StatusArgs),
    /// List the runs in the store.
    Runs(RunsArgs),
    /// Start pipelines on their schedules (daemon), or control the daemon.
    ///
    /// Without a subcommand, starts the daemon.
    ///
    /// The daemon starts every pipeline at the times of its `schedule:`, each run as a separate process (`searchmill
    /// run FILE --json`), and stores its state in the store. After a restart it knows which runs completed, which
    /// still run, and which ticks were missed.
    ///
    /// First SIGTERM or Ctrl-C: start no new runs and wait for active ones. Second: tell active runs to stop. Third:
    /// exit; the runs continue, and the next daemon adopts them. A changed `schedule:` takes effect without a
    /// restart.
    Schedule(ScheduleArgs),
    /// Serve a model or search indexes over HTTP.
    Serve(ServeArgs),
    /// Write a first pipeline for your documents and questions; asks for what no option says.
    Init(InitArgs),
    /// Run the pipeline that searchmill brings along, in the current folder: offline, from documents to a trained model.
    ///
    /// Writes `pipelines/quickstart.yaml` if it is not there, results to `out/quickstart/`, and the store.
    Quickstart(QuickstartArgs),
    /// Search an index, to try it: `searchmill search bm25 "who founded Rome"`.
    ///
    /// Without a query, each line of stdin is one.
    Search(SearchArgs),
    /// Show an artifact or a node's output: a table, JSON lines, a conversation; or write its rows to a file.
    Show(ShowArgs),
    /// Print the folder of an artifact or a node's output, for other programs.
    ///
    /// The folder of a table contains its Parquet files and nothing else: pandas, Polars, DuckDB and datasets open it.
    /// The files are read-only. `gc` removes the folder with the artifact, unless it is pinned.
    Path(PathArgs),
    /// Look at the store in a browser: runs, rows, conversations, what differs.
    Ui(UiArgs),
    /// List operators, or print the reference page of one.
    Ops(OpsArgs),
    /// List the kinds of rows that flow between nodes, or the columns of one.
    Kinds(KindsArgs),
    /// Print the JSON Schema of pipelines, for editors.
    Schema,
    /// Print the graph of a pipeline.
    Graph(GraphArgs),
    /// Print the events of a run.
    Logs(LogsArgs),
    /// Trace an artifact or a row to its sources, or a source to its results.
    Trace(TraceArgs),
    /// Verify an artifact, a node or a run against its records, back to its sources.
    Audit(AuditArgs),
    /// Show the differences between two runs: params, code, inputs, row counts, metrics, and the numbers of each question
    /// or row.
    Diff(DiffArgs),
    /// List results not protected by a kept run, a pin or their age; with --yes, remove them.
    Gc(GcArgs),
    /// Protect an artifact from `gc` under a name, or list the pins.
    Pin(PinArgs),
    /// Remove a pin.
    Unpin(UnpinArgs),
    /// Write an artifact with its lineage to an archive, or the cached rows of external nodes.
    Export(ExportArgs),
    /// Import an archive written by `export` into this store.
    Import(ImportArgs),
    /// Write an attestation of an artifact and its provenance (in-toto, SLSA), optionally signed; or verify one.
    Attest(AttestArgs),
    /// Print the completions of a shell.
    ///
    /// `searchmill completions bash > ~/.local/share/bash-completion/completions/searchmill`
    Completions(CompletionsArgs),
    /// Check this machine: processor, memory, store, GPUs, GPU worker.
    Doctor,
    /// Run one node for an active run.
    #[command(subcommand, hide = true)]
    Worker(WorkerArgs),
}

#[derive(Arguments)]
pub(crate) struct QuickstartArgs {
    /// Set a param of the pipeline, as for `run`: `--set student_steps=300` trains for a shorter time.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
}

/// A pipeline and its overrides.
#[derive(Arguments, Clone, Default)]
pub(crate) struct PipelineArgs {
    /// Pipeline file.
    pub(crate) file: PathBuf,
    /// Set a param: `--set teacher.model=qwen3`, `--set 'encoder={bert: {model: ./e5}}'`. Repeatable; overrides
    /// --params.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a YAML or JSON file; its maps are merged with the declared ones. Repeatable; later files win.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Show every round of loops.
    #[arg(long)]
    pub(crate) all: bool,
}

/// Selected nodes of a pipeline.
#[derive(Arguments, Clone, Default)]
pub(crate) struct ChosenArgs {
    /// Run only these nodes and their inputs.
    #[arg(value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// Same as naming the node as a target.
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Vec<String>,
    /// Run only these nodes and the nodes that depend on them.
    #[arg(long, value_name = "NODE")]
    pub(crate) from: Vec<String>,
    /// Run exactly these nodes.
    #[arg(long, value_name = "NODE")]
    pub(crate) only: Vec<String>,
}

#[derive(Arguments, Default)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(crate) chosen: ChosenArgs,
    /// Show what would run, then stop.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Show every round of loops.
    #[arg(long)]
    pub(crate) all: bool,
    /// Maximum number of nodes that run in parallel.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// After a failure, continue with nodes that do not depend on the failed one.
    #[arg(short, long)]
    pub(crate) keep_going: bool,
    /// Run nodes even if their results are cached: all with `-f`, one with `--force=NODE`. A node of a loop or matrix means
    /// all of its rounds or variants.
    #[arg(short, long, value_name = "NODE", num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    pub(crate) force: Vec<String>,
    /// Read remote sources again, since their content may have changed. If they return the same rows, downstream
    /// nodes stay cached.
    #[arg(long)]
    pub(crate) refresh_sources: bool,
    /// Ignore all cached results and rows (new results are still cached).
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Read at most this many rows from every source, documents too; or from one: `--limit questions=5`. Repeatable. A
    /// trial run with separate cache entries.
    #[arg(long, value_name = "[NODE=]ROWS")]
    pub(crate) limit: Vec<String>,
    /// Limit the calls to endpoints: `calls=500`, `tokens=1.5M`, `cost=2.50` (based on the pipeline's `prices`). At
    /// the limit, no new call starts, calls in flight finish, and the exit code is 4; the next run resumes. Overrides
    /// the same limit in the pipeline's `budget:`.
    #[arg(long, value_name = "LIMIT=AMOUNT", value_delimiter = ',')]
    pub(crate) budget: Vec<String>,
    /// Run only nodes with rejected rows (including rows skipped by `on_error: drop`) and the nodes that depend on
    /// them.
    #[arg(long, conflicts_with_all = ["targets", "to", "from", "only", "force", "no_cache"])]
    pub(crate) retry_rejects: bool,
    /// Pay again for cached answers that are damaged on disk, even if they are more than 5 % of all answers.
    #[arg(long)]
    pub(crate) rebuy: bool,
    /// Write outputs even if too many rows were lost (`max_reject_share` of `write`) or no rows are left.
    #[arg(long)]
    pub(crate) deliver_anyway: bool,
    /// Send OpenLineage events to a file (appended) or to the URL of a receiver. See also OPENLINEAGE_API_KEY,
    /// OPENLINEAGE_NAMESPACE.
    #[arg(long, value_name = "FILE|URL", env = "OPENLINEAGE_URL")]
    pub(crate) openlineage: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(crate) chosen: ChosenArgs,
    /// Exit with code 10 if there is work to do.
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
    /// Show every round of loops.
    #[arg(long)]
    pub(crate) all: bool,
    /// Row limit, as for `run`.
    #[arg(long, value_name = "[NODE=]ROWS")]
    pub(crate) limit: Vec<String>,
}

#[derive(Arguments)]
pub(crate) struct ValidateArgs {
    /// Pipelines to check.
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Set a param, as for `run`.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a file, as for `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct TestArgs {
    /// Pipeline file.
    pub(crate) file: PathBuf,
    /// Run only this test.
    pub(crate) name: Option<String>,
    /// Set a param, as for `run`. The params of a test come after it.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a file, as for `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct WhyArgs {
    /// Node to explain, or what a loop hands on (`LOOP.NAME`).
    pub(crate) node: String,
    /// Pipeline file (default: that of the last run, with its --params, --set and --limit).
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Run to compare with (default: the last run).
    #[arg(long, value_name = "RUN")]
    pub(crate) against: Option<String>,
    /// Set a param, as for `run`.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a file, as for `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct RunsArgs {
    /// Number of runs to list, newest last.
    #[arg(short = 'n', long, default_value_t = 20)]
    pub(crate) count: usize,
}

#[derive(Arguments)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ScheduleVerb>,
    /// Pipelines with `schedule:`, or folders (all pipelines with `schedule:` in them).
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Set a param in all pipelines, as for `run`.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a file, as for `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
    /// Address for `/healthz`, `/healthz/schedules` (200 or 503) and `/status` (JSON); port 0 picks a free port. Loopback
    /// only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: std::net::SocketAddr,
}

#[derive(Subcommand)]
pub(crate) enum ScheduleVerb {
    /// List the schedules in the store: active runs, next ticks, outcome of the last run.
    List,
    /// Show the next ticks.
    Next(ScheduleNextArgs),
    /// Start no scheduled runs until `resume`. Works with and without a daemon, and persists across restarts.
    Pause(ScheduleNamesArgs),
    /// End a pause. Ticks missed during the pause are not caught up.
    Resume(ScheduleNamesArgs),
    /// Request an immediate run, even if paused. It is queued like any other run.
    Trigger(ScheduleNamesArgs),
}

#[derive(Arguments)]
pub(crate) struct ScheduleNextArgs {
    /// Names of schedules, or pipelines (default: all schedules in the store).
    #[arg(value_name = "NAME|FILE")]
    pub(crate) names: Vec<String>,
    /// Number of ticks per schedule.
    #[arg(short = 'n', long, default_value_t = 5)]
    pub(crate) count: usize,
}

#[derive(Arguments)]
pub(crate) struct ScheduleNamesArgs {
    /// Names of schedules, or pipelines.
    #[arg(required = true, value_name = "NAME|FILE")]
    pub(crate) names: Vec<String>,
}

#[derive(Arguments)]
pub(crate) struct PathArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), a pin, or the beginning of an artifact's id.
    pub(crate) what: String,
    /// Use the output of this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Use the newest run of this pipeline.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub(crate) file: Option<PathBuf>,
    /// Print the path of the only file instead of its folder; fails if there are several.
    #[arg(long)]
    pub(crate) single: bool,
}

#[derive(Arguments)]
pub(crate) struct OpsArgs {
    /// Operator name.
    pub(crate) name: Option<String>,
    /// Print Markdown instead of plain text.
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Arguments)]
pub(crate) struct KindsArgs {
    /// Kind name: `document`, `question`, `trajectory` …
    pub(crate) name: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Output format.
    #[arg(long, value_enum, default_value = "mermaid")]
    pub(crate) format: GraphFormat,
    /// Show every round of loops.
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GraphFormat {
    /// A Mermaid flowchart.
    Mermaid,
    /// Graphviz.
    Dot,
    /// Nodes and edges.
    Json,
}

#[derive(Arguments)]
pub(crate) struct LogsArgs {
    /// Run id (default: the last run).
    pub(crate) run: Option<String>,
    /// Show only events of this node.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct TraceArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), a pin, a run, the beginning of an artifact's id, a file
    /// that was read or written, or its digest.
    pub(crate) what: String,
    /// Trace the row with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) row: Option<String>,
    /// Trace to the sources (default, except for source files).
    #[arg(long, conflicts_with = "down")]
    pub(crate) up: bool,
    /// Trace to all derived results.
    #[arg(long)]
    pub(crate) down: bool,
    /// Use the node as recorded by this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Use the newest run of this pipeline.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub(crate) file: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TraceFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// Text.
    Text,
    /// A Mermaid flowchart.
    Mermaid,
    /// Graphviz.
    Dot,
}

#[derive(Arguments)]
pub(crate) struct AuditArgs {
    /// A run (`latest`, `previous`, or the beginning of its id), `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), a
    /// pin, or the beginning of an artifact's id.
    pub(crate) what: String,
    /// Use the node as recorded by this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Use the newest run of this pipeline.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub(crate) file: Option<PathBuf>,
    /// Recompute the outputs of deterministic nodes from their recorded inputs, and compare.
    #[arg(long)]
    pub(crate) replay: bool,
    /// Recompute the parts of rollouts that do not come from the model: prompts, questions, every tool response.
    #[arg(long)]
    pub(crate) rollouts: bool,
    /// With --replay and --rollouts: check only this many rows per node, drawn at random, where rows are independent.
    #[arg(long, value_name = "ROWS")]
    pub(crate) sample: Option<u64>,
    /// Seed from the report of an earlier audit, to draw the same rows.
    #[arg(long, value_name = "SEED", requires = "sample")]
    pub(crate) seed: Option<u64>,
    /// With --replay: also run the programs of recorded nodes. Only for trusted stores.
    #[arg(long)]
    pub(crate) allow_programs: bool,
    /// Report changed or missing sources as differences instead of notes, and fail if something could not be checked.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also write the report to a file: HTML if its name ends with .html, otherwise Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also verify an attestation (`attest`): its signature, and that the files it names match.
    #[arg(long, value_name = "FILE", requires = "public_key")]
    pub(crate) signature: Option<PathBuf>,
    /// Public key of the signer.
    #[arg(long, value_name = "FILE", requires = "signature")]
    pub(crate) public_key: Option<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct DiffArgs {
    /// First run: the beginning of its id, `latest`, or `previous` (the one before the second run, of the same
    /// pipeline). Default: `previous`; with `--with`, the second run.
    pub(crate) one: Option<String>,
    /// Second run. Default: `latest`; with `--with`, the first run.
    pub(crate) other: Option<String>,
    /// Compare only this node and what it reads.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
    /// Compare `--node` of the first run with this node of the second run, or of the same one.
    #[arg(long, value_name = "NODE", requires = "node")]
    pub(crate) with: Option<String>,
    /// Write a page that compares the rollouts, question by question. The file is replaced as a whole.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<std::path::PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct GcArgs {
    /// Remove the results. Without this option, they are only listed.
    #[arg(long, alias = "delete")]
    pub(crate) yes: bool,
    /// List the results without removing them (default).
    #[arg(short = 'n', long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Keep the results of this many newest runs per pipeline; the last run and the last successful run are always
    /// kept.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) keep_runs: usize,
    /// Keep results created or used within this time: `30d`, `12h`, `0s` (default: one day).
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) older_than: Option<Duration>,
    /// Also remove cached rows of external nodes that no kept result used. These rows were paid for.
    #[arg(long, requires = "older_than")]
    pub(crate) memo: bool,
    /// Also remove the records of runs that are not kept.
    #[arg(long)]
    pub(crate) forget_runs: bool,
    /// Also release models, states and other folders of all rounds of loops but the last ones, whatever their age: their
    /// results stay known, and whoever needs the files makes them again. Only what this machine can compute again.
    #[arg(long)]
    pub(crate) release: bool,
}

#[derive(Arguments)]
pub(crate) struct PinArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), or the beginning of an artifact's id (without it, the pins
    /// are listed).
    pub(crate) what: Option<String>,
    /// Name of the pin (default: the artifact as given).
    #[arg(long, value_name = "NAME", requires = "what")]
    pub(crate) name: Option<String>,
    /// Use the node as recorded by this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN", requires = "what")]
    pub(crate) run: Option<String>,
    /// Also protect all artifacts in its lineage.
    #[arg(long, requires = "what")]
    pub(crate) lineage: bool,
    /// List the pins.
    #[arg(long, conflicts_with_all = ["what", "name", "run", "lineage"])]
    pub(crate) list: bool,
}

#[derive(Arguments)]
pub(crate) struct UnpinArgs {
    /// Name of the pin.
    pub(crate) name: String,
}

#[derive(Arguments)]
#[command(allow_missing_positional = true)]
pub(crate) struct ExportArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), or the beginning of an artifact's id.
    #[arg(required_unless_present = "memo")]
    pub(crate) what: Option<String>,
    /// File to write, usually `NAME.tar.zst`.
    #[arg(required = true)]
    pub(crate) file: PathBuf,
    /// Use the node as recorded by this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// For upstream artifacts, export only the records, not the content.
    #[arg(long, requires = "what")]
    pub(crate) shallow: bool,
    /// Also export the paid rows of external nodes in its lineage, and the answers of the models they called
    /// (including calls of other pipelines). Without an artifact: those of all external nodes.
    #[arg(long)]
    pub(crate) memo: bool,
}

#[derive(Arguments)]
pub(crate) struct ImportArgs {
    /// Archive written by `export`.
    pub(crate) file: PathBuf,
}

#[derive(Arguments)]
#[command(group = clap::ArgGroup::new("task").required(true).args(["what", "new_key", "verify"]))]
pub(crate) struct AttestArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), or the beginning of an artifact's id.
    pub(crate) what: Option<String>,
    /// Use the node as recorded by this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN", requires = "what")]
    pub(crate) run: Option<String>,
    /// Sign with this key (Ed25519, PKCS #8 PEM). Without a key, the statement is unsigned.
    #[arg(long, value_name = "KEYFILE", requires = "what")]
    pub(crate) key: Option<PathBuf>,
    /// File to write (default: stdout).
    #[arg(short, long, value_name = "FILE", requires = "what")]
    pub(crate) output: Option<PathBuf>,
    /// Create a key: FILE, readable only by you, and FILE.pub next to it.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    /// Verify an attestation, and compare its subjects with this store.
    #[arg(long, value_name = "FILE", requires = "public_key")]
    pub(crate) verify: Option<PathBuf>,
    /// Public key for the verification.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) public_key: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum WorkerArgs {
    /// Run the node described by a file; reads commands from stdin and writes events to stdout.
    Exec {
        /// Task file.
        #[arg(long, value_name = "FILE")]
        task: PathBuf,
    },
}

/// Parses an age: `30d`, `12h`, `15m`, `40s`, `2w`.
fn age(text: &str) -> Result<Duration, String> {
    let units = [("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0), ("w", 604_800.0)];
    // The last byte may be a part of a letter: then there is no unit.
    if let Some((number, unit)) = text.split_at_checked(text.len().saturating_sub(1))
        && let Some((_, seconds)) = units.iter().find(|(name, _)| *name == unit)
        && let Ok(number) = number.parse::<f64>()
        && let Ok(age) = Duration::try_from_secs_f64(number * seconds)
    {
        return Ok(age);
    }
    Err(format!("invalid age `{text}`: expected a number and s, m, h, d or w, for example 30d"))
}

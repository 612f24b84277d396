//! The command line, as clap types: their comments are the help texts.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, Parser, Subcommand, ValueEnum};

/// Declare search-agent experiments in one YAML file; run them as a cached, resumable, auditable Arrow DAG.
#[derive(Parser)]
#[command(name = "searchmill", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Work in this folder: relative paths and the default store start here.
    #[arg(short = 'C', long, global = true, value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// Where artifacts and results are kept: a folder, or what several machines share (`s3://BUCKET/PREFIX`, `gs://`,
    /// `az://`, `file://`; credentials come from the environment).
    #[arg(long, global = true, value_name = "FOLDER|URL", default_value = ".searchmill", env = "SEARCHMILL_STORE")]
    pub(crate) store: PathBuf,
    /// The local copy of a shared store; without it, a folder below the user's cache folder, one for each store.
    #[arg(long, global = true, value_name = "FOLDER", env = "SEARCHMILL_STORE_CACHE")]
    pub(crate) store_cache: Option<PathBuf>,
    /// One JSON object a line on stdout instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Only errors and the result.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// More detail; twice for debugging.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// When to use colours (NO_COLOR is respected).
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) color: ColorWhen,
}

const EXIT_CODES: &str = "Exit codes: 0 ok · 1 a node failed · 2 usage or validation · 3 finished with dead letters or held back outputs · \
4 the budget is used up · 5 store or lock I/O · 6 `audit` could not look at everything · 10 `plan --detailed-exitcode` has work · 130 interrupted";

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
    /// Run a pipeline: whatever is known is reused.
    Run(RunArgs),
    /// Show what a run would do, and why, without doing it.
    Plan(PlanArgs),
    /// Check pipelines offline: all errors in one go, with their places.
    Validate(ValidateArgs),
    /// Say why a node would run.
    Why(WhyArgs),
    /// Show which nodes of a pipeline are up to date.
    Status(PipelineArgs),
    /// List the runs in the store.
    Runs(RunsArgs),
    /// Start pipelines at the times that their `schedule:` says: a daemon, and what steers it.
    ///
    /// Without a subcommand, the daemon.
    ///
    /// It starts every pipeline at its times, each run as a process of its own (`searchmill run FILE --json`), and keeps
    /// what it knows in the store: killed and started again, it knows what ran, what still runs and what was missed.
    ///
    /// First SIGTERM or Ctrl-C: start nothing more and wait for the runs. Second: tell the runs to stop. Third: leave, and
    /// the runs to themselves; the next daemon finds them. A changed `schedule:` is taken up without a restart.
    Schedule(ScheduleArgs),
    /// Serve what a pipeline has made.
    Serve(ServeArgs),
    /// Show an artifact or a node's output: a table, JSON lines, a conversation.
    Show(ShowArgs),
    /// List operators, or print the reference page of one.
    Ops(OpsArgs),
    /// List the kinds of rows that flow between nodes, or the columns of one.
    Kinds(KindsArgs),
    /// Print the JSON Schema of pipelines, for editors.
    Schema,
    /// Draw the graph of a pipeline.
    Graph(GraphArgs),
    /// Show what a run told.
    Logs(LogsArgs),
    /// Walk an artifact or a row to its sources, or a source to all that was made of it.
    Trace(TraceArgs),
    /// Check that an artifact, a node or a run is what its records say, back to its sources.
    Audit(AuditArgs),
    /// Show what differs between two runs: params, code, inputs, row counts, metrics.
    Diff(DiffArgs),
    /// Show what no kept run, no pin and no age protects; with --yes, remove it.
    Gc(GcArgs),
    /// Keep an artifact whatever happens, under a name; or list what is kept.
    Pin(PinArgs),
    /// Take a pin away.
    Unpin(UnpinArgs),
    /// Write an artifact with all that made it to one file, or the rows that were paid for.
    Export(ExportArgs),
    /// Take what `export` wrote into this store.
    Import(ImportArgs),
    /// Say what an artifact is and what made it (in-toto, SLSA), signed; or check that.
    Attest(AttestArgs),
    /// Say what this machine has for searchmill: processor, memory, store, GPUs, the worker for them.
    Doctor,
    /// Run one node for a run that is going on.
    #[command(subcommand, hide = true)]
    Worker(WorkerArgs),
}

/// A pipeline and what changes it.
#[derive(Arguments, Clone)]
pub(crate) struct PipelineArgs {
    /// The pipeline.
    pub(crate) file: PathBuf,
    /// Set a param: `--set teacher.model=qwen3`, `--set 'encoder={bert: {model: ./e5}}'`. May be repeated; wins over --params.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a YAML or JSON file, whose maps merge with those declared. May be repeated; later files win.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
}

/// Which nodes of a pipeline are meant.
#[derive(Arguments, Clone, Default)]
pub(crate) struct ChosenArgs {
    /// Only these nodes and what they need.
    #[arg(value_name = "TARGET")]
    pub(crate) targets: Vec<String>,
    /// The same as naming it as a target.
    #[arg(long, value_name = "NODE")]
    pub(crate) to: Vec<String>,
    /// Only these nodes and what depends on them.
    #[arg(long, value_name = "NODE")]
    pub(crate) from: Vec<String>,
    /// Exactly these nodes.
    #[arg(long, value_name = "NODE")]
    pub(crate) only: Vec<String>,
}

#[derive(Arguments)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(crate) chosen: ChosenArgs,
    /// Show what would be done, and stop.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Nodes at once.
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: Option<u32>,
    /// After a failure, run what does not depend on it.
    #[arg(short, long)]
    pub(crate) keep_going: bool,
    /// Run nodes even if their result is known: all with `-f`, one with `--force=NODE`.
    #[arg(short, long, value_name = "NODE", num_args = 0..=1, require_equals = true, default_missing_value = "*")]
    pub(crate) force: Vec<String>,
    /// Read remote sources again, whose content may have changed under the same address. Where they give the same rows
    /// as before, nothing that follows runs.
    #[arg(long)]
    pub(crate) refresh_sources: bool,
    /// Use no results and no rows of earlier runs (what is computed is still kept).
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Take at most so many rows from every source: a trial run with its own cache entries.
    #[arg(long, value_name = "ROWS")]
    pub(crate) limit: Option<u64>,
    /// Spend no more than that on calls to endpoints: `calls=500`, `tokens=1.5M`, `cost=2.50` (at the `prices` of the
    /// pipeline). Used up, no new call is made, what is in flight is finished, the exit code is 4, and the next run goes
    /// on. Replaces the same limit of the pipeline's `budget:`.
    #[arg(long, value_name = "LIMIT=AMOUNT", value_delimiter = ',')]
    pub(crate) budget: Vec<String>,
    /// Run only nodes with rows that failed, those passed over by `on_error: drop` too, and what depends on them.
    #[arg(long, conflicts_with_all = ["targets", "to", "from", "only", "force", "no_cache"])]
    pub(crate) retry_rejects: bool,
    /// Pay again for cached answers that are damaged on disk, even if they are more than 5 % of all
    #[arg(long)]
    pub(crate) rebuy: bool,
    /// Write outputs also where too many rows were lost before them (`max_reject_share` of `write`) or none is left.
    #[arg(long)]
    pub(crate) deliver_anyway: bool,
    /// Send OpenLineage events there: a file, to which they are added, or the address of a receiver. See also
    /// OPENLINEAGE_API_KEY, OPENLINEAGE_NAMESPACE.
    #[arg(long, value_name = "FILE|URL", env = "OPENLINEAGE_URL")]
    pub(crate) openlineage: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    #[command(flatten)]
    pub(crate) chosen: ChosenArgs,
    /// Exit with 10 when there is work to do.
    #[arg(long)]
    pub(crate) detailed_exitcode: bool,
    /// As it would be given to `run`.
    #[arg(long, value_name = "ROWS")]
    pub(crate) limit: Option<u64>,
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
pub(crate) struct WhyArgs {
    /// The node.
    pub(crate) node: String,
    /// The pipeline; without it, that of the last run with what the run was given by --params, --set and --limit.
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Compare with this run instead of the last one.
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
    /// How many, newest last.
    #[arg(short = 'n', long, default_value_t = 20)]
    pub(crate) count: usize,
}

#[derive(Arguments)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<ScheduleVerb>,
    /// Pipelines with `schedule:`, or folders: of these, every pipeline that has one.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Set a param in all of them, as for `run`.
    #[arg(long, value_name = "PARAM=VALUE")]
    pub(crate) set: Vec<String>,
    /// Read params from a file, as for `run`.
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Vec<PathBuf>,
    /// Where `/healthz` (200 or 503) and `/status` (JSON) are served; port 0 takes a free one. Loopback only.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: std::net::SocketAddr,
}

#[derive(Subcommand)]
pub(crate) enum ScheduleVerb {
    /// List the schedules in the store: what runs, what comes next, how the last run ended.
    List,
    /// Show the next ticks.
    Next(ScheduleNextArgs),
    /// Start nothing by itself until `resume`. Works with and without a daemon; survives both.
    Pause(ScheduleNamesArgs),
    /// End a pause. Ticks that fell into it are not made up for.
    Resume(ScheduleNamesArgs),
    /// Ask the daemon for a run now, paused or not. It waits for its turn like any other.
    Trigger(ScheduleNamesArgs),
}

#[derive(Arguments)]
pub(crate) struct ScheduleNextArgs {
    /// Names of schedules, or pipelines; without any, all schedules in the store.
    #[arg(value_name = "NAME|FILE")]
    pub(crate) names: Vec<String>,
    /// How many ticks of each.
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
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) what: ServeWhat,
}

#[derive(Subcommand)]
pub(crate) enum ServeWhat {
    /// A model behind an OpenAI-compatible API: `/v1/chat/completions`, `/v1/completions` (streaming too), `/v1/models`.
    ///
    /// On a loopback address only requests addressed to this machine are answered; on any other one a token is required.
    /// TLS is a proxy's task.
    Model(ServeModelArgs),
}

#[derive(Arguments)]
pub(crate) struct ServeModelArgs {
    /// A Hugging Face folder, a `.gguf` file, or a node (`NODE`, `NODE.PORT`), pin or artifact in the store.
    pub(crate) model: String,
    /// A PEFT LoRA adapter for it, named in the same ways.
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: Option<String>,
    /// Where it is served; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub(crate) listen: std::net::SocketAddr,
    /// Token that requests must carry (`Authorization: Bearer TOKEN`), as API keys do; better given by the environment.
    #[arg(long, env = "SEARCHMILL_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// The model's name in the API; by default as it was named here.
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Conversations that are worked on at once.
    #[arg(long, default_value_t = 16)]
    pub(crate) rows: usize,
    /// Longest conversation in tokens; by default what the model has positions for.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Longest answer in tokens, where a request does not say.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) max_tokens: usize,
    /// Threads that compute; by default as many as there are processors.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Memory for weights, keys and values, in MiB: a model that needs more is refused. On a GPU: what is free there.
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Compute on the first GPU that CUDA_VISIBLE_DEVICES shows: `searchmill-worker-cuda serve model … --gpu`.
    #[arg(long)]
    pub(crate) gpu: bool,
    /// The numbers that are computed with; bf16 is what a GPU is best at.
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: DtypeArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeArg {
    F32,
    Bf16,
}

#[derive(Arguments)]
pub(crate) struct ShowArgs {
    /// `NODE`, `NODE.PORT`, a pin, or the beginning of an artifact's id.
    pub(crate) what: String,
    /// Of this run instead of the last one.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// How many rows; 0 shows all.
    #[arg(short = 'n', long, default_value_t = 10)]
    pub(crate) rows: usize,
    /// How to show rows; trajectories are shown as conversations unless asked otherwise.
    #[arg(long, value_enum)]
    pub(crate) format: Option<ShowFormat>,
    /// Only the row with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) row: Option<String>,
    /// The rows that failed.
    #[arg(long)]
    pub(crate) rejects: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShowFormat {
    /// Columns side by side.
    Table,
    /// One JSON object a line, whole values.
    Jsonl,
    /// A trajectory as a conversation.
    Conversation,
}

#[derive(Arguments)]
pub(crate) struct OpsArgs {
    /// The operator.
    pub(crate) name: Option<String>,
    /// Markdown instead of plain text.
    #[arg(long)]
    pub(crate) markdown: bool,
}

#[derive(Arguments)]
pub(crate) struct KindsArgs {
    /// The kind: `document`, `question`, `trajectory` …
    pub(crate) name: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct GraphArgs {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// What to print.
    #[arg(long, value_enum, default_value = "mermaid")]
    pub(crate) format: GraphFormat,
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
    /// The run; without it, the last one.
    pub(crate) run: Option<String>,
    /// Only of this node.
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

#[derive(Arguments)]
pub(crate) struct TraceArgs {
    /// `NODE`, `NODE.PORT`, a run, the beginning of an artifact's id, a file that was read or written, or its digest.
    pub(crate) what: String,
    /// Walk the row of this id.
    #[arg(long, value_name = "ID")]
    pub(crate) row: Option<String>,
    /// To all that it was made from (the default, except for files that were read).
    #[arg(long, conflicts_with = "down")]
    pub(crate) up: bool,
    /// To all that was made of it.
    #[arg(long)]
    pub(crate) down: bool,
    /// The node as this run knew it, instead of the newest run that has it.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// What to print.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TraceFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// For reading.
    Text,
    /// A Mermaid flowchart.
    Mermaid,
    /// Graphviz.
    Dot,
}

#[derive(Arguments)]
pub(crate) struct AuditArgs {
    /// A run (`latest`, `previous`, or the beginning of its id), `NODE`, `NODE.PORT`, or the beginning of an artifact's id.
    pub(crate) what: String,
    /// The node as this run knew it, instead of the newest run that has it.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Compute the outputs of deterministic nodes again, from their recorded inputs, and compare.
    #[arg(long)]
    pub(crate) replay: bool,
    /// Derive again what rollouts recorded beside the model's words: prompts, questions, every tool response.
    #[arg(long)]
    pub(crate) rollouts: bool,
    /// With --replay and --rollouts: only so many rows of a node, drawn at random, where rows stand alone.
    #[arg(long, value_name = "ROWS")]
    pub(crate) sample: Option<u64>,
    /// Draws the same rows as an earlier audit: the seed that its report names.
    #[arg(long, value_name = "SEED", requires = "sample")]
    pub(crate) seed: Option<u64>,
    /// With --replay: also run the programs that recorded nodes name. Only for stores that you trust.
    #[arg(long)]
    pub(crate) allow_programs: bool,
    /// A source that changed since it was read, or is gone, is a difference and not a note; and the audit fails where
    /// something could not be looked at.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Write the report to a file too: HTML if it ends with .html, else Markdown.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also check what somebody has signed (`attest`): the signature, and that the files it names are these.
    #[arg(long, value_name = "FILE", requires = "public_key")]
    pub(crate) signature: Option<PathBuf>,
    /// The signer's public key.
    #[arg(long, value_name = "FILE", requires = "signature")]
    pub(crate) public_key: Option<PathBuf>,
}

#[derive(Arguments)]
pub(crate) struct DiffArgs {
    /// The first run: the beginning of its id, `latest`, or `previous` (of the same pipeline, before the second one).
    #[arg(default_value = "previous")]
    pub(crate) one: String,
    /// The second run.
    #[arg(default_value = "latest")]
    pub(crate) other: String,
}

#[derive(Arguments)]
pub(crate) struct GcArgs {
    /// Remove it. Without this, it is only shown.
    #[arg(long, alias = "delete")]
    pub(crate) yes: bool,
    /// Only show it (as without --yes).
    #[arg(short = 'n', long, conflicts_with = "yes")]
    pub(crate) dry_run: bool,
    /// Keep the results of so many newest runs of each pipeline; the last run and the last that went well always count.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) keep_runs: usize,
    /// Keep what was made or used since: `30d`, `12h`, `0s`. One day, unless it is given.
    #[arg(long, value_name = "AGE", value_parser = age)]
    pub(crate) older_than: Option<Duration>,
    /// Also remove remembered rows of external nodes that no kept result used. They were paid for.
    #[arg(long, requires = "older_than")]
    pub(crate) memo: bool,
    /// Also forget the records of runs that are not kept.
    #[arg(long)]
    pub(crate) forget_runs: bool,
}

#[derive(Arguments)]
pub(crate) struct PinArgs {
    /// `NODE`, `NODE.PORT`, or the beginning of an artifact's id.
    #[arg(required_unless_present = "list")]
    pub(crate) what: Option<String>,
    /// The pin's name; without it, what was written for the artifact.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The node as this run knew it, instead of the newest run that has it.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Also keep all artifacts that it was made from.
    #[arg(long)]
    pub(crate) lineage: bool,
    /// List the pins.
    #[arg(long, conflicts_with_all = ["what", "name", "run", "lineage"])]
    pub(crate) list: bool,
}

#[derive(Arguments)]
pub(crate) struct UnpinArgs {
    /// The pin's name.
    pub(crate) name: String,
}

#[derive(Arguments)]
#[command(allow_missing_positional = true)]
pub(crate) struct ExportArgs {
    /// `NODE`, `NODE.PORT`, or the beginning of an artifact's id.
    #[arg(required_unless_present = "memo")]
    pub(crate) what: Option<String>,
    /// The file to write, usually `NAME.tar.zst`.
    #[arg(required = true)]
    pub(crate) file: PathBuf,
    /// The node as this run knew it, instead of the newest run that has it.
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Of the artifacts before this one, only what is known of them.
    #[arg(long, requires = "what")]
    pub(crate) shallow: bool,
    /// Also the rows that external nodes of its lineage paid for, and the answers of the models that they asked (also to
    /// calls of other pipelines); without an artifact, those of all external nodes.
    #[arg(long)]
    pub(crate) memo: bool,
}

#[derive(Arguments)]
pub(crate) struct ImportArgs {
    /// What `export` wrote.
    pub(crate) file: PathBuf,
}

#[derive(Arguments)]
#[command(group = clap::ArgGroup::new("task").required(true).args(["what", "new_key", "verify"]))]
pub(crate) struct AttestArgs {
    /// `NODE`, `NODE.PORT`, or the beginning of an artifact's id.
    pub(crate) what: Option<String>,
    /// The node as this run knew it, instead of the newest run that has it.
    #[arg(long, value_name = "RUN", requires = "what")]
    pub(crate) run: Option<String>,
    /// Sign with this key (Ed25519, PKCS #8 PEM). Without it, the statement is not signed.
    #[arg(long, value_name = "KEYFILE", requires = "what")]
    pub(crate) key: Option<PathBuf>,
    /// Where to write it; without it, stdout.
    #[arg(short, long, value_name = "FILE", requires = "what")]
    pub(crate) output: Option<PathBuf>,
    /// Make a key: FILE, which only you can read, and FILE.pub beside it.
    #[arg(long, value_name = "FILE")]
    pub(crate) new_key: Option<PathBuf>,
    /// Check an attestation, and compare what it is about with this store.
    #[arg(long, value_name = "FILE", requires = "public_key")]
    pub(crate) verify: Option<PathBuf>,
    /// The key to check it with.
    #[arg(long, value_name = "FILE", requires = "verify")]
    pub(crate) public_key: Option<PathBuf>,
}

#[derive(Subcommand)]
pub(crate) enum WorkerArgs {
    /// Run the node that a file describes; orders come on stdin, what happens is told on stdout.
    Exec {
        /// The task.
        #[arg(long, value_name = "FILE")]
        task: PathBuf,
    },
}

/// `30d`, `12h`, `15m`, `40s`, `2w`.
fn age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no age: write a number and s, m, h, d or w, for example 30d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

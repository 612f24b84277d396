//! Arguments of `show`, `search`, `ui`, `init` and `completions`.

use std::path::PathBuf;

use clap::{Args as Arguments, ValueEnum};

use super::serve::FusionArgs;

#[derive(Arguments)]
pub(crate) struct SearchArgs {
    /// Folder of an index, or a node (`NODE`, `NODE.PORT`), pin or artifact in the store.
    pub(crate) index: String,
    /// What to search for.
    pub(crate) query: Option<String>,
    /// Number of passages.
    #[arg(short = 'n', long, value_name = "PASSAGES", default_value_t = searchmill_retrieval::default_top_k())]
    pub(crate) top_k: usize,
    /// Search this index, too, and fuse the rankings. Repeatable.
    #[arg(long, value_name = "INDEX")]
    pub(crate) with: Vec<String>,
    #[command(flatten)]
    pub(crate) fusion: FusionArgs,
    /// Show passages whole.
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Arguments)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Arguments)]
pub(crate) struct UiArgs {
    /// Address to listen on; port 0 picks a free port. Other addresses than those of this machine need `--token-file`.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8111")]
    pub(crate) listen: std::net::SocketAddr,
    /// File with the token that the page asks for.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Open the page in the browser. A terminal on a desktop does so by itself.
    #[arg(long)]
    pub(crate) open: bool,
    /// Do not open the page in the browser.
    #[arg(long, conflicts_with = "open")]
    pub(crate) no_open: bool,
    /// Do not serve: write the page with chosen runs into this new folder, for people without the store. A browser
    /// opens its `index.html`.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["listen", "token_file", "open", "no_open"])]
    pub(crate) bundle: Option<PathBuf>,
    /// A run of the bundle; repeatable (default: the newest run of each pipeline that is over).
    #[arg(long, value_name = "RUN", requires = "bundle")]
    pub(crate) run: Vec<String>,
    /// Rows of each table of the bundle, at most.
    #[arg(long, value_name = "ROWS", requires = "bundle", default_value_t = 1000)]
    pub(crate) rows: usize,
}

#[derive(Arguments, Default)]
pub(crate) struct ShowArgs {
    /// `NODE`, `NODE.PORT`, what a loop hands on (`LOOP.NAME`), a pin, or the beginning of an artifact's id.
    pub(crate) what: String,
    /// Show the output of this run (default: the newest run of its pipeline).
    #[arg(long, value_name = "RUN")]
    pub(crate) run: Option<String>,
    /// Show the output of the newest run of this pipeline.
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    pub(crate) file: Option<PathBuf>,
    /// Number of rows (0 = all; default: 10, with --output: all).
    #[arg(short = 'n', long, value_name = "ROWS")]
    pub(crate) rows: Option<usize>,
    /// Output format of rows (default for trajectories: conversation; with --output: by file name).
    #[arg(long, value_enum)]
    pub(crate) format: Option<ShowFormat>,
    /// Show only rows for which this SQL predicate is true, as in `filter`: `f1 < 0.5 AND turns > 2`. Of rollouts, it may
    /// name columns of their scores.
    #[arg(long = "where", value_name = "SQL")]
    pub(crate) condition: Option<String>,
    /// Sort by a column or SQL expression; with `-` before it, the largest first. Repeatable.
    #[arg(long, value_name = "COLUMN", allow_hyphen_values = true)]
    pub(crate) sort: Vec<String>,
    /// Show only these columns, in this order, separated by commas; `--columns` alone lists them.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', num_args = 0..)]
    pub(crate) columns: Option<Vec<String>>,
    /// Take the scores of this node, if several scored the rows.
    #[arg(long, value_name = "NODE")]
    pub(crate) scores: Option<String>,
    /// Cut neither cells and lines of tables nor tool responses of conversations.
    #[arg(long)]
    pub(crate) full: bool,
    /// Leave out the system messages of trajectories.
    #[arg(long)]
    pub(crate) no_system: bool,
    /// Write the rows to this file, as `write` does, and print nothing. The file is replaced as a whole.
    #[arg(short, long, value_name = "FILE", conflicts_with = "full")]
    pub(crate) output: Option<PathBuf>,
    /// Show only the row with this id.
    #[arg(long, value_name = "ID")]
    pub(crate) row: Option<String>,
    /// Show the rejected rows.
    #[arg(long)]
    pub(crate) rejects: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ShowFormat {
    /// Columns side by side.
    Table,
    /// One JSON object per line, with full values. Only rows are printed on stdout.
    Jsonl,
    /// A trajectory as a conversation.
    Conversation,
    /// A JSON array of objects (with --output).
    Json,
    /// Comma-separated values with a header line (with --output).
    Csv,
    /// Tab-separated values with a header line (with --output).
    Tsv,
    /// Apache Parquet (with --output).
    Parquet,
}

#[derive(Arguments)]
pub(crate) struct InitArgs {
    /// Documents to search: a folder of texts, or a JSONL, JSON, CSV, TSV or Parquet file, or a file on the Hub
    /// (`hf://datasets/ORG/NAME/FILE`).
    pub(crate) documents: Option<String>,
    /// The same as an option, beside `--questions`.
    #[arg(long = "documents", value_name = "DOCUMENTS", hide = true, conflicts_with = "documents")]
    pub(crate) documents_option: Option<String>,
    /// Questions: a JSONL, JSON, CSV, TSV or Parquet file, or a file on the Hub.
    #[arg(long, value_name = "FILE")]
    pub(crate) questions: Option<String>,
    /// What the pipeline is for.
    #[arg(long, value_enum)]
    pub(crate) goal: Option<Goal>,
    /// Model that answers, as its server names it; `evidence`: a teacher without a model, for questions with evidence.
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Address of the model's server.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000/v1")]
    pub(crate) base_url: String,
    /// Field of the documents' texts, if its name does not tell.
    #[arg(long, value_name = "FIELD")]
    pub(crate) text: Option<String>,
    /// Field of the questions, if its name does not tell.
    #[arg(long, value_name = "FIELD")]
    pub(crate) question: Option<String>,
    /// Field of the accepted answers, if its name does not tell.
    #[arg(long, value_name = "FIELD")]
    pub(crate) answer: Option<String>,
    /// File to write; it must not exist.
    #[arg(short, long, value_name = "FILE", default_value = "pipeline.yaml")]
    pub(crate) output: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Goal {
    /// Scores of a model's answers, with a report.
    Evaluate,
    /// The right answers as a training file (messages, for ms-swift).
    TrainingFile,
    /// Questions as rows for reinforcement learning (Parquet, for verl).
    Rl,
}

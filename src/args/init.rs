//! Arguments of `init`.

use std::path::PathBuf;

use clap::{Args as Arguments, ValueEnum};

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

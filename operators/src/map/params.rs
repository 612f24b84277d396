//! Parameters of `map`.

use schemars::JsonSchema;
use searchmill_agent::policy::PolicyParams;
use searchmill_agent::prompt::Prompt;
use searchmill_data::row_kind::RowKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::shared::until::Until;

/// The port of the rows.
pub(super) const ROWS: &str = "rows";

/// Parameters of `map`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct MapParams {
    /// What the model is asked about a row: a template (the user's message), `{system: …, user: …}`, or `{messages: [{role:
    /// …, content: …}]}`. In a template, `{{ name }}` is a column, `{% for %}` and `{% if %}` work as in Jinja; a column
    /// that is null is `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) prompt: Option<Prompt>,
    /// The model: `{endpoint: {base_url: …, model: …}}`, or `{model: {…}}` for a model of another node in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<PolicyParams>,
    /// A Python function instead of a prompt, as `file.py:name`, or the name alone of one that an installed package brings
    /// (an entry point of the group `searchmill.operators`). It gets the columns of a row as keyword arguments (those
    /// that it takes, or all if it takes `**row`), and returns a dict, a list of dicts, or None for no row. Columns that
    /// it leaves out stay as they are. A class is created once, its method `setup` is called, and its object is called
    /// with each row. The file, every module of the project that it imports, a lock file and the Python version are part
    /// of the key, or all files of the package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) python: Option<String>,
    /// Calls the function with a `pyarrow.RecordBatch` of at most this many rows. It returns a batch, a table or a dict
    /// of lists, and must treat rows independently: the number of rows in a batch varies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
    /// Keyword arguments of the function besides the columns, or of the class.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) arguments: Map<String, Value>,
    /// Remembers each row as soon as its call ends, for functions that pay or take long. `retry` then repeats calls that
    /// raise an exception, and rows that failed are called again by the next run. Without it, a run that
    /// was killed begins the node anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) remember: Option<Remember>,
    /// Program and arguments that start Python 3.9 or later (default: `[python3]`; `uv` for a file with a `# /// script`
    /// block).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interpreter: Option<Vec<String>>,
    /// More files and folders that decide what the function returns: data that it reads, modules that it loads by name. A
    /// file of yours that the function reads and that is not part of the key fails the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) files: Vec<String>,
    /// Files and folders that the function writes, or that it reads without an effect on what it returns (logs, caches,
    /// credentials). Their content is not part of the cache key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) writes: Vec<String>,
    /// Environment variables passed to the function besides `PATH` and `HOME`. Their values are not part of the cache
    /// key: use them for credentials, never for anything that changes the output.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) environment: Vec<String>,
    /// Timeout of one call in seconds (0 = none). A call that takes longer is a reject.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub(crate) timeout_seconds: u64,
    /// Columns of the answer. A word: the whole answer, as text in that column (default: `response`). A map or a list of
    /// maps, `{score: int, reason: text}`: the answer is a JSON object with these fields; a list keeps their order. Types:
    /// `text`, `int`, `float`, `bool`, `json` (any JSON, kept as text), `[type]`, `{field: type}`, `{enum: [yes, no]}`; a `?`
    /// behind a word allows null. Or a JSON Schema of an object. Unless the prompt contains `{{ output_schema }}`, the fields
    /// are described at the end of its last message. For a function: its new columns; those of the input and of the kind
    /// need no types, nor do those of a function that is marked with `searchmill.map`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Value>,
    /// Makes one row of each element of this list column of the answer, with the fields of the element as columns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) explode: Option<String>,
    /// Record kind of the output (default: that of the input). Columns of the kind that are neither in the answer nor in the
    /// input become null or an empty list, if the kind allows it; the `id` is derived from that of the input row.
    #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<RowKind>,
    /// Number of answers per row. With more than one, each is a row, and the column `sample` counts them from 0.
    #[serde(default = "one")]
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub(crate) samples: u32,
    /// Draws answers until enough rows match: `{rows: 1000, where: "score >= 4", per_question: 1, at_most: 5000}`. `samples`
    /// then is the maximum per row of the input. `where` may use all columns of the output. No answer is paid for again if
    /// this changes. A function needs `remember: row`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub(crate) until: Option<Until>,
    /// How often the model is asked again after an answer that does not fit `output`.
    #[serde(default = "two")]
    pub(crate) repairs: u32,
    /// Sends the JSON Schema of `output` to the endpoint (`response_format`), for servers that can constrain answers to it
    /// (vLLM, SGLang, llama.cpp, OpenAI).
    #[serde(default)]
    pub(crate) constrained: bool,
}

/// What is remembered of a function's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Remember {
    /// Each row, as soon as its call ends: for calls that are paid or slow.
    Row,
}

fn one() -> u32 {
    1
}

fn two() -> u32 {
    2
}

impl MapParams {
    /// Returns `output`, or the column of an answer without it.
    pub(super) fn answer(&self) -> Value {
        self.output.clone().unwrap_or_else(|| Value::from("response"))
    }
}

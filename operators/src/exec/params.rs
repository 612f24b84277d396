//! The params of `exec`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use searchmill_data::program::Program;
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Parameters of `exec`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct Params {
    /// Program and arguments, for example `[python3, filter.py]`; no shell is involved. Files and folders named in
    /// the arguments (also after a `=`, inside the script of `sh -c`, and after `-m`) are sources: the node runs
    /// again if their content or their paths change. Your own scripts and programs are identified by content, system
    /// programs by their `--version` output.
    pub command: Vec<String>,
    /// Version of the program, instead of its `--version` output. Part of the cache key; otherwise unused.
    #[serde(default)]
    pub version: Option<String>,
    /// More files whose content determines the output (imported modules, word lists). A folder stands for all files
    /// below it. A file of yours that the program reads and that is not part of the key fails the node.
    #[serde(default)]
    pub files: Vec<String>,
    /// Files and folders that the program writes besides its output, or that it reads without an effect on its output
    /// (logs, caches, credentials). Arguments that name them are not sources.
    #[serde(default)]
    pub writes: Vec<String>,
    /// Passed to the program as JSON in the environment variable `SEARCHMILL_PARAMS`.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// Record kind of the output, whose columns are checked. `table` allows any columns.
    #[serde(default, rename = "as")]
    pub output: RowKind,
    /// Environment variables passed to the program besides `PATH` and `HOME` (`LANG` is always `C.UTF-8`, unless
    /// named here). Their values are not part of the cache key: use them for credentials and caches, never for
    /// anything that changes the output.
    #[serde(default)]
    pub environment: Vec<String>,
    /// Timeout in seconds (0 = none).
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: u64,
    /// Whether the program may run again after a failure (a non-zero exit code, a signal, a timeout). The node's
    /// `retry` then applies, by default 3 attempts. Rows of failed attempts are dropped; files that the program
    /// writes itself remain.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub repeatable: bool,
    /// Tables that the program writes to files, by name, with their record kinds: `{summary: table}`. In `command`,
    /// `{summary}` is the path to write to: one Arrow IPC file or stream, or one Parquet file. With `outputs` or `folders`,
    /// each input of `from: {name: node}` is a path too, `{name}`: a table is an Arrow IPC file, a folder (model, index)
    /// must only be read. Stdin is empty, and stdout goes to the log.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, RowKind>,
    /// Names of folders that the program fills: `[plots]`. In `command`, `{plots}` is the path of an empty folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<String>,
}

impl Params {
    /// Whether inputs and outputs are files instead of stdin and stdout.
    pub(super) fn exchanges_files(&self) -> bool {
        !self.outputs.is_empty() || !self.folders.is_empty()
    }

    /// Returns `params` as JSON.
    pub(super) fn json(&self) -> String {
        Value::Object(self.params.clone()).to_string()
    }

    /// Returns the program with these words as its command.
    pub(super) fn program<'a>(&'a self, command: &'a [String], context: &Context) -> Program<'a> {
        let given = BTreeMap::from([
            ("SEARCHMILL_PARAMS".to_owned(), self.json()),
            ("SEARCHMILL_SEED".to_owned(), context.seed().to_string()),
        ]);
        Program { command, given, allowed: &self.environment, writes: &self.writes, seconds: self.timeout_seconds }
    }
}

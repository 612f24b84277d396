//! The params of `read`.

use std::collections::BTreeMap;

use arrow::datatypes::DataType;
use schemars::JsonSchema;
use searchmill_data::hub::dataset::HubFile;
use searchmill_data::row_kind::RowKind;
use searchmill_data::source::format::{Compression, Format};
use searchmill_data::source::layout::Layout;
use searchmill_data::source::location::{self, SCHEMES};
use searchmill_data::source::mapping::Origin;
use searchmill_engine::operator::ParamIssue;
use searchmill_engine::spec::closest;
use searchmill_schemas::RecordKind;
use serde::{Deserialize, Serialize};

/// Parameters of `read`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct ReadParams {
    /// A path, a glob pattern, a folder or a URL (`s3://`, `gs://`, `az://`, `http(s)://`,
    /// `hf://datasets/ORG/NAME/path@revision`), or a list of them. Files are read in the listed order; files of a
    /// pattern or folder are sorted by path.
    pub path: Paths,
    /// Record kind of the rows.
    #[serde(rename = "as", default)]
    pub kind: RowKind,
    /// Format of the files (default: by extension).
    #[serde(default)]
    pub format: Format,
    /// Compression of the files (default: by the first bytes).
    #[serde(default)]
    pub compression: Compression,
    /// Layout of a published data set, or `files`: each file is a document. Without it, fields go to the columns of the same name and other fields to
    /// `metadata`. Rows without an id are numbered from 0 (rejected if `columns` maps the id).
    #[serde(default)]
    pub layout: Option<Layout>,
    /// Source of each column whose field has another name: a field, a JSON pointer (`/metadata/type`) or a template
    /// (`"{title}\n{body}"`). Other columns come from the fields of the same name; with `as: table`, only the columns
    /// listed here are read. A record that lacks a field of a template is rejected; write `{title?}` for an optional
    /// field. A template that is JSON (it starts with `[` or `{{`) inserts values as JSON. Beside a `layout`, these are
    /// text columns in addition to those of the kind, for example `{stored: gpt4o_output}` for verdicts. Trajectories need
    /// messages, or a question and a prediction or an answer: columns that no record has are derived from these, with `0`
    /// for tokens and `external` for policy and protocol (`tool_call` if there are calls). Messages may be those of OpenAI's
    /// chat API and its variants. Before the rows, the files are read until all fields that are
    /// named or needed were found: a field that no record has costs a second reading of all files.
    #[serde(default)]
    pub columns: BTreeMap<String, String>,
    /// Prefix for the id of every row, so that one table can hold rows of several sources (`hotpot-` turns `dev_0`
    /// into `hotpot-dev_0`). It also stands before a `question_id` that no record has, which is the row's number.
    /// References to other rows (`document_id`, evidence of questions) are unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Whether quotation marks quote cells of CSV and TSV files (default). A mark that begins a cell and has no partner is
    /// an error. With `false`, marks are text, and every line is a row.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub quotes: bool,
    /// The character between cells of CSV files (`","`): `";"`, `"|"`. For tabs, write `format: tsv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<char>,
    /// Cuts texts with several values into lists, at a separator: `"|"` reads `Rome | Roma` as two answers. Values lose the
    /// space around them, and empty ones are left out. One separator is for all columns that are lists of texts, such as
    /// `golden_answers`; `{COLUMN: SEPARATOR}` names them, also with `as: table` (columns of `columns:`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// Maximum number of rows to read.
    #[serde(default)]
    pub limit: Option<u64>,
    /// For `layout: files`: maximum number of bytes of a file, decompressed, or of a record of a WARC file (default: 64
    /// MiB). Larger ones are rejected. It also bounds what a DOCX, a PDF or a packed page unpacks to (a PDF: to four
    /// times as much).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// For `as: table`: number of rows to infer columns and types from, spread over the files. 0 means all rows,
    /// which reads the files twice. Later rows that do not fit are rejected.
    #[serde(default = "default_infer_rows")]
    pub infer_rows: u64,
}

/// Where texts are cut into lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Split {
    /// One separator for all lists of texts.
    All(String),
    /// A separator for each column.
    Columns(BTreeMap<String, String>),
}

impl ReadParams {
    /// Returns the separator at which texts of a column are cut.
    pub(super) fn separator_of(&self, column: &str) -> Option<&str> {
        match self.split.as_ref()? {
            Split::All(separator) => {
                let schema = RecordKind::from(self.kind).schema();
                let is_list = schema.field_with_name(column).is_ok_and(|field| is_text_list(field.data_type()));
                is_list.then_some(separator)
            }
            Split::Columns(columns) => columns.get(column).map(String::as_str),
        }
    }
}

fn is_text_list(data: &DataType) -> bool {
    matches!(data, DataType::List(item) if *item.data_type() == DataType::Utf8)
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "called by serde")]
fn is_yes(value: &bool) -> bool {
    *value
}

fn default_infer_rows() -> u64 {
    10_000
}

/// One or several locations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Paths {
    /// A single location.
    One(String),
    /// Several locations, in this order.
    Many(Vec<String>),
}

impl Paths {
    pub(super) fn list(&self) -> Vec<String> {
        match self {
            Self::One(path) => vec![path.clone()],
            Self::Many(paths) => paths.clone(),
        }
    }
}

/// Returns what does not fit together in the params.
pub(super) fn issues(params: &ReadParams) -> Vec<ParamIssue> {
    let mut issues = check_paths(&params.path);
    issues.extend(check_layout(params));
    issues.extend(check_columns(params));
    issues.extend(check_files(params));
    issues.extend(check_delimiter(params));
    issues.extend(check_split(params));
    if params.id_prefix.is_some() && RecordKind::from(params.kind).id_column().is_none() {
        let message = format!("{} rows have no ids of their own", RecordKind::from(params.kind));
        issues.push(ParamIssue::new("id_prefix", message));
    }
    if params.limit == Some(0) {
        issues.push(ParamIssue::new("limit", "must be at least 1"));
    }
    issues
}

fn check_paths(paths: &Paths) -> Vec<ParamIssue> {
    let list = paths.list();
    if list.is_empty() {
        return vec![ParamIssue::new("path", "expected at least one path")];
    }
    let mut issues = Vec::new();
    for (index, path) in list.iter().enumerate() {
        let message = match location::scheme(path) {
            _ if path.is_empty() => Some("the path is empty".to_owned()),
            Some("hf") => HubFile::parse(path).err(),
            Some(scheme) if !SCHEMES.contains(&scheme) => {
                Some(format!("`{scheme}://` is not one of {}", SCHEMES.join("://, ") + "://"))
            }
            _ => None,
        };
        let place = match paths {
            Paths::One(_) => "path".to_owned(),
            Paths::Many(_) => format!("path.{index}"),
        };
        issues.extend(message.map(|message| ParamIssue::new(place, message)));
    }
    issues
}

fn check_layout(params: &ReadParams) -> Option<ParamIssue> {
    let layout = params.layout?;
    let kinds = layout.kinds();
    if kinds.contains(&RecordKind::from(params.kind)) {
        return None;
    }
    let names: Vec<_> = kinds.iter().map(|kind| format!("`as: {}`", kind.name())).collect();
    let message = format!("this layout returns {}, not {} rows", names.join(" or "), RecordKind::from(params.kind));
    Some(ParamIssue::new("layout", message).with_help(format!("write {}", names.join(" or "))))
}

/// Checks the params that `layout: files` has of its own, and those that it has no use for.
fn check_files(params: &ReadParams) -> Option<ParamIssue> {
    let (path, message, help) = match (params.layout, params.max_bytes) {
        (Some(Layout::Files), Some(0)) => return Some(ParamIssue::new("max_bytes", "must be at least 1")),
        (Some(Layout::Files), _) if params.format != Format::Auto => {
            ("format", "the type of a document follows from its name and content", "leave out `format`")
        }
        (Some(Layout::Files), _) if !params.columns.is_empty() => {
            ("columns", "documents of `layout: files` have no fields", "leave out `columns`; add them with `sql`")
        }
        (Some(Layout::Files), _) | (_, None) => return None,
        (_, Some(_)) => ("max_bytes", "is for `layout: files` only", "leave it out, or add `layout: files`"),
    };
    Some(ParamIssue::new(path, message).with_help(help))
}

fn check_delimiter(params: &ReadParams) -> Option<ParamIssue> {
    let sign = params.delimiter?;
    // The reader takes one byte, and none that CSV itself uses.
    if !sign.is_ascii() || matches!(sign, '"' | '\n' | '\r') {
        let issue = ParamIssue::new("delimiter", format!("`{}` cannot separate cells", sign.escape_default()));
        return Some(issue.with_help("write one ASCII character: `\";\"`"));
    }
    let mut message = "is for CSV files only";
    if params.layout != Some(Layout::Files) && matches!(params.format, Format::Auto | Format::Csv) {
        // A folder or a data set of the Hub has no format in its name.
        let mut formats = params.path.list().into_iter().map(|path| params.format.or_of_name(&path));
        if formats.any(|format| format.is_none_or(|format| format == Format::Csv)) {
            return None;
        }
        message = "is for CSV files only, and no path names one";
    }
    Some(ParamIssue::new("delimiter", message).with_help("leave it out, or write `format: csv`"))
}

fn check_split(params: &ReadParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let Some(split) = &params.split else { return issues };
    if params.layout.is_some() {
        let issue = ParamIssue::new("split", "a layout reads its lists itself");
        return vec![issue.with_help("leave it out, or name the columns in `columns:` in place of the `layout`")];
    }
    let schema = RecordKind::from(params.kind).schema();
    let lists = schema.fields().iter().filter(|field| is_text_list(field.data_type()));
    let lists = lists.map(|field| format!("`{}`", field.name())).collect::<Vec<_>>().join(", ");
    match split {
        Split::All(separator) if separator.is_empty() => {
            let issue = ParamIssue::new("split", "the separator is empty");
            issues.push(issue.with_help("write for example `split: \"|\"`"));
        }
        Split::All(_) if lists.is_empty() => {
            let message = format!("{} rows have no column that is a list of texts", RecordKind::from(params.kind));
            issues.push(ParamIssue::new("split", message).with_help("name the column: `split: {COLUMN: \"|\"}`"));
        }
        Split::All(_) => {}
        Split::Columns(columns) => {
            for (column, separator) in columns {
                let path = format!("split.{column}");
                let known = schema.field_with_name(column).ok();
                if separator.is_empty() {
                    let issue = ParamIssue::new(&path, "the separator is empty");
                    issues.push(issue.with_help("write for example `\"|\"`"));
                }
                if params.kind == RowKind::Table && !params.columns.contains_key(column) {
                    let help = format!("write `columns: {{{column}: FIELD}}`, with the other columns that are read");
                    issues.push(ParamIssue::new(&path, "is no column of `columns:`").with_help(help));
                }
                if params.kind != RowKind::Table && !known.is_some_and(|field| is_text_list(field.data_type())) {
                    let message = format!("{} rows have no list of texts of this name", RecordKind::from(params.kind));
                    issues.push(ParamIssue::new(&path, message).with_help(format!("they have: {lists}")));
                }
            }
        }
    }
    issues
}

fn check_columns(params: &ReadParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    let schema = RecordKind::from(params.kind).schema();
    for (name, origin) in &params.columns {
        let path = format!("columns.{name}");
        let is_of_kind = schema.field_with_name(name).is_ok();
        if params.layout.is_some() && is_of_kind {
            let issue = ParamIssue::new(&path, format!("the layout reads the column `{name}` itself"));
            issues.push(issue.with_help("beside a `layout`, `columns` adds columns: choose another name"));
        }
        if params.kind != RowKind::Table && params.layout.is_none() && !is_of_kind {
            let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let mut help = format!("they have: {}", names.join(", "));
            if let Some(near) = closest(name, names.iter().copied()) {
                help = format!("did you mean `{near}`? {help}");
            }
            if names.contains(&"metadata") {
                help += &format!("; fields without a column are kept in `metadata`: `metadata->>'{origin}'` in SQL");
            }
            let message = format!("{} rows have no column `{name}`", RecordKind::from(params.kind));
            issues.push(ParamIssue::new(&path, message).with_help(help));
        }
        if let Err(message) = Origin::parse(origin) {
            issues.push(ParamIssue::new(path, message));
        }
    }
    issues
}

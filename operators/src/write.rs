//! `write`: writes an artifact to a path or URL, with a manifest next to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use searchmill_data::destination::encode;
use searchmill_data::destination::export::{self, export};
use searchmill_data::destination::manifest::{Manifest, WrittenFile};
use searchmill_data::source::format::{Compression, Format};
use searchmill_data::source::location::{SCHEMES, scheme};
use searchmill_engine::operator::{
    Accept, Arity, BlockingKernel, Context, Declaration, Deliver, Example, InputArtifact, Inputs, Kernel, Operator,
    OperatorError, Outputs, ParamIssue, Ports, RowsInput, TreeInput, TreeKind,
};
use serde::{Deserialize, Serialize};

/// Writes an artifact to a path or URL.
pub struct Write;

/// Parameters of `write`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct WriteParams {
    /// Destination: a path, or a URL (`s3://`, `gs://`, `az://`, `http(s)://` by PUT). Rows are written to a file, a
    /// folder artifact (index, model, report) to a folder. A manifest, `<path>.manifest.json`, lists what was
    /// written. A folder is replaced as a whole. If it contains files not written by `write`, they are kept: new
    /// files are added, and only files of the last delivery are removed.
    pub path: String,
    /// Format of rows (default: by extension). Example rows are written as their JSON lines; in Parquet, their fields
    /// become (nested) columns. CSV and TSV store lists and objects as JSON text. Bytes are written as the text that they are
    /// in UTF-8; others only fit Parquet. NaN and infinity are null in JSON, with a warning.
    #[serde(default)]
    pub format: Format,
    /// Compression of the file (default: by extension). Parquet compresses internally: snappy (default), `zst` or
    /// `none`.
    #[serde(default)]
    pub compression: Compression,
    /// Maximum share of rows lost in upstream nodes (rejects, rows skipped by `on_error: drop`). If it is exceeded,
    /// or no rows are left, nothing is written: `path` is unchanged, and the run ends with exit code 3. `searchmill
    /// run … --deliver-anyway` writes in both cases.
    #[serde(default = "default_max_reject_share")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub max_reject_share: f64,
    /// Whether a table without rows is written (no: `path` is unchanged, and the run ends with exit code 3, since lost
    /// rows are seldom meant). For results that may be empty, such as the questions that are new today.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub allow_empty: bool,
}

fn default_max_reject_share() -> f64 {
    0.1
}

impl Operator for Write {
    type Params = WriteParams;
    const NAME: &'static str = "write";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Writes rows or a folder artifact to a path or URL, with a manifest next to it.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "A training file", yaml: "file: {op: write, from: examples, with: {path: out/train.jsonl}}" },
        Example {
            title: "A compressed table in an object store",
            yaml: "file: {op: write, from: scores, with: {path: \"s3://bucket/runs/scores.csv.gz\"}}",
        },
        Example { title: "A report", yaml: "page: {op: write, from: evaluate.report, with: {path: out/report}}" },
    ];

    fn declare(params: &WriteParams) -> Declaration {
        let ports = Ports::new().input_of("input", Accept::Any, Arity::One, "rows or folder to write");
        let ports = ports.tree_out("files", TreeKind::Files, "the files written, and `manifest.json`");
        let checked = params.clone();
        let declaration = Declaration::pure(ports).issues(issues(params)).delivers(params.clone());
        // Rows need a format; folders do not.
        declaration.checks_columns(move |tables| match checked.file_format() {
            Err(error) if tables.contains_key("input") => vec![ParamIssue { path: "path".to_owned(), ..error.into() }],
            _ => Vec::new(),
        })
    }

    fn open(params: &WriteParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Blocking(Box::new(params.clone())))
    }
}

impl Deliver for WriteParams {
    fn destinations(&self) -> Vec<String> {
        vec![self.path.clone()]
    }

    fn max_reject_share(&self) -> f64 {
        self.max_reject_share
    }

    fn allows_empty(&self) -> bool {
        self.allow_empty
    }

    fn is_delivered(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> bool {
        folders.get("files").is_some_and(|tree| export::is_delivered(tree, &self.path, context))
    }

    /// Delivers also if the node was cached and the written files were moved or changed.
    fn deliver(&self, folders: &BTreeMap<String, PathBuf>, context: &Context) -> Result<Vec<String>, OperatorError> {
        let tree = folders.get("files").ok_or_else(|| OperatorError::engine("`write` has no folder `files`"))?;
        let state = if export(tree, &self.path, context)? { " (unchanged)" } else { "" };
        Ok(vec![format!("{}{state}", self.path)])
    }
}

fn issues(params: &WriteParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    match scheme(&params.path) {
        _ if params.path.is_empty() => issues.push(ParamIssue::new("path", "the path is empty")),
        Some("hf") => issues.push(ParamIssue::new("path", "writing to the Hugging Face Hub is not supported")),
        Some(scheme) if !SCHEMES.contains(&scheme) => {
            issues.push(ParamIssue::new("path", format!("writing to `{scheme}://` is not supported")));
        }
        _ => {}
    }
    if !(0.0..=1.0).contains(&params.max_reject_share) {
        issues.push(ParamIssue::new("max_reject_share", "must be between 0 and 1").with_help("write 0.1 for 10 %"));
    }
    issues
}

impl BlockingKernel for WriteParams {
    fn run(&self, inputs: &Inputs, outputs: &mut Outputs, context: &Context) -> Result<(), OperatorError> {
        let tree = outputs.tree("files")?;
        let manifest = match inputs.many("input").first() {
            Some(InputArtifact::Rows(rows)) => self.rows(rows, &tree, context)?,
            Some(InputArtifact::Tree(input)) => copy_tree(input, &tree)?,
            None => return Err(OperatorError::engine("nothing is bound to the port `input`")),
        };
        manifest.save(&tree)?;
        outputs.figure("bytes", manifest.bytes() as f64);
        Ok(())
    }
}

impl WriteParams {
    fn file_format(&self) -> Result<Format, OperatorError> {
        let name = export::file_name(&self.path)?;
        self.format.of_file(&name, &name)
    }

    fn rows(&self, rows: &RowsInput, tree: &Path, context: &Context) -> Result<Manifest, OperatorError> {
        let name = export::file_name(&self.path)?;
        if rows.rows == 0 {
            context.progress().log(&format!("no rows to write to {}", self.path));
        }
        let format = self.file_format()?;
        let compression = match self.compression {
            Compression::Auto if format == Format::Parquet => Compression::Auto,
            Compression::Auto => Compression::of_name(&name),
            given => given,
        };
        let path = tree.join(&name);
        let file = File::create(&path)
            .map_err(|error| OperatorError::machine(format!("cannot write `{}`: {error}", self.path)))?;
        // Its errors name it: a disk may become full while it is written.
        let target = BufWriter::with_capacity(1 << 20, fs_err::File::from_parts(file, &path));
        let mut target = if format == Format::Parquet {
            encode::parquet(rows, compression, target, context)?
        } else {
            encode::text(rows, format, compression, target, context)?
        };
        // The size is that of the whole file.
        target.flush()?;
        let bytes = fs_err::metadata(&path)?.len();
        Ok(Manifest {
            files: vec![WrittenFile { path: name, bytes }],
            folder: false,
            kind: rows.kind.name().to_owned(),
            artifact: rows.digest.clone(),
            rows: Some(rows.rows),
            format: Some(format),
            compression: Some(compression),
        })
    }
}

fn copy_tree(input: &TreeInput, tree: &Path) -> Result<Manifest, OperatorError> {
    let mut files = Vec::new();
    for path in files_below(&input.path, Path::new(""))? {
        // A link could point outside the artifact.
        if !fs_err::symlink_metadata(input.path.join(&path))?.is_file() {
            let message = format!("`{}` of the folder is not a regular file", path.display());
            let help = "links and pipes cannot be written: write a regular file in the upstream node";
            return Err(OperatorError::data(message).with_help(help));
        }
        let target = tree.join(&path);
        if let Some(folder) = target.parent() {
            fs_err::create_dir_all(folder)?;
        }
        let bytes = fs_err::copy(input.path.join(&path), &target)?;
        files.push(WrittenFile { path: path.to_string_lossy().into_owned(), bytes });
    }
    Ok(Manifest {
        files,
        folder: true,
        kind: input.kind.name().to_owned(),
        artifact: input.digest.clone(),
        ..Manifest::default()
    })
}

/// Lists the files below a folder as sorted relative paths, without following links.
fn files_below(root: &Path, folder: &Path) -> Result<Vec<PathBuf>, OperatorError> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(root.join(folder))? {
        names.push(entry?.file_name());
    }
    // The order of a folder differs between file systems.
    names.sort();
    let mut files = Vec::new();
    for name in names {
        let path = folder.join(name);
        if fs_err::symlink_metadata(root.join(&path))?.is_dir() {
            files.extend(files_below(root, &path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;

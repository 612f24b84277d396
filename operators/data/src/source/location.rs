//! Resolves data locations: local paths, globs and folders, object stores, HTTP servers and the Hugging Face Hub.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use searchmill_engine::operator::{Context, OperatorError, Source, pattern_folder};
use url::Url;

use super::format::{Compression, ENDINGS};
use super::store;
use crate::hub::dataset as hub;

/// A file to read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// File name without folders.
    pub name: Arc<str>,
    /// Path below the folder or pattern that names it, for ids.
    pub below: Arc<str>,
    /// Full path or URL for messages.
    pub shown: String,
    /// Where the file is.
    pub place: Place,
}

/// Where a file is.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this machine.
    Local(PathBuf),
    /// In an object store or on an HTTP server.
    Remote(Arc<dyn ObjectStore>, object_store::path::Path),
}

/// Returns the scheme of a URL, or `None` for a path.
pub fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let valid = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    valid.then_some(scheme)
}

/// Supported URL schemes.
pub const SCHEMES: &[&str] = &["s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https", "hf", "file"];

/// Resolves locations to files: in the order written, sorted by path within a glob or folder, without duplicates.
///
/// # Errors
/// Fails if a location matches no file.
pub fn files(locations: &[String], context: &Context) -> Result<Vec<SourceFile>, OperatorError> {
    files_ending(ENDINGS, locations, context)
}

/// Returns the same files, and of folders those with these endings.
///
/// # Errors
/// Fails if a location matches no file.
pub fn files_ending(
    endings: &[&str],
    locations: &[String],
    context: &Context,
) -> Result<Vec<SourceFile>, OperatorError> {
    let mut found: Vec<SourceFile> = Vec::new();
    let mut known = BTreeSet::new();
    for location in locations {
        let files = expand(location, endings, context)?;
        found.extend(files.into_iter().filter(|file| known.insert(file.shown.clone())));
    }
    Ok(found)
}

fn expand(location: &str, endings: &[&str], context: &Context) -> Result<Vec<SourceFile>, OperatorError> {
    match scheme(location) {
        None | Some("file") => local(location, endings, context),
        Some("hf") => {
            let file = SourceFile::local(&hub::fetch(location, context)?);
            Ok(vec![SourceFile { shown: location.to_owned(), ..file }])
        }
        Some(_) => remote(location, endings, context),
    }
}

/// Returns the source of a location for a cache key.
pub fn source(location: &str) -> Source {
    match scheme(location) {
        None | Some("file") => Source::Data { path: location.to_owned(), endings: ENDINGS },
        Some(_) => Source::Path(location.to_owned()),
    }
}

/// Returns the same for documents, whose ids are names of files.
pub fn named_source(location: &str, endings: &'static [&'static str]) -> Source {
    match scheme(location) {
        None | Some("file") => Source::Named { path: location.to_owned(), endings },
        Some(_) => Source::Path(location.to_owned()),
    }
}

/// Returns the files that the node's key covers, sorted by path.
fn local(location: &str, endings: &[&str], context: &Context) -> Result<Vec<SourceFile>, OperatorError> {
    let plain = location.trim_start_matches("file://");
    let path = context.resolve(plain);
    let Some(mut paths) = context.source_files(location) else {
        return Err(if path.exists() { OperatorError::changed(location) } else { missing(location, &path, context) });
    };
    paths.sort();
    if paths.is_empty() {
        let where_from = context.resolve("").display().to_string();
        return Err(OperatorError::data(format!("`{location}` matches no readable file (from {where_from})"))
            .with_help(format!(
                "name a file, or a folder or pattern that contains {} files{}",
                plain_endings(endings),
                if endings == ENDINGS {
                    "; write `layout: files` for texts, Markdown, HTML, PDF and DOCX files"
                } else {
                    ""
                },
            )));
    }
    if path.is_file() {
        return Ok(paths.iter().map(|path| SourceFile::local(path)).collect());
    }
    // As the key names them.
    let folder = if path.is_dir() { path } else { context.resolve(pattern_folder(plain)) };
    let file = |path: PathBuf| {
        let file = SourceFile::local(&path);
        let below = path.strip_prefix(&folder).ok().map(|below| Arc::from(below.to_string_lossy()));
        SourceFile { below: below.unwrap_or_else(|| Arc::clone(&file.name)), ..file }
    };
    Ok(paths.into_iter().map(file).collect())
}

impl SourceFile {
    /// A file on this machine.
    pub fn local(path: &Path) -> Self {
        let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
        let name: Arc<str> = name.as_ref().into();
        let (shown, place) = (path.display().to_string(), Place::Local(path.to_owned()));
        Self { below: Arc::clone(&name), name, shown, place }
    }
}

/// Lists endings, without those of compressed files.
fn plain_endings(endings: &[&str]) -> String {
    let plain = endings.iter().filter(|ending| Compression::of_name(ending) == Compression::None);
    plain.copied().collect::<Vec<_>>().join(", ")
}

fn missing(location: &str, path: &Path, context: &Context) -> OperatorError {
    let error =
        OperatorError::data(format!("there is no file `{location}` (looked in {})", context.resolve("").display()));
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
    let near = folder.map(|folder| (folder, near_names(folder, path)));
    match near {
        Some((folder, names)) if !names.is_empty() => {
            error.with_help(format!("{} contains: {}", folder.display(), names.join(", ")))
        }
        Some((folder, _)) => error.with_help(format!("the nearest folder that exists is {}", folder.display())),
        None => error,
    }
}

/// Returns the entries of a folder with the most similar names.
fn near_names(folder: &Path, path: &Path) -> Vec<String> {
    let wanted = path.strip_prefix(folder).ok().and_then(|rest| rest.iter().next()).unwrap_or_default();
    let wanted = wanted.to_string_lossy().to_lowercase();
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<(u64, String)> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|name| ((1000.0 * (1.0 - strsim::jaro_winkler(&wanted, &name.to_lowercase()))) as u64, name))
        .filter(|(distance, _)| *distance < 300)
        .collect();
    names.sort();
    names.into_iter().take(3).map(|(_, name)| name).collect()
}

fn remote(location: &str, endings: &[&str], context: &Context) -> Result<Vec<SourceFile>, OperatorError> {
    let wild = location.find(['*', '[']).filter(|_| !location.starts_with("http"));
    let base = wild.map_or(location, |at| &location[..=location[..at].rfind('/').unwrap_or(at)]);
    let url =
        Url::parse(base).map_err(|error| OperatorError::pipeline(format!("`{location}` is not a URL: {error}")))?;
    if url.query().is_some() {
        return Err(OperatorError::pipeline(format!("`{location}` has a query, which object stores do not support"))
            .with_help("download the file, or remove `?…`"));
    }
    let (store, path) = store::open(&url)?;
    let folder =
        if wild.is_some() || location.ends_with('/') { path.clone() } else { object_store::path::Path::default() };
    let file = |path: object_store::path::Path| {
        let root = &url[..url::Position::BeforePath];
        let name: Arc<str> = path.filename().unwrap_or("root").into();
        let parts = path.prefix_match(&folder).filter(|_| !folder.as_ref().is_empty() || wild.is_some());
        let below = parts.map(|parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"));
        SourceFile {
            below: below.filter(|below| !below.is_empty()).map_or_else(|| Arc::clone(&name), Arc::from),
            name,
            shown: format!("{root}/{path}"),
            place: Place::Remote(Arc::clone(&store), path),
        }
    };
    if wild.is_none() && !location.ends_with('/') {
        return Ok(vec![file(path)]);
    }
    let bucket = location.len() - location.trim_start_matches(&url[..url::Position::BeforePath]).len();
    let pattern = glob::Pattern::new(location[bucket..].trim_start_matches('/'))
        .map_err(|error| OperatorError::pipeline(format!("`{location}` is not a pattern: {}", error.msg)))?;
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let wanted = |found: &object_store::path::Path| match wild {
        Some(_) => pattern.matches_with(found.as_ref(), options),
        None => found.filename().is_some_and(|name| {
            let lower = name.to_lowercase();
            endings.iter().any(|ending| lower.ends_with(ending))
        }),
    };
    let mut paths =
        context.block_on(store::list(store.as_ref(), &path)).map_err(|error| store::failed(location, error))?;
    paths.retain(wanted);
    if paths.is_empty() {
        return Err(OperatorError::data(format!("`{location}` matches no readable object")));
    }
    Ok(paths.into_iter().map(file).collect())
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;

    use super::*;

    fn names(files: &[SourceFile]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_ref()).collect()
    }

    #[test]
    fn globs_folders_and_names_come_in_a_fixed_order_and_once() {
        let mut harness = Harness::new();
        let folder = harness.path().join("data [1]");
        std::fs::create_dir_all(folder.join("sub")).unwrap();
        for name in ["b.jsonl", "a.jsonl", "c.csv.gz", "sub/d.json", ".hidden.jsonl", "notes.txt", "x*.jsonl"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        harness.directory = folder;
        let find = |locations: &[&str]| {
            let locations: Vec<String> = locations.iter().map(|text| (*text).to_owned()).collect();
            let sources: Vec<Source> = locations.iter().map(|text| source(text)).collect();
            files(&locations, &harness.context_with(harness.seen(&sources)))
        };
        assert_eq!(names(&find(&["*.jsonl"]).unwrap()), ["a.jsonl", "b.jsonl", "x*.jsonl"]);
        assert_eq!(names(&find(&["x*.jsonl"]).unwrap()), ["x*.jsonl"]);
        assert_eq!(names(&find(&["b.jsonl", "[ab].jsonl", "sub"]).unwrap()), ["b.jsonl", "a.jsonl", "d.json"]);
        assert_eq!(names(&find(&["."]).unwrap()), ["a.jsonl", "b.jsonl", "c.csv.gz", "d.json", "x*.jsonl"]);
        let error = find(&["bb.jsonl"]).unwrap_err();
        assert!(error.message.contains("there is no file `bb.jsonl` (looked in"), "{error}");
        assert!(error.help.unwrap().contains("b.jsonl"));
        assert!(find(&["*.parquet"]).unwrap_err().message.contains("there is no file `*.parquet`"));
    }

    #[test]
    fn only_urls_have_schemes() {
        assert_eq!(scheme("s3://bucket/key"), Some("s3"));
        assert_eq!(scheme("data/a.jsonl"), None);
        assert_eq!(scheme("C:/a"), None);
    }
}

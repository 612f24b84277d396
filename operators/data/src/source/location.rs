//! Resolves data locations: local paths, globs and folders, object stores, HTTP servers and the Hugging Face Hub.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use searchmill_engine::operator::{Context, OperatorError, Source, pattern_folder};

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

/// Files to read.
pub type Files = Vec<SourceFile>;

/// Where a file is.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this machine.
    Local(PathBuf),
    /// In an object store or on an HTTP server.
    Remote(Arc<dyn ObjectStore>, ObjectPath),
}

/// Returns the scheme of a URL, or `None` for a path.
pub fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_valid = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if is_valid { Some(scheme) } else { None }
}

/// Supported URL schemes.
pub const SCHEMES: &[&str] = &["s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https", "hf", "file"];

/// Resolves locations to files: in the order written, sorted by path within a glob or folder, without duplicates.
///
/// # Errors
/// Fails if a location matches no file.
pub fn files(locations: &[String], context: &Context) -> Result<Files, OperatorError> {
    files_ending(ENDINGS, locations, context)
}

/// Returns the same files, and of folders those with these endings.
///
/// # Errors
/// Fails if a location matches no file.
pub fn files_ending(endings: &[&str], locations: &[String], context: &Context) -> Result<Files, OperatorError> {
    let mut found = Files::new();
    let mut known = BTreeSet::new();
    for location in locations {
        let files = match scheme(location) {
            None | Some("file") => local(location, endings, context)?,
            Some("hf") => {
                let file = SourceFile::local(&hub::fetch(location, context)?);
                vec![SourceFile { shown: location.clone(), ..file }]
            }
            Some(_) => remote(location, endings, context)?,
        };
        // A pattern may match a file that another location names.
        found.extend(files.into_iter().filter(|file| known.insert(file.shown.clone())));
    }
    Ok(found)
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
fn local(location: &str, endings: &[&str], context: &Context) -> Result<Files, OperatorError> {
    let plain = location.trim_start_matches("file://");
    let path = context.resolve(plain);
    let Some(mut paths) = context.source_files(location) else {
        return Err(if path.exists() { OperatorError::changed(location) } else { missing(location, &path, context) });
    };
    paths.sort();
    if paths.is_empty() {
        let mut plain = endings.to_vec();
        plain.retain(|ending| Compression::of_name(ending) == Compression::None);
        let mut help = format!("name a file, or a folder or pattern that contains {} files", plain.join(", "));
        if endings == ENDINGS {
            help += "; write `layout: files` for texts, Markdown, HTML, PDF and DOCX files";
        }
        let where_from = context.resolve("").display().to_string();
        let message = format!("`{location}` matches no readable file (from {where_from})");
        return Err(OperatorError::data(message).with_help(help));
    }
    if path.is_file() {
        return Ok(paths.iter().map(|path| SourceFile::local(path)).collect());
    }
    // As the key names them.
    let folder = if path.is_dir() { path } else { context.resolve(pattern_folder(plain)) };
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        let mut file = SourceFile::local(&path);
        if let Ok(below) = path.strip_prefix(&folder) {
            file.below = Arc::from(below.to_string_lossy());
        }
        files.push(file);
    }
    Ok(files)
}

impl SourceFile {
    /// A file on this machine.
    pub fn local(path: &Path) -> Self {
        let name = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
        let name: Arc<str> = name.as_ref().into();
        let (shown, place) = (path.display().to_string(), Place::Local(path.to_owned()));
        Self { below: Arc::clone(&name), name, shown, place }
    }

    /// A file in an object store, found in this folder. `root`: the URL without a path.
    fn remote(root: &str, store: &Arc<dyn ObjectStore>, path: ObjectPath, folder: Option<&ObjectPath>) -> Self {
        let name: Arc<str> = path.filename().unwrap_or("root").into();
        let mut below = Arc::clone(&name);
        if let Some(folder) = folder
            && let Some(parts) = path.prefix_match(folder)
        {
            let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
            // Empty for the folder itself.
            if !parts.is_empty() {
                below = parts.join("/").into();
            }
        }
        let shown = format!("{root}/{path}");
        Self { below, name, shown, place: Place::Remote(Arc::clone(store), path) }
    }
}

fn missing(location: &str, path: &Path, context: &Context) -> OperatorError {
    let error =
        OperatorError::data(format!("there is no file `{location}` (looked in {})", context.resolve("").display()));
    let Some(folder) = path.ancestors().skip(1).find(|folder| folder.is_dir()) else { return error };
    // The first part below the folder: the others lie in a folder that does not exist.
    let wanted = path.strip_prefix(folder).unwrap_or(Path::new("")).iter().next().unwrap_or_default();
    let wanted = wanted.to_string_lossy().to_lowercase();
    let mut similar: Vec<(u64, String)> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Whole numbers can be sorted.
        let distance = (1000.0 * (1.0 - strsim::jaro_winkler(&wanted, &name.to_lowercase()))) as u64;
        if distance < 300 {
            similar.push((distance, name));
        }
    }
    if similar.is_empty() {
        return error.with_help(format!("the nearest folder that exists is {}", folder.display()));
    }
    similar.sort();
    let names: Vec<String> = similar.into_iter().take(3).map(|(_, name)| name).collect();
    error.with_help(format!("{} contains: {}", folder.display(), names.join(", ")))
}

fn remote(location: &str, endings: &[&str], context: &Context) -> Result<Files, OperatorError> {
    // Addresses of HTTP servers may contain these characters; nothing can be listed there.
    let wild = if location.starts_with("http") { None } else { location.find(['*', '[']) };
    let base = match wild {
        Some(at) => &location[..=location[..at].rfind('/').unwrap_or(at)],
        None => location,
    };
    let url = url::Url::parse(base)
        .map_err(|error| OperatorError::pipeline(format!("`{location}` is not a URL: {error}")))?;
    if url.query().is_some() {
        return Err(OperatorError::pipeline(format!("`{location}` has a query, which object stores do not support"))
            .with_help("download the file, or remove `?…`"));
    }
    let (store, path) = store::open(&url)?;
    let root = &url[..url::Position::BeforePath];
    if wild.is_none() && !location.ends_with('/') {
        return Ok(vec![SourceFile::remote(root, &store, path, None)]);
    }
    let bucket = location.len() - location.trim_start_matches(root).len();
    let pattern = glob::Pattern::new(location[bucket..].trim_start_matches('/'))
        .map_err(|error| OperatorError::pipeline(format!("`{location}` is not a pattern: {}", error.msg)))?;
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let listed = context.block_on(store::list(store.as_ref(), &path));
    let listed = listed.map_err(|error| store::failed(location, error))?;
    // Files of a whole bucket are named without their folders.
    let folder = if wild.is_some() || !path.as_ref().is_empty() { Some(&path) } else { None };
    let mut files = Vec::new();
    for found in listed {
        let name = found.filename().unwrap_or_default().to_lowercase();
        let is_wanted = match wild {
            Some(_) => pattern.matches_with(found.as_ref(), options),
            None => endings.iter().any(|ending| name.ends_with(ending)),
        };
        if is_wanted {
            files.push(SourceFile::remote(root, &store, found, folder));
        }
    }
    if files.is_empty() {
        return Err(OperatorError::data(format!("`{location}` matches no readable object")));
    }
    Ok(files)
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

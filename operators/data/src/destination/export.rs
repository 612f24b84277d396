//! Copies a written artifact to its destination: completely or not at all, and only if it differs.

use std::io::Read;
use std::path::{Path, PathBuf};

use fs_err::File;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use searchmill_engine::operator::{Context, MANIFEST_ENDING, OperatorError, missing_credentials};

use super::local::{holds, to_path};
use super::manifest::Manifest;
use crate::source::location::scheme;
use crate::source::store;

/// Size of upload parts. Smaller files are sent in one request.
const PIECE_BYTES: usize = 8 << 20;

/// Largest manifest that is read.
const MOST_MANIFEST_BYTES: u64 = 64 << 20;

/// Updates a destination to the artifact in `tree` (written by `write`): files first, then
/// `<destination>.manifest.json`.
///
/// Local files are compared byte by byte and replaced by a rename. Remote files count as unchanged if their manifest
/// and lengths agree. Files of a folder that only the previous manifest names are removed. Repeating an export changes
/// nothing, so it can follow every run, cached or not. Returns true if the destination was up to date already.
///
/// # Errors
/// Fails if the destination cannot be written.
pub fn export(tree: &Path, destination: &str, context: &Context) -> Result<bool, OperatorError> {
    let manifest = Manifest::load(tree)?;
    match scheme(destination) {
        None => to_path(tree, &manifest, &context.resolve(destination)),
        Some("file") => to_path(tree, &manifest, Path::new(destination.trim_start_matches("file://"))),
        Some(_) => context.block_on(to_store(tree, &manifest, destination)),
    }
}

/// Whether a local destination has this artifact already: the same manifest and the same files. What is elsewhere
/// counts as different.
pub fn is_delivered(tree: &Path, destination: &str, context: &Context) -> bool {
    let path = match scheme(destination) {
        None => context.resolve(destination),
        Some("file") => PathBuf::from(destination.trim_start_matches("file://")),
        Some(_) => return false,
    };
    // Nothing that is unreadable is delivered.
    let Ok(manifest) = Manifest::load(tree) else { return false };
    // Drops a trailing slash, which would put the manifest into the folder.
    let path: PathBuf = path.components().collect();
    let beside = std::fs::read_to_string(format!("{}{MANIFEST_ENDING}", path.display()));
    let (Ok(text), Ok(beside)) = (manifest.text(), beside) else { return false };
    // Byte by byte: what somebody edited must not be replaced by rows that are held back.
    text == beside && holds(tree, &manifest, &path).unwrap_or(false)
}

/// Returns the last part of a path or URL.
///
/// # Errors
/// Fails if it has none.
pub fn file_name(destination: &str) -> Result<String, OperatorError> {
    let name = destination.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || name == "." || name == ".." || name == "manifest.json" {
        return Err(OperatorError::pipeline(format!("`{destination}` does not end in the name of a file"))
            .with_help("name a file, for example `out/train.jsonl`"));
    }
    Ok(name.to_owned())
}

async fn to_store(tree: &Path, manifest: &Manifest, destination: &str) -> Result<bool, OperatorError> {
    let url = url::Url::parse(destination)
        .map_err(|error| OperatorError::pipeline(format!("`{destination}` is not a URL: {error}")))?;
    let (store, base) = store::open(&url)?;
    let text = manifest.text()?;
    let beside = StorePath::from(format!("{base}{MANIFEST_ENDING}"));
    let before = manifest_there(store.as_ref(), &beside).await;
    let mut is_current = before.as_ref() == Some(&text);
    for file in &manifest.files {
        // By length: comparing the contents would fetch every file.
        let path = path_of(&base, manifest, &file.path);
        is_current = is_current && matches!(store.head(&path).await, Ok(found) if found.size == file.bytes);
    }
    if is_current {
        return Ok(true);
    }
    for file in &manifest.files {
        let written = put(store.as_ref(), &path_of(&base, manifest, &file.path), &tree.join(&file.path)).await;
        written.map_err(|error| cannot_write(destination, &error))?;
    }
    // After the new files: a reader that lists the folder meanwhile finds too many rather than too few.
    for stale in stale(before.as_deref().unwrap_or_default(), manifest) {
        match store.delete(&path_of(&base, manifest, &stale)).await {
            // Some stores report a missing object, others do not.
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(cannot_write(destination, &error)),
        }
    }
    // Last: an interrupted export leaves the old manifest, so that the next one repeats it.
    let written = store.put(&beside, PutPayload::from(text.into_bytes())).await;
    written.map_err(|error| cannot_write(destination, &error))?;
    Ok(false)
}

fn cannot_write(destination: &str, error: &object_store::Error) -> OperatorError {
    let message = error.to_string();
    let message = missing_credentials(&message).unwrap_or(&message);
    OperatorError::machine(format!("cannot write `{destination}`: {message}"))
}

/// Returns the path of a file of the manifest in the store.
fn path_of(base: &StorePath, manifest: &Manifest, file: &str) -> StorePath {
    if manifest.folder { file.split('/').fold(base.clone(), StorePath::join) } else { base.clone() }
}

/// Returns the files of the previously exported folder that the new one lacks.
fn stale(before: &str, manifest: &Manifest) -> Vec<String> {
    let Ok(before) = serde_json::from_str::<Manifest>(before) else { return Vec::new() };
    if !before.folder || !manifest.folder {
        return Vec::new();
    }
    let mut stale: Vec<String> = before.files.into_iter().map(|file| file.path).collect();
    stale.retain(|path| !manifest.files.iter().any(|file| file.path == *path));
    // The manifest comes from the store: it must not name files outside the folder.
    stale.retain(|path| !path.split('/').any(|part| matches!(part, "" | "." | "..")));
    stale
}

async fn manifest_there(store: &dyn ObjectStore, beside: &StorePath) -> Option<String> {
    let found = store.get(beside).await.ok().filter(|found| found.meta.size <= MOST_MANIFEST_BYTES)?;
    String::from_utf8(found.bytes().await.ok()?.to_vec()).ok()
}

async fn put(store: &dyn ObjectStore, path: &StorePath, file: &Path) -> object_store::Result<()> {
    let mut file = File::open(file).map_err(unreadable)?;
    let mut piece = next_piece(&mut file)?;
    if piece.len() < PIECE_BYTES {
        return store.put(path, PutPayload::from(piece)).await.map(drop);
    }
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(path).await?, PIECE_BYTES);
    while !piece.is_empty() {
        // Bounds the memory: a slow network holds the reader back.
        upload.wait_for_capacity(4).await?;
        upload.write(&piece);
        piece = next_piece(&mut file)?;
    }
    upload.finish().await.map(drop)
}

/// Reads the next part of an upload; empty at the end of the file.
fn next_piece(file: &mut File) -> object_store::Result<Vec<u8>> {
    let mut piece = Vec::new();
    file.take(PIECE_BYTES as u64).read_to_end(&mut piece).map_err(unreadable)?;
    Ok(piece)
}

fn unreadable(source: std::io::Error) -> object_store::Error {
    object_store::Error::Generic { store: "local", source: source.into() }
}

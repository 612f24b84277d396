//! Copies a written artifact to its destination: completely or not at all, and only if it differs.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use searchmill_engine::operator::{Context, MANIFEST_ENDING, OperatorError, missing_credentials};
use url::Url;

use super::local::{same_file, to_path};
use super::manifest::{Manifest, WrittenFile};
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
    let Ok(manifest) = Manifest::load(tree) else { return false };
    let path: PathBuf = path.components().collect();
    let beside = std::fs::read_to_string(format!("{}{MANIFEST_ENDING}", path.display()));
    // Byte by byte: what somebody edited must not be replaced by rows that are held back.
    let is_same = |file: &WrittenFile| {
        let place = if manifest.folder { path.join(&file.path) } else { path.clone() };
        File::open(tree.join(&file.path)).and_then(|own| same_file(&place, own)).unwrap_or(false)
    };
    manifest.text().is_ok_and(|text| beside.is_ok_and(|there| there == text)) && manifest.files.iter().all(is_same)
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
    let url = Url::parse(destination)
        .map_err(|error| OperatorError::pipeline(format!("`{destination}` is not a URL: {error}")))?;
    let (store, base) = store::open(&url)?;
    let failed = |error: object_store::Error| {
        let told = error.to_string();
        let told = missing_credentials(&told).unwrap_or(&told);
        OperatorError::machine(format!("cannot write `{destination}`: {told}"))
    };
    let path = |file: &str| {
        let parts = file.split('/');
        if manifest.folder { parts.fold(base.clone(), StorePath::join) } else { base.clone() }
    };
    let text = manifest.text()?;
    let beside = StorePath::from(format!("{base}{MANIFEST_ENDING}"));
    let before = manifest_there(store.as_ref(), &beside).await;
    if before.as_ref() == Some(&text) && is_there(store.as_ref(), manifest, path).await {
        return Ok(true);
    }
    for file in &manifest.files {
        put(store.as_ref(), &path(&file.path), &tree.join(&file.path)).await.map_err(failed)?;
    }
    for stale in stale(before.as_deref().unwrap_or_default(), manifest) {
        match store.delete(&path(&stale)).await {
            Err(error) if !matches!(error, object_store::Error::NotFound { .. }) => return Err(failed(error)),
            _ => {}
        }
    }
    store.put(&beside, PutPayload::from(text.into_bytes())).await.map_err(failed)?;
    Ok(false)
}

/// Returns the files of the previously exported folder that the new one lacks.
fn stale(before: &str, manifest: &Manifest) -> Vec<String> {
    let before = serde_json::from_str::<Manifest>(before).ok().filter(|before| before.folder && manifest.folder);
    let has = |path: &str| manifest.files.iter().any(|file| file.path == path);
    let before = before.into_iter().flat_map(|before| before.files).map(|file| file.path);
    before.filter(|path| !has(path) && !path.split('/').any(|part| matches!(part, "" | "." | ".."))).collect()
}

async fn manifest_there(store: &dyn ObjectStore, beside: &StorePath) -> Option<String> {
    let found = store.get(beside).await.ok().filter(|found| found.meta.size <= MOST_MANIFEST_BYTES)?;
    String::from_utf8(found.bytes().await.ok()?.to_vec()).ok()
}

/// Whether the store has the files with the manifest's lengths.
async fn is_there(store: &dyn ObjectStore, manifest: &Manifest, path: impl Fn(&str) -> StorePath) -> bool {
    for file in &manifest.files {
        if !store.head(&path(&file.path)).await.is_ok_and(|found| found.size == file.bytes) {
            return false;
        }
    }
    true
}

async fn put(store: &dyn ObjectStore, path: &StorePath, file: &Path) -> object_store::Result<()> {
    let unreadable = |source: std::io::Error| object_store::Error::Generic { store: "local", source: source.into() };
    let mut file = File::open(file).map_err(unreadable)?;
    let mut next = || {
        let mut piece = Vec::new();
        file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece).map_err(unreadable).map(|_| piece)
    };
    let mut piece = next()?;
    if piece.len() < PIECE_BYTES {
        return store.put(path, PutPayload::from(piece)).await.map(drop);
    }
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(path).await?, PIECE_BYTES);
    while !piece.is_empty() {
        upload.wait_for_capacity(4).await?;
        upload.write(&piece);
        piece = next()?;
    }
    upload.finish().await.map(drop)
}

//! Copies a written artifact to its destination: whole or not at all, and only where it differs from what is there.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use searchmill_engine::operator::{Context, OperatorError, missing_credentials};
use url::Url;

use super::manifest::Manifest;
use crate::source::location::scheme;
use crate::source::store;

/// Pieces of an upload, and the length up to which a file is sent in one.
const PIECE_BYTES: usize = 8 << 20;

/// What an export did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where the file or folder is.
    pub destination: String,
    /// Was everything there already?
    pub unchanged: bool,
}

/// Brings a destination up to the artifact in `tree` (made by `write`): files first, then `<destination>.manifest.json`.
/// Local files are compared byte by byte and replaced by a rename; remote ones are taken as they are when their manifest
/// and lengths agree. Doing it again changes nothing, so it can follow every run, cached or not.
///
/// # Errors
/// When the destination cannot be written.
pub fn export(tree: &Path, destination: &str, context: &Context) -> Result<Exported, OperatorError> {
    let manifest = Manifest::load(tree)?;
    let unchanged = match scheme(destination) {
        None => to_path(tree, &manifest, &context.resolve(destination))?,
        Some("file") => to_path(tree, &manifest, Path::new(destination.trim_start_matches("file://")))?,
        Some(_) => context.block_on(to_store(tree, &manifest, destination))?,
    };
    Ok(Exported { destination: destination.to_owned(), unchanged })
}

/// The last part of a path or URL.
///
/// # Errors
/// When there is none.
pub(super) fn file_name(destination: &str) -> Result<String, OperatorError> {
    let name = destination.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || name == "." || name == ".." || name == "manifest.json" {
        return Err(OperatorError::pipeline(format!("`{destination}` does not end in the name of a file"))
            .with_help("rows are written to a file, for example `out/train.jsonl`"));
    }
    Ok(name.to_owned())
}

fn to_path(tree: &Path, manifest: &Manifest, destination: &Path) -> Result<bool, OperatorError> {
    let failed = |error: std::io::Error| {
        OperatorError::machine(format!("cannot write {}: {error}", destination.display()))
            .with_help("check that the folder may be written to and has room")
    };
    let mut unchanged = true;
    for file in &manifest.files {
        let target = if manifest.folder { destination.join(&file.path) } else { destination.to_owned() };
        unchanged &= replace(&target, || File::open(tree.join(&file.path))).map_err(failed)?;
    }
    let text = manifest.text()?;
    let beside = format!("{}.manifest.json", destination.display());
    unchanged &= replace(Path::new(&beside), || Ok(text.as_bytes())).map_err(failed)?;
    Ok(unchanged)
}

/// Makes the target hold those bytes; true when it did already.
fn replace<R: Read>(target: &Path, open: impl Fn() -> std::io::Result<R>) -> std::io::Result<bool> {
    if let Ok(there) = File::open(target)
        && same_bytes(there, open()?)?
    {
        return Ok(true);
    }
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut temporary = tempfile::Builder::new().prefix(".writing-").permissions_of_new_files().tempfile_in(folder)?;
    std::io::copy(&mut open()?, &mut temporary)?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map_err(|error| error.error)?;
    Ok(false)
}

trait NewFilePermissions {
    fn permissions_of_new_files(&mut self) -> &mut Self;
}

impl NewFilePermissions for tempfile::Builder<'_, '_> {
    /// Readable for others as far as the umask allows, as any new file is; temporary files are private otherwise.
    #[cfg(unix)]
    fn permissions_of_new_files(&mut self) -> &mut Self {
        self.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666))
    }

    #[cfg(not(unix))]
    fn permissions_of_new_files(&mut self) -> &mut Self {
        self
    }
}

fn same_bytes(mut a: impl Read, mut b: impl Read) -> std::io::Result<bool> {
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (here, there) = (fill(&mut a, &mut left)?, fill(&mut b, &mut right)?);
        if left[..here] != right[..there] {
            return Ok(false);
        }
        if here == 0 {
            return Ok(true);
        }
    }
}

fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
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
    let beside = StorePath::from(format!("{base}.manifest.json"));
    if is_there(store.as_ref(), manifest, &beside, &text, path).await {
        return Ok(true);
    }
    for file in &manifest.files {
        put(store.as_ref(), &path(&file.path), &tree.join(&file.path)).await.map_err(failed)?;
    }
    store.put(&beside, PutPayload::from(text.into_bytes())).await.map_err(failed)?;
    Ok(false)
}

/// Does the store have the same manifest, and files of those lengths?
async fn is_there(
    store: &dyn ObjectStore,
    manifest: &Manifest,
    beside: &StorePath,
    text: &str,
    path: impl Fn(&str) -> StorePath,
) -> bool {
    let Ok(found) = store.get(beside).await else { return false };
    // Another length, another text: it is not read, whatever it is.
    if found.meta.size != text.len() as u64 || !found.bytes().await.is_ok_and(|bytes| bytes == text.as_bytes()) {
        return false;
    }
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
    let mut piece = vec![0; PIECE_BYTES];
    let mut length = fill(&mut file, &mut piece).map_err(unreadable)?;
    if length < PIECE_BYTES {
        piece.truncate(length);
        return store.put(path, PutPayload::from(piece)).await.map(drop);
    }
    let mut upload = WriteMultipart::new_with_chunk_size(store.put_multipart(path).await?, PIECE_BYTES);
    while length > 0 {
        upload.wait_for_capacity(4).await?;
        upload.write(&piece[..length]);
        length = fill(&mut file, &mut piece).map_err(unreadable)?;
    }
    upload.finish().await.map(drop)
}

//! Operations on single objects: get, put, put if absent, put if unchanged, list.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{Error, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use tokio::io::AsyncWriteExt;

use crate::store::nofollow;

pub(super) type Objects = Arc<dyn ObjectStore>;

/// The outcome of a request.
pub(super) type Reply<T> = object_store::Result<T>;

/// Limit of concurrent transfers.
const AT_ONCE: usize = 16;

/// Attempts at a request that a server refuses because others write the same object at that moment (HTTP 409).
const ATTEMPTS: u32 = 8;
/// The first pause between them; each one is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(40);

/// Outcome of a conditional put.
pub(super) enum Put {
    /// The object was written; its version.
    Made(UpdateVersion),
    /// The condition did not hold: another object is there, or none any more.
    Refused(Option<(Bytes, UpdateVersion)>),
}

pub(super) fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Generic { store: "searchmill", source: source.into() }
}

/// Reads an object and its version; `None` if it does not exist.
pub(super) async fn get(objects: &Objects, path: &Path) -> Reply<Option<(Bytes, UpdateVersion)>> {
    let found = match objects.get(path).await {
        Err(Error::NotFound { .. }) => return Ok(None),
        found => found?,
    };
    let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
    Ok(Some((found.bytes().await?, version)))
}

/// Reads named objects; `None` for those that do not exist.
pub(super) async fn get_all<Name>(
    objects: &Objects,
    named: impl IntoIterator<Item = (Name, Path)>,
) -> Reply<Vec<(Name, Option<Bytes>)>> {
    let read = named.into_iter().map(|(name, path)| async move {
        let found = get(objects, &path).await?;
        Ok((name, found.map(|(content, _)| content)))
    });
    all(read).await
}

/// Waits for transfers, some of them at a time.
pub(super) async fn all<T>(transfers: impl IntoIterator<Item = impl Future<Output = Reply<T>>>) -> Reply<Vec<T>> {
    stream::iter(transfers).buffered(AT_ONCE).try_collect().await
}

/// Waits before another attempt, longer each time, and hardly ever as long as another machine.
async fn pause(attempt: u32) {
    let longest = PAUSE * 2_u32.pow(attempt);
    tokio::time::sleep(longest.mul_f64(0.5 + 0.5 * rand::random::<f64>())).await;
}

/// Repeats an unconditional request while the server answers that others write the same object (HTTP 409).
async fn repeat<T, F: Future<Output = Reply<T>>>(request: impl Fn() -> F) -> Reply<T> {
    let mut attempt = 0;
    loop {
        let outcome = request().await;
        if attempt == ATTEMPTS || !matches!(outcome, Err(Error::AlreadyExists { .. })) {
            return outcome;
        }
        pause(attempt).await;
        attempt += 1;
    }
}

pub(super) async fn put(objects: &Objects, path: &Path, content: Bytes) -> Reply<UpdateVersion> {
    let content = PutPayload::from_bytes(content);
    Ok(repeat(|| objects.put(path, content.clone())).await?.into())
}

/// Writes an object if the `known` version of it is there (`None`: if none exists). A put with a lost answer may have
/// succeeded, so a caller that is refused must check whose object it is.
pub(super) async fn put_if(objects: &Objects, path: &Path, content: Bytes, known: Option<UpdateVersion>) -> Reply<Put> {
    let payload = PutPayload::from_bytes(content.clone());
    for attempt in 0..ATTEMPTS {
        let mode = known.clone().map_or(PutMode::Create, PutMode::Update);
        let options = PutOptions { mode, ..PutOptions::default() };
        let has_conditions = match objects.put_opts(path, payload.clone(), options).await {
            Ok(made) => return Ok(Put::Made(made.into())),
            // Servers refuse with HTTP 409, 412 or 304, some also because another put is under way: what is there tells.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => true,
            Err(Error::NotFound { .. }) if known.is_some() => true,
            // Not every server supports conditions. Without them the first put wins unless two arrive at the same moment,
            // and a version that was replaced long ago is still not overwritten.
            Err(Error::NotImplemented { .. }) => false,
            Err(error) => return Err(error),
        };
        let found = get(objects, path).await?;
        if found.as_ref().map(|(_, now)| &now.e_tag) != known.as_ref().map(|known| &known.e_tag) {
            return Ok(Put::Refused(found));
        }
        if !has_conditions {
            return put(objects, path, content).await.map(Put::Made);
        }
        // Nothing has changed: another put was under way and came to nothing.
        pause(attempt).await;
    }
    Err(generic(format!("{path} is refused again and again, as if others wrote it (HTTP 409 or 412): try again later")))
}

/// Writes an object if none exists. Otherwise returns the existing one.
pub(super) async fn put_first(objects: &Objects, path: &Path, content: Bytes) -> Reply<Option<Bytes>> {
    match put_if(objects, path, content, None).await? {
        Put::Made(_) => Ok(None),
        Put::Refused(found) => Ok(Some(found.map(|(content, _)| content).unwrap_or_default())),
    }
}

/// An object below a prefix.
pub(super) struct Listed {
    pub(super) path: Path,
    /// Path relative to the prefix.
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Unix time (seconds) of the last put, by the server's clock.
    pub(super) modified: f64,
}

/// Lists all objects below a prefix, by name.
pub(super) async fn list(objects: &Objects, prefix: &Path) -> Reply<Vec<Listed>> {
    let found: Vec<_> = objects.list(Some(prefix)).try_collect().await?;
    let mut listed = Vec::with_capacity(found.len());
    for meta in found {
        let Some(parts) = meta.location.prefix_match(prefix) else { continue };
        let name = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
        listed.push(Listed { name, bytes: meta.size, modified: seconds(&meta), path: meta.location });
    }
    listed.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(listed)
}

fn seconds(meta: &ObjectMeta) -> f64 {
    meta.last_modified.timestamp_millis() as f64 / 1000.0
}

/// Returns the server's time (Unix, seconds) from a new object.
pub(super) async fn clock(objects: &Objects, probe: &Path) -> Reply<f64> {
    put(objects, probe, Bytes::from_static(b"what time is it\n")).await?;
    let time = seconds(&objects.head(probe).await?);
    delete(objects, probe).await?;
    Ok(time)
}

/// Deletes an object if it exists.
pub(super) async fn delete(objects: &Objects, path: &Path) -> Reply<()> {
    match repeat(|| objects.delete(path)).await {
        Err(Error::NotFound { .. }) => Ok(()),
        outcome => outcome,
    }
}

/// Lists the prefixes directly below a prefix.
pub(super) async fn folders(objects: &Objects, prefix: &Path) -> Reply<Vec<String>> {
    let found = objects.list_with_delimiter(Some(prefix)).await?;
    Ok(found.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
}

/// Uploads a file, large ones in parts.
pub(super) async fn upload(objects: &Objects, path: Path, file: &FilePath) -> Reply<()> {
    repeat(|| upload_once(objects, path.clone(), file)).await
}

async fn upload_once(objects: &Objects, path: Path, file: &FilePath) -> Reply<()> {
    let mut from = tokio::fs::File::open(file).await.map_err(generic)?;
    let mut to = BufWriter::new(Arc::clone(objects), path);
    let sent = match tokio::io::copy(&mut from, &mut to).await {
        Ok(_) => to.shutdown().await,
        Err(error) => Err(error),
    };
    // An error of the server arrives wrapped in one of the system.
    sent.map_err(|error| error.downcast::<Error>().unwrap_or_else(generic))
}

/// Downloads an object into a file; `false` if it does not exist.
pub(super) async fn download(objects: &Objects, path: &Path, file: &FilePath) -> Reply<bool> {
    let found = match objects.get(path).await {
        Err(Error::NotFound { .. }) => return Ok(false),
        found => found?,
    };
    if let Some(folder) = file.parent() {
        nofollow::create_folder(folder).map_err(generic)?;
    }
    let mut to = tokio::fs::File::from_std(nofollow::create(file).map_err(generic)?);
    let mut pieces = found.into_stream();
    while let Some(piece) = pieces.try_next().await? {
        to.write_all(&piece).await.map_err(generic)?;
    }
    // Before it is moved into place: a record that is flushed later must not name files that a power failure empties.
    to.sync_data().await.map_err(generic)?;
    Ok(true)
}

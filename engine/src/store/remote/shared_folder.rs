//! A folder that several machines mount, as an object store with conditional puts.
//!
//! A folder has no operation that replaces a file only if nobody has replaced it since it was read. A file lock does not
//! help: it does not reach every machine, and a suspended machine keeps or loses it. So a replaced object is not
//! overwritten. Its next versions are files of their own, and the highest number counts:
//!
//! ```text
//! leases/<key>            as it was created: version 0
//! leases/<key>.next/<n>   version n
//! ```
//!
//! One process alone can create the file of a number (by a hard link, on NFS too). So one of two puts that replace the
//! same version wins, however long a machine slept between reading and writing. The file with the highest number is never
//! removed. A machine that slept so long that the file of its number was removed finds higher ones after it has written,
//! and removes its own. Of an object that is replaced, `put` and `delete` see version 0 alone: leases and floors are
//! only created and replaced.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UpdateVersion,
};
use url::Url;

use super::objects::generic;
use crate::store::files::{clear, names_in};

/// Versions below the newest that stay. Whoever created a version knows by them that it was the first to do so, even if
/// others have replaced it since; and a listing during replacements still sees one.
const KEPT: u64 = 32;
/// Attempts to read an object that is replaced meanwhile.
const LOOKS: usize = 20;
/// Age from which an unfinished file belongs to a killed process.
const ABANDONED: Duration = Duration::from_hours(24);

/// Objects in the folders of this machine, by absolute path.
#[derive(Debug)]
pub(super) struct SharedFolder(LocalFileSystem);

impl fmt::Display for SharedFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedFolder({})", self.0)
    }
}

fn versions_of(object: &Path) -> Result<Path> {
    Ok(Path::parse(format!("{object}.next"))?)
}

impl SharedFolder {
    pub(super) fn new() -> Self {
        Self(LocalFileSystem::new())
    }

    /// Returns the numbers of an object's versions above 0, the newest last.
    async fn versions(&self, object: &Path) -> Result<Vec<u64>> {
        let found = self.0.list_with_delimiter(Some(&versions_of(object)?)).await?;
        let names = found.objects.iter().filter_map(|found| found.location.filename());
        let mut numbers: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    async fn newest(&self, object: &Path) -> Result<u64> {
        Ok(self.versions(object).await?.last().copied().unwrap_or(0))
    }

    async fn replace(&self, object: &Path, content: PutPayload, replaced: &UpdateVersion) -> Result<PutResult> {
        let known: Option<u64> = replaced.e_tag.as_ref().and_then(|number| number.parse().ok());
        let known = known.ok_or_else(|| generic("a version of this folder is a number"))?;
        if self.newest(object).await? != known {
            return Err(lost(object));
        }
        let number = known + 1;
        let file = versions_of(object)?.join(number.to_string());
        match self.0.put_opts(&file, content, PutOptions::from(PutMode::Create)).await {
            Err(Error::AlreadyExists { .. }) => return Err(lost(object)),
            made => drop(made?),
        }
        // Only now is it known whether others were faster: this process may have slept before it wrote, until the file of
        // its number was removed. If few replaced it, it was not: they have replaced this version.
        let versions = self.versions(object).await?;
        let newest = versions.last().copied().unwrap_or(number);
        if newest > number + KEPT {
            self.remove(&file).await;
            return Err(lost(object));
        }
        for old in versions.iter().filter(|version| **version + KEPT < newest) {
            self.remove(&versions_of(object)?.join(old.to_string())).await;
        }
        Ok(PutResult { e_tag: Some(number.to_string()), version: None })
    }

    /// Removes a version that counts no more. If it stays, it is harmless.
    async fn remove(&self, file: &Path) {
        if let Err(error) = self.0.delete(file).await {
            tracing::debug!("cannot remove {file}: {error}");
        }
    }
}

fn lost(object: &Path) -> Error {
    Error::Precondition { path: object.to_string(), source: "another version is there".into() }
}

#[async_trait]
impl ObjectStore for SharedFolder {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        if let PutMode::Update(version) = &opts.mode {
            return self.replace(location, payload, version).await;
        }
        let made = self.0.put_opts(location, payload, opts).await?;
        Ok(PutResult { e_tag: Some("0".to_owned()), ..made })
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        for _ in 0..LOOKS {
            let newest = self.newest(location).await?;
            let file = if newest == 0 { location.clone() } else { versions_of(location)?.join(newest.to_string()) };
            match self.0.get_opts(&file, options.clone()).await {
                // Replaced and removed since it was listed.
                Err(Error::NotFound { .. }) if newest > 0 => {}
                Err(error) => return Err(error),
                Ok(mut found) => {
                    found.meta.e_tag = Some(newest.to_string());
                    return Ok(found);
                }
            }
        }
        Err(generic(format!("{location} is replaced faster than it can be read")))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.0.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.copy_opts(from, to, options).await
    }
}

/// Removes unfinished files of killed processes from the folder of a shared store: no listing shows them. Clocks of
/// machines differ, so a file counts as abandoned a day after it was written, by the clock of the file server.
pub(super) fn sweep_unfinished(url: &str, now: f64) {
    let folder = Url::parse(url).ok().filter(|url| url.scheme() == "file").and_then(|url| url.to_file_path().ok());
    // The shared folder may be reached through links.
    let Some(folder) = folder.and_then(|folder| folder.canonicalize().ok()) else { return };
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(now.max(0.0)).saturating_sub(ABANDONED);
    let mut pending: Vec<PathBuf> = vec![folder];
    while let Some(folder) = pending.pop() {
        for (name, path) in names_in(&folder) {
            // Links are not followed: what is behind them is not the store's.
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            if metadata.is_dir() {
                pending.push(path);
            } else if is_unfinished(&name) && metadata.modified().is_ok_and(|changed| changed < before) {
                clear(&path);
            }
        }
    }
}

/// Whether a file is one that `object_store` renames once it is complete: `<name>#<digits>`.
fn is_unfinished(name: &str) -> bool {
    let digits = name.rsplit_once('#').map(|(_, digits)| digits);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::path::Path as FilePath;
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::store::remote::objects::{Objects, Put, get, put_if};

    fn object(folder: &FilePath, name: &str) -> Path {
        Path::from_absolute_path(folder.join(name)).unwrap()
    }

    fn text(text: &str) -> Bytes {
        Bytes::copy_from_slice(text.as_bytes())
    }

    fn made(put: Put) -> Option<UpdateVersion> {
        match put {
            Put::Made(version) => Some(version),
            Put::Refused(_) => None,
        }
    }

    async fn now(objects: &Objects, path: &Path) -> String {
        let (content, _) = get(objects, path).await.unwrap().unwrap();
        String::from_utf8(content.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_machine_that_slept_replaces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let objects: Objects = Arc::new(SharedFolder::new());
        let path = object(folder.path(), "claim");
        let first = made(put_if(&objects, &path, text("one"), None).await.unwrap()).unwrap();
        assert!(made(put_if(&objects, &path, text("other"), None).await.unwrap()).is_none());
        // Another machine takes it over and beats; the files of early numbers are removed.
        let mut version = first.clone();
        let mut versions = vec![first];
        for beat in 1..KEPT + 8 {
            version =
                made(put_if(&objects, &path, text(&format!("other {beat}")), Some(version)).await.unwrap()).unwrap();
            versions.push(version.clone());
        }
        versions.pop();
        for slept in versions {
            assert!(made(put_if(&objects, &path, text("one again"), Some(slept)).await.unwrap()).is_none());
            assert_eq!(now(&objects, &path).await, format!("other {}", KEPT + 7));
        }
        let left = fs::read_dir(folder.path().join("claim.next")).unwrap().count();
        assert!(left <= KEPT as usize + 1, "{left} files");
        assert!(made(put_if(&objects, &path, text("more"), Some(version)).await.unwrap()).is_some());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_many_that_replace_one_version_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let objects: Objects = Arc::new(SharedFolder::new());
        let path = object(folder.path(), "floor.json");
        put_if(&objects, &path, text("0"), None).await.unwrap();
        let add = |objects: Objects, path: Path| async move {
            loop {
                let (content, version) = get(&objects, &path).await.unwrap().unwrap();
                let sum: u64 = String::from_utf8(content.to_vec()).unwrap().parse().unwrap();
                if made(put_if(&objects, &path, text(&(sum + 1).to_string()), Some(version)).await.unwrap()).is_some() {
                    return;
                }
            }
        };
        let tasks: Vec<_> = (0..32).map(|_| tokio::spawn(add(Arc::clone(&objects), path.clone()))).collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(now(&objects, &path).await, "32", "no update is lost");
    }

    #[test]
    fn unfinished_files_of_killed_processes_go() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("artifacts/ab");
        fs::create_dir_all(&below).unwrap();
        let old = SystemTime::now() - ABANDONED * 2;
        for (name, time) in
            [("part.parquet#1", old), ("young.parquet#1", SystemTime::now()), ("part.parquet", old), ("odd#name", old)]
        {
            fs::write(below.join(name), "half").unwrap();
            fs::File::options().append(true).open(below.join(name)).unwrap().set_modified(time).unwrap();
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        sweep_unfinished(Url::from_directory_path(folder.path()).unwrap().as_str(), now);
        let left: Vec<String> = names_in(&below).into_iter().map(|(name, _)| name).collect();
        assert_eq!(left, ["odd#name", "part.parquet", "young.parquet#1"]);
    }
}

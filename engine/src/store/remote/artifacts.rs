//! Artifacts of a shared store: checks, fetches and uploads them.

use std::path::{Component, Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;

use super::objects::{self, Objects};
use super::{AT_ONCE, Remote};
use crate::fingerprint::{Digest, hash_file};
use crate::store::artifact::{Artifact, ArtifactId};
use crate::store::error::StoreError;
use crate::store::intake::artifact_place;
use crate::store::layout::Store;
use crate::store::reader::Damage;

/// The description file of an artifact.
const DESCRIPTION: &str = "artifact.json";

fn place(id: &ArtifactId, name: &str) -> Path {
    Path::from(format!("{}/{name}", artifact_place(id)))
}

/// Whether the name stays below the artifact's folder.
fn is_below(name: &str) -> bool {
    !name.is_empty() && FilePath::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

impl Remote {
    /// Returns the description of an artifact if it exists and matches its id.
    pub(in crate::store) fn artifact(&self, id: &ArtifactId) -> Option<Artifact> {
        if let Some(known) = self.learnt().descriptions.get(id) {
            return Some(known.clone());
        }
        let (objects, path) = (Arc::clone(&self.objects), place(id, DESCRIPTION));
        let found = self.ask("read an artifact of", async move { objects::get(&objects, &path).await })?;
        let artifact: Artifact = serde_json::from_slice(&found.0).ok()?;
        if artifact.id() != *id || !artifact.parts.iter().all(|part| is_below(&part.name)) {
            return None;
        }
        self.learnt().descriptions.insert(*id, artifact.clone());
        Some(artifact)
    }

    /// Checks that all files exist with their sizes, using what was learnt before.
    pub(in crate::store) fn check(&self, id: &ArtifactId) -> Result<(), Damage> {
        if self.learnt().broken.contains(id) {
            return Err(Damage::Corrupt);
        }
        if self.learnt().whole.contains(id) {
            return Ok(());
        }
        let artifact = self.artifact(id).ok_or(Damage::Missing)?;
        let (objects, prefix) = (Arc::clone(&self.objects), Path::from(artifact_place(id)));
        let there = self.ask("list", async move { objects::list(&objects, &prefix).await });
        for part in &artifact.parts {
            let name = Path::from(part.name.as_str());
            match there.iter().find(|(found, _)| found == name.as_ref()) {
                Some((_, bytes)) if *bytes == part.bytes => {}
                Some(_) => return Err(Damage::Corrupt),
                None => return Err(Damage::Missing),
            }
        }
        self.learnt().whole.insert(*id);
        Ok(())
    }

    /// Fetches all files of an artifact into a folder and compares their digests.
    fn fetch(&self, id: &ArtifactId, folder: PathBuf) -> Result<Result<Artifact, Damage>, StoreError> {
        let Some(artifact) = self.artifact(id) else { return Ok(Err(Damage::Missing)) };
        let (objects, id, parts) = (Arc::clone(&self.objects), *id, artifact.parts.clone());
        let fetched = self.call("fetch an artifact from", async move {
            let fetches: Vec<_> = parts
                .into_iter()
                .map(|part| {
                    fetch_part(Arc::clone(&objects), place(&id, &part.name), folder.join(&part.name), part.digest)
                })
                .collect();
            stream::iter(fetches).buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await
        })?;
        let Some(damage) = fetched.into_iter().find_map(Result::err) else { return Ok(Ok(artifact)) };
        let short = id.digest().short();
        tracing::warn!("the artifact {short} is damaged in the shared store ({damage:?}): it counts as missing");
        self.learnt().broken.insert(id);
        Ok(Err(damage))
    }

    /// Uploads an artifact, its description last. Skips it if it is complete there, unless it was damaged.
    pub(super) fn send(&self, id: &ArtifactId, artifact: &Artifact, folder: PathBuf) -> Result<(), StoreError> {
        let broken = self.learnt().broken.contains(id);
        if !broken && self.check(id).is_ok() {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(artifact).map_err(|error| StoreError::Location(error.to_string()))?;
        let names: Vec<String> = artifact.parts.iter().map(|part| part.name.clone()).collect();
        let (objects, target) = (Arc::clone(&self.objects), *id);
        self.call("send an artifact to", async move {
            let sends: Vec<_> = names
                .into_iter()
                .map(|name| objects::upload(Arc::clone(&objects), place(&target, &name), folder.join(&name)))
                .collect();
            stream::iter(sends).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
            describe(&objects, &target, text).await
        })?;
        let mut learnt = self.learnt();
        learnt.broken.remove(id);
        learnt.whole.insert(*id);
        learnt.descriptions.insert(*id, artifact.clone());
        Ok(())
    }
}

/// Fetches a file and compares its digest.
async fn fetch_part(
    objects: Objects,
    path: Path,
    file: PathBuf,
    wanted: Digest,
) -> object_store::Result<Result<(), Damage>> {
    if !objects::download(&objects, &path, file.clone()).await? {
        return Ok(Err(Damage::Missing));
    }
    let digest = tokio::task::spawn_blocking(move || hash_file(&file)).await;
    let same = matches!(digest, Ok(Ok(digest)) if digest == wanted);
    Ok(if same { Ok(()) } else { Err(Damage::Corrupt) })
}

async fn describe(objects: &Objects, id: &ArtifactId, text: Vec<u8>) -> object_store::Result<()> {
    objects::put(objects, &place(id, DESCRIPTION), Bytes::from(text)).await.map(drop)
}

impl Store {
    /// Ensures that an artifact's files are local. In a store that is not shared, this is [`Store::check`].
    ///
    /// # Errors
    /// Fails if the shared store cannot be reached; the inner error is the damage.
    pub fn fetch(&self, id: &ArtifactId) -> Result<Result<(), Damage>, StoreError> {
        let here = self.check_here(id);
        let Some(remote) = self.remote.as_ref().filter(|_| here.is_err()) else { return Ok(here) };
        let folder = self.temporary();
        std::fs::create_dir_all(&folder).map_err(StoreError::io("create", &folder))?;
        let fetched = remote.fetch(id, folder.clone()).and_then(|fetched| self.put_in_place(id, &folder, fetched));
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::debug!("cannot remove {}: {error}", folder.display());
        }
        fetched
    }

    fn put_in_place(
        &self,
        id: &ArtifactId,
        folder: &FilePath,
        fetched: Result<Artifact, Damage>,
    ) -> Result<Result<(), Damage>, StoreError> {
        let artifact = match fetched {
            Ok(artifact) => artifact,
            Err(damage) => return Ok(Err(damage)),
        };
        self.discard(id)?;
        let text = serde_json::to_vec_pretty(&artifact).map_err(|error| StoreError::Location(error.to_string()))?;
        let path = folder.join(DESCRIPTION);
        std::fs::write(&path, text).map_err(StoreError::io("write", &path))?;
        match self.rename(folder, &self.artifact_folder(id)) {
            // Another thread or process has fetched it meanwhile.
            Err(_) if self.check_here(id).is_ok() => Ok(Ok(())),
            outcome => outcome.map(Ok),
        }
    }

    /// Uploads a local artifact.
    pub(super) fn send_artifact(&self, id: &ArtifactId) -> Result<(), StoreError> {
        match (&self.remote, self.artifact_here(id)) {
            (Some(remote), Some(artifact)) => remote.send(id, &artifact, self.artifact_folder(id)),
            _ => Ok(()),
        }
    }
}

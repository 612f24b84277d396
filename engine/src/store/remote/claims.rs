//! Leases between machines: an object that names the holder and changes while the holder lives.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::UpdateVersion;
use object_store::path::Path;

use super::Remote;
use super::objects::{self, Objects, Put};
use crate::fingerprint::NodeKey;
use crate::store::error::StoreError;
use crate::store::heartbeat::{Claim, Heartbeat, Watch};

/// Time limit for releasing a lease.
const AT_THE_END: Duration = Duration::from_secs(3);

/// Held while this process computes a key that other machines might compute.
#[derive(Debug)]
pub(in crate::store) struct RemoteLease {
    _beating: Heartbeat,
    remote: Arc<Remote>,
    path: Path,
    claim: Claim,
}

impl RemoteLease {
    /// Whether the object still contains this claim.
    pub(in crate::store) fn is_ours(&self) -> Result<bool, StoreError> {
        let (objects, path, claim) = (Arc::clone(&self.remote.objects), self.path.clone(), self.claim.clone());
        self.remote.call("look at a lease in", async move { Ok(ours(&objects, &path, &claim).await?.is_some()) })
    }
}

/// Reads a claim object and its version.
async fn look(objects: &Objects, path: &Path) -> object_store::Result<Option<(Option<Claim>, UpdateVersion)>> {
    let found = objects::get(objects, path).await?;
    Ok(found.map(|(text, version)| (serde_json::from_slice(&text).ok(), version)))
}

fn text(claim: &Claim) -> Bytes {
    Bytes::from(serde_json::to_vec(claim).unwrap_or_default())
}

/// Returns the version of a claim object if it contains this claim.
async fn ours(objects: &Objects, path: &Path, claim: &Claim) -> object_store::Result<Option<UpdateVersion>> {
    let found = look(objects, path).await?;
    let same = |found: &Option<Claim>| found.as_ref().is_some_and(|found| found.holder == claim.holder);
    Ok(found.filter(|(found, _)| same(found)).map(|(_, version)| version))
}

/// Replaces that version by a claim. After a lost answer, the object is read back. Returns `None` if it is not ours.
async fn renew(
    objects: &Objects,
    path: &Path,
    claim: &Claim,
    version: UpdateVersion,
) -> object_store::Result<Option<UpdateVersion>> {
    if let Put::Made(version) = objects::replace(objects, path, text(claim), version).await? {
        return Ok(Some(version));
    }
    ours(objects, path, claim).await
}

/// Takes a claim that is free: never taken, released, or held by a dead process.
async fn take(
    objects: Objects,
    path: Path,
    claim: Claim,
    watch: Watch,
) -> object_store::Result<(Option<UpdateVersion>, Watch)> {
    let mut watch = watch;
    let Some((found, version)) = look(&objects, &path).await? else {
        let put = objects::put_new(&objects, &path, text(&claim)).await?;
        let taken = match put {
            Put::Made(version) => Some(version),
            // It may be ours: the answer to a first attempt may have been lost.
            Put::Refused => ours(&objects, &path, &claim).await?,
        };
        return Ok((taken, watch));
    };
    let seen = format!("{version:?} {found:?}");
    let free = found.is_none_or(|found| found.free || found.machine == claim.machine);
    if !free && !watch.is_dead(&seen) {
        return Ok((None, watch));
    }
    Ok((renew(&objects, &path, &claim, version).await?, watch))
}

impl Remote {
    /// Takes the lease on a key among machines, or returns `None` while another machine holds it. This process already
    /// holds the lease among processes of this machine, so a claim of this machine belongs to a dead process.
    pub(in crate::store) fn try_lease(
        self: &Arc<Self>,
        key: &NodeKey,
        watch: &mut Watch,
    ) -> Result<Option<RemoteLease>, StoreError> {
        let (objects, path) = (Arc::clone(&self.objects), Path::from(format!("leases/{key}")));
        let claim = Claim::new(self.machine.clone());
        let taking = take(Arc::clone(&objects), path.clone(), claim.clone(), std::mem::take(watch));
        let (taken, seen) = self.call("take a lease in", taking)?;
        *watch = seen;
        let Some(version) = taken else { return Ok(None) };
        let held = (Arc::clone(self), path.clone(), claim.clone());
        let (remote, mut claim, mut version) = (Arc::clone(self), claim, Some(version));
        let beat = move |last: bool| {
            let Some(known) = version.take() else { return };
            claim.beat(last);
            let (objects, path, next) = (Arc::clone(&objects), path.clone(), claim.clone());
            let before = known.clone();
            // A release must not block for long: if it fails, others wait until the claim counts as dead.
            let most = if last { AT_THE_END } else { Duration::from_mins(1) };
            let renewing = async move {
                let renewed = tokio::time::timeout(most, renew(&objects, &path, &next, known)).await;
                renewed.unwrap_or_else(|_| Err(objects::generic("no answer in time")))
            };
            version = match remote.wait(renewing) {
                Ok(renewed) => renewed,
                Err(error) => {
                    tracing::debug!("cannot renew a lease: {}", objects::reason(&error));
                    Some(before)
                }
            };
        };
        let (held_by, held_at, held_as) = held;
        Ok(Some(RemoteLease { _beating: Heartbeat::start(beat), remote: held_by, path: held_at, claim: held_as }))
    }
}

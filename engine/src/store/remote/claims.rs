//! Leases between machines: an object that names the holder and changes while the holder lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use object_store::UpdateVersion;
use object_store::path::Path;

use super::Remote;
use super::objects::{self, Objects, Put, Reply};
use crate::fingerprint::NodeKey;
use crate::store::error::{StoreError, reason};
use crate::store::lease::heartbeat::{Claim, Heartbeat, Watch};

/// Time limit for releasing a lease.
const AT_THE_END: Duration = Duration::from_secs(3);

/// Held while this process computes a key that other machines might compute.
#[derive(Debug)]
pub(in crate::store) struct RemoteLease {
    _beating: Heartbeat,
    remote: Arc<Remote>,
    path: Path,
    claim: Claim,
    /// Whether a heartbeat found the claim of another machine.
    lost: Arc<AtomicBool>,
}

impl RemoteLease {
    /// Whether the object still contains this claim.
    pub(in crate::store) fn is_ours(&self) -> Result<bool, StoreError> {
        let ours = ours(&self.remote.objects, &self.path, &self.claim);
        Ok(!self.is_lost() && self.remote.call("look at a lease in", ours)?.is_some())
    }

    /// Whether a heartbeat found that another machine has taken it.
    pub(in crate::store) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

/// Reads a claim object and its version.
async fn look(objects: &Objects, path: &Path) -> Reply<Option<(Option<Claim>, UpdateVersion)>> {
    Ok(objects::get(objects, path).await?.map(|(text, version)| (serde_json::from_slice(&text).ok(), version)))
}

/// The version of a claim object, if it contains this claim.
type Ours = Option<UpdateVersion>;

async fn ours(objects: &Objects, path: &Path, claim: &Claim) -> Reply<Ours> {
    match look(objects, path).await? {
        Some((Some(found), version)) if found.holder == claim.holder => Ok(Some(version)),
        _ => Ok(None),
    }
}

/// Puts a claim in place of the `known` version (`None`: of nothing). Returns `None` if it is not ours: the object is read
/// back, since the answer to a first attempt may have been lost.
async fn put(objects: &Objects, path: &Path, claim: &Claim, known: Option<UpdateVersion>) -> Reply<Ours> {
    let text = Bytes::from(serde_json::to_vec(claim).unwrap_or_default());
    if let Put::Made(version) = objects::put_if(objects, path, text, known).await? {
        return Ok(Some(version));
    }
    ours(objects, path, claim).await
}

/// Takes a claim that is free: never taken, released, or held by a dead process.
async fn take(objects: &Objects, path: &Path, claim: &Claim, watch: &mut Watch) -> Reply<Ours> {
    let Some((found, version)) = look(objects, path).await? else { return put(objects, path, claim, None).await };
    let seen = format!("{version:?} {found:?}");
    let free = found.is_none_or(|found| found.free || found.machine == claim.machine);
    if free || watch.is_dead(&seen) { put(objects, path, claim, Some(version)).await } else { Ok(None) }
}

impl Remote {
    /// Takes the lease on a key among machines, or returns `None` while another machine holds it. This process already
    /// holds the lease among processes of this machine, so a claim of this machine belongs to a dead process.
    pub(in crate::store) fn try_lease(
        self: &Arc<Self>,
        key: &NodeKey,
        watch: &mut Watch,
    ) -> Result<Option<RemoteLease>, StoreError> {
        let (path, claim) = (Path::from(format!("leases/{key}")), Claim::new(self.machine.clone()));
        let mut version = self.call("take a lease in", take(&self.objects, &path, &claim, watch))?;
        if version.is_none() {
            return Ok(None);
        }
        let (remote, object, mut next) = (Arc::clone(self), path.clone(), claim.clone());
        let lost = Arc::<AtomicBool>::default();
        let is_lost = Arc::clone(&lost);
        let heartbeat = Heartbeat::start(move |last| {
            let Some(known) = version.take() else { return };
            next.beat(last);
            // A release must not block for long: if it fails, others wait until the claim counts as dead.
            let most = if last { AT_THE_END } else { Duration::from_mins(1) };
            let renewed = remote.wait(async {
                match tokio::time::timeout(most, put(&remote.objects, &object, &next, Some(known.clone()))).await {
                    Ok(renewed) => renewed,
                    Err(_) => Err(objects::generic("no answer in time")),
                }
            });
            version = renewed.unwrap_or_else(|error| {
                tracing::debug!("cannot renew a lease: {}", reason(&error));
                // Not lost for that: the next heartbeat tries again, and others wait longer than one of them.
                Some(known)
            });
            // Never taken back: another machine works on the key now, or has finished it.
            is_lost.store(version.is_none(), Ordering::SeqCst);
        });
        Ok(Some(RemoteLease { _beating: heartbeat, remote: Arc::clone(self), path, claim, lost }))
    }
}

//! The second guard of leases: claim files, for file systems whose locks fail or do not reach other machines.
//!
//! Only one process can create a claim file, and its content changes while the holder lives. On one machine, locks
//! decide: if this process holds the lock, a claim of this machine belongs to a dead process. Claims of other machines
//! are watched for changes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::heartbeat::{Claim, DEAD, Heartbeat, Watch};
use super::owner::{is_alive, machine};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{clear, names_in};
use crate::store::layout::Store;
use crate::store::nofollow;

/// Length of a claim file.
const LENGTH: usize = 256;

/// A held claim. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct ClaimFile {
    _beating: Heartbeat,
    path: PathBuf,
    holder: String,
}

impl ClaimFile {
    /// Whether the file still contains this claim.
    pub(crate) fn is_ours(&self) -> bool {
        is_held_by(&self.path, &self.holder)
    }
}

/// What a process has seen of the others that use the store.
#[derive(Debug, Default)]
pub struct Neighbours {
    watches: BTreeMap<PathBuf, Watch>,
}

fn is_held_by(path: &Path, holder: &str) -> bool {
    matches!(read(path), Some((_, Some(claim))) if claim.holder == holder)
}

fn read(path: &Path) -> Option<(String, Option<Claim>)> {
    let text = fs::read_to_string(path).ok()?;
    let claim = serde_json::from_str(&text).ok();
    Some((text, claim))
}

/// Returns the text of a claim: all have one length, so that a heartbeat overwrites the one before.
fn text_of(claim: &Claim) -> Vec<u8> {
    let mut text = serde_json::to_vec(claim).unwrap_or_default();
    text.resize(text.len().max(LENGTH), b' ');
    text
}

fn overwrite(file: &fs::File, claim: &Claim) -> std::io::Result<()> {
    file.write_all_at(&text_of(claim), 0)?;
    // A network file system sends what was written when a handle is closed. A flush would wait for the disk.
    file.try_clone().map(drop)
}

/// A claim, and those of heirs that took the right to replace it and did not finish: one that was killed meanwhile leaves
/// its claim behind. The file of a right is named by all claims before it, so each right is taken once.
struct Succession {
    texts: Vec<String>,
    /// The machine of each claim; `None` if the claim cannot be parsed.
    machines: Vec<Option<String>>,
    /// Files of the rights that were taken.
    taken: Vec<PathBuf>,
    /// File of the right that is free.
    right: PathBuf,
}

impl Succession {
    fn read(path: &Path) -> Option<Self> {
        let (text, claim) = read(path)?;
        let (mut texts, mut machines) = (vec![text], vec![claim.map(|claim| claim.machine)]);
        let mut taken = Vec::new();
        loop {
            let of = crate::fingerprint::hash_bytes(texts.concat().as_bytes()).short();
            let right = path.with_extension(format!("heir-{of}"));
            let Some((text, claim)) = read(&right) else { return Some(Self { texts, machines, taken, right }) };
            texts.push(text);
            machines.push(claim.map(|claim| claim.machine));
            taken.push(right);
        }
    }
}

impl Store {
    /// Creates a claim file atomically. Returns `false` if one exists.
    fn make_claim(&self, path: &Path, claim: &Claim) -> Result<bool, StoreError> {
        let (temporary, text) = (self.temporary(), text_of(claim));
        // Written elsewhere and linked: nobody sees a claim without its text, and one process alone can link the name,
        // on NFS too.
        nofollow::write(&temporary, &text).context("write", &temporary)?;
        let mut created = nofollow::hard_link(&temporary, path);
        nofollow::remove_file(&temporary).context("remove", &temporary)?;
        if created.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
            // The file system has no hard links.
            created = nofollow::create_new(path).and_then(|mut file| file.write_all(&text));
        }
        match created {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error).context("create", path),
        }
    }

    /// Takes the claim at `path`, or returns `None` while another process holds it. `alone`: a lock proves that no
    /// process of this machine holds it.
    pub(super) fn claim(&self, path: PathBuf, alone: bool, watch: &mut Watch) -> Result<Option<ClaimFile>, StoreError> {
        let claim = Claim::new(machine().to_owned());
        if self.make_claim(&path, &claim)? {
            return Ok(Some(guard(path, claim)));
        }
        let Some(line) = Succession::read(&path) else { return Ok(None) };
        let left = alone && line.machines.iter().all(|found| found.as_ref() == Some(&claim.machine));
        let is_taken = (left || watch.is_dead(&line.texts.concat())) && self.inherit(&path, &line, &claim)?;
        Ok(if is_taken { Some(guard(path, claim)) } else { None })
    }

    /// Replaces a dead claim unless another heir was faster.
    fn inherit(&self, path: &Path, line: &Succession, claim: &Claim) -> Result<bool, StoreError> {
        if !self.make_claim(&line.right, claim)? {
            return Ok(false);
        }
        // Another heir may have finished since the claim was read.
        let same = read(path).is_some_and(|(seen, _)| line.texts.first() == Some(&seen));
        if same {
            let temporary = self.temporary();
            nofollow::write(&temporary, text_of(claim)).context("write", &temporary)?;
            // A new file under the name: the heartbeat of a holder that wakes up writes into the old one.
            self.rename(&temporary, path)?;
        }
        // After the claim was replaced, whose text names them; the own right last. If this process is killed here, they
        // belong to no claim any more and block nobody.
        for right in &line.taken {
            clear(right);
        }
        nofollow::remove_file(&line.right).context("remove", &line.right)?;
        Ok(same)
    }

    fn users_folder(&self) -> PathBuf {
        self.root().join("leases").join("users")
    }

    /// Announces to other machines that this process uses the store. A read-only store is never collected, so a failure
    /// is harmless.
    pub(super) fn announce(&self) -> Option<ClaimFile> {
        let mut claim = Claim::new(machine().to_owned());
        self.owner().clone_into(&mut claim.owner);
        let folder = self.users_folder();
        nofollow::create_folder(&folder).ok()?;
        let path = folder.join(format!("{}.json", claim.holder));
        if self.make_claim(&path, &claim).ok()? { Some(guard(path, claim)) } else { None }
    }

    /// Whether no other process, of any machine, has announced that it uses the store. `own`: the claim of this one. A claim
    /// of this machine belongs to a dead process if its lock is free; one of another machine, once it has not changed for
    /// long.
    pub(in crate::store) fn is_alone_beside(&self, own: &ClaimFile, neighbours: &mut Neighbours) -> bool {
        let mut alone = true;
        for (_, path) in names_in(&self.users_folder()) {
            if path == own.path {
                continue;
            }
            let Some((text, claim)) = read(&path) else { continue };
            let is_dead_here = claim.is_some_and(|claim| {
                let is_other = !claim.owner.is_empty() && claim.owner != self.owner() && claim.machine == machine();
                // Where not even the own lock can be seen, a lock that is not seen says nothing.
                is_other && is_alive(&self.root().join("tmp"), self.owner()) && !self.is_alive(&claim.owner)
            });
            if is_dead_here || neighbours.watches.entry(path.clone()).or_default().is_dead(&text) {
                clear(&path);
            } else {
                alone = false;
            }
        }
        alone
    }

    /// Whether a process of another machine uses the store. Takes some seconds if there are claims. `alone`: a lock
    /// proves that no process of this machine does.
    pub(super) fn is_used_elsewhere(&self, alone: bool) -> bool {
        let mut others: Vec<(PathBuf, String)> = Vec::new();
        for (_, path) in names_in(&self.users_folder()) {
            match read(&path) {
                Some((_, Some(claim))) if alone && claim.machine == machine() => clear(&path),
                Some((seen, _)) => others.push((path, seen)),
                None => {}
            }
        }
        let start = Instant::now();
        while !others.is_empty() && start.elapsed() < DEAD {
            std::thread::sleep(Duration::from_millis(250));
            if others.iter().any(|(path, seen)| read(path).is_some_and(|found| found.0 != *seen)) {
                return true;
            }
        }
        for (path, _) in &others {
            clear(path);
        }
        false
    }
}

/// Renews a claim until the guard is dropped.
fn guard(path: PathBuf, mut claim: Claim) -> ClaimFile {
    let (own_path, holder) = (path.clone(), claim.holder.clone());
    let file = nofollow::open_to_write(&path);
    let heartbeat = Heartbeat::start(move |last| {
        // Taken over meanwhile: the claim of that name is another one's.
        if !is_held_by(&path, &claim.holder) {
            return;
        }
        claim.beat(last);
        let result = match &file {
            _ if last => nofollow::remove_file(&path),
            // Into the file of this claim, not under its name: if this process sleeps here until another one has
            // taken over, it writes into a file that has no name any more.
            Ok(file) => overwrite(file, &claim),
            Err(error) => Err(error.kind().into()),
        };
        if let Err(error) = result {
            tracing::debug!("cannot update a claim: {error}");
        }
    });
    ClaimFile { _beating: heartbeat, path: own_path, holder }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_heir_that_was_killed_blocks_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let path = store.root().join("leases").join("key.held");
        let here = || Claim::new(machine().to_owned());
        assert!(store.make_claim(&path, &here()).unwrap());
        for heirs in 1..3 {
            // Killed after it took the right, before it replaced the claim.
            let line = Succession::read(&path).unwrap();
            assert!(store.make_claim(&line.right, &here()).unwrap());
            assert_eq!(Succession::read(&path).unwrap().taken.len(), heirs);
        }
        let mut watch = Watch::default();
        assert!(store.claim(path.clone(), false, &mut watch).unwrap().is_none(), "no lock proves that they are dead");
        let guard = store.claim(path.clone(), true, &mut watch).unwrap().unwrap();
        assert!(guard.is_ours());
        let left = fs::read_dir(path.parent().unwrap()).unwrap().filter_map(Result::ok);
        assert!(!left.into_iter().any(|entry| entry.file_name().to_string_lossy().contains("heir")));
        drop(guard);
        assert!(!path.exists());
    }

    #[test]
    fn a_holder_that_slept_overwrites_no_heir() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let path = store.root().join("leases").join("key.held");
        let (mut slept, heir) = (Claim::new(machine().to_owned()), Claim::new(machine().to_owned()));
        assert!(store.make_claim(&path, &slept).unwrap());
        let file = fs::File::options().write(true).open(&path).unwrap();
        for beat in 1..3 {
            slept.beat(false);
            overwrite(&file, &slept).unwrap();
            assert_eq!(read(&path).unwrap().1.as_ref(), Some(&slept), "beat {beat}");
        }
        let line = Succession::read(&path).unwrap();
        assert!(store.inherit(&path, &line, &heir).unwrap());
        slept.beat(false);
        overwrite(&file, &slept).unwrap();
        assert!(is_held_by(&path, &heir.holder));
    }

    #[test]
    fn one_of_two_heirs_replaces_a_claim() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let path = store.root().join("leases").join("key.held");
        assert!(store.make_claim(&path, &Claim::new(machine().to_owned())).unwrap());
        let line = Succession::read(&path).unwrap();
        let (one, other) = (Claim::new(machine().to_owned()), Claim::new(machine().to_owned()));
        assert!(store.inherit(&path, &line, &one).unwrap());
        assert!(!store.inherit(&path, &line, &other).unwrap(), "the claim that it read is no more");
        assert!(is_held_by(&path, &one.holder));
    }
}

//! Identifies each open store by a random name, and proves by a lock that its process is alive.
//!
//! Process ids repeat: two containers, or two machines on one file system, can have equal ids and do not see each
//! other's processes. Names under `tmp/` therefore start with a random number. Their owner locks
//! `tmp/<name>.<machine>.lock`, and the operating system releases the lock when the process ends. Locks may not reach
//! other machines: files of another machine are removed once they are old.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::store::files::{clear, names_in};
use crate::store::nofollow;

/// Without a decisive lock, files unchanged for this long are removed.
const ABANDONED: Duration = Duration::from_hours(24);

/// Identifies this running system among all others.
pub(crate) fn machine() -> &'static str {
    static MACHINE: OnceLock<String> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Without one, each process is a machine of its own: its locks then prove nothing to others.
        if boot.trim().is_empty() { format!("{:016x}", rand::random::<u64>()) } else { boot.trim().to_owned() }
    })
}

/// The name of an open store and its clones.
#[derive(Debug)]
pub(crate) struct Owner {
    name: String,
    serial: AtomicU64,
    /// Taken with the first path. `None` if that failed, as in a read-only store.
    lock: OnceLock<Option<Lock>>,
}

impl Owner {
    pub(crate) fn new() -> Self {
        Self { name: format!("{:016x}", rand::random::<u64>()), serial: AtomicU64::default(), lock: OnceLock::new() }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path in `folder` that no other owner uses and that [`sweep`] skips while this owner lives.
    pub(crate) fn path_in(&self, folder: &Path) -> PathBuf {
        self.lock.get_or_init(|| Lock::take(folder, &self.name));
        folder.join(format!("{}-{}", self.name, self.serial.fetch_add(1, Ordering::Relaxed)))
    }
}

/// Returns the lock file of an owner on this machine.
fn lock_path(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.{}.lock", machine()))
}

/// Returns the owner of a file under `tmp/`: the name up to the first `-` or `.`.
fn owner_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.split(['-', '.']).next().unwrap_or_default().to_owned()
}

#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(folder: &Path, name: &str) -> Option<Self> {
        // The file gets its final name once it is locked, so no sweep finds it unlocked.
        let (fresh, path) = (folder.join(format!("{name}-new.lock")), lock_path(folder, name));
        let file = nofollow::create_new(&fresh).ok()?;
        if file.try_lock().is_ok() && nofollow::rename(&fresh, &path).is_ok() {
            return Some(Self { path, _file: file });
        }
        tracing::debug!("cannot lock {}", path.display());
        clear(&fresh);
        None
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let owner = owner_of(&self.path);
        let others = self.path.parent().map(names_in).unwrap_or_default();
        // If files remain, the lock file stays too and shows the next sweep that they can be removed.
        if !others.iter().any(|(_, path)| *path != self.path && owner_of(path) == owner) {
            clear(&self.path);
        }
    }
}

/// What the lock file of an owner shows.
enum Life {
    Alive,
    /// Held while the files are removed.
    Dead(File),
    /// No lock file on this machine, or locks do not work.
    Unknown,
}

fn life(lock: &Path) -> Life {
    // NFS locks only files that are open for writing.
    let Ok(file) = nofollow::open_to_write(lock) else { return Life::Unknown };
    match file.try_lock() {
        Ok(()) => Life::Dead(file),
        Err(TryLockError::WouldBlock) => Life::Alive,
        Err(TryLockError::Error(_)) => Life::Unknown,
    }
}

/// Whether a lock proves that the owner of that name is alive.
pub(crate) fn is_alive(folder: &Path, name: &str) -> bool {
    matches!(life(&lock_path(folder, name)), Life::Alive)
}

/// Removes files of dead processes from `folder`.
pub(crate) fn sweep(folder: &Path) {
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for (_, path) in names_in(folder) {
        found.entry(owner_of(&path)).or_default().push(path);
    }
    for (owner, paths) in found {
        let lock = lock_path(folder, &owner);
        let (dead, _held) = match life(&lock) {
            Life::Alive => continue,
            Life::Dead(file) => (true, Some(file)),
            Life::Unknown => (false, None),
        };
        for path in paths.iter().filter(|path| if dead { **path != lock } else { is_old(path) }) {
            clear(path);
        }
        // Removed last, so that a killed sweep leaves the rest to the next one.
        if dead {
            clear(&lock);
        }
    }
}

/// Whether nothing in it changed for long.
fn is_old(path: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(path) else { return false };
    // A time in the future says nothing.
    let age = metadata.modified().ok().and_then(|modified| SystemTime::now().duration_since(modified).ok());
    // The time of a folder does not change when a file in it is written.
    age.is_some_and(|age| age > ABANDONED)
        && (!metadata.is_dir() || names_in(path).iter().all(|(_, path)| is_old(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder in `tmp` with a file, both of that age.
    fn unfinished(path: &Path, age: Duration) -> PathBuf {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("part"), "torn").unwrap();
        for path in [path.join("part"), path.to_owned()] {
            File::open(path).unwrap().set_modified(SystemTime::now() - age).unwrap();
        }
        path.to_owned()
    }

    fn entries(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn files_of_the_living_stay_and_those_of_the_dead_go() {
        let folder = tempfile::tempdir().unwrap();
        let tmp = folder.path();
        let (living, dead) = (Owner::new(), Owner::new());
        // Age does not matter: a node may compute for days.
        let age = ABANDONED * 2;
        let (kept, left) = (unfinished(&living.path_in(tmp), age), unfinished(&dead.path_in(tmp), Duration::ZERO));
        assert!(is_alive(tmp, living.name()) && is_alive(tmp, dead.name()));
        sweep(tmp);
        assert!(kept.exists() && left.exists());
        let name = dead.name().to_owned();
        drop(dead);
        assert!(!is_alive(tmp, &name) && lock_path(tmp, &name).exists(), "its files are still there");
        sweep(tmp);
        assert!(kept.exists() && !left.exists() && !lock_path(tmp, &name).exists());
        fs::remove_dir_all(kept).unwrap();
        drop(living);
        assert_eq!(entries(tmp), 0, "an owner that leaves no files leaves no lock file");
    }

    #[test]
    fn where_no_lock_decides_only_old_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let tmp = folder.path();
        // Another machine, whose locks may be invisible here, and an earlier version without lock files.
        fs::write(tmp.join("0123456789abcdef.machine.lock"), "").unwrap();
        for name in ["0123456789abcdef-7", "4711-3-rows", ".tmpXyz"] {
            let path = unfinished(&tmp.join(name), Duration::from_hours(23));
            sweep(tmp);
            assert!(path.exists(), "{name} is young");
            unfinished(&path, Duration::from_hours(25));
            fs::write(path.join("part"), "new").unwrap();
            sweep(tmp);
            assert!(path.exists(), "a file in {name} is young");
            unfinished(&path, Duration::from_hours(25));
            sweep(tmp);
            assert!(!path.exists(), "{name} is old");
        }
        assert_eq!(entries(tmp), 1, "the lock file is young");
    }

    #[test]
    fn without_a_folder_there_are_names_and_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (Owner::new(), Owner::new());
        let gone = folder.path().join("gone");
        assert!(one.path_in(&gone) != one.path_in(&gone) && one.path_in(&gone) != other.path_in(&gone));
        assert!(!is_alive(&gone, one.name()) && !gone.exists());
        sweep(&gone);
    }
}

//! Metadata of files that an answer depends on.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Resolution of a local file system's time stamps: after this time, another change gets another stamp.
pub(super) const GRAIN: Duration = Duration::from_millis(20);

/// Metadata of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stat {
    size: u64,
    modified: i128,
    /// Time of the last change according to the file system; programs cannot set it.
    changed: i128,
    inode: u64,
    device: u64,
}

/// Paths with their metadata; `None` for those that did not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen(Vec<(PathBuf, Option<Stat>)>);

impl Seen {
    pub(super) fn at(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut seen = Vec::new();
        for path in paths {
            let stat = stat(&path);
            seen.push((path, stat));
        }
        Self(seen)
    }

    /// Whether nothing has changed since.
    pub(super) fn holds(&self) -> bool {
        self.0.iter().all(|(path, seen)| stat(path) == *seen)
    }

    /// Whether all changes were made before `time`, by a margin that covers the resolution of time stamps.
    pub(super) fn is_before(&self, time: SystemTime) -> bool {
        let time = time.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(GRAIN).as_nanos();
        self.0.iter().all(|(_, stat)| match stat {
            // Before 1970 is long ago.
            Some(stat) => u128::try_from(stat.modified.max(stat.changed)).unwrap_or_default() < time,
            None => true,
        })
    }
}

fn stat(path: &Path) -> Option<Stat> {
    const SECOND: i128 = 1_000_000_000;
    let found = std::fs::metadata(path).ok()?;
    Some(Stat {
        // The size of a folder differs between file systems.
        size: if found.is_dir() { 0 } else { found.size() },
        modified: i128::from(found.mtime()) * SECOND + i128::from(found.mtime_nsec()),
        changed: i128::from(found.ctime()) * SECOND + i128::from(found.ctime_nsec()),
        inode: found.ino(),
        device: found.dev(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_change_come_or_go_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "one").unwrap();
        let seen = || Seen::at([path("a"), path("b")]);
        let before = seen();
        assert!(before.holds() && !before.is_before(SystemTime::now()));
        std::thread::sleep(2 * GRAIN);
        assert!(before.is_before(SystemTime::now()));
        std::fs::write(path("a"), "two").unwrap();
        assert!(!before.holds());
        let before = seen();
        std::fs::write(path("b"), "").unwrap();
        assert!(!before.holds());
        let before = seen();
        std::fs::remove_file(path("a")).unwrap();
        assert!(!before.holds());
    }
}

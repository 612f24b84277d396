//! Tracks calls and fetches in flight across the processes of this machine, so that nothing is paid or fetched twice.
//!
//! Each call locks one byte of a file. The operating system releases the lock when the process ends.

use std::fs::File;
use std::path::Path;

use crate::fingerprint::RowKey;
use crate::store::nofollow;

/// Calls to one model. On file systems without byte locks, every call may proceed.
#[derive(Debug)]
pub(crate) struct Asking(Option<File>);

impl Asking {
    /// Opens the file whose bytes are locked.
    pub(crate) fn at(path: &Path) -> Self {
        let file = nofollow::open_or_create(path);
        Self(file.inspect_err(|error| tracing::debug!("cannot lock {}: {error}", path.display())).ok())
    }

    /// Marks a call as in flight. Returns `false` if another process has it in flight.
    pub(crate) fn begin(&self, key: &RowKey) -> bool {
        self.0.as_ref().is_none_or(|file| set_lock(file, key, true))
    }

    pub(crate) fn end(&self, key: &RowKey) {
        if let Some(file) = &self.0 {
            set_lock(file, key, false);
        }
    }
}

/// Locks or unlocks the byte that represents a call. Returns `false` if another process holds it. Calls that share a byte
/// only wait for each other. Locks belong to the open file, not the process, so stores within one process exclude each
/// other too.
#[cfg(target_os = "linux")]
fn set_lock(file: &File, key: &RowKey, is_wanted: bool) -> bool {
    use std::os::fd::AsRawFd;
    let (kind, what) = if is_wanted { (libc::F_WRLCK, "lock") } else { (libc::F_UNLCK, "unlock") };
    let (start, whence) = ((key.0.prefix() >> 2) as i64, libc::SEEK_SET as i16);
    let lock = libc::flock { l_type: kind as i16, l_whence: whence, l_start: start, l_len: 1, l_pid: 0 };
    #[expect(unsafe_code, reason = "no maintained crate of this tree wraps locks of single bytes")]
    // SAFETY: the descriptor is open while `file` is borrowed, and the call only reads `lock`.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 {
        return true;
    }
    let error = std::io::Error::last_os_error();
    let is_taken = is_wanted && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    if !is_taken {
        tracing::debug!("cannot {what} a call: {error}");
    }
    !is_taken
}

#[cfg(not(target_os = "linux"))]
fn set_lock(_file: &File, _key: &RowKey, _is_wanted: bool) -> bool {
    true
}

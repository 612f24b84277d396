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
        self.0.as_ref().is_none_or(|file| lock_byte(file, byte_of(key)))
    }

    pub(crate) fn end(&self, key: &RowKey) {
        if let Some(file) = &self.0 {
            unlock_byte(file, byte_of(key));
        }
    }
}

/// Returns the byte that represents a call. Calls that share a byte only wait for each other.
fn byte_of(key: &RowKey) -> i64 {
    (key.0.prefix() >> 2) as i64
}

#[cfg(target_os = "linux")]
fn lock_byte(file: &File, at: i64) -> bool {
    let Err(error) = set_lock(file, at, libc::F_WRLCK) else { return true };
    let is_taken = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES));
    if !is_taken {
        tracing::debug!("cannot lock a call: {error}");
    }
    !is_taken
}

#[cfg(target_os = "linux")]
fn unlock_byte(file: &File, at: i64) {
    if let Err(error) = set_lock(file, at, libc::F_UNLCK) {
        tracing::debug!("cannot unlock a call: {error}");
    }
}

/// Locks belong to the open file, not the process, so stores within one process exclude each other too.
#[cfg(target_os = "linux")]
fn set_lock(file: &File, at: i64, kind: i32) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let whence = libc::SEEK_SET as i16;
    let lock = libc::flock { l_type: kind as i16, l_whence: whence, l_start: at, l_len: 1, l_pid: 0 };
    #[expect(unsafe_code, reason = "no maintained crate of this tree wraps locks of single bytes")]
    // SAFETY: the descriptor is open while `file` is borrowed, and the call only reads `lock`.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn lock_byte(_file: &File, _at: i64) -> bool {
    true
}

#[cfg(not(target_os = "linux"))]
fn unlock_byte(_file: &File, _at: i64) {}

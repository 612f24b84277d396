//! The output of a program, which ends with the program.

use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// How often the process is looked at, while it writes nothing.
const WATCH: i32 = 50;
/// Time after the end of the program in which what it started may still write.
const GRACE: Duration = Duration::from_secs(2);

/// One output of a program. A process that the program started may hold it open after the program has ended: reading
/// then fails with [`ErrorKind::TimedOut`].
pub struct Pipe {
    file: std::fs::File,
    process: u32,
    ended: Option<Instant>,
}

impl Pipe {
    pub(super) fn of(pipe: OwnedFd, process: u32) -> Self {
        Self { file: pipe.into(), process, ended: None }
    }

    /// Whether there is something to read, or the end.
    fn is_ready(&self) -> bool {
        let mut waits = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        #[expect(unsafe_code, reason = "the standard library does not wait for one of several things")]
        // SAFETY: the structure is plain data, and lives as long as the call.
        let ready = unsafe { libc::poll(&raw mut waits, 1, WATCH) };
        ready != 0
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let late = self.ended.is_some_and(|ended| ended.elapsed() > GRACE);
            if !late && self.is_ready() {
                return self.file.read(buffer);
            }
            if late {
                let message = "a process that the program started holds its output open after the program has ended: \
                               redirect the output of that process";
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
            if self.ended.is_none() && has_ended(self.process) {
                self.ended = Some(Instant::now());
            }
        }
    }
}

/// Whether a child of this process has ended. It can still be awaited.
fn has_ended(process: u32) -> bool {
    #[expect(unsafe_code, reason = "the standard library cannot look at a process without taking its end")]
    // SAFETY: the structure is plain data, and lives as long as the call.
    unsafe {
        let mut found: libc::siginfo_t = std::mem::zeroed();
        let only_look = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
        let asked = libc::waitid(libc::P_PID, process, &raw mut found, only_look);
        // A process that was awaited already is no child any more.
        asked != 0 || found.si_pid() != 0
    }
}

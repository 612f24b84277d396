//! Ends a program with all its descendants, also if this process dies first.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Sends a signal (`TERM`, `KILL`) to all processes of a group.
///
/// # Errors
/// Fails if no shell can be started.
pub fn end_group(group: u32, signal: &str) -> std::io::Result<()> {
    let command = format!("kill -{signal} -{group}");
    Command::new("/bin/sh").args(["-c", &command]).stderr(Stdio::null()).status().map(drop)
}

/// A shell that kills a process group if this process dies. It waits for a word on its pipe; the end of the pipe without
/// one means that this process is gone.
pub struct GroupGuard {
    shell: Option<(Child, ChildStdin)>,
}

impl GroupGuard {
    /// Guards the group. Without a shell there is no guard: the program still ends with an orderly run.
    pub fn of(group: u32) -> Self {
        let script = format!("read word || kill -KILL -{group}");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).env_clear().process_group(0).stdin(Stdio::piped());
        shell.stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(mut shell) = shell.spawn() else { return Self { shell: None } };
        let pipe = shell.stdin.take();
        Self { shell: pipe.map(|pipe| (shell, pipe)) }
    }

    /// Ends the guard: the program has ended by itself.
    pub fn relieve(&mut self) {
        if let Some((mut shell, mut pipe)) = self.shell.take() {
            // A shell that has ended already is fine.
            drop(pipe.write_all(b"done\n"));
            drop(pipe);
            drop(shell.wait());
        }
    }
}

/// Kills the group.
impl Drop for GroupGuard {
    fn drop(&mut self) {
        if let Some((mut shell, pipe)) = self.shell.take() {
            drop(pipe);
            drop(shell.wait());
        }
    }
}

//! Reads the versions of system programs.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of a program.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks whether the program has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Longest output read, in bytes.
const LONGEST: u64 = 4096;

/// Returns a program's output for `--version`, with single spaces between words; `None` if it prints nothing or fails.
pub fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_clear();
    // A localized answer would look like another version.
    command
        .env("LANG", "C.UTF-8")
        .envs(["PATH", "HOME"].iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn().ok()?;
    let deadline = Instant::now() + PATIENCE;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
            _ => break false,
        }
    };
    if !ended {
        // The program hangs or has failed.
        drop(child.kill());
        drop(child.wait());
        return None;
    }
    let mut said = Vec::new();
    child.stdout.take()?.take(LONGEST).read_to_end(&mut said).ok()?;
    if said.is_empty() {
        child.stderr.take()?.take(LONGEST).read_to_end(&mut said).ok()?;
    }
    let text = String::from_utf8_lossy(&said).split_whitespace().collect::<Vec<_>>().join(" ");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_tell_their_version_or_nothing() {
        assert!(version(Path::new("/bin/cat")).is_some_and(|text| text.contains("cat")));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("odd");
        std::fs::write(&path, "#!/bin/sh\nexit 3\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!((version(&path), version(&folder.path().join("none"))), (None, None));
    }
}

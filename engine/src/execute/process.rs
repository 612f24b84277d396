//! Programs that are started: their environment, the lines that they write, their groups, which end with this process, and
//! their versions.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The locale of programs. It decides how they sort and print, and no cache key contains it.
const LANGUAGE: (&str, &str) = ("LANG", "C.UTF-8");
/// Lines that are kept for an error message.
const TAIL: usize = 20;
/// Longest stored line in bytes.
const LINE: usize = 8192;
/// Time that a program has to tell its version.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between checks whether it has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Longest version that is read, in bytes.
const LONGEST: u64 = 4096;

/// Returns a program that gets only the `passed` variables of the environment, in a process group of its own, with pipes
/// for its output. `None` without words.
#[must_use]
pub fn program<'a>(words: &[String], passed: impl Iterator<Item = &'a str>, directory: &Path) -> Option<Command> {
    let (name, arguments) = words.split_first()?;
    let mut command = Command::new(name);
    command.args(arguments).env_clear().env(LANGUAGE.0, LANGUAGE.1);
    for name in passed {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    // Folders of modules may be sources: the program must not write into them.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(directory).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// The last lines of a program's output.
#[derive(Default)]
pub struct Tail {
    lines: Mutex<VecDeque<String>>,
}

impl Tail {
    /// Reads all lines to the end of the pipe and passes them on. Skips empty ones, and those that a terminal would
    /// overwrite (progress bars).
    pub fn listen(&self, pipe: impl Read, mut pass_on: impl FnMut(&str)) {
        let (mut pipe, mut line) = (BufReader::new(pipe), Vec::new());
        while let Ok(Some(ended)) = next_line(&mut pipe, &mut line) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if ended == LineEnd::WrittenOver || text.is_empty() {
                continue;
            }
            pass_on(&text);
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push_back(text);
            if lines.len() > TAIL {
                lines.pop_front();
            }
        }
    }

    /// Returns the last lines.
    #[must_use]
    pub fn lines(&self) -> VecDeque<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what an error message says of the output, from its colon on.
    #[must_use]
    pub fn said(&self) -> String {
        let lines: Vec<String> = self.lines().iter().map(|line| format!("  {line}")).collect();
        if lines.is_empty() { " and wrote no output".to_owned() } else { format!(":\n{}", lines.join("\n")) }
    }
}

/// How a line ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Another,
    /// A carriage return alone: the next text overwrites the line.
    WrittenOver,
}

/// Reads the next line without its end. `None` at the end of the pipe.
fn next_line(pipe: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<LineEnd>> {
    line.clear();
    loop {
        let buffer = pipe.fill_buf()?;
        if buffer.is_empty() {
            return Ok((!line.is_empty()).then_some(LineEnd::Another));
        }
        let window = &buffer[..buffer.len().min(LINE - line.len())];
        let Some(end) = window.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
            line.extend_from_slice(window);
            let length = window.len();
            pipe.consume(length);
            // A program that never ends its line must not fill the memory.
            if line.len() >= LINE {
                return Ok(Some(LineEnd::Another));
            }
            continue;
        };
        line.extend_from_slice(&window[..end]);
        let is_return = window[end] == b'\r';
        pipe.consume(end + 1);
        if is_return {
            // Followed by a line feed, it is an ordinary line end.
            if pipe.fill_buf()?.first() != Some(&b'\n') {
                return Ok(Some(LineEnd::WrittenOver));
            }
            pipe.consume(1);
        }
        return Ok(Some(LineEnd::Another));
    }
}

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

/// Returns a program's output for `--version`, with single spaces between words; `None` if it prints nothing or fails.
pub fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).env_clear();
    // A localized answer would look like another version.
    command.env(LANGUAGE.0, LANGUAGE.1);
    command.envs(["PATH", "HOME"].iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
    command.process_group(0);
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

    fn pieces(text: &str) -> Vec<(String, bool)> {
        let (mut pipe, mut line, mut found) = (BufReader::with_capacity(3, text.as_bytes()), Vec::new(), Vec::new());
        while let Some(end) = next_line(&mut pipe, &mut line).unwrap() {
            found.push((String::from_utf8(line.clone()).unwrap(), end == LineEnd::WrittenOver));
        }
        found
    }

    #[test]
    fn progress_bars_are_told_from_lines() {
        let found = pieces("one\r\nTrain: 1%\rTrain: 2%\rdone\n\nend");
        let wanted =
            [("one", false), ("Train: 1%", true), ("Train: 2%", true), ("done", false), ("", false), ("end", false)];
        assert_eq!(found, wanted.map(|(text, over)| (text.to_owned(), over)));
        let long = pieces(&"x".repeat(2 * LINE + 5));
        assert_eq!(long.iter().map(|(text, _)| text.len()).collect::<Vec<_>>(), [LINE, LINE, 5]);
    }

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

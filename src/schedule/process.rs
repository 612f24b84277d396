//! Identifies processes by number and start time, and sends signals to them.

use std::process::{Command, Stdio};

use searchmill_engine::schedule::Process;

/// Signal to stop a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Signal {
    Terminate,
    Kill,
}

/// Identifies the process that currently has this number.
pub(super) fn identify(pid: u32) -> Process {
    Process { pid, began: began(pid).unwrap_or_default() }
}

/// Finds the process with this environment variable: a run whose daemon was killed before saving the number.
#[cfg(target_os = "linux")]
pub(super) fn find(name: &str, value: &str) -> Option<Process> {
    let wanted = format!("{name}={value}");
    let entries = std::fs::read_dir("/proc").ok()?;
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // In ascending order: the run comes before its own child processes.
    pids.sort_unstable();
    let found = pids.into_iter().find(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    })?;
    Some(identify(found))
}

/// Only Linux provides the environment of a process.
#[cfg(not(target_os = "linux"))]
pub(super) fn find(_name: &str, _value: &str) -> Option<Process> {
    None
}

/// Whether the process still exists.
pub(super) fn is_alive(process: &Process) -> bool {
    began(process.pid).is_some_and(|began| began == process.began)
}

/// Sends a signal to a process group, if its leader is still the same process.
pub(super) fn signal(process: &Process, signal: Signal) -> Result<(), String> {
    if !is_alive(process) {
        return Ok(());
    }
    let name = match signal {
        Signal::Terminate => "TERM",
        Signal::Kill => "KILL",
    };
    // A negative number is the process group. The shell has `kill`; the system call would need `unsafe`.
    let command = format!("kill -{name} -{}", process.pid);
    let told = Command::new("/bin/sh").args(["-c", &command]).stdin(Stdio::null()).output();
    match told {
        // It may have ended after the check above: then there is nothing left to stop.
        Ok(output) if output.status.success() || !is_alive(process) => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("cannot start /bin/sh: {error}")),
    }
}

/// Start time of a process: the machine's boot id and clock ticks since boot. `None` if it has ended.
#[cfg(target_os = "linux")]
fn began(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain spaces and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    // A zombie keeps its number until its parent reaps it, but runs nothing any more.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    // Field 22 of proc(5), `starttime`: the state, read above, is field 3.
    let ticks = fields.nth(18)?;
    // Ticks count from boot: after a restart, another process can have the same number and the same ticks.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Some(format!("{} {ticks}", boot.trim()))
}

/// Start time of a process according to `ps`. `None` if it has ended.
#[cfg(not(target_os = "linux"))]
fn began(pid: u32) -> Option<String> {
    let told = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
    let began = String::from_utf8_lossy(&told.stdout).trim().to_owned();
    (!began.is_empty()).then_some(began)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn a_process_is_told_from_another_of_the_same_number() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env("SEARCHMILL_TEST", format!("run of {}", std::process::id()))
            .process_group(0)
            .spawn()
            .expect("a child");
        let process = identify(child.id());
        assert!(is_alive(&process));
        #[cfg(target_os = "linux")]
        {
            // The environment of a new program becomes readable with a delay.
            let wanted = format!("run of {}", std::process::id());
            let looks = std::iter::repeat_with(|| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                find("SEARCHMILL_TEST", &wanted)
            });
            assert_eq!(looks.take(500).flatten().next(), Some(process.clone()));
        }
        assert_eq!(find("SEARCHMILL_TEST", "another run"), None);
        let earlier = Process { began: "earlier".to_owned(), ..process.clone() };
        assert!(!is_alive(&earlier));
        signal(&earlier, Signal::Kill).expect("nothing to tell");
        assert!(child.try_wait().expect("a state").is_none(), "a stranger is left alone");
        signal(&process, Signal::Terminate).expect("told");
        child.wait().expect("an end");
        assert!(!is_alive(&process));
    }
}

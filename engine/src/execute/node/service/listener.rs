//! Ports of this machine: a free one, and whether another program listens on it.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::error::OperatorError;

/// Ports given to services of this process that have not ended.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port for one service.
pub(crate) struct Port(u16);

impl Port {
    /// Returns a free port that no other service of this process has.
    pub(crate) fn free() -> Result<Self, OperatorError> {
        // Bound together, so that a port that is given away is not found again.
        let mut tried = Vec::new();
        loop {
            let socket = TcpListener::bind(("127.0.0.1", 0))?;
            let number = socket.local_addr()?.port();
            if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(number) {
                return Ok(Self(number));
            }
            tried.push(socket);
        }
    }

    pub(crate) fn number(&self) -> u16 {
        self.0
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        GIVEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// Whether a process listens on the port, and none of that group does: its answers must not be taken for those of the
/// service. As Linux's `/proc` shows it; false where that cannot be seen (no `/proc`, another user's process).
pub(super) fn is_taken(port: u16, group: u32) -> bool {
    const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
    let sockets: BTreeSet<String> = TABLES.iter().flat_map(|table| listening(table, port)).collect();
    if sockets.is_empty() {
        return false;
    }
    let mut is_held = false;
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let is_process = process.file_name().to_string_lossy().parse::<u32>().is_ok();
        if is_process && holds(&process.path(), &sockets) {
            // A child of the service may listen in its place.
            if group_of(&process.path()) == Some(group) {
                return false;
            }
            is_held = true;
        }
    }
    is_held
}

/// Returns the sockets that listen on the port, as links of file descriptors name them.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let mut sockets = Vec::new();
    for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Number, local address, remote address, state, five more, inode.
        let [_, local, _, LISTEN, _, _, _, _, _, inode, ..] = fields[..] else { continue };
        if let Some((_, number)) = local.rsplit_once(':')
            && u16::from_str_radix(number, 16) == Ok(port)
        {
            sockets.push(format!("socket:[{inode}]"));
        }
    }
    sockets
}

fn holds(process: &Path, sockets: &BTreeSet<String>) -> bool {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    links.any(|link| link.to_str().is_some_and(|link| sockets.contains(link)))
}

/// Returns the process group: the third field after the name, which is in parentheses.
fn group_of(process: &Path) -> Option<u32> {
    let text = fs::read_to_string(process.join("stat")).ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_belongs_to_its_group() {
        let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let Some(own) = group_of(Path::new("/proc/self")) else { return };
        assert!(!is_taken(port, own));
        assert!(is_taken(port, own.wrapping_add(1)));
        drop(socket);
        assert!(!is_taken(port, own.wrapping_add(1)), "nobody listens");
    }

    #[test]
    fn ports_are_given_once() {
        let ports: Vec<Port> = (0..50).map(|_| Port::free().unwrap()).collect();
        let numbers: BTreeSet<u16> = ports.iter().map(Port::number).collect();
        assert_eq!(numbers.len(), 50);
    }
}

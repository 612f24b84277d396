//! Observes the files that a program and its descendants open, on Linux: a filter of system calls in the program asks
//! this process before each of them (seccomp user notification, since Linux 5.5; no privilege, no debugger).
//!
//! The program runs on as if alone. Only bytecode of the user's modules is hidden from it, so that Python compiles the
//! source: bytecode counts as fresh by time and size alone, and either may be kept or restored. On other systems, and
//! where a sandbox forbids filters, nothing is observed; Python then gets an empty folder for bytecode.

use std::process::Command;
use std::sync::Arc;

use super::opened::Opened;

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod linux;

/// Lets the program be observed once it is started. Returns whether that is possible here.
pub(super) fn observe(command: &mut Command, opened: &Arc<Opened>) -> bool {
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    let observed = linux::observe(command, opened).is_ok();
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let observed = {
        // Nothing can be done here.
        let _ = (command, opened);
        false
    };
    observed
}

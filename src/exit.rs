//! Exit codes of commands.

/// Success.
pub(crate) const OK: u8 = 0;
/// A node failed.
pub(crate) const FAILED: u8 = 1;
/// Invalid command line or pipeline.
pub(crate) const USAGE: u8 = 2;
/// The disk is full, or a file cannot be written.
pub(crate) const DISK: u8 = 5;
/// `audit`: no differences found, but not everything was checked.
pub(crate) const NOT_CHECKED: u8 = 6;
/// `plan --detailed-exitcode`: there is work to do.
pub(crate) const WORK: u8 = 10;

//! Exit codes of commands.

/// Everything went well.
pub(crate) const OK: u8 = 0;
/// A node failed.
pub(crate) const FAILED: u8 = 1;
/// The command line or the pipeline is wrong.
pub(crate) const USAGE: u8 = 2;
/// `audit`: all that was looked at is as recorded, and something was not looked at.
pub(crate) const NOT_CHECKED: u8 = 6;
/// `plan --detailed-exitcode`: there is work to do.
pub(crate) const WORK: u8 = 10;

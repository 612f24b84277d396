//! Writes artifacts to files: encodes rows and puts files in place completely or not at all.

pub mod encode;
pub mod export;
pub mod local;
pub mod manifest;

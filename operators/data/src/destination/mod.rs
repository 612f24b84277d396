//! Artifacts to files: how rows become bytes, and how bytes come to their place whole or not at all.

pub mod encode;
pub mod export;
pub mod local;
pub mod manifest;

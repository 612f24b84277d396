//! TODO

pub(super) mod artifact;
pub(super) mod checkpoint;
pub(super) mod description;
pub(super) mod folder_digest;
pub(super) mod lend;
pub(super) mod output_folder;
pub(super) mod part;
pub(super) mod reader;
pub(super) mod table;
pub(super) mod unique;
pub(super) mod writer;

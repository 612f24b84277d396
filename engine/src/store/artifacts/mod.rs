//! Artifacts: tables cut into Parquet parts, and folders. An id is the digest of the type and of the files' digests.
//!
//! `writer` makes one, `reader` opens one and says what is damaged, `description` is the file beside it. `unique` looks for
//! repeated ids. Programs get copies of folders (`lend`) and leave theirs in an `output_folder`. `checkpoint` is the
//! state of a training that was interrupted.

pub(super) mod artifact;
pub(super) mod table;
pub(super) mod unique;
pub(super) mod description;
pub(super) mod reader;
pub(super) mod writer;
pub(super) mod checkpoint;
pub(super) mod lend;
pub(super) mod output_folder;

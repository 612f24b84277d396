//! Pending uploads: noted before the data is written locally, removed once it is uploaded.
//!
//! A run that is killed or cannot reach the store leaves its notes for the next run.

use std::fs;
use std::path::PathBuf;

use super::NAMEPLATE;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::StoreError;
use crate::store::files::{clear, names_in};
use crate::store::layout::Store;

/// An object to upload.
#[derive(Clone, Debug)]
pub(in crate::store) enum Pending {
    Result(NodeKey),
    Tombstone(NodeKey),
    Artifact(ArtifactId),
    Run(String),
    Floor(Digest),
}

impl Pending {
    fn name(&self) -> String {
        match self {
            Self::Result(key) => format!("result-{key}"),
            Self::Tombstone(key) => format!("collected-{key}"),
            Self::Artifact(id) => format!("artifact-{id}"),
            Self::Run(id) => format!("run-{id}"),
            Self::Floor(base) => format!("floor-{base}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let (kind, rest) = name.split_once('-')?;
        Some(match kind {
            "result" => Self::Result(NodeKey(Digest::parse(rest)?)),
            "collected" => Self::Tombstone(NodeKey(Digest::parse(rest)?)),
            "artifact" => Self::Artifact(ArtifactId::parse(rest)?),
            "run" => Self::Run(rest.to_owned()),
            "floor" => Self::Floor(Digest::parse(rest)?),
            _ => return None,
        })
    }
}

impl Store {
    fn pending_folder(&self) -> PathBuf {
        self.root().join("pending")
    }

    /// Whether this is the local copy of a shared store, even while it is used alone.
    pub(in crate::store) fn is_copy(&self) -> bool {
        self.remote.is_some() || self.root().join(NAMEPLATE).exists()
    }

    /// Notes a pending upload if the store is shared, even while its copy is used alone.
    pub(in crate::store) fn note_pending(&self, what: &Pending) -> Result<(), StoreError> {
        if !self.is_copy() {
            return Ok(());
        }
        self.write_file(&self.pending_folder().join(what.name()), self.owner().as_bytes())
    }

    /// Whether the upload is still pending.
    pub(super) fn is_pending(&self, what: &Pending) -> bool {
        self.pending_folder().join(what.name()).exists()
    }

    /// Returns uploads noted by this process or by dead ones.
    pub(super) fn pending(&self) -> Vec<Pending> {
        let mut noted = names_in(&self.pending_folder());
        // What a living process noted is not complete yet, and it uploads it itself.
        noted.retain(|(_, path)| !fs::read_to_string(path).is_ok_and(|owner| self.is_alive(owner.trim())));
        noted.iter().filter_map(|(name, _)| Pending::parse(name)).collect()
    }

    pub(in crate::store) fn forget_pending(&self, what: &Pending) {
        if self.remote.is_some() {
            clear(&self.pending_folder().join(what.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::hash_bytes;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let digest = hash_bytes(b"a");
        let all = [
            Pending::Result(NodeKey(digest)),
            Pending::Tombstone(NodeKey(digest)),
            Pending::Artifact(digest.into()),
            Pending::Run("20261120-131502-1a2bf00d".to_owned()),
            Pending::Floor(digest),
        ];
        for what in all {
            assert_eq!(Pending::parse(&what.name()).map(|read| read.name()), Some(what.name()));
        }
        assert!(Pending::parse("result-xyz").is_none() && Pending::parse("other").is_none());
    }
}

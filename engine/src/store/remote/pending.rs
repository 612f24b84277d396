//! What is still to be sent: noted before it is made here, forgotten when it is there. A run that is killed, or that
//! cannot reach the store, leaves its notes to the next one.

use std::fs;
use std::path::PathBuf;

use super::NAMEPLATE;
use crate::fingerprint::{Digest, NodeKey};
use crate::store::artifact::ArtifactId;
use crate::store::error::StoreError;
use crate::store::layout::Store;

/// What is to be sent.
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

    /// Notes that something is to be sent, where the store is shared: also while its copy is used alone.
    pub(in crate::store) fn note_pending(&self, what: &Pending) -> Result<(), StoreError> {
        if self.remote.is_none() && !self.root().join(NAMEPLATE).exists() {
            return Ok(());
        }
        self.write_file(&self.pending_folder().join(what.name()), self.owner().as_bytes())
    }

    /// Is it still to be sent?
    pub(super) fn is_pending(&self, what: &Pending) -> bool {
        self.pending_folder().join(what.name()).exists()
    }

    /// What was noted by this process or by dead ones.
    pub(super) fn pending(&self) -> Vec<Pending> {
        let mut noted = Vec::new();
        for entry in fs::read_dir(self.pending_folder()).into_iter().flatten().filter_map(Result::ok) {
            let others = fs::read_to_string(entry.path()).is_ok_and(|owner| self.is_alive(owner.trim()));
            noted.extend(Pending::parse(&entry.file_name().to_string_lossy()).filter(|_| !others));
        }
        noted
    }

    pub(in crate::store) fn forget_pending(&self, what: &Pending) {
        if self.remote.is_some() {
            let path = self.pending_folder().join(what.name());
            if let Err(error) = fs::remove_file(&path) {
                tracing::debug!("left {} behind: {error}", path.display());
            }
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

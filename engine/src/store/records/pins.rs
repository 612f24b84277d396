//! Pins: names for artifacts that are never collected.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checksum::{seal, sealed_json};
use crate::fingerprint::NodeKey;
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;

/// Limit of a pin name's length in bytes.
const NAME_LENGTH: usize = 100;

/// A named artifact that is kept until the pin is removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pin {
    /// The pin's name: letters, digits and `. _ - @ = , +`.
    pub name: String,
    /// The artifact.
    pub artifact: ArtifactId,
    /// Key of the result that produced it, if known.
    pub key: Option<NodeKey>,
    /// Its name when it was pinned: `pipeline/node.port`.
    #[serde(default)]
    pub from: String,
    /// Whether the artifacts it derives from are kept too.
    #[serde(default)]
    pub lineage: bool,
    /// Unix time (seconds) of pinning.
    pub pinned: f64,
}

fn read(path: &Path) -> Result<Pin, StoreError> {
    let text = fs::read(path).context("read", path)?;
    sealed_json(&text).ok_or_else(|| StoreError::NotAPin(path.to_owned()))
}

impl Store {
    fn pin_path(&self, name: &str) -> Result<PathBuf, StoreError> {
        let is_plain = name.chars().all(|c| c.is_alphanumeric() || "._-@=,+".contains(c));
        if name.is_empty() || name.len() > NAME_LENGTH || name.starts_with('.') || !is_plain {
            return Err(StoreError::PinName(name.to_owned()));
        }
        Ok(self.root().join("pins").join(format!("{name}.json")))
    }

    /// Pins an artifact.
    ///
    /// # Errors
    /// Fails if the name is invalid or taken by another artifact, or the pin cannot be written.
    pub fn pin(&self, pin: &Pin) -> Result<(), StoreError> {
        let path = self.pin_path(&pin.name)?;
        if let Some(known) = self.pinned(&pin.name)?
            && known.artifact != pin.artifact
        {
            return Err(StoreError::PinTaken(known.name, known.artifact));
        }
        let text = seal(serde_json::to_vec_pretty(pin)?);
        // The shared store first: the first pin of a name counts, and another machine may be faster.
        if let Some(first) = self.send_pin(pin, &text)?
            && first.artifact != pin.artifact
        {
            return Err(StoreError::PinTaken(first.name, first.artifact));
        }
        self.write_file(&path, &text)
    }

    /// Returns the pin of that name.
    ///
    /// # Errors
    /// Fails if the pin cannot be read.
    pub fn pinned(&self, name: &str) -> Result<Option<Pin>, StoreError> {
        let Ok(path) = self.pin_path(name) else { return Ok(None) };
        self.fetch_pins()?;
        let there = if_there(fs::metadata(&path)).context("read", &path)?;
        there.map(|_| read(&path)).transpose()
    }

    /// Removes a pin and returns it if it existed.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub fn unpin(&self, name: &str) -> Result<Option<Pin>, StoreError> {
        let Some(pin) = self.pinned(name)? else { return Ok(None) };
        // The shared store first: a pin that is left there comes back with the next look.
        self.remove_pin(name)?;
        let path = self.pin_path(name)?;
        nofollow::remove_file(&path).context("remove", &path)?;
        Ok(Some(pin))
    }

    /// Returns all pins, by name.
    ///
    /// # Errors
    /// Fails if a pin cannot be read, because what it protects is then unknown.
    pub fn pins(&self) -> Result<Vec<Pin>, StoreError> {
        self.fetch_pins()?;
        let folder = self.root().join("pins");
        let mut pins = Vec::new();
        for entry in if_there(fs::read_dir(&folder)).context("read", &folder)?.into_iter().flatten() {
            pins.push(read(&entry.context("read", &folder)?.path())?);
        }
        pins.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(pins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::hash_bytes;

    #[test]
    fn pins_hold_one_artifact_and_have_plain_names() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let id = |text: &str| ArtifactId::parse(&hash_bytes(text.as_bytes()).hex()).unwrap();
        let pin = |name: &str, text: &str| Pin {
            name: name.to_owned(),
            artifact: id(text),
            key: None,
            from: String::new(),
            lineage: false,
            pinned: 0.0,
        };
        store.pin(&pin("train@lr=1e-4,rank=64", "a")).unwrap();
        store.pin(&pin("train@lr=1e-4,rank=64", "a")).unwrap();
        assert!(store.pin(&pin("train@lr=1e-4,rank=64", "b")).is_err());
        for name in ["", "..", "a/b", "../x", ".hidden", "a\0b", "a b"] {
            assert!(store.pin(&pin(name, "a")).is_err(), "{name}");
        }
        assert_eq!(store.pins().unwrap().len(), 1);
        std::fs::write(folder.path().join("pins/cut.json"), "{").unwrap();
        assert!(store.pinned("cut").is_err() && store.unpin("cut").is_err());
        assert!(store.pin(&pin("cut", "b")).is_err(), "what it protected is unknown");
        std::fs::remove_file(folder.path().join("pins/cut.json")).unwrap();
        assert!(store.unpin("train@lr=1e-4,rank=64").unwrap().is_some());
        assert!(store.unpin("train@lr=1e-4,rank=64").unwrap().is_none());
        assert!(store.pins().unwrap().is_empty());
    }
}

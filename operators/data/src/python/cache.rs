//! Small files in the user's cache folder.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A small file in the user's cache folder. Losing it costs a second; it is never trusted without a comparison.
pub(super) struct Cache(Option<PathBuf>);

impl Cache {
    pub(super) fn of(name: &impl Hash) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
        Self(folder.map(|folder| folder.join("searchmill/python").join(format!("{:016x}.json", hash(name)))))
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.0.as_ref()?).ok()?).ok()
    }

    /// Replaces the file as a whole. Without a folder to write to, the next process asks again.
    pub(super) fn write(&self, value: &impl Serialize) {
        let Some((path, folder)) = self.0.as_ref().and_then(|path| Some((path, path.parent()?))) else { return };
        let write = || {
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            serde_json::to_writer(&mut file, value)?;
            file.persist(path).map_err(std::io::Error::from).map(drop)
        };
        drop(write());
    }
}

/// Returns a number for a name, never for an identity.
pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

//! Small files in the user's cache folder.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A small file in the user's cache folder. Losing it costs a second; it is never trusted without a comparison.
pub(super) struct Cache(Option<PathBuf>);

impl Cache {
    pub(super) fn of(name: &impl Hash) -> Self {
        fn folder_of(variable: &str) -> Option<PathBuf> {
            std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
        }
        let folder = folder_of("XDG_CACHE_HOME").or_else(|| Some(folder_of("HOME")?.join(".cache")));
        Self(folder.map(|folder| folder.join("searchmill/python").join(format!("{:016x}.json", hash(name)))))
    }

    pub(super) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.0.as_ref()?).ok()?).ok()
    }

    /// Replaces the file as a whole. Without a folder to write to, the next process asks again.
    pub(super) fn write(&self, value: &impl Serialize) {
        let Some(path) = &self.0 else { return };
        let Some(folder) = path.parent() else { return };
        if std::fs::create_dir_all(folder).is_err() {
            return;
        }
        let Ok(mut file) = tempfile::NamedTempFile::new_in(folder) else { return };
        if serde_json::to_writer(&mut file, value).is_ok() {
            drop(file.persist(path));
        }
    }
}

/// Returns a number for a name, never for an identity.
pub(super) fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

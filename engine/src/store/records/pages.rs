//! Pages that show this store now, so that a run can name its address there. One file a server in `pages/`; it counts
//! while the server's lock under `tmp/` is held. Servers of other machines do not count: their addresses are of theirs.

use std::path::PathBuf;

use super::checksum::{read_json, seal};
use crate::store::error::{IoContext, StoreError};
use crate::store::files::{clear, names_in};
use crate::store::layout::Store;
use crate::store::lease::owner::machine;
use crate::store::nofollow;

/// A page of this store; it is forgotten when this value is dropped.
#[derive(Debug)]
pub struct ShownPage {
    path: PathBuf,
}

impl Drop for ShownPage {
    fn drop(&mut self) {
        clear(&self.path);
    }
}

impl Store {
    /// Notes that this process serves a page of the store at an address.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn show_page(&self, address: &str) -> Result<ShownPage, StoreError> {
        let folder = self.root().join("pages");
        nofollow::create_folder(&folder).context("create", &folder)?;
        // What killed servers of this machine left.
        for (name, path) in names_in(&folder) {
            if owner_here(&name).is_some_and(|owner| owner != self.owner() && !self.is_alive(owner)) {
                clear(&path);
            }
        }
        // Takes the lock that shows others that this process lives.
        drop(self.temporary());
        let path = folder.join(format!("{}.{}.json", self.owner(), machine()));
        self.write_file(&path, &seal(serde_json::to_vec(&serde_json::json!({"address": address}))?))?;
        Ok(ShownPage { path })
    }

    /// Returns the addresses of the pages that other processes of this machine serve now.
    pub fn shown_pages(&self) -> Vec<String> {
        let mut addresses = Vec::new();
        for (name, path) in names_in(&self.root().join("pages")) {
            if owner_here(&name).is_some_and(|owner| self.is_alive(owner))
                && let Some(page) = read_json::<serde_json::Value>(&path)
            {
                addresses.extend(page["address"].as_str().map(str::to_owned));
            }
        }
        addresses.sort();
        addresses
    }
}

/// Returns the owner of a file of this machine.
fn owner_here(name: &str) -> Option<&str> {
    name.strip_suffix(".json")?.strip_suffix(machine())?.strip_suffix('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_counts_while_its_server_lives() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("store");
        let (server, run) = (Store::open(&root).unwrap(), Store::open(&root).unwrap());
        assert!(run.shown_pages().is_empty());
        let shown = server.show_page("http://127.0.0.1:8111").unwrap();
        assert_eq!(run.shown_pages(), ["http://127.0.0.1:8111"]);
        drop(shown);
        assert!(run.shown_pages().is_empty());
        // A killed server leaves its file, but no lock; the next one removes it.
        let left = root.join("pages").join(format!("0123456789abcdef.{}.json", machine()));
        nofollow::write(&left, br#"{"address":"http://127.0.0.1:1"}"#).unwrap();
        assert!(run.shown_pages().is_empty());
        let shown = server.show_page("http://127.0.0.1:8112").unwrap();
        assert!(!left.exists() && shown.path.exists());
    }
}

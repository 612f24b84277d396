//! What people say of rows: marks and notes. One line a label in `labels/labels.jsonl`, with its checksum; the newest
//! line of an author about a row counts. Lines are only ever added, under a lock, so that two people lose nothing.
//!
//! A shared store keeps them in its copy on this machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::checksum::{Seal, look, sealed_line};
use crate::store::artifacts::artifact::ArtifactId;
use crate::store::error::{IoContext, StoreError};
use crate::store::files::if_there;
use crate::store::layout::Store;
use crate::store::nofollow;

/// A verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// As it should be.
    Good,
    /// Wrong.
    Bad,
    /// To be looked at again.
    Unsure,
}

/// What a person says of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Label {
    /// The table.
    pub artifact: ArtifactId,
    /// Id of the row; `#7` for the eighth row of a table without ids.
    pub row: String,
    /// The verdict, if there is one.
    pub mark: Option<Mark>,
    /// A note; empty if there is none.
    #[serde(default)]
    pub note: String,
    /// Who says it.
    pub author: String,
    /// Run in which the row was looked at.
    pub run: String,
    /// Its node.
    pub node: String,
    /// Its output.
    pub port: String,
    /// Unix time (seconds).
    pub time: f64,
}

impl Label {
    /// Whether it says anything; one that does not takes back what the author said before.
    pub fn is_empty(&self) -> bool {
        self.mark.is_none() && self.note.is_empty()
    }
}

impl Store {
    fn labels_path(&self) -> PathBuf {
        self.root().join("labels").join("labels.jsonl")
    }

    /// Adds a label durably.
    ///
    /// # Errors
    /// Fails if it cannot be written.
    pub fn add_label(&self, label: &Label) -> Result<(), StoreError> {
        let path = self.labels_path();
        nofollow::create_folder(&self.root().join("labels")).context("create", &path)?;
        let mut line = sealed_line(label)?;
        let mut file = nofollow::open_or_create(&path).context("open", &path)?;
        // Other people wait: two lines at once would be one damaged line. The lock ends with the file.
        file.lock().context("lock", &path)?;
        let end = file.seek(SeekFrom::End(0)).context("read", &path)?;
        if end > 0 {
            // A line that a killed process left open is closed first, or it would take this one with it.
            let mut last = [0];
            file.seek(SeekFrom::Start(end - 1)).context("read", &path)?;
            file.read_exact(&mut last).context("read", &path)?;
            if last != *b"\n" {
                line.insert(0, b'\n');
            }
        }
        file.write_all(&line).context("write", &path)?;
        // On disk before it counts as saved: what a person said cannot be computed again.
        file.sync_all().context("write", &path)
    }

    /// Returns what every author says of every row now, the newest first, and the number of damaged lines.
    ///
    /// # Errors
    /// Fails if the labels cannot be read.
    pub fn labels(&self) -> Result<(Vec<Label>, usize), StoreError> {
        let path = self.labels_path();
        let text = if_there(fs::read(&path)).context("read", &path)?.unwrap_or_default();
        let mut newest: BTreeMap<(ArtifactId, String, String), Label> = BTreeMap::new();
        let mut damaged = 0;
        for line in String::from_utf8_lossy(&text).lines() {
            if line.is_empty() {
                continue;
            }
            match serde_json::from_str::<Label>(line) {
                Ok(label) if look(line) == Seal::Whole => {
                    newest.insert((label.artifact, label.row.clone(), label.author.clone()), label);
                }
                _ => damaged += 1,
            }
        }
        let mut labels: Vec<Label> = newest.into_values().collect();
        labels.retain(|label| !label.is_empty());
        labels.sort_by(|one, other| other.time.total_cmp(&one.time));
        Ok((labels, damaged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(row: &str, author: &str, mark: Option<Mark>, note: &str) -> Label {
        Label {
            artifact: crate::fingerprint::hash_bytes(b"table").into(),
            row: row.to_owned(),
            mark,
            note: note.to_owned(),
            author: author.to_owned(),
            run: "r".to_owned(),
            node: "n".to_owned(),
            port: "p".to_owned(),
            time: 1.0,
        }
    }

    #[test]
    fn the_newest_of_each_author_counts_and_a_cut_line_takes_nothing_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        assert_eq!(store.labels().unwrap(), (Vec::new(), 0));
        store.add_label(&label("a", "ann", Some(Mark::Bad), "")).unwrap();
        store.add_label(&label("a", "bob", Some(Mark::Good), "why not")).unwrap();
        store.add_label(&label("a", "ann", Some(Mark::Unsure), "twice")).unwrap();
        store.add_label(&label("b", "ann", Some(Mark::Bad), "")).unwrap();
        store.add_label(&label("b", "ann", None, "")).unwrap();
        // A process was killed while it wrote.
        let path = store.labels_path();
        let mut text = fs::read(&path).unwrap();
        text.extend(b"{\"artifact\":");
        nofollow::write(&path, &text).unwrap();
        store.add_label(&label("c", "ann", None, "after")).unwrap();
        let (labels, damaged) = store.labels().unwrap();
        let said: Vec<_> = labels.iter().map(|label| (label.row.as_str(), label.author.as_str(), label.mark)).collect();
        assert_eq!(said, [("a", "ann", Some(Mark::Unsure)), ("a", "bob", Some(Mark::Good)), ("c", "ann", None)]);
        assert_eq!(damaged, 1);
    }

    #[test]
    fn people_who_label_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        std::thread::scope(|scope| {
            for author in ["ann", "bob", "cy", "di"] {
                let store = &store;
                scope.spawn(move || {
                    for row in 0..25 {
                        store.add_label(&label(&row.to_string(), author, Some(Mark::Good), "")).unwrap();
                    }
                });
            }
        });
        let (labels, damaged) = store.labels().unwrap();
        assert_eq!((labels.len(), damaged), (100, 0));
    }
}

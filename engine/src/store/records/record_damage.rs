//! Damage of records that belong to the store and not to one result: spending, pins, floors, collections, schedules.
//!
//! Each of them has a checksum. An audit reads all of them.

use std::fs;
use std::path::Path;

use super::checksum::{Seal, look, sealed_json};
use super::tombstones::Collection;
use crate::store::files::{names_below, names_in};
use crate::store::layout::{SOURCES, Store};
use crate::store::memo::floor::read_floor;

/// A record of the store that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDamage {
    /// The file, below the store.
    pub file: String,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Store {
    /// Returns the damaged records of the store.
    pub fn record_damage(&self) -> Vec<RecordDamage> {
        let mut found: Vec<_> =
            self.spending_damage().into_iter().map(|(file, what)| RecordDamage { file, what }).collect();
        for (name, path) in names_in(&self.root().join("pins")) {
            let help = "what it protects is unknown, and `gc` stops: repair or remove it";
            found.extend(damage(&path, format!("pins/{name}"), help));
        }
        for (base, folder) in names_below(&self.root().join("memo")) {
            let Ok(text) = fs::read(folder.join("floor.json")) else { continue };
            if let Err(fault) = read_floor(&text) {
                let file = format!("memo/{}/{base}/floor.json", &base[..2.min(base.len())]);
                found.push(RecordDamage { file, what: fault.to_string() });
            }
        }
        for (name, folder) in names_in(&self.root().join("schedule")) {
            let help = "the schedule starts over with its next run";
            found.extend(damage(&folder.join("state.json"), format!("schedule/{name}/state.json"), help));
            let help = "the schedule counts as paused: `searchmill schedule resume`";
            found.extend(damage(&folder.join("switch.json"), format!("schedule/{name}/switch.json"), help));
        }
        let help = "the next run reads all sources again";
        found.extend(damage(&self.root().join(SOURCES), SOURCES.to_owned(), help));
        let file = "collected/collections.jsonl";
        let text = fs::read(self.root().join(file)).unwrap_or_default();
        for (index, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            if sealed_json::<Collection>(line.as_bytes()).is_none() {
                let what = "this line was changed: what that collection removed counts as deleted by hand".to_owned();
                found.push(RecordDamage { file: format!("{file}:{}", index + 1), what });
            }
        }
        found
    }
}

/// Returns the damage of a file of one JSON object, if it has any.
fn damage(path: &Path, file: String, help: &str) -> Option<RecordDamage> {
    let what = changed(path)?;
    Some(RecordDamage { file, what: format!("{what}; {help}") })
}

/// Returns how a file of one JSON object was changed, if it exists and was. Those of earlier versions have no checksum.
fn changed(path: &Path) -> Option<String> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => return Some(format!("it cannot be read: {error}")),
        Ok(text) => text,
    };
    if text.is_empty() {
        return Some("it was emptied".to_owned());
    }
    let Ok(text) = String::from_utf8(text) else { return Some("it is no text".to_owned()) };
    if look(&text) == Seal::Broken {
        return Some("it was changed: its checksum does not fit".to_owned());
    }
    serde_json::from_str::<serde_json::Value>(&text).err().map(|error| format!("it is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::hash_bytes;
    use crate::store::{Pin, Schedules, Switch};

    #[test]
    fn every_record_of_the_store_that_was_changed_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let artifact = hash_bytes(b"artifact").into();
        let pin =
            Pin { name: "paper".to_owned(), artifact, key: None, from: String::new(), lineage: false, pinned: 7.0 };
        store.pin(&pin).unwrap();
        let base = hash_bytes(b"base");
        let key = crate::fingerprint::NodeKey(hash_bytes(b"key"));
        store.raise_floor(&base, &key, &[], 1000).unwrap();
        Schedules::of(store.clone()).set_switch("nightly", &Switch { paused: true, since: None }).unwrap();
        store.keep_sources(&std::collections::BTreeMap::new()).unwrap();
        let collected =
            Collection { id: "gc-1".to_owned(), time: 1.0, kept: String::new(), keys: vec![key], runs: Vec::new() };
        store.note_collection(&collected).unwrap();
        assert_eq!(store.record_damage(), []);
        let floor = format!("memo/{}/{base}/floor.json", &base.hex()[..2]);
        let files =
            ["pins/paper.json", &floor, "schedule/nightly/switch.json", "sources.json", "collected/collections.jsonl"];
        for file in files {
            let path = folder.path().join(file);
            let whole = fs::read(&path).unwrap();
            // A digit, so that the text stays JSON: of the checksum, the time, the stamp, the id.
            let digit = whole.iter().rposition(u8::is_ascii_digit).unwrap();
            let mut changed = whole.clone();
            changed[digit] = if changed[digit] == b'0' { b'1' } else { b'0' };
            for damaged in [changed, whole[..whole.len() / 2].to_vec()] {
                fs::write(&path, damaged).unwrap();
                let told = store.record_damage();
                assert_eq!(told.len(), 1, "{file}: {told:?}");
                assert!(told[0].file.starts_with(file), "{told:?}");
            }
            fs::write(&path, whole).unwrap();
        }
        fs::write(folder.path().join("pins/paper.json"), "").unwrap();
        assert!(store.pins().is_err() && store.record_damage().len() == 1);
    }
}

//! Tests of exporting an artifact with its lineage to another store, and of archives that must be rejected.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, files_in};

const PIPELINE: &str = "\
name: carrying
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
  other:  {op: sample, from: corpus, with: {n: 2}, seed: 3}
";

fn project() -> Mill {
    let mill = Mill::new();
    let line =
        |number| format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": "some words ".repeat(30)}));
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

fn ran() -> Mill {
    let mill = project();
    mill.run(&[]).exit(0);
    mill
}

fn export(mill: &Mill, what: &str, file: &Path, more: &[&str]) -> Value {
    let file = file.display().to_string();
    let told = mill.call(&[&["export", what, &file, "--json"], more].concat()).exit(0);
    told.events().pop().expect("what it holds")["holds"].clone()
}

fn import(mill: &Mill, file: &Path) -> Value {
    let told = mill.call(&["import", &file.display().to_string(), "--json"]).exit(0);
    told.events().pop().expect("what was taken")
}

/// Returns every file of a store with its content, except run records.
fn content(store: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut pending = ["artifacts", "results", "collected", "memo"].map(|name| store.join(name)).to_vec();
    while let Some(folder) = pending.pop() {
        for path in files_in(&folder) {
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(store).expect("below the store").display().to_string();
                found.insert(name, std::fs::read(&path).expect("a file"));
            }
        }
    }
    found
}

#[test]
fn what_was_exported_is_shown_explained_and_cached_elsewhere() {
    let here = ran();
    let file = here.path("few.tar.zst");
    let holds = export(&here, "few", &file, &[]);
    assert_eq!((&holds["results"], &holds["runs"], &holds["missing"]), (&3.into(), &1.into(), &0.into()), "{holds}");
    let there = project();
    let taken = import(&there, &file);
    assert_eq!((&taken["results"], &taken["known"], &taken["different"]), (&3.into(), &0.into(), &0.into()), "{taken}");
    assert_eq!(taken["root"], "carrying/few.rows");
    let shown = |mill: &Mill| mill.call(&["show", "few", "--json", "-n", "0"]).exit(0).stdout;
    assert_eq!(shown(&there), shown(&here));
    assert_eq!(there.why("few"), "cached, nothing changed");
    let told = there.run(&["few"]).exit(0);
    assert_eq!((told.ran().as_str(), told.cached().as_str()), ("", "chunks corpus few"));
    assert_eq!(there.run(&[]).exit(0).ran(), "bm25 other", "nodes that were not exported run");
    assert_eq!(there.artifacts(), here.artifacts());
    // All bytes are equal, and a second import changes nothing.
    let (ours, theirs) = (content(&here.store_path()), content(&there.store_path()));
    for (name, bytes) in ours.iter().filter(|(name, _)| name.starts_with("artifacts")) {
        assert!(theirs.get(name) == Some(bytes), "{name}");
    }
    let again = import(&there, &file);
    assert_eq!((&again["artifacts"], &again["results"], &again["runs"]), (&0.into(), &0.into(), &0.into()), "{again}");
    assert_eq!(content(&there.store_path()), theirs);
    assert_eq!(there.unfinished(), Vec::<std::path::PathBuf>::new());
}

#[test]
fn the_same_things_give_the_same_archive() {
    let mill = ran();
    let (one, other) = (mill.path("one.tar.zst"), mill.path("other.tar.zst"));
    export(&mill, "bm25", &one, &["--memo"]);
    export(&mill, "bm25", &other, &["--memo"]);
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap());
    // An imported artifact can be exported again.
    let there = project();
    import(&there, &one);
    let third = there.path("third.tar.zst");
    export(&there, "bm25", &third, &["--memo"]);
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&third).unwrap());
    let left: Vec<_> =
        files_in(&mill.path("")).into_iter().filter(|path| path.display().to_string().ends_with("partial")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_shallow_export_has_all_records_and_one_artifact() {
    let here = ran();
    let (whole, shallow) = (here.path("whole.tar.zst"), here.path("shallow.tar.zst"));
    let all = export(&here, "few", &whole, &[]);
    let one = export(&here, "few", &shallow, &["--shallow"]);
    assert_eq!(all["results"], one["results"]);
    assert!(one["artifacts"].as_u64() < all["artifacts"].as_u64(), "{one} {all}");
    let there = project();
    import(&there, &shallow);
    assert!(there.call(&["show", "few"]).exit(0).stdout.contains("d1"));
    let told = there.run(&["few"]).exit(0);
    assert_eq!(told.ran(), "chunks corpus", "missing artifacts are recomputed; equal bytes keep later nodes cached");
    assert_eq!(told.reasons("chunks"), ["artifact_missing"]);
    // `NODE.PORT`, an artifact's id and a prefix of the id name the same artifact.
    let id = here.artifacts()["few.rows"].clone();
    for what in ["few.rows", &id, &id[..12]] {
        let file = here.path("again.tar.zst");
        export(&here, what, &file, &["--shallow"]);
        assert!(std::fs::read(&file).unwrap() == std::fs::read(&shallow).unwrap(), "{what}");
    }
    here.call(&["export", "nothing", "x.tar.zst"]).exit(2);
    here.call(&["export", "few.nothing", "x.tar.zst"]).exit(2);
    here.call(&["export", "few"]).exit(2);
    here.call(&["export", "few", "no/such/folder/x.tar.zst"]).exit(2);
}

#[test]
fn what_was_collected_is_left_out_and_said() {
    let here = ran();
    here.write("small.yaml", &PIPELINE.replace("size: 6", "size: 7"));
    here.call(&["pin", "few"]).exit(0);
    here.call(&["run", "small.yaml", "--json"]).exit(0);
    here.call(&["gc", "--yes", "--keep-runs", "1", "--older-than", "0s"]).exit(0);
    let told = here.call(&["export", "few", "few.tar.zst", "--run", &here.store().run_ids()[0]]).exit(0);
    assert!(told.stderr.contains("not in the store any more"), "{}", told.stderr);
    let there = project();
    import(&there, &here.path("few.tar.zst"));
    // Its records were imported: the chunks are reported as collected.
    assert_eq!(there.run(&["few"]).exit(0).reasons("chunks"), ["collected"]);
}

type Entries = Vec<(String, tar::EntryType, Vec<u8>)>;

fn entries(file: &Path) -> Entries {
    let decoder = zstd::Decoder::new(std::fs::File::open(file).expect("an archive")).expect("zstd");
    let mut archive = tar::Archive::new(decoder);
    let read = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let mut entry = entry.expect("an entry");
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).expect("content");
        (entry.path().expect("a path").display().to_string(), entry.header().entry_type(), bytes)
    };
    archive.entries().expect("entries").map(read).collect()
}

/// Writes entries with any names, including names that `tar` itself rejects.
fn write(file: &Path, entries: &Entries) {
    let mut archive = tar::Builder::new(zstd::Encoder::new(Vec::new(), 1).expect("zstd"));
    for (name, entry_type, bytes) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*entry_type);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if name.len() < 100 {
            header.as_gnu_mut().expect("GNU").name[..name.len()].copy_from_slice(name.as_bytes());
            if *entry_type == tar::EntryType::Symlink {
                header.set_link_name("/etc/passwd").expect("a link");
            }
            header.set_cksum();
            archive.append(&header, bytes.as_slice()).expect("an entry");
        } else {
            archive.append_data(&mut header, name, bytes.as_slice()).expect("an entry");
        }
    }
    let bytes = archive.into_inner().expect("tar").finish().expect("zstd");
    std::fs::write(file, bytes).expect("an archive");
}

/// Changes the list of files.
fn relist(entries: &mut Entries, change: impl Fn(&mut Vec<Value>)) {
    let mut manifest: Value = serde_json::from_slice(&entries[0].2).expect("a list");
    change(manifest["files"].as_array_mut().expect("files"));
    entries[0].2 = serde_json::to_vec(&manifest).expect("JSON");
}

fn digest(bytes: &[u8]) -> String {
    searchmill_engine::fingerprint::hash_bytes(bytes).hex()
}

fn place(entries: &Entries, part: &str) -> usize {
    entries.iter().position(|(name, ..)| name.contains(part)).unwrap_or_else(|| panic!("{part}"))
}

/// Changes an entry and its line in the list consistently.
fn forge(entries: &mut Entries, at: usize, change: impl Fn(&mut Vec<u8>)) {
    change(&mut entries[at].2);
    let (name, _, bytes) = entries[at].clone();
    relist(entries, |files| {
        let file = files.iter_mut().find(|file| file["path"] == name.as_str()).expect("the file");
        file["bytes"] = bytes.len().into();
        file["digest"] = digest(&bytes).into();
    });
}

/// Adds a file outside the store, with a line in the list.
fn add(entries: &mut Entries, name: &str) {
    let bytes = b"evil".to_vec();
    relist(entries, |files| {
        files.push(serde_json::json!({"path": name, "bytes": bytes.len(), "digest": digest(&bytes)}));
    });
    entries.push((name.to_owned(), tar::EntryType::Regular, bytes));
}

/// Replaces the run's id everywhere.
fn rename_run(entries: &mut Entries, to: &str) {
    let at = place(entries, "run.json");
    let run = entries[at].0.split('/').nth(1).expect("an id").to_owned();
    for (name, ..) in entries.iter_mut() {
        *name = name.replace(&run, to);
    }
    relist(entries, |files| {
        for file in files {
            file["path"] = file["path"].as_str().expect("a path").replace(&run, to).into();
        }
    });
    forge(entries, at, |bytes| {
        let mut record: Value = serde_json::from_slice(bytes).expect("JSON");
        record["id"] = to.into();
        // Records of earlier versions have no checksum.
        record.as_object_mut().expect("an object").remove("check");
        *bytes = serde_json::to_vec(&record).expect("JSON");
    });
}

type Change = (&'static str, fn(&mut Entries));

const CHANGES: [Change; 22] = [
    ("a run of the future", |entries| rename_run(entries, "20991120-131502-1a2bf00d")),
    ("a run whose id is no date", |entries| rename_run(entries, "zzzzzzzz")),
    ("a path that leads up", |entries| add(entries, "artifacts/../../evil")),
    ("an absolute path", |entries| add(entries, "/tmp/evil")),
    ("a file beside the store's own", |entries| add(entries, "format")),
    ("a pin", |entries| add(entries, "pins/evil.json")),
    ("a lease", |entries| add(entries, "leases/store")),
    ("an entry that is not in the list", |entries| {
        entries.push(("evil".to_owned(), tar::EntryType::Regular, b"evil".to_vec()));
    }),
    ("an entry in another order", |entries| entries.swap(1, 2)),
    ("a missing entry", |entries| drop(entries.pop())),
    ("a link for a file", |entries| {
        let at = place(entries, "nodes.jsonl");
        (entries[at].1, entries[at].2) = (tar::EntryType::Symlink, Vec::new());
    }),
    ("a folder", |entries| entries.insert(1, ("artifacts/".to_owned(), tar::EntryType::Directory, Vec::new()))),
    ("a flipped bit in a table", |entries| {
        let at = place(entries, "part-00000.parquet");
        entries[at].2[30] ^= 1;
    }),
    ("another table in its place, in the list too", |entries| {
        let at = place(entries, "part-00000.parquet");
        forge(entries, at, |bytes| bytes[30] ^= 1);
    }),
    ("another description", |entries| {
        let at = place(entries, "artifacts/");
        forge(entries, at, |bytes| {
            *bytes = String::from_utf8_lossy(bytes).replacen("rows\": ", "rows\": 1", 1).into_bytes();
        });
    }),
    ("a record with another output", |entries| {
        let at = place(entries, "results/");
        forge(entries, at, |bytes| bytes[200] ^= 1);
    }),
    ("a record under another key", |entries| {
        let at = place(entries, "results/");
        let other = entries[at + 1].2.clone();
        forge(entries, at, |bytes| bytes.clone_from(&other));
    }),
    ("a file listed twice", |entries| {
        let twice = entries[1].clone();
        entries.insert(1, twice);
        relist(entries, |files| files.insert(0, files[0].clone()));
    }),
    ("a longer file than listed", |entries| entries[1].2.extend(b"more")),
    ("another format", |entries| {
        entries[0].2 =
            String::from_utf8_lossy(&entries[0].2).replacen("\"format\": 2", "\"format\": 9", 1).into_bytes();
    }),
    ("no list", |entries| drop(entries.remove(0))),
    ("a run that cannot be read", |entries| {
        let at = place(entries, "run.json");
        forge(entries, at, |bytes| bytes.truncate(10));
    }),
];

#[test]
fn odd_archives_are_refused_and_leave_nothing() {
    let here = ran();
    let good = here.path("few.tar.zst");
    export(&here, "few", &good, &[]);
    let there = project();
    there.call(&["runs"]).exit(0);
    let before = content(&there.store_path());
    for (title, change) in CHANGES {
        let mut changed = entries(&good);
        change(&mut changed);
        let file = here.path("odd.tar.zst");
        write(&file, &changed);
        let told = there.call(&["import", &file.display().to_string()]);
        assert_eq!(told.code, 1, "{title}: {told:?}");
        assert!(told.stderr.contains("nothing of it was taken"), "{title}: {}", told.stderr);
        assert_eq!(content(&there.store_path()), before, "{title}");
        assert_eq!(there.store().run_ids(), Vec::<String>::new(), "{title}");
        assert_eq!(there.unfinished(), Vec::<std::path::PathBuf>::new(), "{title}");
        assert!(!there.path("evil").exists() && !Path::new("/tmp/evil").exists(), "{title}");
    }
    // Check of the archive writer: unchanged entries are accepted.
    let file = here.path("same.tar.zst");
    write(&file, &entries(&good));
    assert_eq!(import(&there, &file)["results"], 3);
}

#[test]
fn an_imported_run_decides_nothing() {
    let here = project();
    let there = ran();
    let own = there.store().run_ids().pop().expect("a run");
    let few = there.artifacts()["few.rows"].clone();
    let shown = |mill: &Mill, more: &[&str]| mill.call(&[&["show", "few", "--json"], more].concat()).exit(0).stdout;
    let before = shown(&there, &[]);
    // Another result of the same node, from a later run.
    let documents = here.read("documents.jsonl");
    let words = |text: &str| documents.replace("some words", text);
    here.write("documents.jsonl", &words("other words"));
    here.run(&[]).exit(0);
    let file = here.path("few.tar.zst");
    export(&here, "few", &file, &[]);
    assert_eq!(import(&there, &file)["runs"], 1);
    let theirs = there.store().run_ids().pop().expect("a run");
    assert!(theirs > own && there.store().is_imported(&theirs) && !there.store().is_imported(&own));
    // The imported run can be named, but is not the latest one.
    assert_eq!(shown(&there, &["--run", &theirs]), shown(&here, &[]));
    assert_eq!((shown(&there, &[]), shown(&there, &["--run", "latest"])), (before.clone(), before));
    there.call(&["trace", "few", "--run", &theirs]).exit(0);
    assert!(there.call(&["logs", "--json"]).exit(0).events()[0]["run"] == own.as_str());
    assert!(there.call(&["show", "few", "--run", "previous"]).exit(2).stderr.contains("no previous run"));
    let runs = there.call(&["runs", "--json"]).exit(0).events();
    assert_eq!((&runs[0]["imported"], &runs[1]["imported"]), (&Value::Null, &true.into()));
    let table = there.call(&["runs"]).exit(0).stdout;
    assert!(table.lines().any(|line| line.contains(&theirs) && line.contains("imported")), "{table}");
    // A frozen node uses its last result in this store.
    there.write("documents.jsonl", &words("new words"));
    there.write("pipeline.yaml", &PIPELINE.replace("n: 5}, seed: 3", "n: 5}, seed: 3, freeze: true"));
    there.run(&["few"]).exit(0);
    assert_eq!(there.artifacts()["few.rows"], few);
}

#[test]
fn what_is_no_archive_is_refused() {
    let here = ran();
    let good = here.path("few.tar.zst");
    export(&here, "few", &good, &[]);
    let bytes = std::fs::read(&good).expect("an archive");
    let there = project();
    let none = "is not an export of searchmill";
    let odd =
        [("half", &bytes[..bytes.len() / 2], 1, "refused"), ("text", b"hello", 2, none), ("nothing", b"", 2, none)];
    for (title, bytes, exit, words) in odd {
        let file = here.path("odd.tar.zst");
        std::fs::write(&file, bytes).expect("a file");
        let told = there.call(&["import", &file.display().to_string()]).exit(exit);
        assert!(told.stderr.contains(words), "{title}: {}", told.stderr);
    }
    let mut flipped = bytes;
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    std::fs::write(here.path("odd.tar.zst"), flipped).expect("a file");
    there.call(&["import", &here.path("odd.tar.zst").display().to_string()]).exit(1);
    there.call(&["import", "nothing.tar.zst"]).exit(2);
    assert_eq!(content(&there.store_path()), BTreeMap::new());
}

#[test]
fn what_is_there_is_never_overwritten() {
    let here = ran();
    let file = here.path("few.tar.zst");
    export(&here, "few", &file, &[]);
    let there = ran();
    // The same key with other outputs, as from a nondeterministic node.
    let key = there.last_nodes().into_iter().find(|node| node.node == "few").and_then(|node| node.key).expect("a key");
    let store = there.store();
    let mut result = store.result(&key).expect("a result");
    let rejects = result.outputs["rejects"].clone();
    result.outputs.insert("rows".to_owned(), rejects);
    store.record(&result).expect("a record");
    let before = content(&there.store_path());
    let told = there.call(&["import", &file.display().to_string()]).exit(0);
    assert!(told.stderr.contains("1 results were here with other outputs"), "{}", told.stderr);
    assert_eq!(content(&there.store_path()), before);
    // A damaged artifact counts as missing: the import repairs it.
    let part = there.artifact_folder("chunks", "chunks").join("part-00000.parquet");
    std::fs::write(&part, "short").expect("a file");
    assert_eq!(import(&there, &file)["artifacts"], 1);
    assert_eq!(content(&there.store_path()), before);
}

#[test]
fn a_colleague_pays_nothing_for_rows_that_were_paid_for() {
    let questions = 8;
    let names: Vec<String> = (0..questions).map(|number| format!("q{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let here = Bench::new(&patient(questions, Duration::ZERO));
    here.run(&[]).exit(0);
    assert_eq!(here.paid(&names), questions);
    let file = here.mill.path("rows.tar.zst");
    let told = here.mill.call(&["export", "--memo", &file.display().to_string(), "--json"]).exit(0);
    assert_eq!(told.events()[0]["holds"]["rows"], 2 * questions, "rows and their answers");

    let mut there = Bench::new(&patient(questions, Duration::ZERO));
    there.api_key = "another";
    assert_eq!(import(&there.mill, &file)["rows"], 2 * questions);
    assert_eq!(import(&there.mill, &file)["rows"], 0, "known rows are not imported twice");
    let told = there.run(&[]).exit(0);
    assert_eq!(there.paid(&names), 0, "{told:?}");
    assert_eq!(there.mill.artifacts(), here.mill.artifacts());

    // Rows of both stores are merged: our own, and those that only the colleague has.
    let more: Vec<String> = (0..questions + 4).map(|number| format!("q{number}")).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    there.serve(&patient(questions + 4, Duration::ZERO));
    there.ask(&more);
    there.run(&[]).exit(0);
    assert_eq!(there.paid(&more), 4);
    let told = there.mill.call(&["export", "answers", "both.tar.zst", "--memo", "--json"]).exit(0);
    assert_eq!(told.events()[0]["holds"]["rows"], 2 * (questions + 4), "the rows of its lineage, answers included");
    assert_eq!(import(&here.mill, &there.mill.path("both.tar.zst"))["rows"], 2 * 4);
    let mut third = here;
    third.serve(&patient(questions + 4, Duration::ZERO));
    third.ask(&more);
    third.run(&[]).exit(0);
    assert_eq!(third.paid(&more), 0);
    // Also if only the answers can be reused.
    third.replace("samples: 1", "samples: 1\n      max_turns: 7");
    let told = third.run(&[]).exit(0);
    assert!(told.nodes("node_finished").contains("answers"), "{}", told.stdout);
    assert_eq!(third.paid(&more), 0);
}

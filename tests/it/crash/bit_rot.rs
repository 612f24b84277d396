//! Tests of bit rot: a byte changes, but the file's timestamp does not. No node may use such a file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, files_in};

/// Flips a byte and restores the file's timestamp.
fn rot(path: &Path, place: usize) {
    let before = path.metadata().and_then(|file| file.modified()).expect("a file with a time");
    let mut bytes = fs::read(path).expect("a file");
    bytes[place] ^= 1;
    fs::write(path, bytes).expect("written");
    File::options().append(true).open(path).and_then(|file| file.set_modified(before)).expect("its time");
}

fn find(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("the text")
}

fn chunks_of(bench: &Bench) -> PathBuf {
    let nodes = bench.mill.last_nodes();
    let index = nodes.iter().find(|node| node.node == "bm25").and_then(|node| node.outputs.first()).expect("an index");
    bench.mill.store().artifact_folder(&index.1.id).join("chunks.bin")
}

#[test]
fn a_rotten_passage_of_an_index_goes_into_no_paid_rollout() {
    let script = || {
        vec![(
            "q0".to_owned(),
            vec![
                searchmill_fixtures::openai_server::search(&["Rome"]),
                searchmill_fixtures::openai_server::answer("Rome"),
            ],
        )]
    };
    let bench = Bench::by_turn(&script());
    bench.run(&[]).exit(0);
    let expected = bench.mill.artifacts();
    let chunks = chunks_of(&bench);
    let bytes = fs::read(&chunks).expect("chunks");
    rot(&chunks, find(&bytes, "Rome is the capital"));
    // The index is cached and looks intact; the rollout is forced.
    let told = bench.run(&["--force=answers"]).exit(0);
    assert_eq!(told.ran(), "answers bm25", "{}", told.stdout);
    assert_eq!(told.reasons("bm25"), ["artifact_corrupt"]);
    assert_eq!(fs::read(&chunks).expect("chunks"), bytes, "it was recomputed");
    for request in bench.server.requests("q0") {
        assert!(!request.body.to_string().contains("Some is the capital"), "{}", request.body);
    }
    assert_eq!(bench.mill.artifacts()["bm25.index"], expected["bm25.index"]);
}

const PIPELINE: &str = "\
name: rot
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  few:    {op: sample, from: chunks, with: {n: 5}, seed: 3}
  file:   {op: write, from: few, with: {path: out/few.jsonl}}
";

fn mill() -> Mill {
    let mill = Mill::new();
    let line = |number: usize| {
        let text = format!("Document {number} tells of a river and of the {number} bridges over it, built long ago.");
        format!("{}\n", serde_json::json!({"id": format!("d{number}"), "text": text}))
    };
    mill.write("documents.jsonl", &(0..40).map(line).collect::<String>());
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill
}

/// Flips a byte in the middle of the values of a Parquet part.
fn rot_part(mill: &Mill, node: &str, port: &str) -> PathBuf {
    let part = mill.artifact_folder(node, port).join("part-00000.parquet");
    let middle = fs::metadata(&part).expect("a part").len() as usize / 3;
    rot(&part, middle);
    part
}

#[test]
fn a_rotten_part_is_made_again_before_it_is_read() {
    let mill = mill();
    let expected = mill.artifacts();
    rot_part(&mill, "chunks", "chunks");
    let text = PIPELINE.replace("n: 5", "n: 6");
    mill.write("pipeline.yaml", &text);
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.ran(), "chunks few file", "{}", told.stdout);
    assert_eq!(told.reasons("chunks"), ["artifact_corrupt"]);
    assert_eq!(mill.artifacts()["chunks.chunks"], expected["chunks.chunks"]);
    mill.call(&["audit", "chunks"]).exit(0);
    // A file found damaged stays marked as damaged until it is recomputed.
    rot_part(&mill, "chunks", "chunks");
    mill.write("pipeline.yaml", &PIPELINE.replace("n: 5", "n: 7"));
    assert_eq!(mill.why("chunks"), "cached, nothing changed", "no node has read it");
    let told = mill.run(&["--only", "few"]).exit(5);
    assert!(told.stdout.contains("an input was damaged, and could not be made again"), "{}", told.stdout);
    assert_eq!(mill.why("chunks"), "run | the artifact of output `chunks` is damaged in the store");
    assert_eq!(mill.run(&[]).exit(0).ran(), "chunks few file");
}

#[test]
fn what_is_written_out_is_compared_before() {
    let mill = mill();
    let written = mill.read("out/few.jsonl");
    let folder = mill.artifact_folder("file", "files");
    rot(&folder.join("few.jsonl"), 12);
    fs::remove_file(mill.path("out/few.jsonl")).expect("removed");
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.reasons("file"), ["artifact_corrupt"]);
    assert_eq!(mill.read("out/few.jsonl"), written);
}

#[test]
fn a_part_that_was_taken_over_from_a_rotten_artifact_is_computed_anew() {
    let mill = Mill::new();
    let line = |number: usize| {
        format!("{}\n", serde_json::json!({"id": format!("d{number:05}"), "text": format!("text {number} of many")}))
    };
    let documents = |count: usize| (0..count).map(line).collect::<String>();
    mill.write("documents.jsonl", &documents(20_000));
    mill.write("pipeline.yaml", &PIPELINE.replace("n: 5", "n: 50"));
    mill.run(&[]).exit(0);
    let first = mill.artifact_folder("chunks", "chunks");
    assert!(files_in(&first).len() > 2, "several parts");
    let part = first.join("part-00000.parquet");
    let whole = fs::read(&part).expect("a part");
    rot(&part, whole.len() / 3);
    // The first parts of the longer table are reused, including the damaged one; the node that reads it detects the
    // damage.
    mill.write("documents.jsonl", &documents(20_100));
    let told = mill.run(&[]).exit(0);
    assert_eq!(told.reasons("few"), ["input_changed"], "{}", told.stdout);
    let now = mill.artifact_folder("chunks", "chunks");
    mill.call(&["audit", "few"]).exit(0);
    assert!(now != first && files_in(&now).iter().any(|file| fs::read(file).is_ok_and(|bytes| bytes == whole)));
}

#[test]
fn a_run_without_rot_reads_its_inputs_and_changes_nothing() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    bench.run(&[]).exit(0);
    let expected = bench.mill.artifacts();
    assert_eq!(bench.run(&["--force=scores"]).exit(0).ran(), "scores");
    assert_eq!(bench.mill.artifacts(), expected);
}

const INDEXED: &str = "\
name: added
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  folder: {op: write, from: bm25, with: {path: out/index}}
";

#[cfg(unix)]
#[test]
fn what_was_added_to_a_folder_is_damage() {
    use std::os::unix::fs::symlink;
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("a file", |folder| fs::write(folder.join("chat_template.jinja"), "x").expect("written")),
        ("a link", |folder| symlink("/etc/passwd", folder.join("passwd")).expect("linked")),
        ("links that lead round", |folder| {
            symlink(".", folder.join("one")).and_then(|()| symlink(".", folder.join("two"))).expect("linked");
        }),
        ("a link in the place of a file", |folder| {
            let copy = folder.with_extension("copy");
            fs::rename(folder.join("chunks.bin"), &copy).expect("moved");
            symlink(&copy, folder.join("chunks.bin")).expect("linked");
        }),
    ];
    for (name, harm) in harms {
        let mill = mill();
        mill.write("pipeline.yaml", INDEXED);
        mill.run(&[]).exit(0);
        let expected = mill.artifacts();
        let (folder, out) = (mill.artifact_folder("bm25", "index"), mill.path("out/index"));
        let before = (files_in(&folder), files_in(&out));
        harm(&folder);
        mill.call(&["audit", "bm25"]).exit(1);
        for refused in [&["attest", "bm25"][..], &["export", "bm25", "bm25.tar.zst"]] {
            assert_ne!(mill.call(refused).code, 0, "{name}: {refused:?}");
        }
        let told = mill.run(&[]).exit(0);
        assert_eq!(
            (told.ran().as_str(), told.reasons("bm25")),
            ("bm25", vec!["artifact_corrupt".to_owned()]),
            "{name}"
        );
        assert_eq!(mill.artifacts(), expected, "{name}: made again");
        // Also with delivered files: nothing damaged is delivered.
        harm(&mill.artifact_folder("folder", "files"));
        fs::remove_dir_all(&out).expect("removed");
        assert_eq!(mill.run(&[]).exit(0).ran(), "folder", "{name}");
        assert_eq!((files_in(&folder), files_in(&out)), before, "{name}");
        assert!(!out.join("chunks.bin").is_symlink(), "{name}");
    }
}

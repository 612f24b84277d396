//! Tests of remembered rows and answers forged with valid checksums: audits that compare rows with answers find them,
//! and a row that belongs to another key is never used.

use std::path::PathBuf;
use std::time::Duration;

use searchmill_engine::fingerprint::{Digest, hash_bytes};
use searchmill_engine::store::NodeResult;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::files_in;

/// Bytes of a record before its payload: mark, length, checksum, stamp, key.
const HEADER: usize = 4 + 4 + 8 + 8 + 32;

fn bench() -> Bench {
    let bench = Bench::new(&patient(6, Duration::ZERO));
    bench.run(&[]).exit(0);
    bench
}

fn segment(bench: &Bench, base: fn(&NodeResult) -> Option<Digest>) -> PathBuf {
    let key = bench.mill.last_nodes().iter().find(|node| node.node == "answers").and_then(|node| node.key);
    let store = bench.mill.store();
    let base = base(&store.result(&key.expect("a key")).expect("a result")).expect("a memo");
    files_in(&store.memo_folder(&base)).into_iter().find(|path| path.extension().is_some()).expect("a segment")
}

/// Returns the stamped keys and payloads of a segment.
fn records(path: &std::path::Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = std::fs::read(path).expect("a segment");
    let (mut at, mut found) = (0, Vec::new());
    while at < bytes.len() {
        let length = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four bytes")) as usize;
        let payload = at + HEADER;
        found.push((bytes[at + 16..payload].to_vec(), bytes[payload..payload + length].to_vec()));
        at = payload + length;
    }
    found
}

fn write(path: &std::path::Path, records: &[(Vec<u8>, Vec<u8>)]) {
    let mut bytes = Vec::new();
    for (key, payload) in records {
        bytes.extend(*b"srm\xc3");
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(&hash_bytes(&[key.as_slice(), payload].concat()).as_bytes()[..8]);
        bytes.extend(key);
        bytes.extend(payload);
    }
    std::fs::write(path, bytes).expect("written");
}

fn forget_result(bench: &Bench) {
    let key = bench.mill.last_nodes().iter().find(|node| node.node == "answers").and_then(|node| node.key);
    let key = key.expect("a key").to_string();
    let record = bench.mill.store_path().join("results").join(&key[..2]).join(format!("{key}.json"));
    std::fs::remove_file(record).expect("removed");
}

#[test]
fn honest_rollouts_are_what_was_answered() {
    let bench = bench();
    let told = bench.mill.call(&["audit", "answers", "--rollouts"]).exit(0);
    assert!(told.stdout.contains("6 rows match the cached answers"), "{}", told.stdout);
    // After `--force`, both answers of each call are known; the current rollouts match the newer ones.
    bench.run(&["--force=answers"]).exit(0);
    bench.mill.call(&["audit", "answers", "--rollouts"]).exit(0);
}

#[test]
fn swapped_answers_are_found() {
    let bench = bench();
    let path = segment(&bench, |result| result.asked);
    let mut found = records(&path);
    let other = String::from_utf8_lossy(&found[3].1).replace("Rome", "Oslo").into_bytes();
    found[3].1 = other;
    write(&path, &found);
    let told = bench.mill.call(&["audit", "answers", "--rollouts"]).exit(1);
    assert!(told.stdout.contains("what the model said"), "{}", told.stdout);
}

#[test]
fn answers_that_are_gone_are_not_taken_for_checked() {
    let bench = bench();
    std::fs::remove_file(segment(&bench, |result| result.asked)).expect("removed");
    let told = bench.mill.call(&["audit", "answers", "--rollouts"]);
    assert_ne!(told.code, 0, "{}", told.stdout);
    assert!(told.stdout.contains("answers of 6 of 6 rows are not cached here"), "{}", told.stdout);
}

#[test]
fn swapped_rows_are_not_taken_and_a_forged_model_is_found() {
    let bench = bench();
    let expected = bench.mill.artifacts();
    let path = segment(&bench, |result| result.memo);
    let honest = records(&path);
    let mut swapped = honest.clone();
    let (one, other) = (swapped[0].1.clone(), swapped[1].1.clone());
    (swapped[0].1, swapped[1].1) = (other, one);
    write(&path, &swapped);
    forget_result(&bench);
    bench.run(&[]).exit(0);
    assert_eq!((bench.mill.artifacts(), bench.server.count()), (expected, 6), "rebuilt from the answers");

    let mut forged = honest;
    let model = b"scripted-2026";
    for (_, payload) in &mut forged {
        let at = payload.windows(model.len()).position(|part| part == model).expect("the model's name");
        payload[at + model.len() - 1] = b'7';
    }
    for path in files_in(path.parent().expect("a folder")) {
        std::fs::remove_file(path).expect("removed");
    }
    write(&path, &forged);
    forget_result(&bench);
    bench.run(&[]).exit(0);
    let told = bench.mill.call(&["audit", "answers", "--rollouts"]).exit(1);
    assert!(told.stdout.contains("what the model said"), "{}", told.stdout);
}

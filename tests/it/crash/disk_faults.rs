//! Tests of faults of a store's disk, files and clock, one row each. They check the message of the next command, that
//! no wrong output is delivered, that no paid work is lost, and that the following run is correct.

use std::fs::{self, File, OpenOptions};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use searchmill_engine::fingerprint::Digest;
use searchmill_engine::store::NodeResult;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Told, files_in};

/// Enough questions that one lost answer is below the share that is asked again without `--rebuy`.
const QUESTIONS: usize = 24;

/// A fault and its expected consequences.
struct Fault {
    name: &'static str,
    harm: fn(&Bench),
    /// Text in the report of `audit`, which exits with code 1; empty if the audit finds nothing.
    audit: &'static str,
    /// Nodes that run again.
    ran: &'static str,
    /// Reason of the first of them.
    reason: &'static str,
    /// Calls paid again.
    paid: RangeInclusive<usize>,
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).expect("written");
}

fn halve(path: &Path) {
    let length = path.metadata().expect("a file").len();
    OpenOptions::new().write(true).open(path).expect("opened").set_len(length / 2).expect("cut");
}

fn part(bench: &Bench) -> PathBuf {
    bench.mill.artifact_folder("chunks", "chunks").join("part-00000.parquet")
}

/// Returns the largest file of the index.
fn index(bench: &Bench) -> PathBuf {
    let nodes = bench.mill.last_nodes();
    let output = nodes.iter().find(|node| node.node == "bm25").and_then(|node| node.outputs.get_index(0));
    let folder = bench.mill.store().artifact_folder(&output.expect("an index").1.id);
    let files = files_in(&folder).into_iter().filter(|path| path.is_file());
    files.max_by_key(|path| path.metadata().map_or(0, |file| file.len())).expect("a file of the index")
}

fn record(bench: &Bench) -> PathBuf {
    let nodes = bench.mill.last_nodes();
    let key = nodes.iter().find(|node| node.node == "answers").and_then(|node| node.key).expect("a key").to_string();
    bench.mill.store_path().join("results").join(&key[..2]).join(format!("{key}.json"))
}

/// Returns the segment of the rollouts.
fn segment(bench: &Bench) -> PathBuf {
    memo_file(bench, |result| result.memo)
}

/// Returns the segment of the answers behind them.
fn answers(bench: &Bench) -> PathBuf {
    memo_file(bench, |result| result.asked)
}

fn memo_file(bench: &Bench, base: fn(&NodeResult) -> Option<Digest>) -> PathBuf {
    let nodes = bench.mill.last_nodes();
    let key = nodes.iter().find(|node| node.node == "answers").and_then(|node| node.key).expect("a key");
    let store = bench.mill.store();
    let base = base(&store.result(&key).expect("a result")).expect("a memo");
    files_in(&store.memo_folder(&base)).into_iter().find(|path| path.extension().is_some()).expect("a segment")
}

/// Deletes the result and the rollouts, so that they are rebuilt from the answers.
fn leave_answers(bench: &Bench) {
    fs::remove_file(segment(bench)).expect("removed");
    fs::remove_file(record(bench)).expect("removed");
}

fn ledger(bench: &Bench, file: &str) -> PathBuf {
    files_in(&bench.mill.store_path().join("runs")).pop().expect("a run").join(file)
}

const FAULTS: [Fault; 17] = [
    Fault {
        name: "a deleted blob",
        harm: |bench| fs::remove_file(part(bench)).expect("removed"),
        audit: "it is gone",
        ran: "chunks",
        reason: "artifact_missing",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in a blob",
        harm: |bench| flip(&part(bench)),
        audit: "its content was changed",
        ran: "chunks",
        reason: "artifact_corrupt",
        paid: 0..=0,
    },
    Fault {
        name: "a truncated blob",
        harm: |bench| halve(&part(bench)),
        audit: "its content was changed",
        ran: "chunks",
        reason: "artifact_corrupt",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in an index",
        harm: |bench| flip(&index(bench)),
        audit: "its content was changed",
        ran: "bm25",
        reason: "artifact_corrupt",
        paid: 0..=0,
    },
    Fault {
        name: "a truncated description",
        harm: |bench| halve(&part(bench).parent().expect("its folder").with_extension("json")),
        audit: "its description does not give its id",
        ran: "chunks",
        reason: "artifact_corrupt",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in a result record",
        harm: |bench| flip(&record(bench)),
        audit: "record",
        ran: "answers",
        reason: "unfinished",
        paid: 0..=0,
    },
    Fault {
        name: "a truncated result record",
        harm: |bench| halve(&record(bench)),
        audit: "record",
        ran: "answers",
        reason: "unfinished",
        paid: 0..=0,
    },
    Fault {
        name: "a deleted result record and a flipped byte in the memo",
        harm: |bench| {
            flip(&segment(bench));
            fs::remove_file(record(bench)).expect("removed");
        },
        audit: "is gone from the store",
        ran: "answers",
        reason: "unfinished",
        paid: 0..=0,
    },
    Fault {
        name: "a deleted result record, no rows, and a flipped byte in the answers",
        harm: |bench| {
            flip(&answers(bench));
            leave_answers(bench);
        },
        audit: "is gone from the store",
        ran: "answers",
        reason: "unfinished",
        paid: 1..=1,
    },
    Fault {
        name: "a deleted result record, no rows, and truncated answers",
        harm: |bench| {
            halve(&answers(bench));
            leave_answers(bench);
        },
        audit: "is gone from the store",
        ran: "answers",
        reason: "unfinished",
        paid: 1..=QUESTIONS - 1,
    },
    Fault {
        name: "a deleted result record and a truncated memo",
        harm: |bench| {
            halve(&segment(bench));
            fs::remove_file(record(bench)).expect("removed");
        },
        audit: "is gone from the store",
        ran: "answers",
        reason: "unfinished",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in the memo",
        harm: |bench| flip(&segment(bench)),
        audit: "cached rows are damaged",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in the ledger",
        harm: |bench| flip(&ledger(bench, "nodes.jsonl")),
        audit: "nodes.jsonl, line ",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
    Fault {
        name: "a truncated ledger",
        harm: |bench| halve(&ledger(bench, "nodes.jsonl")),
        audit: "nodes.jsonl, line ",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in the record of the run",
        harm: |bench| flip(&ledger(bench, "run.json")),
        audit: "run.json, line 1",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
    Fault {
        name: "a flipped byte in the events of the run",
        harm: |bench| flip(&ledger(bench, "events.jsonl")),
        audit: "events.jsonl, line ",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
    Fault {
        name: "damaged digests of sources",
        harm: |bench| fs::write(bench.mill.store_path().join("sources.json"), "[[").expect("written"),
        audit: "sources.json",
        ran: "",
        reason: "",
        paid: 0..=0,
    },
];

fn names() -> Vec<String> {
    (0..QUESTIONS).map(|number| format!("q{number}")).collect()
}

fn paid(bench: &Bench) -> usize {
    bench.paid(&names().iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn damaged_files_are_found_named_and_made_again() {
    for fault in FAULTS {
        let name = fault.name;
        let bench = Bench::new(&patient(QUESTIONS, Duration::ZERO));
        bench.run(&[]).exit(0);
        let (expected, before) = (bench.mill.artifacts(), paid(&bench));
        let run = bench.mill.store().run_ids().pop().expect("a run");
        (fault.harm)(&bench);
        let audit = bench.mill.call(&["audit", &run]);
        assert_eq!(audit.code, i32::from(!fault.audit.is_empty()), "{name}: {audit:?}");
        assert!(audit.stdout.contains(fault.audit), "{name}: {}", audit.stdout);
        let told = bench.run(&[]);
        assert_eq!((told.code, told.ran().as_str()), (0, fault.ran), "{name}: {told:?}");
        if let Some(node) = fault.ran.split(' ').next().filter(|node| !node.is_empty()) {
            assert_eq!(told.reasons(node), [fault.reason], "{name}");
        }
        let again = paid(&bench) - before;
        assert!(fault.paid.contains(&again), "{name}: {again} calls were paid again");
        assert_eq!(bench.mill.artifacts(), expected, "{name}");
        assert_eq!(bench.run(&[]).exit(0).ran(), "", "{name}: the run after that");
        crate::say(&format!("{name}: audit {}, ran `{}`, {again} calls paid again", audit.code, fault.ran));
    }
}

#[test]
fn much_that_is_damaged_is_paid_again_only_with_leave() {
    let bench = Bench::new(&patient(QUESTIONS, Duration::ZERO));
    bench.run(&[]).exit(0);
    let (file, before, expected) = (answers(&bench), paid(&bench), bench.mill.artifacts());
    leave_answers(&bench);
    let mut bytes = fs::read(&file).expect("answers");
    let length = bytes.len();
    for place in (1..6).map(|number| number * length / 6) {
        bytes[place] ^= 1;
    }
    fs::write(&file, bytes).expect("written");
    let told = bench.run(&[]).exit(5);
    assert!(told.stdout.contains("5 of 24 cached answers are damaged in"), "{}", told.stdout);
    assert!(told.stdout.contains("--rebuy") && paid(&bench) == before, "{}", told.stdout);
    let told = bench.run(&["--rebuy"]).exit(0);
    assert!(told.stdout.contains("calling again for the missing ones"), "{}", told.stdout);
    assert_eq!((paid(&bench), bench.mill.artifacts()), (before + 5, expected));
    let damaged = file.with_extension("damaged");
    assert!(damaged.exists() || file.with_extension("merging.damaged").exists(), "the damaged file is preserved");
    fs::remove_file(record(&bench)).expect("removed");
    assert_eq!((bench.run(&[]).exit(0).ran().as_str(), paid(&bench)), ("answers", before + 5), "it is mended");
}

/// A small separate disk.
struct Volume {
    folder: tempfile::TempDir,
}

impl Volume {
    /// Mounts a disk; `None` if this user may not mount.
    fn new(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            searchmill_fixtures::skip("the right to mount a tmpfs");
        }
        mounted.then_some(Self { folder })
    }

    fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        let status = mount.args(["-o", &format!("remount,{options}")]).arg(self.folder.path()).status();
        assert!(status.expect("`mount` is there").success(), "{options}");
    }

    fn store(&self) -> String {
        self.folder.path().join("store").display().to_string()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        assert!(status.is_ok_and(|status| status.success()), "the test's disk can be unmounted");
    }
}

fn run_in(bench: &Bench, store: &str) -> Told {
    bench.run(&["--store", store])
}

#[test]
fn a_full_disk_is_exit_5_and_loses_nothing() {
    let mut full = 0;
    for size in ["32k", "64k", "96k", "128k", "192k", "256k", "400k"] {
        let Some(volume) = Volume::new(size) else { return };
        let bench = Bench::new(&patient(QUESTIONS, Duration::ZERO));
        let told = run_in(&bench, &volume.store());
        if told.code == 0 {
            continue;
        }
        full += 1;
        assert_eq!(told.code, 5, "{size}: {told:?}");
        let said = format!("{}{}", told.stdout, told.stderr);
        assert!(said.contains("No space left on device"), "{size}: {said}");
        let before = paid(&bench);
        volume.remount("size=64m");
        run_in(&bench, &volume.store()).exit(0);
        let again = paid(&bench);
        assert!(again <= QUESTIONS + 8, "{size}: {again} calls for {QUESTIONS} rows, 8 of them at once");
        assert_eq!(run_in(&bench, &volume.store()).exit(0).ran(), "", "{size}");
        bench.mill.call(&["audit", "latest", "--store", &volume.store()]).exit(0);
        crate::say(&format!("a disk of {size}: exit 5 after {before} calls, {again} calls in all"));
    }
    assert!(full >= 3, "only {full} disks were too small");
}

#[test]
fn a_file_of_a_command_for_which_there_is_no_room_is_exit_5_and_leaves_nothing() {
    let Some(volume) = Volume::new("8k") else { return };
    let bench = Bench::new(&patient(3, Duration::ZERO));
    bench.run(&[]).exit(0);
    fs::write(volume.folder.path().join("filling"), [0; 8192]).expect("room for one file");
    let target = volume.folder.path().join("file.jsonl").display().to_string();
    for args in [
        &["show", "answers", "-o", &target][..],
        &["export", "answers", &target],
        &["attest", "answers", "-o", &target],
        &["attest", "--new-key", &target],
        &["audit", "latest", "--report", &target],
        &["ui", "--bundle", &target],
    ] {
        let told = bench.mill.call(args).exit(5);
        assert!(told.stderr.contains("No space left on device"), "{args:?}: {told:?}");
        assert_eq!(files_in(volume.folder.path()).len(), 1, "{args:?}");
    }
}

#[test]
fn a_read_only_store_can_be_read_and_is_exit_5_for_runs() {
    let Some(volume) = Volume::new("64m") else { return };
    let bench = Bench::new(&patient(3, Duration::ZERO));
    run_in(&bench, &volume.store()).exit(0);
    volume.remount("ro");
    let told = run_in(&bench, &volume.store()).exit(5);
    assert!(told.stderr.contains("Read-only file system"), "{}", told.stderr);
    let read = |args: &[&str]| bench.mill.call(&[args, &["--store", &volume.store()]].concat()).exit(0);
    for args in [&["show", "answers"][..], &["runs"], &["trace", "scores"], &["audit", "latest"], &["logs"], &["gc"]] {
        read(args);
    }
    volume.remount("rw");
    assert_eq!(run_in(&bench, &volume.store()).exit(0).ran(), "");
    assert_eq!(paid(&bench), 3);
}

#[test]
fn a_clock_that_was_set_back_changes_nothing() {
    let bench = Bench::new(&patient(3, Duration::ZERO));
    let late = SystemTime::now() + Duration::from_hours(24 * 900);
    let questions = bench.mill.path("questions.jsonl");
    let touch = |path: &Path| File::options().append(true).open(path).expect("opened").set_modified(late).expect("set");
    touch(&questions);
    bench.run(&[]).exit(0);
    // A source with a future timestamp is read each time: changed content of the same size is detected.
    let text = bench.mill.read("questions.jsonl");
    fs::write(&questions, text.replace("\"Rome\"", "\"Roma\"")).expect("written");
    touch(&questions);
    assert!(bench.run(&[]).exit(0).ran().contains("questions"));
    fs::write(&questions, &text).expect("written");
    // A run recorded while the clock was ahead: later runs must still sort after it.
    let store = bench.mill.store();
    let last = store.run_ids().pop().expect("a run");
    let ahead = format!("2099{}", &last[4..]);
    fs::rename(store.root().join("runs").join(&last), store.root().join("runs").join(&ahead)).expect("renamed");
    bench.run(&[]).exit(0);
    let ids = store.run_ids();
    assert!(ids.len() == 3 && ids[2] > ahead && ids[2].starts_with("2099"), "{ids:?}");
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    // Files with future timestamps count as recent: none of them is collected.
    let mut pending = vec![store.root().to_owned()];
    while let Some(folder) = pending.pop() {
        for path in files_in(&folder) {
            if path.is_dir() { pending.push(path) } else { touch(&path) }
        }
    }
    bench.mill.call(&["gc", "--yes"]).exit(0);
    assert_eq!(bench.run(&[]).exit(0).ran(), "");
    assert_eq!(paid(&bench), 3, "three questions; other golden answers cost nothing");
}

/// A process of another machine, represented by its files: a claim that changes.
struct Foreigner {
    alive: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Foreigner {
    fn new(path: PathBuf) -> Self {
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        let claim = move |beats: u64| {
            let claim = serde_json::json!({"holder": "f00d", "machine": "another", "free": false, "beats": beats});
            fs::write(&path, claim.to_string()).expect("written");
        };
        claim(0);
        let alive = Arc::new(AtomicBool::new(true));
        let beating = Arc::clone(&alive);
        let thread = std::thread::spawn(move || {
            let mut beats = 0;
            while beating.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(500));
                beats += 1;
                claim(beats);
            }
        });
        Self { alive, thread: Some(thread) }
    }

    /// Stops without removing its claim.
    fn dies(&mut self) {
        self.alive.store(false, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a thread");
        }
    }
}

impl Drop for Foreigner {
    fn drop(&mut self) {
        self.dies();
    }
}

#[test]
fn a_lease_of_another_machine_holds_without_locks_until_it_is_dead() {
    let first = Bench::new(&patient(2, Duration::ZERO));
    first.run(&[]).exit(0);
    let key =
        first.mill.last_nodes().iter().find(|node| node.node == "chunks").and_then(|node| node.key).expect("a key");
    let bench = Bench::new(&patient(2, Duration::ZERO));
    let store = bench.mill.store();
    let mut other = Foreigner::new(store.root().join("leases").join(format!("{key}.held")));
    let child = bench.command(&[]).spawn().expect("a child");
    std::thread::sleep(Duration::from_secs(6));
    assert!(!store.result_keys().contains(&key), "the run waits while the other machine is alive");
    let start = Instant::now();
    other.dies();
    let told = Told::new(child.wait_with_output().expect("a child")).exit(0);
    assert!(told.nodes("node_waiting").contains("chunks"), "{}", told.stdout);
    assert!(start.elapsed() > Duration::from_secs(8), "the run waits until the other machine counts as dead");
    assert_eq!(bench.mill.artifacts(), first.mill.artifacts());
}

#[test]
fn nothing_is_collected_from_under_another_machine() {
    let bench = Bench::new(&patient(2, Duration::ZERO));
    bench.run(&[]).exit(0);
    let mut other = Foreigner::new(bench.mill.store_path().join("leases/users/f00d.json"));
    let collect =
        || bench.mill.call(&["gc", "--json", "--older-than", "0s"]).exit(0).events().pop().expect("a summary");
    assert_eq!(collect()["in_use"], true);
    other.dies();
    let start = Instant::now();
    assert_eq!(collect()["in_use"], false);
    assert!(start.elapsed() > Duration::from_secs(10), "the claim was watched long enough");
}

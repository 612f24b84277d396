//! Tests of a store on S3 shared by several machines: each machine is a process with its own folder and local copy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in};
use crate::harness::s3_server::{S3Server, SECRET_KEY, Trouble};
use searchmill_fixtures::openai_server::answer;

const STORE: &str = "s3://bucket/team/store";

/// Several machines, a bucket and a paid endpoint.
struct Team {
    s3: S3Server,
    /// The address of the store.
    store: String,
    bench: Bench,
    others: Vec<Mill>,
}

impl Team {
    /// Creates a team whose machines all ask the same questions.
    fn new(machines: usize, questions: usize, wait: Duration) -> Self {
        let bench = Bench::new(&patient(questions, wait));
        let others: Vec<Mill> = (1..machines).map(|_| Mill::new()).collect();
        for other in &others {
            for file in ["pipeline.yaml", "documents.jsonl", "questions.jsonl"] {
                other.write(file, &bench.mill.read(file));
            }
        }
        Self { s3: S3Server::start(), store: STORE.to_owned(), bench, others }
    }

    /// Lets the machines share a folder instead of a bucket.
    fn in_a_folder(self) -> Self {
        let folder = self.bench.mill.path("shared");
        std::fs::create_dir(&folder).expect("a folder");
        Self { store: format!("file://{}", folder.display()), ..self }
    }

    fn mill(&self, machine: usize) -> &Mill {
        if machine == 0 { &self.bench.mill } else { &self.others[machine - 1] }
    }

    fn cache(&self, machine: usize) -> PathBuf {
        self.mill(machine).path("copy")
    }

    fn command(&self, machine: usize, args: &[&str]) -> Command {
        let mut command = self.mill(machine).command(args);
        self.s3.aim(&mut command);
        command.env("SEARCHMILL_STORE", &self.store).env("SEARCHMILL_STORE_CACHE", self.cache(machine));
        command.env("ENDPOINT", self.bench.server.base_url()).env("API_KEY", "key");
        command
    }

    fn call(&self, machine: usize, args: &[&str]) -> Told {
        Told::new(self.command(machine, args).output().expect("the program can be started"))
    }

    fn run(&self, machine: usize) -> Told {
        self.call(machine, &["run", "pipeline.yaml", "--json"])
    }

    /// Writes the file of questions of one machine.
    fn ask(&self, machine: usize, questions: std::ops::Range<usize>) {
        let names: Vec<String> = questions.map(|number| format!("q{number}")).collect();
        let line = |name: &String| {
            let row = serde_json::json!({"id": name, "question": name, "golden_answers": ["Rome"], "evidence": []});
            format!("{row}\n")
        };
        self.mill(machine).write("questions.jsonl", &names.iter().map(line).collect::<String>());
    }

    /// Returns the number of calls the endpoint received.
    fn paid(&self) -> usize {
        (0..100).map(|number| self.bench.server.requests(&format!("q{number}")).len()).sum()
    }

    fn answers(&self, machine: usize) -> String {
        self.call(machine, &["show", "answers", "--json", "-n", "0"]).exit(0).stdout
    }

    /// Replaces the endpoint by one that gives this answer to all questions.
    fn serve(&mut self, questions: usize, text: &str) {
        let script: Vec<_> = (0..questions).map(|number| (format!("q{number}"), vec![answer(text)])).collect();
        self.bench.serve(&script);
    }

    /// Counts the rows of the newest run with that answer, as shown on a machine.
    fn say(&self, machine: usize, text: &str) -> usize {
        self.answers(machine).lines().filter(|line| line.contains(&format!("<answer>{text}</answer>"))).count()
    }
}

/// Flips a bit in the middle of a file.
fn flip(path: &std::path::Path) {
    let mut bytes = std::fs::read(path).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn a_second_machine_finds_everything_and_pays_nothing() {
    let team = Team::new(2, 12, Duration::ZERO);
    team.run(0).exit(0);
    assert_eq!(team.paid(), 12);
    let planned = team.call(1, &["plan", "pipeline.yaml", "--detailed-exitcode"]).exit(0);
    assert!(!planned.stdout.contains("never"), "{}", planned.stdout);
    let told = team.run(1).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 12), "{}", told.stdout);
    assert!(told.cached().contains("answers") && told.cached().contains("scores"));
    // Queries about the store work on the other machine, from records and files it never had.
    assert_eq!(team.answers(1), team.answers(0));
    let runs = team.call(1, &["runs", "--json"]).exit(0).events();
    assert_eq!(runs.len(), 2);
    let trace = team.call(1, &["trace", "scores"]).exit(0).stdout;
    assert!(trace.contains("rollout") && trace.contains("bm25"), "{trace}");
    let rows = team.call(1, &["show", "answers", "--json", "-n", "1"]).exit(0).events();
    let row = rows[0]["id"].as_str().expect("an id");
    let trace = team.call(1, &["trace", "answers", "--row", row]).exit(0).stdout;
    assert!(trace.contains(row) && trace.contains("in questions.rows"), "{trace}");
    team.call(1, &["audit", "latest"]).exit(0);
    team.call(1, &["status", "pipeline.yaml"]).exit(0);
    assert!(
        team.call(1, &["why", "answers", "--file", "pipeline.yaml"]).exit(0).stdout.contains("cached, nothing changed")
    );
    team.call(1, &["export", "answers", "answers.tar.zst"]).exit(0);
    let elsewhere = Mill::new();
    std::fs::copy(team.mill(1).path("answers.tar.zst"), elsewhere.path("answers.tar.zst")).expect("copied");
    elsewhere.call(&["import", "answers.tar.zst"]).exit(0);
    assert_eq!(elsewhere.call(&["show", "answers", "--json", "-n", "0"]).exit(0).stdout, team.answers(0));
}

#[test]
fn two_machines_at_once_pay_once() {
    let questions = 24;
    let team = Team::new(2, questions, Duration::from_millis(60));
    let start = |machine| team.command(machine, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let children: Vec<_> = (0..2).map(start).collect();
    let told: Vec<_> =
        children.into_iter().map(|child| Told::new(child.wait_with_output().expect("a child")).exit(0)).collect();
    assert_eq!(team.paid(), questions);
    let ran = told.iter().filter(|told| told.nodes("node_finished").contains("answers")).count();
    assert_eq!(ran, 1, "one process computes the rollout, the other waits and uses it");
    assert_eq!(team.answers(0), team.answers(1));
}

#[test]
fn a_colleague_pays_only_for_rows_that_nobody_paid_for() {
    let team = Team::new(2, 20, Duration::ZERO);
    team.ask(0, 0..10);
    team.run(0).exit(0);
    assert_eq!(team.paid(), 10);
    team.run(1).exit(0);
    assert_eq!(team.paid(), 20);
    team.ask(0, 5..20);
    team.run(0).exit(0);
    assert_eq!(team.paid(), 20, "the first machine knows the colleague's paid rows");
    let bucket = team.s3.objects("team/store/memo");
    assert!(!bucket.is_empty());
    let secret = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("a file");
        bytes.windows(SECRET_KEY.len()).any(|part| part == SECRET_KEY.as_bytes())
    };
    assert!(!team.s3.objects("").iter().any(secret), "no object holds credentials");
}

#[test]
fn rows_of_a_machine_that_died_are_not_paid_again() {
    let questions = 48;
    let team = Team::new(2, questions, Duration::from_millis(1200));
    let mut child = team.command(0, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    // Rows are uploaded while the node runs: some were sent before the machine dies with its disk.
    let start = Instant::now();
    let length = |path: &PathBuf| path.metadata().map_or(0, |file| file.len());
    let sent = || team.s3.objects("team/store/memo").iter().map(length).sum::<u64>();
    while team.paid() < 20 || sent() < 20_000 {
        assert!(start.elapsed() < Duration::from_mins(1), "rows are not sent: {} bytes", sent());
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("a running child");
    child.wait().expect("a child");
    let before = team.paid();
    let start = Instant::now();
    let told = team.run(1).exit(0);
    assert!(start.elapsed() > Duration::from_secs(10), "the run waited for the dead machine's lease");
    let events = told.events();
    let done = events.iter().find(|event| event["event"] == "node_finished" && event["node"] == "answers");
    let cached = done.expect("the rollout ran")["cached_rows"].as_u64().expect("a number") as usize;
    assert!(cached > 0 && before < questions, "{cached} of {before}");
    assert_eq!(team.paid(), before + questions - cached);
    crate::say(&format!("shared store: {before} calls paid when the machine died, {cached} rows came from the store"));
}

#[test]
fn killed_in_the_middle_of_a_commit_another_machine_goes_on() {
    let team = Team::new(2, 8, Duration::ZERO);
    team.s3.hold(Some("/store/results/"));
    team.call(0, &["validate", "pipeline.yaml"]).exit(0);
    let mut child = team.command(0, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    team.s3.wait_for("PUT /bucket/team/store/results/");
    child.kill().expect("a running child");
    child.wait().expect("a child");
    team.s3.hold(None);
    assert!(team.s3.objects("team/store/results").is_empty());
    assert!(!files_in(&team.cache(0).join("pending")).is_empty(), "pending uploads are recorded");
    team.run(1).exit(0);
    assert_eq!(team.paid(), 8);
    let told = team.run(0).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 8));
    assert!(files_in(&team.cache(0).join("pending")).is_empty(), "no uploads are pending");
    assert_eq!(team.answers(0), team.answers(1));
}

#[test]
fn a_server_that_goes_away_costs_nothing() {
    let mut team = Team::new(2, 16, Duration::from_millis(200));
    let child = team.command(0, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let start = Instant::now();
    while team.paid() < 4 {
        assert!(start.elapsed() < Duration::from_mins(1), "the rollout did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    team.s3.go_away();
    let told = Told::new(child.wait_with_output().expect("a child")).exit(5);
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains(STORE) && said.contains("is kept in") && said.contains("next run"), "{said}");
    assert_eq!(team.paid(), 16, "rows in flight finished and were stored");
    let told = team.run(0).exit(5);
    assert!(told.stderr.contains("is kept in") && !told.stderr.contains(SECRET_KEY), "{}", told.stderr);
    // The copy works as a local store; its new results are uploaded later.
    let copy = team.cache(0).display().to_string();
    let told = team.call(0, &["run", "pipeline.yaml", "--json", "--store", &copy]).exit(0);
    assert!(told.ran().contains("scores"), "{}", told.stdout);
    team.s3.come_back();
    let told = team.run(0).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 16));
    let told = team.run(1).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 16), "all rows were uploaded");
}

#[test]
fn damaged_objects_are_made_again_and_never_believed() {
    let team = Team::new(3, 9, Duration::ZERO);
    team.ask(0, 0..8);
    team.run(0).exit(0);
    let index: Vec<_> = team.s3.objects("team/store/artifacts").into_iter().filter(|path| is_index(path)).collect();
    let longest = index.iter().max_by_key(|path| path.metadata().map_or(0, |file| file.len())).expect("an index");
    flip(longest);
    let (before, told) = (team.paid(), team.run(1).exit(0));
    assert!(told.ran().contains("bm25"), "the index that came damaged is made again: {}", told.stdout);
    assert_eq!(team.paid(), before + 1, "one question is new");
    team.call(1, &["audit", "latest"]).exit(0);
    // The object in the bucket was repaired, too.
    let told = team.run(2).exit(0);
    assert_eq!(told.ran(), "");
    team.call(2, &["audit", "latest"]).exit(0);
}

fn is_index(path: &std::path::Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    ["term", "idx", "store", "pos"].contains(&&*extension)
}

#[test]
fn a_deleted_object_and_a_damaged_record_are_misses() {
    let team = Team::new(2, 6, Duration::ZERO);
    team.run(0).exit(0);
    for record in team.s3.objects("team/store/results") {
        flip(&record);
    }
    for part in
        team.s3.objects("team/store/artifacts").iter().filter(|path| path.extension().is_some_and(|e| e == "parquet"))
    {
        std::fs::remove_file(part).expect("removed");
    }
    let told = team.run(1).exit(0);
    assert!(told.ran().contains("answers") && told.ran().contains("chunks"), "{}", told.ran());
    assert_eq!(team.paid(), 6, "rows were remembered");
    assert_eq!(team.answers(0), team.answers(1));
}

#[test]
fn a_truncated_segment_costs_its_end() {
    let team = Team::new(2, 13, Duration::ZERO);
    team.ask(0, 0..12);
    team.run(0).exit(0);
    let segments = team.s3.objects("team/store/memo");
    for path in &segments {
        let length = path.metadata().expect("a file").len();
        std::fs::OpenOptions::new().write(true).open(path).expect("opened").set_len(length / 2).expect("cut");
    }
    let told = team.run(1).exit(0);
    assert!(told.stderr.contains("are damaged"), "{}", told.stderr);
    let paid = team.paid() - 12;
    assert!((2..12).contains(&paid), "one new question and the interrupted rows: {paid}");
}

#[test]
fn a_copy_that_is_damaged_is_fetched_again() {
    let team = Team::new(2, 13, Duration::ZERO);
    team.ask(0, 0..12);
    team.run(0).exit(0);
    team.ask(1, 0..12);
    team.run(1).exit(0);
    for machine in 0..2 {
        let mut pending = vec![team.cache(machine).join("memo")];
        while let Some(folder) = pending.pop() {
            for path in files_in(&folder) {
                match path.extension() {
                    _ if path.is_dir() => pending.push(path),
                    Some(extension) if extension == "rows" => flip(&path),
                    _ => {}
                }
            }
        }
    }
    for machine in [1, 0] {
        team.ask(machine, 0..13);
        team.run(machine).exit(0);
        assert_eq!(team.paid(), 13, "machine {machine}: what is damaged here is whole in the store");
    }
}

#[test]
#[cfg(unix)]
fn a_machine_that_was_suspended_looks_before_it_pays_again() {
    let questions = 40;
    let team = Team::new(2, questions, Duration::from_millis(800));
    let child = team.command(0, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("a signal");
        assert!(sent.success());
    };
    let start = Instant::now();
    // Two rounds of eight: all calls in flight have reached the endpoint, so none is partly sent.
    while team.paid() < 16 {
        assert!(start.elapsed() < Duration::from_mins(1), "the rollout did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("-STOP");
    team.run(1).exit(0);
    let paid = team.paid();
    assert!(paid <= questions + 16, "{paid}: only what was in flight, and the second it took to share, is paid again");
    signal("-CONT");
    let told = Told::new(child.wait_with_output().expect("a child")).exit(0);
    assert_eq!(team.paid(), paid, "the result exists: no more calls");
    assert!(told.cached().contains("answers"), "{}", told.stdout);
    assert_eq!(team.answers(0), team.answers(1));
    crate::say(&format!("suspended: {paid} calls for {questions} questions, none after waking up"));
}

#[test]
fn what_one_machine_forces_counts_on_all_of_them() {
    let mut team = Team::new(3, 10, Duration::ZERO);
    team.run(0).exit(0);
    team.run(1).exit(0);
    assert_eq!(team.paid(), 10);
    team.serve(10, "Paris");
    let force = ["run", "pipeline.yaml", "--json", "--force=answers"];
    team.call(0, &force).exit(0);
    // The second machine still has the previous result in its copy.
    for machine in [1, 0, 2, 1] {
        let told = team.run(machine).exit(0);
        assert!(told.cached().contains("answers"), "machine {machine}: {}", told.stdout);
        assert_eq!((team.paid(), team.say(machine, "Paris")), (10, 10), "machine {machine}");
    }
    // Other labels, on the machine that forced nothing: rows since the forced run count.
    let questions = team.mill(1).read("questions.jsonl").replace("[\"Rome\"]", "[\"Paris\"]");
    team.mill(1).write("questions.jsonl", &questions);
    team.run(1).exit(0);
    assert_eq!((team.paid(), team.say(1, "Paris")), (10, 10));
    team.call(1, &["audit", "latest"]).exit(0);
    // A forced run there counts on the first machine.
    team.serve(10, "Oslo");
    team.call(1, &force).exit(0);
    team.mill(0).write("questions.jsonl", &questions);
    let told = team.run(0).exit(0);
    assert!(told.cached().contains("answers"), "{}", told.stdout);
    assert_eq!((team.paid(), team.say(0, "Oslo")), (10, 10));
    // Store requests of a run with nothing to do: one object per such node.
    let asked = || team.s3.requests("GET /bucket/team/store/memo/");
    let before = asked();
    assert_eq!(team.run(0).exit(0).ran(), "");
    assert_eq!(asked() - before, 1);
}

#[test]
fn a_forced_run_that_was_cut_off_goes_on_from_another_machine() {
    let mut team = Team::new(2, 12, Duration::ZERO);
    team.run(0).exit(0);
    team.run(1).exit(0);
    team.serve(12, "Paris");
    let force = ["run", "pipeline.yaml", "--json", "--force=answers"];
    team.call(0, &[&force[..], &["--budget", "calls=5"]].concat()).exit(4);
    assert_eq!(team.paid(), 5);
    let told = team.run(1).exit(0);
    assert_eq!(told.reasons("answers"), ["force_unfinished"]);
    assert_eq!((team.paid(), team.say(1, "Paris")), (12, 12));
    // The first machine uses the second one's result.
    let told = team.run(0).exit(0);
    assert_eq!((told.ran().as_str(), team.paid(), team.say(0, "Paris")), ("", 12, 12));
    // Interrupted again, and forced on the other machine: it resumes, and the next forced run starts over.
    team.call(1, &[&force[..], &["--budget", "calls=5"]].concat()).exit(4);
    team.call(0, &force).exit(0);
    assert_eq!(team.paid(), 24);
    team.call(1, &force).exit(0);
    assert_eq!(team.paid(), 36);
}

#[test]
fn pins_are_shared() {
    let team = Team::new(2, 2, Duration::ZERO);
    team.run(0).exit(0);
    team.call(0, &["pin", "answers", "--name", "paper"]).exit(0);
    assert!(team.call(1, &["pin", "--list"]).exit(0).stdout.contains("paper"));
    assert_eq!(team.call(1, &["show", "paper", "--json"]).exit(0).events().len(), 2);
    team.call(1, &["unpin", "paper"]).exit(0);
    assert!(!team.call(0, &["pin", "--list"]).exit(0).stdout.contains("paper"));
}

#[test]
fn any_machine_collects_and_takes_nothing_young() {
    let team = Team::new(2, 4, Duration::ZERO);
    team.run(0).exit(0);
    // Unreferenced files, an hour old.
    let stray = team.s3.object(&format!("team/store/artifacts/ab/ab{}/part-00000.parquet", "0".repeat(62)));
    std::fs::create_dir_all(stray.parent().expect("a folder")).expect("made");
    std::fs::write(&stray, b"left behind").expect("written");
    let old = std::time::SystemTime::now() - Duration::from_hours(1);
    std::fs::File::options().append(true).open(&stray).expect("a file").set_modified(old).expect("an age");
    let gc = |machine, more: &[&str]| {
        let told = team.call(machine, &[&["gc", "--json", "--keep-runs", "0", "--older-than", "0s"], more].concat());
        told.exit(0).events().pop().expect("a summary")
    };
    for (more, removed) in [(&[][..], false), (&["--yes"], true)] {
        let told = gc(1, more);
        assert_eq!(
            (&told["results"], &told["artifacts"], &told["shared"]),
            (&0.into(), &1.into(), &true.into()),
            "{told}"
        );
        assert_eq!((&told["removed"], stray.exists()), (&removed.into(), !removed), "{told}");
    }
    assert_eq!(gc(0, &["--yes"])["artifacts"], 0);
    let told = team.run(1).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 4), "everything is still there");
    team.call(1, &["audit", "latest"]).exit(0);
}

#[test]
fn what_was_imported_is_shared() {
    let team = Team::new(2, 3, Duration::ZERO);
    let local = Mill::new();
    for file in ["pipeline.yaml", "documents.jsonl", "questions.jsonl"] {
        local.write(file, &team.mill(0).read(file));
    }
    let mut command = local.command(&["run", "pipeline.yaml", "--json"]);
    command.env("ENDPOINT", team.bench.server.base_url()).env("API_KEY", "key");
    Told::new(command.output().expect("started")).exit(0);
    let archive = local.path("all.tar.zst").display().to_string();
    local.call(&["export", "scores", &archive, "--memo"]).exit(0);
    team.call(0, &["import", &archive]).exit(0);
    let told = team.run(1).exit(0);
    assert_eq!((told.ran().as_str(), team.paid()), ("", 3));
    team.ask(1, 0..2);
    team.run(1).exit(0);
    assert_eq!(team.paid(), 3, "the rows were copied");
}

#[test]
fn a_copy_of_another_store_is_not_mixed_up() {
    let mut team = Team::new(1, 2, Duration::ZERO);
    team.run(0).exit(0);
    team.s3 = S3Server::start();
    let told = team.run(0).exit(5);
    assert!(told.stderr.contains("--store-cache"), "{}", told.stderr);
    assert!(!team.s3.object("team/store/results").exists());
    let told =
        Told::new(team.command(0, &["runs"]).env("SEARCHMILL_STORE", "s3://nowhere/x").output().expect("started"));
    assert_eq!(told.code, 5, "{}", told.stderr);
    let told = Told::new(
        team.command(0, &["run", "pipeline.yaml"]).env("SEARCHMILL_STORE", "ftp://x/y").output().expect("started"),
    );
    assert_eq!(told.code, 5, "{}", told.stderr);
}

#[test]
fn a_shared_folder_is_a_store_too() {
    let team = Team::new(2, 5, Duration::ZERO).in_a_folder();
    team.run(0).exit(0);
    assert_eq!((team.run(1).exit(0).ran().as_str(), team.paid()), ("", 5));
}

/// Suspends a machine while it asks, and wakes it up while another one that took over asks.
#[cfg(unix)]
fn suspended_and_woken_up(team: &Team, questions: usize) {
    let start = |machine| team.command(machine, &["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let paid = |wanted: usize| {
        let begun = Instant::now();
        while team.paid() < wanted {
            assert!(begun.elapsed() < Duration::from_mins(1), "{} calls", team.paid());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let one = start(0);
    let signal = |name: &str| {
        let sent = Command::new("kill").args([name, &one.id().to_string()]).status().expect("a signal");
        assert!(sent.success());
    };
    paid(16);
    signal("-STOP");
    std::thread::sleep(Duration::from_secs(1));
    let before = team.paid();
    let other = start(1);
    paid(before + 1);
    signal("-CONT");
    for child in [one, other] {
        Told::new(child.wait_with_output().expect("a child")).exit(0);
    }
    let paid = team.paid();
    assert!(paid <= questions + 16, "{paid} calls for {questions} questions: only what was in flight is paid again");
    assert_eq!(team.answers(0), team.answers(1));
    crate::say(&format!("woken up beside another machine: {paid} calls for {questions} questions"));
}

#[test]
#[cfg(unix)]
fn a_machine_that_wakes_up_beside_another_one_leaves_the_work_to_it() {
    suspended_and_woken_up(&Team::new(2, 64, Duration::from_millis(400)), 64);
}

#[test]
#[cfg(unix)]
fn a_machine_that_wakes_up_on_a_shared_folder_leaves_the_work_to_another() {
    suspended_and_woken_up(&Team::new(2, 64, Duration::from_millis(400)).in_a_folder(), 64);
}

/// A pipeline with many nodes that read one artifact.
fn many_readers(first: usize) -> String {
    let corpus = "name: readers\nnodes:\n  corpus: {op: read, with: {path: many.jsonl, as: document}}\n";
    let reader =
        |size: usize| format!("  c{size}: {{op: chunk, from: corpus, with: {{size: {size}, count: words}}}}\n");
    format!("{corpus}{}", (first..first + 8).map(reader).collect::<String>())
}

#[test]
fn many_nodes_and_processes_of_a_fresh_machine_fetch_each_file_once() {
    let team = Team::new(2, 1, Duration::ZERO);
    let line = |number: usize| format!("{{\"id\": \"d{number}\", \"text\": \"{}\"}}\n", "river city ".repeat(30));
    for machine in 0..2 {
        team.mill(machine).write("many.jsonl", &(0..4000).map(line).collect::<String>());
    }
    team.mill(0).write("one.yaml", &many_readers(10));
    team.call(0, &["run", "one.yaml", "--only", "corpus"]).exit(0);
    for round in 1..4 {
        let copy = team.cache(1).with_extension(round.to_string());
        // Other nodes in each round and process: they run and open the artifact.
        let start = |file: &str, first: usize| {
            team.mill(1).write(file, &many_readers(first));
            let mut command = team.command(1, &["run", file, "--json", "--jobs", "8"]);
            command.env("SEARCHMILL_STORE_CACHE", &copy).spawn().expect("a child")
        };
        let seen = team.s3.log("GET /bucket/team/store/artifacts/").len();
        for child in [start("one.yaml", 100 * round), start("other.yaml", 100 * round + 50)] {
            Told::new(child.wait_with_output().expect("a child")).exit(0);
        }
        let fetched = team.s3.log("GET /bucket/team/store/artifacts/").split_off(seen);
        let parts: Vec<&String> = fetched.iter().filter(|line| line.contains(".parquet")).collect();
        let distinct: std::collections::BTreeSet<&String> = parts.iter().copied().collect();
        assert!(!parts.is_empty() && parts.len() == distinct.len(), "fetched twice: {parts:#?}");
    }
}

#[test]
fn a_server_that_asks_to_try_again_or_loses_its_answers_costs_nothing() {
    for trouble in [Trouble::Conflict, Trouble::LostAnswer] {
        let mut team = Team::new(2, 6, Duration::ZERO);
        team.s3.trouble(Some(trouble));
        team.run(0).exit(0);
        assert_eq!(team.paid(), 6, "{trouble:?}");
        team.call(0, &["pin", "answers", "--name", "paper"]).exit(0);
        team.serve(6, "Paris");
        team.call(0, &["run", "pipeline.yaml", "--json", "--force=answers"]).exit(0);
        assert_eq!(team.paid(), 6, "{trouble:?}");
        team.s3.trouble(Some(trouble));
        let told = team.run(1).exit(0);
        assert_eq!((told.ran().as_str(), team.paid()), ("", 6), "{trouble:?}: {}", told.stdout);
        assert!(team.call(1, &["pin", "--list"]).exit(0).stdout.contains("paper"), "{trouble:?}");
        team.call(1, &["audit", "latest"]).exit(0);
        team.s3.trouble(Some(trouble));
        team.call(1, &["gc", "--json", "--keep-runs", "0", "--older-than", "0s", "--yes"]).exit(0);
        let keys = |below: &str| {
            let names = team.s3.objects(below).into_iter();
            names.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect::<Vec<_>>()
        };
        let segments: Vec<String> = keys("team/store/memo")
            .into_iter()
            .filter(|name| Path::new(name).extension().is_some_and(|ending| ending == "rows"))
            .collect();
        assert!(segments.iter().all(|name| name.matches('.').count() == 3), "{trouble:?}: {segments:?}");
    }
}

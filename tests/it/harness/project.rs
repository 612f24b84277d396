//! Runs the real program in a temporary folder: write files, run commands, read output and store.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use searchmill_engine::store::{NodeRun, Store};
use serde_json::Value;

/// The longest command takes half a minute on an idle machine.
const LONGEST: Duration = Duration::from_mins(10);

/// Folders of programs. Where `python3` is the script of a version manager, which takes longer to start than Python itself,
/// the folder of the real one comes first.
static PROGRAMS: LazyLock<String> = LazyLock::new(|| {
    let path = std::env::var("PATH").unwrap_or_default();
    let text = "import os, sys; print(os.path.dirname(sys.executable))";
    let found = path.split(':').map(|folder| Path::new(folder).join("python3")).find(|file| file.is_file());
    if !found.is_some_and(|file| std::fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"#!"))) {
        return path;
    }
    let real = Command::new("python3").args(["-c", text]).output().expect("python3 can be started");
    format!("{}:{path}", String::from_utf8_lossy(&real.stdout).trim())
});

/// A project folder with a store.
pub(crate) struct Mill {
    folder: tempfile::TempDir,
}

impl Mill {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file of the project can be written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Returns a command of the program in this folder, without the caller's settings.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_searchmill"));
        command.args(args).current_dir(self.folder.path()).env_remove("SEARCHMILL_STORE").env("NO_COLOR", "1");
        command.env("XDG_CACHE_HOME", self.path("cache")).env("PATH", &*PROGRAMS);
        command.env_remove("OPENLINEAGE_URL").env_remove("OPENLINEAGE_API_KEY").env_remove("OPENLINEAGE_NAMESPACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end. One that hangs fails its test, not all tests.
    pub(crate) fn call(&self, args: &[&str]) -> Told {
        let program = self.command(args).spawn().expect("the program can be started");
        let (id, (sender, ended)) = (program.id(), channel());
        std::thread::spawn(move || sender.send(program.wait_with_output()));
        if let Ok(output) = ended.recv_timeout(LONGEST) {
            return Told::new(output.expect("its output"));
        }
        drop(Command::new("kill").args(["-9", &id.to_string()]).status());
        panic!("{args:?} did not end within {LONGEST:?}");
    }

    /// Runs `run pipeline.yaml --json` with more arguments.
    pub(crate) fn run(&self, more: &[&str]) -> Told {
        self.call(&[&["run", "pipeline.yaml", "--json"], more].concat())
    }

    /// Returns the output of `why NODE`, without the node's name.
    pub(crate) fn why(&self, node: &str) -> String {
        let told = self.call(&["why", node, "--file", "pipeline.yaml"]);
        assert_eq!(told.code, 0, "{}", told.stderr);
        told.stdout.trim().trim_start_matches(&format!("{node}: ")).replace("\n  ", " | ")
    }

    pub(crate) fn store_path(&self) -> PathBuf {
        self.path(".searchmill")
    }

    pub(crate) fn store(&self) -> Store {
        Store::open(&self.store_path()).expect("a store")
    }

    /// Returns the records of the newest run's nodes.
    pub(crate) fn last_nodes(&self) -> Vec<NodeRun> {
        let store = self.store();
        store.run_ids().last().map(|run| store.run_nodes(run)).unwrap_or_default()
    }

    /// Returns the artifact ids of the newest run by `node.port`.
    pub(crate) fn artifacts(&self) -> BTreeMap<String, String> {
        let ports = self.last_nodes().into_iter().flat_map(|node| {
            let name = node.node;
            node.outputs.into_iter().map(move |(port, output)| (format!("{name}.{port}"), output.id.to_string()))
        });
        ports.collect()
    }

    /// Returns the folder of one artifact of the newest run.
    pub(crate) fn artifact_folder(&self, node: &str, port: &str) -> PathBuf {
        let nodes = self.last_nodes();
        let node = nodes.iter().find(|found| found.node == node).expect("a node of the last run");
        self.store().artifact_folder(&node.outputs[port].id)
    }

    /// Returns the files under `tmp/` of the store, without opening the store. Lock files are excluded.
    pub(crate) fn unfinished(&self) -> Vec<PathBuf> {
        let files = files_in(&self.store_path().join("tmp")).into_iter();
        files.filter(|path| path.extension().is_none_or(|extension| extension != "lock")).collect()
    }
}

/// Starts a run and kills it (`SIGKILL`) once something has happened.
pub(crate) fn killed_when(command: &mut Command, happened: impl Fn() -> bool) {
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a run");
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_mins(1), "the run does not get there");
        std::thread::sleep(Duration::from_millis(1));
    }
    run.kill().expect("killed");
    run.wait().expect("dead");
}

/// Starts a command and kills it after a while. Returns whether it was still running.
pub(crate) fn killed_after(command: &mut Command, wait: Duration) -> bool {
    let mut child = command.spawn().expect("a child");
    std::thread::sleep(wait);
    let is_running = child.try_wait().expect("a child").is_none();
    // Killing fails if the child has already exited.
    drop(child.kill());
    child.wait().expect("a child");
    is_running
}

/// Returns the entries of a folder, sorted.
pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// The output of the program.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Told {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Self { code: output.status.code().unwrap_or(-1), stdout, stderr }
    }

    /// Checks the exit code; on failure the test shows all output.
    #[track_caller]
    pub(crate) fn exit(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Returns the JSON lines of stdout.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the nodes of events of that name.
    pub(crate) fn nodes(&self, event: &str) -> BTreeSet<String> {
        let events = self.events();
        let of_kind = events.iter().filter(|found| found["event"] == event);
        of_kind.filter_map(|found| found["node"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the nodes that ran to their end, separated by spaces.
    pub(crate) fn ran(&self) -> String {
        self.nodes("node_finished").into_iter().collect::<Vec<_>>().join(" ")
    }

    /// Returns the cached nodes, separated by spaces.
    pub(crate) fn cached(&self) -> String {
        self.nodes("node_cached").into_iter().collect::<Vec<_>>().join(" ")
    }

    /// Returns the names of the reasons for which a node ran.
    pub(crate) fn reasons(&self, node: &str) -> Vec<String> {
        let events = self.events();
        let started = events.iter().find(|event| event["event"] == "node_started" && event["node"] == node);
        let reasons = started.and_then(|event| event["reasons"].as_array().cloned()).unwrap_or_default();
        reasons.iter().filter_map(|reason| reason["reason"].as_str().map(str::to_owned)).collect()
    }

    /// Returns the last event: the summary of the run.
    pub(crate) fn summary(&self) -> Value {
        let events = self.events();
        events.into_iter().rfind(|event| event["event"] == "run_finished").unwrap_or_default()
    }
}

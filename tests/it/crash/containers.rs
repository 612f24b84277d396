//! Tests of processes that do not see each other: containers that share a store, where process ids repeat.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in};

/// Wraps the command in a PID namespace with its own `/proc`, as in a container; `None` if this user may not create
/// one.
fn contained(command: &Command) -> Option<Command> {
    let unshare = || {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--pid", "--fork", "--mount-proc"]);
        unshare
    };
    if !unshare().arg("true").output().is_ok_and(|tried| tried.status.success()) {
        searchmill_fixtures::skip("the right to make a PID namespace");
        return None;
    }
    let mut contained = unshare();
    contained.arg(command.get_program()).args(command.get_args());
    contained.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(folder) = command.get_current_dir() {
        contained.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => contained.env(name, value),
            None => contained.env_remove(name),
        };
    }
    Some(contained)
}

fn write(mill: &Mill, name: &str) {
    let line =
        |n| format!("{}\n", serde_json::json!({"id": format!("{name}{n}"), "text": format!("{name} {n} ").repeat(40)}));
    mill.write(&format!("{name}.jsonl"), &(0..200).map(line).collect::<String>());
    let pipeline = format!(
        "name: {name}\nnodes:\n  corpus: {{op: read, with: {{path: {name}.jsonl, as: document}}}}\n  \
         chunks: {{op: chunk, from: corpus, with: {{size: 6, count: words}}}}\n  \
         bm25: {{op: index, from: chunks, with: {{kind: bm25}}}}\n  \
         few: {{op: sample, from: chunks, with: {{n: 50}}, seed: 3}}\n"
    );
    mill.write(&format!("{name}.yaml"), &pipeline);
}

/// Returns the outputs of a pipeline's newest run: `node.port` to artifact id.
fn gave(mill: &Mill, pipeline: &str) -> BTreeMap<String, String> {
    let store = mill.store();
    let run = store.run_ids().into_iter().rfind(|id| store.run(id).is_some_and(|run| run.pipeline == pipeline));
    let nodes = store.run_nodes(&run.expect("a run")).into_iter();
    let ports = nodes.flat_map(|node| {
        let name = node.node;
        node.outputs.into_iter().map(move |(port, output)| (format!("{name}.{port}"), output.id.to_string()))
    });
    ports.collect()
}

#[test]
fn containers_with_one_store_do_not_mix_their_results() {
    let names = ["red", "green", "blue"];
    let alone = Mill::new();
    for name in names {
        write(&alone, name);
        alone.call(&["run", &format!("{name}.yaml"), "--json"]).exit(0);
    }
    for round in 0..4 {
        let mill = Mill::new();
        let mut children = Vec::new();
        for name in names {
            write(&mill, name);
            let Some(mut command) = contained(&mill.command(&["run", &format!("{name}.yaml"), "--json"])) else {
                return;
            };
            children.push(command.spawn().expect("a child"));
        }
        for child in children {
            Told::new(child.wait_with_output().expect("a child")).exit(0);
        }
        for name in names {
            assert_eq!(gave(&mill, name), gave(&alone, name), "{name}, round {round}");
        }
        assert_eq!(mill.unfinished(), Vec::<std::path::PathBuf>::new());
    }
}

#[test]
fn a_run_does_not_sweep_the_files_of_one_in_another_container() {
    let bench = Bench::new(&patient(80, Duration::from_secs(1)));
    write(&bench.mill, "small");
    let small = bench.mill.command(&["run", "small.yaml", "--json"]);
    let Some(mut small) = contained(&small) else { return };
    let mut long = bench.command(&[]).spawn().expect("a child");
    while bench.server.count() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let tmp = bench.mill.store_path().join("tmp");
    let lock = files_in(&tmp).into_iter().find(|path| path.extension().is_some_and(|end| end == "lock"));
    let lock = lock.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let owner = lock.as_ref().and_then(|lock| lock.split('.').next());
    let part = tmp.join(format!("{}-99-rows", owner.expect("the lock of the long run")));
    std::fs::write(&part, "half of a table").expect("a file");
    Told::new(small.output().expect("a run")).exit(0);
    assert!(part.exists(), "the long run is alive");
    long.kill().expect("a running child");
    long.wait().expect("a dead child");
    Told::new(small.output().expect("a run")).exit(0);
    assert!(!part.exists(), "its process has exited");
}

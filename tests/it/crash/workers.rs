//! Tests of nodes in separate processes: the artifacts are equal, and a worker's failure never crashes the run.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::project::{Mill, Told};

/// Returns a pipeline with a table and a node that passes it on after a shell command.
fn passing(line: &str, resources: &str) -> String {
    format!(
        "name: workers\nnodes:\n  world: {{op: generate-world, with: {{documents: 100, questions: 0}}}}\n  \
         node:\n    op: exec\n    from: world.documents\n    with:\n      command: [sh, -c, {line:?}]\n      \
         as: document\n      environment: [CUDA_VISIBLE_DEVICES]\n      writes: [once]\n    resources: {resources}\n  \
         beside: {{op: chunk, from: world, with: {{size: 50, count: words}}}}\n"
    )
}

/// Returns a pipeline whose node computes itself, so that it needs the CUDA worker if it requests a GPU.
fn computing(resources: &str) -> String {
    format!(
        "name: workers\nnodes:\n  world: {{op: generate-world, with: {{documents: 100, questions: 20}}}}\n  \
         node:\n    op: rollout\n    from: world.questions\n    with: {{policy: evidence}}\n    resources: {resources}\n"
    )
}

fn events(told: &Told, kind: &str) -> Vec<Value> {
    let all = told.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|event| event["event"] == kind).collect()
}

fn failure(told: &Told) -> String {
    let failed = events(told, "node_failed");
    assert_eq!(failed.len(), 1, "{}", told.stdout);
    failed[0]["message"].as_str().unwrap_or_default().to_owned()
}

fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).is_ok_and(|stat| !stat.contains(") Z "))
}

fn gone_soon(pid: &str) -> bool {
    let start = Instant::now();
    while is_alive(pid) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    !is_alive(pid)
}

#[test]
fn every_kind_of_kernel_gives_the_same_in_a_worker() {
    let text = |isolate: bool| {
        let own = format!("resources: {{isolate: {isolate}}}");
        format!(
            "name: kernels\nnodes:\n  world: {{op: generate-world, with: {{documents: 300, questions: 20}}, {own}}}\n  \
             chunks: {{op: chunk, from: world, with: {{size: 40, count: words}}, {own}}}\n  \
             bm25: {{op: index, from: chunks, with: {{kind: bm25}}, {own}}}\n  \
             rollouts: {{op: rollout, from: {{questions: world.questions, search: bm25}}, with: {{policy: {{evidence: {{}}}}}}, {own}}}\n  \
             kept: {{op: sql, from: {{rows: rollouts}}, with: {{query: \"SELECT * FROM rows WHERE id < 'q-000010'\", as: trajectory}}, {own}}}\n"
        )
    };
    let (here, there) = (Mill::new(), Mill::new());
    here.write("pipeline.yaml", &text(false));
    there.write("pipeline.yaml", &text(true));
    let (one, other) = (here.run(&[]).exit(0), there.run(&[]).exit(0));
    assert_eq!(here.artifacts(), there.artifacts());
    assert!(here.artifacts().len() >= 6);
    let calls = |told: &Told| events(told, "run_finished")[0]["calls"].clone();
    assert_eq!(calls(&one), calls(&other));
    assert_eq!(there.unfinished(), Vec::<std::path::PathBuf>::new());
    // Where a node runs is not part of its key: everything is cached for the other file.
    there.write("pipeline.yaml", &text(false));
    assert_eq!(events(&there.run(&[]).exit(0), "node_cached").len(), 5);
    // Rows of an external node computed by workers are remembered for every run.
    there.write("pipeline.yaml", &text(false).replace("{evidence: {}}", "{evidence: {}}, samples: 2"));
    let again = there.run(&[]).exit(0);
    let rollouts = events(&again, "node_finished").into_iter().find(|event| event["node"] == "rollouts");
    assert_eq!(rollouts.expect("rollouts ran")["cached_rows"], 20);
}

#[test]
fn a_worker_that_is_killed_once_is_started_again() {
    let mill = Mill::new();
    let line = "echo $PPID >> pids; if [ ! -e once ]; then touch once; echo going down >&2; kill -9 $PPID; fi; cat";
    mill.write("pipeline.yaml", &passing(line, "{isolate: true}"));
    let told = mill.run(&[]).exit(0);
    let lines = events(&told, "node_log");
    assert!(lines.iter().any(|line| line["line"].to_string().contains("started once more")), "{}", told.stdout);
    let pids = mill.read("pids");
    assert_eq!(pids.lines().count(), 2);
    assert_ne!(pids.lines().next(), pids.lines().nth(1));
    assert_eq!(mill.artifacts()["node.rows"], mill.artifacts()["world.documents"]);
}

#[test]
fn a_worker_that_dies_each_time_fails_its_node_and_nothing_else() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &passing("kill -9 $PPID; cat", "{isolate: true}"));
    let told = mill.run(&["--keep-going"]).exit(5);
    let message = failure(&told);
    for word in ["the worker of `node` (process ", "was killed by signal 9", "MiB of memory"] {
        assert!(message.contains(word), "{message}");
    }
    assert!(events(&told, "node_failed")[0]["help"].to_string().contains("no memory left"));
    assert!(events(&told, "node_finished").iter().any(|event| event["node"] == "beside"));
    // After the fix, only the failed node runs.
    mill.write("pipeline.yaml", &passing("cat", "{isolate: true}"));
    let told = mill.run(&[]).exit(0);
    assert_eq!(events(&told, "node_cached").len(), 2);
}

#[test]
fn a_worker_that_hangs_or_takes_too_long_is_ended() {
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        &passing("echo $PPID > pid; echo gasp > /proc/$PPID/fd/2; kill -STOP $PPID; cat", "{isolate: true}"),
    );
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    let told = Told::new(command.env("SEARCHMILL_WORKER_SILENCE", "2").output().expect("the program")).exit(5);
    assert!(failure(&told).contains("hangs: nothing was heard of it for 2 s"), "{}", told.stdout);
    assert!(failure(&told).contains("Its last lines:\n  gasp"), "also of one that had to be killed: {}", told.stdout);
    assert!(gone_soon(&mill.read("pid")));

    mill.write("pipeline.yaml", &passing("echo $$ > pid; exec sleep 300", "{isolate: true, timeout: 1s}"));
    let told = mill.run(&[]).exit(5);
    assert!(failure(&told).contains("was stopped after 1 s, its `timeout`"), "{}", told.stdout);
    assert!(gone_soon(&mill.read("pid")), "the worker's child processes have exited, too");
}

#[test]
fn a_worker_does_not_outlive_its_run() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &passing("echo $PPID > pid; exec sleep 300", "{isolate: true}"));
    let mut run = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("the program");
    let start = Instant::now();
    while !mill.path("pid").exists() && start.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(50));
    let worker = mill.read("pid");
    assert!(is_alive(&worker));
    run.kill().expect("kill -9");
    run.wait().expect("its end");
    assert!(gone_soon(&worker));
    mill.write("pipeline.yaml", &passing("cat", "{isolate: true}"));
    mill.run(&[]).exit(0);
}

#[test]
fn an_interrupted_run_takes_its_workers_along() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &passing("echo $PPID > pid; exec sleep 300", "{isolate: true}"));
    let run = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("the program");
    let start = Instant::now();
    while !mill.path("pid").exists() && start.elapsed() < Duration::from_mins(1) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = run.id().to_string();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(100));
        assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    }
    let told = Told::new(run.wait_with_output().expect("its end"));
    assert_eq!(told.code, 130, "{}", told.stderr);
    assert!(gone_soon(&mill.read("pid")));
}

/// Puts a fake `nvidia-smi` that lists these devices first on PATH.
fn with_devices(mill: &Mill, command: &mut Command, lines: &str) {
    use std::os::unix::fs::PermissionsExt;
    let folder = mill.path("bin");
    std::fs::create_dir_all(&folder).expect("a folder");
    let tool = folder.join("nvidia-smi");
    std::fs::write(&tool, format!("#!/bin/sh\ncat <<'END'\n{lines}END\n")).expect("a script");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).env_remove("CUDA_VISIBLE_DEVICES").env_remove("SEARCHMILL_WORKER_CUDA");
}

fn two_devices() -> String {
    let device = |number: u32| {
        format!("{number}, GPU-{}-{number}, Test H{number}, 81920, 80000, 580.1, 9.0\n", std::process::id())
    };
    device(0) + &device(1)
}

#[test]
fn gpus_that_are_not_there_are_said_before_anything_runs() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &passing("cat", "{gpus: 1}"));
    let mut command = mill.command(&["run", "pipeline.yaml"]);
    with_devices(&mill, &mut command, "");
    let told = Told::new(command.output().expect("the program")).exit(2);
    for word in ["error[no-gpu]: `node` needs 1 GPU, and this machine has none", "pipeline.yaml:4:3", "fallback: cpu"] {
        assert!(told.stderr.contains(word), "{}", told.stderr);
    }
    assert!(mill.store().run_ids().is_empty(), "nothing ran");

    mill.write("pipeline.yaml", &computing("{gpus: 1}"));
    let mut command = mill.command(&["run", "pipeline.yaml"]);
    with_devices(&mill, &mut command, &two_devices());
    let told = Told::new(command.output().expect("the program")).exit(2);
    assert!(told.stderr.contains("error[no-cuda-worker]"), "{}", told.stderr);

    mill.write("pipeline.yaml", &passing("cat", "{gpus: 1, fallback: cpu}"));
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    with_devices(&mill, &mut command, "");
    Told::new(command.output().expect("the program")).exit(0);
    // A cached node needs no GPU.
    mill.write("pipeline.yaml", &passing("cat", "{gpus: 1}"));
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    with_devices(&mill, &mut command, "");
    Told::new(command.output().expect("the program")).exit(0);
    mill.write("pipeline.yaml", &passing("cat", "{gpus: 1, fallback: gpu}"));
    assert!(mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr.contains("`fallback` can only be `cpu`"));
}

#[test]
fn devices_are_leased_and_others_see_none() {
    let mill = Mill::new();
    let node = |name: &str, resources: &str| {
        let line = format!("echo \"$CUDA_VISIBLE_DEVICES\" > seen-{name}; sleep 1; cat");
        format!(
            "  {name}: {{op: exec, from: world.documents, with: {{command: [sh, -c, {line:?}], as: document, \
             environment: [CUDA_VISIBLE_DEVICES]}}, resources: {resources}}}\n"
        )
    };
    let world = "name: devices\nnodes:\n  world: {op: generate-world, with: {documents: 100, questions: 0}}\n";
    let nodes =
        [node("a", "{gpus: 1}"), node("b", "{gpus: 1}"), node("both", "{gpus: 2}"), node("none", "{isolate: true}")];
    mill.write("pipeline.yaml", &format!("{world}{}", nodes.concat()));
    let mut command = mill.command(&["run", "pipeline.yaml", "--json", "-j", "4"]);
    with_devices(&mill, &mut command, &two_devices());
    command.env("SEARCHMILL_WORKER_CUDA", env!("CARGO_BIN_EXE_searchmill"));
    Told::new(command.output().expect("the program")).exit(0);
    let seen = |name: &str| mill.read(&format!("seen-{name}")).trim().to_owned();
    let device = |number: u32| format!("GPU-{}-{number}", std::process::id());
    let mut singles = [seen("a"), seen("b")];
    singles.sort();
    assert_eq!(singles, [device(0), device(1)], "each run has its own device");
    assert_eq!(seen("both"), format!("{},{}", device(0), device(1)));
    assert_eq!(seen("none"), "");
}

#[test]
fn doctor_lists_what_is_there() {
    let mill = Mill::new();
    let mut command = mill.command(&["doctor", "--json"]);
    with_devices(&mill, &mut command, &two_devices());
    command.env("SEARCHMILL_WORKER_CUDA", env!("CARGO_BIN_EXE_searchmill"));
    let told = Told::new(command.output().expect("the program")).exit(0);
    let report: Value = serde_json::from_str(told.stdout.trim()).expect("JSON");
    assert_eq!(report["devices"][1]["name"], "Test H1");
    assert_eq!(report["devices"][0]["memory"], 80_u64 << 30);
    let states: Vec<_> =
        report["findings"].as_array().expect("a list").iter().map(|found| found["state"].clone()).collect();
    assert!(states.iter().any(|state| state == "ok") && !states.iter().any(|state| state == "wrong"), "{report}");

    let mut command = mill.command(&["doctor"]);
    with_devices(&mill, &mut command, "");
    let told =
        Told::new(command.env("SEARCHMILL_WORKER_CUDA", "/nowhere/worker").output().expect("the program")).exit(1);
    assert!(told.stdout.contains("/nowhere/worker does not start"), "{}", told.stdout);
    assert!(!mill.store_path().exists(), "doctor makes nothing");
}

/// Uses a program with a missing shared library, like the CUDA worker on a machine without a driver.
#[test]
fn a_worker_that_the_loader_refuses_is_told_with_what_it_lacks() {
    let mill = Mill::new();
    mill.write("lib.c", "int driver(void) { return 0; }\n");
    mill.write("main.c", "int driver(void);\nint main(void) { return driver(); }\n");
    let library = "libsearchmilltestdriver.so";
    let lines = format!(
        "cc -shared -fPIC -o {library} lib.c && cc -o worker main.c -L. -lsearchmilltestdriver && rm {library}"
    );
    let built = Command::new("sh").args(["-c", &lines]).current_dir(mill.path(".")).status().expect("a compiler");
    assert!(built.success());
    let worker = mill.path("worker");
    mill.write("pipeline.yaml", &computing("{gpus: 1}"));
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    with_devices(&mill, &mut command, &two_devices());
    let told = Told::new(command.env("SEARCHMILL_WORKER_CUDA", &worker).output().expect("the program")).exit(5);
    let message = failure(&told);
    assert!(message.contains("exit code 127") && message.contains(library), "{message}");
    let help = events(&told, "node_failed")[0]["help"].to_string();
    assert!(help.contains("libcuda.so.1 comes with NVIDIA's driver") && help.contains("searchmill doctor"), "{help}");

    let mut command = mill.command(&["doctor"]);
    with_devices(&mill, &mut command, &two_devices());
    let told = Told::new(command.env("SEARCHMILL_WORKER_CUDA", &worker).output().expect("the program")).exit(1);
    assert!(told.stdout.contains("does not start") && told.stdout.contains(library), "{}", told.stdout);
}

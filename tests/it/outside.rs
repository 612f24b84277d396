//! The outside: credentials in URLs, silent receivers, texts that steer terminals, files that may not grow.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::mill::{Mill, Told};

#[test]
fn a_url_with_a_password_is_refused_and_not_repeated() {
    let mill = Mill::new();
    let refused = |nodes: &str| {
        mill.write("pipeline.yaml", &format!("name: urls\nnodes:\n{nodes}"));
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
        assert!(!told.stderr.contains("hunter2") && !told.stdout.contains("hunter2"), "{}", told.stderr);
        assert!(told.stderr.contains("error[user-info]"), "{}", told.stderr);
        assert_eq!(mill.call(&["run", "pipeline.yaml"]).exit(2).stdout, "");
        told.stderr
    };
    let told = refused("  a: {op: read, with: {path: ['x.jsonl', 'https://me:hunter2@host/x.jsonl'], as: document}}\n");
    assert!(told.contains("`path.1` of `a`"), "{told}");
    let told = refused(
        "  w: {op: generate-world, with: {documents: 150, questions: 20}}\n  r: {op: rollout, from: {questions: \
         w.questions}, with: {policy: {endpoint: {base_url: 'https://me:hunter2@host/v1', model: m}}}}\n",
    );
    assert!(told.contains("`policy.endpoint.base_url` of `r`") && told.contains("api_key: ${secret:NAME}"), "{told}");
    refused("  a: {op: read, with: {path: 'https://hunter2@host/x.jsonl', as: document}}\n");
    mill.write(
        "pipeline.yaml",
        "name: fine\nnodes:\n  w: {op: generate-world, with: {documents: 150, questions: 20}}\n",
    );
    let told = mill.call(&["--store", "s3://key:hunter2@bucket/x", "run", "pipeline.yaml"]);
    assert!(
        told.code != 0 && !told.stderr.contains("hunter2") && told.stderr.contains("no user name"),
        "{}",
        told.stderr
    );
    let told = mill.call(&["run", "pipeline.yaml", "--openlineage", "http://me:hunter2@host/"]).exit(2);
    assert!(!told.stderr.contains("hunter2") && told.stderr.contains("OPENLINEAGE_API_KEY"), "{}", told.stderr);
}

#[test]
fn an_included_file_that_is_no_pipeline_is_not_shown() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", "name: strange\ninclude: secrets.env\n");
    for secret in ["PASSWORD=hunter2\n", "password: hunter2\n", "- hunter2\n", "\thunter2: {\n", "\u{7}hunter2\n"] {
        mill.write("secrets.env", secret);
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(!told.contains("hunter2"), "{told}");
        assert!(told.contains("`secrets.env` is no pipeline") && told.contains("pipeline.yaml:2:"), "{told}");
    }
    mill.write("secrets.env", "nodes:\n  a: {op: reed}\n");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("op: reed"), "a pipeline's own mistakes are shown: {told}");
}

#[test]
fn texts_do_not_steer_the_terminal() {
    let mill = Mill::new();
    let text = "a\u{9b}31mb \u{202e}gpj";
    mill.write("d.jsonl", &format!("{}\n", serde_json::json!({"id": text, "title": text, "text": text})));
    let node = "op: read, with: {path: d.jsonl, as: document}";
    mill.write("pipeline.yaml", &format!("name: steering\nnodes:\n  d: {{{node}}}\n"));
    mill.run(&[]).exit(0);
    for more in [&[][..], &["--json"]] {
        let told = mill.call(&[&["show", "d"], more].concat()).exit(0).stdout;
        assert!(!told.contains('\u{9b}') && !told.contains('\u{202e}') && told.contains("31mb"), "{told:?}");
    }
    let rows = mill.call(&["show", "d", "--json"]).exit(0).events();
    assert_eq!(rows[0]["text"], text, "JSON says the same");
}

#[test]
fn a_limit_on_file_sizes_is_a_message() {
    let mill = Mill::new();
    let world = "op: generate-world, with: {documents: 2000, questions: 50}";
    mill.write("pipeline.yaml", &format!("name: large\nnodes:\n  world: {{{world}}}\n"));
    let mut command = std::process::Command::new("sh");
    let line = format!("ulimit -f 40; exec {} run pipeline.yaml", env!("CARGO_BIN_EXE_searchmill"));
    command.args(["-c", &line]).current_dir(mill.path("")).env_remove("SEARCHMILL_STORE").env("NO_COLOR", "1");
    let told = Told::new(command.output().expect("a shell")).exit(5);
    assert!(told.stderr.contains("File too large"), "{}", told.stderr);
    assert_eq!(mill.run(&[]).exit(0).ran(), "world");
}

#[test]
fn a_silent_receiver_of_events_costs_two_seconds() {
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        "name: silent\nnodes:\n  w: {op: generate-world, with: {documents: 150, questions: 20}}\n",
    );
    // Connections are taken by the system, and nobody ever answers.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    mill.run(&[]).exit(0);
    let start = Instant::now();
    let told = mill.call(&["run", "pipeline.yaml", "--openlineage", &url]).exit(0);
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
    assert!(told.stderr.contains("did not arrive") && told.stderr.contains("no answer within 2 s"), "{}", told.stderr);
}

#[test]
fn credentials_of_the_environment_are_struck_out() {
    let mill = Mill::new();
    let program = "command: [sh, -c, 'echo token $HF_TOKEN >&2; exit 1'], environment: [HF_TOKEN]";
    for resources in ["", ", resources: {isolate: true}"] {
        let world = "op: generate-world, with: {documents: 150, questions: 20}";
        let exec = format!("op: exec, from: world.documents, with: {{{program}, as: document}}{resources}");
        mill.write("pipeline.yaml", &format!("name: loud\nnodes:\n  world: {{{world}}}\n  loud: {{{exec}}}\n"));
        let mut command = mill.command(&["run", "pipeline.yaml"]);
        let told = Told::new(command.env("HF_TOKEN", "hf_hunter2hunter2").output().expect("a child")).exit(1);
        assert!(told.stderr.contains("[secret HF_TOKEN]"), "{}", told.stderr);
        assert!(!told.stderr.contains("hunter2") && !told.stdout.contains("hunter2"), "{}", told.stderr);
        let mut search = std::process::Command::new("grep");
        let found = search.args(["-rl", "hunter2", ".searchmill"]).current_dir(mill.path("")).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "the store holds it");
    }
}

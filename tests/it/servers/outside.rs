//! Tests of external services and input: credentials in URLs, silent receivers, terminal escapes, file size limits.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told};

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
    assert!(!mill.path("cache").exists(), "the name of the local copy would hold the password");
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
        assert!(told.contains("`secrets.env` is not a pipeline") && told.contains("pipeline.yaml:2:"), "{told}");
    }
    mill.write("secrets.env", "nodes:\n  a: {op: reed}\n");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("op: reed"), "errors of the pipeline are reported: {told}");
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
    assert_eq!(rows[0]["text"], text, "JSON has the same text");
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
    // The system accepts connections, but no process answers.
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

#[test]
fn document_texts_cannot_hide_on_the_terminal() {
    let mill = Mill::new();
    let text = "a\u{1b}[8mhidden\u{1b}[0m b\u{200f}c\u{61c}d\u{2028}e";
    mill.write("d.jsonl", &format!("{}\n", serde_json::json!({"id": "d", "title": null, "text": text})));
    mill.write("pipeline.yaml", "name: hiding\nnodes:\n  d: {op: read, with: {path: d.jsonl, as: document}}\n");
    mill.run(&[]).exit(0);
    let mut command = mill.command(&["--color", "always", "show", "d"]);
    let told = Told::new(command.env_remove("NO_COLOR").output().expect("a child")).exit(0).stdout;
    assert!(told.contains("ahidden b\\u200fc\\u061cd\\u2028e"), "{told:?}");
    let rows = mill.call(&["show", "d", "--json"]).exit(0).events();
    assert_eq!(rows[0]["text"], text, "JSON has the same text");
}

/// Starts a server that redirects every request to `location`; returns its address.
fn redirecting(status: u16, location: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = move |stream: TcpStream| -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            let header = line.to_ascii_lowercase();
            length = header.strip_prefix("content-length:").map_or(length, |n| n.trim().parse().unwrap_or(0));
            line.clear();
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let head = format!("HTTP/1.1 {status} Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n");
        write!(reader.get_mut(), "{head}connection: close\r\n\r\n")
    };
    std::thread::spawn(move || listener.incoming().flatten().map(answer).filter(Result::is_err).count());
    format!("http://{address}")
}

#[test]
fn redirects_of_an_endpoint_are_not_followed() {
    for status in [302, 307] {
        let other = Bench::new(&patient(1, Duration::ZERO));
        let bench = Bench::new(&patient(1, Duration::ZERO));
        let target = format!("{}/chat/completions", other.server.base_url());
        bench.replace("${env:ENDPOINT}", &redirecting(status, target));
        bench.run(&[]).exit(3);
        assert!(other.server.requests("q0").is_empty(), "another host received the prompt");
        let rejects = bench.call(&["show", "answers", "--rejects", "--json"]).exit(0).events();
        let message = rejects[0]["message"].as_str().expect("a reason");
        assert!(message.contains(&status.to_string()) && message.contains("a redirect to 127.0.0.1"), "{message}");
        assert!(message.contains("put the final URL into `base_url`"), "{message}");
    }
}

#[test]
fn redirects_of_a_receiver_of_events_are_not_followed() {
    let mill = Mill::new();
    mill.write("d.jsonl", "{\"id\": \"d\", \"text\": \"t\"}\n");
    mill.write("pipeline.yaml", "name: moved\nnodes:\n  d: {op: read, with: {path: d.jsonl, as: document}}\n");
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    other.set_nonblocking(true).expect("a listener that does not wait");
    let target = format!("http://{}/api/v1/lineage", other.local_addr().expect("an address"));
    let told = mill.call(&["run", "pipeline.yaml", "--openlineage", &redirecting(307, target)]).exit(0).stderr;
    assert!(told.contains("it answered 307") && told.contains("redirects are not followed"), "{told}");
    assert!(other.accept().is_err(), "another host received the events");
}

#[test]
fn a_secret_where_none_is_read_is_refused() {
    let mill = Mill::new();
    let exec = "op: exec, with: {command: [cat], params: {token: \"${secret:TOKEN}\"}, as: document}";
    mill.write("pipeline.yaml", &format!("name: literal\nnodes:\n  made: {{{exec}}}\n"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("error[secret-not-read]: `params.token` of `exec` does not accept secrets"), "{told}");
    assert!(told.contains("pipeline.yaml:3:") && told.contains("environment: [NAME]"), "{told}");
}

/// The number of processes and threads is limited for everybody but the superuser.
#[test]
fn a_lack_of_threads_is_a_message() {
    use std::os::unix::fs::PermissionsExt;
    let mill = Mill::new();
    mill.write(
        "pipeline.yaml",
        "name: few\nnodes:\n  world: {op: generate-world, with: {documents: 150, questions: 20}}\n",
    );
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(mill.path(""), open).expect("a folder for everybody");
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    let words: &[&str] = if is_root { &["setpriv", "--reuid=65534", "--clear-groups"] } else { &["env"] };
    if ["prlimit", words[0]].iter().any(|word| Command::new(word).arg("--version").output().is_err()) {
        searchmill_fixtures::skip("prlimit and setpriv");
        return;
    }
    let mut reached = Vec::new();
    // The user has other processes, or none: some of these numbers end a run in the middle, the first one at once.
    for threads in [1, 2, 3, 4, 6, 8, 12, 16] {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nproc={threads}")).args(words).current_dir(mill.path(""));
        command.args([env!("CARGO_BIN_EXE_searchmill"), "run", "pipeline.yaml"]);
        // OpenBLAS starts its threads before the program begins, and ends the process if it cannot.
        command.env("OPENBLAS_NUM_THREADS", "1");
        let told = Told::new(command.env("NO_COLOR", "1").env_remove("SEARCHMILL_STORE").output().expect("prlimit"));
        assert!(!told.stderr.contains("panicked"), "{threads}: {}", told.stderr);
        assert!(matches!(told.code, 0 | 5), "{threads}: {} {}", told.code, told.stderr);
        let is_told = ["no more threads", "cannot start"].iter().any(|words| told.stderr.contains(words));
        assert!(told.code == 0 || is_told, "{threads}: {} {}", told.stdout, told.stderr);
        reached.push(told.code);
    }
    assert_eq!(reached[0], 5, "{reached:?}");
}

/// DataFusion walks an expression by recursion.
#[test]
fn sql_of_500_operators_runs_and_of_5000_is_refused_with_its_place() {
    let mill = Mill::new();
    mill.write("d.jsonl", "{\"id\": \"1\", \"title\": \"t\", \"text\": \"x\"}\n");
    let pipeline = |predicate: &str| {
        let nodes = "  d: {op: read, with: {path: d.jsonl, as: document}}\n  s: {op: filter, from: d, with: {where: ";
        mill.write("pipeline.yaml", &format!("name: deep\nnodes:\n{nodes}\"{predicate}\"}}}}\n"));
    };
    let chain: Vec<String> = (0..500).map(|number| format!("id <> 'q{number}'")).collect();
    pipeline(&chain.join(" and "));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    pipeline(&vec!["id <> 'q'"; 5000].join(" and "));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("more than 1000 levels deep") && told.contains("pipeline.yaml:4:"), "{told}");
    pipeline(&format!("{}id = 'q'{}", "(".repeat(500), ")".repeat(500)));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("parentheses are nested more than 50 deep"), "{told}");
}

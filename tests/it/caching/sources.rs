//! Tests of sources that change while they are read, of programs and models as sources, and of folders with cycles.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::project::{Mill, Told};

/// A script that marks its start, waits for a file, and then outputs the text of a file as rows.
const SLOW: &str = "\
import os, sys, time
open('started', 'w').close()
while not os.path.exists('go'):
    time.sleep(0.01)
import struct
text = open(sys.argv[1]).read()
sys.stderr.write('read ' + text + '\\n')
sys.stdout.buffer.write(open('rows.arrow', 'rb').read() if text == 'plain' else open('changed.arrow', 'rb').read())
";

/// Returns a table of one text as an Arrow IPC stream.
fn stream(text: &str) -> Vec<u8> {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    let column: ArrayRef = std::sync::Arc::new(StringArray::from(vec![text]));
    let batch = RecordBatch::try_from_iter([("text", column)]).expect("a batch");
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), &batch.schema()).expect("a writer");
    writer.write(&batch).expect("written");
    writer.finish().expect("finished");
    writer.into_inner().expect("bytes")
}

fn slow(resources: &str) -> Mill {
    let mill = Mill::new();
    mill.write("slow.py", SLOW);
    mill.write("arg.txt", "plain");
    for (name, text) in [("rows.arrow", "plain"), ("changed.arrow", "CHANGED")] {
        std::fs::write(mill.path(name), stream(text)).expect("a file");
    }
    let node = format!(
        "made: {{op: exec, with: {{command: [python3, slow.py, arg.txt], files: [rows.arrow, changed.arrow]}}{resources}}}"
    );
    mill.write("pipeline.yaml", &format!("name: slow\nnodes:\n  {node}\n"));
    mill
}

fn wait_for(path: &Path) {
    let start = Instant::now();
    while !path.exists() {
        assert!(start.elapsed() < Duration::from_mins(1), "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the pipeline, changes the file while the program waits, and restores the old text after it was read.
fn run_with_a_change(mill: &Mill) -> Told {
    let child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("the program can be started");
    wait_for(&mill.path("started"));
    std::fs::remove_file(mill.path("started")).expect("there");
    mill.write("arg.txt", "CHANGED");
    mill.write("go", "");
    // The node runs again, under the key of the current content: the old text.
    let reader = std::thread::spawn(move || child.wait_with_output().expect("an end"));
    let log = mill.store_path();
    let start = Instant::now();
    while !reader.is_finished() && start.elapsed() < Duration::from_secs(30) {
        if has_read(&log) {
            mill.write("arg.txt", "plain");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Told::new(reader.join().expect("an end"))
}

/// Whether a log shows that the changed text was read.
fn has_read(store: &Path) -> bool {
    let runs = std::fs::read_dir(store.join("runs")).into_iter().flatten().flatten();
    runs.map(|run| std::fs::read_to_string(run.path().join("events.jsonl")).unwrap_or_default())
        .any(|text| text.contains("read CHANGED"))
}

fn shown(mill: &Mill) -> String {
    mill.call(&["show", "made", "--json", "-n", "0"]).exit(0).stdout
}

#[test]
fn a_file_that_is_changed_and_put_back_while_a_program_reads_it_poisons_nothing() {
    for resources in ["", ", resources: {isolate: true}"] {
        let mill = slow(resources);
        let told = run_with_a_change(&mill);
        assert!(told.stdout.contains("changed while it was read"), "{resources}: {}{}", told.stdout, told.stderr);
        assert_eq!(told.code, 0, "{resources}: {}{}", told.stdout, told.stderr);
        mill.write("arg.txt", "plain");
        mill.run(&[]).exit(0);
        let rows = shown(&mill);
        assert!(rows.contains("plain") && !rows.contains("CHANGED"), "{resources}: {rows}");
    }
}

#[test]
fn a_program_that_writes_to_what_it_names_fails_with_the_reason() {
    let mill = Mill::new();
    std::fs::write(mill.path("rows.arrow"), stream("plain")).expect("a file");
    mill.write("log.txt", "");
    let pipeline = |script: &str, more: &str| {
        format!("name: n\nnodes:\n  made: {{op: exec, with: {{command: [sh, -c, \"{script}\"]{more}}}}}\n")
    };
    mill.write("pipeline.yaml", &pipeline("echo more | tee -a log.txt >&2; cat rows.arrow", ""));
    let told = mill.run(&[]).exit(5);
    assert!(told.stdout.contains("log.txt` changed while it was read, 3 times in a row"), "{}", told.stdout);
    assert_eq!(mill.read("log.txt").lines().count(), 3);
    assert!(mill.store().result_keys().is_empty());
    for (script, more) in [
        ("echo more | tee -a log.txt >&2; cat rows.arrow", ", writes: [log.txt]"),
        ("echo more >> log.txt; cat rows.arrow", ""),
    ] {
        mill.write("pipeline.yaml", &pipeline(script, more));
        assert_eq!(mill.run(&[]).exit(0).ran(), "made", "{script}");
        assert_eq!(mill.run(&[]).exit(0).ran(), "", "{script}");
    }
}

/// Checks that a model's folder is identified by content, however its path is written.
#[test]
fn other_weights_in_a_folder_without_a_dot_are_another_model() {
    let mill = Mill::new();
    crate::harness::models::write(&mill.path("models"));
    let world = "world: {op: generate-world, with: {documents: 100, questions: 40}}";
    let some = "some: {op: sample, from: world.questions, with: {n: 2}}";
    let rollout = "said: {op: rollout, from: some, with: {policy: {model: {model: models/decoder, max_tokens: 4}}, max_turns: 1}}";
    mill.write("pipeline.yaml", &format!("name: n\nnodes:\n  {world}\n  {some}\n  {rollout}\n"));
    assert_eq!(mill.run(&[]).exit(0).ran(), "said some world");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    let path = mill.path("models/decoder/model.safetensors");
    let mut weights = std::fs::read(&path).expect("a file");
    let last = weights.len() - 2;
    weights[last] ^= 1;
    std::fs::write(&path, weights).expect("a file");
    assert_eq!(mill.run(&[]).exit(0).ran(), "said");
}

/// Checks that `read` reads what its key saw: a line appended meanwhile is either in the key or not in the result.
#[test]
fn a_line_appended_while_it_is_read_is_never_in_a_result_whose_key_lacks_it() {
    let mill = Mill::new();
    let line = |n: usize| format!("{{\"n\": {n}, \"text\": \"{}\"}}\n", "x".repeat(200));
    mill.write("rows.jsonl", &(0..60_000).map(line).collect::<String>());
    mill.write("pipeline.yaml", "name: n\nnodes:\n  made: {op: read, with: {path: rows.jsonl}}\n");
    let child = mill.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("the program can be started");
    let path = mill.path("rows.jsonl");
    let appending = std::thread::spawn(move || {
        for n in 0..40 {
            let mut file = std::fs::File::options().append(true).open(&path).expect("a file");
            std::io::Write::write_all(&mut file, line(100_000 + n).as_bytes()).expect("written");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let first = Told::new(child.wait_with_output().expect("an end"));
    appending.join().expect("an end");
    assert!([0, 5].contains(&first.code), "{}{}", first.stdout, first.stderr);
    mill.run(&[]).exit(0);
    let rows = mill.last_nodes()[0].outputs["rows"].rows;
    assert_eq!(rows as usize, mill.read("rows.jsonl").lines().count());
}

#[test]
fn two_trainers_have_two_keys_and_words_name_files_folders_and_scripts() {
    let mill = Mill::new();
    std::fs::write(mill.path("rows.arrow"), stream("plain")).expect("a file");
    std::fs::create_dir(mill.path("data")).expect("a folder");
    for name in ["a.sh", "b.sh"] {
        let script = format!("#!/bin/sh\n# {name}\ncat rows.arrow\n");
        mill.write(name, &script);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(mill.path(name), mode).expect("a mode");
    }
    mill.write("config.yaml", "1");
    mill.write("data/one", "1");
    let ran = |command: &str| {
        let node = format!("made: {{op: exec, with: {{command: {command}, files: [rows.arrow]}}}}");
        mill.write("pipeline.yaml", &format!("name: n\nnodes:\n  {node}\n"));
        mill.run(&[]).exit(0).ran() == "made"
    };
    assert!(ran("[./a.sh, --config=config.yaml, --data, data]"));
    assert!(!ran("[./a.sh, --config=config.yaml, --data, data]"));
    for (file, text) in
        [("config.yaml", "2"), ("data/one", "2"), ("data/two", "1"), ("a.sh", "#!/bin/sh\ncat rows.arrow\n")]
    {
        mill.write(file, text);
        assert!(ran("[./a.sh, --config=config.yaml, --data, data]"), "{file} changed");
    }
    assert!(ran("[sh, -c, 'cat < rows.arrow; : config.yaml']"));
    mill.write("config.yaml", "3");
    assert!(ran("[sh, -c, 'cat < rows.arrow; : config.yaml']"), "a word of a shell's script");
}

/// Checks that scripts are looked up in the folder of `-C`, where the program runs.
#[test]
fn files_of_a_command_are_looked_for_in_the_working_directory() {
    let mill = Mill::new();
    std::fs::create_dir(mill.path("sub")).expect("a folder");
    std::fs::write(mill.path("sub/rows.arrow"), stream("plain")).expect("a file");
    mill.write("sub/pipeline.yaml", "name: n\nnodes:\n  made: {op: exec, with: {command: [cat, rows.arrow]}}\n");
    let run = || mill.call(&["run", "-C", "sub", "pipeline.yaml", "--json"]).exit(0).ran();
    assert_eq!((run().as_str(), run().as_str()), ("made", ""));
    std::fs::write(mill.path("sub/rows.arrow"), stream("other")).expect("a file");
    assert_eq!(run(), "made");
}

#[test]
fn a_folder_without_end_is_listed_once_and_a_pipe_is_refused() {
    let mill = Mill::new();
    std::fs::create_dir_all(mill.path("data/deep")).expect("folders");
    mill.write("data/deep/rows.jsonl", "{\"n\": 1}\n");
    std::os::unix::fs::symlink("..", mill.path("data/deep/up")).expect("a link");
    mill.write("pipeline.yaml", "name: n\nnodes:\n  made: {op: read, with: {path: data}}\n");
    mill.run(&[]).exit(0);
    assert_eq!(mill.last_nodes()[0].outputs["rows"].rows, 1);
    let made = std::process::Command::new("mkfifo").arg(mill.path("pipe.jsonl")).status().expect("mkfifo");
    assert!(made.success());
    mill.write("pipeline.yaml", "name: n\nnodes:\n  made: {op: read, with: {path: pipe.jsonl}}\n");
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("`pipe.jsonl` is not a regular file"), "{}{}", told.stdout, told.stderr);
}

/// Checks that SIGTERM stops digesting.
#[test]
fn digesting_ends_when_the_run_is_told_to_stop() {
    let mill = Mill::new();
    let file = std::fs::File::create(mill.path("huge.jsonl")).expect("a file");
    // Sparse: 64 GB that use no disk space and take minutes to digest.
    file.set_len(64 << 30).expect("a length");
    mill.write("pipeline.yaml", "name: n\nnodes:\n  made: {op: read, with: {path: huge.jsonl}}\n");
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    let child = command.stdout(Stdio::piped()).spawn().expect("the program can be started");
    wait_for(&mill.path(".searchmill/runs"));
    std::thread::sleep(Duration::from_millis(700));
    let start = Instant::now();
    let stopped = std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(stopped.success());
    let told = Told::new(child.wait_with_output().expect("an end"));
    assert_eq!(told.code, 130, "{}{}", told.stdout, told.stderr);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// Many libraries read a path with these characters as a pattern, which matches nothing: tables would be empty.
#[test]
fn tables_are_read_whole_from_a_store_named_like_a_pattern() {
    let mill = Mill::new();
    let lines = |rows: usize| (0..rows).map(|n| format!("{{\"n\": {n}}}\n")).collect::<String>();
    mill.write("many.jsonl", &lines(40_000));
    mill.write("few.jsonl", &lines(10));
    let read = |name: &str| format!("  {name}: {{op: read, with: {{path: {name}.jsonl}}}}\n");
    let join = "  both: {op: join, from: {left: few, right: many}, with: {on: [n], how: semi}}\n";
    let filter = "  most: {op: filter, from: many, with: {where: \"n >= 10\"}}\n";
    mill.write("pipeline.yaml", &format!("name: p\nnodes:\n{}{}{join}{filter}", read("many"), read("few")));
    mill.run(&["--store", "exp [1]*?"]).exit(0);
    let store = searchmill_engine::store::Store::open(&mill.path("exp [1]*?")).expect("a store");
    let nodes = store.run_nodes(store.run_ids().last().expect("a run"));
    let rows = |name: &str| nodes.iter().find(|node| node.node == name).expect("a node").outputs["rows"].rows;
    assert_eq!((rows("many"), rows("both"), rows("most")), (40_000, 10, 39_990));
}

/// A change that must make the node run again.
type Change = fn(&Mill);

/// Commands, a change to a file they read, and its description.
const READS: [(&str, Change, &str); 8] = [
    (
        "[sh, -c, cat rows.arrow, a, b]",
        |mill| std::fs::rename(mill.path("b/y"), mill.path("a/y")).expect("moved"),
        "a file in another folder",
    ),
    (
        "[sh, -c, cat rows.arrow, a]",
        |mill| std::fs::create_dir(mill.path("a/empty")).expect("a folder"),
        "an empty folder",
    ),
    (
        "[sh, -c, cat rows.arrow, g/*/f.txt]",
        |mill| std::fs::rename(mill.path("g/one"), mill.path("g/two")).expect("renamed"),
        "another name in a pattern",
    ),
    (
        "[sh, -c, \"grep -q '</answer>' data.txt; cat rows.arrow\"]",
        |mill| mill.write("data.txt", "changed"),
        "a word behind a mark in quotes",
    ),
    (
        "[sh, -c, \"cat 'my file.txt' > /dev/null; cat rows.arrow\"]",
        |mill| mill.write("my file.txt", "2"),
        "a name with a space",
    ),
    ("[sh, -c, ': w[12].txt; cat rows.arrow']", |mill| mill.write("w1.txt", "2"), "a pattern with brackets"),
    (
        "[env, -u, X, sh, -c, 'own-tool; cat rows.arrow']",
        |mill| mill.write("bin/own-tool", "#!/bin/sh\n# 2\n"),
        "a tool on PATH",
    ),
    ("[python3, -m, pkg.main]", |mill| mill.write("pkg/helper.py", "x = 2\n"), "a module beside the one that is run"),
];

#[test]
fn what_a_program_reads_is_seen_in_every_form() {
    let mill = Mill::new();
    std::fs::write(mill.path("rows.arrow"), stream("plain")).expect("a file");
    for folder in ["a", "b", "g/one", "bin", "pkg"] {
        std::fs::create_dir_all(mill.path(folder)).expect("a folder");
    }
    for name in ["a/x", "b/y", "g/one/f.txt", "data.txt", "my file.txt", "w1.txt"] {
        mill.write(name, "1");
    }
    mill.write("pkg/main.py", "import sys\nsys.stdout.buffer.write(open('rows.arrow', 'rb').read())\n");
    mill.write("bin/own-tool", "#!/bin/sh\n");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(mill.path("bin/own-tool"), mode).expect("a mode");
    let path = format!("{}:{}", mill.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    for (command, change, what) in READS {
        let node = format!("made: {{op: exec, with: {{command: {command}, files: [rows.arrow]}}}}");
        mill.write("pipeline.yaml", &format!("name: n\nnodes:\n  {node}\n"));
        let ran = || {
            let mut run = mill.command(&["run", "pipeline.yaml", "--json"]);
            Told::new(run.env("PATH", &path).output().expect("the program can be started")).exit(0).ran()
        };
        assert_eq!((ran().as_str(), ran().as_str()), ("made", ""), "{what}");
        change(&mill);
        assert_eq!(ran(), "made", "{what}");
    }
}

#[test]
fn writing_to_the_whole_working_directory_is_refused() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", "name: n\nnodes:\n  made: {op: exec, with: {command: [cat, x], writes: [log, .]}}\n");
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(told.stderr.contains("it contains the working directory"), "{}", told.stderr);
}

//! Programs that put links in place of the folders that they were given, that leave processes behind, or that write into
//! their inputs: nothing outside the store is touched, and no artifact changes.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::harness::project::Mill;

/// Somebody's files, with links of their own among them.
fn theirs(mill: &Mill) -> PathBuf {
    let folder = mill.path("theirs");
    std::fs::create_dir_all(folder.join("deep")).expect("a folder");
    std::fs::write(folder.join("thesis.tex"), "years of work").expect("a file");
    std::fs::write(folder.join("deep/data.csv"), "1,2,3").expect("a file");
    for number in 0..5 {
        symlink("thesis.tex", folder.join(format!("link{number}"))).expect("a link");
    }
    folder
}

/// Describes all that a folder contains: names, kinds, contents, link targets and times of change.
fn photograph(folder: &Path) -> Vec<String> {
    let (mut seen, mut pending) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(current) = pending.pop() {
        for path in crate::harness::project::files_in(&current) {
            let found = path.symlink_metadata().expect("an entry");
            let content = if found.is_symlink() {
                format!("-> {}", path.read_link().expect("a link").display())
            } else if found.is_dir() {
                pending.push(path.clone());
                "folder".to_owned()
            } else {
                String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).into_owned()
            };
            seen.push(format!("{} {content} {:?}", path.display(), found.modified().expect("a time")));
        }
    }
    seen.sort();
    seen
}

/// A project with one program, which gets the folder `pages` as `$1` and the table `rows` as `$2`.
fn mill(script: &str, retry: &str) -> Mill {
    let mill = Mill::new();
    mill.write("questions.jsonl", "{\"id\": \"q\", \"question\": \"Who?\", \"golden_answers\": [\"Ada\"]}\n");
    let table = "name: table\nnodes:\n  rows: {op: read, with: {path: questions.jsonl, as: question}}\n  file: {op: \
                 write, from: rows, with: {path: rows.parquet}}\n";
    mill.write("table.yaml", table);
    mill.call(&["run", "table.yaml", "--store", "elsewhere"]).exit(0);
    mill.write("run.sh", script);
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: hostile\nnodes:\n  made:\n    op: exec{retry}\n    with:\n      command: [/bin/sh, run.sh, \
             \"{{pages}}\", \"{{rows}}\"]\n      outputs: {{rows: table}}\n      folders: [pages]\n      files: \
             [run.sh, rows.parquet]\n      repeatable: true\n"
        ),
    );
    mill
}

const THREE: &str = "\n    retry: {max_attempts: 3, backoff: 10ms}";

/// Each script replaces the folder `$1`, or one above it, by a link to `theirs`.
const REPLACED: [(&str, &str); 4] = [
    ("the folder", "rmdir \"$1\"; ln -s \"$PWD/theirs\" \"$1\""),
    ("the folder, by a link to a folder below", "rmdir \"$1\"; ln -s \"$PWD/theirs/deep\" \"$1\""),
    ("the folder above", "up=$(dirname \"$1\"); mv \"$up\" \"$up.moved\"; ln -s \"$PWD/theirs\" \"$up\""),
    ("the store", "up=$(dirname \"$(dirname \"$1\")\"); mv \"$up\" \"$up.moved\"; ln -s \"$PWD/theirs\" \"$up\""),
];

#[test]
fn no_link_in_place_of_an_output_folder_leads_outside() {
    for (what, replaced) in REPLACED {
        for (ending, retried) in [("cp rows.parquet \"$2\"", ""), ("exit 3", THREE)] {
            let mill = mill(&format!("{replaced}\n{ending}\n"), retried);
            let folder = theirs(&mill);
            let before = photograph(&folder);
            let told = mill.call(&["run", "pipeline.yaml"]);
            assert_ne!(told.code, 0, "{what}, {ending}: {}", told.stderr);
            assert!(told.stderr.contains("link") || told.stderr.contains("exit code 3"), "{what}: {}", told.stderr);
            assert_eq!(photograph(&folder), before, "{what}, {ending}");
            // Nor in the next run, which finds the link where the store's folder was.
            mill.call(&["run", "pipeline.yaml"]);
            mill.call(&["gc"]);
            assert_eq!(photograph(&folder), before, "{what}, {ending}, again");
        }
    }
}

#[test]
fn a_link_in_place_of_the_output_folder_is_told_with_the_remedy() {
    let mill = mill("rmdir \"$1\"; ln -s \"$PWD/theirs\" \"$1\"; cp rows.parquet \"$2\"\n", "");
    theirs(&mill);
    let told = mill.call(&["run", "pipeline.yaml"]).exit(1).stderr;
    assert!(told.contains("the output folder `pages` was replaced by a link to ") && told.contains("theirs"), "{told}");
    assert!(told.contains("copy the files there"), "{told}");
}

#[test]
fn links_inside_an_output_folder_are_copied_and_never_written_through() {
    let script = "ln -s \"$PWD/theirs/thesis.tex\" \"$1/mine.tex\"; echo own > \"$1/own\"; cp rows.parquet \"$2\"\n";
    let mill = mill(script, "");
    let folder = theirs(&mill);
    let before = photograph(&folder);
    mill.call(&["run", "pipeline.yaml"]).exit(0);
    let pages = mill.artifact_folder("made", "pages");
    assert!(!pages.join("mine.tex").is_symlink());
    assert_eq!(std::fs::read_to_string(pages.join("mine.tex")).expect("a copy"), "years of work");
    assert_eq!(photograph(&folder), before);
    assert_eq!(mill.call(&["run", "pipeline.yaml", "--json"]).exit(0).ran(), "");
}

/// A process in a session of its own escapes the end of its group. It keeps a file open, knows the folder, and has
/// another name for a file.
#[test]
fn what_outlives_its_program_writes_into_no_artifact() {
    let script = "echo whole > \"$1/open\"; echo whole > \"$1/named\"; ln \"$1/named\" other-name\n\
                  cd \"$1\"; setsid sh -c 'exec 3>>open 4>\"$0/ended\"; touch \"$0/ready\"; sleep 2; echo late >&3; \
                  echo late > new; echo late >&4' \"$OLDPWD\" </dev/null >/dev/null 2>&1 &\n\
                  cd \"$OLDPWD\"; while [ ! -e ready ]; do sleep 0.05; done; cp rows.parquet \"$2\"\n";
    let mill = mill(script, "");
    mill.call(&["run", "pipeline.yaml"]).exit(0);
    let start = Instant::now();
    while mill.read("ended").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "the process did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    mill.write("other-name", "late");
    let pages = mill.artifact_folder("made", "pages");
    assert_eq!(std::fs::read_to_string(pages.join("open")).expect("a file"), "whole\n");
    assert_eq!(std::fs::read_to_string(pages.join("named")).expect("a file"), "whole\n");
    assert!(!pages.join("new").exists());
    mill.call(&["audit", "latest"]).exit(0);
    assert_eq!(mill.call(&["run", "pipeline.yaml", "--json"]).exit(0).ran(), "");
}

#[test]
fn a_program_that_writes_into_its_input_changes_only_its_own_copy() {
    let mill = Mill::new();
    mill.write("made.sh", "echo weights > \"$1/weights\"; echo own > \"$1/artifact.json\"\n");
    mill.write("used.sh", "ls \"$1\"; touch \"$1/weights.lock\"; echo x >> \"$1/weights\"; cp -R \"$1/.\" \"$2\"\n");
    mill.write(
        "pipeline.yaml",
        "name: inputs\nnodes:\n  made: {op: exec, with: {command: [/bin/sh, made.sh, \"{model}\"], folders: [model]}}\n  \
         used:\n    op: exec\n    from: {model: made.model}\n    with: {command: [/bin/sh, used.sh, \"{model}\", \
         \"{copy}\"], folders: [copy]}\n",
    );
    mill.call(&["run", "pipeline.yaml"]).exit(0);
    let (model, copy) = (mill.artifact_folder("made", "model"), mill.artifact_folder("used", "copy"));
    let names = |folder: &Path| {
        let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
        crate::harness::project::files_in(folder).into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&model), ["artifact.json", "weights"], "a program may use the name");
    assert_eq!(names(&copy), ["artifact.json", "weights", "weights.lock"]);
    assert_eq!(std::fs::read_to_string(model.join("weights")).expect("a file"), "weights\n");
    mill.call(&["audit", "latest"]).exit(0);
    assert_eq!(mill.call(&["run", "pipeline.yaml", "--json"]).exit(0).ran(), "");
}

/// The description of an artifact was in its folder.
#[test]
fn a_store_of_an_earlier_version_is_read_and_nothing_runs_again() {
    let mill = mill("echo page > \"$1/page\"; cp rows.parquet \"$2\"\n", "");
    mill.call(&["run", "pipeline.yaml"]).exit(0);
    for port in ["pages", "rows"] {
        let folder = mill.artifact_folder("made", port);
        std::fs::rename(folder.with_extension("json"), folder.join("artifact.json")).expect("moved");
    }
    assert_eq!(mill.call(&["run", "pipeline.yaml", "--json"]).exit(0).ran(), "");
    mill.call(&["audit", "latest"]).exit(0);
    mill.call(&["export", "made.pages", "made.tar.zst"]).exit(0);
    // What is opened gets the new layout.
    mill.call(&["show", "made.rows"]).exit(0);
    let folder = mill.artifact_folder("made", "rows");
    assert!(folder.with_extension("json").exists() && !folder.join("artifact.json").exists());
    let other = Mill::new();
    std::fs::copy(mill.path("made.tar.zst"), other.path("made.tar.zst")).expect("copied");
    other.call(&["import", "made.tar.zst"]).exit(0);
}

//! Tests of outputs that are released: by `keep:` of a loop while it runs, and by `gc --release`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::harness::project::{Mill, Told, files_in, killed_after};
use crate::pipelines::repeat::LEARNT;

/// A loop whose model is a folder: each round adds a line to the file of the round before. `look` reads every model.
const LINES: &str = "\
name: lines
params: {rounds: 6, look: 1, word: w}
nodes:
  start: {op: exec, from: {given: given}, with: {command: [/bin/sh, first.sh, \"{given}\", \"{model}\"], folders: [model]}}
  given: {op: read, with: {path: given.jsonl, as: table}}
  last:  {op: exec, from: {model: rl.model}, with: {command: [/bin/sh, look.sh, \"{model}\", \"{copy}\"], folders: [copy]}}
repeat:
  rl:
    rounds: \"${params.rounds}\"
    KEEP
    carry: {model: start.model}
    nodes:
      step: {op: exec, from: {before: model}, with: {command: [/bin/sh, step.sh, \"{before}\", \"{model}\", \"${repeat.round}\", \"${params.word}\"], folders: [model]}}
      look: {op: exec, from: {model: step.model}, with: {command: [/bin/sh, look.sh, \"{model}\", \"{copy}\", \"${params.look}\"], folders: [copy]}}
    next: {model: step.model}
";

fn lines(keep: &str) -> Mill {
    let mill = Mill::new();
    mill.write("given.jsonl", "{\"x\": 1}\n");
    mill.write("first.sh", "echo first > \"$2/w\"\n");
    mill.write("step.sh", "cat \"$1/w\" > \"$2/w\"\necho \"$4 $3\" >> \"$2/w\"\n");
    mill.write("look.sh", "wc -l < \"$1/w\" > \"$2/lines\"\n");
    set_keep(&mill, keep);
    mill
}

fn set_keep(mill: &Mill, keep: &str) {
    mill.write(
        "pipeline.yaml",
        &LINES.replace("KEEP", if keep.is_empty() { "matrix: {}" } else { keep }).replace("    matrix: {}\n", ""),
    );
}

fn rounds(mill: &Mill, rounds: usize, more: &[&str]) -> Told {
    mill.run(&[&["--set", &format!("rounds={rounds}")], more].concat()).exit(0)
}

/// Returns the folders of the models of a run, by round.
fn models(mill: &Mill) -> BTreeMap<usize, PathBuf> {
    let store = mill.store();
    let run = |id: &String| {
        let nodes = store.run_nodes(id).into_iter().filter(|node| !node.outputs.is_empty());
        let rounds = nodes.filter_map(|node| Some((node.node.strip_prefix("step@round=")?.parse().ok()?, node)));
        rounds
            .map(|(round, node)| (round, store.artifact_folder(&node.outputs["model"].id)))
            .collect::<BTreeMap<_, _>>()
    };
    store.run_ids().iter().flat_map(run).collect()
}

/// Returns the rounds whose models are in the store.
fn here(mill: &Mill) -> Vec<usize> {
    models(mill).into_iter().filter(|(_, folder)| folder.exists()).map(|(round, _)| round).collect()
}

fn ran(told: &Told) -> Vec<String> {
    told.nodes("node_finished").into_iter().collect()
}

#[test]
fn models_go_while_the_loop_runs_and_another_round_runs_alone() {
    let mill = lines("keep: {every: 4, last: 2}");
    let first = rounds(&mill, 7, &[]);
    assert_eq!(here(&mill), [0, 4, 5, 6]);
    let gone = first.nodes("node_released");
    assert_eq!(gone.into_iter().collect::<Vec<_>>(), ["step@round=1", "step@round=2", "step@round=3"]);
    assert!(first.summary()["released"].as_u64() > Some(0), "{}", first.stdout);
    assert!(mill.unfinished().is_empty(), "{:?}", mill.unfinished());
    // Rounds that nobody can know to be the last ones yet stay until the next ones are done.
    assert!(ran(&rounds(&mill, 7, &[])).is_empty());
    assert_eq!(ran(&rounds(&mill, 8, &[])), ["last", "look@round=7", "step@round=7"]);
    assert_eq!(here(&mill), [0, 4, 6, 7]);
    // The params of `keep` are in no key, and fewer of them release more.
    set_keep(&mill, "keep: last");
    assert!(ran(&rounds(&mill, 8, &[])).is_empty());
    assert_eq!(here(&mill), [7]);
    set_keep(&mill, "");
    assert!(ran(&rounds(&mill, 8, &[])).is_empty());
    let plan = mill.call(&["plan", "pipeline.yaml", "--set", "rounds=8", "--json"]).exit(0).events();
    assert!(plan.iter().all(|node| node["status"] == "cached"), "{plan:?}");
    let step = plan.iter().find(|node| node["node"] == "step@round=3").expect("a round");
    assert_eq!(step["released"], serde_json::json!(["model"]));
}

#[test]
fn what_a_loop_hands_on_is_there_when_a_run_names_it() {
    let best = "keep: last\n    best: \"select -abs(count(*) - 2) from rounds\"";
    let set_up = || {
        let mill = lines(best);
        let text = mill.read("pipeline.yaml");
        let text: Vec<&str> = text.lines().filter(|line| !line.starts_with("  last:")).collect();
        mill.write("pipeline.yaml", &(text.join("\n") + "\n"));
        mill
    };
    let shown = |mill: &Mill| mill.call(&["path", "rl.model", "--single"]).exit(0).stdout;
    for named in [&[][..], &["rl.model"]] {
        let mill = set_up();
        rounds(&mill, 6, named);
        assert_eq!(here(&mill), [2, 5], "{named:?}");
        assert_eq!(std::fs::read_to_string(shown(&mill).trim()).expect("a file"), "first\nw 0\nw 1\nw 2\n");
    }
}

#[test]
fn gc_releases_middle_rounds_and_another_round_runs_alone() {
    let mill = lines("");
    rounds(&mill, 6, &[]);
    let before = mill.artifacts();
    assert_eq!(here(&mill), [0, 1, 2, 3, 4, 5]);
    let shown = mill.call(&["gc", "--release"]).exit(0);
    assert!(shown.stdout.contains("would release 5 folders of middle rounds"), "{}", shown.stdout);
    assert!(shown.stdout.contains("lines/step") && shown.stdout.contains("×5"), "{}", shown.stdout);
    assert_eq!(here(&mill).len(), 6, "nothing is removed without --yes");
    let told = mill.call(&["gc", "--release", "--yes", "--json"]).exit(0).events();
    let summary = told.last().expect("a summary");
    assert_eq!((&summary["released"], &summary["results"]), (&5.into(), &0.into()));
    assert_eq!(here(&mill), [5]);
    assert!(ran(&rounds(&mill, 6, &[])).is_empty());
    assert_eq!(ran(&rounds(&mill, 7, &[])), ["last", "look@round=6", "step@round=6"]);
    // Asked for by its name, a round is made again, from the nearest one that is there, with the same bytes.
    let again = rounds(&mill, 7, &["step@round=2"]);
    assert_eq!(ran(&again), ["step@round=0", "step@round=1", "step@round=2"]);
    assert_eq!(again.reasons("step@round=2"), ["released"]);
    assert_eq!(here(&mill), [0, 1, 2, 5, 6]);
    for (name, id) in mill.artifacts() {
        assert_eq!(before.get(&name), Some(&id), "{name}");
    }
    let again = rounds(&mill, 7, &["step@round=4"]);
    assert_eq!(ran(&again), ["step@round=3", "step@round=4"], "the nearest one is that of round 2");
    // All rounds by one name: their results are known, and no files are wanted but the last.
    assert!(ran(&rounds(&mill, 7, &["step"])).is_empty());
    // Pinned, a model stays.
    mill.call(&["pin", "step@round=1", "--run", &mill.store().run_ids()[0]]).exit(0);
    mill.call(&["gc", "--release", "--yes"]).exit(0);
    assert_eq!(here(&mill), [1, 6]);
}

#[test]
fn fewer_rounds_end_with_what_the_last_one_of_them_gives() {
    let mill = lines("keep: last");
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("model: rl.model", "model: start.model"));
    rounds(&mill, 5, &[]);
    assert_eq!(here(&mill), [4]);
    let plan = mill.call(&["plan", "pipeline.yaml", "--set", "rounds=3", "--all"]).exit(0).stdout;
    assert!(!plan.contains("is needed again"), "what it ends with is read by `look`, which is known: {plan}");
    let told = rounds(&mill, 3, &["step@round=2"]);
    assert_eq!(ran(&told), ["step@round=0", "step@round=1", "step@round=2"]);
}

#[test]
fn a_changed_node_makes_the_chain_again_once_and_lets_it_go_again() {
    let mill = lines("keep: last");
    rounds(&mill, 6, &[]);
    assert_eq!(here(&mill), [5]);
    let change: &[&str] = &["--set", "look=2"];
    let plan = mill.call(&[&["plan", "pipeline.yaml", "--all"], change].concat()).exit(0).stdout;
    assert!(plan.contains("the output `model` was released, and is needed again"), "{plan}");
    let folded = mill.call(&[&["plan", "pipeline.yaml"], change].concat()).exit(0).stdout;
    assert!(folded.contains("step ×6") && folded.contains("5 to run, 1 cached"), "{folded}");
    let told = rounds(&mill, 6, change);
    let started = told.events().into_iter().filter(|event| event["event"] == "node_started").count();
    assert_eq!(started, 6 + 5, "each model is made again once: {}", told.stdout);
    assert_eq!(here(&mill), [5], "and goes again");
    assert!(ran(&rounds(&mill, 6, change)).is_empty());
    // A node that changes in the middle makes what is before it again, and gives other models after it.
    let sentence = mill.read("step.sh");
    mill.write("step.sh", &sentence.replace("echo", "[ $3 = 4 ] && echo more >> \"$2/w\"\necho"));
    let told = rounds(&mill, 6, change);
    assert_eq!(ran(&told).iter().filter(|node| node.starts_with("step")).count(), 6);
}

#[test]
fn what_was_released_is_told_and_is_no_damage() {
    let mill = lines("keep: last");
    rounds(&mill, 4, &[]);
    for command in [vec!["show", "step@round=1"], vec!["path", "step@round=1.model"], vec!["pin", "step@round=1"]] {
        let told = mill.call(&command).exit(2);
        let words = "`searchmill run FILE step@round=1`";
        assert!(told.stderr.contains("was released") && told.stderr.contains(words), "{}", told.stderr);
    }
    mill.call(&["export", "step@round=1", "a.tar.zst"]).exit(2);
    let why = mill.call(&["why", "step@round=1"]).exit(0).stdout;
    assert!(why.contains("cached, `model` released; `searchmill run FILE step@round=1` makes it again"), "{why}");
    let status = mill.call(&["status", "pipeline.yaml", "--set", "rounds=4"]).exit(0).stdout;
    assert!(status.contains("step ×4") && status.contains("3 released"), "{status}");
    let status = mill.call(&["status", "pipeline.yaml", "--set", "rounds=4", "--all"]).exit(0).stdout;
    let line = status.lines().find(|line| line.starts_with("step@round=1")).expect("the round");
    assert!(line.contains("released"), "{status}");
    let plan = mill.call(&["plan", "pipeline.yaml", "--set", "rounds=4"]).exit(0).stdout;
    assert!(plan.contains("step ×4") && plan.contains("4 cached") && plan.contains("3 of them released"), "{plan}");
    let trace = mill.call(&["trace", "step@round=3"]).exit(0).stdout;
    assert!(trace.contains("released"), "{trace}");
    let audit = mill.call(&["audit", "step@round=3"]).exit(6).stdout;
    assert!(audit.contains("were not looked at") && !audit.contains("difference"), "{audit}");
    let audit = mill.call(&["audit", "step@round=3", "--replay", "--allow-programs"]).exit(0).stdout;
    assert!(audit.contains("everything checked is as recorded"), "{audit}");
    assert_eq!(here(&mill), [3], "an audit leaves nothing behind");
    // Lost files are no release.
    std::fs::remove_dir_all(&models(&mill)[&3]).expect("a model");
    let audit = mill.call(&["audit", "step@round=3"]).exit(1).stdout;
    assert!(audit.contains("it is gone from the store"), "{audit}");
    let told = rounds(&mill, 4, &[]);
    assert_eq!(
        (ran(&told), told.reasons("step@round=3")),
        (
            vec![
                "step@round=0".to_owned(),
                "step@round=1".to_owned(),
                "step@round=2".to_owned(),
                "step@round=3".to_owned()
            ],
            vec!["artifact_missing".to_owned()]
        )
    );
}

#[test]
fn an_archive_of_a_later_round_needs_no_released_model() {
    let mill = lines("keep: last");
    rounds(&mill, 4, &[]);
    mill.call(&["export", "step@round=3", "last.tar.zst"]).exit(0);
    let other = lines("keep: last");
    std::fs::copy(mill.path("last.tar.zst"), other.path("last.tar.zst")).expect("a copy");
    other.call(&["import", "last.tar.zst"]).exit(0);
    let told = rounds(&other, 5, &["step"]);
    assert_eq!(ran(&told), ["step@round=4"], "{}", told.stdout);
}

#[test]
fn a_forged_model_or_record_is_named() {
    let mill = lines("keep: last");
    rounds(&mill, 5, &[]);
    let forged = models(&mill)[&4].join("w");
    let text = std::fs::read_to_string(&forged).expect("a model");
    std::fs::write(&forged, text.replace("w 2", "w 9")).expect("forged");
    let audit = mill.call(&["audit", "step@round=4", "--json"]).exit(1).events();
    let findings = audit[0]["report"]["findings"].as_array().expect("findings");
    let named = |finding: &&Value| finding["severity"] == "difference" && finding["node"] == "step@round=4";
    assert!(findings.iter().any(|finding| named(&finding)), "{audit:?}");
    std::fs::write(&forged, text).expect("as before");
    // A note that describes another artifact is no note.
    let notes = files_in(&mill.store_path().join("released")).into_iter().flat_map(|folder| files_in(&folder));
    let notes: Vec<PathBuf> = notes.collect();
    assert_eq!(notes.len(), 4);
    let other = std::fs::read(&notes[1]).expect("a note");
    std::fs::write(&notes[0], other).expect("forged");
    let audit = mill.call(&["audit", "step@round=4"]).exit(1).stdout;
    assert_eq!(audit.matches("it is gone from the store").count(), 1, "{audit}");
}

#[test]
fn kill_9_while_models_go_is_harmless() {
    let calm = lines("keep: last");
    rounds(&calm, 12, &[]);
    let wanted = calm.artifacts();
    let killed = lines("keep: last");
    for wait in [150, 230, 260, 300, 340, 420] {
        let mut run = killed.command(&["run", "pipeline.yaml", "--set", "rounds=12", "-q"]);
        killed_after(&mut run, Duration::from_millis(wait));
    }
    rounds(&killed, 12, &[]);
    assert_eq!(killed.artifacts(), wanted);
    assert_eq!(here(&killed), [11]);
    assert!(killed.unfinished().is_empty(), "{:?}", killed.unfinished());
    assert!(ran(&rounds(&killed, 12, &[])).is_empty());
}

#[test]
fn a_long_chain_is_made_again_from_its_start() {
    let mill = lines("keep: last");
    mill.write(
        "pipeline.yaml",
        &mill
            .read("pipeline.yaml")
            .lines()
            .filter(|line| !line.contains(" look: {op"))
            .map(|line| format!("{line}\n"))
            .collect::<String>(),
    );
    rounds(&mill, 40, &["--jobs", "2"]);
    assert_eq!(here(&mill), [39]);
    let told = rounds(&mill, 40, &["step@round=37"]);
    assert_eq!(ran(&told).len(), 38);
    assert_eq!(here(&mill), [37, 39]);
}

/// Returns how many files of models are below a folder.
fn weights(folder: &Path) -> usize {
    let files = files_in(folder).into_iter();
    files.map(|path| if path.is_dir() { weights(&path) } else { usize::from(path.ends_with("w")) }).sum()
}

/// Creates a shared store; returns what calls the program with it.
fn in_store(shared: &Path) -> impl Fn(&Mill, &[&str]) -> Told + use<> {
    std::fs::create_dir(shared).expect("a folder");
    let url = format!("file://{}", shared.display());
    move |mill, args| {
        let mut command = mill.command(&[&["--store", &url, "--store-cache", "copy"], args].concat());
        Told::new(command.output().expect("a command"))
    }
}

#[test]
fn of_a_shared_store_only_the_copy_here_goes() {
    let (one, other) = (lines("keep: last"), lines("keep: last"));
    let shared = one.path("shared");
    let call = in_store(&shared);
    let run = |mill: &Mill, rounds: &str| call(mill, &["run", "pipeline.yaml", "--json", "--set", rounds]).exit(0);
    run(&one, "rounds=6");
    assert_eq!((weights(&shared), weights(&one.path("copy"))), (7, 2), "the start and six rounds; here the last");
    assert!(ran(&run(&one, "rounds=6")).is_empty());
    assert_eq!(ran(&run(&other, "rounds=7")), ["last", "look@round=6", "step@round=6"]);
    assert_eq!(weights(&other.path("copy")), 3, "the start, the model that was read, and the new one");
    let shown = call(&one, &["path", "step@round=2"]).exit(0).stdout;
    assert!(Path::new(shown.trim()).join("w").exists(), "fetched when it is asked for: {shown}");
    let audit = call(&one, &["audit", "step@round=5"]).exit(0).stdout;
    assert!(audit.contains("everything checked is as recorded"), "{audit}");
    let swept = call(&one, &["gc", "--release", "--yes"]).exit(0);
    assert!(swept.stdout.contains("released"), "{}", swept.stdout);
    assert!(weights(&one.path("copy")) < 7 && weights(&shared) == 8, "{}", swept.stdout);
}

#[test]
fn a_policy_learns_in_the_space_of_a_round_and_every_row_is_checked() {
    let learning = |keep: &str| {
        let mill = Mill::new();
        mill.write("pipeline.yaml", &LEARNT.replace("    carry: {policy", &format!("{keep}    carry: {{policy")));
        crate::harness::models::write(&mill.path("models"));
        mill.run(&["--set", "rounds=3", "step"]).exit(0);
        mill
    };
    let (whole, mill) = (learning(""), learning("    keep: last\n"));
    assert_eq!(mill.artifacts(), whole.artifacts(), "`keep` changes no bytes");
    assert_eq!(here(&mill), [2]);
    let checked = mill.call(&["audit", "step@round=2", "--replay", "--rollouts"]).exit(0).stdout;
    assert!(checked.contains("everything checked is as recorded"), "{checked}");
    let unread = mill.call(&["audit", "step@round=2", "--rollouts"]).exit(6).stdout;
    assert!(unread.contains("released"), "{unread}");
    // A forged reward of round 1 is named, whatever was released.
    let rows = mill.artifact_folder("scored@round=1", "trajectories").join("part-00000.parquet");
    let mut bytes = std::fs::read(&rows).expect("rows");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&rows, bytes).expect("forged");
    let told = mill.call(&["audit", "step@round=2"]).exit(1).stdout;
    assert!(told.contains("difference scored@round=1"), "{told}");
}

#[test]
fn mistakes_in_keep_are_told_at_their_place() {
    for (keep, place, words) in [
        ("keep: first", "10:11", "`keep` must be `last` or a map"),
        ("keep: {evry: 3}", "10:12", "did you mean `every`?"),
        ("keep: {every: 0}", "10:19", "`every` must be a whole number of at least 1"),
        ("keep: {last: 0}", "10:18", "`last` must be a whole number of at least 1"),
    ] {
        let mill = lines(keep);
        let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
        assert!(told.contains(words) && told.contains(&format!("pipeline.yaml:{place}")), "{keep}\n{told}");
    }
}

#[test]
fn rounds_are_folded_unless_all_are_wanted() {
    let mill = lines("");
    let plan = mill.call(&["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(plan.contains("step ×6") && !plan.contains("step@round=3"), "{plan}");
    let all = mill.call(&["plan", "pipeline.yaml", "--all"]).exit(0).stdout;
    assert!(all.contains("step@round=5") && !all.contains('×'), "{all}");
    let graph = mill.call(&["graph", "pipeline.yaml"]).exit(0).stdout;
    assert!(graph.contains("step ×6") && graph.matches("step").count() == 1, "{graph}");
    assert_eq!(mill.call(&["graph", "pipeline.yaml", "--all"]).exit(0).stdout.matches("step@round=").count(), 6);
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("step ×6") && told.stdout.contains("6 done"), "{}", told.stdout);
    assert!(told.stderr.contains("step@round=0") && !told.stderr.contains("step@round=4"), "{}", told.stderr);
    let told = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(told.stderr.contains("×6 rounds"), "{}", told.stderr);
    let told = mill.call(&["run", "pipeline.yaml", "--all"]).exit(0);
    assert!(told.stderr.contains("step@round=4"), "{}", told.stderr);
}

/// The loop of [`lines`] whose rows choose round 2; `more`: further fields of the loop.
fn choosing(keep: &str, more: &str) -> Mill {
    let mill = lines(keep);
    let mark = "mark: {op: sql, from: {t: given}, with: {query: \"select case when ${repeat.round} = 2 then 1.0 else 0.0 end as value, ${repeat.round} as number from t\"}}";
    let nodes = format!("{more}    nodes:\n      {mark}\n");
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replacen("    nodes:\n", &nodes, 1));
    mill
}

const BEST: &str = "    best: \"select max(value) from mark\"\n";
const PATIENCE: &str = "    best: \"select max(value) from mark\"\n    stop: {patience: 2}\n";
const WATCH: &str = "    stop: {watch: {low: \"select max(number) < 3 from mark\"}}\n";
const WHEN: &str = "    stop: {when: \"select max(number) >= 3 from mark\"}\n";

/// The fields of a loop of six rounds, and the rounds whose models stay: the one that is handed on, and the last that ran.
const ENDS: [(&str, &[usize]); 4] = [(BEST, &[2, 5]), (PATIENCE, &[2, 4]), (WATCH, &[2, 3]), (WHEN, &[3])];

/// Returns the number of lines that `last` saw in the model that the loop handed on.
fn handed_on(mill: &Mill) -> String {
    let last = mill.last_nodes().into_iter().find(|node| node.node == "last").expect("what reads the loop");
    let copy = mill.store().artifact_folder(&last.outputs["copy"].id).join("lines");
    std::fs::read_to_string(copy).expect("a copy").trim().to_owned()
}

#[test]
fn the_round_that_is_handed_on_stays_while_the_loop_runs_and_after_it() {
    for (more, stays) in ENDS {
        let mill = choosing("keep: last", more);
        let told = rounds(&mill, 6, &[]);
        let made = told.events().iter().filter(|event| event["event"] == "node_finished").count();
        assert_eq!(made, ran(&told).len(), "{more}: nothing is made twice: {}", told.stdout);
        assert_eq!(handed_on(&mill), (stays[0] + 2).to_string(), "{more}: the start and the rounds");
        assert_eq!(here(&mill), stays, "{more}");
        assert!(ran(&rounds(&mill, 6, &[])).is_empty());
        // Another choice makes the chain again and lets it go again.
        mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("= 2 then", "= 1 then"));
        rounds(&mill, 6, &[]);
        assert!(here(&mill).contains(&stays[0]) || more.contains("best"), "{more}");
        if more.contains("best") {
            assert_eq!(handed_on(&mill), "3", "{more}");
            assert!(here(&mill).contains(&1), "{more}: {:?}", here(&mill));
        }
    }
}

#[test]
fn rounds_that_are_ruled_out_go_while_the_loop_runs() {
    let mill = choosing("keep: last", PATIENCE);
    let events = rounds(&mill, 6, &[]).events();
    let at = |event: &str, node: &str| {
        let place = events.iter().position(|one| one["event"] == event && one["node"] == node);
        place.unwrap_or_else(|| panic!("{event} {node}"))
    };
    assert!(at("node_released", "step@round=1") < at("node_started", "step@round=3"), "round 0 is not beaten by it");
    assert!(at("node_released", "step@round=0") < at("node_started", "step@round=4"), "round 2 is better");
    assert!(at("node_released", "step@round=3") < at("node_finished", "last"));
}

#[test]
fn the_round_that_is_handed_on_stays_even_if_no_node_reads_it() {
    let mill = choosing("keep: last", PATIENCE);
    mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("model: rl.model", "model: start.model"));
    rounds(&mill, 6, &[]);
    assert_eq!(here(&mill), [2, 4]);
}

#[test]
fn gc_keeps_what_a_loop_hands_on_and_releases_the_middle_rounds_of_one_that_ended() {
    for (more, stays) in ENDS {
        let mill = choosing("", more);
        rounds(&mill, 6, &[]);
        let (before, made) = (mill.artifacts(), here(&mill));
        let told = mill.call(&["gc", "--release", "--yes", "--json"]).exit(0).events();
        let released = told.last().expect("a summary")["released"].as_u64().expect("a number");
        assert_eq!((released as usize, here(&mill)), (made.len() - stays.len(), stays.to_vec()), "{more}");
        assert!(ran(&rounds(&mill, 6, &[])).is_empty(), "{more}");
        assert!(ran(&rounds(&mill, 6, &["last"])).is_empty(), "{more}");
        // Asked for by its name, a round is made again with the same bytes.
        assert_eq!(ran(&rounds(&mill, 6, &["step@round=1"])), ["step@round=0", "step@round=1"], "{more}");
        let again = mill.artifacts();
        assert!(again.iter().all(|(name, id)| before.get(name) == Some(id)), "{more}: {again:?}");
        // A new node that reads what the loop hands on finds it there.
        let reads = "  more: {op: exec, from: {model: rl.model}, with: {command: [/bin/sh, look.sh, \"{model}\", \"{copy}\", more], folders: [copy]}}\nrepeat:";
        mill.call(&["gc", "--release", "--yes"]).exit(0);
        mill.write("pipeline.yaml", &mill.read("pipeline.yaml").replace("repeat:", reads));
        assert_eq!(ran(&rounds(&mill, 6, &[])), ["more"], "{more}");
    }
}

/// A shared store keeps every round: only copies on this machine go, and they are fetched again.
#[test]
fn of_a_loop_that_ended_in_a_shared_store_only_copies_go() {
    let (one, other) = (choosing("", PATIENCE), choosing("", PATIENCE));
    let shared = one.path("shared");
    let call = in_store(&shared);
    let run = |mill: &Mill, node: &[&str]| {
        call(mill, &[&["run", "pipeline.yaml", "--json", "--set", "rounds=6"], node].concat()).exit(0)
    };
    run(&one, &[]);
    assert_eq!((weights(&shared), weights(&one.path("copy"))), (6, 6), "the start and five rounds");
    let told = call(&one, &["gc", "--release", "--yes", "--json"]).exit(0).events();
    assert_eq!(told.last().expect("a summary")["released"], 3);
    assert_eq!((weights(&shared), weights(&one.path("copy"))), (6, 3), "the start, the chosen round and the last one");
    assert!(files_in(&one.path("copy").join("released")).is_empty(), "no note: nothing is lost");
    // Nothing runs: neither here nor on another machine. What is asked for is fetched.
    assert!(ran(&run(&one, &[])).is_empty() && ran(&run(&other, &[])).is_empty());
    assert!(ran(&run(&one, &["step@round=1"])).is_empty());
    assert!(ran(&run(&one, &[])).is_empty());
    let shown = call(&one, &["path", "step@round=3"]).exit(0).stdout;
    assert!(Path::new(shown.trim()).join("w").exists(), "{shown}");
    let audit = call(&other, &["audit", "last"]).exit(0).stdout;
    assert!(audit.contains("everything checked is as recorded"), "{audit}");
}

/// The descriptions of an archive are on the machine that imported it. Another one computes the outputs, once for all.
#[test]
fn what_an_archive_describes_is_computed_once_for_a_shared_store() {
    let (from, one, other) = (lines("keep: last"), lines("keep: last"), lines("keep: last"));
    rounds(&from, 4, &[]);
    from.call(&["export", "step@round=3", "last.tar.zst"]).exit(0);
    std::fs::copy(from.path("last.tar.zst"), one.path("last.tar.zst")).expect("a copy");
    let told = in_store(&one.path("shared"));
    let call = |mill: &Mill, args: &[&str]| told(mill, args).exit(0);
    let run = |mill: &Mill| ran(&call(mill, &["run", "pipeline.yaml", "--json", "--set", "rounds=4", "step"]));
    call(&one, &["import", "last.tar.zst"]);
    assert!(run(&one).is_empty());
    assert_eq!(run(&other), ["step@round=0", "step@round=1", "step@round=2"]);
    assert!(run(&lines("keep: last")).is_empty(), "known to all");
    let shown = call(&one, &["path", "step@round=1"]).stdout;
    assert!(Path::new(shown.trim()).join("w").exists(), "{shown}");
}

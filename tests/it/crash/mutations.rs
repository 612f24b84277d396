//! Tests of changes made behind the program's back: files of the store, the pipeline, sources, models. Every output,
//! cached or computed, must equal that of an empty store. The changes are drawn from a seed.
//!
//! ```text
//! MUTATIONS=200 MUTATIONS_SEED=7 cargo test --workspace --test it -- mutations:: --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use searchmill_fixtures::openai_server::{OpenAiServer, answer, search};
use serde_json::json;

use crate::harness::models;
use crate::harness::project::{Mill, Told, files_in};

const PIPELINE: &str = "\
name: mutations
params: {size: 9, top_k: 2, turns: 4, threshold: 0.1, samples: 2, tokens: 6}
nodes:
  corpus:    {op: read, with: {path: documents.jsonl, as: document}}
  chunks:    {op: chunk, from: corpus, with: {size: \"${params.size}\", count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  encoded:   {op: index, from: chunks, with: {kind: {dense: {encoder: {bert: {model: models/bert}}}}}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  hits:      {op: retrieve, from: {questions: questions, search: [bm25, encoded]}, with: {top_k: 3}}
  answers:
    op: rollout
    from: {questions: questions, search: bm25}
    with:
      policy: {endpoint: {base_url: \"${env:ENDPOINT}\", model: m}}
      samples: \"${params.samples}\"
      max_turns: \"${params.turns}\"
      search: {top_k: \"${params.top_k}\"}
  kept:      {op: filter-by-f1, from: answers, with: {threshold: \"${params.threshold}\"}}
  rows:      {op: convert-to-openai, from: kept}
  spoken:
    op: rollout
    from: {questions: questions}
    with: {policy: {model: {model: models/decoder, max_tokens: \"${params.tokens}\"}}, max_turns: 1}
  scores:    {op: evaluate, from: {trajectories: answers, questions: questions}}
  file:      {op: write, from: rows, with: {path: out/rows.jsonl}}
  found:     {op: write, from: hits, with: {path: out/hits.jsonl}}
  said:      {op: write, from: spoken, with: {path: out/spoken.jsonl}}
  scored:    {op: write, from: scores.scores, with: {path: out/scores.jsonl}}
";

/// Params set to another value for a run, so that some nodes compute from cached inputs.
const CHANGES: [&str; 6] = ["size=7", "top_k=1", "turns=2", "threshold=0.9", "samples=1", "tokens=3"];

const WORDS: [&str; 8] = ["river", "city", "the", "word", "of", "in", "Rome", "who"];

struct World {
    mill: Mill,
    server: OpenAiServer,
}

impl World {
    fn new() -> Self {
        let mill = Mill::new();
        mill.write("pipeline.yaml", PIPELINE);
        let document = |number: usize| {
            let words: Vec<&str> =
                (0..12 + number % 7).map(|word| WORDS[(number * 5 + word * 3) % WORDS.len()]).collect();
            json!({"id": format!("d{number}"), "title": format!("T{number}"), "text": format!("{}.", words.join(" "))})
        };
        mill.write("documents.jsonl", &(0..40).map(|number| format!("{}\n", document(number))).collect::<String>());
        let question = |number: usize| {
            let answers = if number.is_multiple_of(3) { json!(["Rome"]) } else { json!(["Oslo", "Rome"]) };
            json!({"id": format!("q{number}"), "question": format!("q{number}"), "golden_answers": answers})
        };
        mill.write("questions.jsonl", &(0..10).map(|number| format!("{}\n", question(number))).collect::<String>());
        std::fs::create_dir_all(mill.path("models")).expect("a folder");
        models::write(&mill.path("models"));
        let step = |number: usize| {
            let query = WORDS[number % WORDS.len()];
            (
                format!("q{number}"),
                vec![search(&[query]), answer(if number.is_multiple_of(2) { "Rome" } else { "Paris" })],
            )
        };
        Self { mill, server: OpenAiServer::start_by_turn((0..10).map(step).collect()) }
    }

    /// Runs with these params and returns the written files.
    fn run(&self, mill: &Mill, store: &Path, set: &[String]) -> (Told, BTreeMap<String, Vec<u8>>) {
        drop(std::fs::remove_dir_all(mill.path("out")));
        let mut args = vec!["run", "pipeline.yaml", "--json", "--rebuy", "--deliver-anyway"];
        for change in set {
            args.extend(["--set", change.as_str()]);
        }
        let mut command = mill.command(&args);
        command.env("ENDPOINT", self.server.base_url()).env("SEARCHMILL_STORE", store);
        let told = Told::new(command.output().expect("the program can be started"));
        let files = files_in(&mill.path("out")).into_iter();
        let read = |path: PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (name, std::fs::read(path).expect("a file"))
        };
        (told, files.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")).map(read).collect())
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for path in files_in(from) {
        let place = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &place);
        } else {
            std::fs::copy(&path, &place).expect("copied");
            let time = path.metadata().and_then(|found| found.modified()).expect("a time");
            set_time(&place, time);
        }
    }
}

fn set_time(path: &Path, time: SystemTime) {
    if let Ok(file) = std::fs::File::options().append(true).open(path) {
        drop(file.set_modified(time));
    }
}

fn all_files(folder: &Path) -> Vec<PathBuf> {
    let (folders, mut files): (Vec<_>, Vec<_>) = files_in(folder).into_iter().partition(|path| path.is_dir());
    files.extend(folders.iter().flat_map(|folder| all_files(folder)));
    files.sort();
    files
}

/// Damages one file, mostly without changing its timestamp; returns a description.
fn harm(files: &[PathBuf], chance: &mut StdRng) -> String {
    let path = &files[chance.random_range(0..files.len())];
    let time = path.metadata().and_then(|found| found.modified()).ok();
    let mut bytes = std::fs::read(path).expect("a file");
    let how = chance.random_range(0..6);
    let name = ["flip", "flip", "flip", "truncate", "delete", "exchange"][how];
    match name {
        "flip" if !bytes.is_empty() => {
            let place = chance.random_range(0..bytes.len());
            bytes[place] ^= 1 << chance.random_range(0..8);
            std::fs::write(path, &bytes).expect("written");
        }
        "truncate" => std::fs::write(path, &bytes[..chance.random_range(0..=bytes.len())]).expect("written"),
        "delete" => std::fs::remove_file(path).expect("removed"),
        "exchange" => {
            let other = &files[chance.random_range(0..files.len())];
            std::fs::copy(other, path).expect("copied");
        }
        _ => {}
    }
    if let Some(time) = time.filter(|_| chance.random_range(0..4) > 0) {
        set_time(path, time);
    }
    format!("{name} {}", path.display())
}

#[test]
fn whatever_is_changed_in_the_store_nothing_wrong_comes_out() {
    let (count, seed) = (setting("MUTATIONS", 6), setting("MUTATIONS_SEED", 1));
    let world = World::new();
    let whole = world.mill.path("whole");
    let mut right = BTreeMap::new();
    for set in std::iter::once(None).chain(CHANGES.iter().map(|change| Some((*change).to_owned()))) {
        let set: Vec<String> = set.into_iter().collect();
        let fresh = world.mill.path("fresh");
        let (told, written) = world.run(&world.mill, &fresh, &set);
        assert_eq!(told.code, 0, "{set:?}: {}", told.stderr);
        std::fs::remove_dir_all(&fresh).expect("removed");
        right.insert(set, written);
    }
    world.run(&world.mill, &whole, &[]).0.exit(0);
    let (mut wrong, mut refused, mut computed) = (Vec::new(), 0, 0);
    for number in 0..count {
        let mut chance = StdRng::seed_from_u64(seed + number);
        let store = world.mill.path("harmed");
        drop(std::fs::remove_dir_all(&store));
        copy(&whole, &store);
        let files: Vec<PathBuf> = all_files(&store).into_iter().filter(|path| !path.ends_with("format")).collect();
        let mut how: Vec<String> = (0..chance.random_range(1..4)).map(|_| harm_one(&files, &mut chance)).collect();
        let set: Vec<String> = if chance.random_range(0..3) == 0 {
            Vec::new()
        } else {
            vec![CHANGES[chance.random_range(0..CHANGES.len())].to_owned()]
        };
        let (told, written) = world.run(&world.mill, &store, &set);
        computed += usize::from(!told.ran().is_empty());
        if told.code != 0 {
            refused += 1;
            how.push(format!("exit {}", told.code));
        }
        let expected = &right[&set];
        let same = written.iter().all(|(name, bytes)| expected.get(name) == Some(bytes));
        if !same || (told.code == 0 && written.len() != expected.len()) || told.code > 5 || told.code < 0 {
            wrong.push(format!("{number} (seed {}): {set:?} {how:?}", seed + number));
        }
    }
    crate::say(&format!(
        "{count} harmed stores: {} wrong, {computed} computed something, {refused} refused",
        wrong.len()
    ));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn harm_one(files: &[PathBuf], chance: &mut StdRng) -> String {
    let there: Vec<PathBuf> = files.iter().filter(|path| path.is_file()).cloned().collect();
    harm(&there, chance)
}

/// Changes something outside the store; returns a description.
fn change(mill: &Mill, chance: &mut StdRng) -> String {
    let lines = |name: &str| mill.read(name).lines().map(str::to_owned).collect::<Vec<_>>();
    let write = |name: &str, lines: &[String]| mill.write(name, &format!("{}\n", lines.join("\n")));
    match chance.random_range(0..9) {
        0 => {
            // Other words in a document, with the same length and timestamp.
            let time = mill.path("documents.jsonl").metadata().and_then(|found| found.modified()).expect("a time");
            let mut all = lines("documents.jsonl");
            let place = chance.random_range(0..all.len());
            all[place] = if all[place].contains("river") {
                all[place].replace("river", "rover")
            } else {
                all[place].replace("rover", "river")
            };
            write("documents.jsonl", &all);
            set_time(&mill.path("documents.jsonl"), time);
            "words of a document".to_owned()
        }
        1 => {
            let mut all = lines("questions.jsonl");
            let place = chance.random_range(0..all.len());
            all[place] = if all[place].contains("Oslo") {
                all[place].replace("Oslo", "Paris")
            } else {
                all[place].replace("[\"Rome\"", "[\"Oslo\",\"Rome\"")
            };
            write("questions.jsonl", &all);
            "golden answers".to_owned()
        }
        2 => {
            let mut all = lines("questions.jsonl");
            let (one, other) = (chance.random_range(0..all.len()), chance.random_range(0..all.len()));
            all.swap(one, other);
            write("questions.jsonl", &all);
            "order of questions".to_owned()
        }
        3 => {
            let mut all = lines("documents.jsonl");
            all.remove(chance.random_range(0..all.len()));
            if all.len() < 20 {
                let fresh = World::new();
                all = fresh.mill.read("documents.jsonl").lines().map(str::to_owned).collect();
            }
            write("documents.jsonl", &all);
            "a document less".to_owned()
        }
        4 | 5 => {
            // One number of a model's weights: low bits of the mantissa of one of its last numbers, or of any.
            let model = ["bert", "decoder"][chance.random_range(0..2)];
            let path = mill.path("models").join(model).join("model.safetensors");
            let time = path.metadata().and_then(|found| found.modified()).expect("a time");
            let mut bytes = std::fs::read(&path).expect("weights");
            let place = bytes.len() - 4 * chance.random_range(1..200) + 2;
            bytes[place] ^= 1 << chance.random_range(3..7);
            std::fs::write(&path, bytes).expect("written");
            set_time(&path, time);
            format!("weights of {model}")
        }
        6 => {
            let text = mill.read("pipeline.yaml");
            let (from, to) = [
                ("count: words", "count: words, title_prefix: false"),
                ("kind: bm25}}", "kind: {bm25: {language: german}}}}"),
                ("{top_k: 3}", "{top_k: 4}"),
                ("model: m}", "model: n}"),
                ("max_turns: 1}", "max_turns: 1, system_prompt: \"the word\"}"),
            ][chance.random_range(0..5)];
            let changed = if text.contains(to) { text.replace(to, from) } else { text.replace(from, to) };
            mill.write("pipeline.yaml", &changed);
            format!("{from} or {to}")
        }
        7 => {
            let text = mill.read("pipeline.yaml");
            mill.write("pipeline.yaml", &format!("# {}\n{text}", chance.random_range(0..1000)));
            "a comment".to_owned()
        }
        _ => {
            let name = ["documents.jsonl", "questions.jsonl"][chance.random_range(0..2)];
            let text = mill.read(name);
            mill.write(name, &text);
            format!("{name} was touched")
        }
    }
}

#[test]
fn whatever_is_changed_outside_cached_is_what_a_fresh_store_gives() {
    let (count, seed) = (setting("MUTATIONS", 6), setting("MUTATIONS_SEED", 1));
    let world = World::new();
    let store = world.mill.path("store");
    world.run(&world.mill, &store, &[]).0.exit(0);
    let mut chance = StdRng::seed_from_u64(seed);
    let (mut wrong, mut cached, mut refused) = (Vec::new(), 0, 0);
    for number in 0..count {
        let how = change(&world.mill, &mut chance);
        let set: Vec<String> = if chance.random_range(0..2) == 0 {
            Vec::new()
        } else {
            vec![CHANGES[chance.random_range(0..CHANGES.len())].to_owned()]
        };
        let (told, written) = world.run(&world.mill, &store, &set);
        cached += told.nodes("node_cached").len();
        refused += u64::from(told.code != 0);
        let fresh = world.mill.path("fresh");
        let (fresh_told, expected) = world.run(&world.mill, &fresh, &set);
        // A pipeline rejected by `validate` creates no store.
        drop(std::fs::remove_dir_all(&fresh));
        if told.code != fresh_told.code || written != expected {
            wrong.push(format!("{number}: {how}, {set:?}: exit {} and {}", told.code, fresh_told.code));
        }
    }
    crate::say(&format!(
        "{count} changes outside: {} wrong, {cached} nodes came from the store, {refused} runs were refused",
        wrong.len()
    ));
    assert!(refused * 4 <= count, "{refused} of {count} runs were rejected and not compared");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

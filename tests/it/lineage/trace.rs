//! Tests of `trace`, `audit` and `diff` on a pipeline like the quickstart's, intact and tampered with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use indexmap::IndexMap;
use searchmill_engine::operator::{InputArtifact, OutputSink, PortType};
use searchmill_engine::store::{NodeRun, OutputRecord, StoreSink};
use searchmill_schemas::{Example, Question, Record, Trajectory, to_batch};
use serde_json::Value;

use crate::harness::project::{Mill, Told};

/// The source files of the pipeline: a generated world.
const WORLD: &str = "\
name: world
nodes:
  world: {op: generate-world, with: {documents: 150, questions: 24, min_hops: 2, max_hops: 3}, seed: 7}
  documents: {op: write, from: world, with: {path: data/documents.jsonl}}
  questions: {op: write, from: world.questions, with: {path: data/questions.jsonl}}
";

const PIPELINE: &str = "\
name: lineage
params: {chunk_words: 60, temperature: 2}
nodes:
  corpus:    {op: read, with: {path: data/documents.jsonl, as: document}}
  questions: {op: read, with: {path: data/questions.jsonl, as: question}}
  chunks:    {op: chunk, from: corpus, with: {size: \"${params.chunk_words}\", count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  dense:     {op: index, from: chunks, with: {kind: {dense: {encoder: hashing, factory: Flat}}}}
  hits:      {op: retrieve, from: {questions: questions, search: [bm25, dense]}, with: {top_k: 3}}
  rollouts:
    op: rollout
    from: {questions: questions, search: [bm25, dense]}
    with: {policy: {evidence: {attempts: 2}}, search: {top_k: 3}, samples: 2, max_turns: 8, system_prompt: Search first.}
  scores:    {op: evaluate, from: {trajectories: rollouts, questions: questions}}
  kept:      {op: filter-by-f1, from: rollouts, with: {threshold: 0.1}}
  balanced:
    op: rebalance
    from: kept
    with: {by: [question_type], max_repeats: 3, mode: {tempered: {temperature: \"${params.temperature}\"}}}
    seed: 7
  swift:      {op: convert-to-swift, from: balanced}
  train_file: {op: write, from: swift, with: {path: out/train.jsonl}}
";

/// Returns a project whose pipeline has run.
fn ran() -> Mill {
    let mill = Mill::new();
    mill.write("world.yaml", WORLD);
    mill.write("pipeline.yaml", PIPELINE);
    mill.call(&["run", "world.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    mill
}

fn json(told: &Told) -> Value {
    serde_json::from_str(told.stdout.trim()).unwrap_or_else(|error| panic!("{error}: {}", told.stdout))
}

/// Returns the findings that make an audit fail: node, check, place and message, one line each.
fn differences(told: &Told) -> Vec<String> {
    let page = json(told);
    assert_eq!(page["ok"], told.code == 0, "exit code and report agree");
    let findings = page["report"]["findings"].as_array().cloned().unwrap_or_default();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let line = |finding: &Value| ["node", "check", "place", "message"].map(|key| text(finding, key)).join(" | ");
    findings.iter().filter(|finding| finding["severity"] == "difference").map(line).collect()
}

fn audit(mill: &Mill, args: &[&str], code: i32) -> Told {
    mill.call(&[&["audit", "--json"], args].concat()).exit(code)
}

fn node(mill: &Mill, name: &str) -> NodeRun {
    mill.last_nodes().into_iter().find(|node| node.node == name).expect("a node of the last run")
}

/// Returns the rows of a node's output.
fn rows<R: Record>(mill: &Mill, name: &str, port: &str) -> Vec<R> {
    match mill.store().open_input(&node(mill, name).outputs[port].id).expect("an artifact") {
        InputArtifact::Rows(rows) => rows.read_all().expect("rows of that kind"),
        InputArtifact::Tree(_) => panic!("a table"),
    }
}

/// Returns the first part of a node's output.
fn part(mill: &Mill, name: &str, port: &str) -> PathBuf {
    mill.artifact_folder(name, port).join("part-00000.parquet")
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).expect("a file of the store");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).expect("the file can be written");
}

/// Commits other rows consistently.
fn commit<R: Record>(mill: &Mill, port: &str, rows: &[R]) -> OutputRecord {
    commit_batch(mill, port, PortType::Rows(R::KIND), &to_batch(rows).expect("rows"))
}

fn commit_batch(mill: &Mill, port: &str, port_type: PortType, batch: &RecordBatch) -> OutputRecord {
    let store = mill.store();
    let mut sink = StoreSink::new(&store, IndexMap::from([(port.to_owned(), port_type)]));
    sink.write(port, batch).expect("rows can be written");
    sink.commit().expect("rows can be committed").outputs[port].clone()
}

/// Makes the result record and the ledger name this output: every digest is valid, but the rows are forged.
fn forge(mill: &Mill, name: &str, port: &str, output: OutputRecord) {
    let store = mill.store();
    let run = store.run_ids().pop().expect("a run");
    let mut nodes = store.run_nodes(&run);
    let forged = nodes.iter_mut().find(|node| node.node == name).expect("the node");
    forged.outputs.insert(port.to_owned(), output.clone());
    let mut result = store.result(&forged.key.expect("its key")).expect("its result");
    result.outputs.insert(port.to_owned(), output);
    store.record(&result).expect("the record can be written");
    mill.write(&format!(".searchmill/runs/{run}/nodes.jsonl"), "");
    let record = store.run(&run).expect("its record");
    let mut ledger = store.start_run(&record).expect("a ledger");
    for node in &nodes {
        ledger.node(node).expect("a line");
    }
    ledger.finish(&record).expect("sealed anew");
}

#[test]
fn a_training_row_is_traced_to_its_sources() {
    let mill = ran();
    let example = rows::<Example>(&mill, "swift", "examples").remove(0);
    let told = json(&mill.call(&["trace", "swift", "--row", &example.id, "--json"]).exit(0));
    let found = told["rows"].as_array().expect("rows");
    let kinds = |kind: &str| found.iter().filter(|row| row["kind"] == kind).count();
    let rollout = rows::<Trajectory>(&mill, "rollouts", "trajectories");
    let first = example.id.split('~').next().expect("an id");
    let rollout = rollout.iter().find(|row| row.id == first).expect("its rollout");
    let mut shown: Vec<&str> =
        rollout.messages.iter().flat_map(|message| &message.observations).map(|seen| seen.chunk_id.as_str()).collect();
    shown.sort_unstable();
    shown.dedup();
    assert_eq!((kinds("example"), kinds("trajectory"), kinds("question")), (1, 1, 1));
    assert_eq!(kinds("chunk"), shown.len(), "every chunk that was shown");
    assert!(kinds("document") >= 1 && kinds("document") <= shown.len());
    let links = found.iter().flat_map(|row| row["parents"].as_array().expect("parents"));
    assert!(links.clone().count() > 2 && links.clone().all(|link| link["row"].is_u64()), "no parent is missing");
    let trajectory = found.iter().find(|row| row["kind"] == "trajectory").expect("a rollout");
    let turn = rollout.messages.iter().position(|message| !message.observations.is_empty()).expect("a search");
    let shown = trajectory["parents"].as_array().expect("parents").iter().find(|link| link["at"].is_array());
    let shown = shown.expect("a chunk that was shown");
    assert_eq!(shown["at"][0], serde_json::json!([turn, 0]));
    assert_eq!(shown["id"], rollout.messages[turn].observations[0].chunk_id.as_str());
    let tables: Vec<&str> =
        trajectory["places"].as_array().expect("tables").iter().filter_map(|p| p["node"].as_str()).collect();
    assert_eq!(tables, ["balanced", "kept", "rollouts"]);
    let steps = told["steps"].as_array().expect("steps");
    let step = |name: &str| steps.iter().find(|step| step["node"] == name).unwrap_or_else(|| panic!("{name}"));
    assert_eq!(step("rollouts")["params"]["system_prompt"], "Search first.");
    assert_eq!(step("rollouts")["version"], 9);
    let indexes =
        step("rollouts")["inputs"].as_array().expect("inputs").iter().filter(|input| input["type"] == "index");
    assert_eq!(indexes.count(), 2);
    assert_eq!(step("bm25")["params"]["kind"]["bm25"]["language"], "english", "the index and how it was built");
    let source = &step("corpus")["sources"][0];
    assert!(source["path"].as_str().expect("a path").ends_with("data/documents.jsonl"), "{source}");
    let digest = searchmill_engine::fingerprint::hash_file(&mill.path("data/documents.jsonl")).expect("a digest");
    assert_eq!(source["content"], digest.hex());
}

#[test]
fn a_trace_is_told_to_people() {
    let mill = ran();
    let example = rows::<Example>(&mill, "swift", "examples").remove(0);
    let text = mill.call(&["trace", "swift", "--row", &example.id]).exit(0).stdout;
    for word in
        ["rollout v9", "system_prompt=Search first.", "search index", "source /", "documents.jsonl", "kept.kept"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let text = mill.call(&["trace", "swift"]).exit(0).stdout;
    for word in [
        "swift.examples",
        "← balanced.rows",
        "─ bm25.index  index as `search`",
        "as above",
        "documents.jsonl",
        "questions.jsonl",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    // The written file holds the output of `swift`.
    let text = mill.call(&["trace", "out/train.jsonl"]).exit(0).stdout;
    assert!(text.contains("train_file.") && text.contains("← swift.examples  example rows as `input`"), "{text}");
    let text = mill.call(&["trace", "out/train.jsonl", "--row", &example.id]).exit(0).stdout;
    assert!(text.contains(&format!("example {}", example.id)), "{text}");
    for (format, word) in [("mermaid", "flowchart TD"), ("dot", "digraph lineage {")] {
        let text = mill.call(&["trace", "swift", "--format", format]).exit(0).stdout;
        assert!(text.starts_with(word) && text.contains("convert-to-swift v6"), "{text}");
        let text = mill.call(&["trace", "swift", "--row", &example.id, "--format", format]).exit(0).stdout;
        assert!(text.starts_with(word) && text.contains("trajectory "), "{text}");
    }
}

#[test]
fn a_source_is_traced_to_all_that_was_made_of_it() {
    let mill = ran();
    let told = json(&mill.call(&["trace", "data/questions.jsonl", "--json"]).exit(0));
    let names: Vec<&str> = told["steps"].as_array().expect("steps").iter().filter_map(|s| s["node"].as_str()).collect();
    for name in ["questions", "rollouts", "scores", "kept", "balanced", "swift", "train_file", "hits"] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    assert!(!names.contains(&"chunks") && !names.contains(&"bm25"), "{names:?}");
    let digest = searchmill_engine::fingerprint::hash_file(&mill.path("data/questions.jsonl")).expect("a digest").hex();
    let by_digest = json(&mill.call(&["trace", &digest[..12], "--json"]).exit(0));
    assert_eq!(by_digest["steps"], told["steps"]);
    let question = rows::<Question>(&mill, "questions", "rows").remove(0);
    let down = json(
        &mill
            .call(&["trace", "questions", "--file", "pipeline.yaml", "--down", "--row", &question.id, "--json"])
            .exit(0),
    );
    let tables = down["tables"].as_array().expect("tables");
    let table = |name: &str| tables.iter().find(|table| table["node"] == name);
    let ids = |name: &str| table(name).map(|t| t["ids"].as_array().expect("ids").len());
    assert_eq!((ids("rollouts"), ids("hits"), ids("scores")), (Some(2), Some(3), Some(2)), "{down}");
    let of_file = mill.call(&["trace", "data/questions.jsonl", "--row", &question.id, "--json"]).exit(0);
    assert_eq!(json(&of_file)["tables"], down["tables"]);
}

#[test]
fn what_cannot_be_found_is_told_with_advice() {
    let mill = ran();
    let told = mill.call(&["trace", "balancd"]).exit(2);
    assert!(told.stderr.contains("did you mean `balanced`?"), "{}", told.stderr);
    assert!(mill.call(&["trace", "swift.exampels"]).exit(2).stderr.contains("did you mean `examples`?"));
    assert!(
        mill.call(&["trace", "swift", "--row", "nobody"]).exit(2).stderr.contains("no output of `swift` has a row")
    );
    assert!(
        mill.call(&["audit", "19990101"]).exit(2).stderr.contains("there is no run, node, pin, artifact or source")
    );
    assert!(mill.call(&["diff", "1999", "latest"]).exit(2).stderr.contains("there is no run `1999`"));
    // The chunks are missing: the trace goes as far as possible and reports why it ends.
    let example = rows::<Example>(&mill, "swift", "examples").remove(0);
    std::fs::remove_dir_all(mill.artifact_folder("chunks", "chunks")).expect("removed");
    let text = mill.call(&["trace", "swift", "--row", &example.id]).exit(0).stdout;
    assert!(text.contains("not found: its upstream artifact ") && text.contains("is gone from the store"), "{text}");
    // A source that changed since it was read is reported as such.
    mill.write("data/questions.jsonl", "{}\n");
    let told = mill.call(&["trace", "data/questions.jsonl"]).exit(2);
    assert!(told.stderr.contains("it was read with the content"), "{}", told.stderr);
}

#[test]
fn a_clean_store_passes_every_audit() {
    let mill = ran();
    let told = audit(&mill, &["latest", "--replay", "--rollouts"], 0);
    assert_eq!(differences(&told), Vec::<String>::new());
    let page = json(&told);
    let nodes = page["report"]["nodes"].as_array().expect("nodes");
    let same = nodes.iter().filter(|node| node["outcome"] == "same").count();
    assert_eq!((nodes.len(), same), (13, 13), "{page}");
    for check in ["replay", "recheck"] {
        assert!(nodes.iter().any(|node| node["node"] == "rollouts" && node["check"] == check), "{check}");
    }
    assert_eq!((&page["report"]["sources"], &page["report"]["sources_unchanged"]), (&2.into(), &2.into()));
    let sampled = json(&audit(&mill, &["swift", "--replay", "--rollouts", "--sample", "5", "--seed", "3"], 0));
    let detail = |name: &str| {
        let nodes = sampled["report"]["nodes"].as_array().expect("nodes").clone();
        let node = nodes.into_iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("{name}"));
        node["detail"].as_str().expect("a detail").to_owned()
    };
    assert!(detail("chunks").starts_with("5 of 150 input rows, "), "{sampled}");
    assert!(detail("swift").ends_with("equal (seed 3)") && detail("rollouts").starts_with("5 of "), "{sampled}");
    // The text and the HTML and Markdown reports agree.
    let text = mill.call(&["audit", "swift", "--report", "audit.html"]).exit(0).stdout;
    assert!(text.contains("everything checked is as recorded"), "{text}");
    assert!(mill.read("audit.html").contains("everything checked is as recorded"));
    mill.call(&["audit", "latest", "--report", "audit.md"]).exit(0);
    assert!(mill.read("audit.md").starts_with("# Audit of run "));
}

#[test]
fn a_changed_source_is_a_note_unless_strict() {
    let mill = ran();
    let text = mill.read("data/questions.jsonl");
    mill.write("data/questions.jsonl", &(text + "\n"));
    let told = audit(&mill, &["swift"], 0);
    assert!(told.stdout.contains("the file changed since it was read"), "{}", told.stdout);
    let strict = audit(&mill, &["swift", "--strict"], 1);
    assert_eq!(differences(&strict).len(), 1);
    let replayed = audit(&mill, &["swift", "--replay"], 6);
    assert!(replayed.stdout.contains("its source `questions.jsonl` changed since it was read"), "{}", replayed.stdout);
}

#[test]
fn a_tampered_row_is_found() {
    // One changed cell, in a valid Parquet file.
    let mill = ran();
    let path = part(&mill, "swift", "examples");
    let mut examples = rows::<Example>(&mill, "swift", "examples");
    examples[1].row = examples[1].row.replace("Search first.", "Search never.");
    write_parquet(&path, &to_batch(&examples).expect("rows"));
    let found = differences(&audit(&mill, &["swift"], 1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("swift | artifact | output examples") && found[0].contains("part-00000.parquet"),
        "{found:?}"
    );
    assert!(found[0].contains("its content was changed"), "{found:?}");
    // Recomputing names the row.
    let found = differences(&audit(&mill, &["swift", "--replay"], 1));
    assert!(found.iter().any(|line| line.contains("replay") && line.contains(&examples[1].id)), "{found:?}");
    // One flipped bit, size unchanged.
    let mill = ran();
    flip(&part(&mill, "kept", "kept"));
    let found = differences(&audit(&mill, &["latest"], 1));
    assert!(found.len() == 1 && found[0].starts_with("kept | artifact | output kept"), "{found:?}");
}

fn write_parquet(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).expect("a part");
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
    writer.write(batch).expect("rows");
    writer.close().expect("written");
}

#[test]
fn a_tampered_index_is_found() {
    let mill = ran();
    let folder = mill.artifact_folder("bm25", "index");
    flip(&folder.join("chunks.bin"));
    std::fs::write(folder.join("extra"), "one more").expect("a file");
    let found = differences(&audit(&mill, &["train_file"], 1));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].starts_with("bm25 | artifact | output index") && found[0].contains("file chunks.bin"),
        "{found:?}"
    );
    assert!(found[1].contains("file extra") && found[1].contains("was added"), "{found:?}");
}

/// Returns the path of a node's result record.
fn record_path(mill: &Mill, name: &str) -> String {
    let key = node(mill, name).key.expect("a key").to_string();
    format!(".searchmill/results/{}/{key}.json", &key[..2])
}

#[test]
fn a_changed_prompt_in_a_record_is_found() {
    let mill = ran();
    let path = record_path(&mill, "rollouts");
    mill.write(&path, &mill.read(&path).replacen("Search first.", "Search last.", 1));
    let found = differences(&audit(&mill, &["swift"], 1));
    let all = found.join("\n");
    assert!(found.iter().all(|line| line.starts_with("rollouts | record | ")), "{found:?}");
    assert!(all.contains("the checksum does not fit") && all.contains("do not give its key"), "{all}");
    assert!(all.contains("param `system_prompt`"), "{all}");
    // With a valid checksum, too, the key reveals the change.
    let line = mill.read(&path).lines().next().expect("a line").replace("Search first.", "Search last.");
    let checksum = searchmill_engine::fingerprint::hash_bytes(line.as_bytes());
    mill.write(&path, &format!("{line}\n\"{checksum}\"\n"));
    let found = differences(&audit(&mill, &["swift"], 1));
    assert!(found.len() == 1 && found[0].contains("do not give its key"), "{found:?}");
    std::fs::remove_file(mill.path(&path)).expect("removed");
    let found = differences(&audit(&mill, &["latest"], 1)).join("\n");
    assert!(found.contains("rollouts | record | ") && found.contains("is gone from the store"), "{found}");
}

#[test]
fn a_replay_finds_what_was_forged_with_right_digests() {
    let mill = ran();
    let mut examples = rows::<Example>(&mill, "swift", "examples");
    let before =
        InputArtifact::clone(&mill.store().open_input(&node(&mill, "swift").outputs["examples"].id).expect("rows"));
    let InputArtifact::Rows(table) = before else { panic!("a table") };
    examples[2].row = examples[2].row.replace("Search first.", "Search never.");
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(examples.iter().map(|example| example.row.as_str())));
    let batch = table.batches().next().expect("a batch").expect("rows");
    let place = batch.schema().index_of("row").expect("a column");
    let mut columns = batch.columns().to_vec();
    columns[place] = texts;
    let forged = RecordBatch::try_new(batch.schema(), columns).expect("rows");
    let output = commit_batch(&mill, "examples", PortType::Rows(Example::KIND), &forged);
    forge(&mill, "swift", "examples", output);
    assert_eq!(differences(&audit(&mill, &["swift"], 0)), Vec::<String>::new(), "every digest is valid");
    let found = differences(&audit(&mill, &["swift", "--replay"], 1));
    assert_eq!(found.len(), 1, "{found:?}");
    let wanted = format!("swift | replay | output examples, row 2 ({}), column `row`", examples[2].id);
    assert!(found[0].starts_with(&wanted), "{found:?}");
    assert!(found[0].contains("Search never.") && found[0].contains("Search first."), "{found:?}");
    // A sample that contains the row finds it, too.
    let all = examples.len().to_string();
    let found = differences(&audit(&mill, &["swift", "--replay", "--sample", &all], 1));
    assert!(found.len() == 1 && found[0].contains(&format!("of input row `{}`", examples[2].id)), "{found:?}");
    // The file written from the true rows no longer matches the record.
    let found = differences(&audit(&mill, &["latest"], 1)).join("\n");
    assert!(found.contains("train_file | lineage | input `"), "{found}");
}

/// Changes the given turn of a rollout.
type Forgery = fn(&mut Trajectory, usize);

#[test]
fn forged_observations_are_derived_again() {
    let mill = ran();
    let truth = rows::<Trajectory>(&mill, "rollouts", "trajectories");
    let searched =
        truth.iter().position(|rollout| rollout.messages.iter().any(|message| message.observations.len() > 1));
    let searched = searched.expect("a rollout that found something");
    let turn = truth[searched].messages.iter().position(|message| message.observations.len() > 1).expect("a tool turn");
    let forgeries: [(&str, Forgery); 6] = [
        ("chunks", |rollout, turn| rollout.messages[turn].observations.swap(0, 1)),
        ("scores", |rollout, turn| rollout.messages[turn].observations[0].score += 0.5),
        ("text", |rollout, turn| rollout.messages[turn].content.push_str(" Rome is in Italy.")),
        ("system prompt", |rollout, _| "Search never.".clone_into(&mut rollout.messages[0].content)),
        ("prediction", |rollout, _| "Rome".clone_into(&mut rollout.prediction)),
        ("question", |rollout, _| rollout.golden_answers.push("Rome".to_owned())),
    ];
    for (what, change) in forgeries {
        let mut rollouts = truth.clone();
        change(&mut rollouts[searched], turn);
        let output = commit(&mill, "trajectories", &rollouts);
        forge(&mill, "rollouts", "trajectories", output);
        assert!(differences(&audit(&mill, &["rollouts"], 0)).is_empty(), "every digest is valid");
        let found = differences(&audit(&mill, &["rollouts", "--rollouts"], 1));
        let row = &truth[searched].id;
        assert_eq!(found.len(), 1, "{what}: {found:?}");
        assert!(found[0].starts_with(&format!("rollouts | recheck | output trajectories, row {row}, ")), "{found:?}");
        assert!(found[0].contains(what), "{what}: {found:?}");
        if what == "chunks" {
            assert!(found[0].contains(&format!("message {turn}, ")), "{found:?}");
        }
    }
}

#[test]
fn a_changed_param_is_all_that_a_diff_names() {
    let mill = ran();
    mill.run(&["--set", "temperature=4"]).exit(0);
    let told = json(&mill.call(&["diff", "previous", "latest", "--json"]).exit(0));
    assert_eq!(told["params"], serde_json::json!([{"name": "temperature", "from": 2, "to": 4}]));
    assert_eq!(told["about"], serde_json::json!([]));
    let nodes = told["nodes"].as_array().expect("nodes");
    let causes: Vec<&Value> = nodes.iter().filter(|node| node["follows"] == false).collect();
    assert_eq!(causes.len(), 1, "{told}");
    assert_eq!(causes[0]["node"], "balanced");
    let reasons = causes[0]["reasons"].as_array().expect("reasons");
    assert_eq!(reasons.len(), 1, "{told}");
    assert_eq!(
        (&reasons[0]["reason"], &reasons[0]["path"]),
        (&"param_changed".into(), &"mode.tempered.temperature".into())
    );
    let text = mill.call(&["diff"]).exit(0).stdout;
    assert!(text.contains("param temperature: 2 → 4") && text.contains("balanced"), "{text}");
    assert!(!text.contains("chunks") && !text.contains("bm25"), "{text}");
    mill.run(&["--set", "temperature=4"]).exit(0);
    assert!(mill.call(&["diff"]).exit(0).stdout.contains("nothing differs"));
    let runs = mill.store().run_ids();
    assert!(mill.call(&["diff", &runs[3][..2], "latest"]).exit(2).stderr.contains("begins the ids of 4 runs"));
    // A run of another pipeline in between is not the previous run.
    mill.call(&["run", "world.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    assert!(mill.call(&["diff"]).exit(0).stdout.contains("param temperature: 4 → 2"));
    assert!(mill.call(&["diff", &runs[1], &runs[3]]).exit(0).stdout.contains("param temperature: 2 → 4"));
}

#[test]
fn a_diff_shows_metrics_with_their_intervals() {
    let mill = ran();
    mill.run(&["--set", "chunk_words=12"]).exit(0);
    let told = json(&mill.call(&["diff", "--json"]).exit(0));
    let nodes = told["nodes"].as_array().expect("nodes");
    let node = |name: &str| nodes.iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("{name}: {told}"));
    assert_eq!(node("chunks")["rows"][0]["name"], "chunks");
    assert!(node("scores")["follows"].as_bool().expect("follows"));
    let metrics = node("scores")["metrics"].as_array().expect("metrics");
    let f1 = metrics.iter().find(|metric| metric["id"].as_str().is_some_and(|id| id.ends_with("/f1"))).expect("f1");
    assert!(f1["from"]["low"].is_f64() && f1["to"]["high"].is_f64(), "{f1}");
    // Samples of a question are averaged, and questions are compared in both tables.
    for (name, port) in [("rollouts", "trajectories"), ("scores", "scores")] {
        let table = &node(name)["tables"][0];
        assert_eq!((&table["port"], &table["by"], &table["both"]), (&port.into(), &"question_id".into(), &24.into()));
    }
    let text = mill.call(&["diff"]).exit(0).stdout;
    assert!(text.contains("metric of scores") && text.contains("follows, through changed inputs"), "{text}");
}

#[test]
fn a_row_of_a_repeat_is_traced_to_the_row_it_repeats() {
    let mill = ran();
    let balanced = rows::<Trajectory>(&mill, "balanced", "rows");
    let Some(repeat) = balanced.iter().find(|row| row.id.contains('~')) else {
        panic!("the pipeline is meant to repeat rows: {:?}", balanced.iter().map(|row| &row.id).collect::<Vec<_>>())
    };
    let told = json(&mill.call(&["trace", "balanced", "--row", &repeat.id, "--json"]).exit(0));
    let places = told["rows"][0]["places"].as_array().expect("places");
    assert_eq!(places[0]["id"], repeat.id.as_str());
    assert_eq!(places[0]["changed"], serde_json::json!(["id"]));
    assert_eq!(places.last().expect("a place")["id"], repeat.id.split('~').next().expect("an id"));
}

#[test]
fn a_file_that_was_written_can_be_audited() {
    let mill = ran();
    audit(&mill, &["out/train.jsonl", "--replay"], 0);
    let text = mill.read("out/train.jsonl");
    mill.write("out/train.jsonl", &text.replacen("Search first.", "Search never.", 1));
    let told = mill.call(&["audit", "out/train.jsonl"]).exit(1);
    assert!(told.stderr.contains("`train_file` wrote a file of this name with other content"), "{}", told.stderr);
}

#[test]
fn a_run_that_failed_is_audited_as_far_as_it_came() {
    let mill = ran();
    let broken = PIPELINE.replace(
        "  scores:",
        "  broken:    {op: filter, from: questions, with: {where: \"cast(question as int) > 0\"}}\n  scores:",
    );
    mill.write("pipeline.yaml", &broken);
    mill.run(&["-k"]).exit(1);
    assert_eq!(differences(&audit(&mill, &["latest", "--replay"], 6)), Vec::<String>::new());
    let told = json(&mill.call(&["diff", "--json"]).exit(0));
    assert_eq!(told["nodes"].as_array().expect("nodes").len(), 1, "{told}");
    assert_eq!((&told["nodes"][0]["node"], &told["nodes"][0]["only_in"]), (&"broken".into(), &2.into()));
}

#[test]
fn programs_named_by_records_run_only_when_allowed() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"text\": \"one\"}\n");
    let python = "import os, sys; open(os.path.join(r'FOLDER', 'ran'), 'a').write('x'); sys.stdout.buffer.write(sys.stdin.buffer.read())";
    let python = python.replace("FOLDER", &mill.path("").display().to_string());
    mill.write(
        "pipeline.yaml",
        &format!(
            "\
name: programs
nodes:
  rows: {{op: read, with: {{path: rows.jsonl, as: document}}}}
  same: {{op: exec, from: rows, with: {{command: [python3, -c, \"{python}\"], writes: [ran], as: document}}}}
"
        ),
    );
    let told = mill.run(&[]);
    assert_eq!(told.code, 0, "{}\n{}", told.stdout, told.stderr);
    assert_eq!(mill.read("ran"), "x");
    let told = audit(&mill, &["latest", "--replay"], 6);
    assert!(told.stdout.contains("it runs a program"), "{}", told.stdout);
    assert_eq!(mill.read("ran"), "x", "nothing ran");
    audit(&mill, &["latest", "--replay", "--allow-programs"], 0);
    assert_eq!(mill.read("ran"), "xx");
}

#[test]
fn nodes_that_change_nothing_are_passed_through() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"text\": \"one two\"}\n{\"id\": \"b\", \"text\": \"three\"}\n");
    mill.write(
        "pipeline.yaml",
        "\
name: through
nodes:
  rows:   {op: read, with: {path: rows.jsonl, as: document}}
  all:    {op: filter, from: rows, with: {where: \"id <> 'c'\"}}
  same:   {op: filter, from: all, with: {where: \"id <> 'd'\"}}
  chunks: {op: chunk, from: same, with: {size: 1, count: words}}
",
    );
    mill.run(&[]).exit(0);
    let artifacts = mill.artifacts();
    assert_eq!(artifacts["rows.rows"], artifacts["same.rows"], "all three are one artifact");
    let told = json(&mill.call(&["trace", "chunks", "--row", "a#1", "--json"]).exit(0));
    let places = told["rows"][1]["places"].as_array().expect("places");
    let nodes: Vec<&str> = places.iter().filter_map(|place| place["node"].as_str()).collect();
    assert_eq!(nodes, ["same", "all", "rows"]);
    let told = json(&mill.call(&["trace", "chunks", "--json"]).exit(0));
    assert_eq!(told["steps"].as_array().expect("steps").len(), 4);
    let told = json(&mill.call(&["trace", "rows", "--down", "--row", "b", "--json"]).exit(0));
    let nodes: Vec<&str> =
        told["tables"].as_array().expect("tables").iter().filter_map(|t| t["node"].as_str()).collect();
    assert_eq!(nodes, ["all", "same", "chunks"]);
    let replayed = json(&audit(&mill, &["chunks", "--replay"], 0));
    assert_eq!(replayed["report"]["nodes"].as_array().expect("nodes").len(), 4);
    // Recomputed in another order, the bytes are equal and the source is still found.
    mill.run(&["--force=rows"]).exit(0);
    let told = json(&mill.call(&["trace", "chunks", "--json"]).exit(0));
    let names: Vec<&str> = told["steps"].as_array().expect("steps").iter().filter_map(|s| s["node"].as_str()).collect();
    assert!(names.contains(&"rows") && names.contains(&"chunks"), "{names:?}");
}

#[test]
fn a_store_that_cannot_be_written_can_be_audited() {
    let mill = ran();
    std::fs::remove_dir_all(mill.store_path().join("tmp")).expect("removed");
    mill.write(".searchmill/tmp", "no folder: nothing can be made below it");
    let told = json(&audit(&mill, &["swift", "--replay", "--rollouts"], 0));
    let nodes = told["report"]["nodes"].as_array().expect("nodes");
    assert!(nodes.len() == 10 && nodes.iter().all(|node| node["outcome"] == "same"), "{told}");
}

//! Columns beyond the kind ride along through every operator, and into the files of trainers where `carry` names them.

use std::collections::BTreeSet;
use std::time::Duration;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::Float64Type;
use searchmill_engine::operator::InputArtifact;
use serde_json::Value;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::models;
use crate::harness::project::Mill;

/// Questions and documents with a column `tier`, and nodes of every operator that makes rows of other rows.
const PIPELINE: &str = "\
name: tiers
nodes:
  world:     {op: generate-world, with: {documents: 150, questions: 24}, seed: 5}
  corpus:    {op: sql, from: {d: world.documents}, with: {query: \"select *, 1.5 as tier from d\", as: document}}
  asked:     {op: sql, from: {q: world.questions}, with: {query: \"select *, length(question) * 0.5 as tier from q\", as: question}}
  other:     {op: sql, from: {q: world.questions}, with: {query: \"select * from q where false\", as: question}}
  parts:     {op: split, from: asked, with: {parts: {train: 0.7, test: 0.3}}, seed: 1}
  chunks:    {op: chunk, from: corpus, with: {size: 60, count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  hits:      {op: retrieve, from: {questions: asked, search: bm25}, with: {top_k: 2}}
  rollouts:  {op: rollout, from: {questions: asked, search: bm25}, with: {policy: evidence, samples: 2}}
  rated:     {op: difficulty, from: {trajectories: rollouts, questions: asked}}
  likely:    {op: logprob, from: few, with: {model: models/decoder}}
  rewarded:  {op: reward, from: rollouts, with: {sum: [{f1: 1}]}}
  judged:    {op: judge, from: {trajectories: few}, with: {policy: {model: {model: models/decoder, max_tokens: 4}}}, on_error: drop}
  drafts:    {op: map, from: few, with: {prompt: \"{{ question }} {{ tier }}\", policy: {model: {model: models/decoder, max_tokens: 4}}, output: draft, repairs: 0}, on_error: drop}
  weighted:  {op: weight, from: likely}
  scored:    {op: advantage, from: rewarded}
  kept:      {op: filter-by-f1, from: rollouts, with: {threshold: 0.1}}
  some:      {op: filter, from: rollouts, with: {where: \"tier > 0\"}}
  joined:    {op: join, from: {left: rollouts, right: some}, with: {on: [id], how: semi}}
  unique:    {op: dedup, from: rollouts, with: {by: [tier, question_id]}}
  similar:   {op: dedup, from: asked, with: {near: {columns: [question], minhash: {ngram: 2}}}}
  clean:     {op: decontaminate, from: {rows: asked, against: other}, with: {columns: [question], minhash: {ngram: 2}}}
  few:       {op: sample, from: rollouts, with: {n: 4, by: [tier > 30]}, seed: 3}
  balanced:  {op: rebalance, from: rollouts, with: {by: [tier > 30], rows: 12}, seed: 2}
  paired:    {op: pair, from: rewarded, with: {order_by: [sample_index asc]}}
  merged:    {op: gather, from: {a: some, b: few}, with: {columns: [part], tables: [{name: a, values: [1]}, {name: b, values: [2]}]}}
  swift:     {op: convert-to-swift, from: few}
  trl:       {op: convert-to-trl, from: few}
  openai:    {op: convert-to-openai, from: few}
  sharegpt:  {op: convert-to-sharegpt, from: few}
";

/// Operators whose rows are not made of single rows, or are as others want them: why `tier` is not in them.
const NOT_THERE: [(&str, &str); 15] = [
    ("compare", "figures of several tables; `group_by` takes any column"),
    ("convert-to-verl", "the columns are the trainer's; `carry` adds some"),
    ("decide", "a row for each round of a loop"),
    ("evaluate", "`metrics` are figures of many rows; tests of `evaluate` check `scores`"),
    ("exec", "a program says what its rows have"),
    ("export-trajectories", "files of other tools; `carry` adds some"),
    ("generate-world", "a source"),
    ("index", "a folder"),
    ("init-model", "a folder"),
    ("plot", "a folder"),
    ("read", "a source"),
    ("read-model", "a folder"),
    ("recorded-corpus", "a document is what many rollouts showed"),
    ("reflection", "figures of many rows"),
    ("train", "a folder"),
];

fn table(mill: &Mill, node: &str, port: &str) -> RecordBatch {
    let record = mill.last_nodes().into_iter().find(|found| found.node == node).expect("a node of the run");
    let InputArtifact::Rows(rows) = mill.store().open_input(&record.outputs[port].id).expect("an artifact") else {
        panic!("{node}.{port} is a folder")
    };
    let batches: Vec<_> = rows.batches().map(|batch| batch.expect("rows")).collect();
    arrow::compute::concat_batches(&rows.schema, &batches).expect("one schema")
}

#[test]
fn every_operator_passes_columns_beyond_the_kind_on() {
    let mill = Mill::new();
    mill.write("pipeline.yaml", PIPELINE);
    models::write(&mill.path("models"));
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    let nodes = mill.last_nodes();
    let shown: BTreeSet<&str> = nodes.iter().map(|node| node.operator.as_str()).collect();
    for entry in searchmill_operators::all() {
        let excused = NOT_THERE.iter().any(|(name, _)| *name == entry.name);
        let in_pipeline = shown.contains(entry.name) || entry.name == "write";
        assert!(excused || in_pipeline, "`{}` is neither in the pipeline nor in NOT_THERE", entry.name);
    }
    let outputs = ["world", "other", "bm25"];
    for node in nodes.iter().filter(|node| !outputs.contains(&node.node.as_str())) {
        for port in node
            .outputs
            .keys()
            .filter(|port| !["rejects", "dropped", "duplicates", "matches", "report"].contains(&port.as_str()))
        {
            let rows = table(&mill, &node.node, port);
            let tiers = rows.column_by_name("tier").unwrap_or_else(|| panic!("{}.{port} lost it", node.node));
            // The model says nothing that fits.
            let may_be_empty = ["judged", "drafts"].contains(&node.node.as_str());
            assert!((rows.num_rows() > 0 || may_be_empty) && tiers.null_count() == 0, "{}.{port}", node.node);
            let Some(questions) = rows.column_by_name("question") else { continue };
            let tiers = tiers.as_primitive::<Float64Type>();
            for (question, tier) in questions.as_string::<i32>().iter().zip(tiers.values()) {
                let length = question.expect("a question").chars().count() as f64;
                assert!((length * 0.5 - tier).abs() < 1e-9, "{}.{port}: {question:?} has {tier}", node.node);
            }
        }
    }
    let pairs = table(&mill, "paired", "pairs");
    for name in ["tier", "reward", "rejected_tier", "rejected_reward"] {
        assert!(pairs.column_by_name(name).is_some(), "{name}: {:?}", pairs.schema());
    }
}

fn lines(mill: &Mill, file: &str) -> Vec<Value> {
    mill.read(file).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn carried_columns_are_in_the_files_of_trainers() {
    let mill = Mill::new();
    let converters = ["swift", "trl", "openai", "sharegpt"];
    let nodes = converters.map(|name| {
        format!(
            "  {name}: {{op: convert-to-{name}, from: few, with: {{carry: [tier, question_type]}}}}\n  \
             {name}_file: {{op: write, from: {name}, with: {{path: {name}.jsonl}}}}\n"
        )
    });
    let exports = ["atif", "inspect", "verifiers", "nemo-gym"].map(|name| {
        format!(
            "  e{name}: {{op: export-trajectories, from: rewarded, with: {{format: {name}, carry: [tier]}}}}\n  \
             e{name}_files: {{op: write, from: e{name}, with: {{path: {name}}}}}\n"
        )
    });
    let more = "  kto: {op: convert-to-trl, from: paired, with: {unpaired: true, carry: [reward]}}\n  \
                kto_file: {op: write, from: kto, with: {path: kto.jsonl}}\n  \
                verl: {op: convert-to-verl, from: asked, with: {layout: verl, data_source: nq, carry: [tier]}}\n";
    let start = PIPELINE.find("  swift:").expect("the converters");
    let needs_a_model = ["likely", "judged", "drafts", "weighted"];
    let kept = |line: &&str| !needs_a_model.iter().any(|name| line.trim_start().starts_with(&format!("{name}:")));
    let before: String = PIPELINE[..start].lines().filter(kept).map(|line| format!("{line}\n")).collect();
    mill.write("pipeline.yaml", &(before + &nodes.concat() + &exports.concat() + more));
    mill.run(&[]).exit(0);
    for name in converters {
        let rows = lines(&mill, &format!("{name}.jsonl"));
        assert!(!rows.is_empty() && rows.iter().all(|row| row["tier"].is_f64() && row["question_type"].is_string()));
    }
    let held = |file: &str, pointer: &str| {
        let rows = lines(&mill, file);
        assert!(rows.iter().all(|row| row.pointer(pointer).is_some_and(Value::is_f64)), "{file}: {}", rows[0]);
    };
    held("atif/trajectories.jsonl", "/extra/carried/tier");
    held("verifiers/traces.jsonl", "/traces/0/info/carried/tier");
    held("nemo-gym/rollouts.jsonl", "/carried/tier");
    let log: Value =
        serde_json::from_str(&mill.read("inspect/1970-01-01T00-00-00+00-00_trajectories.json")).expect("JSON");
    assert!(log["samples"][0]["metadata"]["carried"]["tier"].is_f64(), "{}", log["samples"][0]);
    assert!(table(&mill, "verl", "rows").column_by_name("tier").is_some());
    let pairs = table(&mill, "paired", "pairs");
    let value = |name: &str, row: usize| pairs[name].as_primitive::<Float64Type>().value(row);
    let labelled = lines(&mill, "kto.jsonl");
    for (row, both) in labelled.chunks(2).enumerate() {
        assert_eq!((both[0]["label"].as_bool(), both[1]["label"].as_bool()), (Some(true), Some(false)));
        assert_eq!(both[0]["reward"].as_f64(), Some(value("reward", row)));
        assert_eq!(both[1]["reward"].as_f64(), Some(value("rejected_reward", row)));
    }
    assert_eq!(labelled.len(), 2 * pairs.num_rows());
}

#[test]
fn names_are_checked_against_known_columns_before_anything_runs() {
    let mill = Mill::new();
    let check = |node: &str, wanted: &str| {
        let start = PIPELINE.find("  rated:").expect("the rollouts");
        mill.write("pipeline.yaml", &format!("{}  new: {node}\n", &PIPELINE[..start]));
        let told = mill.call(&["validate", "pipeline.yaml"]);
        assert!(told.code == 2 && told.stderr.contains(wanted), "{node}: {}", told.stderr);
        assert!(told.stderr.contains("did you mean `tier`?"), "{node}: {}", told.stderr);
    };
    let none = "there is no column `teir`";
    check("{op: convert-to-trl, from: rollouts, with: {carry: [teir]}}", none);
    check("{op: convert-to-swift, from: rollouts, with: {carry: [teir]}}", none);
    check("{op: convert-to-verl, from: asked, with: {layout: verl, data_source: nq, carry: [teir]}}", none);
    check("{op: export-trajectories, from: rollouts, with: {format: atif, carry: [teir]}}", none);
    check("{op: rebalance, from: rollouts, with: {by: [teir]}}", none);
    check("{op: sample, from: rollouts, with: {n: 1, by: [teir]}}", none);
    check("{op: pair, from: rollouts, with: {order_by: [teir desc]}}", none);
    check("{op: pair, from: rollouts, with: {order_by: [turns asc], by: [teir]}}", none);
    check("{op: dedup, from: hits, with: {near: {columns: [teir]}}}", none);
    check("{op: dedup, from: chunks, with: {by: [teir]}}", none);
    check(
        "{op: decontaminate, from: {rows: asked, against: world.questions}, with: {columns: [teir], against_columns: [question]}}",
        none,
    );
    check("{op: retrieve, from: {questions: asked, search: bm25}, with: {query: teir}}", none);
    check("{op: weight, from: rollouts, with: {column: teir}}", none);
    check("{op: filter, from: parts.train, with: {where: teir > 1}}", none);
}

#[test]
fn a_changed_extra_column_pays_for_no_rollout_again() {
    let bench = Bench::new(&patient(6, Duration::ZERO));
    let text = bench.mill.read("pipeline.yaml");
    let with = |column: &str| {
        let node = format!(
            "  tiered: {{op: sql, from: {{q: questions}}, with: {{query: \"select *{column} from q\", as: question}}}}\n"
        );
        let text = text
            .replace("  answers:", &(node + "  answers:"))
            .replace("{questions: questions, search", "{questions: tiered, search");
        bench.mill.write("pipeline.yaml", &text);
        let told = bench.call(&["run", "pipeline.yaml", "answers", "--json"]).exit(0);
        assert!(told.ran().contains("answers"), "the table is put together anew: {}", told.ran());
        told.summary()["calls"].as_u64().expect("a number")
    };
    let tiers = || -> Vec<Option<f64>> {
        let rows = table(&bench.mill, "answers", "trajectories");
        let tiers = rows.column_by_name("tier").map(|tiers| tiers.as_primitive::<Float64Type>().clone());
        (0..rows.num_rows()).map(|row| tiers.as_ref().map(|tiers| tiers.value(row))).collect()
    };
    assert_eq!(with(""), 6);
    assert_eq!(tiers(), [None; 6]);
    assert_eq!(with(", 1.0 as tier"), 0);
    assert_eq!(tiers(), [Some(1.0); 6]);
    assert_eq!(with(", 2.5 as tier, 'nq' as source"), 0);
    assert_eq!(tiers(), [Some(2.5); 6]);
    assert!(table(&bench.mill, "answers", "trajectories").column_by_name("source").is_some());
    assert_eq!(with(", 'hotpotqa' as source"), 0);
    assert_eq!(tiers(), [None; 6], "a column that is gone is in no remembered row");
    assert_eq!(bench.server.count(), 6);
}

//! Tests of nodes with a matrix: named values, axes of other nodes, gathered rows, and the tables of a run.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::project::Mill;

const STUDY: &str = "\
name: study
params: {sizes: [40, 80]}
nodes:
  world:    {op: generate-world, with: {documents: 100, questions: 8, min_hops: 1, max_hops: 1}, seed: 3}
  chunks:   {op: chunk, from: world, matrix: {size: \"${params.sizes}\"}, with: {size: \"${matrix.size}\", count: words}}
  index:
    op: index
    from: chunks
    matrix:
      size: chunks
      retriever: {bm25: {kind: bm25}, dense: {kind: {dense: {encoder: {hashing: {dimensions: 64}}}}}}
    with: {kind: \"${matrix.retriever.kind}\"}
  hits:     {op: retrieve, from: {questions: world.questions, search: index}, matrix: {size: index, retriever: index, k: [2, 5]}, with: {top_k: \"${matrix.k}\"}}
  counts:   {op: sql, from: {h: hits}, with: {query: \"select size, retriever, k, count(*) as n from h group by 1, 2, 3 order by 1 desc, 2, 3\"}}
  rollouts: {op: rollout, from: {questions: world.questions, search: index}, matrix: index, with: {policy: evidence}}
  some:     {op: sample, from: rollouts, with: {n: 12}}
  swift:    {op: convert-to-swift, from: some}
  scores:   {op: evaluate, from: {trajectories: rollouts, questions: world.questions}}
";

fn study() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", STUDY);
    mill
}

fn rows(mill: &Mill, node: &str) -> Vec<Value> {
    let told = mill.call(&["show", node, "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    told.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[test]
fn an_input_takes_all_variants_as_one_table_with_typed_columns() {
    let mill = study();
    mill.call(&["validate", "pipeline.yaml"]).exit(0);
    mill.run(&[]).exit(0);
    let counts: Vec<String> = rows(&mill, "counts").iter().map(ToString::to_string).collect();
    let row = |size: u32, retriever: &str, k: u32| {
        serde_json::json!({"size": size, "retriever": retriever, "k": k, "n": 8 * k}).to_string()
    };
    let wanted = [80, 40].iter().flat_map(|size| {
        ["bm25", "dense"].into_iter().flat_map(move |retriever| [2, 5].map(|k| row(*size, retriever, k)))
    });
    assert_eq!(counts, wanted.collect::<Vec<_>>());
    let gathered = rows(&mill, "rollouts@all");
    assert_eq!(gathered.len(), 32);
    let order: Vec<_> = gathered.iter().map(|row| (row["size"].as_i64(), row["retriever"].as_str())).collect();
    let mut variants = order.clone();
    variants.dedup();
    let declared = [(40, "bm25"), (40, "dense"), (80, "bm25"), (80, "dense")];
    assert_eq!(variants, declared.map(|(size, retriever)| (Some(size), Some(retriever))));
    let ids: BTreeSet<_> = gathered.iter().map(|row| row["id"].as_str().expect("an id")).collect();
    assert!(ids.len() == 32 && ids.contains("q-000000@0~size=80,retriever=dense"), "{ids:?}");
    assert_eq!(rows(&mill, "scores").len(), 32, "a score for each rollout of each variant");
    let again = mill.run(&[]).exit(0);
    assert_eq!(again.ran(), "");
}

#[test]
fn the_key_of_a_gathered_table_is_its_variants_and_their_values() {
    let mill = study();
    mill.run(&["counts"]).exit(0);
    mill.write("pipeline.yaml", &STUDY.replace("k: [2, 5]", "k: [2, 5, 6]"));
    let told = mill.run(&["counts"]).exit(0);
    let ran = told.nodes("node_finished");
    assert_eq!(ran.len(), 6, "four new variants, the table, the query: {ran:?}");
    assert_eq!(rows(&mill, "counts").len(), 12);
    // The same tables under another name of the key are other rows.
    mill.write(
        "pipeline.yaml",
        &STUDY
            .replace("k: [2, 5]", "depth: [2, 5]")
            .replace("matrix.k}", "matrix.depth}")
            .replace(", k, count", ", depth, count"),
    );
    assert_eq!(mill.run(&["counts"]).exit(0).ran(), "counts hits@all");
    // With one value, the column is there all the same.
    mill.write("pipeline.yaml", STUDY);
    mill.run(&["counts", "--set", "sizes=[40]"]).exit(0);
    assert_eq!(rows(&mill, "counts").len(), 4);
    assert_eq!(mill.why("hits@all"), "cached, nothing changed");
}

#[test]
fn a_row_is_traced_through_a_gathered_table_to_its_own_variant() {
    let mill = study();
    mill.run(&[]).exit(0);
    let examples = rows(&mill, "swift");
    let id = examples.last().and_then(|row| row["id"].as_str()).expect("an example");
    let (own, variant) = id.split_once('~').expect("the name of a variant");
    let told = mill.call(&["trace", "swift", "--row", id]).exit(0).stdout;
    let line = told.lines().find(|line| line.contains("← rollouts@all.rows")).expect("the gathered table");
    assert!(line.contains(&format!("changed id) ← rollouts@{variant}.trajectories")), "{line}");
    let down = mill.call(&["trace", &format!("rollouts@{variant}"), "--row", own, "--down"]).exit(0).stdout;
    assert!(down.contains("rollouts@all") && down.contains(id), "{down}");
    for node in ["swift", "counts", "hits@all"] {
        let told = mill.call(&["audit", node, "--replay"]).exit(0);
        assert!(told.stdout.contains("hits@all") || node == "swift", "{}", told.stdout);
    }
}

#[test]
fn a_gathered_table_is_carried_to_another_store() {
    let (here, there) = (study(), study());
    here.run(&["counts"]).exit(0);
    let file = here.path("counts.tar.zst").display().to_string();
    here.call(&["export", "counts", &file]).exit(0);
    there.call(&["import", &file]).exit(0);
    assert_eq!(there.run(&["counts"]).exit(0).ran(), "");
    assert_eq!(rows(&there, "hits@all"), rows(&here, "hits@all"));
}

#[test]
fn all_can_be_written_and_keys_can_be_fixed() {
    let mill = Mill::new();
    let pipeline = "\
name: parts
nodes:
  world: {op: generate-world, with: {documents: 100, questions: 8}}
  few:   {op: sample, from: world.questions, matrix: {n: [2, 3], lot: [a, b]}, with: {n: \"${matrix.n}\"}}
  own:   {op: sql, from: {t: few}, matrix: {n: few}, with: {query: \"select ${matrix.n} as own, count(*) as rows, count(distinct n) as sizes from t\"}}
  every: {op: sql, from: {t: few@all}, matrix: {n: few}, with: {query: \"select ${matrix.n} as own, count(*) as rows, count(distinct n) as sizes from t\"}}
  fixed: {op: sql, from: {t: \"few@lot=b\", own: own.rows}, with: {query: \"select lot, n, count(*) as rows from t group by all order by n\"}}
  clean: {op: decontaminate, from: {rows: world.questions, against: few@all}, with: {columns: [question], minhash: {ngram: 2}}}
";
    mill.write("pipeline.yaml", pipeline);
    let told = mill.run(&[]).exit(0);
    let gathered = |node: &String| node.contains("all");
    let nodes: Vec<String> = told.nodes("node_finished").into_iter().filter(gathered).collect();
    assert_eq!(nodes, ["few@all", "few@lot=b,all", "few@n=2,all", "few@n=3,all", "own@all"]);
    let text = |node: &str| rows(&mill, node).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(text("own@n=3"), ["{\"own\":3,\"rows\":6,\"sizes\":1}"]);
    assert_eq!(text("every@n=3"), ["{\"own\":3,\"rows\":10,\"sizes\":2}"]);
    assert_eq!(text("fixed"), ["{\"lot\":\"b\",\"n\":2,\"rows\":2}", "{\"lot\":\"b\",\"n\":3,\"rows\":3}"]);
    let chosen = mill.run(&["few"]).exit(0);
    assert_eq!(chosen.cached().split(' ').count(), 5, "its variants alone, with what is before: {}", chosen.cached());
}

#[test]
fn a_query_over_gathered_rows_is_checked_before_anything_runs() {
    let mill = study();
    mill.write("pipeline.yaml", &STUDY.replace("select size,", "select sizes,"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("there is no column `sizes`") && told.contains("did you mean `size`?"), "{told}");
    mill.write("pipeline.yaml", &STUDY.replace("k: [2, 5]", "rank: [2, 5]").replace("matrix.k}", "matrix.rank}"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("the rows already have a column `rank`"), "{told}");
    let few = "  few: {op: filter, from: chunks, matrix: chunks, with: {where: \"txt = 'a'\"}}\n";
    mill.write("pipeline.yaml", &format!("{STUDY}{few}"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert_eq!(told.matches("no column `txt`").count(), 1, "both variants have it: {told}");
    let two = "name: x\nnodes:\n  a: {op: generate-world, matrix: {n: [8, 9]}, with: {documents: 100, questions: \"${matrix.n}\"}}\n  \
               i: {op: index, from: a.chunks, with: {kind: bm25}}\n";
    mill.write("pipeline.yaml", two);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("has no output `chunks`"), "{told}");
}

#[test]
fn folders_of_a_matrix_are_not_gathered() {
    let mill = study();
    let pipeline = STUDY.replace("  counts:", "  student: {op: train, from: {examples: swift, model: blank}}\n  blank: {op: init-model, from: swift, matrix: {layers: [1, 2]}, with: {layers: \"${matrix.layers}\", hidden: 16}, seed: 4}\n  counts:");
    mill.write("pipeline.yaml", &pipeline);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert!(told.contains("`model` names two whole models"), "{told}");
    assert!(told.contains("or give this node the matrix too"), "{told}");
}

#[test]
fn a_run_prints_a_table_for_each_matrix() {
    let mill = study();
    let told = mill.call(&["run", "pipeline.yaml", "hits"]).exit(0).stdout;
    let table = told.split("\nhits\n").nth(1).unwrap_or_else(|| panic!("{told}"));
    let lines: Vec<Vec<&str>> = table.lines().take(9).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["size", "retriever", "k", "state", "rows", "time"], "{told}");
    assert_eq!(lines[8][..5], ["80", "dense", "5", "done", "40"], "{told}");
    assert!(!told.contains('\u{1b}'), "no colours in a pipe");
    let again = mill.call(&["run", "pipeline.yaml", "hits"]).exit(0).stdout;
    let cached = again.lines().filter(|line| line.contains(" cached ")).count();
    assert!(cached >= 14, "{again}");
    let json = mill.run(&["hits"]).exit(0).stdout;
    assert!(json.lines().all(|line| line.starts_with('{')), "{json}");
}

#[test]
fn a_gathering_node_that_is_written_is_not_put_between() {
    let mill = Mill::new();
    mill.write("a.jsonl", "{\"id\": \"x\"}\n");
    let gather = "op: gather, matrix: {lot: [1, 2]}, from: {a: a}, with: {columns: [lot], tables: [{name: a, values: [\"${matrix.lot}\"]}]}";
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: own\nnodes:\n  a: {{op: read, with: {{path: a.jsonl, as: table}}}}\n  tagged: {{{gather}}}\n  one: {{op: \
             sql, from: {{t: \"tagged@lot=1\"}}, with: {{query: select * from t}}}}\n  all: {{op: sql, from: {{t: tagged}}, \
             with: {{query: select * from t}}}}\n"
        ),
    );
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(0);
    let told = told.stdout + &told.stderr;
    assert!(told.contains("all: takes 2 variants of `tagged`"), "{told}");
    assert!(!told.contains("one: takes"), "{told}");
}

#[test]
fn a_gathered_id_that_an_input_has_already_is_not_that_row() {
    let mill = Mill::new();
    let question = |id: &str, text: &str| {
        format!("{{\"id\": \"{id}\", \"question\": \"{text}?\", \"golden_answers\": [\"a\"]}}\n")
    };
    mill.write("one.jsonl", &(question("q7", "one") + &question("q7~size=1", "two")));
    mill.write("other.jsonl", &(question("q8", "three") + &question("q7", "four")));
    mill.write(
        "pipeline.yaml",
        "name: ids\nnodes:\n  one: {op: read, with: {path: one.jsonl, as: question}}\n  other: {op: read, with: {path: \
         other.jsonl, as: question}}\n  few: {op: sample, from: one, matrix: {size: [1, 2]}, with: {n: 2}, seed: 1}\n  last: {op: \
         filter, from: few@all, with: {where: \"true\"}}\n  both: {op: gather, from: {\"1\": one, \"2\": other}, with: {columns: \
         [k], tables: [{name: \"1\", values: [1]}, {name: \"2\", values: [2]}]}}\n",
    );
    mill.run(&[]).exit(0);
    let traced = |node: &str, row: &str| {
        let told = mill.call(&["trace", node, "--row", row, "--json"]).exit(0).stdout;
        let found: Value = serde_json::from_str(&told).expect("JSON");
        let places = found["rows"][0]["places"].as_array().cloned().unwrap_or_default();
        let text = |place: &Value, name: &str| place[name].as_str().unwrap_or_default().to_owned();
        places.iter().map(|place| format!("{} {}", text(place, "node"), text(place, "id"))).collect::<Vec<_>>()
    };
    let origin = |node: &str, row: &str| traced(node, row).last().cloned().unwrap_or_default();
    assert_eq!((origin("both", "q7~2"), origin("both", "q7~1")), ("other q7".to_owned(), "one q7".to_owned()));
    assert_eq!(origin("last", "q7~size=1"), "one q7");
    assert_eq!(origin("last", "q7~size=1~size=1"), "one q7~size=1");
    let down = mill.call(&["trace", "one", "--row", "q7~size=1", "--down"]).exit(0).stdout;
    let ids = |node: &str| {
        let line = down.lines().find(|line| line.starts_with(node)).unwrap_or_else(|| panic!("{node}: {down}"));
        line.rsplit("  ").next().unwrap_or_default().to_owned()
    };
    for node in ["few@all", "last"] {
        assert_eq!(ids(node), "q7~size=1~size=1, q7~size=1~size=2", "{down}");
    }
    assert_eq!(ids("both"), "q7~size=1~1", "{down}");
}

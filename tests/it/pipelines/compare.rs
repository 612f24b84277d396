//! `compare`, `plot`, the measures of `evaluate` and `diff` through the program.

use serde_json::Value;

use crate::harness::project::{Mill, Told};

/// Scores of six questions by a system that is right where `right` says so.
fn scores(right: &str) -> String {
    let row = |(place, mark): (usize, char)| {
        let f1 = if mark == '1' { "1.0" } else { "0.25" };
        let kind = if place < 3 { "early" } else { "late" };
        format!("{{\"id\": \"q{place}\", \"question_id\": \"q{place}\", \"f1\": {f1}, \"kind\": \"{kind}\"}}\n")
    };
    right.chars().enumerate().map(row).collect()
}

const PIPELINE: &str = "\
name: comparing
nodes:
  base: {op: read, with: {path: base.jsonl, as: table}}
  new:  {op: read, with: {path: new.jsonl, as: table}}
  compared: {op: compare, from: {base: base, new: new}, with: {group_by: [kind]}, seed: 5}
  figure: {op: plot, from: compared.metrics, with: {x: '\"group\"', y: value, low: low, high: high, title: Gains}}
";

fn compared(new: &str) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", PIPELINE);
    mill.write("base.jsonl", &scores("111000"));
    mill.write("new.jsonl", &scores(new));
    mill.run(&[]).exit(0);
    mill
}

fn lines(told: &Told) -> Vec<Value> {
    told.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect()
}

#[test]
fn two_tables_are_compared_by_question_and_group() {
    let mill = compared("011111");
    let told = mill.call(&["show", "compared.metrics", "--json", "-n", "0"]).exit(0);
    let metrics = lines(&told);
    let of = |group: &str| {
        let found = metrics.iter().find(|row| row["group"] == group);
        found.unwrap_or_else(|| panic!("no {group} in {}", told.stdout)).clone()
    };
    assert_eq!((&of("all")["value"], &of("all")["wins"], &of("all")["losses"]), (&0.25.into(), &3.into(), &1.into()));
    // 4 differences, one of another sign: the sums 4, 2 and those below 0 are as far from 0 as 2.
    assert_eq!((&of("all")["p_value"], &of("kind=late")["p_value"]), (&0.625.into(), &0.25.into()));
    assert_eq!(of("kind=late")["p_holm"], 0.5);
    let summary = mill.call(&["show", "compared"]).exit(0).stdout;
    assert!(summary.contains("Differences by kind") && summary.contains("+0.25"), "{summary}");
    let before = mill.artifacts();
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.run(&["--force"]).exit(0);
    assert_eq!(mill.artifacts(), before, "a forced run gives the same bytes");
}

#[test]
fn a_system_may_be_a_column_and_wrong_names_are_found_before_a_run() {
    let mill = compared("011111");
    let all = "  all: {op: sql, from: {b: base, n: new}, with: {query: \"select *, 'b' as s from b union all select *, 'n' as s from n\"}}\n";
    let node = "  joined: {op: compare, from: {rows: all}, with: {system: s, base: b}}\n";
    mill.write("pipeline.yaml", &format!("{PIPELINE}{all}{node}"));
    mill.run(&[]).exit(0);
    let rows = lines(&mill.call(&["show", "joined.metrics", "--json", "-n", "0"]).exit(0));
    assert_eq!((rows.len(), &rows[0]["system"], &rows[0]["value"]), (1, &"n".into(), &0.25.into()));
    for (from, to, wanted) in [
        ("base: base, new: new", "old: base, new: new", "there is no input `base`"),
        ("base: base, new: new", "base: base", "there is nothing to compare with"),
        ("{rows: all}, with: {", "{rows: compared.metrics}, with: {on: nr, ", "input `rows`: there is no column `nr`"),
        ("y: value,", "y: valeu,", "there is no column `valeu`"),
    ] {
        mill.write("pipeline.yaml", &format!("{PIPELINE}{all}{node}").replace(from, to));
        let told = mill.call(&["validate", "pipeline.yaml"]);
        assert!(told.code == 2 && told.stderr.contains(wanted), "{wanted}: {}\n{}", told.code, told.stderr);
    }
}

#[test]
fn a_diff_of_two_runs_names_the_questions_that_changed() {
    let mill = compared("111000");
    mill.write(
        "new.jsonl",
        &(scores("011100") + "{\"id\": \"q9\", \"question_id\": \"q9\", \"f1\": 1.0, \"kind\": \"late\"}\n"),
    );
    mill.run(&[]).exit(0);
    let told = mill.call(&["diff", "--json"]).exit(0);
    let found: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let nodes = found["nodes"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["node"] == "new").unwrap_or_else(|| panic!("{found}"));
    let table = &node["tables"][0];
    assert_eq!((&table["by"], &table["both"], &table["only_in"][1]), (&"question_id".into(), &6.into(), &1.into()));
    let column = &table["columns"][0];
    assert_eq!((&column["column"], &column["up"], &column["down"]), (&"f1".into(), &1.into(), &1.into()));
    // The differences are -0.75, 0.75 and four times 0: 1.96 * sqrt(2 * 0.75^2 / 5 / 6).
    let margin = column["margin"].as_f64().expect("a margin");
    assert!((margin - 0.3795).abs() < 1e-4, "{margin}");
    let ids: Vec<_> = column["largest"].as_array().expect("changes").iter().map(|one| one["id"].clone()).collect();
    assert_eq!(ids, ["q0", "q3"], "what fell comes first");
    let text = mill.call(&["diff"]).exit(0).stdout;
    assert!(text.contains("new.rows by question_id: 6 in both, 0 only in the first, 1 only in the second"), "{text}");
    assert!(text.contains("q0: 1 → 0.2500") && text.contains("+0.0000 ± 0.3795"), "{text}");
    mill.run(&[]).exit(0);
    let same: Value = serde_json::from_str(&mill.call(&["diff", "--json"]).exit(0).stdout).expect("JSON");
    assert_eq!(same["nodes"], serde_json::json!([]));
}

#[test]
fn evaluate_groups_and_measures_by_columns_that_ride_along() {
    let mill = Mill::new();
    let row = |place: usize, kind: &str| {
        format!(
            "{{\"question\": \"Q{place}?\", \"golden\": [\"a{place}\"], \"said\": \"a{}\", \"kind\": \"{kind}\"}}\n",
            place % 3
        )
    };
    mill.write("rows.jsonl", &(0..6).map(|place| row(place, if place < 3 { "x" } else { "y" })).collect::<String>());
    let node = |with: &str| {
        format!(
            "name: scores\nnodes:\n  read: {{op: read, with: {{path: rows.jsonl, as: trajectory, columns: {{golden_answers: golden, \
             prediction: said}}}}}}\n  with: {{op: sql, from: {{r: read}}, with: {{as: trajectory, query: \"select *, \
             case when metadata like '%x%' then 'x' else 'y' end as kind from r\"}}}}\n  scores: {{op: evaluate, from: with, with: {{{with}}}}}\n"
        )
    };
    let with = "group_by: [kind], measures: {words: {mean: length(prediction)}}";
    let text = node(with);
    mill.write("pipeline.yaml", &text);
    mill.run(&[]).exit(0);
    let metrics = lines(&mill.call(&["show", "scores.metrics", "--json", "-n", "0"]).exit(0));
    let value =
        |id: &str| metrics.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id}"))["value"].clone();
    assert_eq!((value("kind=x/f1"), value("kind=y/f1"), value("all/words")), (1.0.into(), 0.0.into(), 2.0.into()));
    let scores = lines(&mill.call(&["show", "scores.scores", "--json"]).exit(0));
    assert_eq!((&scores[3]["kind"], &scores[3]["words"]), (&"y".into(), &2.0.into()));
    mill.write("pipeline.yaml", &text.replace("group_by: [kind]", "group_by: [knid]"));
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2);
    assert!(
        told.stderr.contains("there is no column `knid`") && told.stderr.contains("did you mean `kind`?"),
        "{}",
        told.stderr
    );
    mill.write("pipeline.yaml", &text.replace("golden_answers: golden, prediction: said", "golden_answers: golden"));
    let told = mill.run(&[]).exit(1);
    assert!(told.stdout.contains("no record has `prediction`"), "{}", told.stdout);
}

#[test]
fn a_node_that_a_run_did_not_come_to_has_no_other_content() {
    let mill = compared("011111");
    mill.write("new.jsonl", "no JSON\n");
    mill.run(&[]);
    let runs = mill.store().run_ids();
    let [.., one, other] = runs.as_slice() else { panic!("two runs: {runs:?}") };
    let told = mill.call(&["diff", one, other]).stdout;
    let figure = told.split("figure").nth(1).expect("the plot behind the failed read");
    assert!(!figure.contains("different content"), "{told}");
}

#[test]
fn a_table_that_cannot_be_read_is_no_equal_table() {
    let mill = compared("111000");
    let first = mill.artifact_folder("new", "rows");
    mill.write("new.jsonl", &scores("011100"));
    mill.run(&[]).exit(0);
    let part = crate::harness::project::files_in(&first)
        .into_iter()
        .find(|path| path.extension().is_some_and(|end| end == "parquet"));
    let part = part.expect("a part");
    let whole = std::fs::read(&part).expect("its bytes");
    let mut permissions = std::fs::metadata(&part).expect("a file").permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    std::fs::set_permissions(&part, permissions).expect("writable");
    // The beginning holds the values, the end says where they are.
    let mut values = whole.clone();
    values[4..whole.len() / 3].fill(0xff);
    for damaged in [values, whole[..whole.len() / 2].to_vec()] {
        std::fs::write(&part, damaged).expect("damaged");
        let told = mill.call(&["diff", "--json"]).exit(0);
        let found: Value = serde_json::from_str(&told.stdout).expect("JSON");
        let node = found["nodes"].as_array().and_then(|nodes| nodes.iter().find(|node| node["node"] == "new"));
        let node = node.unwrap_or_else(|| panic!("{found}"));
        assert_eq!(node["not_compared"][0]["port"], "rows", "{node}");
        let text = mill.call(&["diff"]).exit(0).stdout;
        assert!(text.contains("new.rows cannot be compared: "), "{text}");
    }
    std::fs::remove_dir_all(&first).expect("removed");
    let text = mill.call(&["diff"]).exit(0).stdout;
    assert!(
        text.contains("new.rows cannot be compared: the artifact") && text.contains("is gone from the store"),
        "{text}"
    );
}

#[test]
fn two_nodes_of_one_run_are_compared_with_what_they_read() {
    let mill = Mill::new();
    let pipeline = "\
name: variants
nodes:
  base: {op: read, with: {path: base.jsonl, as: table}}
  kept:
    op: filter
    from: base
    matrix: {least: [0, 1]}
    with: {where: 'f1 >= ${matrix.least}'}
  marked:
    op: sql
    from: kept
    matrix: kept
    with: {query: 'SELECT question_id AS id, question_id, f1 * 2.0 AS f1 FROM input'}
  other: {op: filter, from: base, with: {where: 'f1 < 1'}}
";
    mill.write("pipeline.yaml", pipeline);
    mill.write("base.jsonl", &scores("111000"));
    mill.run(&[]).exit(0);
    let told = mill.call(&["diff", "--node", "marked@least=0", "--with", "marked@least=1", "--json"]).exit(0);
    let found: Value = serde_json::from_str(&told.stdout).expect("JSON");
    let nodes: Vec<&Value> = found["nodes"].as_array().expect("nodes").iter().collect();
    let names: Vec<_> = nodes.iter().map(|node| (&node["node"], &node["with"])).collect();
    let pair = |name: &str| (format!("{name}@least=0").into(), format!("{name}@least=1").into());
    let (kept, marked): ((Value, Value), (Value, Value)) = (pair("kept"), pair("marked"));
    assert_eq!(names, [(&kept.0, &kept.1), (&marked.0, &marked.1)], "what both read alike is not named");
    assert_eq!((&nodes[1]["follows"], &nodes[0]["follows"]), (&true.into(), &false.into()));
    assert_eq!(nodes[0]["rows"][0]["to"], 3);
    assert_eq!(nodes[1]["tables"][0]["only_in"], serde_json::json!([3, 0]));
    assert_eq!(found["of"], serde_json::json!(["marked@least=0", "marked@least=1"]));
    let text = mill.call(&["diff", "--node", "kept@least=0", "--with", "other"]).exit(0).stdout;
    assert!(text.contains("kept@least=0 → other") && text.contains("where"), "{text}");
    // A node by one of its outputs, with itself, and one that is not there.
    let text = mill.call(&["diff", "--node", "kept@least=0.rows", "--with", "other"]).exit(0).stdout;
    assert!(text.contains("kept@least=0 → other"), "{text}");
    let run = found["runs"][0].as_str().expect("a run");
    let same = mill.call(&["diff", run, "--node", "other", "--with", "other"]).exit(0).stdout;
    assert!(same.contains("nothing differs"), "{same}");
    let wrong = mill.call(&["diff", "--node", "kept", "--with", "other"]).exit(2).stderr;
    assert!(wrong.contains("has no node `kept`") && wrong.contains("`kept@least=0`"), "{wrong}");
    let alone = mill.call(&["diff", "--with", "other"]).exit(2).stderr;
    assert!(alone.contains("--node"), "{alone}");
}

//! Tests of whole pipelines: params, overrides, includes, matrices.

use std::path::Path;

use serde_json::json;

use super::*;

fn spec(text: &str, overrides: &Overrides) -> Spec {
    let mut sources = SourceMap::new();
    let reading = read_text(Path::new("p.yaml"), text, overrides, &mut sources);
    assert!(reading.problems.is_empty(), "{:#?}", reading.problems);
    reading.spec.unwrap()
}

fn set(values: &[&str]) -> Overrides {
    Overrides { set: values.iter().map(|text| (*text).to_owned()).collect(), params_files: Vec::new() }
}

fn edges(node: &NodeSpec) -> Vec<String> {
    let references = node.from.iter().flat_map(|binding| &binding.references);
    references.map(|r| r.port.as_ref().map_or(r.node.clone(), |port| format!("{}.{port}", r.node))).collect()
}

const PARAMS: &str = "params: {teacher: {model: m, key: \"${secret:K}\"}, n: 200, list: [1, 2], open: {}}\n\
    nodes: {a: {op: x, with: {t: \"${params.teacher}\", n: \"${params.n}\", s: \"n=${params.n}\", o: \"${params.open}\"}}}\n";

#[test]
fn references_keep_the_type_and_text_keeps_the_spelling() {
    let spec = spec(PARAMS, &Overrides::default());
    let teacher = json!({"model": "m", "key": "${secret:K}"});
    assert_eq!(spec.nodes[0].with.to_json(), json!({"t": teacher, "n": 200, "s": "n=200", "o": {}}));
}

#[test]
fn the_command_line_wins_with_the_same_types() {
    let spec = spec(PARAMS, &set(&["teacher.model=q: 3", "n=007", "open.new=[a, 1e-4]", "list.1=\"2\""]));
    let with = spec.nodes[0].with.to_json();
    assert_eq!(with["t"]["model"], json!("q: 3"));
    assert_eq!((&with["n"], &with["s"]), (&json!(7), &json!("n=007")));
    assert_eq!(with["o"], json!({"new": ["a", 1e-4]}));
    assert_eq!(spec.params["list"], json!([1, "2"]));
}

#[test]
fn files_of_params_are_laid_over_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("a.yaml"), folder.path().join("b.json"));
    std::fs::write(&first, "n: 1\nteacher: {model: first}\n").unwrap();
    std::fs::write(&second, "{\"teacher\": {\"model\": \"second\"}}").unwrap();
    let overrides = Overrides { set: vec!["list=[9]".into()], params_files: vec![first, second] };
    let params = spec(PARAMS, &overrides).params;
    assert_eq!(params["n"], json!(1));
    assert_eq!(params["teacher"], json!({"model": "second", "key": "${secret:K}"}));
    assert_eq!(params["list"], json!([9]));
}

#[test]
fn another_choice_replaces_and_the_same_one_merges() {
    let text =
        "params: {encoder: {hashing: {dimensions: 64, seed: 1}}, teacher: {model: m, key: k}}\nnodes: {a: {op: x}}\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("over.yaml");
    let laid = |over: &str| {
        std::fs::write(&file, over).unwrap();
        spec(text, &Overrides { set: Vec::new(), params_files: vec![file.clone()] }).params["encoder"].clone()
    };
    let bert = json!({"bert": {"model": "e5", "pooling": "cls"}});
    assert_eq!(laid("encoder: {bert: {model: e5, pooling: cls}}"), bert);
    assert_eq!(laid("encoder: {hashing: {dimensions: 8}}"), json!({"hashing": {"dimensions": 8, "seed": 1}}));
    assert_eq!(laid("encoder: hashing"), json!("hashing"));
    assert_eq!(spec(text, &set(&["encoder={bert: {model: e5, pooling: cls}}"])).params["encoder"], bert);
    let told = |overrides: &Overrides| {
        let found = read_text(Path::new("p.yaml"), text, overrides, &mut SourceMap::new()).problems;
        (found[0].message.clone(), found[0].help.clone().unwrap_or_default())
    };
    let (message, help) = told(&set(&["encoder.bert.model=e5"]));
    assert_eq!(message, "unknown param `encoder.bert`");
    assert_eq!(help, "`encoder` is `hashing`; to choose another, write `--set 'encoder={bert: {…}}'`");
    std::fs::write(&file, "teacher: {modle: x}").unwrap();
    let (message, _) = told(&Overrides { set: Vec::new(), params_files: vec![file.clone()] });
    assert_eq!(message, "unknown param `teacher.modle`", "a map whose only entry is not a map is not a choice");
}

#[test]
fn a_param_that_was_not_declared_says_where_to_declare_it() {
    let text = "params: {teacher: {base_url: u, model: m}}\nnodes: {a: {op: x}}\n";
    let told = |name: &str| {
        let found = read_text(Path::new("p.yaml"), text, &set(&[name]), &mut SourceMap::new()).problems;
        format!("{} | {}", found[0].message, found[0].help.clone().unwrap_or_default())
    };
    assert_eq!(
        told("teacher.temperature=0.3"),
        "unknown param `teacher.temperature` | declare it under `params.teacher` in p.yaml; available: `base_url`, `model`"
    );
    assert_eq!(
        told("samples=2"),
        "unknown param `samples` | declare it under `params` in p.yaml; available: `teacher`"
    );
    assert_eq!(told("teacher.modell=x"), "unknown param `teacher.modell` | did you mean `teacher.model`?");
}

/// A pipe would be waited for, a device never ends.
#[test]
fn an_include_is_a_regular_file() {
    let folder = tempfile::tempdir().unwrap();
    let main = folder.path().join("main.yaml");
    let pipe = folder.path().join("pipe.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::os::unix::net::UnixListener::bind(folder.path().join("socket.yaml")).unwrap();
    std::fs::create_dir(folder.path().join("folder.yaml")).unwrap();
    for (path, why) in [
        ("pipe.yaml", "not a regular file"),
        ("socket.yaml", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("folder.yaml", "it is a folder"),
    ] {
        std::fs::write(&main, format!("include: {path}\nnodes: {{a: {{op: read}}}}\n")).unwrap();
        let mut sources = SourceMap::new();
        let found = read(&main, &Overrides::default(), &mut sources).problems;
        let fault =
            found.iter().find(|fault| fault.code == "unreadable-file").unwrap_or_else(|| panic!("{path}: {found:?}"));
        assert!(fault.message.contains(why) && fault.labels.len() == 1, "{fault:?}");
    }
}

#[test]
fn included_nodes_take_params_and_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("part")).unwrap();
    let part = "params: {size: 1, by: words}\nnodes:\n  chunks: {op: chunk, from: corpus, with: {size: \"${params.size}\"}}\n  \
                bm25: {op: index, from: chunks.main, matrix: {k: [1, 2]}}\ninclude: deeper.yaml\n";
    std::fs::write(folder.path().join("part/part.yaml"), part).unwrap();
    std::fs::write(folder.path().join("part/deeper.yaml"), "nodes: {inner: {op: x, from: outer}}\n").unwrap();
    let main = folder.path().join("main.yaml");
    let text = "params: {n: 7}\ninclude:\n  - {path: part/part.yaml, prefix: a_, params: {size: \"${params.n}\"}}\n\
                nodes:\n  corpus: {op: read}\n  find: {op: retrieve, from: [a_chunks, a_bm25]}\n";
    std::fs::write(&main, text).unwrap();
    let mut sources = SourceMap::new();
    let spec = read(&main, &Overrides::default(), &mut sources).spec.unwrap();
    let ids: Vec<_> = spec.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(ids, ["a_inner", "a_chunks", "a_bm25@k=1", "a_bm25@k=2", "corpus", "find"]);
    assert_eq!(spec.nodes[1].with.to_json(), json!({"size": 7}));
    assert_eq!(edges(&spec.nodes[0]), ["outer"]);
    assert_eq!(edges(&spec.nodes[1]), ["corpus"]);
    assert_eq!(edges(&spec.nodes[2]), ["a_chunks.main"]);
    assert_eq!(edges(&spec.nodes[5]), ["a_chunks", "a_bm25@k=1", "a_bm25@k=2"]);
    assert!(sources.get(spec.nodes[1].id_span.file).unwrap().0.ends_with("part/part.yaml"));
}

#[test]
fn nodes_of_equal_matrices_meet_at_their_coordinates() {
    let text = "params: {lrs: [1e-4, 2e-4]}\nnodes:\n  \
                t: {op: train, matrix: {lr: \"${params.lrs}\", rank: [8, 64]}, with: {lr: \"${matrix.lr}\", to: \"r${matrix.rank}\"}}\n  \
                e: {op: evaluate, from: t.model, matrix: {rank: [8, 64], lr: \"${params.lrs}\"}}\n  \
                r: {op: report, matrix: {rank: [64]}, from: e}\n  all: {op: report, from: t}\n  \
                one: {op: report, from: [\"t@lr=2e-4,rank=8\", \"t@rank=64\"]}\n";
    let spec = spec(text, &Overrides::default());
    let node = |id: &str| spec.nodes.iter().find(|node| node.id == id).unwrap();
    assert_eq!(node("t@lr=2e-4,rank=64").with.to_json(), json!({"lr": 2e-4, "to": "r64"}));
    assert_eq!(edges(node("e@rank=8,lr=2e-4")), ["t@lr=2e-4,rank=8.model"]);
    assert_eq!(edges(node("r@rank=64")), ["e@rank=64,lr=1e-4", "e@rank=64,lr=2e-4"]);
    assert_eq!(edges(node("all")).len(), 4);
    assert_eq!(edges(node("one")), ["t@lr=2e-4,rank=8", "t@lr=1e-4,rank=64", "t@lr=2e-4,rank=64"]);
}

#[test]
fn values_of_a_matrix_can_have_names_and_fields() {
    let text = "params: {both: [a, b]}\nnodes:\n  a: {op: x}\n  b: {op: x}\n  \
                f: {op: find, matrix: {r: {one: {in: [a], k: 3}, two: {in: \"${params.both}\", k: 1e-1}}}, from: \"${matrix.r.in}\", \
                with: {k: \"${matrix.r.k}\", whole: \"${matrix.r}\", path: \"out/${matrix.r}-${matrix.r.k}\", deep: \"${matrix.r.in.0}\"}}\n";
    let spec = spec(text, &Overrides::default());
    let node = |id: &str| spec.nodes.iter().find(|node| node.id == id).unwrap();
    assert_eq!(
        node("f@r=one").with.to_json(),
        json!({"k": 3, "whole": {"in": ["a"], "k": 3}, "path": "out/one-3", "deep": "a"})
    );
    assert_eq!(node("f@r=two").with.to_json()["path"], json!("out/two-1e-1"));
    assert_eq!(edges(node("f@r=two")), ["a", "b"]);
    assert_eq!(node("f@r=two").matrix[0].name, "two");
    assert_eq!(node("f@r=two").from[0].references[0].gathers, None);
}

#[test]
fn keys_and_matrices_of_other_nodes_are_taken_over() {
    let text = "params: {sizes: [1, 2]}\nnodes:\n  \
                c: {op: x, matrix: {size: b, k: [7]}, from: b}\n  \
                b: {op: x, matrix: a, from: a, with: {s: \"${matrix.size}\"}}\n  \
                a: {op: x, matrix: {size: \"${params.sizes}\"}}\n";
    let spec = spec(text, &Overrides::default());
    let ids: Vec<_> = spec.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(ids, ["c@size=1,k=7", "c@size=2,k=7", "b@size=1", "b@size=2", "a@size=1", "a@size=2"]);
    assert_eq!(
        (edges(&spec.nodes[1]), edges(&spec.nodes[3])),
        (vec!["b@size=2".to_owned()], vec!["a@size=2".to_owned()])
    );
    assert_eq!(spec.nodes[3].with.to_json(), json!({"s": 2}));
}

#[test]
fn references_that_leave_keys_open_say_so() {
    let text = "nodes:\n  a: {op: x, matrix: {size: [1, 2], k: [3, 4]}}\n  \
                b: {op: x, from: a}\n  c: {op: x, matrix: {k: [3]}, from: a.rejects}\n  \
                d: {op: x, matrix: {k: [3]}, from: a@all}\n  e: {op: x, from: \"a@k=3,all.rejects\"}\n  \
                f: {op: x, from: \"a@k=3,size=1\"}\n";
    let spec = spec(text, &Overrides::default());
    let gathered = |place: usize| {
        let references = &spec.nodes[place].from[0].references;
        let gathers = references[0].gathers.as_ref().map(|gathers| (gathers.id.as_str(), gathers.stated));
        (gathers, references.len(), references[0].port.as_deref())
    };
    assert_eq!(gathered(4), (Some(("a@all", false)), 4, None));
    assert_eq!(gathered(5), (Some(("a@k=3,all", false)), 2, Some("rejects")));
    assert_eq!(gathered(6), (Some(("a@all", true)), 4, None));
    assert_eq!(gathered(7), (Some(("a@k=3,all", true)), 2, Some("rejects")));
    assert_eq!(gathered(8), (None, 1, None));
}

#[test]
fn a_long_pipeline_is_read() {
    let nodes: Vec<_> =
        (1..=10_000).map(|n| format!("  n{n}: {{op: x, from: n{}, with: {{k: {n}}}}}\n", n - 1)).collect();
    let spec = spec(&format!("nodes:\n{}", nodes.concat()), &Overrides::default());
    assert_eq!(spec.nodes.len(), 10_000);
    assert_eq!(edges(&spec.nodes[9_999]), ["n9999"]);
}

const LOOP: &str = "nodes: {start: {op: a}, other: {op: b, from: [step, rl.policy, step@round=1.model]}}\n\
    repeat:\n  rl:\n    rounds: 3\n    carry: {policy: start.model}\n    nodes:\n\
    \x20     batch: {op: c, from: start, seed: \"${repeat.round}\"}\n\
    \x20     step: {op: d, from: {rows: batch, model: policy}, with: {n: \"round ${repeat.round}\"}}\n\
    \x20   next: {policy: step.model}\n";

#[test]
fn rounds_are_nodes_and_hand_on_what_they_carry() {
    let spec = spec(LOOP, &Overrides::default());
    let ids: Vec<&str> = spec.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "start",
            "other",
            "batch@round=0",
            "step@round=0",
            "batch@round=1",
            "step@round=1",
            "batch@round=2",
            "step@round=2"
        ]
    );
    let node = |id: &str| spec.nodes.iter().find(|node| node.id == id).unwrap();
    assert_eq!(edges(node("step@round=0")), ["batch@round=0", "start.model"]);
    assert_eq!(edges(node("step@round=2")), ["batch@round=2", "step@round=1.model"]);
    assert_eq!((node("batch@round=2").seed, &node("step@round=2").with.to_json()["n"]), (2, &json!("round 2")));
    let other = ["step@round=0", "step@round=1", "step@round=2", "step@round=2.model", "step@round=1.model"];
    assert_eq!(edges(node("other")), other);
    assert_eq!(node("other").from[0].references[0].gathers.as_ref().unwrap().id, "step@all");
}

/// The loop with rows that decide about it.
fn deciding() -> String {
    LOOP.replace(
        "    nodes:\n",
        "    best: \"select max(a) from step.steps, batch\"\n    stop: {when: \"select count(*) > ${repeat.round} from rounds\", patience: 2, \
         watch: {b: \"select bool_and(b) from Batch\"}}\n    nodes:\n",
    )
}

#[test]
fn a_node_decides_after_each_round() {
    let spec = spec(&deciding(), &Overrides::default());
    let node = |id: &str| spec.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("{id}"));
    let decision = node("rl@round=2");
    let ports: Vec<_> = decision.from.iter().filter_map(|binding| binding.port.as_deref()).collect();
    assert_eq!(ports, ["batch", "rounds", "step.steps"]);
    assert_eq!(edges(decision), ["batch@round=2", "rl@round=1", "step@round=2.steps"]);
    assert_eq!(edges(node("rl@round=0")), ["batch@round=0", "step@round=0.steps"]);
    let with = decision.with.to_json();
    assert_eq!((&with["patience"], &with["when"]), (&json!(2), &json!("select count(*) > 2 from rounds")));
    assert_eq!((spec.loops.len(), spec.loops[0].id.as_str(), spec.loops[0].stops), (1, "rl", true));
    let last = &spec.loops[0].rounds[2];
    assert_eq!(
        (last.decision.as_str(), last.nodes.as_slice()),
        ("rl@round=2", &["batch@round=2".into(), "step@round=2".into()][..])
    );
    // What the loop hands on is of a round that is not known yet.
    let handed: Vec<bool> = node("other").from[0].references.iter().map(|reference| reference.handed_on).collect();
    assert_eq!(handed, [false, false, false, true, false]);
}

#[test]
fn each_variant_of_a_loop_decides_for_itself() {
    let text = deciding()
        .replace("    rounds: 3", "    matrix: {lr: [1, 2]}\n    rounds: 2")
        .replace(", step@round=1.model", "");
    let spec = spec(&text, &Overrides::default());
    assert_eq!(spec.loops.iter().map(|repeats| repeats.id.as_str()).collect::<Vec<_>>(), ["rl@lr=1", "rl@lr=2"]);
    let node = |id: &str| spec.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("{id}"));
    assert_eq!(edges(node("rl@lr=2,round=1")), ["batch@lr=2,round=1", "rl@lr=2,round=0", "step@lr=2,round=1.steps"]);
    let gathers = node("other").from[0].references.last().and_then(|reference| reference.gathers.clone());
    assert_eq!(gathers.map(|gathers| gathers.id).as_deref(), Some("rl.policy@all"));
}

#[test]
fn what_queries_name_is_part_of_the_loop() {
    let told = |from: &str, to: &str| {
        let mut sources = SourceMap::new();
        let reading = read_text(Path::new("p.yaml"), deciding().replace(from, to), &Overrides::default(), &mut sources);
        reading.problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>()
    };
    assert_eq!(told("step.steps, batch", "stepp"), ["there is no node `stepp` in the loop `rl`"]);
    assert_eq!(told("from Batch", "from start"), ["there is no node `start` in the loop `rl`"]);
    assert_eq!(told("stop: {when:", "stop: {wen:"), ["`stop` has no key `wen`"]);
    assert_eq!(
        told("     batch:", "     rounds: {op: c}\n      batch:"),
        ["`rounds` is the table of the rounds so far, and a node"]
    );
    let same = told("     batch:", "     rl: {op: c}\n      batch:");
    assert!(same.contains(&"duplicate node `rl`".to_owned()), "{same:?}");
}

#[test]
fn loops_have_variants_and_do_not_mix_their_rounds() {
    let text = LOOP
        .replace("    rounds: 3", "    matrix: {lr: [1, 2]}\n    rounds: 2")
        .replace("{op: a}", "{op: a, matrix: {lr: [1, 2]}}")
        .replace(", step@round=1.model", "")
        + "  later:\n    rounds: 2\n    carry: {model: rl.policy}\n    nodes: {more: {op: d, from: {rows: batch@all, model: model}, matrix: {lr: [1, 2]}}}\n    next: {model: more}\n";
    let spec = spec(&text, &Overrides::default());
    let from = |id: &str| edges(spec.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("{id}")));
    assert_eq!(from("step@lr=2,round=1"), ["batch@lr=2,round=1", "step@lr=2,round=0.model"]);
    assert_eq!(from("batch@lr=2,round=1"), ["start@lr=2"]);
    let all = ["batch@lr=1,round=0", "batch@lr=1,round=1", "batch@lr=2,round=0", "batch@lr=2,round=1"];
    assert_eq!(from("more@round=0,lr=2"), [&all[..], &["step@lr=2,round=1.model"]].concat());
    assert_eq!(from("more@round=1,lr=2").last().unwrap(), "more@round=0,lr=2");
}

#[test]
fn the_first_round_may_start_without_what_the_others_carry() {
    let text = LOOP
        .replace("{policy: start.model}", "{policy: start.model, state: null}")
        .replace("{policy: step.model}", "{policy: step.model, state: step.state}")
        .replace("model: policy}", "model: policy, state: state}");
    let spec = spec(&text, &Overrides::default());
    let from = |id: &str| edges(spec.nodes.iter().find(|node| node.id == id).unwrap());
    assert_eq!(from("step@round=0"), ["batch@round=0", "start.model"]);
    assert_eq!(from("step@round=1"), ["batch@round=1", "step@round=0.model", "step@round=0.state"]);
}

#[test]
fn a_service_has_something_to_serve_in_the_first_round() {
    let text = LOOP
        .replace("{policy: start.model}", "{policy: null}")
        .replace("{op: d,", "{op: d, services: {j: {model: policy}},")
        .replace("n: \"round ${repeat.round}\"", "url: \"${service.j}\"");
    let mut sources = SourceMap::new();
    let reading = read_text(Path::new("p.yaml"), text, &Overrides::default(), &mut sources);
    let messages: Vec<&str> = reading.problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(messages, ["the service `j` has nothing to serve in the first round"]);
}

#[test]
fn a_node_has_no_name_of_the_rounds_or_variants_of_another() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("loop.yaml"), LOOP).unwrap();
    std::fs::write(folder.path().join("variants.yaml"), "nodes: {step: {op: x, matrix: {a: [1, 2]}}}\n").unwrap();
    for (include, own) in
        [("loop.yaml", "step: {op: y}"), ("variants.yaml", "step: {op: y}"), ("loop.yaml", "rl: {op: y}")]
    {
        let text = format!("include: {include}\nnodes: {{{own}}}\n");
        let mut sources = SourceMap::new();
        let reading = read_text(&folder.path().join("p.yaml"), text, &Overrides::default(), &mut sources);
        let codes: Vec<_> = reading.problems.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, ["duplicate-node"], "{own}: {:#?}", reading.problems);
    }
}

#[test]
fn an_included_loop_is_prefixed_with_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("loop.yaml"), LOOP).unwrap();
    let text = "include: {path: loop.yaml, prefix: my_}\nnodes: {last: {op: x, from: my_rl.policy}}\n";
    let mut sources = SourceMap::new();
    let reading = read_text(&folder.path().join("p.yaml"), text, &Overrides::default(), &mut sources);
    assert!(reading.problems.is_empty(), "{:#?}", reading.problems);
    let spec = reading.spec.unwrap();
    let from = |id: &str| edges(spec.nodes.iter().find(|node| node.id == id).unwrap());
    assert_eq!(from("last"), ["my_step@round=2.model"]);
    assert_eq!(from("my_step@round=1"), ["my_batch@round=1", "my_step@round=0.model"]);
}

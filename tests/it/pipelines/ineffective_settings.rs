//! Tests of node settings without effect: each is rejected at its place.

use crate::harness::project::Mill;

fn told(node: &str) -> String {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"n\": 1}\n");
    let read = "rows: {op: read, with: {path: rows.jsonl, as: question}}";
    mill.write("pipeline.yaml", &format!("name: n\nnodes:\n  {read}\n  node: {node}\n"));
    mill.call(&["validate", "pipeline.yaml"]).stderr
}

#[test]
fn what_is_not_honoured_is_refused() {
    let exec = "{op: exec, from: rows, with: {command: [cat]}, ";
    let filter = "{op: filter, from: rows, with: {where: 'true'}, ";
    let endpoint = "{op: rollout, from: rows, with: {policy: {endpoint: {base_url: 'http://h/v1', model: m}}}, ";
    let teacher = "{op: rollout, from: rows, with: {policy: evidence}, ";
    for (node, setting, why) in [
        (exec, "retry: {max_attempts: 3}", "`retry` changes nothing here: `exec` runs its program once"),
        (filter, "retry: {max_attempts: 3}", "`retry` changes nothing here"),
        (teacher, "retry: {max_attempts: 3}", "`retry` changes nothing here"),
        (exec, "retry: {max_attempts: 3}", "add the param `repeatable: true`"),
        (exec, "on_error: drop", "`on_error` changes nothing here"),
        (filter, "on_error: fail", "`on_error` changes nothing here"),
        (exec, "resources: {concurrency: 4}", "`concurrency` changes nothing here"),
        (filter, "resources: {gpus: 1}", "`gpus` changes nothing here"),
        (filter, "resources: {fallback: cpu}", "`fallback` changes nothing here"),
        (filter, "resources: {timeout: 3s}", "`timeout` changes nothing here"),
        (endpoint, "resources: {isolate: true}", "`isolate` changes nothing here"),
    ] {
        let said = told(&format!("{node}{setting}}}"));
        assert!(said.contains(why) && said.contains("not-honoured"), "{node}{setting}: {said}");
    }
}

#[test]
fn what_is_honoured_is_taken() {
    let teacher = "{op: rollout, from: rows, with: {policy: evidence}, ";
    let endpoint = "{op: rollout, from: rows, with: {policy: {endpoint: {base_url: 'http://h/v1', model: m}}}, ";
    let exec = "{op: exec, from: rows, with: {command: [cat]}, ";
    let repeatable = "{op: exec, from: rows, with: {command: [cat], repeatable: true}, ";
    let filter = "{op: filter, from: rows, with: {where: 'true'}, ";
    for (node, setting) in [
        (endpoint, "retry: {max_attempts: 3}, on_error: fail, resources: {concurrency: 4, threads: 1}"),
        (teacher, "on_error: drop, resources: {gpus: 1, fallback: cpu, timeout: 3s}"),
        (repeatable, "retry: {max_attempts: 3, backoff: 1s}"),
        (exec, "on_error: dead_letter, resources: {gpus: 1, memory: 1GiB}"),
        (filter, "resources: {threads: 2, isolate: true, timeout: 3s, gpus: 0}"),
    ] {
        let said = told(&format!("{node}{setting}}}"));
        assert!(!said.contains("not-honoured"), "{node}{setting}: {said}");
    }
}

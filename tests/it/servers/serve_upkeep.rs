//! Tests of what keeps `serve env` running for long: reloads, the journal, limits, the OpenAPI document.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::serve_env::{DOCUMENTS, SMALL, Server, project};

#[test]
fn a_new_index_replaces_the_old_one_without_a_lost_request() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let old = server.get("/health").1;
    let (status, _, same) = server.post("/reload", &json!({}));
    assert_eq!((status, &same["changed"]), (200, &json!(false)), "{same}");
    let more = r#"{"id": "oslo", "title": "Oslo", "text": "The capital of Norway."}"#;
    mill.write("documents.jsonl", &format!("{DOCUMENTS}{more}\n"));
    mill.run(&[]).exit(0);
    assert_eq!(server.ask("/search", json!({"query": "Norway"})), json!([]), "nothing changes by itself");
    let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let new = mill.artifacts()["bm25.index"].clone();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let client = reqwest::Client::new();
                let runtime = tokio::runtime::Runtime::new().expect("a runtime");
                while !done.load(Ordering::Relaxed) {
                    let request = client.post(server.url("/search")).json(&json!({"query": "Norway"}));
                    let (status, digest, found) = runtime.block_on(super::serve_env::told(request));
                    let is_new = found.as_array().is_some_and(|found| found.len() == 1);
                    assert!(status == 200 && digest == if is_new { &*new } else { &*old }, "{status} {digest} {found}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (status, _, changed) = server.post("/reload", &json!({}));
        assert_eq!((status, &changed["changed"]), (200, &json!(true)), "{changed}");
        assert_eq!((&changed["indexes"][0]["digest"], &changed["indexes"][0]["chunks"]), (&json!(new), &json!(5)));
        std::thread::sleep(Duration::from_millis(200));
        done.store(true, Ordering::Relaxed);
    });
    assert!(asked.load(Ordering::Relaxed) > 4);
    assert_eq!(server.ask("/search", json!({"query": "Norway"}))[0]["id"], "oslo#0");
    // A signal does the same; an index that cannot be opened leaves the present one.
    mill.write("documents.jsonl", DOCUMENTS);
    mill.run(&[]).exit(0);
    server.signal("-HUP");
    let back = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        server.get("/health").1 == old
    });
    assert!(back, "the signal was heard");
}

#[test]
fn an_index_that_is_gone_leaves_the_present_one() {
    let mill = project(SMALL);
    let folder = mill.artifact_folder("bm25", "index");
    let copied = std::process::Command::new("cp").arg("-r").arg(&folder).arg(mill.path("copy")).status().expect("cp");
    assert!(copied.success());
    let server = Server::start(&mill, &["./copy"], None);
    std::fs::rename(mill.path("copy"), mill.path("moved")).expect("moved");
    let (status, detail) = server.refused("/reload", json!({}));
    assert!(status == 500 && detail.contains("there is no folder ./copy"), "{status} {detail}");
    assert_eq!(server.ask("/search", json!({"query": "Tiber"}))[0]["id"], "rome#0");
}

#[test]
fn the_journal_has_every_search() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25", "--journal", "journal.jsonl", "--max-queries", "3"], None);
    server.ask("/retrieve", json!({"queries": ["Tiber", "Seine\n"], "topk": 1}));
    server.ask(
        "/mcp",
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "search", "arguments": {"query": "fable"}}}),
    );
    server.get("/api/search?query=&k=2");
    server.refused("/batch_search", json!({"query": ["1", "2", "3", "4"]}));
    let lines: Vec<Value> =
        mill.read("journal.jsonl").lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let parts = |line: &Value| (line["route"].clone(), line["queries"].clone(), line["ids"].clone());
    assert_eq!(
        lines.iter().map(parts).collect::<Vec<_>>(),
        [
            (json!("/retrieve"), json!(["Tiber", "Seine\n"]), json!([["rome#0"], ["paris#0"]])),
            (json!("/mcp"), json!(["fable"]), json!([["plain#0"]])),
            (json!("/api/search"), json!([""]), json!([[]])),
        ]
    );
    for line in &lines {
        assert_eq!(line["index"], mill.artifacts()["bm25.index"]);
        assert!(line["time"].as_f64().is_some_and(|time| time > 1.7e9) && line["top_k"].is_u64(), "{line}");
    }
    let told = mill.call(&["serve", "env", "bm25", "--listen", "127.0.0.1:0", "--journal", "nowhere/j.jsonl"]);
    assert!(told.code == 2 && told.stderr.contains("cannot write the journal"), "{}", told.stderr);
}

#[test]
fn what_is_too_large_is_rejected_in_words() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let many = |count: usize| -> Vec<String> { (0..count).map(|number| format!("capital {number}")).collect() };
    for (path, body, about) in [
        ("/retrieve", json!({"queries": many(10_000)}), "found 10000 queries in one request (limit 8192)"),
        (
            "/batch_search",
            json!({"query": many(300), "top_n": 1000}),
            "300 queries × 1000 documents are more than 262144",
        ),
    ] {
        let (status, detail) = server.refused(path, body);
        assert!(status == 413 && detail.contains(about), "{path}: {status} {detail}");
    }
    let wide = Server::start(&mill, &["bm25", "--max-queries", "10000"], None);
    let answer = wide.ask("/retrieve", json!({"queries": many(10_000), "topk": 1}));
    assert!(
        answer["result"]
            .as_array()
            .is_some_and(|lists| lists.len() == 10_000 && lists.iter().all(|l| l[0].is_object()))
    );
    // A query of 1 MB is searched.
    let long = format!("Tiber {}", "capital ".repeat(1 << 17));
    assert_eq!(server.ask("/search", json!({"query": long, "top_n": 1}))[0]["id"], "rome#0");
    let told = mill.call(&["serve", "env", "bm25", "--listen", "127.0.0.1:0", "--max-documents", "0"]);
    assert!(told.code == 2 && told.stderr.contains("--max-documents"), "{}", told.stderr);
}

#[test]
fn an_index_that_does_not_fit_is_not_loaded() {
    let dense =
        SMALL.replace("{kind: bm25}", "{kind: {dense: {encoder: {hashing: {dimensions: 65536}}, factory: Flat}}}");
    let mill = project(&dense);
    let told = mill.call(&["serve", "env", "bm25", "--listen", "127.0.0.1:0", "--memory-mib", "0"]);
    assert_eq!(told.code, 2, "{}", told.stderr);
    assert!(told.stderr.contains("need about 2 MiB of memory, available are 0 MiB"), "{}", told.stderr);
    let server = Server::start(&mill, &["bm25", "--memory-mib", "2"], None);
    assert_eq!(server.ask("/search", json!({"query": "Tiber"}))[0]["id"], "rome#0");
}

#[test]
fn the_openapi_document_lists_the_routes() {
    let mill = super::serve_episodes::project();
    let server = Server::start(&mill, &["bm25", "--questions", "questions"], None);
    let document = server.get("/openapi.json").2;
    assert_eq!((&document["openapi"], &document["info"]["title"]), (&json!("3.1.0"), &json!("searchmill")));
    for route in server.get("/").2["routes"].as_array().expect("routes") {
        let (method, path) = (route["method"].as_str().expect("text").to_lowercase(), route["path"].as_str());
        let operation = &document["paths"][path.expect("text")][&method];
        assert!(operation["operationId"].is_string(), "{route}");
        // A route that is listed is served.
        let sent =
            server.client.request(method.to_uppercase().parse().expect("a method"), server.url(path.expect("text")));
        if path != Some("/sse") {
            let (status, _, answer) = server.runtime.block_on(super::serve_env::told(sent));
            assert!(![404, 405, 500].contains(&status), "{route}: {status} {answer}");
        }
    }
    let text = document.to_string();
    for part in text.split("#/components/schemas/").skip(1) {
        let name = part.split('"').next().expect("a name");
        assert!(document["components"]["schemas"][name].is_object(), "{name}");
    }
    let bare = Server::start(&mill, &["bm25"], None);
    assert!(bare.get("/openapi.json").2["paths"].get("/reset").is_none());
}

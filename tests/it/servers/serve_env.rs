//! Tests of `serve env`: the retrieval APIs of a real process over real indexes, by HTTP.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::project::Mill;

pub(crate) const DOCUMENTS: &str = r#"{"id": "rome", "title": "Rome", "text": "The capital of Italy, on the Tiber."}
{"id": "paris", "title": "Paris", "text": "The capital of France.\nIt is on the Seine."}
{"id": "att", "title": "AT&T", "text": "A telephone company, #1 in C++ history."}
{"id": "plain", "text": "A fable without a heading."}
"#;

pub(crate) const SMALL: &str = "\
name: small
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 60, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
";

const WORLD: &str = "\
name: world
nodes:
  world:  {op: generate-world, with: {documents: 200, questions: 60}, seed: 5}
  chunks: {op: chunk, from: world, with: {size: 40, count: words}}
  larger: {op: chunk, from: world, with: {size: 80, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  dense:  {op: index, from: chunks, with: {kind: {dense: {encoder: hashing, factory: Flat}}}}
  other:  {op: index, from: larger, with: {kind: bm25}}
  hits:   {op: retrieve, from: {questions: world.questions, search: bm25}, with: {top_k: 3}}
  fused:  {op: retrieve, from: {questions: world.questions, search: [bm25, dense]}, with: {top_k: 10, pool: 20}}
  mixed:  {op: retrieve, from: {questions: world.questions, search: [dense, other]}, with: {top_k: 5, fusion: {weighted: {weights: [0.3, 0.7]}}}}
";

/// Returns a project that ran this pipeline.
pub(crate) fn project(pipeline: &str) -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", DOCUMENTS);
    mill.write("pipeline.yaml", pipeline);
    mill.run(&[]).exit(0);
    mill
}

/// A running server; it is killed when the test ends.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) base: String,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) client: reqwest::Client,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Status, header with the digests, and JSON of an answer.
pub(crate) type Told = (u16, String, Value);

pub(crate) async fn told(request: reqwest::RequestBuilder) -> Told {
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    let digests = answer.headers().get("x-searchmill-index").map(|digests| digests.to_str().expect("text").to_owned());
    assert_eq!(digests.is_some(), ![401, 403].contains(&status), "{status}: who is not let in learns no digest");
    let digests = digests.unwrap_or_default();
    let retry = answer.headers().get("retry-after").map(|seconds| seconds.to_str().expect("text").to_owned());
    assert_eq!(retry, [429, 503].contains(&status).then(|| "1".to_owned()), "{status}");
    let text = answer.text().await.expect("a body");
    (status, digests, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

impl Server {
    pub(crate) fn start(mill: &Mill, args: &[&str], token: Option<&str>) -> Self {
        let args = [&["serve", "env"], args].concat();
        let listen = if args.contains(&"--listen") { vec![] } else { vec!["--listen", "127.0.0.1:0"] };
        let mut command = mill.command(&[args, listen].concat());
        command.env_remove("SEARCHMILL_TOKEN").envs(token.map(|token| ("SEARCHMILL_TOKEN", token)));
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let base = line.split(" at ").nth(1).unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { child, base, runtime, client: reqwest::Client::new() }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Told {
        self.runtime.block_on(told(self.client.post(self.url(path)).json(body)))
    }

    pub(crate) fn ask(&self, path: &str, body: Value) -> Value {
        let (status, _, answer) = self.post(path, &body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    /// Returns status and detail of a rejected request.
    pub(crate) fn refused(&self, path: &str, body: Value) -> (u16, String) {
        let (status, _, answer) = self.post(path, &body);
        (status, answer["detail"].as_str().unwrap_or_else(|| panic!("{path} {body}: {answer}")).to_owned())
    }

    pub(crate) fn get(&self, path: &str) -> Told {
        self.runtime.block_on(told(self.client.get(self.url(path))))
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill");
        assert!(sent.success());
    }

    pub(crate) fn address(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// Sends this text as it is, and returns the whole answer.
    pub(crate) fn raw(&self, text: &str) -> String {
        let mut stream = TcpStream::connect(self.address()).expect("a connection");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

fn scores(answer: &Value) -> Vec<f64> {
    answer.as_array().expect("scores").iter().map(|score| score.as_f64().expect("a number")).collect()
}

#[test]
fn every_route_answers_in_the_shape_of_its_client() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let rome = json!({"id": "rome#0", "contents": "Rome\nThe capital of Italy, on the Tiber."});
    let paris = json!({"id": "paris#0", "contents": "Paris\nThe capital of France.\nIt is on the Seine."});

    assert_eq!(server.ask("/search", json!({"query": "capital of Italy"})), json!([rome, paris]));
    let scored = server.ask("/search", json!({"query": "capital of Italy", "top_n": 2, "return_score": true}));
    assert_eq!((scored.as_array().map(Vec::len), &scored[0]), (Some(2), &json!([rome, paris])));
    let known = scores(&scored[1]);
    assert!(known.len() == 2 && known[0] > known[1] && known[1] > 0.0, "{known:?}");

    let many = json!({"query": ["Italy", "", "capital of Italy", "  "], "top_n": 5});
    assert_eq!(server.ask("/batch_search", many), json!([[rome], [], [rome, paris], []]));
    let many = json!({"query": ["capital of Italy", ""], "return_score": true});
    assert_eq!(server.ask("/batch_search", many), json!([[[rome, paris], []], [known, []]]));
    assert_eq!(server.ask("/batch_search", json!({"query": []})), json!([]));

    let retrieve = json!({"queries": ["capital of Italy", "Seine"], "topk": 1, "return_scores": true});
    let seine = scores(&server.ask("/search", json!({"query": "Seine", "return_score": true}))[1])[0];
    assert_eq!(
        server.ask("/retrieve", retrieve),
        json!({"result": [[{"document": rome, "score": known[0]}], [{"document": paris, "score": seine}]]})
    );
    // The original fails here, or mixes documents and scores up.
    let bare = json!({"queries": ["capital of Italy", "Seine"]});
    assert_eq!(server.ask("/retrieve", bare), json!({"result": [[rome, paris], [paris]]}));

    assert_eq!(
        server.ask("/queries", json!({"queries": ["capital of Italy", "fable", " "], "k": 5})),
        json!({"queries": ["capital of Italy", "fable", " "], "answers": [
            ["0\tRome   The capital of Italy, on the Tiber.", "1\tParis   The capital of France. It is on the Seine."],
            ["3\t   A fable without a heading."],
            []]})
    );

    let (status, digest, colbert) = server.get("/api/search?query=capital%20of%20Italy&k=20");
    let total = known[0].exp() + known[1].exp();
    let probabilities = [&colbert["topk"][0]["prob"], &colbert["topk"][1]["prob"]].map(|prob| prob.as_f64().unwrap());
    for (found, score) in probabilities.iter().zip(&known) {
        assert!((found - score.exp() / total).abs() < 1e-12, "{probabilities:?}");
    }
    let expected = json!({"query": "capital of Italy", "topk": [
        {"text": "Rome | The capital of Italy, on the Tiber.", "pid": 0, "rank": 1, "score": known[0],
            "prob": probabilities[0]},
        {"text": "Paris | The capital of France. It is on the Seine.", "pid": 1, "rank": 2, "score": known[1],
            "prob": probabilities[1]}]});
    assert_eq!((status, colbert), (200, expected));

    assert_eq!(digest, mill.artifacts()["bm25.index"]);
    assert_eq!(server.get("/health").2, json!({"status": "healthy", "retrievers": {"total": 1, "available": 1}}));
    let page = server.get("/").2;
    assert_eq!(page["indexes"], json!([{"name": "bm25", "digest": digest, "chunks": 4}]));
    assert_eq!((&page["name"], &page["version"]), (&json!("searchmill"), &json!(env!("CARGO_PKG_VERSION"))));
    let routes: Vec<&str> =
        page["routes"].as_array().expect("routes").iter().filter_map(|route| route["path"].as_str()).collect();
    for path in ["/search", "/batch_search", "/health", "/retrieve", "/queries", "/api/search", "/metrics", "/"] {
        assert!(routes.contains(&path), "{routes:?}");
    }
}

#[test]
fn odd_requests_are_answered_or_rejected_in_words() {
    let mill = project(SMALL);
    let server =
        Server::start(&mill, &["bm25", "--max-queries", "3", "--max-top-k", "50", "--max-body-mib", "1"], None);
    assert_eq!(server.refused("/search", json!({"query": " \n"})), (400, "Query content cannot be empty".to_owned()));
    // Null counts as absent, and 0 does for `topk`; unknown fields are ignored.
    let whole = server.ask("/retrieve", json!({"queries": ["the capital on a telephone"]}));
    assert_eq!(whole["result"][0].as_array().map(Vec::len), Some(3), "the route's own number");
    for topk in [json!(null), json!(0)] {
        let asked = json!({"queries": ["the capital on a telephone"], "topk": topk, "return_scores": null, "x": 1});
        assert_eq!(server.ask("/retrieve", asked), whole);
    }
    assert_eq!(server.ask("/retrieve", json!({"queries": []})), json!({"result": []}));
    let top_n = |top_n: Value| json!({"query": "capital", "top_n": top_n, "unknown": {}});
    assert_eq!(server.ask("/search", top_n(json!(null))), server.ask("/search", top_n(json!(50))));
    for (path, body, status, about) in [
        ("/retrieve", json!({"queries": ["x"], "topk": 1_000_000_000}), 400, "`topk` must be between 1 and 50"),
        ("/retrieve", json!({"queries": ["x"], "topk": 1e9}), 400, "topk"),
        ("/retrieve", json!({"queries": ["x"], "topk": -1}), 400, "`topk`"),
        ("/retrieve", json!({"queries": "x"}), 400, "queries"),
        ("/retrieve", json!({"queries": ["x", null]}), 400, "queries[1]"),
        ("/retrieve", json!({"query": "x"}), 400, "missing field `queries`"),
        ("/retrieve", json!({"queries": ["a", "b", "c", "d"]}), 413, "4 queries in one request (limit 3)"),
        ("/search", top_n(json!(0)), 400, "`top_n`"),
        ("/search", top_n(json!("5")), 400, "top_n"),
        ("/search", json!({"query": 5}), 400, "query"),
        ("/search", json!(["Italy", 3, true]), 400, "must be a JSON object"),
        ("/batch_search", json!({"query": "x"}), 400, "query"),
        ("/queries", json!({"queries": ["x"], "k": 0}), 400, "`k`"),
        ("/nowhere", json!({}), 404, "POST /nowhere"),
        ("/health", json!({}), 405, "/health does not allow POST"),
        ("/api/search", json!({}), 405, "/api/search does not allow POST"),
    ] {
        let (found, detail) = server.refused(path, body);
        assert!(found == status && detail.contains(about), "{path}: {found} {detail}, expected {status} {about}");
    }
    assert_eq!(server.get("/search").0, 405);
    let huge = json!({"query": "x".repeat(1 << 20)});
    let (status, _, error) = server.post("/search", &huge);
    let detail = error["detail"].as_str().expect("a detail");
    assert!(status == 413 && detail.contains("longer than 1 MiB"), "{status} {error}");
    let cut = server.client.post(server.url("/search")).body("{\"query\": ");
    assert_eq!(server.runtime.block_on(told(cut)).0, 400);
    let untyped = server.client.post(server.url("/search")).body("{\"query\": \"Italy\"}");
    assert_eq!(server.runtime.block_on(told(untyped)).2[0]["id"], "rome#0", "a client may send no content type");
}

#[test]
fn addresses_that_are_not_encoded_are_read() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let get = |target: &str| {
        let answer = server.raw(&format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status: u16 = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, serde_json::from_str::<Value>(body).unwrap_or_default())
    };
    for (target, query, found) in [
        (
            "/api/search?query=AT&T%20history&k=1",
            "AT&T history",
            vec!["AT&T | A telephone company, #1 in C++ history."],
        ),
        ("/api/search?query=in%20C++&k=1", "in C++", vec!["AT&T | A telephone company, #1 in C++ history."]),
        ("/api/search?query=Tiber+100%&k=1", "Tiber 100%", vec!["Rome | The capital of Italy, on the Tiber."]),
        // `#` and what follows never arrive: k is lost as well.
        ("/api/search?query=Tiber&#39;s&k=1", "Tiber&", vec!["Rome | The capital of Italy, on the Tiber."]),
        ("/api/search?query=Tiber%20é|{}^`&k=1", "Tiber é|{}^`", vec!["Rome | The capital of Italy, on the Tiber."]),
        ("/api/search?query=&k=1", "", vec![]),
        ("/api/search?query=Tiber&k=1000000", "Tiber", vec!["Rome | The capital of Italy, on the Tiber."]),
    ] {
        let (status, answer) = get(target);
        let texts: Vec<&str> =
            answer["topk"].as_array().expect("passages").iter().filter_map(|found| found["text"].as_str()).collect();
        assert_eq!((status, answer["query"].as_str(), texts), (200, Some(query), found), "{target}");
    }
    for target in ["/api/search", "/api/search?k=3", "/api/search?query=x&k=many", "/api/search?query=x&k=-1"] {
        let (status, answer) = get(target);
        assert!(status == 400 && answer["detail"].is_string(), "{target}: {status} {answer}");
    }
}

/// A hit: chunk id, contents, score.
type Hit = (String, String, f64);

/// Returns the hits of a `retrieve` node by query, best first.
fn hits(mill: &Mill, node: &str) -> BTreeMap<String, Vec<Hit>> {
    let mut hits: BTreeMap<String, Vec<Hit>> = BTreeMap::new();
    for row in mill.call(&["show", node, "--json", "-n", "0"]).exit(0).events() {
        let text = |name: &str| row[name].as_str().expect("text").to_owned();
        let hit = (text("chunk_id"), text("contents"), row["score"].as_f64().expect("a number"));
        hits.entry(text("query")).or_default().push(hit);
    }
    assert!(hits.len() > 40, "{}", hits.len());
    hits
}

/// Returns the hits in an answer of `/retrieve`.
fn answered(result: &Value) -> Vec<Hit> {
    let hit = |found: &Value| {
        let text = |name: &str| found["document"][name].as_str().expect("text").to_owned();
        (text("id"), text("contents"), found["score"].as_f64().expect("a number"))
    };
    result.as_array().expect("hits").iter().map(hit).collect()
}

#[test]
fn results_equal_those_of_retrieve() {
    let mill = project(WORLD);
    let compare = |server: &Server, node: &str, topk: usize| {
        let hits = hits(&mill, node);
        let queries: Vec<&String> = hits.keys().collect();
        let answer = server.ask("/retrieve", json!({"queries": queries, "topk": topk, "return_scores": true}));
        for ((query, expected), found) in hits.iter().zip(answer["result"].as_array().expect("results")) {
            assert_eq!(&answered(found), expected, "{node}: {query}");
        }
    };
    let digests = |server: &Server| server.get("/health").1;
    let ids = mill.artifacts();
    compare(&Server::start(&mill, &["bm25", "--top-k", "7"], None), "hits", 3);
    let fused = Server::start(&mill, &["bm25", "dense", "--pool", "20"], None);
    compare(&fused, "fused", 10);
    assert_eq!(digests(&fused), format!("{},{}", ids["bm25.index"], ids["dense.index"]));
    let mixed = Server::start(&mill, &["dense", "other", "--fusion", "{weighted: {weights: [0.3, 0.7]}}"], None);
    compare(&mixed, "mixed", 5);
    // Numbers of different chunks differ, and those of the second index follow those of the first.
    let queries: Vec<String> = hits(&mill, "mixed").into_keys().collect();
    let answer = mixed.ask("/queries", json!({"queries": queries, "k": 50}));
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    let sizes = mixed.get("/").2["indexes"].clone();
    let first = sizes[0]["chunks"].as_u64().expect("a number");
    let lines = answer["answers"].as_array().expect("lists").iter().flat_map(|list| list.as_array().expect("lines"));
    for line in lines {
        let (number, text) = line.as_str().expect("text").split_once('\t').expect("a number");
        assert_eq!(*known.entry(number).or_insert(text), text, "{number}");
    }
    let numbers: Vec<u64> = known.keys().map(|number| number.parse().expect("a number")).collect();
    let end = first + sizes[1]["chunks"].as_u64().expect("a number");
    assert!(numbers.iter().any(|number| *number < first), "{numbers:?}");
    assert!(numbers.iter().any(|number| *number >= first) && numbers.iter().all(|number| *number < end));
    // A folder outside the store has the digest of the artifact.
    let folder = mill.artifact_folder("bm25", "index");
    let copied = Command::new("cp").arg("-r").arg(&folder).arg(mill.path("copy")).status().expect("cp");
    assert!(copied.success());
    let outside = Server::start(&mill, &["./copy"], None);
    compare(&outside, "hits", 3);
    assert_eq!(digests(&outside), ids["bm25.index"]);
}

#[test]
fn requests_at_the_same_time_share_searches() {
    let mill = project(WORLD);
    let server = Server::start(&mill, &["bm25"], None);
    let hits = hits(&mill, "hits");
    let queries: Vec<&String> = hits.keys().cycle().take(200).collect();
    let together = server.runtime.block_on(async {
        let ask = |(place, query): (usize, &&String)| {
            let topk = [3, 5][place % 2];
            let body = json!({"queries": [query], "topk": topk, "return_scores": true});
            told(server.client.post(server.url("/retrieve")).json(&body))
        };
        futures::future::join_all(queries.iter().enumerate().map(ask)).await
    });
    for (query, (status, _, answer)) in queries.iter().zip(together) {
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answered(&answer["result"][0])[..hits[*query].len().min(3)], hits[*query][..]);
    }
    server.refused("/search", json!({"query": ""}));
    let Value::String(metrics) = server.get("/metrics").2 else { panic!("text") };
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}\n{metrics}")).parse::<f64>().expect("a number")
    };
    assert_eq!(value("searchmill_requests_total{route=\"/retrieve\",status=\"200\"}"), 200.0);
    assert_eq!(value("searchmill_requests_total{route=\"/search\",status=\"400\"}"), 1.0);
    assert_eq!(value("searchmill_request_seconds_count{route=\"/retrieve\"}"), 200.0);
    assert_eq!(value("searchmill_waiting_queries"), 0.0);
    assert_eq!(value("searchmill_batch_queries_sum"), 200.0, "every query is in one search");
    assert!(value("searchmill_batch_queries_count") < 200.0, "no search had two queries");
}

#[test]
fn a_full_queue_is_reported_as_such() {
    let mill = project(WORLD);
    let server = Server::start(&mill, &["bm25", "--queue", "1", "--max-body-mib", "64"], None);
    let hits = hits(&mill, "hits");
    let queries: Vec<&String> = hits.keys().cycle().take(4000).collect();
    let body = json!({"query": queries, "top_n": 1}).to_string();
    let answers = server.runtime.block_on(async {
        let ask = |_| told(server.client.post(server.url("/batch_search")).body(body.clone()));
        futures::future::join_all((0..24).map(ask)).await
    });
    let (full, done): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(status, ..)| *status == 429);
    assert!(!full.is_empty() && !done.is_empty(), "{} {}", full.len(), done.len());
    for (_, _, answer) in full {
        assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains("are waiting (limit 1)")), "{answer}");
    }
    for (status, _, answer) in done {
        assert_eq!((status, answer.as_array().map(Vec::len)), (200, Some(4000)));
    }
}

#[test]
fn a_token_is_required_where_there_is_one() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25", "--listen", "0.0.0.0:0"], Some("open sesame"));
    let base = server.base.replace("0.0.0.0", "127.0.0.1");
    let asked = |path: &str, token: Option<&str>| {
        let request = server.client.get(format!("{base}{path}"));
        let request = token.map_or(request.try_clone().expect("a request"), |token| request.bearer_auth(token));
        let (status, _, answer) = server.runtime.block_on(told(request));
        assert_eq!(status == 401, answer["detail"].is_string(), "{answer}");
        status
    };
    assert_eq!(asked("/api/search?query=Rome", None), 401);
    assert_eq!(asked("/metrics", Some("open barley")), 401);
    assert_eq!(asked("/api/search?query=Rome", Some("open sesame")), 200);
    assert_eq!(asked("/health", None), 200);
    let open = mill.call(&["serve", "env", "bm25", "--listen", "0.0.0.0:0"]).exit(2);
    assert!(open.stderr.contains("there is no token"), "{}", open.stderr);
    let local = Server::start(&mill, &["bm25"], None);
    let rebound = local.client.get(local.url("/")).header("host", "rebound.example");
    assert_eq!(local.runtime.block_on(told(rebound)).0, 403);
}

#[test]
fn active_requests_are_finished_and_new_ones_rejected_on_sigterm() {
    let mill = project(SMALL);
    let mut server = Server::start(&mill, &["bm25"], None);
    let body = json!({"query": "Italy"}).to_string();
    let (first, second) = body.split_at(5);
    let mut slow = TcpStream::connect(server.address()).expect("a connection");
    slow.set_read_timeout(Some(Duration::from_mins(1))).expect("set");
    let head = format!("POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    slow.write_all(format!("{head}{first}").as_bytes()).expect("sent");
    // Once another request is answered, the server has surely read this one's head.
    assert_eq!(server.get("/health").0, 200);
    std::thread::sleep(Duration::from_millis(300));
    server.signal("-TERM");
    let refused = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let (status, _, answer) = server.get("/health");
        (status != 200).then_some((status, answer))
    });
    assert_eq!(refused, Some((503, json!({"detail": "the server is shutting down"}))));
    slow.write_all(second.as_bytes()).expect("sent");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("rome#0"), "{answer}");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn wrong_options_and_indexes_are_usage_errors() {
    let mill = project(SMALL);
    for (args, about) in [
        (vec!["nothing"], "nothing"),
        (vec!["./nowhere"], "there is no folder ./nowhere"),
        (vec!["chunks"], "`chunks` is not a search index"),
        (vec!["bm25", "--fusion", "best"], "`--fusion best`"),
        (vec!["bm25", "bm25", "--fusion", "none"], "`fusion: none` takes one index"),
        (vec!["bm25", "--fusion", "{weighted: {weights: [1, 2]}}"], "2 fusion weights for 1 indexes"),
        (vec!["bm25", "--fusion", "{weighted: {weights: [-1]}}"], "a weight must be a number >= 0"),
        (vec!["bm25", "--max-top-k", "0"], "`--max-top-k` must be at least 1"),
        (vec!["bm25", "--top-k", "2000"], "`--top-k` is above `--max-top-k` (1000)"),
        (vec![], "INDEX"),
    ] {
        let told = mill.call(&[vec!["serve", "env", "--listen", "127.0.0.1:0"], args.clone()].concat());
        assert!(told.code != 0 && told.stderr.contains(about), "{args:?}: {} {}", told.code, told.stderr);
    }
    // A folder that is not an index.
    std::fs::create_dir(mill.path("empty")).expect("a folder");
    let told = mill.call(&["serve", "env", "./empty", "--listen", "127.0.0.1:0"]);
    assert!(told.code != 0 && told.stderr.contains("is not a search index"), "{}", told.stderr);
}

#[test]
fn rankings_are_concatenated_and_a_function_orders_them() {
    let mill = project(SMALL);
    let both = Server::start(&mill, &["bm25", "bm25", "--fusion", "concat"], None);
    let found = both.ask("/search", json!({"query": "capital", "top_n": 2}));
    assert_eq!(found.as_array().map(Vec::len), Some(1), "the best one of each, once");
    drop(both);
    let code = "class Longest:\n    def setup(self):\n        self.calls = 0\n\n    def __call__(self, query, \
                documents):\n        if 'raise' in query:\n            raise ValueError('no order')\n        return \
                {'scores': [len(document['text']) for document in documents]}\n";
    mill.write("rerank.py", code);
    let server = Server::start(&mill, &["bm25", "--rerank", "rerank.py:Longest"], None);
    let found = server.ask("/search", json!({"query": "capital of Italy", "top_n": 1, "return_score": true}));
    assert_eq!(found[0][0]["id"], "paris#0", "the longer text, though the other fits better: {found}");
    assert_eq!(found[1][0], json!(48.0));
    let many = server.ask("/retrieve", json!({"queries": ["capital", "telephone"], "topk": 3}));
    assert_eq!(many["result"][1][0]["id"], "att#0");
    let (status, why) = server.refused("/search", json!({"query": "capital raise"}));
    assert_eq!(status, 500);
    assert!(why.contains("the reranker failed") && why.contains("no order"), "{why}");
    drop(server);
    let told = mill.call(&["serve", "env", "bm25", "--rerank", "rerank.py:absent", "--listen", "127.0.0.1:0"]);
    assert!(told.code != 0 && told.stderr.contains("absent"), "{}", told.stderr);
}

//! Late interaction through the program: index, retrieve, rollout, audit, server, and what its key depends on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout};

use serde_json::{Value, json};

use crate::harness::models;
use crate::harness::project::Mill;

const PIPELINE: &str = "\
name: late
nodes:
  world:    {op: generate-world, with: {documents: 120, questions: 30}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 12, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  late:     {op: index, from: chunks, with: {kind: {late: {encoder: {colbert: {model: models/colbert}}, storage: STORAGE}}}}
  hits:     {op: retrieve, from: {questions: world.questions, search: [bm25, late]}, with: {top_k: 5, candidates: 20, fusion: none}}
  fused:    {op: retrieve, from: {questions: world.questions, search: [bm25, late]}, with: {top_k: 5, candidates: 20}}
  alone:    {op: retrieve, from: {questions: world.questions, search: late}, with: {top_k: 5}}
  rollouts: {op: rollout, from: {questions: world.questions, search: [bm25, late]}, with: {policy: evidence, search: {top_k: 5, candidates: 20, fusion: none}}}
";

fn project() -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", &PIPELINE.replace("STORAGE", "fp16"));
    models::write(&mill.path("models"));
    mill
}

/// A running server; it is killed when the test ends.
struct Server {
    child: Child,
    address: String,
    _stdout: BufReader<ChildStdout>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    fn start(mill: &Mill, args: &[&str]) -> Self {
        let args = [&["serve", "env", "--listen", "127.0.0.1:0"], args].concat();
        let mut child = mill.command(&args).env_remove("SEARCHMILL_TOKEN").spawn().expect("the program starts");
        let (mut line, mut stdout) = (String::new(), BufReader::new(child.stdout.take().expect("stdout")));
        stdout.read_line(&mut line).expect("a line");
        let address = line.trim().rsplit("http://").next().expect("an address").to_owned();
        Self { child, address, _stdout: stdout }
    }

    /// Returns ids and scores of `/retrieve`, query by query.
    fn retrieve(&self, queries: &[String], top_k: usize) -> Vec<Vec<(String, f64)>> {
        let body = json!({"queries": queries, "topk": top_k, "return_scores": true}).to_string();
        let head = format!("Host: {}\r\nContent-Type: application/json\r\nConnection: close", self.address);
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "POST /retrieve HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        let hit = |hit: &Value| {
            (hit["document"]["id"].as_str().expect("an id").to_owned(), hit["score"].as_f64().expect("a score"))
        };
        let of_query = |hits: &Value| hits.as_array().expect("hits").iter().map(hit).collect();
        answer["result"].as_array().expect("results").iter().map(of_query).collect()
    }
}

fn rows(mill: &Mill, node: &str) -> Vec<Value> {
    let shown = mill.call(&["show", node, "-n", "0", "--json"]).exit(0).stdout;
    shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn retrieve_rollout_and_server_find_the_same() {
    let mill = project();
    mill.run(&[]).exit(0);
    let hits = rows(&mill, "hits");
    let queries: Vec<String> = rows(&mill, "alone")
        .iter()
        .filter(|hit| hit["rank"] == 1)
        .map(|hit| hit["query"].as_str().expect("text").to_owned())
        .collect();
    assert_eq!(queries.len(), 30);
    let of_query = |rows: &[Value], query: &str| -> Vec<(String, f64)> {
        let own = rows.iter().filter(|hit| hit["query"] == query);
        own.map(|hit| (hit["chunk_id"].as_str().expect("text").to_owned(), hit["score"].as_f64().expect("a score")))
            .collect()
    };
    let served = |args: &[&str]| Server::start(&mill, args).retrieve(&queries, 5);
    let ranked = served(&["bm25", "late", "--candidates", "20", "--fusion", "none"]);
    let fused = served(&["bm25", "late", "--candidates", "20"]);
    let (fused_rows, alone_rows) = (rows(&mill, "fused"), rows(&mill, "alone"));
    for (place, query) in queries.iter().enumerate() {
        assert_eq!(ranked[place], of_query(&hits, query), "{query}");
        assert_eq!(fused[place], of_query(&fused_rows, query), "{query}");
        // The best of all is at least as good as the best of BM25's candidates.
        let (best, among) = (of_query(&alone_rows, query)[0].1, of_query(&hits, query));
        assert!(among.first().is_none_or(|found| found.1 <= best), "{query}");
    }
    mill.call(&["audit", "latest", "--rollouts"]).exit(0);
    let again = mill.run(&[]).exit(0);
    assert_eq!(again.ran(), "");
}

#[test]
fn candidates_that_no_index_finds_or_ranks_are_an_error_of_the_pipeline() {
    let mill = project();
    let wrong = PIPELINE
        .replace("STORAGE", "fp16")
        .replace("search: [bm25, late]}, with: {top_k: 5, candidates: 20}}", "search: bm25}, with: {candidates: 20}}")
        .replace("search: [bm25, late]}, with: {policy", "search: late}, with: {policy");
    mill.write("pipeline.yaml", &wrong);
    let told = mill.call(&["validate", "pipeline.yaml"]).exit(2).stderr;
    assert_eq!(told.matches("`candidates` needs a `late` index and another one").count(), 2, "{told}");
    assert!(told.contains("pipeline.yaml:8:") && told.contains("pipeline.yaml:10:"), "{told}");
    assert!(told.contains("help: write `search: [bm25, late]`"), "{told}");
}

#[test]
fn the_content_of_the_checkpoint_and_the_storage_are_in_the_key() {
    let mill = project();
    mill.run(&[]).exit(0);
    mill.write("pipeline.yaml", &PIPELINE.replace("STORAGE", "residual"));
    assert!(mill.run(&[]).exit(0).ran().contains("late"), "another storage");
    let metadata = mill.read("models/colbert/artifact.metadata");
    mill.write("models/colbert/notes.txt", "not read");
    assert_eq!(mill.run(&[]).exit(0).ran(), "", "files that are not read");
    mill.write("models/colbert/artifact.metadata", &metadata.replace("\"doc_maxlen\": 16", "\"doc_maxlen\": 8"));
    assert!(mill.run(&[]).exit(0).ran().contains("late"), "settings of the checkpoint");
    std::fs::remove_file(mill.path("models/colbert/tokenizer.json")).expect("removed");
    let failed = mill.call(&["run", "pipeline.yaml"]);
    assert!(failed.code != 0 && format!("{}{}", failed.stdout, failed.stderr).contains("tokenizer.json"), "{failed:?}");
}

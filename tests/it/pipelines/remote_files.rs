//! Tests of remote files: a tokenizer of the Hugging Face Hub, identified by content, and documents over HTTP,
//! identified by address.

use std::sync::{Arc, Mutex};

use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde_json::json;

use crate::harness::project::{Mill, Told};

const PIPELINE: &str = "\
name: hub
nodes:
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {by: token, size: 3, count: {tokenizer: 'hf://org/tiny'}}}
";

/// The commit of `main`.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model: a tokenizer and an encoder.
struct Hub {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
    _runtime: tokio::runtime::Runtime,
}

async fn serve(State(asked): State<Arc<Mutex<Vec<String>>>>, request: Request) -> (StatusCode, Vec<u8>) {
    let path = request.uri().path().to_owned();
    asked.lock().expect("a list").push(path.clone());
    if path == "/api/models/org/tiny/revision/main" {
        return (StatusCode::OK, json!({"sha": COMMIT}).to_string().into_bytes());
    }
    match path.strip_prefix(&format!("/org/tiny/resolve/{COMMIT}/")) {
        Some("tokenizer.json") => (StatusCode::OK, tokenizer(&["one", "two"]).into_bytes()),
        Some(file @ ("config.json" | "model.safetensors")) => {
            let folder = tempfile::tempdir().expect("a folder");
            crate::harness::models::write(folder.path());
            (StatusCode::OK, std::fs::read(folder.path().join("bert").join(file)).expect("a file"))
        }
        _ => (StatusCode::NOT_FOUND, Vec::new()),
    }
}

/// Returns a `tokenizer.json` with one token for each of these words, and an unknown token for all others.
fn tokenizer(words: &[&str]) -> String {
    let known = words.iter().enumerate().map(|(place, word)| ((*word).to_owned(), json!(place + 1)));
    let vocab: serde_json::Map<_, _> = known.chain([("[UNK]".to_owned(), json!(0))]).collect();
    let model = json!({"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null, "model": model,
    })
    .to_string()
}

impl Hub {
    fn new() -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let app = axum::Router::new().fallback(serve).with_state(Arc::clone(&asked));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { address, asked, _runtime: runtime }
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("a list").len()
    }

    /// Runs the program with this hub and a cache in the project's folder.
    fn call(&self, mill: &Mill, args: &[&str]) -> Told {
        let mut command = mill.command(args);
        command.env("HF_ENDPOINT", &self.address).env("HF_HOME", mill.path("hf"));
        for unset in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
            command.env_remove(unset);
        }
        Told::new(command.output().expect("the program can be started"))
    }
}

fn mill() -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", "{\"id\": \"d\", \"text\": \"one two three four five\"}\n");
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

#[test]
fn a_tokenizer_is_fetched_once_and_its_content_is_the_key() {
    let (hub, mill) = (Hub::new(), mill());
    hub.call(&mill, &["validate", "pipeline.yaml"]).exit(0);
    let corpus = hub.call(&mill, &["run", "pipeline.yaml", "corpus"]).exit(0);
    assert!(corpus.stderr.contains("done"), "{}", corpus.stderr);
    let planned = hub.call(&mill, &["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(planned.contains("waits for `hf://org/tiny@main`, which a run fetches"), "{planned}");
    assert_eq!(hub.asked(), 0, "`validate` and `plan` are offline");
    let run = |ran: &str| {
        let told = hub.call(&mill, &["run", "pipeline.yaml", "--json"]).exit(0);
        assert_eq!(told.ran(), ran, "{}", told.stdout);
        told
    };
    run("chunks");
    run("");
    assert_eq!(hub.asked(), 2, "for the commit and for the file");
    let file = format!("hf/hub/models--org--tiny/snapshots/{COMMIT}/tokenizer.json");
    let file = file.as_str();
    std::fs::create_dir(mill.path("local")).expect("a folder");
    mill.write("local/tokenizer.json", &mill.read(file));
    mill.write("pipeline.yaml", &PIPELINE.replace("hf://org/tiny", "local"));
    run("");
    mill.write("pipeline.yaml", PIPELINE);
    mill.write(file, &tokenizer(&["one"]));
    assert_eq!(run("chunks").reasons("chunks"), ["source_changed"], "the same address with another content");
    assert_eq!(hub.asked(), 2, "cached files are not requested");
}

#[test]
fn a_model_of_the_hub_is_known_by_its_commit() {
    let (hub, mill) = (Hub::new(), mill());
    let pieces = "chunks: {op: chunk, from: corpus, with: {size: 3, count: words}}";
    let index = "dense: {op: index, from: chunks, with: {kind: {dense: {encoder: {bert: {model: org/tiny}}}}}}";
    let corpus = "corpus: {op: read, with: {path: documents.jsonl, as: document}}";
    mill.write("pipeline.yaml", &format!("name: hub\nnodes:\n  {corpus}\n  {pieces}\n  {index}\n"));
    hub.call(&mill, &["run", "pipeline.yaml", "chunks"]).exit(0);
    let planned = hub.call(&mill, &["plan", "pipeline.yaml"]).exit(0).stdout;
    assert!(planned.contains("waits for `hf://org/tiny@main`, which a run fetches"), "{planned}");
    let run = || hub.call(&mill, &["run", "pipeline.yaml", "--json"]).exit(0).ran();
    assert_eq!((run().as_str(), run().as_str()), ("dense", ""));
    let key = mill.last_nodes().pop().and_then(|node| node.key).expect("a key");
    let preimage = mill.store().result(&key).expect("a result").preimage.to_string();
    assert!(preimage.contains(&format!("hf:org/tiny@{COMMIT}")), "{preimage}");
    // The branch moved: another commit is another model.
    let moved = COMMIT.replace('0', "f");
    mill.write("hf/hub/models--org--tiny/refs/main", &moved);
    let told = hub.call(&mill, &["run", "pipeline.yaml", "--json"]).exit(1);
    assert!(told.stdout.contains(&format!("has no config.json at commit {moved}")), "{}", told.stdout);
}

#[test]
fn a_tokenizer_that_cannot_be_had_fails_its_node_alone() {
    let (hub, mill) = (Hub::new(), mill());
    mill.write("pipeline.yaml", &PIPELINE.replace("org/tiny", "org/other"));
    let told = hub.call(&mill, &["run", "pipeline.yaml", "--json", "-k"]).exit(5);
    assert_eq!(told.ran(), "corpus");
    assert!(told.stdout.contains("404") && told.stdout.contains("HF_ENDPOINT to a mirror"), "{}", told.stdout);
}

/// A changing file at an address.
struct Page {
    address: String,
    body: Arc<Mutex<String>>,
    _runtime: tokio::runtime::Runtime,
}

impl Page {
    fn new(body: String) -> Self {
        let body = Arc::new(Mutex::new(body));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = format!("http://{}/documents.jsonl", listener.local_addr().expect("an address"));
        let give = |State(body): State<Arc<Mutex<String>>>| async move { body.lock().expect("a text").clone() };
        let app = axum::Router::new().fallback(give).with_state(Arc::clone(&body));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { address, body, _runtime: runtime }
    }
}

#[test]
fn remote_sources_are_read_again_when_that_is_asked_for() {
    let document = |text: &str| format!("{}\n", json!({"id": "d", "text": text}));
    let page = Page::new(document("one"));
    let mill = Mill::new();
    let pipeline = "name: remote\nnodes:\n  corpus: {op: read, with: {path: PAGE, as: document}}\n  \
                    chunks: {op: chunk, from: corpus, with: {size: 3}}\n  other: {op: generate-world, with: \
                    {documents: 100, questions: 0}}\n";
    mill.write("pipeline.yaml", &pipeline.replace("PAGE", &page.address));
    let run = |more: &[&str]| mill.run(more).exit(0).ran();
    assert_eq!(run(&[]), "chunks corpus other");
    *page.body.lock().expect("a text") = document("two");
    assert_eq!(run(&[]), "", "the address is the same");
    assert_eq!(run(&["--refresh-sources"]), "chunks corpus");
    let shown = mill.call(&["show", "chunks", "--json"]).exit(0).events();
    assert_eq!(shown[0]["text"], "two");
    assert_eq!(run(&[]), "", "the new content stays cached");
    assert_eq!(mill.call(&["show", "chunks", "--json"]).exit(0).events()[0]["text"], "two");
    assert_eq!(run(&["--refresh-sources"]), "corpus", "equal rows: later nodes stay cached");
}

//! Tests of `serve model`: the OpenAI-compatible API of a real process, over HTTP.

use std::io::{BufRead, BufReader};
use std::process::Child;

use serde_json::{Value, json};

use crate::mill::Mill;

/// Writes a model folder: a tiny random Qwen3 whose 96 tokens are the printable ASCII characters, space and newline.
fn write_model(mill: &Mill) {
    let from =
        |file: &str| concat!(env!("CARGO_MANIFEST_DIR"), "/operators/models/tests/models/qwen3/").to_owned() + file;
    let config = std::fs::read_to_string(from("config.json")).expect("a config");
    let longer = config.replace("\"max_position_embeddings\": 64", "\"max_position_embeddings\": 1024");
    std::fs::create_dir(mill.path("student")).expect("a folder");
    mill.write("student/config.json", &longer);
    std::fs::copy(from("model.safetensors"), mill.path("student/model.safetensors")).expect("weights");
    let letters = (b'!'..=b'~').map(char::from).chain(['\u{120}', '\u{10A}']);
    let vocabulary: serde_json::Map<String, Value> =
        letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null, "added_tokens": [],
        "pre_tokenizer": bytes, "decoder": bytes, "post_processor": null,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
    mill.write("student/tokenizer.json", &tokenizer.to_string());
}

/// A running server; it is killed when the test ends.
struct Server {
    child: Child,
    base: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    _mill: Mill,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    fn start() -> Self {
        Self::start_with(&["--listen", "127.0.0.1:0"], None)
    }

    fn start_with(more: &[&str], token: Option<&str>) -> Self {
        let mill = Mill::new();
        write_model(&mill);
        let args = [&["serve", "model", "student", "--rows", "8", "--max-tokens", "20"], more].concat();
        let mut command = mill.command(&args);
        command.env_remove("SEARCHMILL_TOKEN").envs(token.map(|token| ("SEARCHMILL_TOKEN", token)));
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let base = line.split(" at ").nth(1).unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { child, base, runtime, client: reqwest::Client::new(), _mill: mill }
    }

    async fn post(&self, path: &str, body: Value) -> (u16, String) {
        let sent = self.client.post(format!("{}/{path}", self.base)).json(&body).send().await.expect("an answer");
        (sent.status().as_u16(), sent.text().await.expect("a body"))
    }

    fn ask(&self, path: &str, body: Value) -> Value {
        let (status, text) = self.runtime.block_on(self.post(path, body));
        assert_eq!(status, 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    fn refused(&self, path: &str, body: Value) -> String {
        let (status, text) = self.runtime.block_on(self.post(path, body));
        assert_eq!(status, 400, "{text}");
        let error: Value = serde_json::from_str(&text).expect("JSON");
        error["error"]["message"].as_str().expect("a message").to_owned()
    }
}

#[test]
fn texts_and_conversations_go_on() {
    let server = Server::start();
    let body = json!({"model": "student", "prompt": "To be or not", "max_tokens": 8, "temperature": 0, "logprobs": 1});
    let first = server.ask("completions", body.clone());
    let text = first["choices"][0]["text"].as_str().expect("text");
    let drawn = first["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("figures").len();
    assert_eq!(drawn, text.len(), "a token is a letter");
    assert_eq!(first["usage"]["prompt_tokens"], 12);
    let again = server.ask("completions", body);
    assert_eq!(again["choices"], first["choices"]);
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() >= Some(10), "{}", again["usage"]);
    let chat = json!({"model": "student", "temperature": 0.9, "seed": 7, "max_completion_tokens": 30,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]});
    let whole = server.ask("chat/completions", chat.clone());
    assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("student")));
    let mut streamed = chat;
    streamed["stream"] = true.into();
    streamed["stream_options"] = json!({"include_usage": true});
    let (status, events) = server.runtime.block_on(server.post("chat/completions", streamed));
    assert_eq!(status, 200);
    let lines: Vec<&str> = events.split("\n\n").filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(lines.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(Some(told.as_str()), whole["choices"][0]["message"]["content"].as_str());
    let last = chunks.last().expect("a chunk");
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[test]
fn many_requests_at_once_get_what_each_would_alone() {
    let server = Server::start();
    let body =
        |row: u32| json!({"prompt": format!("Question {row}: "), "max_tokens": 24, "temperature": 1.0, "seed": row});
    let alone: Vec<Value> = (0..32).map(|row| server.ask("completions", body(row))["choices"].take()).collect();
    let fresh = Server::start();
    let together = fresh.runtime.block_on(async {
        let asked = (0..32).map(|row| fresh.post("completions", body(row)));
        futures::future::join_all(asked).await
    });
    for (alone, (status, text)) in alone.iter().zip(together) {
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, &answer["choices"]), (200, alone));
    }
}

#[test]
fn what_cannot_be_answered_is_refused_in_words() {
    let server = Server::start();
    assert!(server.refused("completions", json!({"prompt": "x", "n": 2})).contains("`n`"));
    assert!(server.refused("completions", json!({"prompt": "x", "top_p": 0})).contains("`top_p`"));
    let long = server.refused("completions", json!({"prompt": "x".repeat(2000)}));
    assert_eq!(long, "the prompt has 2000 tokens, the model's context 1024");
    assert!(server.refused("chat/completions", json!({"messages": []})).contains("no messages"));
    let models = server.runtime.block_on(async {
        server.client.get(format!("{}/models", server.base)).send().await.expect("an answer").text().await
    });
    assert!(models.expect("a body").contains("\"id\":\"student\""));
}

#[test]
fn strangers_stay_outside() {
    let server = Server::start();
    let asked = |host: &str| {
        let request = server.client.get(format!("{}/models", server.base)).header("host", host);
        server.runtime.block_on(async { request.send().await.expect("an answer").status().as_u16() })
    };
    assert_eq!((asked("localhost:1"), asked("127.0.0.1"), asked("rebound.example")), (200, 200, 403));
    let mill = Mill::new();
    write_model(&mill);
    let told = mill.call(&["serve", "model", "student", "--listen", "0.0.0.0:0"]).exit(2);
    assert!(told.stderr.contains("there is no token") && told.stderr.contains("SEARCHMILL_TOKEN"), "{}", told.stderr);
}

#[test]
fn a_token_is_asked_for_where_there_is_one() {
    let server = Server::start_with(&["--listen", "0.0.0.0:0"], Some("open sesame"));
    let base = server.base.replace("0.0.0.0", "127.0.0.1");
    let asked = |path: &str, token: Option<&str>| {
        let request = server.client.get(format!("{base}{path}"));
        let request = token.map_or(request.try_clone().expect("a request"), |token| request.bearer_auth(token));
        server.runtime.block_on(async { request.send().await.expect("an answer").status().as_u16() })
    };
    assert_eq!(asked("/models", None), 401);
    assert_eq!(asked("/models", Some("open barley")), 401);
    assert_eq!(asked("/models", Some("open sesame")), 200);
    assert_eq!(asked("/../health", None), 200);
}

#[test]
fn a_model_that_is_not_there_is_a_usage_error() {
    let mill = Mill::new();
    let told = mill.call(&["serve", "model", "./nowhere", "--listen", "127.0.0.1:0"]);
    assert!(
        told.code == 2 && told.stderr.contains("there is no folder or file ./nowhere"),
        "{} {}",
        told.code,
        told.stderr
    );
}

//! Tests of `serve model`: the OpenAI-compatible API of a real process, over HTTP.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Child;

use searchmill_fixtures::models::searching_model;
use serde_json::{Value, json};

use crate::harness::project::{Mill, files_in};

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

/// Writes a model folder: after a line end, the model searches or answers, and then ends its turn.
fn write_searching_model(mill: &Mill) {
    let made = searching_model("<think>I search.</think>\n<search>capital of city</search>", "<answer>Rome</answer>");
    std::fs::create_dir(mill.path("student")).expect("a folder");
    for file in files_in(made.path()) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        std::fs::copy(&file, mill.path(&format!("student/{name}"))).expect("a copy");
    }
}

/// A running server; it is killed when the test ends.
struct Server {
    child: Child,
    base: String,
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    mill: Mill,
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
        Self::start_of(write_model, more, token)
    }

    fn start_of(write: fn(&Mill), more: &[&str], token: Option<&str>) -> Self {
        let mill = Mill::new();
        write(&mill);
        let args = [&["serve", "model", "student", "--rows", "8", "--max-tokens", "20"], more].concat();
        let mut command = mill.command(&args);
        command.env_remove("SEARCHMILL_TOKEN").envs(token.map(|token| ("SEARCHMILL_TOKEN", token)));
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let base = line.split(" at ").nth(1).unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { child, base, runtime, client: reqwest::Client::new(), mill }
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
        let (status, error) = self.error(path, body);
        assert_eq!(status, 400, "{error}");
        error["message"].as_str().expect("a message").to_owned()
    }

    /// Returns the status and the error of a request, which has the four fields of the API.
    fn error(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.runtime.block_on(self.post(path, body));
        (status, error(&text))
    }

    fn get(&self, path: &str) -> reqwest::Response {
        self.runtime.block_on(self.client.get(format!("{}/{path}", self.base)).send()).expect("an answer")
    }

    /// Returns the chunks of a streamed answer, without the mark at its end.
    fn streamed(&self, path: &str, mut body: Value) -> Vec<Value> {
        body["stream"] = true.into();
        let (status, events) = self.runtime.block_on(self.post(path, body));
        assert_eq!(status, 200, "{events}");
        let lines: Vec<&str> = events.split("\n\n").filter_map(|line| line.strip_prefix("data: ")).collect();
        let (end, chunks) = lines.split_last().expect("events");
        assert_eq!(*end, "[DONE]");
        chunks.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

fn error(body: &str) -> Value {
    let body: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    let fields: Vec<&str> = body["error"].as_object().expect("an error").keys().map(String::as_str).collect();
    assert_eq!(fields, ["code", "message", "param", "type"]);
    assert_eq!(body["error"]["type"], "invalid_request_error");
    body["error"].clone()
}

fn with(mut body: Value, more: Value) -> Value {
    let more = more.as_object().expect("options").clone();
    body.as_object_mut().expect("a request").extend(more);
    body
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
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
    let chunks =
        server.streamed("chat/completions", with(chat.clone(), json!({"stream_options": {"include_usage": true}})));
    let told: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(Some(told.as_str()), whole["choices"][0]["message"]["content"].as_str());
    let [first, .., last, usage] = chunks.as_slice() else { panic!("{chunks:?}") };
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(last["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    assert_eq!((&usage["choices"], &last["usage"]), (&json!([]), &Value::Null));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    let ids: BTreeSet<&str> = chunks.iter().map(|chunk| chunk["id"].as_str().expect("an id")).collect();
    assert_eq!(ids.len(), 1);
    assert!(ids.iter().all(|id| id.starts_with("chatcmpl-") && whole["id"] != **id), "{ids:?}");
    assert!(chunks.iter().all(|chunk| chunk["created"].as_u64() >= whole["created"].as_u64()));
    let plain = server.streamed("chat/completions", with(chat, json!({"stream_options": {"include_usage": false}})));
    assert!(plain.iter().all(|chunk| chunk.get("usage").is_none()), "{plain:?}");
}

/// Clients send their own messages back with every field that they know.
#[test]
fn null_is_the_same_as_absent() {
    let server = Server::start();
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}, "index": null});
    let own = |calls: Value| {
        json!({"role": "assistant", "content": null, "refusal": null, "annotations": null, "audio": null,
        "function_call": null, "tool_calls": calls, "reasoning_content": null, "name": null})
    };
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "r", "name": null});
    let messages = json!([user("Hi"), own(Value::Null), user("So"), own(json!([call])), result]);
    let chat = json!({"model": "student", "messages": messages, "temperature": 0, "max_tokens": 4});
    let absent =
        json!([user("Hi"), {"role": "assistant"}, user("So"), {"role": "assistant", "tool_calls": [call]}, result]);
    let expected = server.ask("chat/completions", with(chat.clone(), json!({"messages": absent})));
    let names = [
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stop",
        "seed",
        "stream",
        "stream_options",
        "n",
        "top_p",
        "top_k",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "response_format",
        "frequency_penalty",
        "presence_penalty",
        "functions",
        "function_call",
        "max_completion_tokens",
        "chat_template_kwargs",
        "reasoning_effort",
        "return_token_ids",
        "user",
        "echo",
        "continue_final_message",
        "add_generation_prompt",
        "include_stop_str_in_output",
        "metadata",
        "suffix",
        "best_of",
    ];
    let nulls = Value::Object(names.iter().map(|name| ((*name).to_owned(), Value::Null)).collect());
    assert_eq!(server.ask("chat/completions", with(chat, nulls.clone()))["choices"], expected["choices"]);
    let text = json!({"prompt": "Hi", "temperature": 0, "max_tokens": 4});
    let plain = server.ask("completions", text.clone());
    assert_eq!(server.ask("completions", with(text, nulls))["choices"], plain["choices"]);
}

#[test]
fn options_are_honoured_or_refused() {
    let server = Server::start();
    let chat = json!({"model": "student", "messages": [user("Hi")], "temperature": 0, "max_tokens": 4});
    let tools = json!([{"type": "function", "function": {"name": "search", "parameters": {}}}]);
    let plain = server.ask("chat/completions", chat.clone());
    let neutral = json!({"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "n": 1, "tools": [],
        "tool_choice": "auto", "response_format": {"type": "text"}, "modalities": ["text"], "functions": [], "user": "me"});
    assert_eq!(server.ask("chat/completions", with(chat.clone(), neutral))["choices"], plain["choices"]);
    let unused = json!({"tools": tools, "tool_choice": "none"});
    assert_eq!(server.ask("chat/completions", with(chat.clone(), unused))["choices"], plain["choices"]);
    for (more, param, code) in [
        (json!({"tools": tools, "tool_choice": "required"}), "tool_choice", "unsupported_parameter"),
        (json!({"tools": tools, "tool_choice": {"type": "function"}}), "tool_choice", "unsupported_parameter"),
        (json!({"response_format": {"type": "json_object"}}), "response_format", "unsupported_parameter"),
        (json!({"logit_bias": {"5": 1}}), "logit_bias", "unsupported_parameter"),
        (json!({"frequency_penalty": 0.5}), "frequency_penalty", "unsupported_parameter"),
        (json!({"presence_penalty": -1}), "presence_penalty", "unsupported_parameter"),
        (json!({"reasoning_effort": "low"}), "reasoning_effort", "unsupported_parameter"),
        (json!({"n": 2}), "n", "unsupported_parameter"),
        (json!({"temperature": -1}), "temperature", "invalid_value"),
        (json!({"top_p": 2}), "top_p", "invalid_value"),
        (json!({"top_k": -2}), "top_k", "invalid_value"),
        (json!({"max_tokens": 0}), "max_tokens", "invalid_value"),
        (json!({"stop": 5}), "stop", "invalid_value"),
        (json!({"top_logprobs": 3}), "top_logprobs", "invalid_value"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs", "invalid_value"),
        (json!({"temperature": "hot"}), "temperature", "invalid_type"),
        (json!({"continue_final_message": true}), "continue_final_message", "invalid_value"),
        (json!({"messages": "Hi"}), "messages", "invalid_type"),
        (json!({"messages": []}), "messages", "invalid_value"),
        (json!({"messages": [{"content": "Hi"}]}), "messages[0].role", "missing_required_parameter"),
        (json!({"messages": [{"role": "robot", "content": "Hi"}]}), "messages[0].role", "invalid_value"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content",
            "invalid_value",
        ),
        (json!({"messages": [user(&"x".repeat(2000))]}), "messages", "context_length_exceeded"),
    ] {
        let (status, error) = server.error("chat/completions", with(chat.clone(), more));
        assert_eq!((status, &error["param"], &error["code"]), (400, &json!(param), &json!(code)), "{error}");
    }
    let (status, error) = server.error("chat/completions", with(chat, json!({"model": "other"})));
    assert_eq!((status, &error["param"], &error["code"]), (404, &json!("model"), &json!("model_not_found")), "{error}");
    assert_eq!(server.error("completions", json!({"model": "student"})).1["code"], "missing_required_parameter");
    assert_eq!(server.error("completions", json!({"prompt": "x", "logprobs": 21})).1["param"], "logprobs");
    assert!(server.refused("completions", json!({"prompt": "x", "echo": true})).contains("`echo`"));
    assert!(server.refused("completions", json!({"prompt": ["x", "y"]})).contains("one prompt"));
}

#[test]
fn wrong_addresses_and_bodies_are_errors_of_the_api() {
    let server = Server::start();
    let told = |sent: reqwest::RequestBuilder| {
        server.runtime.block_on(async {
            let sent = sent.send().await.expect("an answer");
            let allowed = sent.headers().get("allow").map(|methods| methods.to_str().expect("methods").to_owned());
            (sent.status().as_u16(), allowed, error(&sent.text().await.expect("a body"))["code"].clone())
        })
    };
    let at = |path: &str| format!("{}/{path}", server.base);
    assert_eq!(told(server.client.get(at("nowhere"))), (404, None, json!("unknown_url")));
    assert_eq!(
        told(server.client.get(at("chat/completions"))),
        (405, Some("POST".to_owned()), json!("method_not_allowed"))
    );
    assert_eq!(told(server.client.delete(at("models/student"))).0, 405);
    let posted = |body: &'static str, kind: &str| {
        told(server.client.post(at("completions")).header("content-type", kind).body(body)).0
    };
    assert_eq!(posted("{\"prompt\": ", "application/json"), 400);
    assert_eq!(posted("{\"prompt\": \"x\"}", "text/plain"), 415, "web pages can send this without asking");
    assert_eq!(posted("{\"prompt\": \"x\"} x", "application/json; charset=utf-8"), 400);
    let model: Value = server.runtime.block_on(server.get("models/student").json()).expect("JSON");
    assert_eq!((&model["id"], &model["max_model_len"]), (&json!("student"), &json!(1024)));
    let other = server.get("models/an/other");
    assert_eq!(other.status().as_u16(), 404);
    assert_eq!(error(&server.runtime.block_on(other.text()).expect("a body"))["code"], "model_not_found");
}

#[test]
fn tokens_stop_texts_and_the_most_probable_tokens_are_told() {
    let server = Server::start();
    // Tokens are letters: "!" is 0.
    let body =
        json!({"prompt": [[39, 0, 5]], "max_tokens": 12, "temperature": 0, "logprobs": 2, "return_token_ids": true});
    let free = server.ask("completions", body.clone());
    let choice = &free["choices"][0];
    let text = choice["text"].as_str().expect("text").to_owned();
    assert_eq!((&free["prompt_token_ids"], &choice["prompt_token_ids"]), (&json!([39, 0, 5]), &json!([39, 0, 5])));
    assert_eq!(choice["token_ids"].as_array().map(Vec::len), Some(12));
    assert_eq!((&choice["stop_reason"], &choice["finish_reason"]), (&Value::Null, &json!("length")));
    let (tokens, numbers) = (&choice["logprobs"]["tokens"], &choice["logprobs"]["token_logprobs"]);
    for (place, top) in choice["logprobs"]["top_logprobs"].as_array().expect("tokens").iter().enumerate() {
        assert_eq!(top.as_object().map(serde_json::Map::len), Some(2));
        let drawn = top[tokens[place].as_str().expect("a token")].as_f64();
        assert_eq!(drawn, numbers[place].as_f64());
        assert!(top.as_object().expect("tokens").values().all(|other| other.as_f64() <= drawn), "{top}");
    }
    let stop: String = text.chars().skip(4).take(3).collect();
    let before = &text[..text.find(&stop).expect("it is there")];
    for (keep, expected) in [(false, before.to_owned()), (true, format!("{before}{stop}"))] {
        let more = json!({"stop": [stop, "never"], "include_stop_str_in_output": keep, "logprobs": null});
        let cut = server.ask("completions", with(body.clone(), more.clone()));
        let cut = &cut["choices"][0];
        assert_eq!((&cut["text"], &cut["stop_reason"]), (&json!(expected), &json!(stop)));
        assert_eq!((&cut["finish_reason"], &cut["logprobs"]), (&json!("stop"), &Value::Null));
        let chunks = server.streamed("completions", with(body.clone(), more));
        let told: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
        let last = &chunks.last().expect("a chunk")["choices"][0];
        assert_eq!((told, &last["stop_reason"]), (expected, &json!(stop)));
        assert_eq!(last["token_ids"], cut["token_ids"]);
        let prompts = chunks.iter().filter(|chunk| chunk["prompt_token_ids"] == json!([39, 0, 5]));
        assert_eq!((prompts.count(), &chunks[0]["prompt_token_ids"]), (1, &json!([39, 0, 5])));
    }
}

#[test]
fn log_probabilities_of_either_distribution_come_with_the_stop_token() {
    let server = Server::start();
    let body = json!({"prompt": [[39, 0, 5]], "max_tokens": 1, "temperature": 0.5, "seed": 3, "logprobs": 1,
        "return_token_ids": true});
    let number = |mode: &str, temperature: f64| {
        let more = json!({"logprobs_mode": mode, "temperature": temperature});
        let choice = server.ask("completions", with(body.clone(), more))["choices"][0].clone();
        let tokens = choice["token_ids"].as_array().map(Vec::len);
        assert_eq!(tokens, choice["logprobs"]["token_logprobs"].as_array().map(Vec::len), "{choice}");
        choice["logprobs"]["token_logprobs"][0].as_f64().expect("a number")
    };
    assert!((number("raw_logprobs", 1.0) - number("processed_logprobs", 1.0)).abs() < 1e-12);
    assert!(number("raw_logprobs", 0.5) < number("processed_logprobs", 0.5), "a likely token becomes likelier");
    let told = server.refused("completions", with(body, json!({"logprobs_mode": "raw_logits"})));
    assert!(told.contains("`raw_logprobs` or `processed_logprobs`"), "{told}");
    let server = Server::start_of(write_searching_model, &["--listen", "127.0.0.1:0"], None);
    let body = json!({"messages": [user("Hi")], "max_tokens": 9, "logprobs": true, "return_token_ids": true});
    let choice = server.ask("chat/completions", body)["choices"][0].clone();
    let ids = choice["token_ids"].as_array().expect("ids");
    assert_eq!((ids.len(), ids.last(), &choice["finish_reason"]), (2, Some(&json!(258)), &json!("stop")));
    assert_eq!(choice["logprobs"]["content"].as_array().map(Vec::len), Some(2), "{choice}");
}

/// Returns the rows of a JSONL file.
fn lines(mill: &Mill, name: &str) -> Vec<Value> {
    mill.read(name).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn recorded_tokens_are_the_same_behind_the_server_as_in_the_process() {
    let server = Server::start_of(write_searching_model, &["--listen", "127.0.0.1:0"], None);
    let rules = "protocol: search-r1, invalid_action: tell, max_turns: 3, search: {top_k: 1}, samples: 2, record: tokens, \
                 max_observation_tokens: 60, count: {tokenizer: student}, user_prompt: \"Question: {question}\\n\"";
    let sampling = "model: student, api: completions, temperature: 0, max_tokens: 12";
    let rollout = |policy: &str| {
        format!("{{op: rollout, from: {{questions: some, search: bm25}}, with: {{policy: {policy}, {rules}}}}}")
    };
    let (here, there) = (
        rollout(&format!("{{model: {{{sampling}}}}}")),
        rollout(&format!("{{endpoint: {{base_url: \"{}\", logprobs: processed, {sampling}}}}}", server.base)),
    );
    server.mill.write(
        "pipeline.yaml",
        &format!(
            "name: tokens\nnodes:\n  world: {{op: generate-world, with: {{documents: 100, questions: 40}}, seed: 1}}\n  \
             some: {{op: sample, from: world.questions, with: {{n: 4}}, seed: 1}}\n  \
             chunks: {{op: chunk, from: world, with: {{size: 40}}}}\n  bm25: {{op: index, from: chunks, with: {{kind: bm25}}}}\n  \
             here: {here}\n  there: {there}\n  \
             file_here: {{op: write, from: here, with: {{path: here.jsonl}}}}\n  \
             file_there: {{op: write, from: there, with: {{path: there.jsonl}}}}\n"
        ),
    );
    let ran = server.mill.run(&[]).exit(0);
    assert!(ran.stdout.contains("recorded tokens: 24 sampled in 8 rollouts; earlier turns were never rewritten"));
    let (here, there) = (lines(&server.mill, "here.jsonl"), lines(&server.mill, "there.jsonl"));
    assert_eq!((here.len(), there.len()), (8, 8));
    for (one, other) in here.iter().zip(&there) {
        assert_eq!(one["messages"], other["messages"]);
        let (spans, others) = (one["tokens"].as_array().expect("spans"), other["tokens"].as_array().expect("spans"));
        assert!(spans.len() == 6 && others.len() == 6, "three turns: {one}\n{other}");
        for (span, other) in spans.iter().zip(others) {
            for field in ["message", "branch", "sampled", "ids"] {
                assert_eq!(span[field], other[field], "{field}");
            }
            let numbers = |span: &Value| -> Vec<f64> {
                span["logprobs"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
            };
            assert_eq!(numbers(span), numbers(other));
            assert_eq!(
                numbers(span).len(),
                if span["sampled"] == true { span["ids"].as_array().map_or(0, Vec::len) } else { 0 }
            );
        }
        let sampling = |row: &Value| (row["sampling"]["temperature"].clone(), row["sampling"]["logprobs"].clone());
        assert_eq!((sampling(one), sampling(one)), (sampling(other), (json!(0.0), json!("processed"))));
    }
    assert_eq!(server.mill.run(&[]).exit(0).ran(), "");
    assert!(here.iter().all(|row| row["cut_observations"].as_array().map(Vec::len) == Some(2)));
    server.mill.call(&["audit", "here", "--rollouts", "--replay"]).exit(0);
    server.mill.call(&["audit", "there", "--rollouts"]).exit(0);
}

#[test]
fn a_last_message_is_continued() {
    let server = Server::start();
    let end = json!({"role": "assistant", "content": "Then"});
    let more = json!({"continue_final_message": true, "add_generation_prompt": false, "return_token_ids": true, "logprobs": true,
        "top_logprobs": 1, "temperature": 0, "max_tokens": 6});
    let chat = server.ask("chat/completions", with(json!({"messages": [user("Hi"), end]}), more.clone()));
    // The model has no control tokens: its chat template is plain text.
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nThen";
    let same = json!({"prompt": prompt, "temperature": 0, "max_tokens": 6, "return_token_ids": true});
    let text = server.ask("completions", same);
    assert_eq!(chat["choices"][0]["message"]["content"], text["choices"][0]["text"]);
    assert_eq!(chat["choices"][0]["token_ids"], text["choices"][0]["token_ids"]);
    assert_eq!(chat["prompt_token_ids"], text["prompt_token_ids"]);
    let tokens = chat["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 6);
    for token in tokens {
        assert_eq!(
            (&token["token"], &token["logprob"]),
            (&token["top_logprobs"][0]["token"], &token["top_logprobs"][0]["logprob"])
        );
        assert_eq!(token["bytes"], json!(token["token"].as_str().expect("text").as_bytes()));
    }
    let refused = server.refused("chat/completions", with(json!({"messages": [user("Hi")]}), more));
    assert!(refused.contains("assistant message"), "{refused}");
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
    assert_eq!(long, "the prompt has 2000 tokens, but this model's maximum context length is 1024 tokens");
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

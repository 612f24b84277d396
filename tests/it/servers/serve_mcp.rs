//! Tests of the MCP server of `serve env`: streamable HTTP, SSE and stdio.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;

use serde_json::{Value, json};

use super::serve_env::{SMALL, Server, project};

fn request(id: u32, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn call(id: u32, name: &str, arguments: Value) -> Value {
    request(id, "tools/call", json!({"name": name, "arguments": arguments}))
}

fn initialize(revision: &str) -> Value {
    let client = json!({"name": "test", "version": "1"});
    request(1, "initialize", json!({"protocolVersion": revision, "capabilities": {}, "clientInfo": client}))
}

/// Returns the text of a tool's result, and whether it is an error.
fn text(answer: &Value) -> (String, bool) {
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (text.to_owned(), result["isError"].as_bool().expect("a flag"))
}

#[test]
fn a_batch_has_the_limits_of_one_request() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25", "--max-queries", "3", "--max-documents", "5"], None);
    let searches = |count: u32, top_k: u32| -> Value {
        (0..count).map(|id| call(id, "search", json!({"query": "capital", "top_k": top_k}))).collect()
    };
    let (status, _, answers) = server.post("/mcp", &searches(2, 2));
    assert_eq!((status, answers.as_array().map(Vec::len)), (200, Some(2)));
    let retrieves: Value = (0..2).map(|id| call(id, "retrieve", json!({"query": "capital"}))).collect();
    let pings: Value = (0..4).map(|id| request(id, "ping", json!({}))).collect();
    for (batch, told) in [
        (searches(3, 2), "ask for 6 documents (limit 5)"),
        (retrieves, "ask for 6 documents (limit 5)"),
        (pings, "4 messages in one request (limit 3)"),
    ] {
        let (status, _, answer) = server.post("/mcp", &batch);
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 413 && message.contains(told), "{status} {answer}");
    }
}

#[test]
fn tools_are_listed_and_called_over_http() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let ask = |message: Value| server.ask("/mcp", message);
    for (asked, given) in [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("1999-01-01", "2025-11-25")] {
        let answer = ask(initialize(asked));
        assert_eq!(answer["result"]["protocolVersion"], given, "{answer}");
        assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!(1), &json!("2.0")));
    }
    let (status, _, nothing) = server.post("/mcp", &json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    assert_eq!((status, nothing), (202, json!("")));
    assert_eq!(ask(request(2, "ping", json!({})))["result"], json!({}));
    let listed = ask(request(3, "tools/list", json!({})));
    let tools = listed["result"]["tools"].as_array().expect("tools");
    assert_eq!(tools.iter().map(|tool| &tool["name"]).collect::<Vec<_>>(), [&json!("retrieve"), &json!("search")]);
    // The definition that models trained with the seed have seen.
    assert_eq!(
        tools[0]["inputSchema"],
        json!({"properties": {"query": {"title": "Query", "type": "string"},
            "with_meta": {"default": false, "title": "With Meta", "type": "boolean"}},
            "required": ["query"], "type": "object"})
    );

    let found = ask(call(4, "retrieve", json!({"query": "capital of Italy"})));
    let items = &found["result"]["structuredContent"]["result"];
    let (listed, is_error) = text(&found);
    assert_eq!((serde_json::from_str::<Value>(&listed).expect("JSON"), is_error), (items.clone(), false));
    assert_eq!(items[0]["chunk"], "Rome\nThe capital of Italy, on the Tiber.");
    assert_eq!(items[0]["chunk_id"], "rome#0");
    assert!(items[0]["score"].as_f64() > items[1]["score"].as_f64() && items[0].get("metadata").is_none());
    assert_eq!(found["result"]["_meta"]["searchmill/index"], mill.artifacts()["bm25.index"]);
    let described = ask(call(5, "retrieve", json!({"query": "Italy", "with_meta": true})));
    let metadata = &described["result"]["structuredContent"]["result"][0]["metadata"];
    assert_eq!(metadata, &json!({"document_id": "rome", "title": "Rome"}));
    let passages = ask(call(6, "search", json!({"query": "capital", "top_k": 1})));
    assert!(text(&passages).0.starts_with("[1] ") && !text(&passages).0.contains("[2]"), "{passages}");
    assert_eq!(text(&ask(call(7, "search", json!({"query": "xyzzy"})))).0, "No passages were found.");
}

#[test]
fn odd_messages_are_errors_and_never_empty_results() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25", "--max-top-k", "50"], None);
    let ask = |message: Value| server.ask("/mcp", message);
    for (arguments, about) in [
        (json!({"query": " "}), "the `query` is empty"),
        (json!({"q": "x"}), "needs a text `query`"),
        (json!({"query": 5}), "needs a text `query`"),
        (json!({"query": "x", "top_k": 0}), "`top_k` must be between 1 and 50"),
        (json!({"query": "x", "top_k": "3"}), "whole number"),
        (Value::Null, "needs a text `query`"),
    ] {
        let (told, is_error) = text(&ask(call(1, "search", arguments.clone())));
        assert!(is_error && told.contains(about), "{arguments}: {told}");
    }
    for (message, code) in [
        (request(1, "dance", json!({})), -32601),
        (call(2, "dance", json!({})), -32602),
        (json!({}), -32600),
        (json!([]), -32600),
        (json!(5), -32600),
    ] {
        let answer = ask(message.clone());
        assert_eq!(
            (&answer["error"]["code"], &answer["jsonrpc"]),
            (&json!(code), &json!("2.0")),
            "{message}: {answer}"
        );
    }
    let cut = server.client.post(server.url("/mcp")).body("{\"jsonrpc\"");
    let answer = server.runtime.block_on(super::serve_env::told(cut)).2;
    assert_eq!(answer["error"]["code"], -32700);
    let batch = ask(json!([request(1, "ping", json!({})), {"jsonrpc": "2.0", "method": "notifications/x"}]));
    assert_eq!(batch, json!([{"jsonrpc": "2.0", "id": 1, "result": {}}]));
    let unknown = server.client.post(server.url("/mcp")).header("mcp-protocol-version", "1999").json(&json!({}));
    let (status, _, told) = server.runtime.block_on(super::serve_env::told(unknown));
    assert_eq!(
        (status, &told["error"]["code"], &told["error"]["data"]["supported"][4]),
        (400, &json!(-32022), &json!("2026-07-28"))
    );
    assert_eq!(server.get("/mcp").0, 405, "no stream without a request");
    // OpenEnv's clients open a session without a handshake.
    let session = ask(request(1, "openenv/session/create", json!({})))["result"]["session_id"].clone();
    let params = json!({"name": "search", "arguments": {"query": "Tiber"}, "session_id": session});
    assert!(text(&ask(request(2, "tools/call", params))).0.contains("Rome"));
    let closed = ask(request(3, "openenv/session/close", json!({"session_id": session})));
    assert_eq!(closed["result"], json!({"session_id": session, "closed": true}));
}

#[test]
fn requests_without_a_handshake_name_their_revision() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let meta = |revision: &str| json!({"io.modelcontextprotocol/protocolVersion": revision});
    let ask = |method: &str, params: Value| server.ask("/mcp", request(1, method, params));
    let discovered = ask("server/discover", json!({"_meta": meta("2026-07-28")}))["result"].clone();
    assert_eq!(
        (&discovered["resultType"], &discovered["supportedVersions"][4]),
        (&json!("complete"), &json!("2026-07-28"))
    );
    assert!(discovered["capabilities"]["tools"].is_object() && discovered["ttlMs"].is_u64(), "{discovered}");
    let params = json!({"name": "search", "arguments": {"query": "Tiber"}, "_meta": meta("2026-07-28")});
    let found = ask("tools/call", params.clone());
    assert_eq!(found["result"]["resultType"], "complete", "{found}");
    assert!(text(&found).0.contains("Rome"));
    let unknown = ask("tools/list", json!({"_meta": meta("1999-01-01")}));
    assert_eq!(unknown["error"]["code"], -32022, "{unknown}");
    for (headers, status) in [
        (vec![("mcp-method", "tools/call"), ("mcp-name", "search")], 200),
        (vec![("mcp-method", "tools/list")], 400),
        (vec![("mcp-method", "tools/call"), ("mcp-name", "retrieve")], 400),
    ] {
        let mut sent = server.client.post(server.url("/mcp")).json(&request(1, "tools/call", params.clone()));
        for (name, value) in &headers {
            sent = sent.header(*name, *value);
        }
        let (found, _, answer) = server.runtime.block_on(super::serve_env::told(sent));
        assert_eq!(found, status, "{headers:?}: {answer}");
        assert_eq!(status == 400, answer["error"]["code"] == -32020, "{answer}");
    }
}

#[test]
fn the_older_transport_answers_over_its_stream() {
    let mill = project(SMALL);
    let server = Server::start(&mill, &["bm25"], None);
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("set");
    stream.write_all(b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n").expect("sent");
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
    let mut data = |event: &str| {
        let found = lines.any(|line| line == format!("event: {event}"));
        assert!(found, "no event {event}");
        lines.next().and_then(|line| line.strip_prefix("data: ").map(str::to_owned)).expect("data")
    };
    let address = data("endpoint");
    assert!(address.starts_with("/messages?session_id="), "{address}");
    let (status, _, told) = server.post(&address, &initialize("2024-11-05"));
    assert_eq!((status, told), (202, json!("")));
    let answer: Value = serde_json::from_str(&data("message")).expect("JSON");
    assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
    server.post(&address, &call(2, "retrieve", json!({"query": "Tiber"})));
    let answer: Value = serde_json::from_str(&data("message")).expect("JSON");
    assert!(text(&answer).0.contains("rome#0"), "{answer}");
    for (path, status) in [("/messages", 400), ("/messages?session_id=nobody", 404)] {
        assert_eq!(server.post(path, &initialize("2024-11-05")).0, status, "{path}");
    }
}

#[test]
fn lines_on_stdin_are_answered_on_stdout() {
    let mill = project(SMALL);
    let mut command = mill.command(&["serve", "env", "bm25", "--stdio", "--journal", "journal.jsonl"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout")).lines();
    let mut ask = |text: &str| {
        stdin.write_all(format!("{text}\n").as_bytes()).expect("sent");
        let line = lines.next().expect("an answer").expect("a line");
        serde_json::from_str::<Value>(&line).expect("JSON")
    };
    assert_eq!(ask(&initialize("2025-06-18").to_string())["result"]["serverInfo"]["name"], "searchmill");
    let notice = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    let found = ask(&format!("{notice}\n\n{}", call(2, "search", json!({"query": "Tiber"}))));
    assert_eq!(found["id"], 2, "neither the notification nor the blank line has an answer");
    assert!(text(&found).0.contains("Rome"), "{found}");
    assert_eq!(ask("{")["error"]["code"], -32700);
    drop(stdin);
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    let journal: Value = serde_json::from_str(&mill.read("journal.jsonl")).expect("one line");
    assert_eq!((&journal["route"], &journal["ids"]), (&json!("stdio"), &json!([["rome#0"]])));
}

//! Tests of the episodes of `serve env`: OpenEnv over HTTP and WebSocket, NeMo Gym, and R1-Searcher's rewards.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::serve_env::{DOCUMENTS, Server, told};
use crate::harness::project::Mill;

const QUESTIONS: &str = r#"{"id": "q1", "question": "What is the capital of Italy?", "golden_answers": ["Rome"]}
{"id": "q2", "question": "Who made telephones?", "golden_answers": ["AT&T", "American Telephone"]}
{"id": "q3", "question": "Nobody knows?", "golden_answers": []}
"#;

const PIPELINE: &str = "\
name: episodes
nodes:
  corpus:    {op: read, with: {path: documents.jsonl, as: document}}
  chunks:    {op: chunk, from: corpus, with: {size: 60, count: words}}
  bm25:      {op: index, from: chunks, with: {kind: bm25}}
  questions: {op: read, with: {path: questions.jsonl, as: question}}
  rollouts:  {op: rollout, from: {questions: questions, search: bm25}, with: {policy: {evidence: {}}, protocol: search-r1}}
";

pub(crate) fn project() -> Mill {
    let mill = Mill::new();
    mill.write("documents.jsonl", DOCUMENTS);
    mill.write("questions.jsonl", QUESTIONS);
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill
}

fn serve(mill: &Mill, more: &[&str]) -> Server {
    Server::start(mill, &[&["bm25", "--questions", "questions"], more].concat(), None)
}

/// Roles and texts of messages.
fn texts(messages: &Value) -> Vec<(String, String)> {
    let read = |message: &Value| {
        let part = |name: &str| message[name].as_str().expect("text").to_owned();
        (part("role"), part("content"))
    };
    messages.as_array().expect("messages").iter().map(read).collect()
}

#[test]
fn an_episode_is_that_of_a_rollout() {
    let mill = project();
    let server = serve(&mill, &["--protocol", "search-r1", "--reward", "search-r1-v0.2"]);
    let rollouts = mill.call(&["show", "rollouts", "--json", "-n", "0"]).exit(0).events();
    assert_eq!(rollouts.len(), 3);
    for rollout in rollouts.iter().filter(|rollout| rollout["question_id"] != "q3") {
        let recorded = texts(&rollout["messages"]);
        let first = server.ask("/reset", json!({"question_id": rollout["question_id"], "seed": null, "x": [1]}));
        assert_eq!((&first["done"], &first["reward"]), (&json!(false), &Value::Null), "{first}");
        let observation = &first["observation"];
        assert_eq!(observation["stop"], json!(["</search>", "</answer>"]));
        assert_eq!((&observation["one_text"], &observation["tools_offered"]), (&json!(true), &json!(true)));
        let mut played = texts(&observation["messages"]);
        let mut last = Value::Null;
        for message in recorded.iter().filter(|(role, _)| role == "assistant") {
            played.push(message.clone());
            let step = json!({"episode_id": observation["episode_id"], "action": {"message": message.1}});
            last = server.ask("/step", step);
            played.extend(texts(&last["observation"]["messages"]));
        }
        assert_eq!(played, recorded);
        assert_eq!(last["done"], json!(true), "{last}");
        assert_eq!(last["observation"]["finish_reason"], rollout["finish_reason"]);
        assert_eq!(last["observation"]["prediction"], rollout["prediction"]);
        let right = rollout["golden_answers"].as_array().expect("answers").contains(&rollout["prediction"]);
        assert_eq!(last["reward"], json!(f64::from(u8::from(right))), "{last}");
        let id = observation["episode_id"].as_str().expect("an id");
        let state = server.get(&format!("/state?episode_id={id}")).2;
        assert_eq!((&state["done"], &state["question_id"]), (&json!(true), &rollout["question_id"]), "{state}");
        let (status, detail) = server.refused("/step", json!({"episode_id": id, "action": {"message": "more"}}));
        assert!(status == 409 && detail.contains("reset first"), "{status} {detail}");
    }
}

#[test]
fn tool_calls_are_answered_and_wrong_ones_are_told() {
    let mill = project();
    mill.write("rules.yaml", "max_turns: 4\nmax_searches: 1\nreward: {sum: [{f1: 1}, {answered: 0.5}]}\n");
    let server = serve(&mill, &["--episodes", "rules.yaml"]);
    let first = server.ask("/reset", json!({"seed": 4, "episode_id": "mine"}));
    assert_eq!(first["observation"]["question_id"], "q1", "4 modulo 2: the third cannot be judged");
    assert_eq!(first["observation"]["tools"][0]["function"]["name"], "search");
    let step = |action: Value| server.ask("/step", json!({"episode_id": "mine", "action": action}));
    let call = |id: &str, arguments: Value| json!({"id": id, "name": "search", "arguments": arguments});
    let two = step(json!({"message": "", "tool_calls": [call("a", json!({"query": "Tiber"})), call("b", json!("{"))]}));
    let shown = &two["observation"]["messages"];
    assert_eq!((&shown[0]["tool_call_id"], &shown[0]["chunk_ids"]), (&json!("a"), &json!(["rome#0"])), "{two}");
    assert!(shown[0]["content"].as_str().is_some_and(|text| text.starts_with("[1] Rome\n")), "{two}");
    assert!(shown[1]["error"].as_str().is_some_and(|error| error.contains("not valid JSON")), "{two}");
    let used = step(json!({"tool_calls": [call("c", json!({"query": "Seine"}))]}));
    assert!(used["observation"]["messages"][0]["content"].as_str().expect("text").contains("used up"), "{used}");
    let end = step(json!({"message": "<answer>Rome</answer>", "finish_reason": "stop", "completion_tokens": 4}));
    assert_eq!((&end["reward"], &end["done"]), (&json!(1.5), &json!(true)), "{end}");
    assert_eq!(end["observation"]["reward_parts"], json!({"answered": 0.5, "f1": 1.0}));
}

#[test]
fn odd_requests_for_episodes_are_rejected_in_words() {
    let mill = project();
    let server = serve(&mill, &["--reward", "{sum: [{f1: 1}]}", "--max-episodes", "2"]);
    let id = server.ask("/reset", json!({}))["observation"]["episode_id"].clone();
    for (path, body, status, about) in [
        ("/reset", json!({"question_id": "q9"}), 404, "no question `q9`"),
        ("/reset", json!({"question_id": "q3"}), 400, "no golden answer"),
        ("/reset", json!({"question": "What else?"}), 404, "golden_answers"),
        ("/reset", json!({"episode_id": "x".repeat(300)}), 400, "255"),
        ("/reset", json!({"seed": -1}), 400, "seed"),
        ("/reset", json!([]), 400, "JSON object"),
        ("/step", json!({"action": {"message": "x"}}), 400, "`episode_id` is missing"),
        ("/step", json!({"episode_id": "nobody", "action": {"message": "x"}}), 404, "no episode `nobody`"),
        ("/step", json!({"episode_id": id, "action": {"text": "x"}}), 400, "unknown field `text`"),
        ("/step", json!({"episode_id": id, "action": {}}), 400, "needs `message`"),
        ("/step", json!({"episode_id": id, "action": {"message": 5}}), 400, "action"),
        ("/step", json!({"episode_id": id}), 400, "action"),
        ("/verify", json!({"question_id": "q1"}), 400, "needs `response`"),
        ("/verify", json!({"question_id": "q1", "response": {}}), 400, "needs `output`"),
        ("/verify", json!({"question_id": "q3", "response": {"output": []}}), 422, "no golden answer"),
        ("/get_reward", json!({"query": ["no prompt"]}), 400, "`query[0]`"),
        ("/get_reward", json!({"query": "x"}), 400, "query"),
    ] {
        let (found, detail) = server.refused(path, body.clone());
        assert!(found == status && detail.contains(about), "{path} {body}: {found} {detail}");
    }
    // An own question, with its golden answers.
    let own = json!({"question": "What else?", "golden_answers": ["x"], "episode_id": "own"});
    assert_eq!(server.ask("/reset", own)["observation"]["question"], "What else?");
    let (status, detail) = server.refused("/reset", json!({}));
    assert!(status == 429 && detail.contains("2 episodes are open (limit 2)"), "{status} {detail}");
    // A finished episode makes way.
    server.ask("/step", json!({"episode_id": "own", "action": {"message": "<answer>x</answer>"}}));
    server.ask("/reset", json!({}));
    assert_eq!(
        server.get("/state").2,
        json!({"episode_id": null, "step_count": 0, "question_id": null,
        "done": false, "reward": null})
    );
    let bare = Server::start(&mill, &["bm25"], None);
    for path in ["/reset", "/verify", "/get_reward", "/seed_session"] {
        let (status, detail) = bare.refused(path, json!({"query": [], "response": {}}));
        assert!(status == 404 && detail.contains("--questions"), "{path}: {status} {detail}");
    }
    assert_eq!(bare.get("/schema").0, 404);
    mill.write("wrong.yaml", "search:\n  topk: 3\n");
    mill.write("none.yaml", "max_turns: 0\n");
    mill.write("twice.yaml", "reward:\n  sum: [{f1: 1}]\n  system: research\n");
    for (args, about) in [
        (vec!["--protocol", "best"], "best"),
        (vec!["--reward", "research"], "rollouts of protocol `research`"),
        (vec!["--episodes", "nowhere.yaml"], "cannot read"),
        (vec!["--episodes", "wrong.yaml"], "wrong.yaml:2:3"),
        (vec!["--episodes", "wrong.yaml"], "did you mean `top_k`?"),
        (vec!["--episodes", "none.yaml"], "none.yaml:1:12"),
        (vec!["--episodes", "twice.yaml"], "twice.yaml:2:8"),
        (vec!["--questions", "chunks"], "chunks"),
        (vec!["--questions", "questions", "--max-episodes", "0"], "--max-episodes"),
    ] {
        let told = mill.call(&[vec!["serve", "env", "bm25", "--listen", "127.0.0.1:0"], args.clone()].concat());
        assert!(told.code != 0 && told.stderr.contains(about), "{args:?}: {} {}", told.code, told.stderr);
    }
}

/// A WebSocket to `/ws`.
struct Socket(WebSocketStream<tokio::net::TcpStream>);

/// Sends the handshake and returns the connection with the head of its answer.
fn shake(server: &Server, more: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address().replace("0.0.0.0", "127.0.0.1")).expect("a connection");
    let head = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    stream.write_all(format!("{head}{more}\r\n").as_bytes()).expect("sent");
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("an answer") == 1 {
        answer.push(byte[0]);
    }
    (stream, String::from_utf8_lossy(&answer).into_owned())
}

impl Socket {
    fn open(server: &Server) -> Self {
        let (stream, head) = shake(server, "");
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        stream.set_nonblocking(true).expect("set");
        let _entered = server.runtime.enter();
        let stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
        Self(server.runtime.block_on(WebSocketStream::from_raw_socket(stream, Role::Client, None)))
    }

    fn ask(&mut self, server: &Server, message: &str) -> Value {
        server.runtime.block_on(async {
            self.0.send(Message::text(message)).await.expect("sent");
            let answer = tokio::time::timeout(Duration::from_secs(20), self.0.next()).await.expect("in time");
            let Some(Ok(Message::Text(text))) = answer else { panic!("{answer:?}") };
            serde_json::from_str(&text).expect("JSON")
        })
    }
}

#[test]
fn a_websocket_is_a_session() {
    let mill = project();
    let server = serve(&mill, &["--protocol", "search-r1", "--reward", "search-r1-v0.2", "--max-episodes", "2"]);
    let mut socket = Socket::open(&server);
    let ask = |socket: &mut Socket, message: Value| socket.ask(&server, &message.to_string());
    let code = |answer: &Value| answer["data"]["code"].as_str().map(str::to_owned);
    assert_eq!(code(&socket.ask(&server, "{")).as_deref(), Some("INVALID_JSON"));
    assert_eq!(code(&ask(&mut socket, json!({"type": "dance"}))).as_deref(), Some("UNKNOWN_TYPE"));
    let early = ask(&mut socket, json!({"type": "step", "data": {"message": "x"}}));
    assert_eq!(code(&early).as_deref(), Some("VALIDATION_ERROR"), "{early}");
    let state = ask(&mut socket, json!({"type": "state"}));
    assert_eq!((&state["type"], &state["data"]["episode_id"]), (&json!("state"), &Value::Null));
    let reset = ask(&mut socket, json!({"type": "reset", "data": {"question_id": "q1"}}));
    assert_eq!((&reset["type"], &reset["data"]["done"]), (&json!("observation"), &json!(false)), "{reset}");
    let found =
        ask(&mut socket, json!({"type": "step", "data": {"message": "<search>Italy</search>", "metadata": {}}}));
    let shown = found["data"]["observation"]["messages"][0]["content"].as_str().expect("text");
    assert!(shown.starts_with("\n\n<information>Doc 1(Title: Rome)"), "{shown}");
    let end = ask(&mut socket, json!({"type": "step", "data": {"message": "<answer>Rome</answer>"}}));
    assert_eq!((&end["data"]["reward"], &end["data"]["done"]), (&json!(1.0), &json!(true)), "{end}");
    assert_eq!(ask(&mut socket, json!({"type": "state"}))["data"]["step_count"], 2);
    let rpc = json!({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}});
    assert_eq!(ask(&mut socket, rpc)["data"]["result"]["tools"][1]["name"], "search");
    // Episodes end with their connections.
    let mut others: Vec<Socket> = (0..2).map(|_| Socket::open(&server)).collect();
    assert_eq!(ask(&mut others[0], json!({"type": "reset"}))["type"], "observation");
    assert_eq!(ask(&mut others[1], json!({"type": "reset"}))["type"], "observation", "a finished episode made way");
    assert_eq!(code(&ask(&mut socket, json!({"type": "reset"}))).as_deref(), Some("CAPACITY_REACHED"));
    drop(others.pop());
    let free = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        ask(&mut socket, json!({"type": "reset"}))["type"] == "observation"
    });
    assert!(free, "the episode of a closed connection is gone");
}

#[test]
fn tools_of_openenv_are_calls() {
    let mill = project();
    let server = serve(&mill, &["--reward", "{sum: [{f1: 1}]}"]);
    let mut socket = Socket::open(&server);
    let mut ask = |message: Value| socket.ask(&server, &message.to_string())["data"].clone();
    ask(json!({"type": "reset", "data": {"question_id": "q1"}}));
    let listed = ask(json!({"type": "step", "data": {"type": "list_tools"}}));
    let tools = &listed["observation"]["tools"];
    assert_eq!((&tools[0]["name"], &tools[0]["input_schema"]["type"]), (&json!("search"), &json!("object")));
    let call = json!({"type": "call_tool", "tool_name": "search", "arguments": {"query": "Tiber"}});
    let called = ask(json!({"type": "step", "data": call}));
    assert_eq!(called["observation"]["tool_name"], "search");
    assert!(called["observation"]["result"].as_str().is_some_and(|text| text.contains("capital of Italy")), "{called}");
}

#[test]
fn nobody_enters_by_the_socket_who_does_not_by_the_door() {
    let mill = project();
    let server = serve(&mill, &[]);
    for (more, status) in [("Origin: http://evil.example\r\n", 403), ("Origin: http://localhost:3000\r\n", 101)] {
        let (_, head) = shake(&server, more);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{more}: {head}");
    }
    let plain = server.get("/ws");
    assert_eq!(plain.0, 426, "{plain:?}");
    let args = ["bm25", "--questions", "questions", "--listen", "0.0.0.0:0"];
    let closed = Server::start(&mill, &args, Some("open sesame"));
    assert!(shake(&closed, "").1.starts_with("HTTP/1.1 401 "));
    assert!(shake(&closed, "Authorization: Bearer open sesame\r\n").1.starts_with("HTTP/1.1 101 "));
}

#[test]
fn open_sockets_and_streams_do_not_hold_up_the_end() {
    let mill = project();
    let mut server = serve(&mill, &[]);
    let mut socket = Socket::open(&server);
    socket.ask(&server, &json!({"type": "reset"}).to_string());
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    stream.write_all(b"GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut first = [0; 64];
    assert!(stream.read(&mut first).expect("a head") > 0);
    let start = Instant::now();
    server.signal("-TERM");
    let farewell =
        server.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), socket.0.next()).await });
    assert!(matches!(farewell, Ok(Some(Ok(Message::Close(Some(_)))))), "{farewell:?}");
    assert_eq!(server.child.wait().expect("it ends").code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

#[test]
fn nemo_gym_searches_and_judges() {
    let mill = project();
    mill.write("rules.yaml", "max_searches: 2\nreward: {sum: [{f1: 1}, {retrieved: 1}]}\n");
    let server = serve(&mill, &["--episodes", "rules.yaml"]);
    let row = json!({"responses_create_params": {"input": [{"role": "user", "content": "x"}]}, "question_id": "q1"});
    let (cookie, seeded) = server.runtime.block_on(async {
        let answer = server.client.post(server.url("/seed_session")).json(&row).send().await.expect("an answer");
        let cookie = answer.headers()["set-cookie"].to_str().expect("text").split(';').next().map(str::to_owned);
        (cookie.expect("a cookie"), answer.json::<Value>().await.expect("JSON"))
    });
    assert_eq!(seeded, json!({}));
    let call = |path: &str, body: &Value| {
        let request = server.client.post(server.url(path)).header("cookie", &cookie).json(body);
        server.runtime.block_on(told(request))
    };
    let (status, _, found) = call("/search", &json!({"query": "capital of Italy"}));
    let text = found.as_str().expect("text, as in a rollout");
    assert!(status == 200 && text.starts_with("[1] Rome\n"), "{status} {text}");
    let (_, _, wrong) = call("/search", &json!({"q": "x"}));
    assert!(wrong.as_str().is_some_and(|text| text.starts_with("Error: ")), "{wrong}");
    call("/search", &json!({"query": "Seine"}));
    let (_, _, refused) = call("/search", &json!({"query": "more"}));
    assert!(refused.as_str().is_some_and(|text| text.contains("used up")), "{refused}");
    // Without the cookie, the address is ReSearch's.
    assert_eq!(server.ask("/search", json!({"query": "Tiber"}))[0]["id"], "rome#0");
    let output = json!([
        {"type": "function_call", "call_id": "c", "name": "search", "arguments": "{\"query\": \"capital of Italy\"}"},
        {"type": "function_call_output", "call_id": "c", "output": text},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "<answer>Rome</answer>"}]}]);
    let mut body = row.clone();
    body["response"] = json!({"id": "r", "output": output, "usage": {"output_tokens": 5}});
    let (status, _, verified) = call("/verify", &body);
    assert_eq!((status, &verified["reward"]), (200, &json!(2.0)), "{verified}");
    assert_eq!(verified["reward_components"], json!({"f1": 1.0, "retrieved": 1.0}));
    assert_eq!((&verified["response"], &verified["question_id"]), (&body["response"], &json!("q1")));
    // Judged again without a session.
    assert_eq!(server.ask("/verify", body)["reward"], json!(2.0));
    let Value::String(tasks) = server.get("/tasks.jsonl").2 else { panic!("lines") };
    let tasks: Vec<Value> = tasks.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((tasks.len(), &tasks[0]["question_id"]), (3, &json!("q1")));
    let params = &tasks[0]["responses_create_params"];
    assert_eq!((&params["tools"][0]["name"], &params["tools"][0]["type"]), (&json!("search"), &json!("function")));
    assert_eq!(params["input"][1], json!({"role": "user", "content": "What is the capital of Italy?"}));
    let named = json!({"resources_session_id": "s1", "episode_id": "e", "task_id": "q2", "task_data": {}});
    assert_eq!(server.ask("/seed_session", named), json!({"resources_session_id": "s1"}));
    let close = json!({"resources_session_id": "s1", "episode_id": "e"});
    assert_eq!(server.ask("/close_session", close.clone()), json!({"resources_session_id": "s1"}));
    assert_eq!(server.ask("/close_session", close), json!({"resources_session_id": "s1"}));
}

#[test]
fn r1_searchers_trainer_gets_its_rewards() {
    let mill = project();
    let prompt = "A conversation.\n\nUser:What is the  capital of Italy?\nAssistant: <think>";
    let right = format!("{prompt} I know it. </think>\n\n<answer> Rome </answer><|endoftext|>");
    let wrong = format!("{prompt} I am an assistant. </think>\n\n<answer> Paris </answer><|endoftext|>");
    let server =
        serve(&mill, &["--protocol", "r1-searcher", "--reward", "{system: r1-searcher-qwen, rule: published}"]);
    let asked = json!({"query": [right, wrong, right]});
    assert_eq!(server.ask("/get_reward", asked), json!({"rewards": [1.0, -2.0, 1.0]}));
    assert_eq!(server.ask("/get_reward", json!({"query": []})), json!({"rewards": []}));
    let chat = "<|start_header_id|>user<|end_header_id|>\n\nWhat is the capital of Italy?<|eot_id|>\
                <|start_header_id|>assistant<|end_header_id|>\n\n<think> a </think>\n\n<answer> Rome </answer><|eot_id|>";
    let pairs = serve(&mill, &["--protocol", "r1-searcher", "--reward", "r1-searcher-llama-stage-1"]);
    assert_eq!(pairs.ask("/get_reward", json!({"query": [chat]})), json!({"rewards": [[1.5, 0]]}));
    let other = serve(&mill, &["--protocol", "search-r1", "--reward", "search-r1-v0.2"]);
    let (status, detail) = other.refused("/get_reward", json!({"query": [right]}));
    assert!(status == 404 && detail.contains("--reward r1-searcher-qwen"), "{status} {detail}");
}

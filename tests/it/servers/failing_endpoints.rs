//! Tests of endpoints that are set up wrong or fail: what a run says, how soon it stops, and what stays.

use std::time::{Duration, Instant};

use searchmill_fixtures::failing_server::{Answer, FailingServer, message, models, said};
use serde_json::{Value, json};

use crate::harness::endpoint::{PIPELINE, document};
use crate::harness::project::{Mill, Told};

const KEY: &str = "hush-4711-key";
/// Calls to a server that only fails (at most): eight rows in a row with two attempts each, and what is in flight beside a
/// slow one.
const MOST: usize = 40;
const CHAT: &str = "POST /v1/chat/completions";

/// A project of the pipeline with this many questions.
fn mill(questions: usize) -> Mill {
    let mill = Mill::new();
    mill.write("pipeline.yaml", PIPELINE);
    mill.write("documents.jsonl", &document("Rome is the capital of Italy."));
    let line = |number: usize| {
        let row = json!({"id": format!("q{number}"), "question": format!("q{number}"), "golden_answers": ["Rome"],
            "evidence": []});
        format!("{row}\n")
    };
    mill.write("questions.jsonl", &(0..questions).map(line).collect::<String>());
    mill
}

fn replace(mill: &Mill, from: &str, to: &str) {
    let text = mill.read("pipeline.yaml");
    assert!(text.contains(from), "{from}");
    mill.write("pipeline.yaml", &text.replace(from, to));
}

/// Runs the pipeline with this base URL, as people do.
fn run(mill: &Mill, base: &str, more: &[&str]) -> Told {
    let mut command = mill.command(&[&["run", "pipeline.yaml"], more].concat());
    command.env("ENDPOINT", base).env("API_KEY", KEY);
    let told = Told::new(command.output().expect("a run"));
    crate::say(&format!("$ searchmill run pipeline.yaml {}\n{}{}", more.join(" "), told.stderr, told.stdout));
    told
}

/// Returns the number of a question, or 0.
fn number(body: &Value) -> usize {
    let asked = body["messages"].as_array().into_iter().flatten().find(|message| message["role"] == "user");
    let text = asked.and_then(|message| message["content"].as_str()).unwrap_or_default();
    text.trim_start_matches('q').parse().unwrap_or_default()
}

fn good() -> Option<Answer> {
    message("<answer>Rome</answer>")
}

fn vllm(status: u16, message: &str) -> Option<Answer> {
    said(status, &json!({"object": "error", "message": message, "type": "BadRequestError", "code": status}))
}

/// Checks that a run stopped, and that its words and its help say these things.
#[track_caller]
fn stopped(told: &Told, words: &[&str]) {
    assert_eq!(told.code, 5, "{}{}", told.stdout, told.stderr);
    for word in words {
        assert!(told.stderr.contains(word), "{word}:\n{}", told.stderr);
    }
}

#[test]
fn a_wrong_model_name_costs_one_call_and_names_the_models() {
    let server = FailingServer::start(|request, _, _| match request {
        CHAT => vllm(404, "The model `m` does not exist."),
        "GET /v1/models" => models(&["qwen3-4b", "qwen3-8b"]),
        _ => said(404, &json!({"detail": "Not Found"})),
    });
    let mill = mill(100);
    let told = run(&mill, &format!("{}/v1", server.address), &[]);
    stopped(
        &told,
        &[
            "refused the first call",
            "answered 404 Not Found: The model `m` does not exist.",
            "correct `model`; the server has the models `qwen3-4b`, `qwen3-8b`",
        ],
    );
    assert_eq!((server.count("POST"), server.count("GET")), (1, 1));
}

#[test]
fn a_model_that_ollama_lacks_says_how_to_get_it() {
    let server = FailingServer::start(|request, _, _| match request {
        CHAT => said(
            404,
            &json!({"error": {"message": "model \"m\" not found, try pulling it first", "type": "api_error"}}),
        ),
        "GET /v1/models" => models(&["llama3.2:latest"]),
        _ => Some((404, Vec::new(), "404 page not found".to_owned())),
    });
    let told = run(&mill(20), &format!("{}/v1", server.address), &[]);
    stopped(&told, &["model \"m\" not found", "run `ollama pull m`; the server has the model `llama3.2:latest`"]);
}

#[test]
fn a_wrong_address_is_told_with_the_right_one() {
    let page = "<!DOCTYPE html><html><head><title>Chat</title></head><body>Sign in</body></html>";
    for (given, status, body) in [
        ("", 404, "{\"detail\":\"Not Found\"}"),
        ("/v1/v1", 404, "404 page not found"),
        ("/api/chat", 405, ""),
        ("", 200, page),
        ("/v1/models", 404, "<html><h1>404 Not Found</h1></html>"),
    ] {
        let server = FailingServer::start(move |request, _, _| match request {
            CHAT => good(),
            "GET /v1/models" => models(&["m"]),
            _ => Some((status, Vec::new(), body.to_owned())),
        });
        let told = run(&mill(30), &format!("{}{given}", server.address), &[]);
        let right = format!("write `base_url: {}/v1`", server.address);
        stopped(&told, &["refused the first call", &right]);
        assert_eq!(server.count("POST"), 1, "{given} {status}");
        assert!(!told.stderr.contains("<h1>") && !told.stderr.contains("<title>"), "{}", told.stderr);
    }
    for given in ["/v1/", "/v1/chat/completions", "/v1/completions"] {
        let server =
            FailingServer::start(|request, _, _| if request == CHAT { good() } else { vllm(404, "Not Found") });
        assert_eq!(run(&mill(2), &format!("{}{given}", server.address), &[]).code, 0, "{given}");
    }
}

#[test]
fn a_server_without_a_parser_for_tools_costs_one_call() {
    let needs = "\"auto\" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set";
    for (status, words, help) in [
        (400, needs, "start vLLM with `--enable-auto-tool-choice --tool-call-parser NAME`"),
        (500, "tools param requires --jinja flag", "start llama-server with `--jinja`"),
        (400, "registry.ollama.ai/library/gemma:2b does not support tools", "`ollama show MODEL`"),
    ] {
        let refuses = move |_: &str, body: &Value, _: usize| {
            if body["tools"].is_array() { vllm(status, words) } else { good() }
        };
        let server = FailingServer::start(refuses);
        let told = run(&mill(100), &format!("{}/v1", server.address), &[]);
        stopped(&told, &[words, help, "received answers are stored"]);
        assert_eq!(server.count("POST"), 1);
    }
}

#[test]
fn tool_calls_that_are_left_in_the_text_are_told_at_the_first_one() {
    let call = "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"capital of Italy\"}}\n</tool_call>";
    let server = FailingServer::start(move |_, _, _| message(call));
    let told = run(&mill(12), &format!("{}/v1", server.address), &[]).exit(0);
    let first = told.stderr.find("holds a tool call as text").expect("a warning while it runs");
    assert!(first < told.stderr.find("done     answers").expect("the end of the node"), "{}", told.stderr);
    assert!(told.stdout.contains("12 of 12 rollouts hold tool calls as text"), "{}", told.stdout);
    assert!(told.stdout.contains("SGLang: `--tool-call-parser NAME`"), "{}", told.stdout);
}

#[test]
fn only_500s_end_after_eight_calls_with_the_servers_words() {
    let server = FailingServer::start(|request, _, _| match request {
        CHAT => said(500, &json!({"error": {"message": "CUDA out of memory", "type": "server_error"}})),
        _ => None,
    });
    let (mill, start) = (mill(100), Instant::now());
    let told = run(&mill, &format!("{}/v1", server.address), &[]);
    stopped(&told, &["8 calls in a row to", "(8 × 500)", "answered 500 Internal Server Error: CUDA out of memory"]);
    assert!(server.count("POST") <= MOST && start.elapsed() < Duration::from_secs(20), "{}", server.count("POST"));
    assert!(told.stdout.contains("calls failed") && told.stdout.contains("× 500"), "{}", told.stdout);
    // The server works again: every row is asked.
    let server = FailingServer::start(|_, _, _| good());
    run(&mill, &format!("{}/v1", server.address), &[]).exit(0);
    assert_eq!(server.count("POST"), 100);
}

#[test]
fn every_class_of_failure_ends_after_eight_calls() {
    type Reply = fn() -> Option<Answer>;
    let classes: [(&str, Reply); 6] = [
        ("403 Forbidden: not from here", || said(403, &json!({"error": "not from here"}))),
        ("400 Bad Request: bad seed", || vllm(400, "bad seed")),
        ("422 Unprocessable Entity: body.top_k: too large", || {
            said(422, &json!({"detail": [{"loc": ["body", "top_k"], "msg": "too large"}]}))
        }),
        ("503 Service Unavailable: Loading model", || vllm(503, "Loading model")),
        ("429 Too Many Requests: slow down", || vllm(429, "slow down")),
        ("the response has no choices: {\"ok\":true}", || said(200, &json!({"ok": true}))),
    ];
    for (words, reply) in classes {
        let server = FailingServer::start(move |_, _, _| reply());
        let told = run(&mill(60), &format!("{}/v1", server.address), &[]);
        stopped(&told, &["8 calls in a row", words]);
        assert!(server.count("POST") <= MOST, "{words}: {}", server.count("POST"));
    }
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let server = FailingServer::start(|_, _, _| None);
    let mill = mill(100);
    replace(&mill, "timeout_seconds: 2", "timeout_seconds: 0.5");
    let start = Instant::now();
    let told = run(&mill, &format!("{}/v1", server.address), &[]);
    stopped(&told, &["8 calls in a row to", "(8 × timeout)", "gave no answer within 0.5 s (`timeout_seconds`)"]);
    assert!(server.count("POST") <= MOST && start.elapsed() < Duration::from_secs(20), "{}", server.count("POST"));
    replace(&mill, "backoff: 10ms", "backoff: 10ms, stop_after: 0");
    assert_eq!(
        run(&mill, &format!("{}/v1", server.address), &["answers", "--limit", "20"]).code,
        3,
        "it asks to the end"
    );
}

#[test]
fn rows_that_are_too_long_stop_nothing_and_are_counted() {
    let server = FailingServer::start(|_, body, _| match number(body) {
        asked @ 0..30 => {
            let words =
                format!("This model's maximum context length is 2048 tokens. You requested {} tokens", 4000 + asked);
            vllm(400, &words)
        }
        asked @ 30..37 => vllm(400, &format!("row {asked} is odd")),
        _ => good(),
    });
    let mill = mill(60);
    let told = run(&mill, &format!("{}/v1", server.address), &[]).exit(3);
    assert_eq!(server.count("POST"), 60);
    let last = told.stdout.lines().find(|line| line.starts_with("done")).expect("the last line");
    for part in [
        "done with rejected rows in",
        "37 rows failed (30 × refused: http://",
        "maximum context length is 2048 tokens",
        "; 7 × refused: http://",
        "23 calls, ",
        "37 calls failed",
    ] {
        assert!(last.contains(part), "{part}: {last}");
    }
    let coloured = run(&mill, &format!("{}/v1", server.address), &["--color", "always"]).exit(3);
    assert!(!coloured.stdout.contains("\u{1b}[32mdone"), "not green: {}", coloured.stdout);
    let node = coloured.stderr.lines().find(|line| line.contains("answers") && line.contains("calls failed"));
    assert!(node.is_some_and(|line| line.starts_with("\u{1b}[33mdone")), "{}", coloured.stderr);
}

/// Answers each question; of five, one only after a 500, and one after a 429.
fn flaky(asked: &std::sync::Mutex<std::collections::BTreeSet<usize>>, body: &Value) -> Option<Answer> {
    let number = number(body);
    let is_first = asked.lock().expect("numbers").insert(number);
    match number % 5 {
        0 if is_first => vllm(500, "busy"),
        1 if is_first => Some((429, vec![("retry-after", "0.01".to_owned())], String::new())),
        _ => good(),
    }
}

#[test]
fn retries_are_visible_in_the_log_the_events_and_the_last_line() {
    let server = || {
        let asked = std::sync::Mutex::default();
        FailingServer::start(move |_, body, _| flaky(&asked, body))
    };
    let (first, events) = (server(), mill(25));
    let mut command = events.command(&["run", "pipeline.yaml", "--json"]);
    command.env("ENDPOINT", format!("{}/v1", first.address)).env("API_KEY", KEY);
    let told = Told::new(command.output().expect("a run")).exit(0);
    let retried: Vec<Value> = told.events().into_iter().filter(|event| event["event"] == "call_retried").collect();
    assert_eq!(retried.len(), 10);
    assert_eq!(
        (&retried[0]["node"], &retried[0]["attempt"], &retried[0]["of"]),
        (&json!("answers"), &json!(2), &json!(2))
    );
    assert!(retried.iter().any(|event| event["reason"] == "500" && event["message"].to_string().contains("busy")));
    let summary = told.summary();
    assert_eq!((&summary["calls"], &summary["failed_calls"]), (&json!(35), &json!(10)));
    assert_eq!(summary["retried"], json!({"429": 5, "500": 5}));
    let server = server();
    let told = run(&mill(25), &format!("{}/v1", server.address), &["-v"]).exit(0);
    assert!(
        told.stderr.contains("attempt 2 of 2 in 0.0 s: ") && told.stderr.contains("500 Internal Server Error: busy")
    );
    let last = told.stdout.lines().find(|line| line.starts_with("done")).expect("the last line");
    assert!(last.contains("25 calls, ") && last.contains("10 calls failed · 10 retried: 5 × 429, 5 × 500"), "{last}");
}

#[test]
fn a_servers_words_hold_no_secret_and_steer_no_terminal() {
    let server = FailingServer::start(|_, _, _| {
        let words = format!("{} wrong key {KEY} \u{1b}[2J\u{202e}", "x".repeat(280));
        Some((400, vec![("x-request-id", KEY.to_owned())], json!({"error": {"message": words}}).to_string()))
    });
    let mill = mill(3);
    let told = run(&mill, &format!("{}/v1", server.address), &[]).exit(3);
    let shown = mill.call(&["show", "answers", "--rejects", "--json"]).exit(0).stdout;
    for text in [&told.stdout, &told.stderr, &shown] {
        assert!(!text.contains("hush-4711") && !text.contains("\u{1b}[2J") && !text.contains('\u{202e}'), "{text}");
    }
    assert!(shown.contains("wrong key [secret"), "{shown}");
}

#[test]
fn the_other_operators_that_ask_a_model_stop_in_the_same_way() {
    let endpoint = "{endpoint: {base_url: \"${env:ENDPOINT}\", model: m, timeout_seconds: 2}}";
    let nodes = [
        format!(
            "  asked: {{op: map, from: questions, with: {{prompt: \"{{{{ question }}}}\", policy: {endpoint}, output: said}}}}\n"
        ),
        format!(
            "  rollouts: {{op: rollout, from: {{questions: questions}}, with: {{policy: evidence}}}}\n  asked: {{op: judge, \
             from: {{trajectories: rollouts}}, with: {{policy: {endpoint}}}}}\n"
        ),
    ];
    for node in nodes {
        let server = FailingServer::start(|_, _, _| vllm(404, "The model `m` does not exist."));
        let mill = mill(40);
        mill.write(
            "pipeline.yaml",
            &format!(
                "name: ask\nnodes:\n  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}\n{node}"
            ),
        );
        let told = run(&mill, &format!("{}/v1", server.address), &[]);
        stopped(&told, &["refused the first call", "The model `m` does not exist."]);
        assert_eq!(server.count("POST"), 1, "{node}");
    }
}

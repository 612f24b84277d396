//! Tests of `services:`: servers that live while their node runs, and what keys know of them.

use std::time::{Duration, Instant};

use crate::harness::project::Mill;

/// An OpenAI-compatible server that notes every request, and whether it is asked at all.
const SERVER: &str = r#"
import http.server, json, os, sys, time
port, word = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def tell(self, body):
        body = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.tell("{}")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open("asked.txt", "a") as asked: asked.write(f"{os.getpid()}\n")
        time.sleep(float(os.environ.get("SLOW", "0")))
        message = {"role": "assistant", "content": f"It is <answer>{word}</answer>"}
        self.tell(json.dumps({"model": "m", "choices": [{"message": message, "finish_reason": "stop"}],
                              "usage": {"prompt_tokens": 5, "completion_tokens": 3}}))
print("listening", flush=True)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"#;

const QUESTIONS: &str = r#"{"id": "a", "question": "Where?", "golden_answers": ["Oslo"]}
{"id": "b", "question": "Who?", "golden_answers": ["Ada"]}
{"id": "c", "question": "When?", "golden_answers": ["1900"]}
"#;

/// Begins every pipeline here.
const HEAD: &str = "name: served\nnodes:\n  questions: {op: read, with: {path: questions.jsonl, as: question}}\n";

fn pipeline(word: &str, more: &str) -> String {
    format!(
        r#"{HEAD}  rollouts:
    op: rollout
    from: questions
    services:
      teacher: {{program: [python3, server.py, "{{port}}", {word}], ready: /health, env: [SLOW]}}
    with: {{policy: {{endpoint: {{base_url: "${{service.teacher}}/v1", model: m}}}}, max_turns: 1{more}}}
    resources: {{concurrency: 1}}
"#
    )
}

fn mill() -> Mill {
    let mill = Mill::new();
    mill.write("server.py", SERVER);
    mill.write("questions.jsonl", QUESTIONS);
    mill.write("pipeline.yaml", &pipeline("Oslo", ""));
    mill
}

/// Process ids of the servers that were asked, one for each request.
fn asked(mill: &Mill) -> Vec<String> {
    let text = std::fs::read_to_string(mill.path("asked.txt")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn is_alive(pid: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_program_serves_while_its_node_runs() {
    let mill = mill();
    mill.run(&[]).exit(0);
    let shown = mill.call(&["show", "rollouts", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    assert!(shown.contains("It is <answer>Oslo</answer>"), "{shown}");
    let first = asked(&mill);
    assert_eq!(first.len(), 3);
    assert!(first.iter().all(|pid| !is_alive(pid)), "the server has ended with its node");
    let log = mill.call(&["logs", "--node", "rollouts"]).exit(0).stdout;
    assert!(log.contains("teacher: listening"), "{log}");

    let again = mill.run(&[]).exit(0);
    assert_eq!(again.ran(), "", "cached: the server is not started");
    mill.write("pipeline.yaml", &pipeline("Oslo", ", ask_for_answer: false"));
    mill.run(&[]).exit(0);
    assert_eq!(asked(&mill).len(), 3, "other params, the same calls: their answers are known");
    mill.write("server.py", &SERVER.replace("It is <answer>", "Well, <answer>"));
    mill.run(&[]).exit(0);
    assert_eq!(asked(&mill).len(), 6, "the content of the program's file counts");
    mill.write("server.py", SERVER);
    mill.write("pipeline.yaml", &pipeline("Rome", ""));
    let why = mill.why("rollouts");
    assert!(why.contains("services.teacher.words"), "{why}");
    mill.run(&[]).exit(0);
    assert_eq!(asked(&mill).len(), 9, "another server: its answers are others");
    mill.write("pipeline.yaml", &pipeline("Rome", "").replace("teacher}/v1", "teacher}/other/v1"));
    assert!(mill.why("rollouts").contains("policy.endpoint.base_url"), "{}", mill.why("rollouts"));
    mill.write("pipeline.yaml", &pipeline("Rome", ""));
    mill.run(&[]).exit(0);
    let audit = mill.call(&["audit", "latest", "--replay", "--rollouts"]).exit(0).stdout;
    assert!(audit.contains("3 rows match the cached answers"), "{audit}");
}

/// A tool whose service dies at its second request.
const TOOL: &str = r#"
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        if "?" in self.path:
            with open("looked.txt", "a") as looked: looked.write("x")
            if os.path.exists("weak") and os.path.getsize("looked.txt") > 1: os._exit(7)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Oslo is a city.")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"#;

#[test]
fn a_service_that_dies_is_no_observation_of_its_rows() {
    use searchmill_fixtures::openai_server::{OpenAiServer, answer, call};
    let looks = |question: &str| {
        let arguments = format!(r#"{{"q": "{question}"}}"#);
        (question.to_owned(), vec![call("look", &arguments), answer("Oslo")])
    };
    let script = ["Where?", "Who?", "When?"].map(looks).into_iter().collect();
    let model = OpenAiServer::start_by_turn(script);
    let mill = Mill::new();
    mill.write("tool.py", TOOL);
    mill.write("questions.jsonl", QUESTIONS);
    mill.write("weak", "");
    let parameters = "{type: object, properties: {q: {type: string}}, required: [q]}";
    let tool = format!(
        r#"{{http: {{name: look, description: Looks., url: "${{service.kb}}/s?q={{q}}", parameters: {parameters}}}}}"#
    );
    let pipeline = format!(
        r#"{HEAD}  rollouts:
    op: rollout
    from: questions
    services: {{kb: {{program: [python3, tool.py, "{{port}}"], ready: /}}}}
    with: {{policy: {{endpoint: {{base_url: "{}", model: m}}}}, tools: [{tool}]}}
    resources: {{concurrency: 1}}
    retry: {{max_attempts: 1}}
"#,
        model.base_url()
    );
    mill.write("pipeline.yaml", &pipeline);
    let told = failed(&mill, 1);
    assert!(told.contains("the service `kb` has ended (exit status: 7)"), "{told}");
    std::fs::remove_file(mill.path("weak")).expect("removed");
    mill.run(&[]).exit(0);
    let rows = mill.call(&["show", "rollouts", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    assert_eq!(rows.lines().count(), 3, "{rows}");
    assert!(rows.lines().all(|row| row.contains("Oslo is a city.")), "{rows}");
}

#[test]
fn kill_9_leaves_no_server_behind_and_pays_nothing_twice() {
    let mill = mill();
    let mut command = mill.command(&["run", "pipeline.yaml"]);
    let mut child = command.env("SLOW", "0.5").spawn().expect("the program starts");
    until("the second request", || asked(&mill).len() >= 2);
    child.kill().expect("killed");
    child.wait().expect("waited");
    let server = asked(&mill)[0].clone();
    until("the server ends", || !is_alive(&server));
    mill.run(&[]).exit(0);
    let paid = asked(&mill);
    assert_eq!(paid.len(), 4, "the answer in flight is asked for again, the finished one is not: {paid:?}");
    assert!(paid.iter().all(|pid| !is_alive(pid)));
}

#[test]
fn a_model_made_here_is_known_by_its_weights() {
    let mill = Mill::new();
    mill.write("questions.jsonl", QUESTIONS);
    let pipeline = |seed: u32| {
        format!(
            r#"{HEAD}  student: {{op: init-model, from: questions, with: {{layers: 1, hidden: 32, heads: 2, kv_heads: 1, intermediate: 64, vocab: 512, tie_embeddings: false, deviation: 0.5}}, seed: {seed}}}
  rollouts:
    op: rollout
    from: questions
    services:
      student: {{model: student, args: [--rows, "2"]}}
    with: {{policy: {{endpoint: {{base_url: "${{service.student}}/v1", model: student, temperature: 0, max_tokens: 8}}}}, max_turns: 1}}
"#
        )
    };
    mill.write("pipeline.yaml", &pipeline(1));
    mill.run(&[]).exit(0);
    let rows = || mill.call(&["show", "rollouts", "--format", "jsonl", "-n", "0"]).exit(0).stdout;
    let first = rows();
    assert_eq!(first.lines().count(), 3, "{first}");
    assert_eq!(mill.run(&[]).exit(0).ran(), "");
    mill.write("pipeline.yaml", &pipeline(2));
    let ran = mill.run(&[]).exit(0);
    assert_eq!(ran.reasons("rollouts"), ["input_changed"]);
    assert_ne!(rows(), first, "other weights under the same name answer anew");
}

fn failed(mill: &Mill, code: i32) -> String {
    let told = mill.run(&[]).exit(code);
    told.stdout + &told.stderr
}

#[test]
fn a_server_that_ends_or_never_answers_fails_its_node() {
    let mill = mill();
    let served = |service: &str| pipeline("Oslo", "").replace("[python3, server.py, \"{port}\", Oslo]", service);
    mill.write("pipeline.yaml", &served("[sh, -c, \"echo no such device {port}; exit 3\"]"));
    let told = failed(&mill, 1);
    assert!(told.contains("the service `teacher` has ended (exit status: 3)"), "{told}");
    assert!(told.contains("no such device"), "{told}");
    mill.write("pipeline.yaml", &served("[nowhere, \"{port}\"]"));
    let told = failed(&mill, 5);
    assert!(told.contains("cannot start `nowhere` for the service `teacher`"), "{told}");
    let late = served("[sh, -c, \"sleep 60 # {port}\"]").replace("ready: /health", "ready: /health, within: 300ms");
    mill.write("pipeline.yaml", &late);
    let told = failed(&mill, 1);
    assert!(told.contains("was not ready after"), "{told}");
    assert!(asked(&mill).is_empty());
}

#[test]
fn a_test_of_a_pipeline_starts_no_service_and_makes_no_model_for_one() {
    let mill = Mill::new();
    mill.write("server.py", SERVER);
    let tests = "tests:
  played:
    given: {questions: [{id: a, question: Where?}]}
    model: [{when: Where?, answer: \"It is <answer>Rome</answer>\"}]
    expect: {rollouts: [{question_id: a, prediction: Rome}]}
";
    let begun = "open('begun.txt', 'w').close()";
    mill.write("server.py", &SERVER.replace("port, word", &format!("{begun}\nport, word")));
    mill.write("pipeline.yaml", &(pipeline("Oslo", "") + tests));
    let told = mill.call(&["test", "pipeline.yaml"]).exit(0).stdout;
    assert!(!mill.path("begun.txt").exists(), "the server was started: {told}");
    // The model would have to be made first, from a file that does not exist.
    let served = format!(
        r#"{HEAD}  texts: {{op: read, with: {{path: nosuch.jsonl, as: document}}}}
  student: {{op: init-model, from: texts, with: {{layers: 1, hidden: 32, heads: 2, kv_heads: 1, intermediate: 64, vocab: 512}}}}
  rollouts:
    op: rollout
    from: questions
    services: {{student: {{model: student}}}}
    with: {{policy: {{endpoint: {{base_url: "${{service.student}}/v1", model: student}}}}, max_turns: 1}}
{tests}"#
    );
    mill.write("pipeline.yaml", &served);
    mill.call(&["test", "pipeline.yaml"]).exit(0);
}

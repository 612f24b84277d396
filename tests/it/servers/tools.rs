//! Tests of the tools of a rollout: real services on loopback, an MCP server, a program that speaks MCP.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use searchmill_fixtures::openai_server::{OpenAiServer, Step, answer, call};
use searchmill_fixtures::tool_server::{Manner, ToolServer};
use searchmill_schemas::{Document, Trajectory};
use serde_json::{Value, json};

use crate::harness::project::{Mill, Told, killed_after};

/// Tools of the services.
const WEB: &str =
    "        - http: {name: web_search, description: Searches the web., url: \"${env:TOOLS}/search\", method: POST,
            body: {q: \"{query}\", num: 2}, secret_headers: {x-api-key: \"${secret:KEY}\"}, service: web,
            parameters: {type: object, properties: {query: {type: string}}, required: [query]},
            results: {list: /organic, id: /link, title: /title, text: /snippet}, timeout_seconds: 1}
        - http: {name: read_page, description: Reads a page., url: \"${env:TOOLS}/page/{+url}\", service: pages,
            parameters: {type: object, properties: {url: {type: string}}, required: [url]}, timeout_seconds: 1}
";
const MCP: &str = "        - mcp: {url: \"${env:TOOLS}/mcp\", service: fixture, timeout_seconds: 1}\n";
const PROGRAM: &str = "        - mcp: {command: [python3, server.py, \"fine\"], timeout_seconds: 2}\n";

/// A project with questions, services and, for the policy `endpoint`, a scripted model.
pub(crate) struct Project {
    pub(crate) mill: Mill,
    pub(crate) tools: ToolServer,
    model: OpenAiServer,
}

fn node(name: &str, policy: &str, tools: &str, from: &str) -> String {
    let retry = "    retry: {max_attempts: 2, backoff: 10ms}\n    resources: {concurrency: 4}\n";
    format!(
        "  {name}:\n    op: rollout\n    from: {{questions: questions{from}}}\n    with:\n      policy: {policy}\n      \
         tools:\n{tools}{retry}"
    )
}

/// The teacher that first searches in the words of the question.
const PLAIN: &str = "{evidence: {wording: plain}}";
const ENDPOINT: &str = "{endpoint: {base_url: \"${env:MODEL}\", model: m}}";

impl Project {
    pub(crate) fn new(nodes: &str, questions: usize, script: Vec<Step>) -> Self {
        let mill = Mill::new();
        let project = format!(
            "name: tools\nnodes:\n  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}\n{nodes}"
        );
        mill.write("pipeline.yaml", &project);
        let question = |number: usize| {
            let gold = json!([{"fact": "The capital is named Rome"}]);
            format!(
                "{}\n",
                json!({"id": format!("q{number}"), "question": format!("what is {number}"),
                "golden_answers": ["Rome"], "evidence": gold})
            )
        };
        mill.write("questions.jsonl", &(0..questions).map(question).collect::<String>());
        let script = (0..questions).map(|number| (format!("what is {number}"), script.clone()));
        Self { mill, tools: ToolServer::start(), model: OpenAiServer::start_by_turn(script.collect()) }
    }

    pub(crate) fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.mill.command(args);
        command.env("TOOLS", &self.tools.address).env("MODEL", self.model.base_url()).env("KEY", "hush-123456");
        command
    }

    pub(crate) fn call(&self, args: &[&str]) -> Told {
        Told::new(self.command(args).output().expect("the program can be started"))
    }

    fn run(&self, more: &[&str]) -> Told {
        self.call(&[&["run", "pipeline.yaml", "--json"], more].concat())
    }

    fn rows<R: searchmill_schemas::Record>(&self, node: &str, port: &str) -> Vec<R> {
        let nodes = self.mill.last_nodes();
        let found = nodes.iter().find(|found| found.node == node).unwrap_or_else(|| panic!("{node}"));
        let artifact = self.mill.store().open_input(&found.outputs[port].id).expect("rows");
        let searchmill_engine::operator::InputArtifact::Rows(rows) = artifact else { panic!("rows") };
        rows.read_all().expect("rows")
    }

    pub(crate) fn rollouts(&self, node: &str) -> Vec<Trajectory> {
        self.rows(node, "trajectories")
    }

    fn replace(&self, from: &str, to: &str) {
        let text = self.mill.read("pipeline.yaml");
        assert!(text.contains(from), "{from}");
        self.mill.write("pipeline.yaml", &text.replace(from, to));
    }
}

/// Texts of the tool messages of a rollout.
pub(crate) fn shown(rollout: &Trajectory) -> Vec<&str> {
    rollout.messages.iter().filter(|message| message.role == "tool").map(|message| message.content.as_str()).collect()
}

fn two_calls() -> Step {
    let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
    let calls = [
        call("a", "web_search", json!({"query": "what is 0"})),
        call("b", "read_page", json!({"url": "https://x.org/a?b=c"})),
        call("c", "web_search", json!({"query": "what is 0"})),
        call("d", "web_search", json!({"q": 1})),
    ];
    Step::Say(json!({"role": "assistant", "content": null, "tool_calls": calls}))
}

#[test]
fn services_are_called_once_and_what_they_said_is_in_the_record() {
    let nodes = node("one", ENDPOINT, WEB, "") + &node("two", ENDPOINT, WEB, "").replace("model: m}", "model: n}");
    let project = Project::new(&nodes, 2, vec![two_calls(), answer("Rome")]);
    project.run(&[]).exit(0);
    assert_eq!(project.tools.paid(), ["page https://x.org/a?b=c", "search what is 0"], "two models, two questions");
    let rollouts = project.rollouts("one");
    let shown = shown(&rollouts[0]);
    let list = "[1] what is 0 1 (https://web/what-is-0/1)\nThe capital is named Rome, says result 1 of what is 0.\nIt is old.\n\n[2] what is 0 2 \
                (https://web/what-is-0/2)\nThe capital is named Rome, says result 2 of what is 0.\nIt is old.";
    assert_eq!(shown[..3], [list, "The page https://x.org/a?b=c says Rome.", list]);
    assert!(shown[3].contains("`query` is missing"), "{}", shown[3]);
    assert_eq!(rollouts[0].messages[3].observations[1].document_id, "https://web/what-is-0/2");
    assert!(rollouts[0].tools.contains("web_search") && !rollouts[0].tools.contains("hush"));
    assert_eq!(project.tools.seen().keys, ["hush-123456"], "one service takes the key");
    let audit = project.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(audit.stdout.contains("observations of tools outside"), "{}", audit.stdout);
    assert!(audit.stdout.contains("2 rows match the cached answers"), "{}", audit.stdout);
    // Nothing runs again; and a node with other params makes no call that was made.
    assert_eq!(project.run(&[]).exit(0).ran(), "");
    project.replace("max_attempts: 2", "max_attempts: 3");
    project.replace("tools:\n", "max_turns: 9\n      tools:\n");
    assert_eq!(project.run(&[]).exit(0).ran(), "one two");
    assert_eq!(project.tools.paid().len(), 2);
    // A forced run asks again: once, for all its rows.
    project.run(&["--force=one"]).exit(0);
    assert_eq!(project.tools.paid().len(), 4);
}

#[test]
fn calls_are_those_of_models_and_tools_are_counted_apart() {
    let project = Project::new(&node("one", ENDPOINT, WEB, ""), 2, vec![two_calls(), answer("Rome")]);
    let told = project.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("2 ran · 4 calls, 440 tokens · 2 calls of tools and functions"), "{}", told.stdout);
    let of_node = " · 4 calls · 400 + 40 tokens · 2 calls of tools and functions";
    assert!(told.stderr.contains(of_node), "{}", told.stderr);
    // Two more questions cost as much again.
    let known = project.mill.read("questions.jsonl");
    project.mill.write(
        "questions.jsonl",
        &(known.clone() + &known.replace("is ", "was ").replace("q0", "p0").replace("q1", "p1")),
    );
    project.run(&["questions"]).exit(0);
    let told = project.call(&["plan", "pipeline.yaml"]).exit(0);
    assert!(told.stdout.contains("calls  of tools  tokens"), "{}", told.stdout);
    assert!(told.stdout.contains("~4     ~6        ~440"), "{}", told.stdout);
    let told = project.call(&["plan", "pipeline.yaml", "--json"]).exit(0);
    let one = told.events().into_iter().find(|node| node["node"] == "one").expect("the node");
    assert_eq!([&one["estimate"]["calls"], &one["estimate"]["service_calls"]], [10, 6]);
    project.mill.write("questions.jsonl", &known);
    // A call that fails is counted on its side.
    project.tools.seen().manner = Manner::Status(503);
    let summary = project.run(&["--force=one"]).exit(0).summary();
    let numbers = ["calls", "service_calls", "failed_calls", "failed_service_calls"];
    assert_eq!(numbers.map(|name| summary[name].as_u64()), [16, 12, 12, 12].map(Some), "{summary}");
}

#[test]
fn a_failure_is_told_counted_and_never_kept_for_others() {
    let project = Project::new(&node("one", ENDPOINT, WEB, ""), 1, vec![two_calls(), answer("Rome")]);
    project.tools.seen().manner = Manner::Status(503);
    let told = project.run(&[]).exit(0);
    let warning = "warning: 2 of 2 calls of `web_search` failed: it answered 503 Service Unavailable";
    assert!(told.stdout.contains(warning) && told.stdout.contains("warning: 1 of 1 calls of `read_page` failed"));
    let rollouts = project.rollouts("one");
    let texts = shown(&rollouts[0]);
    assert!(texts[0].starts_with("Error: `web_search` failed: it answered 503 Service Unavailable"), "{}", texts[0]);
    assert!(texts[1].starts_with("Error: `read_page` failed"), "{}", texts[1]);
    assert_eq!(rollouts[0].prediction, "Rome", "the rollout goes on");
    let counted = project.call(&["show", "one", "--format", "jsonl"]);
    assert!(counted.stdout.contains("\"tool_errors\":3"), "{}", counted.stdout);
    // Another node calls again.
    let paid = project.tools.paid().len();
    project.tools.seen().manner = Manner::Fine;
    project.replace("tools:\n", "max_turns: 9\n      tools:\n");
    project.run(&[]).exit(0);
    assert_eq!(project.tools.paid().len(), paid + 2);
    assert!(shown(&project.rollouts("one")[0])[0].starts_with("[1]"));
}

#[test]
fn a_refused_key_fails_the_row_and_an_answer_that_is_none_is_an_error() {
    let project = Project::new(&node("one", ENDPOINT, WEB, ""), 1, vec![two_calls(), answer("Rome")]);
    project.tools.seen().manner = Manner::Status(401);
    let told = project.run(&[]).exit(3);
    let ended = told.events().into_iter().find(|event| event["event"] == "node_finished" && event["node"] == "one");
    let why = ended.expect("it ended")["rejected_for"].as_str().expect("a reason").to_owned();
    let is_named = |tool: &str| why.contains(&format!("`{tool}` failed: it answered 401 Unauthorized"));
    assert!(is_named("web_search") || is_named("read_page"), "the tool that answered first: {why}");
    project.tools.seen().manner = Manner::Garbage;
    project.run(&[]).exit(0);
    let rollouts = project.rollouts("one");
    assert!(shown(&rollouts[0])[0].contains("its answer is not JSON"), "{:?}", shown(&rollouts[0]));
    project.tools.seen().manner = Manner::Hangs;
    project.replace("tools:\n", "max_turns: 9\n      tools:\n");
    let start = Instant::now();
    project.run(&[]).exit(0);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(shown(&project.rollouts("one")[0])[0].contains("no answer within 1 s"));
}

#[test]
fn a_service_that_is_down_postpones_its_rows() {
    let project = Project::new(&node("one", "evidence", WEB, ""), 24, Vec::new());
    let mut command = project.command(&["run", "pipeline.yaml", "--json"]);
    let told = Told::new(command.env("TOOLS", "http://127.0.0.1:9").output().expect("a run")).exit(5);
    assert!(told.stdout.contains("it cannot be reached: Connection refused"), "{}", told.stdout);
    project.run(&[]).exit(0);
    assert_eq!(project.rollouts("one").len(), 24);
}

#[test]
fn a_service_that_only_fails_postpones_its_rows_and_says_what_it_answered() {
    let project = Project::new(&node("one", PLAIN, WEB, ""), 40, Vec::new());
    project.tools.seen().manner = Manner::Status(503);
    let told = project.run(&[]).exit(5);
    let said =
        ["8 calls in a row to http://127.0.0.1", "(8 × 503)", "503 Service Unavailable: the reason is secret-free"];
    assert!(said.iter().all(|said| told.stdout.contains(said)), "{}", told.stdout);
    project.tools.seen().manner = Manner::Fine;
    project.run(&[]).exit(0);
    assert_eq!(project.rollouts("one").len(), 40);
}

#[test]
fn kill_9_in_a_rollout_with_a_live_tool_pays_nothing_twice() {
    const QUESTIONS: usize = 24;
    let start = |project: &Project| project.tools.seen().delay = Duration::from_millis(80);
    let undisturbed = Project::new(&node("one", PLAIN, WEB, ""), QUESTIONS, Vec::new());
    start(&undisturbed);
    undisturbed.run(&[]).exit(0);
    let expected = undisturbed.mill.artifacts();
    let all = undisturbed.tools.paid();
    assert!(all.len() >= QUESTIONS, "{all:?}");
    let project = Project::new(&node("one", PLAIN, WEB, ""), QUESTIONS, Vec::new());
    start(&project);
    let mut kills = 0;
    for round in 0..12_u64 {
        kills += usize::from(killed_after(
            &mut project.command(&["run", "pipeline.yaml", "--json"]),
            Duration::from_millis(200 + 97 * round % 700),
        ));
    }
    assert!(kills >= 2, "only {kills} runs were killed");
    project.run(&[]).exit(0);
    assert_eq!(project.mill.artifacts(), expected);
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    project.tools.paid().into_iter().for_each(|call| *times.entry(call).or_default() += 1);
    let again: usize = times.values().map(|times| times - 1).sum();
    assert!(again <= kills * 4, "{again} calls were paid again after {kills} kills with 4 rows in flight");
    assert_eq!(times.into_keys().collect::<Vec<_>>(), {
        let mut all = all;
        all.dedup();
        all
    });
}

#[test]
fn what_a_row_was_told_is_told_again_after_a_kill() {
    // The tool fails, the model goes on slowly: killed there, the row resumes from the same failure.
    let slow = Step::After(Duration::from_millis(1500), Box::new(answer("Rome")));
    let project = Project::new(&node("one", ENDPOINT, WEB, ""), 1, vec![two_calls(), slow]);
    project.tools.seen().manner = Manner::Status(500);
    let mut child = project.command(&["run", "pipeline.yaml", "--json"]).spawn().expect("a child");
    let start = Instant::now();
    while project.model.requests("what is 0").len() < 2 {
        assert!(start.elapsed() < Duration::from_secs(30), "no second turn");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a running child");
    child.wait().expect("a child");
    let paid = project.tools.paid().len();
    project.tools.seen().manner = Manner::Fine;
    project.run(&[]).exit(0);
    assert_eq!(project.tools.paid().len(), paid, "the tool is not called again");
    assert!(shown(&project.rollouts("one")[0])[0].contains("500"));
    assert_eq!(project.model.requests("what is 0").len(), 3, "one turn was in flight");
}

#[test]
fn a_replay_from_the_record_needs_no_service_and_gives_the_same_bytes() {
    let replay = node("again", ENDPOINT, &(WEB.to_owned() + MCP), ", recorded: live");
    let nodes = node("live", ENDPOINT, &(WEB.to_owned() + MCP), "") + &replay;
    let mcp = call("lookup", r#"{"query": "x"}"#);
    let project = Project::new(&nodes, 2, vec![two_calls(), mcp, answer("Rome")]);
    project.run(&["live"]).exit(0);
    let paid = project.tools.paid();
    assert_eq!(paid.len(), 3);
    let offline = |args: &[&str]| {
        let mut command = project.command(args);
        Told::new(command.env("TOOLS", "http://127.0.0.1:9").env_remove("KEY").output().expect("a run"))
    };
    offline(&["run", "pipeline.yaml", "--json"]).exit(0);
    let ids = project.mill.artifacts();
    assert_eq!(ids["live.trajectories"], ids["again.trajectories"], "to the byte, without the services and their key");
    assert_eq!(project.tools.paid(), paid);
    // The service itself cannot be called without its key.
    project.replace("tools:\n", "max_turns: 9\n      tools:\n");
    let told = offline(&["run", "pipeline.yaml", "live"]).exit(2);
    assert!(told.stderr.contains("`live` needs the secret `KEY`, which is not set"), "{}", told.stderr);
}

#[test]
fn what_was_seen_becomes_a_corpus() {
    let rest = "  seen: {op: recorded-corpus, from: live}
  chunks: {op: chunk, from: seen, with: {size: 40, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
  offline:
    op: rollout
    from: {questions: questions, search: bm25}
    with: {policy: evidence}
";
    let project = Project::new(&(node("live", PLAIN, WEB, "") + rest), 3, Vec::new());
    project.run(&[]).exit(0);
    let seen: Vec<Document> = project.rows("seen", "documents");
    assert!(seen.iter().all(|one| one.text.starts_with("The capital is named Rome, says result ")), "{seen:?}");
    assert_eq!(project.rollouts("live").iter().filter(|one| one.prediction == "Rome").count(), 3);
    assert_eq!(project.rollouts("offline").iter().filter(|one| one.prediction == "Rome").count(), 3);
}

#[test]
fn the_tools_of_an_mcp_server_are_offered_and_called_once() {
    let script = vec![
        call("lookup", r#"{"query": "the eternal city"}"#),
        call("lookup", r#"{"query": "error"}"#),
        answer("Rome"),
    ];
    let project = Project::new(&node("one", ENDPOINT, MCP, ""), 2, script);
    project.run(&[]).exit(0);
    let rollouts = project.rollouts("one");
    assert_eq!(
        shown(&rollouts[0]),
        ["The server says that the eternal city is Rome.", "Error: `lookup` failed: nothing of that name."]
    );
    assert!(rollouts[0].tools.contains("Looks something up."));
    let paid = project.tools.paid();
    assert_eq!(paid.iter().filter(|call| *call == "lookup the eternal city").count(), 1);
    project.call(&["audit", "latest", "--rollouts"]).exit(0);
    // The definitions are remembered: another node needs no server if all its calls are known.
    project.replace("tools:\n", "max_turns: 9\n      tools:\n");
    project.tools.seen().manner = Manner::Changed;
    let told = project.run(&[]).exit(3);
    assert!(told.stdout.contains("is not what it was when the rollouts began"), "{}", told.stdout);
    project.run(&["--force=one"]).exit(0);
    assert!(project.rollouts("one")[0].tools.contains("Another text."));
}

#[test]
fn mcp_servers_that_lie_hang_or_forget_lose_nothing() {
    let script = vec![call("lookup", r#"{"query": "Rome"}"#), answer("Rome")];
    let project = Project::new(&node("one", ENDPOINT, MCP, ""), 1, script);
    for (manner, said) in [
        (Manner::Lies, "`inputSchema` of its tool `lookup` must be a JSON Schema of type `object`"),
        (Manner::Hangs, "it gave no answer within 1 s"),
        (Manner::Garbage, "no MCP response: <html>Log in</html>"),
    ] {
        project.tools.seen().manner = manner;
        let told = project.run(&[]).exit(5);
        assert!(told.stdout.contains(said), "{manner:?}: {}", told.stdout);
    }
    project.tools.seen().manner = Manner::Fine;
    project.replace("service: fixture", &format!("service: fixture, prefix: {}", "p".repeat(60)));
    let told = project.run(&[]).exit(1);
    assert!(told.stdout.contains("would have a name of 66 characters; the chat API allows 64"), "{}", told.stdout);
    assert!(told.stdout.contains("write a shorter `prefix`"), "{}", told.stdout);
    project.replace(&format!(", prefix: {}", "p".repeat(60)), "");
    assert!(project.model.requests("what is 0").is_empty(), "nothing was paid");
    project.tools.seen().manner = Manner::Forgets;
    project.run(&[]).exit(0);
    assert_eq!(shown(&project.rollouts("one")[0]), ["The server says that Rome is Rome."]);
    let newer =
        Project::new(&node("one", ENDPOINT, MCP, ""), 1, vec![call("lookup", r#"{"query": "x"}"#), answer("Rome")]);
    newer.tools.seen().manner = Manner::Stateless;
    newer.run(&[]).exit(0);
    assert_eq!(shown(&newer.rollouts("one")[0]), ["The server says that x is Rome."]);
}

/// An MCP server on stdin and stdout, of the standard library alone.
const SERVER: &str = r#"
import json, os, sys, time
open("pids", "a").write(f"{os.getpid()}\n")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked or "method" not in asked: continue
    method, result = asked["method"], {}
    if method == "initialize":
        result = {"protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        result = {"tools": [{"name": "lookup", "description": "Looks up.", "inputSchema": schema}]}
    else:
        query = asked["params"]["arguments"]["query"]
        open("paid", "a").write(query + "\n")
        if "die" in query and not os.path.exists("died"):
            open("died", "w").write("x")
            sys.exit(1)
        if "hang" in query: time.sleep(60)
        print("a line of a careless program", flush=True)
        print("and one without an end: ", end="", flush=True)
        print(json.dumps({"jsonrpc": "2.0", "id": 7777, "method": "ping"}), flush=True)
        result = {"content": [{"type": "text", "text": f"{query} is Rome"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

#[test]
fn a_program_that_speaks_mcp_is_started_called_and_gone() {
    let asked = ["one", "die", "hang"].map(|query| call("lookup", &json!({"query": query}).to_string()));
    let project = Project::new(&node("one", ENDPOINT, PROGRAM, ""), 1, [asked.to_vec(), vec![answer("Rome")]].concat());
    project.mill.write("server.py", SERVER);
    project.run(&[]).exit(0);
    let rollouts = project.rollouts("one");
    let texts = shown(&rollouts[0]);
    assert_eq!(texts[..2], ["one is Rome", "die is Rome"], "a program that died is started again");
    assert!(texts[2].contains("no answer within 2 s"), "{}", texts[2]);
    assert_eq!(project.mill.read("paid"), "one\ndie\ndie\nhang\nhang\n");
    let logs = project.call(&["logs"]).exit(0).stdout;
    assert!(logs.contains("a line of a careless program") && logs.contains("and one without an end"), "{logs}");
    let alive = |pid: &str| std::path::Path::new("/proc").join(pid).join("cmdline").exists();
    let start = Instant::now();
    while project.mill.read("pids").lines().any(alive) {
        assert!(start.elapsed() < Duration::from_secs(10), "a program is left");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(project.run(&[]).exit(0).ran(), "");
    project.replace("python3, server.py", "python3, missing.py");
    let told = project.run(&[]).exit(5);
    assert!(told.stdout.contains("the MCP server `python3 missing.py fine` cannot be used"), "{}", told.stdout);
}

#[test]
fn the_files_of_a_program_that_speaks_mcp_are_in_the_keys() {
    let asked = call("lookup", &json!({"query": "one"}).to_string());
    let project = Project::new(&node("one", ENDPOINT, PROGRAM, ""), 1, vec![asked, answer("Rome")]);
    let says = |text: &str| {
        let rollouts = project.rollouts("one");
        assert_eq!(shown(&rollouts[0]), [text]);
    };
    project.mill.write("server.py", SERVER);
    project.run(&[]).exit(0);
    says("one is Rome");
    project.mill.write("server.py", &SERVER.replace("is Rome", "is Oslo"));
    assert_eq!(project.run(&[]).exit(0).ran(), "one");
    says("one is Oslo");
    project.mill.write("server.py", SERVER);
    assert_eq!(project.run(&[]).exit(0).ran(), "");
    assert_eq!(project.mill.read("paid"), "one\none\n", "nothing is paid again");
    if cfg!(target_os = "linux") {
        project.mill.write("server.py", &format!("import helper{SERVER}"));
        project.mill.write("helper.py", "");
        let told = project.run(&[]).exit(5);
        assert!(told.stdout.contains("read helper.py, which its cache key does not contain"), "{}", told.stdout);
        project.replace("\"fine\"]", "\"fine\"], files: [helper.py]");
        assert_eq!(project.run(&[]).exit(0).ran(), "one");
        assert_eq!(project.mill.read("paid"), "one\none\none\n");
    }
}

#[test]
fn documents_that_were_shown_can_be_opened() {
    let nodes = "  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 40, count: words}}
  bm25: {op: index, from: chunks, with: {kind: bm25}}
";
    let open = "        - open: {}\n";
    let nodes = nodes.to_owned() + &node("one", ENDPOINT, open, ", search: bm25, documents: corpus");
    let script = vec![
        call("search", r#"{"query": "capital"}"#),
        call("open", r#"{"id": "d1#0"}"#),
        call("open", r#"{"id": "d2"}"#),
        answer("Rome"),
    ];
    let project = Project::new(&nodes, 1, script);
    let document = |id: &str, text: &str| format!("{}\n", json!({"id": id, "title": "Italy", "text": text}));
    let text = "Rome is the capital of Italy. It is old and large and full of stones.";
    project.mill.write("documents.jsonl", &(document("d1", text) + &document("d2", "Nothing of note.")));
    project.run(&[]).exit(0);
    let rollouts = project.rollouts("one");
    let texts = shown(&rollouts[0]);
    assert!(texts[0].contains("(id d1#0) Italy"), "{}", texts[0]);
    assert_eq!(texts[1], format!("Italy\n{text}"));
    assert!(texts[2].contains("`d2` was not shown"), "{}", texts[2]);
    let audit = project.call(&["audit", "latest", "--rollouts"]).exit(0);
    assert!(!audit.stdout.contains("taken from the record"), "{}", audit.stdout);
}

#[test]
fn tools_that_cannot_be_are_errors_at_their_place() {
    let check = |tools: &str, from: &str, with: &str| {
        let nodes = node("one", "evidence", tools, from).replace("tools:\n", &format!("{with}tools:\n"));
        let project = Project::new(&nodes, 1, Vec::new());
        let told = project.call(&["validate", "pipeline.yaml"]).exit(2);
        told.stdout + &told.stderr
    };
    let twice = WEB.replace("read_page", "web_search");
    assert!(check(&twice, "", "").contains("two tools have the name `web_search`"));
    assert!(check(&WEB.replace("{query}", "{question}"), "", "").contains("`{question}` is no property"));
    assert!(check(WEB, "", "protocol: search-r1\n      ").contains("the protocol has one search"));
    assert!(check("        - open: {}\n", "", "").contains("documents"));
    assert!(check(&WEB.replace("type: object", "type: array"), "", "").contains("JSON Schema of type `object`"));
    assert!(check("        - mcp: {}\n", "", "").contains("needs either `url` or `command`"));
}

#[test]
fn the_page_runs_as_it_is_written() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/how-to/give-a-rollout-tools.md")).expect("the page");
    let (_, end) = page.split_once("## Try it").expect("its end");
    let block = |language: &str| {
        let (_, after) = end.split_once(&format!("```{language}\n")).expect("a block");
        after.split_once("```").expect("its end").0
    };
    let mill = Mill::new();
    let files = [("server.py", "python"), ("questions.json", "json"), ("pipeline.yaml", "yaml")];
    for (name, language) in files {
        mill.write(name, block(language));
    }
    mill.run(&[]).exit(0);
    let shown = mill.call(&["show", "rollouts", "--format", "jsonl"]).exit(0).stdout;
    assert!(shown.contains("\"prediction\":\"Italy\""), "{shown}");
    mill.call(&["audit", "latest", "--rollouts"]).exit(0);
}

//! Tests of `ui`: the page of a store by HTTP, and in a browser.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use searchmill_fixtures::openai_server::{OpenAiServer, answer};
use serde_json::{Value, json};

use crate::cli::schedule::Daemon;
use crate::harness::project::Mill;

const PIPELINE: &str = "\
name: seen
params:
  top_k: 1
  turns: 2
  odd: >-
    select * from (values
      ('a', 9007199254740993, 'NaN'::double, true, '100%', ['x', 'y']),
      ('b', 9007199254740992, 'inf'::double, false, '\u{1f98a} fox', ['x y']),
      ('c', 5, 0.5, null, '\u{ffee} wide', []),
      ('d', -7, '-inf'::double, true, 'plain', null),
      ('e', null, null, false, null, ['x']))
    as t(id, big, f, flag, text, list) where exists (select * from q)
nodes:
  hostile:  {op: read, with: {path: hostile.jsonl, as: document}}
  many:     {op: sql, from: {h: hostile}, with: {query: \"select 'd' || value as id, value as n from range(0, 450000)\"}}
  world:    {op: generate-world, with: {documents: 100, questions: 20}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 12, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts:
    op: rollout
    from: {questions: world.questions, search: bm25}
    with: {policy: evidence, samples: 2, max_turns: \"${params.turns}\", search: {top_k: \"${params.top_k}\"}}
    checks: [{rows: {min: 1}}]
  scores:   {op: evaluate, from: rollouts}
  rewarded: {op: reward, from: rollouts, with: {sum: [{f1: 1}, {format: 0.2}]}}
  odd:      {op: sql, from: {q: world.questions}, with: {query: \"${params.odd}\"}}
  begin:    {op: read, with: {path: begin.jsonl, as: table}}
  few:      {op: sql, from: {q: world.questions}, with: {query: \"select * from q limit 2\", as: question}}
  blank:    {op: init-model, from: world.documents, with: {vocab: 512, hidden: 32, layers: 1, heads: 2}, seed: 1}
  voiced:
    op: rollout
    from: {questions: few, search: bm25, model: blank}
    with: {policy: {model: {temperature: 1, max_tokens: 16}}, max_turns: 2, record: tokens}
repeat:
  learn:
    rounds: 3
    carry: {state: begin}
    nodes:
      rated: {op: sql, from: {t: state}, with: {query: \"select question_id, score + step as score, step from t\"}}
    next: {state: rated}
";

/// Texts that would do something if they became markup, and ids that break addresses.
fn hostile() -> String {
    let rows = [
        json!({"id": "script", "text": "<script>globalThis.hacked = 1</script>"}),
        json!({"id": "<img src=x onerror='hacked=1'>", "text": "<img src=x onerror='globalThis.hacked=1'>"}),
        json!({"id": "a/b \"c\" 'd' 🦊?#%2F", "text": "{{7*7}} ${hacked=1} javascript:hacked=1"}),
        json!({"id": "marks", "text": "left \u{202e}thgir\u{202c} \u{1b}[31m red \u{7} bell", "__proto__": {"x": 1}}),
        json!({"id": "long", "text": format!("{} the end of it", "a long line ".repeat(800_000))}),
    ];
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// A project with two runs that differ in a param.
pub(crate) fn project() -> Mill {
    let mill = Mill::new();
    mill.write("hostile.jsonl", &hostile());
    let steps = [("learnt", 0.25), ("forgotten", -0.25), ("same", 0.0)];
    let begin: String = steps
        .iter()
        .map(|(question, step)| format!("{}\n", json!({"question_id": question, "score": 0.5, "step": step})))
        .collect();
    mill.write("begin.jsonl", &begin);
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill.run(&["--set", "top_k=3", "--set", "turns=6"]).exit(0);
    mill
}

/// A running page; it is killed when the test ends.
pub(crate) struct Page {
    child: Child,
    pub(crate) base: String,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) client: reqwest::Client,
}

impl Drop for Page {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Page {
    pub(crate) fn start(mill: &Mill, more: &[&str]) -> Self {
        let args = [&["ui", "--listen", "127.0.0.1:0", "--json"], more].concat();
        let mut child = mill.command(&args).stderr(std::process::Stdio::inherit()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        let base = told["address"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        Self { child, base, runtime, client: reqwest::Client::new() }
    }

    pub(crate) fn answer(&self, path: &str, query: &[(&str, &str)]) -> (u16, Value) {
        self.runtime.block_on(async {
            let asked = self.client.get(format!("{}{path}", self.base)).query(query).send().await.expect("an answer");
            let status = asked.status().as_u16();
            (status, asked.json().await.expect("JSON"))
        })
    }

    /// Sends an object; `origin` is the page that sends it.
    fn post(&self, path: &str, origin: &str, value: &Value) -> (u16, Value) {
        self.runtime.block_on(async {
            let asked = self.client.post(format!("{}{path}", self.base)).header("Origin", origin).json(value);
            let answer = asked.send().await.expect("an answer");
            let status = answer.status().as_u16();
            let text = answer.text().await.expect("text");
            (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
        })
    }

    pub(crate) fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let (status, value) = self.answer(path, query);
        assert_eq!(status, 200, "{path} {query:?}: {value}");
        value
    }

    /// Sends a request with these headers, and returns the whole answer.
    fn raw(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(self.base.trim_start_matches("http://")).expect("a connection");
        let text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(text.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

#[test]
fn runs_nodes_and_rows_are_told_as_json() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    let home = page.get("/api/pipelines", &[]);
    assert_eq!((&home["pipelines"][0]["name"], &home["pipelines"][0]["runs"]), (&json!("seen"), &json!(2)));
    assert_eq!(home["pipelines"][0]["last"]["state"], "done");
    let runs = page.get("/api/runs", &[("pipeline", "seen"), ("limit", "1")]);
    assert_eq!((runs["runs"].as_array().map(Vec::len), &runs["more"]), (Some(1), &json!(true)));
    let newest = runs["runs"][0]["id"].as_str().expect("an id").to_owned();
    let before = page.get("/api/runs", &[("before", &newest)]);
    assert_eq!((before["runs"].as_array().map(Vec::len), &before["more"]), (Some(1), &json!(false)));

    let run = page.get(&format!("/api/runs/{newest}"), &[]);
    assert_eq!((&run["params"]["top_k"], &run["set"]), (&json!(3), &json!(["top_k=3", "turns=6"])));
    let states: Vec<&str> =
        run["ran"].as_array().expect("nodes").iter().filter_map(|node| node["state"].as_str()).collect();
    assert_eq!(states.iter().filter(|state| **state == "cached").count(), 13, "{states:?}");
    let edge = json!({"from": "rollouts", "output": "trajectories", "to": "scores"});
    assert!(run["edges"].as_array().expect("edges").contains(&edge), "{}", run["edges"]);
    assert_eq!(run["graph"]["boxes"].as_array().map(Vec::len), Some(14), "rounds are one box");

    let node = page.get(&format!("/api/runs/{newest}/nodes/rollouts"), &[]);
    assert_eq!((&node["params"]["search"]["top_k"], &node["checks"]), (&json!(3), &json!(1)), "{node}");
    assert!(node["why"].as_str().is_some_and(|why| why.contains("search.top_k")), "{}", node["why"]);

    let path = format!("/api/runs/{newest}/nodes/rollouts");
    let asked = [("where", "f1 >= 0.5"), ("sort", "-turns\nid"), ("columns", "id\nturns\nf1"), ("to", "3")];
    let rows = page.get(&format!("{path}/rows"), &asked);
    assert_eq!((&rows["kind"], &rows["all"], &rows["scorer"]), (&json!("trajectory"), &json!(40), &json!("scores")));
    let count = rows["count"].as_u64().expect("a count");
    assert!(count > 3 && count < 40 && rows["rows"].as_array().map(Vec::len) == Some(3), "{rows}");
    let shown = mill.call(&[
        "show",
        "rollouts",
        "--where",
        "f1 >= 0.5",
        "--sort=-turns",
        "--sort",
        "id",
        "--columns",
        "id,turns,f1",
        "--json",
        "-n",
        "0",
    ]);
    let shown = shown.exit(0).events();
    assert_eq!(shown.len() as u64, count, "the page and `show` choose the same rows");
    for (row, told) in rows["rows"].as_array().expect("rows").iter().zip(&shown) {
        assert_eq!(row["cells"], json!([told["id"], told["turns"], told["f1"]]));
    }
    let id = shown[1]["id"].as_str().expect("an id");
    let one = page.get(&format!("{path}/row"), &[&asked[..2], &[("id", id)]].concat());
    assert_eq!((&one["at"], &one["count"], &one["row"]["id"]), (&json!(1), &json!(count), &json!(id)));
    assert!(one["row"]["messages"].as_array().is_some_and(|messages| messages.len() > 2));
    let same = page.get(&format!("{path}/row"), &[&asked[..2], &[("at", "1")]].concat());
    assert_eq!(same["row"], one["row"]);
    let other = page.get(&format!("{path}/row"), &[("where", "f1 < 0.5"), ("id", id)]);
    assert_eq!((&other["at"], &other["row"]["id"]), (&Value::Null, &json!(id)), "it is not among those that match");

    // Of a column of scores, too. The node that scored rollouts read questions, which have no scores.
    let scored = page.get(&format!("{path}/column"), &[("name", "f1")]);
    assert_eq!((&scored["rows"], &scored["nulls"], &scored["max"]), (&json!(40), &json!(0), &json!(1.0)), "{scored}");
    for (node, port) in [("world", "questions"), ("rollouts", "rejects")] {
        let rows = page.get(&format!("/api/runs/{newest}/nodes/{node}/rows"), &[("port", port)]);
        assert_eq!((&rows["scorer"], &rows["scorers"]), (&Value::Null, &json!([])), "{node}.{port}: {rows}");
    }
    let turns = page.get(&format!("{path}/column"), &[("name", "turns")]);
    let binned: u64 = turns["bins"].as_array().expect("bins").iter().filter_map(|bin| bin["rows"].as_u64()).sum();
    assert_eq!((&turns["rows"], binned), (&json!(40), 40), "{turns}");
    let types = page.get(&format!("{path}/column"), &[("name", "question_type"), ("where", "f1 >= 0.5")]);
    let common: u64 = types["common"].as_array().expect("values").iter().filter_map(|one| one["rows"].as_u64()).sum();
    assert_eq!((&types["rows"], common), (&json!(count), count), "{types}");

    let rounds = page.get(&format!("/api/runs/{newest}/nodes/rated@round=2/rounds"), &[]);
    assert_eq!((&rounds["measure"], &rounds["numbers"]), (&json!("score"), &json!([0, 1, 2])), "{rounds}");
    assert_eq!(rounds["means"], json!([0.5, 0.5, 0.5]));
    assert_eq!(rounds["questions"][1], json!({"id": "learnt", "values": [0.75, 1.0, 1.25], "spread": 0.0}));
    let (status, refused) = page.answer(&format!("/api/runs/{newest}/nodes/scores/rounds"), &[]);
    assert_eq!((status, &refused["error"]), (400, &json!("`scores` is of no loop")));

    let oldest = before["runs"][0]["id"].as_str().expect("an id");
    let diff = page.get("/api/compare", &[("a", oldest), ("b", &newest)]);
    let changed = json!([{"name": "top_k", "from": 1, "to": 3}, {"name": "turns", "from": 2, "to": 6}]);
    assert_eq!(diff["params"], changed);
}

#[test]
fn two_nodes_are_compared_if_both_are_named_and_there() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    let runs = mill.store().run_ids();
    let (oldest, newest) = (runs[0].as_str(), runs[1].as_str());
    let of_nodes =
        |rest: &[(&str, &str)]| page.answer("/api/compare", &[&[("a", oldest), ("b", newest)], rest].concat());
    assert_eq!(of_nodes(&[("node", "rollouts"), ("with", "voiced")]).1["of"], json!(["rollouts", "voiced"]));
    for (rest, said) in [(("with", "voiced"), "`with` needs `node`"), (("node", "voice"), "has no node `voice`")] {
        let (status, refused) = of_nodes(&[rest]);
        assert!(status == 400 && refused["error"].as_str().is_some_and(|told| told.contains(said)), "{refused}");
    }
}

#[test]
fn bad_questions_get_an_answer_in_words() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    let run = page.get("/api/runs", &[])["runs"][0]["id"].as_str().expect("an id").to_owned();
    let rows = format!("/api/runs/{run}/nodes/rollouts/rows");
    // A folder outside of the store that looks like one of a run.
    let folder = mill.store_path().join("runs").join(&run);
    let copied = Command::new("cp").arg("-r").arg(folder).arg(mill.path("outside")).status().expect("cp");
    assert!(copied.success());
    for (path, query, status, said) in [
        ("/api/runs/nothing", ("", ""), 404, "there is no run nothing"),
        ("/api/runs/..%2f..%2fetc", ("", ""), 404, "there is no run"),
        ("/api/runs/..%2f..%2foutside/nodes/rollouts", ("", ""), 404, "there is no run"),
        ("/api/runs/..%2f..%2foutside/nodes/rollouts/rows", ("", ""), 404, "there is no run"),
        ("/api/runs/..%2f..%2foutside/nodes/rated@round=0/rounds", ("", ""), 404, "there is no run"),
        ("/api/runs/..%2f..%2foutside/events", ("", ""), 404, "there is no run"),
        (&format!("/api/runs/{run}/nodes/nothing"), ("", ""), 404, "has no node `nothing`"),
        (&rows, ("where", "nothing = 1"), 400, "there is no column `nothing`"),
        (&rows, ("where", "id ="), 400, "not an SQL expression"),
        (&rows, ("where", "1; DROP TABLE x"), 400, "`where`"),
        (&rows, ("sort", "nothing"), 400, "there is no column `nothing`"),
        (&rows, ("columns", "nothing"), 400, "there is no column `nothing`"),
        (&rows, ("port", "nothing"), 404, "no output nothing"),
        (&rows, ("port", "rejects"), 200, ""),
        (&format!("/api/runs/{run}/nodes/bm25/rows"), ("", ""), 400, "is a folder (index)"),
        (&format!("/api/runs/{run}/nodes/rollouts/row"), ("id", "nobody"), 404, "no row has the id `nobody`"),
        (&format!("/api/runs/{run}/nodes/rollouts/row"), ("at", "99999"), 404, "there is no row 99999"),
        (&format!("/api/runs/{run}/nodes/rollouts/column"), ("name", "messages"), 200, ""),
        (&format!("/api/runs/{run}/nodes/rollouts/column"), ("name", "nothing"), 400, "no column `nothing`"),
        ("/api/nothing", ("", ""), 404, "there is nothing at GET /api/nothing"),
        ("/api/compare", ("a", "x"), 400, "b"),
    ] {
        let query = [query].into_iter().filter(|(name, _)| !name.is_empty()).collect::<Vec<_>>();
        let asked = page.runtime.block_on(async {
            let answer = page.client.get(format!("{}{path}", page.base)).query(&query).send().await.expect("an answer");
            (answer.status().as_u16(), answer.text().await.expect("text"))
        });
        assert_eq!(asked.0, status, "{path} {query:?}: {}", asked.1);
        assert!(asked.1.contains(said), "{path} {query:?}: {}", asked.1);
    }
    let far = page.get(&rows, &[("from", "18446744073709551000"), ("to", "18446744073709551615")]);
    assert_eq!(far["rows"], json!([]));
}

#[test]
fn only_this_machine_is_let_in_and_texts_cannot_become_markup() {
    let mill = Mill::new();
    let page = Page::start(&mill, &[]);
    let address = page.base.trim_start_matches("http://").to_owned();
    let fine = page.raw("/", &format!("Host: {address}\r\n"));
    assert!(fine.starts_with("HTTP/1.1 200") && fine.contains("default-src 'none'"), "{fine}");
    assert!(fine.contains("require-trusted-types-for 'script'") && fine.contains("nosniff"), "{fine}");
    for headers in ["Host: evil.example\r\n", &format!("Host: {address}\r\nOrigin: http://evil.example\r\n")] {
        let refused = page.raw("/api/pipelines", headers);
        assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("default-src 'none'"), "{refused}");
    }
    // A folder without a store is no error, and stays without one.
    let empty = page.get("/api/pipelines", &[]);
    assert_eq!((&empty["exists"], &empty["pipelines"]), (&json!(false), &json!([])));
    assert!(!mill.store_path().exists());
    drop(page);

    mill.write("token", "s3cret-token\n");
    let page = Page::start(&mill, &["--token-file", "token"]);
    let address = page.base.trim_start_matches("http://").to_owned();
    let host = format!("Host: {address}\r\n");
    assert!(page.raw("/", &host).starts_with("HTTP/1.1 200"), "the page itself shows nothing of the store");
    assert!(page.raw("/api/pipelines", &host).starts_with("HTTP/1.1 401"));
    let known = page.raw("/api/pipelines", &format!("{host}Authorization: Bearer s3cret-token\r\n"));
    assert!(known.starts_with("HTTP/1.1 200"), "{known}");
    let open = mill.call(&["ui", "--listen", "0.0.0.0:0"]).exit(2);
    assert!(
        open.stderr.contains("can be reached from other machines") && open.stderr.contains("--token-file"),
        "{open:?}"
    );
    mill.write("empty", "\n");
    mill.call(&["ui", "--token-file", "empty"]).exit(2);
    let taken = page.base.trim_start_matches("http://").to_owned();
    let second = mill.call(&["ui", "--listen", &taken]).exit(2);
    assert!(second.stderr.contains("cannot listen on"), "{second:?}");
}

#[test]
fn scores_stand_beside_rollouts_as_soon_as_they_are_there() {
    let mill = Mill::new();
    let pipeline = "\
name: later
nodes:
  world:    {op: generate-world, with: {documents: 100, questions: 8}, seed: 5}
  chunks:   {op: chunk, from: world, with: {size: 12, count: words}}
  bm25:     {op: index, from: chunks, with: {kind: bm25}}
  rollouts: {op: rollout, from: {questions: world.questions, search: bm25}, with: {policy: evidence}}
  gate:     {op: exec, from: rollouts, with: {command: [sh, -c, \"while [ ! -e go ]; do sleep 0.1; done; cat\"], writes: [go], as: trajectory}}
  scored:   {op: sql, from: {g: gate}, with: {query: select count(*) as n from g}}
  scores:   {op: evaluate, from: {trajectories: rollouts, questions: after}}
  after:    {op: sql, from: {q: world.questions, s: scored}, with: {query: select q.* from q cross join s where n > 0, as: question}}
";
    mill.write("pipeline.yaml", pipeline);
    let page = Page::start(&mill, &[]);
    let mut run = mill.command(&["run", "pipeline.yaml"]).spawn().expect("a run");
    let mut rows = Value::Null;
    let mut id = String::new();
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(50));
        let running = page.get("/api/pipelines", &[])["running"][0]["id"].clone();
        id = running.as_str().unwrap_or_default().to_owned();
        let (status, found) = page.answer(&format!("/api/runs/{id}/nodes/rollouts/rows"), &[]);
        if !id.is_empty() && status == 200 {
            rows = found;
            break;
        }
    }
    assert_eq!((&rows["all"], &rows["scorer"]), (&json!(8), &Value::Null), "{rows}");
    mill.write("go", "");
    assert!(run.wait().expect("the run ends").success());
    let rows = page.get(&format!("/api/runs/{id}/nodes/rollouts/rows"), &[]);
    assert_eq!(rows["scorer"], "scores", "{rows}");
}

#[test]
fn a_run_is_followed_while_it_goes_on_in_another_process() {
    let mill = Mill::new();
    let rows: String = (0..4).map(|n| format!("{{\"id\": \"d{n}\", \"text\": \"{n}\"}}\n")).collect();
    mill.write("rows.jsonl", &rows);
    let read = "  rows: {op: read, with: {path: rows.jsonl, as: document}}\n";
    let wait = "  slow: {op: exec, from: rows, with: {command: [sh, -c, \"while [ ! -e go ]; do sleep 0.1; done; cat\"], writes: [go], as: document}}\n";
    mill.write("pipeline.yaml", &format!("name: slow\nnodes:\n{read}{wait}"));
    let page = Page::start(&mill, &[]);
    let mut run = mill.command(&["run", "pipeline.yaml"]).spawn().expect("a run");
    let seen = (0..300).find_map(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let running = page.get("/api/pipelines", &[])["running"][0].clone();
        (running["state"] == "running").then(|| running["id"].as_str().expect("an id").to_owned())
    });
    let id = seen.expect("the run is seen to run");
    let text = page.runtime.block_on(async {
        let mut answer = page.client.get(format!("{}/api/runs/{id}/events", page.base)).send().await.expect("events");
        let mut text = String::new();
        let mut released = false;
        while let Some(chunk) = answer.chunk().await.expect("events") {
            text.push_str(&String::from_utf8_lossy(&chunk));
            if !released && text.contains("\"node\":\"slow\"") {
                mill.write("go", "");
                released = true;
            }
        }
        text
    });
    assert!(run.wait().expect("the run ends").success());
    for event in ["run_started", "node_started", "node_finished", "run_finished"] {
        assert!(text.contains(&format!("\"event\":\"{event}\"")), "{event}: {text}");
    }
    assert!(text.trim_end().ends_with("event: end\ndata: {}"), "{text}");
    assert_eq!(page.get(&format!("/api/runs/{id}"), &[])["state"], "done");
    let place: u64 =
        text.rsplit("event: place\ndata: ").next().and_then(|rest| rest.lines().next()?.parse().ok()).expect("a place");
    let rest = page.raw(
        &format!("/api/runs/{id}/events?from={place}"),
        &format!("Host: {}\r\n", page.base.trim_start_matches("http://")),
    );
    assert!(rest.contains("event: end") && !rest.contains("node_started"), "{rest}");
}

#[test]
fn reports_are_shown_where_they_can_read_nothing() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    let run = page.get("/api/runs", &[])["runs"][0]["id"].as_str().expect("an id").to_owned();
    let scores = page.get(&format!("/api/runs/{run}/nodes/scores"), &[]);
    let outputs = scores["outputs"].as_array().expect("outputs");
    let report = outputs.iter().find(|output| output["type"] == "report").expect("a report");
    let id = report["id"].as_str().expect("an id");
    let told = page.get(&format!("/api/artifacts/{id}"), &[]);
    assert_eq!((&told["kind"], &told["rows"]), (&json!("report"), &Value::Null), "{told}");
    assert!(told["runs"].as_array().is_some_and(|runs| runs.iter().any(|one| one["run"] == run.as_str())), "{told}");
    let folder = told["folder"].as_str().expect("a folder");
    let document = page.get("/api/openapi.json", &[]);
    assert_eq!(document["paths"]["/api/labels"].as_object().map(serde_json::Map::len), Some(2), "{document}");
    let host = format!("Host: {}\r\n", page.base.trim_start_matches("http://"));
    let name = told["files"][0]["name"].as_str().expect("a file");
    let whole = page.raw(&format!("{folder}{name}"), &host);
    assert!(whole.starts_with("HTTP/1.1 200") && whole.contains("<!doctype html>"), "{whole}");
    assert!(whole.contains("default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"), "{whole}");
    assert!(whole.contains("content-disposition: inline") && whole.contains("nosniff"), "{whole}");
    for (path, said) in [
        (format!("{folder}../../../format"), "404"),
        (format!("{folder}..%2f..%2f..%2fformat"), "the artifact has no file"),
        (format!("{folder}nothing.html"), "the artifact has no file `nothing.html`"),
        (format!("/files/guessed/{id}/{name}"), "of an earlier server"),
        ("/api/artifacts/nothing".to_owned(), "is no id of an artifact"),
        (format!("/api/artifacts/{}", "0".repeat(64)), "no "),
    ] {
        let refused = page.raw(&path, &host);
        assert!(refused.starts_with("HTTP/1.1 4") && refused.contains(said), "{path}: {refused}");
    }
    // A table is an artifact, too.
    let rows = outputs.iter().find(|output| output["table"] == true).expect("a table");
    let told = page.get(&format!("/api/artifacts/{}", rows["id"].as_str().expect("an id")), &[]);
    assert_eq!(told["rows"], rows["rows"]);
}

#[test]
fn a_page_compares_the_rollouts_of_two_runs() {
    let mill = project();
    let told = mill.call(&["diff", "--report", "compared.html", "--node", "rollouts"]).exit(0);
    assert!(told.stderr.contains("compared.html: rollouts: run "), "{told:?}");
    let page = std::fs::read_to_string(mill.path("compared.html")).expect("a page");
    for part in ["top_k: 1 → 3", "turns: 2 → 6", "What regressed", "Baseline: run 2", "Holm"] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("<script"), "it needs no script");
    let same = mill.call(&["diff", "latest", "latest", "--report", "same.html"]).exit(2);
    assert!(same.stderr.contains("nothing to compare"), "{same:?}");
    mill.call(&["diff", "--report", "read.html", "--node", "scores"]).exit(0);
    let read = std::fs::read_to_string(mill.path("read.html")).expect("a page");
    assert!(read.contains("What regressed"), "the rollouts that the node read");
    let other = mill.call(&["diff", "--report", "x.html", "--node", "score"]).exit(2);
    assert!(other.stderr.contains("has no node `score`") && other.stderr.contains("`scores`"), "{other:?}");
    let nowhere = mill.call(&["diff", "--report", "missing/x.html", "--node", "rollouts"]).exit(2);
    assert!(nowhere.stderr.contains("cannot write"), "{nowhere:?}");
}

#[test]
fn a_table_that_was_collected_meanwhile_is_said_to_be_gone() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    let run = page.get("/api/runs", &[])["runs"][0]["id"].as_str().expect("an id").to_owned();
    let path = format!("/api/runs/{run}/nodes/rollouts");
    page.get(&format!("{path}/rows"), &[("to", "2")]);
    let folder = mill.artifact_folder("rollouts", "trajectories");
    std::fs::rename(&folder, mill.path("collected")).expect("moved");
    for (part, query) in [("rows", ("to", "2")), ("row", ("at", "0")), ("column", ("name", "turns"))] {
        let (status, told) = page.answer(&format!("{path}/{part}"), &[query]);
        let said = told["error"].as_str().unwrap_or_default();
        assert!(status == 410 && said.contains("is gone from the store: run its pipeline again"), "{part}: {told}");
    }
    // The rest is there, and so is the table after the next run.
    assert_eq!(page.get(&format!("/api/runs/{run}/nodes/scores/rows"), &[])["all"], 40);
    mill.run(&["--set", "top_k=3", "--set", "turns=6"]).exit(0);
    assert_eq!(page.get(&format!("{path}/rows"), &[])["all"], 40);
}

#[test]
fn a_run_names_the_pages_that_show_it() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\", \"text\": \"b\"}\n");
    mill.write("pipeline.yaml", "name: named\nnodes:\n  rows: {op: read, with: {path: rows.jsonl, as: document}}\n");
    // The page is there before the store is.
    let mut page = Page::start(&mill, &[]);
    let first = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(!first.stderr.contains(&page.base), "{first:?}");
    page.get("/api/pipelines", &[]);
    let second = mill.call(&["run", "pipeline.yaml"]).exit(0);
    let run = page.get("/api/runs", &[])["runs"][0]["id"].as_str().expect("an id").to_owned();
    assert!(second.stderr.contains(&format!("{}/r/{run}", page.base)), "{second:?}");
    // A killed page is not named.
    page.child.kill().expect("killed");
    page.child.wait().expect("ended");
    let third = mill.call(&["run", "pipeline.yaml"]).exit(0);
    assert!(!third.stderr.contains(&page.base), "{third:?}");
}

#[test]
fn schedules_are_told_paused_and_triggered() {
    let mill = Mill::new();
    mill.write("rows.jsonl", "{\"id\": \"a\"}\n");
    let yearly = "{cron: \"0 3 1 1 *\", timezone: UTC}";
    std::fs::create_dir(mill.path("pipelines")).expect("a folder");
    mill.write(
        "pipelines/nightly.yaml",
        &format!(
            "name: nightly\nschedule: {yearly}\nnodes:\n  rows: {{op: read, with: {{path: rows.jsonl, as: table}}}}\n"
        ),
    );
    let daemon = Daemon::start(&mill);
    let page = Page::start(&mill, &[]);
    let own = page.base.clone();
    let act = |action: &str| page.post("/api/schedules", &own, &json!({"name": "nightly", "action": action}));
    let schedule = || page.get("/api/pipelines", &[])["schedules"][0].clone();
    for _ in 0..200 {
        if schedule()["served"] == true {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let told = schedule();
    assert_eq!(
        (&told["name"], &told["served"], &told["paused"]),
        (&json!("nightly"), &json!(true), &json!(false)),
        "{told}"
    );
    assert!(told["next"].as_str().is_some_and(|next| next.contains("-01-01T03:00:00")), "{told}");
    let (status, told) = act("pause");
    assert_eq!((status, &told["paused"]), (200, &json!(true)), "{told}");
    assert_eq!(act("resume").1["paused"], false);
    assert_eq!(act("trigger").0, 200);
    for _ in 0..200 {
        if schedule()["last"]["outcome"] == "succeeded" {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(schedule()["last"]["outcome"], "succeeded", "{}", schedule());
    for (origin, value, status) in [
        ("http://evil.example", json!({"name": "nightly", "action": "trigger"}), 403),
        (own.as_str(), json!({"name": "nothing", "action": "pause"}), 404),
        (own.as_str(), json!({"name": "nightly", "action": "remove"}), 422),
    ] {
        assert_eq!(page.post("/api/schedules", origin, &value).0, status, "{origin} {value}");
    }
    daemon.kill();
    let (status, told) = act("trigger");
    assert!(status == 403 && told.to_string().contains("no daemon serves `nightly`"), "{told}");
}

#[test]
fn two_people_label_and_other_pages_cannot() {
    let mill = project();
    let page = Page::start(&mill, &[]);
    assert_eq!(page.get("/api/labels", &[]), json!({"labels": [], "damaged": 0}));
    let run = page.get("/api/runs", &[])["runs"][0]["id"].as_str().expect("an id").to_owned();
    let one = page.get(&format!("/api/runs/{run}/nodes/rollouts/row"), &[("at", "0")]);
    let (row, artifact) = (one["row"]["id"].as_str().expect("an id"), one["artifact"].as_str().expect("an id"));
    let said = |author: &str, mark: Value, note: &str| json!({"run": run, "node": "rollouts", "port": one["port"], "row": row, "mark": mark, "note": note, "author": author});
    let own = page.base.clone();
    for (author, mark, note) in
        [("ann", json!("bad"), " <b>wrong</b> hop "), ("bob", json!("good"), ""), ("ann", json!("unsure"), "later")]
    {
        let (status, told) = page.post("/api/labels", &own, &said(author, mark.clone(), note));
        assert_eq!((status, &told["mark"], &told["note"]), (200, &mark, &json!(note.trim())), "{told}");
    }
    for origin in ["http://evil.example", "http://localhost:1", "null"] {
        let (status, told) = page.post("/api/labels", origin, &said("eve", json!("good"), ""));
        assert_eq!(status, 403, "{origin}: {told}");
    }
    for (wrong, status, words) in [
        (said(" ", json!("good"), ""), 400, "must be a name"),
        (said("ann", json!("fine"), ""), 422, "unknown variant"),
        (
            json!({"run": run, "node": "nothing", "port": "p", "row": "r", "author": "a"}),
            404,
            "has no output p of `nothing`",
        ),
        (said("ann", Value::Null, &"x".repeat(10_001)), 400, "more than 10000 characters"),
    ] {
        let (found, told) = page.post("/api/labels", &own, &wrong);
        assert!(found == status && told.to_string().contains(words), "{found} {told}");
    }
    // Another server of the same store sees both; a label without mark and note is gone.
    drop(page);
    let page = Page::start(&mill, &[]);
    let all = page.get("/api/labels", &[("artifact", artifact), ("row", row)]);
    let marks: Vec<(&str, &str)> = all["labels"]
        .as_array()
        .expect("labels")
        .iter()
        .map(|label| (label["author"].as_str().unwrap_or(""), label["mark"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(marks, [("ann", "unsure"), ("bob", "good")]);
    page.post("/api/labels", &page.base, &said("bob", Value::Null, ""));
    assert_eq!(page.get("/api/labels", &[])["labels"].as_array().map(Vec::len), Some(1));
    assert_eq!(page.get("/api/labels", &[("row", "other")])["labels"], json!([]));
    // What people say is no input: nothing runs again.
    let again = mill.run(&["--set", "top_k=3", "--set", "turns=6"]).exit(0);
    assert_eq!(again.ran(), "");
}

/// Returns the browser and the folder of the tests of the page, if both are there.
#[test]
fn the_prices_of_a_node_are_told_with_it() {
    let mill = Mill::new();
    let model = OpenAiServer::start_by_turn([("what".to_owned(), vec![answer("Rome")])].into_iter().collect());
    mill.write("questions.jsonl", "{\"id\": \"q\", \"question\": \"what\", \"golden_answers\": [\"Rome\"]}\n");
    let endpoint = format!("{{base_url: \"{}\", model: m, prices: {{prompt: 2, completion: 10}}}}", model.base_url());
    mill.write(
        "pipeline.yaml",
        &format!(
            "name: paid\nnodes:\n  questions: {{op: read, with: {{path: questions.jsonl, as: question}}}}\n  rollouts: {{op: \
             rollout, from: {{questions: questions}}, with: {{policy: {{endpoint: {endpoint}}}}}}}\n"
        ),
    );
    mill.run(&[]).exit(0);
    let page = Page::start(&mill, &[]);
    let run = mill.store().run_ids().pop().expect("a run");
    let node = page.get(&format!("/api/runs/{run}/nodes/rollouts"), &[]);
    let prices = json!({"prompt": 2.0, "completion": 10.0, "call": 0.0, "currency": "USD"});
    assert_eq!((&node["prices"], &node["calls"], &node["service_calls"]), (&prices, &json!(1), &json!(0)), "{node}");
    let questions = page.get(&format!("/api/runs/{run}/nodes/questions"), &[]);
    assert_eq!(questions["prices"], Value::Null);
}

pub(crate) fn browser() -> Option<(String, &'static Path)> {
    let web = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/serve/page/web"));
    let named = std::env::var("SEARCHMILL_BROWSER").ok();
    let found = named.into_iter().chain(["/usr/bin/chromium".to_owned()]).find(|path| Path::new(path).is_file())?;
    let has_node = Command::new("node").arg("--version").output().is_ok_and(|told| told.status.success());
    (has_node && web.join("node_modules/playwright-core").is_dir()).then_some((found, web))
}

#[test]
fn the_page_in_a_browser() {
    let Some((browser, web)) = browser() else {
        searchmill_fixtures::skip("a browser (scripts/setup-browser)");
        return;
    };
    let mill = project();
    let runs = mill.store().run_ids();
    mill.call(&["ui", "--bundle", "site", "--rows", "50", "--run", &runs[0], "--run", &runs[1]]).exit(0);
    let page = Page::start(&mill, &[]);
    let told = Command::new("node")
        .args(["--test", "--test-reporter=spec", "tests/page.test.js"])
        .current_dir(web)
        .env("SEARCHMILL_PAGE", &page.base)
        .env("SEARCHMILL_BUNDLE", mill.path("site/index.html"))
        .env("SEARCHMILL_BROWSER", browser)
        .output()
        .expect("node");
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    println!("{out}");
    assert!(told.status.success(), "{out}{err}");
}

//! Tests of the page on stores that are damaged, large or busy: it says what it sees, and goes on.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::views::{Page, browser};
use crate::harness::project::Mill;

const PIPELINE: &str = "\
name: small
nodes:
  one: {op: read, with: {path: rows.jsonl, as: table}}
  two: {op: filter, from: one, with: {where: \"n >= 0\"}}
";

fn mill(rows: &str) -> Mill {
    let mill = Mill::new();
    mill.write("rows.jsonl", rows);
    mill.write("pipeline.yaml", PIPELINE);
    mill.run(&[]).exit(0);
    mill
}

fn only_run(mill: &Mill) -> String {
    mill.store().run_ids().pop().expect("a run")
}

#[test]
fn records_that_are_cut_off_or_overwritten_are_told_and_the_rest_is_shown() {
    let mill = mill("{\"n\": 1}\n");
    let damaged = only_run(&mill);
    mill.write("rows.jsonl", "{\"n\": 2}\n");
    mill.run(&[]).exit(0);
    let whole = only_run(&mill);
    let folder = mill.store_path().join("runs").join(&damaged);
    let files = ["run.json", "nodes.jsonl", "events.jsonl"];
    let intact: Vec<Vec<u8>> = files.iter().map(|name| fs::read(folder.join(name)).expect("a file")).collect();
    let page = Page::start(&mill, &[]);
    let paths = ["", "/nodes/one", "/nodes/one/rows", "/events?from=0", "/events?from=7", "/events?from=99999999"];
    for (place, name) in files.iter().enumerate() {
        let (half, text) = (intact[place].len() / 2, String::from_utf8_lossy(&intact[place]).into_owned());
        let kinds: [Vec<u8>; 5] = [
            Vec::new(),
            intact[place][..half].to_vec(),
            vec![0xff; 4096],
            format!("{}\n{text}", json!({"event": {"__proto__": 1}, "node": [[["x"]]], "time": "never"})).into_bytes(),
            text.replace(':', ": \u{202e}").into_bytes(),
        ];
        for (kind, bytes) in kinds.iter().enumerate() {
            fs::write(folder.join(name), bytes).expect("written");
            for path in paths {
                let address = format!("{}/api/runs/{damaged}{path}", page.base);
                let (status, body) = page.runtime.block_on(async {
                    let sent = page.client.get(&address).timeout(Duration::from_secs(20)).send().await;
                    let answer = sent.unwrap_or_else(|error| panic!("{name} {kind} {path}: {error}"));
                    (answer.status().as_u16(), answer.text().await.expect("a body"))
                });
                // Words, whatever is wrong: never a panic or an answer without one.
                assert!(status == 200 || body.contains("\"error\":\""), "{name} {kind} {path}: {status} {body}");
            }
            let home = page.get("/api/pipelines", &[]);
            let last = &home["pipelines"][0]["last"];
            assert_eq!(last["id"], whole.as_str(), "{name} {kind}: {home}");
            page.get(&format!("/api/runs/{whole}/nodes/one/rows"), &[]);
        }
        fs::write(folder.join(name), &intact[place]).expect("restored");
    }
    let rows = page.get(&format!("/api/runs/{damaged}/nodes/one/rows"), &[("columns", "n")]);
    assert_eq!(rows["rows"][0]["cells"], json!([1]));
}

#[test]
fn five_thousand_columns_are_listed_in_part_and_each_can_be_asked_for() {
    let row: serde_json::Map<String, Value> =
        std::iter::once(("n".to_owned(), json!(1))).chain((0..5000).map(|n| (format!("c{n}"), json!(n)))).collect();
    let mill = mill(&format!("{}\n", Value::Object(row)));
    let page = Page::start(&mill, &[]);
    let path = format!("/api/runs/{}/nodes/one", only_run(&mill));
    let rows = page.get(&format!("{path}/rows"), &[]);
    assert_eq!(rows["every"].as_array().map(Vec::len), Some(5001));
    let listed = rows["columns"].as_array().map_or(0, Vec::len);
    assert!(listed > 10 && listed <= 60, "{listed}");
    let rows = page.get(&format!("{path}/rows"), &[("columns", "c4999"), ("where", "c4998 = 4998")]);
    assert_eq!(rows["rows"][0]["cells"], json!([4999]));
    let (status, problem) = page.answer(&format!("{path}/rows"), &[("where", "c5000 = 1")]);
    let help = json!("did you mean `c500`? the table has 5001 columns: `searchmill show … --columns` lists them");
    assert_eq!((status, &problem["help"]), (400, &help), "{problem}");
    let row = page.get(&format!("{path}/row"), &[("at", "0")]);
    assert_eq!(row["row"]["c4321"], 4321);
    let column = page.get(&format!("{path}/column"), &[("name", "c7")]);
    assert_eq!((&column["min"], &column["rows"]), (&json!(7.0), &json!(1)), "{column}");
}

#[test]
fn fifty_tabs_at_once_get_their_answers() {
    let rows: String = (0..50_000).map(|n| format!("{{\"n\": {n}}}\n")).collect();
    let mill = mill(&rows);
    let page = Page::start(&mill, &[]);
    let path = format!("{}/api/runs/{}/nodes/two/rows", page.base, only_run(&mill));
    let answers = page.runtime.block_on(async {
        let mut asked = Vec::new();
        for tab in 0..50 {
            let (client, path) = (page.client.clone(), path.clone());
            asked.push(tokio::spawn(async move {
                let least = format!("n % 50 = {tab}");
                let query = [("where", least.as_str()), ("sort", "-n"), ("to", "1"), ("columns", "n")];
                let answer = client.get(path).query(&query).send().await.expect("an answer");
                answer.json::<Value>().await.expect("JSON")
            }));
        }
        let mut answers = Vec::new();
        for one in asked {
            answers.push(one.await.expect("an answer"));
        }
        answers
    });
    for (tab, answer) in answers.iter().enumerate() {
        let cells = &answer["rows"][0]["cells"];
        assert_eq!((&answer["count"], cells), (&json!(1000), &json!([49_950 + tab])), "{tab}");
    }
}

#[test]
fn the_next_run_is_told_before_it_is_started() {
    let mill = mill("{\"n\": 1}\n");
    let page = Page::start(&mill, &[]);
    let plan = page.get("/api/plan", &[("pipeline", "small")]);
    let state =
        |plan: &Value, place: usize| (plan["nodes"][place]["status"].clone(), plan["nodes"][place]["detail"].clone());
    assert_eq!((state(&plan, 0).0, state(&plan, 1).0), (json!("cached"), json!("cached")), "{plan}");
    mill.write("pipeline.yaml", &PIPELINE.replace("n >= 0", "n >= 1"));
    let plan = page.get("/api/plan", &[("pipeline", "small")]);
    assert_eq!(state(&plan, 1), (json!("run"), json!("param `where` changed from \"n >= 0\" to \"n >= 1\"")), "{plan}");
    // It says what is wrong in the file, and where.
    mill.write("pipeline.yaml", &PIPELINE.replace("op: filter", "op: fliter"));
    let (status, problem) = page.answer("/api/plan", &[("pipeline", "small")]);
    let words = problem["error"].as_str().unwrap_or_default();
    assert!(status == 400 && words.contains("pipeline.yaml:4:") && words.contains("fliter"), "{status} {problem}");
    let (status, problem) = page.answer("/api/plan", &[("pipeline", "other")]);
    assert_eq!((status, &problem["error"]), (404, &json!("no run of this store is of `other`")));
    assert_eq!(mill.store().run_ids().len(), 1, "nothing ran");
}

#[test]
fn the_page_in_a_browser_while_servers_and_runs_come_and_go() {
    let Some((browser, web)) = browser() else {
        searchmill_fixtures::skip("a browser (scripts/setup-browser)");
        return;
    };
    let mill = Mill::new();
    let message = |place: usize| {
        let role = ["system", "user", "assistant"][if place < 2 { place } else { 2 - (place % 2) }];
        json!({"role": role, "content": format!("message {place}: {}", "some words of it. ".repeat(40))})
    };
    let messages: Vec<Value> = (0..300).map(message).collect();
    let long =
        json!({"id": "q@0", "question_id": "q", "question": "what", "golden_answers": ["it"], "messages": messages});
    mill.write("long.jsonl", &format!("{long}\n"));
    mill.write("rows.jsonl", "{\"n\": 1}\n");
    mill.write(
        "pipeline.yaml",
        "\
name: live
nodes:
  one:  {op: read, with: {path: rows.jsonl, as: table}}
  long: {op: read, with: {path: long.jsonl, as: trajectory}}
  gate:
    op: exec
    from: one
    with: {command: [sh, -c, \"while [ ! -e go ]; do sleep 0.1; done; cat\"], writes: [go], as: table}
",
    );
    let told = Command::new("node")
        .args(["--test", "--test-reporter=spec", "tests/live.test.js"])
        .current_dir(web)
        .env("SEARCHMILL_BIN", env!("CARGO_BIN_EXE_searchmill"))
        .env("SEARCHMILL_DIR", mill.path(""))
        .env("SEARCHMILL_BROWSER", browser)
        .output()
        .expect("node");
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{out}{err}");
}

//! `ui --bundle`: chosen runs as a folder of files that a browser opens without a server.
//!
//! The folder has the page, and what the page would ask a server, as scripts: a browser reads no other files beside a
//! page that is itself a file. Every answer is the one that the server gives. Of a table the first rows are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use searchmill_engine::{Failure, Session, unix_time};
use serde_json::{Map, Value, json};

use super::state::Page;
use super::{assets, router};

/// Rows of one question to the server.
const STEP: usize = 100;
/// Bytes of the rows of one table, after which no more follow.
const TABLE: usize = 16 << 20;
/// Characters of each text of a row.
const TEXT: &str = "20000";
/// Bytes of a file of a report or another folder (at most).
const FILE: u64 = 16 << 20;
/// Events of a run: as many as the page shows.
const EVENTS: usize = 500;

/// The page as a file: it loads nothing but files of its folder. Firefox needs the word `file:`.
const INDEX: &str = r#"<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' file:; style-src 'self' file:; img-src 'self' file: data:; frame-src 'self' file:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types searchmill-bundle" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="color-scheme" content="light dark" />
    <meta name="referrer" content="no-referrer" />
    <title>searchmill</title>
    <link rel="icon" href="data:," />
    <link rel="stylesheet" href="page.css" />
    <script src="bundle.js"></script>
    <script defer src="page.js"></script>
  </head>
  <body>
    <noscript>This page needs JavaScript.</noscript>
    <div id="page"></div>
  </body>
</html>
"#;

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) runs: usize,
    pub(crate) tables: usize,
    /// Tables of which only the first rows are there.
    pub(crate) shortened: usize,
    pub(crate) files: usize,
    /// Files of folders that are not there: too large, or nothing that a browser shows.
    pub(crate) left_out: usize,
    /// What could not be read, with the reason.
    pub(crate) problems: Vec<String>,
}

/// Writes the runs into a folder that is there, of each table at most so many rows.
///
/// # Errors
/// If a file cannot be written, or a run is not there.
pub(crate) fn write(session: Session, runs: &[String], rows: usize, folder: &Path) -> Result<Written, Failure> {
    let page = std::sync::Arc::new(Page::new(session, String::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = TowerToHyperService::new(router().with_state(std::sync::Arc::clone(&page)));
    let mut bundle =
        Bundle { page, runtime, server, folder, rows, places: BTreeMap::new(), written: Written::default() };
    fs::create_dir(folder.join("data"))?;
    bundle.written.runs = runs.len();
    let mut summaries = Vec::new();
    for run in runs {
        summaries.push(bundle.run(run, runs)?);
    }
    bundle.comparisons(&summaries)?;
    let labels = bundle.ask(&["labels"], &[]);
    bundle.save("labels", &BTreeMap::from([("labels".to_owned(), labels)]))?;
    bundle.finish(&summaries)
}

struct Bundle<'a> {
    page: std::sync::Arc<Page>,
    runtime: tokio::runtime::Runtime,
    server: TowerToHyperService<Router>,
    folder: &'a Path,
    rows: usize,
    /// The script with each answer.
    places: BTreeMap<String, String>,
    written: Written,
}

/// Returns JSON as a text of JavaScript: as code, a key `__proto__` in it would mean something.
fn as_text(value: &Value) -> String {
    Value::String(value.to_string()).to_string()
}

/// Answers by what was asked: the parts of the address, a line each.
type Answers = BTreeMap<String, Value>;

impl Bundle<'_> {
    /// Asks the server. What it cannot answer, the page tells in the same words.
    fn ask(&mut self, path: &[&str], query: &[(&str, &str)]) -> Value {
        match self.answer(path, query) {
            Ok(answer) => answer,
            Err(problem) => {
                let words = problem["error"].as_str().unwrap_or_default();
                self.written.problems.push(format!("{}: {words}", path.join(" ")));
                json!({"problem": problem})
            }
        }
    }

    fn answer(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Value> {
        let mut address = "/api".to_owned();
        for part in path {
            address.push('/');
            address.extend(utf8_percent_encode(part, NON_ALPHANUMERIC));
        }
        for (place, (name, value)) in query.iter().enumerate() {
            address.push(if place == 0 { '?' } else { '&' });
            address.push_str(name);
            address.push('=');
            address.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        let broken = |error: &dyn std::fmt::Display| json!({"error": error.to_string(), "help": null});
        let request = Request::get(address).body(Body::empty()).map_err(|error| broken(&error))?;
        self.runtime.block_on(async {
            let Ok(answer) = self.server.call(request).await;
            let is_good = answer.status().is_success();
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.map_err(|error| broken(&error))?;
            let value: Value = serde_json::from_slice(&body).map_err(|error| broken(&error))?;
            if is_good { Ok(value) } else { Err(value) }
        })
    }

    /// Writes answers as a script.
    fn save(&mut self, name: &str, answers: &Answers) -> Result<(), Failure> {
        let text = as_text(&json!(answers));
        fs::write(self.folder.join("data").join(format!("{name}.js")), format!("searchmillBundle.add({text});\n"))?;
        for key in answers.keys() {
            self.places.insert(key.clone(), name.to_owned());
        }
        Ok(())
    }

    /// Writes a run; returns what the list of runs says of it.
    fn run(&mut self, run: &str, runs: &[String]) -> Result<Value, Failure> {
        let mut whole = self.answer(&["runs", run], &[]).map_err(|problem| {
            let words = problem["error"].as_str().unwrap_or_default().to_owned();
            Failure::usage(words).with_help("`searchmill runs` lists the runs")
        })?;
        let mut answers = Answers::new();
        let nodes = whole["ran"].as_array().cloned().unwrap_or_default();
        for (place, node) in nodes.iter().enumerate() {
            let name = node["node"].as_str().unwrap_or_default();
            let detail = self.ask(&["runs", run, "nodes", name], &[]);
            answers.insert(format!("runs\n{run}\nnodes\n{name}"), detail);
            for output in node["outputs"].as_array().into_iter().flatten() {
                let id = output["id"].as_str().unwrap_or_default();
                let artifact = format!("artifacts\n{id}");
                if !self.places.contains_key(&artifact) && !answers.contains_key(&artifact) {
                    let described = self.artifact(id, runs)?;
                    answers.insert(artifact, described);
                }
                if output["table"] == true {
                    let port = output["port"].as_str().unwrap_or_default();
                    self.table(run, name, port, &format!("{run}-{place}-{port}"))?;
                }
            }
            self.rounds(run, name, &mut answers);
        }
        let events = self.events(run)?;
        answers.insert(format!("runs\n{run}\nevents"), events);
        answers.insert(format!("runs\n{run}"), whole.clone());
        self.save(run, &answers)?;
        if let Some(fields) = whole.as_object_mut() {
            for large in ["params", "handed_on", "ran", "graph", "edges"] {
                fields.remove(large);
            }
        }
        Ok(whole)
    }

    /// Writes the first rows of a table, whole, and what its columns hold.
    fn table(&mut self, run: &str, node: &str, port: &str, name: &str) -> Result<(), Failure> {
        let path = ["runs", run, "nodes", node, "rows"];
        let mut head = self.ask(&path, &[("port", port), ("to", "0")]);
        let mut bytes = 0;
        let mut rows: Vec<Value> = Vec::new();
        let all = head["count"].as_u64().unwrap_or_default() as usize;
        while rows.len() < all.min(self.rows) && bytes < TABLE {
            let (from, to) = (rows.len(), self.rows.min(rows.len() + STEP));
            let (from, to) = (from.to_string(), to.to_string());
            let query = [("port", port), ("from", &from), ("to", &to), ("texts", TEXT), ("whole", "true")];
            let read = self.ask(&path, &query);
            let Some(read) = read["rows"].as_array().filter(|read| !read.is_empty()) else {
                // It can be read no further: the page says why.
                head = read;
                break;
            };
            for row in read {
                bytes += row.to_string().len();
                rows.push(row.clone());
                if bytes >= TABLE {
                    break;
                }
            }
        }
        let mut columns = Map::new();
        for column in head["columns"].as_array().cloned().unwrap_or_default() {
            let column = column.as_str().unwrap_or_default();
            // Columns of values that cannot be counted have no answer, and no button in the bundle.
            if let Ok(summary) =
                self.answer(&["runs", run, "nodes", node, "column"], &[("port", port), ("name", column)])
            {
                columns.insert(column.to_owned(), summary);
            }
        }
        self.written.tables += 1;
        self.written.shortened += usize::from(rows.len() < all);
        let detail = self.answer(&["runs", run, "nodes", node], &[]).unwrap_or_default();
        let output = detail["outputs"].as_array().into_iter().flatten().find(|output| output["port"] == port);
        let artifact = output.map(|output| output["id"].clone());
        let table = json!({"head": head, "rows": rows, "columns": columns, "artifact": artifact, "port": port});
        self.save(name, &BTreeMap::from([(format!("runs\n{run}\nnodes\n{node}\nrows\n{port}"), table)]))
    }

    /// Adds the rounds of a loop to the answers, by each measure.
    fn rounds(&self, run: &str, node: &str, answers: &mut Answers) {
        let key = |node: &str, measure: &str| format!("runs\n{run}\nnodes\n{node}\nrounds\n{measure}");
        if !node.contains("round=") || answers.contains_key(&key(node, "")) {
            return;
        }
        // Most nodes of a loop have no questions: then there is nothing to show.
        let Ok(first) = self.answer(&["runs", run, "nodes", node, "rounds"], &[]) else { return };
        let names = |field: &str| {
            let names = first[field].as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        for measure in std::iter::once(String::new()).chain(names("measures")) {
            let query = [("name", measure.as_str())];
            let query = if measure.is_empty() { &[][..] } else { &query[..] };
            let Ok(answer) = self.answer(&["runs", run, "nodes", node, "rounds"], query) else { continue };
            for round in names("nodes") {
                answers.insert(key(&round, &measure), answer.clone());
            }
        }
    }

    /// Returns an artifact with the files that a browser shows, which are copied.
    fn artifact(&mut self, id: &str, runs: &[String]) -> Result<Value, Failure> {
        let mut described = self.ask(&["artifacts", id], &[]);
        described["folder"] = format!("files/{id}/").into();
        if let Some(with) = described["runs"].as_array_mut() {
            with.retain(|one| runs.iter().any(|run| one["run"] == run.as_str()));
        }
        let located = self.page.session.located(id, None).ok();
        let mut copied = Vec::new();
        for file in described["files"].as_array().into_iter().flatten() {
            let name = file["name"].as_str().unwrap_or_default();
            let is_small = file["bytes"].as_u64().is_some_and(|bytes| bytes <= FILE);
            let source = located.as_ref().filter(|located| located.files.iter().any(|known| known == name));
            let (Some(source), true, true) = (source, file["shown"] == true, is_small) else {
                // Of a table its rows are there.
                self.written.left_out += usize::from(described["rows"].is_null());
                continue;
            };
            let target = self.folder.join("files").join(id).join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(source.folder.join(name), &target)?;
            self.written.files += 1;
            copied.push(file.clone());
        }
        if described["files"].is_array() {
            described["files"] = copied.into();
        }
        Ok(described)
    }

    /// Returns the last events of a run, as they stand in its record.
    fn events(&self, run: &str) -> Result<Value, Failure> {
        let (lines, _) = self.page.session.run_events_from(run, 0)?;
        let mut kept = Vec::new();
        for line in lines.lines() {
            if !line.contains("\"node_progress\"") {
                kept.push(line);
            }
        }
        let all = kept.len();
        Ok(json!({"lines": kept.split_off(all.saturating_sub(EVENTS))}))
    }

    /// Writes what differs between every two runs of a pipeline.
    fn comparisons(&mut self, runs: &[Value]) -> Result<(), Failure> {
        let mut answers = Answers::new();
        let pipelines: BTreeSet<&str> = runs.iter().filter_map(|run| run["pipeline"].as_str()).collect();
        for pipeline in pipelines {
            let mut ids = Vec::new();
            for run in runs {
                if run["pipeline"] == pipeline {
                    ids.push(run["id"].as_str().unwrap_or_default());
                }
            }
            ids.sort_unstable();
            for (place, one) in ids.iter().enumerate() {
                for other in &ids[place + 1..] {
                    let answer = self.ask(&["compare"], &[("a", one), ("b", other)]);
                    answers.insert(format!("compare\n{one}\n{other}"), answer);
                }
            }
        }
        self.save("compare", &answers)
    }

    fn finish(self, runs: &[Value]) -> Result<Written, Failure> {
        let about = json!({
            "made": unix_time(),
            "searchmill": env!("CARGO_PKG_VERSION"),
            "store": self.page.session.shown_store(),
            "rows": self.rows,
            "runs": runs,
            "places": self.places,
        });
        let text = as_text(&about);
        fs::write(self.folder.join("bundle.js"), format!("globalThis.searchmillBundle = {text};\n"))?;
        // A script of a file is no module: what it declares must not become global.
        fs::write(self.folder.join("page.js"), [b"(() => {\"use strict\";", assets::SCRIPT, b"})();\n"].concat())?;
        fs::write(self.folder.join("page.css"), assets::STYLE)?;
        fs::write(self.folder.join("index.html"), INDEX)?;
        Ok(self.written)
    }
}

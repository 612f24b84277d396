//! `ui --bundle`: chosen runs as a folder of files that a browser opens without a server.
//!
//! The folder has the page, and what the page would ask a server, as scripts: a browser reads no other files beside a
//! page that is itself a file. Every answer is the one that the server gives. Of a table the first rows are there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use searchmill_engine::{Failure, Session, unix_time};
use serde_json::{Map, Value, json};

use super::state::Page;
use super::{assets, files, router};

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

/// What the page may do as a file: load files of its folder, nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; frame-src 'self'; \
base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types searchmill-bundle";

/// Returns the page of the server as a file: addresses beside it, no module, and the policy, which no header gives.
fn index() -> String {
    let policy = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\" />");
    let scripts = "<script src=\"bundle.js\"></script>\n    <script defer src=\"page.js\"></script>";
    assets::PAGE
        .replace("<meta charset=\"utf-8\" />", &format!("<meta charset=\"utf-8\" />\n    {policy}"))
        .replace("<script type=\"module\" crossorigin src=\"/page.js\"></script>", scripts)
        .replace("crossorigin href=\"/page.css\"", "href=\"page.css\"")
}

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
    let page = Arc::new(Page::new(session, String::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let server = TowerToHyperService::new(router().with_state(Arc::clone(&page)));
    let holders = BTreeMap::new();
    let written = Written { runs: runs.len(), ..Written::default() };
    let mut bundle = Bundle { page, runtime, server, folder, rows, holders, places: BTreeMap::new(), written };
    fs::create_dir(folder.join("data"))?;
    // All runs first: an artifact names every run of the bundle that has it.
    let wholes = runs.iter().map(|run| bundle.whole(run)).collect::<Result<Vec<_>, _>>()?;
    let summaries = wholes.into_iter().map(|whole| bundle.run(whole)).collect::<Result<Vec<_>, _>>()?;
    bundle.comparisons(&summaries)?;
    let labels = bundle.ask(&["labels"], &[]);
    bundle.save("labels", &Answers::from([("labels".to_owned(), labels)]))?;
    bundle.finish(&summaries)
}

struct Bundle<'a> {
    page: Arc<Page>,
    runtime: tokio::runtime::Runtime,
    server: TowerToHyperService<Router>,
    folder: &'a Path,
    rows: usize,
    /// By artifact: which of these runs have it.
    holders: BTreeMap<String, Vec<Value>>,
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
        self.answer(path, query).unwrap_or_else(|problem| self.failed(path, problem))
    }

    /// Notes what cannot be answered, and returns it as the page tells it.
    fn failed(&mut self, path: &[&str], problem: Value) -> Value {
        let words = problem["error"].as_str().unwrap_or_default();
        self.written.problems.push(format!("{}: {words}", path.join(" ")));
        json!({"problem": problem})
    }

    fn answer(&self, path: &[&str], query: &[(&str, &str)]) -> Result<Value, Value> {
        let mut address = "/api".to_owned();
        for part in path {
            address.push('/');
            // Ids of nodes may contain `@`, `=` and `,`.
            address.extend(utf8_percent_encode(part, NON_ALPHANUMERIC));
        }
        for (place, (name, value)) in query.iter().enumerate() {
            address.push_str(&format!("{}{name}=", if place == 0 { '?' } else { '&' }));
            address.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        let request = Request::get(address).body(Body::empty()).map_err(broken)?;
        self.runtime.block_on(async {
            let Ok(answer) = self.server.call(request).await;
            let is_good = answer.status().is_success();
            let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.map_err(broken)?;
            let value: Value = serde_json::from_slice(&body).map_err(broken)?;
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

    /// Returns a run with its nodes, and notes which artifacts it has.
    fn whole(&mut self, run: &str) -> Result<Value, Failure> {
        let whole = self.answer(&["runs", run], &[]).map_err(|problem| {
            let words = problem["error"].as_str().unwrap_or_default().to_owned();
            Failure::usage(words).with_help("`searchmill runs` lists the runs")
        })?;
        for node in whole["ran"].as_array().into_iter().flatten() {
            for output in node["outputs"].as_array().into_iter().flatten() {
                let id = output["id"].as_str().unwrap_or_default();
                let holder = json!({"run": run, "node": node["node"], "port": output["port"]});
                self.holders.entry(id.to_owned()).or_default().push(holder);
            }
        }
        Ok(whole)
    }

    /// Writes a run; returns what the list of runs says of it.
    fn run(&mut self, mut whole: Value) -> Result<Value, Failure> {
        let run = whole["id"].as_str().unwrap_or_default().to_owned();
        let run = run.as_str();
        let mut answers = Answers::new();
        let nodes = whole["ran"].as_array().cloned().unwrap_or_default();
        for (place, node) in nodes.iter().enumerate() {
            let name = node["node"].as_str().unwrap_or_default();
            let detail = self.ask(&["runs", run, "nodes", name], &[]);
            answers.insert(format!("runs\n{run}\nnodes\n{name}"), detail);
            for output in node["outputs"].as_array().into_iter().flatten() {
                let id = output["id"].as_str().unwrap_or_default();
                let artifact = format!("artifacts\n{id}");
                // Runs share artifacts: each is described, and its files are copied, once.
                if !self.places.contains_key(&artifact) && !answers.contains_key(&artifact) {
                    let described = self.artifact(id)?;
                    answers.insert(artifact, described);
                }
                if output["table"] == true {
                    let port = output["port"].as_str().unwrap_or_default();
                    let table = ["runs", run, "nodes", name, "rows", port];
                    self.table(table, id, &format!("{run}-{place}-{port}"))?;
                }
            }
            self.rounds(run, name, &mut answers);
        }
        let events = self.events(run)?;
        answers.insert(format!("runs\n{run}\nevents"), events);
        answers.insert(format!("runs\n{run}"), whole.clone());
        self.save(run, &answers)?;
        if let Some(fields) = whole.as_object_mut() {
            // The list of runs is loaded with the page; these fields are in the script of the run.
            for large in ["params", "handed_on", "ran", "graph", "edges"] {
                fields.remove(large);
            }
        }
        Ok(whole)
    }

    /// Writes the first rows of a table, whole, and what its columns hold.
    fn table(&mut self, asked: [&str; 6], artifact: &str, name: &str) -> Result<(), Failure> {
        let [.., port] = asked;
        let path = &asked[..5];
        let mut head = self.ask(path, &[("port", port), ("to", "0")]);
        let mut bytes = 0;
        let mut rows: Vec<Value> = Vec::new();
        let all = head["count"].as_u64().unwrap_or_default() as usize;
        while rows.len() < all.min(self.rows) && bytes < TABLE {
            let (from, to) = (rows.len(), self.rows.min(rows.len() + STEP));
            let (from, to) = (from.to_string(), to.to_string());
            let query = [("port", port), ("from", &from), ("to", &to), ("texts", TEXT), ("whole", "true")];
            let read = self.ask(path, &query);
            let Some(read) = read["rows"].as_array().filter(|read| !read.is_empty()) else {
                // It can be read no further: the page says why.
                head = read;
                break;
            };
            for row in read {
                // Counted after each row: of a table with huge rows, at least the first is there.
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
            let summary = self.ask(&[&asked[..4], &["column"]].concat(), &[("port", port), ("name", column)]);
            columns.insert(column.to_owned(), summary);
        }
        self.written.tables += 1;
        self.written.shortened += usize::from(rows.len() < all);
        let table = json!({"head": head, "rows": rows, "columns": columns, "artifact": artifact, "port": port});
        self.save(name, &Answers::from([(asked.join("\n"), table)]))
    }

    /// Adds the rounds of a loop to the answers, by each measure.
    fn rounds(&self, run: &str, node: &str, answers: &mut Answers) {
        if !node.contains("round=") || answers.contains_key(&rounds_key(run, node, "")) {
            return;
        }
        // Most nodes of a loop have no questions: then there is nothing to show.
        let Ok(first) = self.answer(&["runs", run, "nodes", node, "rounds"], &[]) else { return };
        // Without a name, the answer is about the first measure.
        for measure in std::iter::once("").chain(texts(&first["measures"])) {
            let query = [("name", measure)];
            let query = if measure.is_empty() { &[][..] } else { &query[..] };
            let Ok(answer) = self.answer(&["runs", run, "nodes", node, "rounds"], query) else { continue };
            // The page may ask from any of the rounds.
            for round in texts(&first["nodes"]) {
                answers.insert(rounds_key(run, round, measure), answer.clone());
            }
        }
    }

    /// Returns an artifact with the files that a browser shows, which are copied.
    fn artifact(&mut self, id: &str) -> Result<Value, Failure> {
        let located = match files::located(&self.page, id) {
            Ok(located) => located,
            Err(problem) => return Ok(self.failed(&["artifacts", id], problem.into_json())),
        };
        let mut described = files::with_files(id, &located);
        described["folder"] = format!("files/{id}/").into();
        described["runs"] = self.holders.get(id).cloned().into();
        let mut copied = Vec::new();
        for file in described["files"].as_array().into_iter().flatten() {
            let name = file["name"].as_str().unwrap_or_default();
            let is_small = file["bytes"].as_u64().is_some_and(|bytes| bytes <= FILE);
            if file["shown"] != true || !is_small {
                // Of a table its rows are there.
                self.written.left_out += usize::from(located.rows.is_none());
                continue;
            }
            let target = self.folder.join("files").join(id).join(name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(located.folder.join(name), &target)?;
            self.written.files += 1;
            copied.push(file.clone());
        }
        described["files"] = copied.into();
        Ok(described)
    }

    /// Returns the last events of a run, as they stand in its record.
    fn events(&self, run: &str) -> Result<Value, Failure> {
        let (lines, _) = self.page.session.runs().events_from(run, 0)?;
        let mut kept: Vec<&str> = lines.lines().filter(|line| !line.contains("\"node_progress\"")).collect();
        let all = kept.len();
        Ok(json!({"lines": kept.split_off(all.saturating_sub(EVENTS))}))
    }

    /// Writes what differs between every two runs of a pipeline.
    fn comparisons(&mut self, runs: &[Value]) -> Result<(), Failure> {
        let mut answers = Answers::new();
        let pipelines: BTreeSet<&str> = runs.iter().filter_map(|run| run["pipeline"].as_str()).collect();
        for pipeline in pipelines {
            let of_pipeline = runs.iter().filter(|run| run["pipeline"] == pipeline);
            let mut ids: Vec<&str> = of_pipeline.map(|run| run["id"].as_str().unwrap_or_default()).collect();
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
            "store": self.page.session.store().location(),
            "rows": self.rows,
            "runs": runs,
            "places": self.places,
        });
        let text = as_text(&about);
        fs::write(self.folder.join("bundle.js"), format!("globalThis.searchmillBundle = {text};\n"))?;
        // A script of a file is no module: what it declares must not become global.
        fs::write(self.folder.join("page.js"), [b"(() => {\"use strict\";", assets::SCRIPT, b"})();\n"].concat())?;
        fs::write(self.folder.join("page.css"), assets::STYLE)?;
        // Last: a folder with this file has all the others.
        fs::write(self.folder.join("index.html"), index())?;
        Ok(self.written)
    }
}

/// Returns the key of an answer about the rounds of a node, as the page asks for it.
fn rounds_key(run: &str, node: &str, measure: &str) -> String {
    format!("runs\n{run}\nnodes\n{node}\nrounds\n{measure}")
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn broken(error: impl std::fmt::Display) -> Value {
    json!({"error": error.to_string(), "help": null})
}

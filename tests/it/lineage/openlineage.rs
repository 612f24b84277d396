//! Tests of OpenLineage events of real runs: each event and each facet is valid, and is delivered or reported as lost.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use jsonschema::{Draft, Resource, Validator};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::harness::endpoint::{Bench, patient};
use crate::harness::project::{Mill, Told, files_in};

/// Validates events.
struct Checker {
    schemas: BTreeMap<String, Value>,
    known: Mutex<BTreeMap<String, Arc<Validator>>>,
}

impl Checker {
    /// Loads the schemas; reports a skip and returns `None` if they are not available.
    fn new() -> Option<Self> {
        let folder = searchmill_fixtures::shared("data/openlineage")?;
        let mut files = files_in(&folder.join("facets"));
        files.push(folder.join("OpenLineage.json"));
        let read = |file: &std::path::PathBuf| {
            let schema: Value = serde_json::from_slice(&std::fs::read(file).expect("a schema")).expect("JSON");
            (schema["$id"].as_str().expect("an id").to_owned(), schema)
        };
        Some(Self { schemas: files.iter().map(read).collect(), known: Mutex::default() })
    }

    /// Returns the validator of a schema by its URL, with a fragment, without network access.
    fn validator(&self, url: &str) -> Arc<Validator> {
        let mut known = self.known.lock().expect("validators");
        let make = || {
            let id = url.split('#').next().unwrap_or_default();
            assert!(self.schemas.contains_key(id), "{id} is not one of the official schemas at that version");
            let mut options = jsonschema::options();
            options.with_draft(Draft::Draft202012).should_validate_formats(true);
            for (id, schema) in &self.schemas {
                options.with_resource(id.clone(), Resource::from_contents(schema.clone()).expect("a schema"));
            }
            Arc::new(options.build(&json!({"$ref": url})).expect("a validator"))
        };
        Arc::clone(known.entry(url.to_owned()).or_insert_with(make))
    }

    fn faults(&self, url: &str, value: &Value) -> Vec<String> {
        let validator = self.validator(url);
        match validator.validate(value) {
            Ok(()) => Vec::new(),
            Err(errors) => errors.map(|error| format!("{error} at {}", error.instance_path)).collect(),
        }
    }

    /// Returns all errors of an event: those of the event schema, which ignores facets, and those of each facet's own
    /// schema.
    fn check(&self, event: &Value) -> Vec<String> {
        let core = "https://openlineage.io/spec/2-0-2/OpenLineage.json";
        let mut faults = self.faults(core, event);
        faults.extend(self.faults(event["schemaURL"].as_str().unwrap_or_default(), event));
        for (name, facet) in facets(event) {
            let url = facet["_schemaURL"].as_str().unwrap_or_else(|| panic!("{name} names no schema: {facet}"));
            faults.extend(self.faults(url, &facet).into_iter().map(|fault| format!("{name}: {fault}")));
            // The schema says under which name its facet belongs.
            let schema = &self.schemas[url.split('#').next().unwrap_or_default()];
            if !schema["properties"].as_object().is_some_and(|properties| properties.contains_key(&name)) {
                faults.push(format!("{name} is not where {url} belongs"));
            }
        }
        faults
    }
}

/// Returns every facet of an event with its name.
fn facets(event: &Value) -> Vec<(String, Value)> {
    let mut places = vec![&event["run"]["facets"], &event["job"]["facets"]];
    let datasets = ["inputs", "outputs"].iter().flat_map(|side| event[side].as_array().into_iter().flatten());
    for dataset in datasets {
        places.extend([&dataset["facets"], &dataset["inputFacets"], &dataset["outputFacets"]]);
    }
    let maps = places.into_iter().filter_map(Value::as_object);
    maps.flat_map(|map| map.iter().map(|(name, facet)| (name.clone(), facet.clone()))).collect()
}

const PIPELINE: &str = "\
name: told
nodes:
  world:  {op: generate-world, with: {documents: 120, questions: 30}, seed: 5}
  corpus: {op: read, with: {path: documents.jsonl, as: document}}
  chunks: {op: chunk, from: corpus, with: {size: 6, count: words}}
  bm25:   {op: index, from: chunks, with: {kind: bm25}}
  long:   {op: filter, from: chunks, with: {where: \"length(text) > 12\"}}
  counts:
    op: sql
    from: {c: long, d: corpus}
    with:
      query: |
        SELECT d.id AS doc, upper(d.text) AS loud, count(*) AS n, max(c.text) AS last
        FROM c JOIN d ON c.document_id = d.id
        WHERE d.id <> 'd3'
        GROUP BY d.id, d.text
        ORDER BY d.id
  file:   {op: write, from: long, with: {path: out/long.jsonl}}
";

fn project() -> Mill {
    let mill = Mill::new();
    let text = |number| (0..45).map(|word| format!("w{number}x{word} ")).collect::<String>();
    let line = |number| format!("{}\n", json!({"id": format!("d{number}"), "text": text(number)}));
    mill.write("documents.jsonl", &(0..20).map(line).collect::<String>());
    mill.write("pipeline.yaml", PIPELINE);
    mill
}

fn lines(mill: &Mill, name: &str) -> Vec<Value> {
    mill.read(name).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns the events of a run, validated if the schemas are available.
fn told(mill: &Mill, more: &[&str], code: i32) -> Vec<Value> {
    drop(std::fs::remove_file(mill.path("events.jsonl")));
    let told = mill.run(&[&["--openlineage", "events.jsonl"], more].concat()).exit(code);
    assert_eq!(told.stderr, "");
    let events = lines(mill, "events.jsonl");
    assert_valid(&events);
    events
}

fn assert_valid(events: &[Value]) {
    let Some(checker) = Checker::new() else { return };
    for event in events {
        assert_eq!(checker.check(event), Vec::<String>::new(), "{event:#}");
    }
}

/// Returns the event types by job name, in order.
fn courses(events: &[Value]) -> BTreeMap<String, Vec<String>> {
    let mut courses: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in events {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        courses.entry(text(&event["job"]["name"])).or_default().push(text(&event["eventType"]));
    }
    courses
}

fn event<'a>(events: &'a [Value], job: &str, kind: &str) -> &'a Value {
    let found = events.iter().find(|event| event["job"]["name"] == job && event["eventType"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} of {job}"))
}

#[test]
fn every_event_and_every_facet_is_valid() {
    let mill = project();
    let events = told(&mill, &[], 0);
    let nodes = ["bm25", "chunks", "corpus", "counts", "file", "long", "world"].map(|node| format!("told.{node}"));
    let whole = vec!["START".to_owned(), "COMPLETE".to_owned()];
    let expected = nodes.into_iter().chain(["told".to_owned()]).map(|job| (job, whole.clone())).collect();
    assert_eq!(courses(&events), expected);
    let names: BTreeSet<String> = events.iter().flat_map(facets).map(|(name, _)| name).collect();
    let all = [
        "columnLineage",
        "dataSource",
        "datasetType",
        "documentation",
        "inputStatistics",
        "jobType",
        "outputStatistics",
        "parent",
        "processing_engine",
        "schema",
        "sourceCode",
        "sourceCodeLocation",
        "tags",
        "version",
    ];
    assert_eq!(names, all.map(str::to_owned).into());

    // One run for each node, all children of the pipeline's run.
    let runs: BTreeSet<&str> = events.iter().filter_map(|event| event["run"]["runId"].as_str()).collect();
    assert_eq!(runs.len(), 8);
    let parent = &event(&events, "told", "START")["run"]["runId"];
    for event in events.iter().filter(|event| event["job"]["name"] != "told") {
        assert_eq!(&event["run"]["facets"]["parent"]["run"]["runId"], parent);
    }
    let long = &event(&events, "told.long", "COMPLETE");
    assert_eq!(long["inputs"][0]["name"], "told.chunks.chunks");
    let artifacts = mill.artifacts();
    let version =
        |dataset: &Value| dataset["facets"]["version"]["datasetVersion"].as_str().unwrap_or_default().to_owned();
    assert_eq!(version(&long["inputs"][0]), format!("blake3:{}", artifacts["chunks.chunks"]));
    assert_eq!(version(&long["outputs"][0]), format!("blake3:{}", artifacts["long.rows"]));
    let rows = mill.last_nodes().into_iter().find(|node| node.node == "long").expect("a node").outputs["rows"].rows;
    assert_eq!(long["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"], rows);
    let source = &event(&events, "told.corpus", "COMPLETE")["inputs"][0];
    let digest = searchmill_engine::fingerprint::hash_bytes(mill.read("documents.jsonl").as_bytes());
    assert_eq!((&source["namespace"], version(source)), (&json!("file"), format!("blake3:{digest}")));
    assert!(source["name"].as_str().is_some_and(|name| name.ends_with("/documents.jsonl")), "{source}");
    let written = written(&events);
    assert!(written.len() == 1 && written[0].ends_with("out/long.jsonl"), "{written:?}");
}

/// Returns the files written by the node `file`.
fn written(events: &[Value]) -> Vec<String> {
    let outputs = event(events, "told.file", "COMPLETE")["outputs"].as_array().cloned().unwrap_or_default();
    let files = outputs.iter().filter(|output| output["namespace"] == "file");
    files.filter_map(|output| output["name"].as_str().map(str::to_owned)).collect()
}

/// Breaks an event.
type Break = fn(&mut Value);

#[test]
fn a_facet_that_is_broken_on_purpose_is_found() {
    let Some(checker) = Checker::new() else { return };
    let events = told(&project(), &[], 0);
    let good = event(&events, "told.counts", "COMPLETE");
    assert_eq!(checker.check(good), Vec::<String>::new());
    let breaks: [(&str, Break); 8] = [
        ("no fields", |event| {
            event["outputs"][0]["facets"]["columnLineage"].as_object_mut().expect("a facet").remove("fields");
        }),
        ("an input field without a name", |event| {
            let fields = &mut event["outputs"][0]["facets"]["columnLineage"]["fields"];
            fields["n"] = json!({"inputFields": [{"namespace": "x", "field": "y"}]});
        }),
        ("a version that is a number", |event| event["outputs"][0]["facets"]["version"]["datasetVersion"] = json!(1)),
        ("rows that are no number", |event| {
            event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] = json!("many");
        }),
        ("a parent without a job", |event| {
            event["run"]["facets"]["parent"].as_object_mut().expect("a facet").remove("job");
        }),
        ("a run id that is no UUID", |event| event["run"]["runId"] = json!("run-1")),
        ("a time without a zone", |event| event["eventTime"] = json!("2026-11-20T10:00:00")),
        ("a producer that is no URI", |event| event["producer"] = json!("not a uri")),
    ];
    for (title, change) in breaks {
        let mut broken = good.clone();
        change(&mut broken);
        assert_ne!(checker.check(&broken), Vec::<String>::new(), "{title} passes");
    }
    // The event schema alone ignores facets; therefore each is validated by its own schema.
    let mut broken = good.clone();
    breaks[0].1(&mut broken);
    assert!(checker.faults("https://openlineage.io/spec/2-0-2/OpenLineage.json", &broken).is_empty());
}

/// Returns the inputs of each output column as `dataset.column:SUBTYPE`.
fn columns(facet: &Value) -> BTreeMap<String, Vec<String>> {
    let fields = facet["fields"].as_object().expect("fields").iter();
    fields.map(|(name, field)| (name.clone(), uses(&field["inputFields"]))).collect()
}

fn uses(fields: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |field: &Value| {
        let ways: Vec<String> =
            field["transformations"].as_array().into_iter().flatten().map(|way| text(&way["subtype"])).collect();
        format!("{}.{}:{}", text(&field["name"]), text(&field["field"]), ways.join("+"))
    };
    fields.as_array().into_iter().flatten().map(one).collect()
}

#[test]
fn columns_are_traced_through_the_plan_of_a_query() {
    let mill = project();
    let events = told(&mill, &["counts"], 0);
    let facet = &event(&events, "told.counts", "COMPLETE")["outputs"][0]["facets"]["columnLineage"];
    let expected = [
        ("doc", vec!["told.corpus.rows.id:IDENTITY"]),
        ("last", vec!["told.long.rows.text:AGGREGATION"]),
        ("loud", vec!["told.corpus.rows.text:TRANSFORMATION"]),
        ("n", vec![]),
    ];
    let expected: BTreeMap<String, Vec<String>> =
        expected.map(|(name, uses)| (name.to_owned(), uses.into_iter().map(str::to_owned).collect())).into();
    assert_eq!(columns(facet), expected);
    let rows = [
        "told.long.rows.document_id:JOIN",
        "told.corpus.rows.id:FILTER+JOIN+GROUP_BY+SORT",
        "told.corpus.rows.text:GROUP_BY",
    ];
    assert_eq!(uses(&facet["dataset"]), rows);
    // A filter preserves every column and depends on one.
    let facet = &event(&events, "told.long", "COMPLETE")["outputs"][0]["facets"]["columnLineage"];
    let columns = columns(facet);
    assert_eq!(columns["id"], ["told.chunks.chunks.id:IDENTITY"]);
    assert!(columns.values().all(|uses| uses.len() == 1 && uses[0].ends_with(":IDENTITY")), "{columns:?}");
    assert_eq!(uses(&facet["dataset"]), ["told.chunks.chunks.text:FILTER"]);
    assert_eq!(event(&events, "told.chunks", "COMPLETE")["outputs"][0]["facets"]["columnLineage"], Value::Null);
}

fn lineage_of(query: &str) -> (BTreeMap<String, Vec<String>>, Vec<String>) {
    let mill = project();
    let head = PIPELINE.split("  counts:").next().expect("a head");
    let sql = format!("  counts: {{op: sql, from: {{c: chunks, d: corpus}}, with: {{query: {}}}}}\n", json!(query));
    mill.write("pipeline.yaml", &format!("{head}{sql}"));
    let events = told(&mill, &["counts"], 0);
    let facet = &event(&events, "told.counts", "COMPLETE")["outputs"][0]["facets"]["columnLineage"];
    (columns(facet), uses(&facet["dataset"]))
}

#[test]
fn columns_are_traced_through_what_sql_can_say() {
    let (columns, rows) = lineage_of(
        "WITH x AS (SELECT id, text AS t FROM d) SELECT x.id, concat(x.t, y.text) AS both FROM x JOIN d y ON x.id = y.id ORDER BY x.id",
    );
    assert_eq!(columns["id"], ["told.corpus.rows.id:IDENTITY"]);
    assert_eq!(columns["both"], ["told.corpus.rows.text:TRANSFORMATION"]);
    assert_eq!(rows, ["told.corpus.rows.id:JOIN+SORT"]);

    let (columns, _) = lineage_of("SELECT id, text FROM c UNION ALL SELECT id, title AS text FROM d");
    assert_eq!(columns["id"], ["told.chunks.chunks.id:IDENTITY", "told.corpus.rows.id:IDENTITY"]);
    assert_eq!(columns["text"], ["told.chunks.chunks.text:IDENTITY", "told.corpus.rows.title:IDENTITY"]);

    let (columns, rows) =
        lineage_of("SELECT id FROM d WHERE id IN (SELECT document_id FROM c WHERE length(text) > 3) ORDER BY id");
    assert_eq!(columns["id"], ["told.corpus.rows.id:IDENTITY"]);
    assert!(rows.contains(&"told.chunks.chunks.document_id:FILTER".to_owned()), "{rows:?}");
    assert!(rows.contains(&"told.chunks.chunks.text:FILTER".to_owned()), "{rows:?}");

    let (columns, _) =
        lineage_of("SELECT id, row_number() OVER (PARTITION BY document_id ORDER BY text) AS place FROM c ORDER BY id");
    assert_eq!(columns["place"], ["told.chunks.chunks.document_id:WINDOW", "told.chunks.chunks.text:WINDOW"]);

    let (columns, rows) = lineage_of("SELECT DISTINCT 1 AS one, 'x' AS letter FROM d");
    assert_eq!((&columns["one"], &columns["letter"]), (&vec![], &vec![]));
    assert_eq!(rows, Vec::<String>::new());
}

#[test]
fn cached_failed_and_stopped_nodes_are_told_as_such() {
    let mill = project();
    let first = told(&mill, &[], 0);
    let cached = told(&mill, &[], 0);
    let tag = |event: &Value, key: &str| {
        let tags = event["run"]["facets"]["tags"]["tags"].as_array().cloned().unwrap_or_default();
        tags.iter().find(|tag| tag["key"] == key).map(|tag| tag["value"].clone())
    };
    assert_eq!(courses(&cached)["told.counts"], ["START", "COMPLETE"]);
    assert_eq!(tag(event(&cached, "told.counts", "COMPLETE"), "cached"), Some(json!("true")));
    assert!(event(&cached, "told.counts", "COMPLETE")["outputs"][0]["facets"]["columnLineage"].is_object());
    assert_eq!(written(&cached), written(&first), "a written file has the same name whether or not it existed before");

    mill.write(
        "pipeline.yaml",
        &PIPELINE.replace("upper(d.text)", "upper(d.text) || CAST(CAST(d.text AS INT) AS TEXT)"),
    );
    let failed = told(&mill, &[], 1);
    assert_eq!(courses(&failed)["told.counts"], ["START", "FAIL"]);
    assert_eq!(courses(&failed)["told"], ["START", "FAIL"]);
    let message = &event(&failed, "told.counts", "FAIL")["run"]["facets"]["errorMessage"]["message"];
    assert!(message.as_str().is_some_and(|message| message.contains("Int32")), "{message}");
    let start = event(&failed, "told.counts", "START");
    assert!(tag(start, "reason").is_some_and(|why| why.to_string().contains("param `query` changed")), "{start:#}");
}

#[test]
fn an_interrupted_run_is_aborted() {
    let bench = Bench::new(&patient(40, Duration::from_millis(60)));
    let child = bench.command(&["--openlineage", "events.jsonl"]).spawn().expect("a child");
    let start = Instant::now();
    while bench.paid(&["q0", "q1", "q2"]) == 0 {
        assert!(start.elapsed() < Duration::from_secs(30), "the run did not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("`kill` is there").success());
    Told::new(child.wait_with_output().expect("a child")).exit(130);
    let events = lines(&bench.mill, "events.jsonl");
    assert_valid(&events);
    assert_eq!(courses(&events)["endpoint.answers"], ["START", "ABORT"]);
    assert_eq!(courses(&events)["endpoint"], ["START", "ABORT"]);
    assert_eq!(courses(&events).get("endpoint.scores"), None);
    let text = bench.mill.read("events.jsonl");
    assert!(!text.contains("\"first\""), "no secret is reported");
}

/// A receiver on a real socket; it answers with these statuses in turn, then with 201.
struct Receiver {
    address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Taken {
    answers: Vec<u16>,
    requests: Vec<(String, Option<String>, Value)>,
}

async fn take(State(taken): State<Arc<Mutex<Taken>>>, uri: Uri, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mut taken = taken.lock().expect("the log");
    let key = headers.get("authorization").and_then(|value| value.to_str().ok()).map(str::to_owned);
    taken.requests.push((uri.path().to_owned(), key, serde_json::from_slice(&body).expect("JSON")));
    let answer = if taken.answers.is_empty() { 201 } else { taken.answers.remove(0) };
    StatusCode::from_u16(answer).expect("a status")
}

impl Receiver {
    fn start(answers: &[u16]) -> Self {
        let taken = Arc::new(Mutex::new(Taken { answers: answers.to_vec(), requests: Vec::new() }));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener for tokio");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let app = Router::new().fallback(take).with_state(Arc::clone(&taken));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                tokio::select! {
                    served = async { axum::serve(listener, app).await } => served.expect("serving"),
                    _ = stopped => {}
                }
            });
        });
        Self { address, taken, stop: Some(stop), thread: Some(thread) }
    }

    fn requests(&self) -> Vec<(String, Option<String>, Value)> {
        self.taken.lock().expect("the log").requests.clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the receiver ended well");
        }
    }
}

#[test]
fn events_are_sent_to_a_receiver_in_their_order() {
    let receiver = Receiver::start(&[]);
    let mill = project();
    let mut command = mill.command(&["run", "pipeline.yaml", "--json"]);
    command.env("OPENLINEAGE_URL", format!("http://{}", receiver.address));
    command.env("OPENLINEAGE_API_KEY", "key-1").env("OPENLINEAGE_NAMESPACE", "team");
    let told = Told::new(command.output().expect("the program can be started")).exit(0);
    assert_eq!(told.stderr, "");
    let requests = receiver.requests();
    assert!(requests.iter().all(|(path, key, _)| path == "/api/v1/lineage" && key.as_deref() == Some("Bearer key-1")));
    let events: Vec<Value> = requests.into_iter().map(|(.., event)| event).collect();
    assert_eq!(events.len(), 16);
    assert_valid(&events);
    assert_eq!((&events[0]["job"]["name"], &events[0]["eventType"]), (&json!("told"), &json!("START")));
    assert_eq!((&events[15]["job"]["name"], &events[15]["eventType"]), (&json!("told"), &json!("COMPLETE")));
    assert!(events.iter().all(|event| event["job"]["namespace"] == "team"));
    // The flag overrides the environment, a custom path is used unchanged, and emission can be disabled.
    let mut command =
        mill.command(&["run", "pipeline.yaml", "--openlineage", &format!("http://{}/in", receiver.address)]);
    command.env("OPENLINEAGE_URL", "http://127.0.0.1:9");
    Told::new(command.output().expect("the program can be started")).exit(0);
    assert_eq!(
        receiver.requests().last().map(|(path, key, _)| (path.clone(), key.clone())),
        Some(("/in".to_owned(), None))
    );
    let before = receiver.requests().len();
    let mut command = mill.command(&["run", "pipeline.yaml", "--openlineage", &format!("http://{}", receiver.address)]);
    command.env("OPENLINEAGE_DISABLED", "true");
    Told::new(command.output().expect("the program can be started")).exit(0);
    assert_eq!(receiver.requests().len(), before);
}

#[test]
fn a_busy_receiver_is_asked_again_and_one_that_refuses_is_not() {
    let receiver = Receiver::start(&[503, 429, 201, 400]);
    let mill = project();
    let url = format!("http://{}", receiver.address);
    let told = mill.run(&["corpus", "--openlineage", &url]).exit(0);
    let requests = receiver.requests();
    // Four events: the first succeeds after two failures, the second is lost, the others succeed immediately.
    assert_eq!(requests.len(), 6, "{told:?}");
    assert_eq!((&requests[0].2, &requests[1].2), (&requests[2].2, &requests[2].2));
    assert!(told.stderr.contains("1 of 4 events did not arrive") && told.stderr.contains("400"), "{}", told.stderr);
}

#[test]
fn what_cannot_be_delivered_never_fails_the_run_and_is_said_once() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let mill = project();
    let told = mill.run(&["--openlineage", &format!("http://{closed}")]).exit(0);
    assert_eq!(told.ran(), "bm25 chunks corpus counts file long world");
    assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    assert!(told.stderr.contains("16 of 16 events did not arrive"), "{}", told.stderr);
    // A device that accepts no data.
    if Path::new("/dev/full").exists() {
        let told = mill.run(&["--openlineage", "/dev/full"]).exit(0);
        assert!(told.stderr.contains("16 of 16 events did not arrive at /dev/full"), "{}", told.stderr);
    }
    // An error known before the run starts is a usage error.
    mill.run(&["--openlineage", "no/such/folder/events.jsonl"]).exit(2);
}

#[test]
fn checks_are_assertions_about_what_the_next_node_reads() {
    let mill = project();
    let checks =
        "{size: 6, count: words}, checks: [{rows: {min: 1}}, {range: {column: position, min: 1}, on_failure: warn}]}";
    mill.write("pipeline.yaml", &PIPELINE.replace("{size: 6, count: words}}", checks));
    let events = told(&mill, &[], 0);
    let read = event(&events, "told.long", "COMPLETE")["inputs"][0]["inputFacets"]["dataQualityAssertions"].clone();
    let one = |place: usize, name: &str| read["assertions"][place][name].clone();
    assert_eq!((one(0, "assertion"), one(0, "success")), (json!("rows"), json!(true)), "{read}");
    assert_eq!((one(1, "assertion"), one(1, "success")), (json!("range"), json!(false)), "{read}");
    assert_eq!((one(1, "column"), one(1, "severity")), (json!("position"), json!("warn")), "{read}");
}

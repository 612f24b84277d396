//! Rollouts with one search against a mock endpoint: `rollout` as the engine drives it, row by row, many in flight.
//!
//! ```text
//! PEERS=../shared/peers PEERS_DATA=… PEERS_PYTHON=… cargo bench -p searchmill-operators --bench rollout -- \
//!     [--size 2000] [--concurrency 30] [--think-ms 0] [--reps 5]
//! ```
//! `PEERS` holds `mock_openai.py`, `PEERS_DATA` the `corpus_6k.jsonl` and `questions.jsonl` of its `make_data.py`, and
//! `PEERS_PYTHON` is a Python, best with uvloop and orjson. The same task on the same data as the peers'
//! `bench_rollout.py --tool lean-aiohttp`; it prints one line of JSON with the same fields.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use searchmill_engine::operator::testing::{Harness, inputs, rows_input, tree_input};
use searchmill_engine::operator::{AsyncMapKernel, Context, ContextParts, Kernel, OperatorEntry, Registry, TreeKind};
use searchmill_schemas::{Chunk, Question, RecordKind, Trajectory, from_batch, to_batch};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const PORT: u16 = 18_600;

struct Settings {
    size: usize,
    concurrency: usize,
    think_ms: f64,
    reps: usize,
}

/// Ends the mock when the bench ends, however it ends.
struct Mock(Child);

impl Drop for Mock {
    fn drop(&mut self) {
        if self.0.kill().is_ok() {
            drop(self.0.wait());
        }
    }
}

fn main() {
    let settings = settings();
    let harness = Harness::new();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _mock = start_mock(settings.think_ms);
    let context = context(&runtime, settings.concurrency);
    let kernel = open(&harness, &context);
    let rows = Arc::new(questions(settings.size));
    let warm_up = Arc::new(rows[..rows.len().min(30)].to_vec());
    runtime.block_on(pass(&kernel, &warm_up, &context));
    let cpu_before = cpu_seconds();
    let passes: Vec<(f64, usize)> = (0..settings.reps)
        .map(|_| {
            let started = Instant::now();
            let answered = runtime.block_on(pass(&kernel, &rows, &context));
            (started.elapsed().as_secs_f64(), answered)
        })
        .collect();
    let cpu = (cpu_seconds() - cpu_before) / (settings.reps * settings.size) as f64;
    report(&settings, &passes, cpu);
}

fn settings() -> Settings {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str, default: f64| {
        let place = arguments.iter().position(|argument| argument == name);
        place.map_or(default, |place| arguments[place + 1].parse().expect("a number"))
    };
    Settings {
        size: value("--size", 2000.0) as usize,
        concurrency: value("--concurrency", 30.0) as usize,
        think_ms: value("--think-ms", 0.0),
        reps: value("--reps", 5.0) as usize,
    }
}

fn folder(variable: &str) -> PathBuf {
    let value = std::env::var(variable);
    PathBuf::from(value.unwrap_or_else(|_| panic!("{variable} is not set: see the head of this file")))
}

fn start_mock(think_ms: f64) -> Mock {
    let python = std::env::var("PEERS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let child = Command::new(python)
        .arg(folder("PEERS").join("mock_openai.py"))
        .args([PORT.to_string(), "--think-ms".to_owned(), think_ms.to_string()])
        .stdout(Stdio::null())
        .spawn()
        .expect("the mock starts");
    let mock = Mock(child);
    for _ in 0..100 {
        if std::net::TcpStream::connect(("127.0.0.1", PORT)).is_ok() {
            return mock;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("nothing listens on port {PORT}");
}

/// One pass over all rows; how many were answered.
async fn pass(
    kernel: &Arc<dyn AsyncMapKernel>,
    rows: &Arc<Vec<arrow::array::RecordBatch>>,
    context: &Context,
) -> usize {
    let permits = Arc::new(Semaphore::new(context.concurrency()));
    let mut tasks = JoinSet::new();
    for place in 0..rows.len() {
        let (kernel, rows, context) = (Arc::clone(kernel), Arc::clone(rows), context.clone());
        let permit = Arc::clone(&permits).acquire_owned().await.expect("an open semaphore");
        tasks.spawn(async move {
            let output = kernel.run(&rows[place], 0, &context).await;
            drop(permit);
            output.expect("the mock never fails").batches.remove(0).1
        });
    }
    let done = tasks.join_all().await;
    let searched = |batch| from_batch::<Trajectory>(batch).expect("a trajectory").remove(0);
    let first = searched(&done[0]);
    assert_eq!((first.turns, first.messages[3].observations.len()), (2, 3), "one search, three passages");
    done.len()
}

fn entry(name: &str) -> OperatorEntry {
    *Registry::new(&searchmill_operators::all()).get(name).expect("an operator of that name")
}

fn open(harness: &Harness, context: &Context) -> Arc<dyn AsyncMapKernel> {
    let given = inputs([("chunks", rows_input(&corpus()))]);
    let built = harness.run(&entry("index"), json!({"kind": "bm25"}), &given).expect("an index");
    let endpoint = json!({"base_url": format!("http://127.0.0.1:{PORT}/v1"), "model": "mock"});
    let params = json!({"policy": {"endpoint": endpoint}, "tool_name": "retrieve", "search": {"top_k": 3}});
    let bound = (entry("rollout").bind)(params).map_err(|issue| issue.message).expect("params");
    let mut given = inputs([("questions", rows_input::<Question>(&[]))]);
    given.bind("search", tree_input(TreeKind::Index, &built.trees["index"]));
    match bound.open(&given, context).expect("a kernel") {
        Kernel::AsyncMap(kernel) => kernel,
        _ => panic!("rollout works row by row"),
    }
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text(row: &Value, field: &str) -> String {
    row[field].as_str().expect("text").to_owned()
}

fn corpus() -> Vec<Chunk> {
    let chunk = |row: &Value| {
        let contents = text(row, "contents");
        let (title, body) = contents.split_once('\n').unwrap_or(("", &contents));
        Chunk {
            id: text(row, "id"),
            document_id: text(row, "id"),
            position: 0,
            document_chunks: 1,
            title: Some(title.to_owned()),
            text: body.to_owned(),
            start: 0,
            end: body.len() as i64,
            tokens: 0,
            metadata: None,
            contents,
        }
    };
    lines(&folder("PEERS_DATA").join("corpus_6k.jsonl")).iter().map(chunk).collect()
}

/// `size` rows of one question each, the file's questions over and over.
fn questions(size: usize) -> Vec<arrow::array::RecordBatch> {
    let known = lines(&folder("PEERS_DATA").join("questions.jsonl"));
    let row = |place: usize| Question {
        id: place.to_string(),
        question: text(&known[place % known.len()], "question"),
        golden_answers: Vec::new(),
        question_type: None,
        evidence: Vec::new(),
        metadata: None,
    };
    let all = to_batch(&(0..size).map(row).collect::<Vec<_>>()).expect("questions");
    assert_eq!(all.schema().fields(), RecordKind::Question.schema().fields());
    (0..size).map(|place| all.slice(place, 1)).collect()
}

fn context(runtime: &tokio::runtime::Runtime, concurrency: usize) -> Context {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let bare = ContextParts::bare(&std::env::temp_dir(), runtime.handle(), reqwest::Client::new());
    Context::new(ContextParts { threads, concurrency, ..bare })
}

/// User and system seconds of this process so far (Linux, 100 ticks a second).
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

fn report(settings: &Settings, passes: &[(f64, usize)], cpu_each: f64) {
    let mut seconds: Vec<f64> = passes.iter().map(|(seconds, _)| *seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    let line = json!({
        "tool": "searchmill", "version": env!("CARGO_PKG_VERSION"),
        "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
        "task": format!("rollout_c{}_t{}ms", settings.concurrency, settings.think_ms),
        "n": settings.size, "seconds": median, "seconds_min": seconds[0], "seconds_max": seconds[seconds.len() - 1],
        "reps": settings.reps, "rate": settings.size as f64 / median, "rate_unit": "trajectories/s",
        "peak_rss_mib": peak_mib(), "cpu_ms_client": 1e3 * cpu_each,
        "ok": passes.iter().map(|(_, answered)| *answered).min(),
    });
    println!("{line}");
}

//! JSONL to a committed artifact (Parquet, zstd, flushed and digested) through `read`, as one JSON line in the form of the peers' benchmarks (task `jsonl_to_parquet`).
//!
//! `cargo bench -p searchmill-operators --bench ingest -- [--file F.jsonl] [--as table|document] [--mb 500] [--reps 5]`
//!
//! Without `--file`, rows of the peers' shape (`make_data.py --ingest`) are made from `../shared/data` first.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use indexmap::IndexMap;
use searchmill_engine::operator::testing::Harness;
use searchmill_engine::operator::{Inputs, Kernel, PortType, entry};
use searchmill_engine::store::{Store, StoreSink};
use searchmill_operators::read::Read;
use searchmill_schemas::RecordKind;
use serde_json::{Value, json};

const SHARED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| arguments.iter().position(|given| given == name).and_then(|at| arguments.get(at + 1));
    let harness = Harness::new();
    let file = match option("--file") {
        Some(file) => PathBuf::from(file),
        None => make_rows(harness.path(), option("--mb").map_or(Ok(500), |mb| mb.parse())?)?,
    };
    let kind = option("--as").map_or("table", String::as_str);
    let columns = if kind == "document" { json!({"text": "contents"}) } else { json!({}) };
    let params = json!({"path": file, "format": "jsonl", "as": kind, "columns": columns});
    let reps: usize = option("--reps").map_or(Ok(5), |reps| reps.parse())?;
    let mut seconds = Vec::new();
    let mut rows = pass(&harness, params.clone())?;
    let cpu = cpu_seconds();
    for _ in 0..reps {
        let start = Instant::now();
        rows = rows.max(pass(&harness, params.clone())?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    let cpu = (cpu_seconds() - cpu) / reps as f64;
    seconds.sort_by(f64::total_cmp);
    let mb = std::fs::metadata(&file)?.len() as f64 / 1e6;
    let median = seconds[seconds.len() / 2];
    let line = json!({
        "tool": "searchmill", "version": env!("CARGO_PKG_VERSION"), "task": "jsonl_to_parquet", "as": kind, "n": rows,
        "seconds": median, "seconds_min": seconds[0], "seconds_max": seconds[seconds.len() - 1], "reps": reps, "cpu_seconds": cpu,
        "rate": mb / median, "rate_unit": "MB/s", "mb": mb, "threads": 2, "peak_rss_mib": peak_mib(),
    });
    writeln!(std::io::stdout(), "{line}")?;
    Ok(())
}

/// Reads the file once into a new store, flushed to disk; gives the number of rows.
fn pass(harness: &Harness, params: Value) -> Result<u64, Box<dyn std::error::Error>> {
    let kind = if params["as"] == "document" { RecordKind::Document } else { RecordKind::Table };
    let bound = (entry::<Read>().bind)(params).map_err(|issue| issue.message)?;
    let (inputs, context) = (Inputs::new(), harness.context());
    let Kernel::Blocking(kernel) = bound.open(&inputs, &context)? else {
        return Err("`read` is a whole kernel".into());
    };
    let folder = tempfile::tempdir_in(harness.path())?;
    let ports = [("rows".to_owned(), PortType::Rows(kind)), ("rejects".to_owned(), PortType::Rows(RecordKind::Reject))];
    let mut sink = StoreSink::new(&Store::open(folder.path())?, IndexMap::from(ports));
    kernel.run(&inputs, &mut sink, &context)?;
    let written = sink.commit()?;
    match written.outputs["rejects"].rows {
        0 => Ok(written.outputs["rows"].rows),
        rejects => Err(format!("{rejects} rows were rejected").into()),
    }
}

/// Rows of the peers' shape from real passages and questions, until there are that many megabytes.
fn make_rows(folder: &Path, mb: usize) -> Result<PathBuf, Box<dyn std::error::Error>> {
    let text = std::fs::read_to_string(Path::new(SHARED).join("2wikimultihopqa/corpus_6119.json"));
    let text =
        text.map_err(|error| format!("SKIPPED: this bench needs --file FILE, or the files below {SHARED} ({error})"))?;
    let passages: Vec<Value> = serde_json::from_str(&text)?;
    let passages: Vec<String> = passages
        .iter()
        .map(|row| {
            format!("{}\n{}", row["title"].as_str().unwrap_or_default(), row["text"].as_str().unwrap_or_default())
        })
        .collect();
    let path = folder.join("ingest.jsonl");
    let mut file = BufWriter::new(File::create(&path)?);
    let (mut written, mut row) = (0, 0);
    while written < mb * 1_000_000 {
        let searches = row % 3 + 1;
        let retrieved: Vec<&String> = (0..searches).map(|k| &passages[(row * 31 + k * 977) % passages.len()]).collect();
        let kind = ["bridge", "comparison", "inference", "null"][row % 4];
        let line = json!({
            "id": row, "question": format!("Which of them came first, {}?", passages[row % 97].split('\n').next().unwrap_or_default()),
            "golden_answers": [format!("answer {row}")], "contents": passages[row % passages.len()], "retrieved": retrieved,
            "n_calls": searches, "f1": (row * 7919 % 10_000) as f64 / 10_000.0, "type": kind,
            "metadata": {"source": format!("s{}", row % 17), "doc_id": row * 131 % 100_000, "ok": row % 2 == 1},
        });
        let line = line.to_string();
        written += line.len() + 1;
        row += 1;
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    Ok(path)
}

/// The most memory this process has had.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

/// Processor time of this process so far, at the kernel's 100 ticks a second: holds up better under other load.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

//! How fast `generate-world` writes, and in how much memory: rows are counted and dropped.
//!
//! `cargo run -p searchmill-operators --example world_load -- 1000000 10000`

#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::PathBuf;
use std::time::Instant;

use arrow::array::RecordBatch;
use searchmill_engine::operator::testing::Harness;
use searchmill_engine::operator::{Inputs, Kernel, OperatorError, OutputSink, entry};
use searchmill_operators::generate_world::GenerateWorld;
use serde_json::json;

/// Counts rows and bytes by port.
#[derive(Default)]
struct Counter {
    rows: usize,
    bytes: usize,
}

impl OutputSink for Counter {
    fn write(&mut self, _port: &str, batch: &RecordBatch) -> Result<(), OperatorError> {
        self.rows += batch.num_rows();
        self.bytes += batch.get_array_memory_size();
        Ok(())
    }

    fn tree(&mut self, port: &str) -> Result<PathBuf, OperatorError> {
        Err(OperatorError::engine(format!("`{port}` is no folder")))
    }

    fn figure(&mut self, name: &str, value: f64) {
        println!("{name} {value:.4}");
    }

    fn summary(&mut self, text: &str) {
        println!("{text}");
    }
}

/// Peak resident memory of this process, as Linux reports it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.map_or_else(|| "VmHWM unknown".to_owned(), |line| line.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn main() -> Result<(), OperatorError> {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>().unwrap_or(0));
    let (documents, questions) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(1_000));
    let harness = Harness::new();
    let bound = (entry::<GenerateWorld>().bind)(json!({"documents": documents, "questions": questions}))
        .map_err(|issue| OperatorError::pipeline(issue.message))?;
    let (inputs, context) = (Inputs::new(), harness.context());
    let mut counter = Counter::default();
    let start = Instant::now();
    if let Kernel::Blocking(kernel) = bound.open(&inputs, &context)? {
        kernel.run(&inputs, &mut counter, &context)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let (rows, megabytes) = (counter.rows as f64, counter.bytes as f64 / 1e6);
    println!(
        "{rows} rows, {megabytes:.0} MB in {seconds:.1} s: {:.0} rows/s, {:.1} MB/s",
        rows / seconds,
        megabytes / seconds
    );
    println!("{}", peak());
    Ok(())
}

//! Runs a pipeline with one operator of our own beside all that come with searchmill.

mod truncate_text;

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use searchmill_engine::diagnostic::{Diagnostic, SourceMap};
use searchmill_engine::execute::{Machine, RunOptions, Stop, Workers, exit_code, run};
use searchmill_engine::operator::{BudgetLimits, Registry, entry};
use searchmill_engine::plan::{Plan, bind};
use searchmill_engine::report::{Event, Reporter, RunSummary};
use searchmill_engine::spec::{Overrides, load};
use searchmill_engine::store::Store;

fn main() -> ExitCode {
    let file = std::env::args().nth(1).unwrap_or_else(|| "pipeline.yaml".to_owned());
    match std::env::current_dir().map_err(Into::into).and_then(|here| run_pipeline(Path::new(&file), &here)) {
        Ok(summary) => {
            println!("{} cached, {} ran, {} failed", summary.cached, summary.finished, summary.failed);
            ExitCode::from(u8::try_from(exit_code(&summary)).unwrap_or(1))
        }
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::from(2)
        }
    }
}

/// Runs a pipeline; its store and its relative paths start at `directory`.
pub(crate) fn run_pipeline(file: &Path, directory: &Path) -> Result<RunSummary, Box<dyn Error>> {
    let plan = read(file, directory)?;
    let store = Store::open(&directory.join(".searchmill"))?;
    let machine = Machine::detect();
    let options = RunOptions {
        jobs: machine.threads,
        keep_going: false,
        force: BTreeSet::new(),
        no_cache: false,
        limit: None,
        selected: (0..plan.nodes().len()).collect(),
        directory: directory.to_owned(),
        machine,
        workers: Workers::default(),
        secrets: Arc::new(|name| std::env::var(name).ok()),
        budget: BudgetLimits::default(),
        retry_dropped: false,
        rebuy: false,
        deliver_anyway: false,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(run(Arc::new(plan), store, options, Arc::new(Lines), Stop::default()))?)
}

/// YAML to a checked plan. The registry decides which operators there are.
fn read(file: &Path, directory: &Path) -> Result<Plan, String> {
    let mut entries = searchmill_operators::all();
    entries.push(entry::<truncate_text::TruncateText>());
    let registry = Registry::new(&entries);
    let mut sources = SourceMap::new();
    let spec = load(file, &Overrides::default(), &mut sources);
    let plan = spec.and_then(|spec| bind(spec, file, directory, &registry));
    plan.map_err(|findings| findings.iter().map(|finding| told(finding, &sources)).collect())
}

/// One finding as a line: place, message, advice.
fn told(finding: &Diagnostic, sources: &SourceMap) -> String {
    let place = finding.span().and_then(|span| {
        let (path, _) = sources.get(span.file)?;
        let (line, column) = sources.line_col(span.file, span.start);
        Some(format!("{}:{line}:{column}: ", path.display()))
    });
    let help = finding.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
    format!("{}{}{help}\n", place.unwrap_or_default(), finding.message)
}

/// Tells what happens, a line each.
struct Lines;

impl Reporter for Lines {
    fn event(&self, event: &Event) {
        match event {
            Event::NodeCached { node, rows, .. } => println!("cached {node}: {rows} rows"),
            Event::NodeFinished { node, rows, rejects, .. } => {
                println!("ran    {node}: {rows} rows, {rejects} rejects");
            }
            Event::NodeFailed { node, message, .. } => println!("failed {node}: {message}"),
            Event::Delivered { node, destination } => println!("wrote  {node}: {destination}"),
            _ => {}
        }
    }
}

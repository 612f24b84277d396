//! `run`: executes a pipeline.

use std::sync::Arc;

use searchmill_engine::operator::{BudgetLimits, stack_size};
use searchmill_engine::{Event, Failure, NodeId, Reporter, RunOptions, Session, Stop, Workers, cuda_worker};

use super::pipeline::{self, limit, print_limit};
use super::store::note_if_missing;
use crate::args::RunArgs;
use crate::display::Terminal;
use crate::exit::OK;
use crate::openlineage;

pub(super) fn run(terminal: &Terminal, session: &Session, args: RunArgs) -> Result<u8, Failure> {
    let pipeline = pipeline::check(session, &args.pipeline)?;
    session.check_destinations(&pipeline)?;
    let options = options(&args)?;
    if args.retry_rejects {
        note_if_missing(terminal, session)?;
    }
    if args.dry_run {
        let survey = session.rehearse(&pipeline, &options)?;
        note_if_missing(terminal, session)?;
        super::plan::show(terminal, session, &pipeline.plan, &survey, args.all);
        return Ok(OK);
    }
    print_limit(terminal, &pipeline.plan, &options.limit);
    let prepared = session.prepare(&pipeline, options)?;
    let store_root = prepared.store_root().to_owned();
    let reporter = terminal.reporter(&pipeline.plan, args.all, session.store().shown_pages()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().thread_stack_size(stack_size()).enable_all().build()?;
    let stop = Stop::default();
    let shown: Arc<dyn Reporter> = reporter.clone();
    let (outcome, undelivered) = runtime.block_on(async {
        // Before the run begins: without a handler, Ctrl-C would end the process at any place.
        tokio::spawn(listen(stop.clone(), Arc::clone(&shown)));
        let (told, delivery) = openlineage::begin(args.openlineage.as_deref(), &prepared, session.directory(), shown)?;
        let outcome = prepared.run(told, stop).await;
        let undelivered = match delivery {
            Some(delivery) => delivery.finish().await,
            None => None,
        };
        Ok::<_, Failure>((outcome, undelivered))
    })?;
    // Does not wait for threads that still compute after a second Ctrl-C.
    runtime.shutdown_background();
    let summary = outcome?;
    reporter.finish(&summary, &store_root);
    if let Some(warning) = undelivered {
        terminal.warn(&warning);
    }
    Ok(summary.exit_code())
}

fn options(args: &RunArgs) -> Result<RunOptions, Failure> {
    let silence = std::env::var("SEARCHMILL_WORKER_SILENCE").ok().and_then(|text| text.parse().ok());
    let silence = silence.map(std::time::Duration::from_secs).unwrap_or_default();
    let (cpu, cuda) = (std::env::current_exe().ok(), cuda_worker());
    Ok(RunOptions {
        selection: pipeline::selection(&args.chosen),
        retry_rejects: args.retry_rejects,
        force: args.force.clone(),
        refresh_sources: args.refresh_sources,
        no_cache: args.no_cache,
        limit: limit(&args.limit)?,
        jobs: args.jobs.map(|jobs| jobs as usize),
        keep_going: args.keep_going,
        budget: budget(&args.budget)?,
        rebuy: args.rebuy,
        deliver_anyway: args.deliver_anyway,
        workers: Workers { cpu, cuda, silence, devices: Vec::new() },
    })
}

/// Parses the limits of the command line.
fn budget(given: &[String]) -> Result<BudgetLimits, Failure> {
    let mut budget = BudgetLimits::default();
    for limit in given {
        let (name, amount) = limit.split_once('=').unwrap_or((limit, ""));
        let set = budget.set(name.trim(), amount);
        set.map_err(|message| {
            let help = "write `--budget calls=500`, `--budget tokens=1.5M` or `--budget cost=2.50`";
            Failure::usage(format!("--budget {limit}: {message}")).with_help(help)
        })?;
    }
    Ok(budget)
}

/// First Ctrl-C: finish work in flight. Second: stop immediately.
async fn listen(stop: Stop, reporter: Arc<dyn Reporter>) {
    if wait().await {
        let line = "interrupted: finishing work in flight; press Ctrl-C again to stop now".to_owned();
        reporter.event(&Event::NodeLog { node: NodeId::default(), line });
        stop.drain();
    }
    if wait().await {
        // Half a second to record the end of the run; whatever still computes then is left.
        stop.cancel();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        // 128 + 2, as shells report SIGINT.
        crate::display::leave_now(130);
    }
}

/// Waits for Ctrl-C or SIGTERM; returns whether one came.
pub(super) async fn wait() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return tokio::signal::ctrl_c().await.is_ok() };
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.is_ok(),
        _ = terminate.recv() => true,
    }
}

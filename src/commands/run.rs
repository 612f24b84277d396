//! `run`: executes a pipeline.

use std::collections::BTreeSet;
use std::sync::Arc;

use searchmill_engine::execute::{Machine, Request, Retry, RunOptions, Stop, exit_code, failed_rows, run as execute};
use searchmill_engine::operator::{BudgetLimits, Source};
use searchmill_engine::plan::{Plan, Selection, select};
use searchmill_engine::report::Reporter;

use super::Session;
use super::selection::{selected, unknown_node};
use crate::args::RunArgs;
use crate::exit::Failure;
use crate::{openlineage, pipeline, secrets, workers};

pub(super) fn run(session: &Session<'_>, args: RunArgs) -> Result<u8, Failure> {
    let plan = pipeline::plan(&args.pipeline.file, &args.pipeline.set, &args.pipeline.params, &session.directory)?;
    session.check_destinations(&plan)?;
    let budget = budget(&plan, &args.budget)?;
    let selected =
        if args.retry_rejects { with_failed_rows(session, &plan, args.limit)? } else { selected(&plan, &args.chosen)? };
    check_force(&plan, &args.force)?;
    let mut force: BTreeSet<String> = args.force.into_iter().collect();
    if args.refresh_sources {
        force.extend(with_remote_sources(&plan));
    }
    let request = Request {
        directory: &session.directory,
        limit: args.limit,
        selected: Some(&selected),
        force: Some(&force),
        no_cache: args.no_cache,
        retry: if args.retry_rejects { Retry::Dropped } else { Retry::Failed },
    };
    if args.dry_run {
        return super::plan::show(session, &plan, request).map(|_| crate::exit::OK);
    }
    let store = session.store()?;
    let workers = workers::workers(&plan)?;
    workers::check(&plan, &workers, &store, &selected, request)?;
    secrets::check(&plan, &store, &selected, request)?;
    let machine = Machine { gpus: workers.devices.len() as u32, ..Machine::detect() };
    let options = RunOptions {
        jobs: args.jobs.map_or(machine.threads, |jobs| jobs as usize),
        keep_going: args.keep_going,
        force,
        no_cache: args.no_cache,
        limit: args.limit,
        selected,
        directory: session.directory.clone(),
        machine,
        workers,
        secrets: Arc::new(secrets::look_up),
        budget,
        retry_dropped: args.retry_rejects,
        rebuy: args.rebuy,
        deliver_anyway: args.deliver_anyway,
    };
    let reporter = session.terminal.reporter(&plan);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let stop = Stop::default();
    let shown: Arc<dyn Reporter> = reporter.clone();
    let target = args.openlineage;
    let (outcome, undelivered) = runtime.block_on(async {
        tokio::spawn(listen(stop.clone(), Arc::clone(&shown)));
        let (told, delivery) = openlineage::begin(target.as_deref(), &plan, &store, &session.directory, shown)?;
        let outcome = execute(Arc::new(plan), store.clone(), options, told, stop).await;
        let undelivered = match delivery {
            Some(delivery) => delivery.finish().await,
            None => None,
        };
        Ok::<_, Failure>((outcome, undelivered))
    })?;
    // Threads that still compute after a second Ctrl-C are not waited for.
    runtime.shutdown_background();
    let summary = outcome?;
    reporter.finish(&summary, &store);
    if let Some(warning) = undelivered {
        session.terminal.warn(&warning);
    }
    Ok(u8::try_from(exit_code(&summary)).unwrap_or(crate::exit::FAILED))
}

/// What the pipeline says, with what the command line says in its place.
fn budget(plan: &Plan, given: &[String]) -> Result<BudgetLimits, Failure> {
    let mut budget = BudgetLimits::default();
    for limit in given {
        let (name, amount) = limit.split_once('=').unwrap_or((limit, ""));
        let set = budget.set(name.trim(), amount);
        set.map_err(|message| {
            let help = "write `--budget calls=500`, `--budget tokens=1.5M` or `--budget cost=2.50`";
            Failure::usage(format!("--budget {limit}: {message}")).with_help(help)
        })?;
    }
    let budget = plan.budget().overlaid(budget);
    if budget.cost.is_some() && plan.currency().is_none() {
        let help = "give the endpoint `prices: {prompt: …, completion: …}`, or set the budget in calls or tokens";
        return Err(
            Failure::usage("a budget of cost needs prices, and no endpoint of the pipeline has any").with_help(help)
        );
    }
    Ok(budget)
}

/// The nodes whose last result lacks rows that failed, and all that depends on them.
fn with_failed_rows(session: &Session<'_>, plan: &Plan, limit: Option<u64>) -> Result<BTreeSet<usize>, Failure> {
    let store = session.store_if_any()?;
    let failed: Vec<String> = failed_rows(plan, &store, Request::new(&session.directory).limited(limit))?
        .into_iter()
        .filter_map(|place| plan.nodes().get(place).map(|node| node.id().to_owned()))
        .collect();
    if failed.is_empty() {
        let help = "`searchmill run FILE` runs whatever is not up to date";
        return Err(Failure::usage("no node of the pipeline has rows that failed").with_help(help));
    }
    let selection = Selection { from: failed, ..Selection::default() };
    select(plan, &selection).map_err(|id| unknown_node(plan, &id))
}

fn check_force(plan: &Plan, force: &[String]) -> Result<(), Failure> {
    let unknown = force.iter().find(|id| *id != "*" && plan.node(id).is_none());
    unknown.map_or(Ok(()), |id| Err(unknown_node(plan, id)))
}

/// Nodes that read from other machines.
fn with_remote_sources(plan: &Plan) -> impl Iterator<Item = String> {
    let reads = plan.nodes().iter().filter(|node| node.sources.iter().any(Source::is_remote));
    reads.map(|node| node.id().to_owned())
}

/// First Ctrl-C: finish what is in flight. Second: stop now.
async fn listen(stop: Stop, reporter: Arc<dyn Reporter>) {
    if wait().await {
        let line = "interrupted: finishing what is in flight; once more to stop at once".to_owned();
        reporter.event(&searchmill_engine::report::Event::NodeLog { node: String::new(), line });
        stop.drain();
    }
    if wait().await {
        stop.cancel();
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        crate::display::leave_now(130);
    }
}

#[cfg(unix)]
async fn wait() -> bool {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return tokio::signal::ctrl_c().await.is_ok() };
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.is_ok(),
        _ = terminate.recv() => true,
    }
}

#[cfg(not(unix))]
async fn wait() -> bool {
    tokio::signal::ctrl_c().await.is_ok()
}

//! `diff`: what differs between two runs.

use searchmill_engine::lineage::{Catalog, diff_runs, run_of};
use searchmill_engine::store::{RunRecord, Store};

use super::Session;
use crate::args::DiffArgs;
use crate::display::lineage;
use crate::exit::{Failure, OK};

pub(super) fn diff(session: &Session<'_>, args: &DiffArgs) -> Result<u8, Failure> {
    let store = session.existing_store()?;
    let other = record(&store, &args.other)?;
    let one = match args.one.as_str() {
        "previous" => previous(&store, &other).ok_or_else(|| no_earlier(&other))?,
        named => record(&store, named)?,
    };
    let found = diff_runs(&store, &Catalog::read(&store), &one, &other);
    if session.terminal.is_json() {
        let text = serde_json::to_string(&found).map_err(|error| Failure::Other(error.to_string()))?;
        session.terminal.line(&text);
    } else {
        session.terminal.line(lineage::run_diff(&found).trim_end());
    }
    Ok(OK)
}

fn record(store: &Store, text: &str) -> Result<RunRecord, Failure> {
    let id = run_of(store, text)?;
    store.run(&id).ok_or_else(|| Failure::Other(format!("the record of run {id} cannot be read")))
}

/// The newest run of the same pipeline before that one.
fn previous(store: &Store, run: &RunRecord) -> Option<RunRecord> {
    let ids = store.run_ids();
    let earlier = ids.iter().rev().filter(|id| **id < run.id && !store.is_imported(id));
    earlier.filter_map(|id| store.run(id)).find(|record| record.pipeline == run.pipeline)
}

fn no_earlier(run: &RunRecord) -> Failure {
    let message = format!("there is no earlier run of the pipeline `{}` than {}", run.pipeline, run.id);
    Failure::usage(message).with_help("`searchmill runs` lists runs; name the two to compare")
}

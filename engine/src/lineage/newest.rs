//! What a name stands for when no run is named: an output of the newest run of the one pipeline that has it.

use std::collections::BTreeSet;
use std::path::Path;

use super::output_name::{NamedOutput, NotFound, came_to_nothing, output_of};
use crate::diagnostic::SourceMap;
use crate::spec::{self, Overrides};
use crate::store::{RunRecord, Store};

/// Returns the output of that name (`NODE`, `NODE.PORT`, `LOOP.NAME`) of the newest run of its pipeline.
///
/// # Errors
/// Fails if the newest runs of several pipelines have it, or if only an earlier run has.
pub fn newest_output(store: &Store, directory: &Path, text: &str) -> Result<Option<NamedOutput>, NotFound> {
    let newest = newest_of_each(store);
    // Of an imported run, or of a pipeline that is no longer here: meant only if no pipeline that is here had it.
    let mut elsewhere = None;
    let mut found: Vec<(&RunRecord, NamedOutput)> = Vec::new();
    for record in &newest {
        let Some(output) = output_of(store, std::slice::from_ref(&record.id), text)? else { continue };
        if is_here(directory, record, &newest) {
            found.push((record, output));
        } else {
            elsewhere = elsewhere.or(Some(output));
        }
    }
    if found.len() > 1 {
        let message = format!("{} pipelines have `{text}`", found.len());
        let choices = found.iter().map(|(run, _)| format!("{} (`{}`, {})", run.id, run.pipeline, run.file));
        let help = format!(
            "choose a run with `--run RUN`: {}; `show`, `path`, `trace` and `audit` take `--file FILE` too",
            choices.collect::<Vec<_>>().join(", ")
        );
        return Err(NotFound::new(message, Some(help)));
    }
    if let Some((_, output)) = found.pop() {
        return Ok(Some(output));
    }
    for run in store.newest_runs() {
        let Some(output) = output_of(store, std::slice::from_ref(&run), text)? else { continue };
        let newer = match store.run(&run) {
            Some(earlier) if !store.is_imported(&run) => newest.iter().find(|newer| newer.pipeline == earlier.pipeline),
            _ => None,
        };
        match newer.filter(|newer| is_here(directory, newer, &newest)) {
            None => elsewhere = elsewhere.or(Some(output)),
            // The pin of this name is meant.
            Some(_) if store.pinned(text).is_ok_and(|pin| pin.is_some()) => return Ok(None),
            Some(newer) => return Err(only_earlier(store, newer, &run, text)),
        }
    }
    Ok(elsewhere)
}

/// Returns the newest run before `run` of the same pipeline that has an output of that name.
pub(super) fn earlier_run(store: &Store, run: &str, text: &str) -> Option<String> {
    let record = store.run(run)?;
    for earlier in store.newest_runs() {
        // Ids of runs sort by time.
        if earlier.as_str() < run
            && store.run(&earlier).is_some_and(|other| other.pipeline == record.pipeline)
            && matches!(output_of(store, std::slice::from_ref(&earlier), text), Ok(Some(_)))
        {
            return Some(earlier);
        }
    }
    None
}

/// Returns the newest run of each pipeline, the newest first.
fn newest_of_each(store: &Store) -> Vec<RunRecord> {
    let mut names = BTreeSet::new();
    let mut newest = Vec::new();
    for id in store.newest_runs() {
        if store.is_imported(&id) {
            continue;
        }
        let Some(record) = store.run(&id) else { continue };
        if names.insert(record.pipeline.clone()) {
            newest.push(record);
        }
    }
    newest
}

/// Whether the file of a run is here and still has that pipeline. In a store of several folders, another pipeline may have
/// a file of the same name. A file that cannot be read, as it may be while somebody edits it, has its newest run's.
fn is_here(directory: &Path, run: &RunRecord, newest: &[RunRecord]) -> bool {
    let file = directory.join(&run.file);
    if !file.is_file() {
        return false;
    }
    match name_in(&file) {
        Some(name) => name == run.pipeline,
        None => newest.iter().find(|other| other.file == run.file).is_some_and(|other| other.id == run.id),
    }
}

/// Returns the name of the pipeline in a file; `None` if it cannot be read.
pub(crate) fn name_in(file: &Path) -> Option<String> {
    spec::read(file, &Overrides::default(), &mut SourceMap::default()).spec.map(|spec| spec.name)
}

/// The error of a name that the newest run of a pipeline has no output for, but an earlier one has.
fn only_earlier(store: &Store, newer: &RunRecord, earlier: &str, text: &str) -> NotFound {
    let (id, pipeline) = (&newer.id, &newer.pipeline);
    let message = match came_to_nothing(store, std::slice::from_ref(id), text) {
        _ if store.is_running(id) => format!("`{text}` is not there yet: run {id} of `{pipeline}` is running"),
        Some(why) => why.message,
        None => format!("the newest run {id} of `{pipeline}` has no output of `{text}`"),
    };
    NotFound::new(message, Some(has_one(earlier)))
}

pub(super) fn has_one(earlier: &str) -> String {
    format!("an earlier run has one: `--run {earlier}`; or run the pipeline again")
}

//! What a name stands for when no run is named: an output of the newest run of the one pipeline that has it.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::named::{NamedOutput, NotFound, came_to_nothing, output_of};
use crate::store::{RunRecord, Store};

/// Returns the output of that name (`NODE`, `NODE.PORT`, `LOOP.NAME`) of the newest run of its pipeline.
///
/// # Errors
/// Fails if the newest runs of several pipelines have it, or if only an earlier run has.
pub fn newest_output(store: &Store, directory: &Path, text: &str) -> Result<Option<NamedOutput>, NotFound> {
    let newest = newest_of_each(store, directory);
    let mut found: Vec<(&RunRecord, NamedOutput)> = Vec::new();
    for record in &newest {
        if let Some(output) = output_of(store, std::slice::from_ref(&record.id), text)? {
            found.push((record, output));
        }
    }
    if found.len() > 1 {
        let message = format!("{} pipelines have `{text}`", found.len());
        let runs: Vec<&RunRecord> = found.iter().map(|(record, _)| *record).collect();
        return Err(NotFound::new(message, Some(choice(&runs))));
    }
    if let Some((_, output)) = found.pop() {
        return Ok(Some(output));
    }
    let is_pinned = store.pinned(text).is_ok_and(|pin| pin.is_some());
    // Of an imported run, or of a pipeline whose file is gone: nothing newer can be meant.
    let mut alone = None;
    for run in store.newest_runs() {
        let Some(output) = output_of(store, std::slice::from_ref(&run), text)? else { continue };
        let record = store.run(&run).filter(|_| !store.is_imported(&run));
        match record.and_then(|earlier| newest.iter().find(|newer| is_same(newer, &earlier))) {
            None => alone = alone.or(Some(output)),
            Some(_) if is_pinned => return Ok(None),
            Some(newer) => return Err(only_earlier(store, newer, &run, text)),
        }
    }
    Ok(alone)
}

/// The error of a name that the newest run of a pipeline has no output for, but an earlier one has.
fn only_earlier(store: &Store, newer: &RunRecord, earlier: &str, text: &str) -> NotFound {
    let message = match came_to_nothing(store, std::slice::from_ref(&newer.id), text) {
        Some(why) => why.message,
        None => format!("the newest run {} of `{}` has no output of `{text}`", newer.id, newer.pipeline),
    };
    NotFound::new(message, Some(format!("an earlier run has: `--run {earlier}`; or run the pipeline again")))
}

/// Returns the newest run of the pipeline in that file.
pub fn newest_of_file(store: &Store, directory: &Path, file: &Path) -> Option<String> {
    let wanted = plain(&directory.join(file));
    let own = store.newest_runs().into_iter().filter(|id| !store.is_imported(id));
    own.filter_map(|id| store.run(&id)).find(|record| plain(&directory.join(&record.file)) == wanted).map(|run| run.id)
}

/// Returns the newest run of each pipeline whose file is there, the newest first. What has the name or the file of a newer
/// one is the same pipeline.
fn newest_of_each(store: &Store, directory: &Path) -> Vec<RunRecord> {
    let (mut names, mut files) = (BTreeSet::new(), BTreeSet::new());
    let mut newest = Vec::new();
    for id in store.newest_runs() {
        if store.is_imported(&id) {
            continue;
        }
        let Some(record) = store.run(&id) else { continue };
        let file = plain(Path::new(&record.file));
        let is_there = directory.join(&file).is_file();
        let is_new_name = names.insert(record.pipeline.clone());
        let is_new_file = files.insert(file);
        if is_new_name && is_new_file && is_there {
            newest.push(record);
        }
    }
    newest
}

fn is_same(one: &RunRecord, other: &RunRecord) -> bool {
    one.pipeline == other.pipeline || plain(Path::new(&one.file)) == plain(Path::new(&other.file))
}

/// Returns a path without `./`.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn choice(runs: &[&RunRecord]) -> String {
    let mut told = Vec::new();
    for run in runs {
        told.push(format!("{} (`{}`, {})", run.id, run.pipeline, run.file));
    }
    format!(
        "choose one with `--run RUN`: {}; `show`, `path`, `trace` and `audit` take `--file FILE` too",
        told.join(", ")
    )
}

//! `ui --bundle`: writes the page with chosen runs into a folder.

use std::collections::BTreeSet;
use std::path::Path;

use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::target::{check_outside_store, unwritable};
use crate::args::UiArgs;
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::page;

/// Writes the folder completely or not at all.
pub(super) fn bundle(terminal: &Terminal, session: Session, args: &UiArgs, folder: &Path) -> Result<u8, Failure> {
    let runs = chosen(&session, &args.run)?;
    let target = session.directory().join(folder);
    let is_free = match std::fs::read_dir(&target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_free {
        let message = format!("{} is there already, and is not an empty folder", folder.display());
        return Err(Failure::usage(message).with_help("`--bundle` writes a new folder: name another one"));
    }
    // Beside the folder, so that the rename stays on one file system. Removed if anything fails.
    let parent = target.parent().unwrap_or(&target);
    check_outside_store(&session, folder, parent)?;
    let partial = tempfile::Builder::new().prefix(".searchmill-bundle-").tempdir_in(parent);
    let partial = partial.map_err(|error| unwritable(folder, &error))?;
    let written = page::bundle::write(session, &runs, args.rows, partial.path())?;
    let renamed = readable(partial.path()).and_then(|()| std::fs::rename(partial.path(), &target));
    renamed.map_err(|error| unwritable(folder, &error))?;
    // Its name is another one now: there is nothing left to remove.
    drop(partial.keep());
    if terminal.is_json() {
        terminal.json(&json!({
            "folder": folder,
            "runs": runs,
            "tables": written.tables,
            "shortened": written.shortened,
            "files": written.files,
            "left_out": written.left_out,
            "problems": written.problems,
        }));
        return Ok(OK);
    }
    let (runs, tables) = (counted(written.runs, "run"), counted(written.tables, "table"));
    let (opened, files) = (folder.join("index.html"), counted(written.files, "file"));
    terminal.line(&format!("{}: {runs} with {tables} and {files} of reports and folders", opened.display()));
    if written.shortened > 0 {
        let (tables, rows) = (counted(written.shortened, "table"), args.rows);
        terminal.note(&format!("of {tables} only the first rows are there (at most {rows}; `--rows ROWS`)"));
    }
    if written.left_out > 0 {
        let files = counted(written.left_out, "file");
        terminal.note(&format!("{files} of folders are left out: large, or nothing that a browser shows"));
    }
    for problem in &written.problems {
        terminal.warn(problem);
    }
    Ok(OK)
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the runs of a bundle, each once: those asked for, or the newest one of each pipeline that is over.
fn chosen(session: &Session, asked: &[String]) -> Result<Vec<String>, Failure> {
    let mut runs = Vec::new();
    for run in asked {
        if !session.runs().contains(run)? {
            let failure = Failure::usage(format!("there is no run {run}"));
            return Err(failure.with_help("`searchmill runs` lists the runs"));
        }
        if !runs.contains(run) {
            runs.push(run.clone());
        }
    }
    let mut pipelines = BTreeSet::new();
    let ids = if asked.is_empty() { session.runs().ids()? } else { Vec::new() };
    for id in ids.into_iter().rev() {
        let run = session.runs().get(&id)?;
        let Some(record) = run.record.filter(|_| !run.running) else { continue };
        if pipelines.insert(record.pipeline) {
            runs.push(id);
        }
    }
    if runs.is_empty() {
        let failure = Failure::usage(format!("{} has no run that is over", session.store().location()));
        return Err(failure.with_help("`searchmill runs` lists the runs"));
    }
    Ok(runs)
}

/// Lets others read the folder, as any new one: it was made for its owner alone.
#[cfg(unix)]
fn readable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    // `data` has the mode of any new folder (umask); a temporary folder has 0700.
    let made = folder.join("data").metadata()?.permissions().mode();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(made))
}

#[cfg(not(unix))]
fn readable(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}

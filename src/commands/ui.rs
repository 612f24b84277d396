//! `ui`: serves the page of a store, or writes it into a folder.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;

use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::entrance::{entrance_at, stopped};
use crate::args::UiArgs;
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::page;

pub(super) fn ui(terminal: &Terminal, session: Session, args: &UiArgs) -> Result<u8, Failure> {
    if let Some(folder) = &args.bundle {
        return bundle(terminal, session, args, folder);
    }
    let token = match &args.token_file {
        Some(path) => Some(token(&session.directory().join(path))?),
        None => None,
    };
    let (listener, door) = entrance_at(args.listen, token.as_deref(), "--token-file FILE")?;
    let address = address(&listener)?;
    if terminal.is_json() {
        terminal.json(&json!({"address": address, "store": session.shown_store()}));
    } else {
        // The token stands behind `#`: browsers send that part to nobody.
        let opened = token.map_or_else(|| address.clone(), |token| format!("{address}/#token={token}"));
        terminal.line(&format!("{} at {opened} (Ctrl-C ends it)", session.shown_store()));
        if !session.has_store()? {
            terminal.note(&session.no_store());
        }
        if args.open || (terminal.is_watched() && is_desktop() && !args.no_open) {
            open(terminal, &opened);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(page::serve(listener, session, door, stopped()))?;
    Ok(OK)
}

/// Writes the page with chosen runs into a folder: completely or not at all.
fn bundle(terminal: &Terminal, session: Session, args: &UiArgs, folder: &Path) -> Result<u8, Failure> {
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
    let unwritable = |error: std::io::Error| Failure::Other(format!("cannot write {}: {error}", folder.display()));
    let parent = target.parent().unwrap_or(&target);
    let partial = tempfile::Builder::new().prefix(".searchmill-bundle-").tempdir_in(parent).map_err(unwritable)?;
    let written = page::bundle::write(session, &runs, args.rows, partial.path())?;
    readable(partial.path()).map_err(unwritable)?;
    std::fs::rename(partial.path(), &target).map_err(unwritable)?;
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
    let opened = folder.join("index.html");
    terminal.line(&format!(
        "{}: {} with {} and {} of reports and folders",
        opened.display(),
        counted(written.runs, "run"),
        counted(written.tables, "table"),
        counted(written.files, "file"),
    ));
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
        if !session.has_run(run)? {
            let failure = Failure::usage(format!("there is no run {run}"));
            return Err(failure.with_help("`searchmill runs` lists the runs"));
        }
        if !runs.contains(run) {
            runs.push(run.clone());
        }
    }
    let mut pipelines = BTreeSet::new();
    let ids = if asked.is_empty() { session.run_ids()? } else { Vec::new() };
    for id in ids.into_iter().rev() {
        let run = session.past_run(&id)?;
        let Some(record) = run.record.filter(|_| !run.running) else { continue };
        if pipelines.insert(record.pipeline) {
            runs.push(id);
        }
    }
    if runs.is_empty() {
        let failure = Failure::usage(format!("{} has no run that is over", session.shown_store()));
        return Err(failure.with_help("`searchmill runs` lists the runs"));
    }
    Ok(runs)
}

/// Lets others read the folder, as any new one: it was made for its owner alone.
#[cfg(unix)]
fn readable(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let made = folder.join("data").metadata()?.permissions().mode();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(made))
}

#[cfg(not(unix))]
fn readable(_folder: &Path) -> std::io::Result<()> {
    Ok(())
}

fn address(listener: &TcpListener) -> Result<String, Failure> {
    Ok(format!("http://{}", listener.local_addr()?))
}

fn token(path: &Path) -> Result<String, Failure> {
    let read = std::fs::read_to_string(path);
    let text =
        read.map_err(|error| Failure::usage(format!("cannot read the token file {}: {error}", path.display())))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("the token file {} must have one line of letters, digits and signs", path.display());
        return Err(Failure::usage(message).with_help("`openssl rand -hex 32 > FILE` writes a good one"));
    }
    Ok(token.to_owned())
}

/// Whether this machine has a desktop, and who works at it is not at the other end of a network.
fn is_desktop() -> bool {
    let has = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let has_screen = cfg!(target_os = "macos") || has("DISPLAY") || has("WAYLAND_DISPLAY");
    has_screen && !has("SSH_CONNECTION") && !has("CI")
}

/// Opens the page in the browser of this desktop.
fn open(terminal: &Terminal, address: &str) {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let started = std::process::Command::new(program)
        .arg(address)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    if let Err(error) = started {
        terminal.note(&format!("the browser could not be opened with {program}: {error}"));
    }
}

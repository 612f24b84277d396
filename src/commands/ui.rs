//! `ui`: serves the page of a store.

use std::path::Path;

use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::bundle::bundle;
use super::listen::{entrance_at, stopped};
use super::store::note_if_missing;
use crate::args::UiArgs;
use crate::display::Terminal;
use crate::exit::OK;
use crate::serve::page;

pub(super) fn ui(terminal: &Terminal, session: Session, args: &UiArgs) -> Result<u8, Failure> {
    if let Some(folder) = &args.bundle {
        return bundle(terminal, session, args, folder);
    }
    let token = args.token_file.as_ref().map(|path| token(&session.directory().join(path))).transpose()?;
    let (listener, door) = entrance_at(args.listen, token.as_deref(), "--token-file FILE")?;
    let address = format!("http://{}", listener.local_addr()?);
    if terminal.is_json() {
        terminal.json(&json!({"address": address, "store": session.store().location()}));
    } else {
        // The token stands behind `#`: browsers send that part to nobody.
        let opened = token.map_or_else(|| address.clone(), |token| format!("{address}/#token={token}"));
        terminal.line(&format!("{} at {opened} (Ctrl-C ends it)", session.store().location()));
        note_if_missing(terminal, &session)?;
        if args.open || (terminal.page().is_some() && is_desktop() && !args.no_open) {
            open(terminal, &opened);
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(page::serve(listener, session, door, stopped()))?;
    Ok(OK)
}

fn token(path: &Path) -> Result<String, Failure> {
    let read = std::fs::read_to_string(path);
    let text =
        read.map_err(|error| Failure::usage(format!("cannot read the token file {}: {error}", path.display())))?;
    let token = text.trim();
    // It is sent in a header, and stands in the address that is opened.
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format!("the token file {} must have one line of letters, digits and signs", path.display());
        return Err(Failure::usage(message).with_help("`openssl rand -hex 32 > FILE` writes a good one"));
    }
    Ok(token.to_owned())
}

/// Whether this machine has a desktop, and who works at it is not at the other end of a network.
fn is_desktop() -> bool {
    let has_screen = cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY");
    has_screen && !is_set("SSH_CONNECTION") && !is_set("CI")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty())
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

//! `path`: prints where the files of an artifact are.

use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::show::{note_older, run_chosen};
use crate::args::PathArgs;
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn path(terminal: &Terminal, session: &Session, args: &PathArgs) -> Result<u8, Failure> {
    let run = run_chosen(session, args.run.as_deref(), args.file.as_deref())?;
    let located = session.store().locate(&args.what, run.as_deref())?;
    let path = match &located.files[..] {
        _ if !args.single => located.folder.clone(),
        [file] => located.folder.join(file),
        files => {
            let message = format!("`{}` has {} files", args.what, files.len());
            return Err(Failure::usage(message).with_help("leave out --single to print their folder"));
        }
    };
    note_older(terminal, located.older.as_ref());
    let told = json!({"path": path, "kind": located.kind, "rows": located.rows, "files": located.files});
    terminal.tell(&told, &path.display().to_string());
    Ok(OK)
}

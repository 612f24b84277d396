//! `path`: prints where the files of an artifact are.

use searchmill_engine::{Failure, Session};
use serde_json::json;

use super::show::note_older;
use crate::args::PathArgs;
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn path(terminal: &Terminal, session: &Session, args: &PathArgs) -> Result<u8, Failure> {
    let located = session.located(&args.what, args.run.as_deref())?;
    let path = match &located.files[..] {
        _ if !args.file => located.folder.clone(),
        [file] => located.folder.join(file),
        files => {
            let message = format!("`{}` has {} files", args.what, files.len());
            return Err(Failure::usage(message).with_help("leave out --file to print their folder"));
        }
    };
    note_older(terminal, located.older.as_ref());
    let told = json!({"path": path, "kind": located.kind, "rows": located.rows, "files": located.files});
    terminal.tell(&told, &path.display().to_string());
    Ok(OK)
}

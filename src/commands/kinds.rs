//! `kinds`: lists the kinds of rows, or the columns of one kind.

use searchmill_engine::{Failure, suggest};
use searchmill_schemas::RecordKind;
use serde_json::json;

use crate::args::KindsArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn kinds(terminal: &Terminal, args: &KindsArgs) -> Result<u8, Failure> {
    let Some(name) = &args.name else {
        list(terminal);
        return Ok(OK);
    };
    let Some(kind) = RecordKind::from_name(name) else {
        let help = suggest(name, &RecordKind::ALL.map(RecordKind::name), "kinds");
        return Err(Failure::usage(format!("unknown kind of rows `{name}`")).with_help(help));
    };
    let (version, about, columns) = (kind.version(), kind.about(), kind.columns());
    let described = json!({"name": kind.name(), "version": version, "about": about, "columns": columns});
    terminal.tell(&described, &display::kind_page(kind, terminal.page()));
    Ok(OK)
}

fn list(terminal: &Terminal) {
    if terminal.is_json() {
        for kind in RecordKind::ALL {
            terminal.json(&json!({"name": kind.name(), "about": kind.about()}));
        }
        return;
    }
    let rows: Vec<_> = RecordKind::ALL.iter().map(|kind| vec![kind.name().to_owned(), kind.about()]).collect();
    terminal.table(&["kind", "a row is"], &rows);
    terminal.note("`searchmill kinds NAME` prints the columns of one");
}

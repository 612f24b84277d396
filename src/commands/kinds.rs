//! `kinds`: the kinds of rows, and the columns of one.

use searchmill_engine::plan::suggest;
use searchmill_schemas::{Column, RecordKind};
use serde_json::{Value, json};

use super::Session;
use crate::args::KindsArgs;
use crate::display;
use crate::exit::{Failure, OK};

pub(super) fn kinds(session: &Session<'_>, args: &KindsArgs) -> Result<u8, Failure> {
    let Some(name) = &args.name else {
        list(session);
        return Ok(OK);
    };
    let kind = RecordKind::from_name(name).ok_or_else(|| unknown(name))?;
    if session.terminal.is_json() {
        let columns: Vec<Value> = kind.columns().iter().map(as_json).collect();
        let told = json!({"name": kind.name(), "version": kind.version(), "about": kind.about(), "columns": columns});
        session.terminal.line(&told.to_string());
    } else {
        session.terminal.line(&display::kind_page(kind, session.terminal.page()));
    }
    Ok(OK)
}

fn list(session: &Session<'_>) {
    if session.terminal.is_json() {
        for kind in RecordKind::ALL {
            session.terminal.line(&json!({"name": kind.name(), "about": kind.about()}).to_string());
        }
        return;
    }
    let rows: Vec<_> = RecordKind::ALL.iter().map(|kind| vec![kind.name().to_owned(), kind.about()]).collect();
    session.terminal.table(&["kind", "a row is"], &rows);
    session.terminal.note("`searchmill kinds NAME` prints the columns of one");
}

fn unknown(name: &str) -> Failure {
    Failure::usage(format!("there is no kind of rows `{name}`")).with_help(suggest(
        name,
        &RecordKind::ALL.map(RecordKind::name),
        "kinds",
    ))
}

fn as_json(column: &Column) -> Value {
    let mut told = json!({
        "name": column.name, "type": column.kind, "required": column.required, "about": column.about,
    });
    if !column.fields.is_empty() {
        told["fields"] = column.fields.iter().map(as_json).collect();
    }
    told
}

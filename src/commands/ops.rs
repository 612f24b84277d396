//! `ops`: the list of operators, and the reference page of one.

use serde_json::json;

use super::Session;
use crate::args::OpsArgs;
use crate::exit::{Failure, OK};
use crate::{display, pipeline};

pub(super) fn ops(session: &Session<'_>, args: &OpsArgs) -> Result<u8, Failure> {
    let registry = pipeline::registry();
    let Some(name) = &args.name else {
        let rows: Vec<_> = registry
            .iter()
            .map(|entry| vec![entry.name.to_owned(), display::effect(entry), first_sentence(entry.about).to_owned()])
            .collect();
        if session.terminal.is_json() {
            for entry in registry.iter() {
                let (name, about, effect) = (entry.name, entry.about, display::effect(entry));
                let line = json!({"name": name, "version": entry.version, "effect": effect, "about": about});
                session.terminal.line(&line.to_string());
            }
        } else {
            session.terminal.table(&["operator", "effect", "what it does"], &rows);
            session.terminal.note("`searchmill ops NAME` prints an operator's reference page");
        }
        return Ok(OK);
    };
    let entry = registry.get(name).ok_or_else(|| {
        let names: Vec<&str> = registry.iter().map(|entry| entry.name).collect();
        let help = match searchmill_engine::plan::nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("operators: {}", names.join(", ")),
        };
        Failure::usage(format!("there is no operator `{name}`")).with_help(help)
    })?;
    if session.terminal.is_json() {
        session.terminal.line(&(entry.schema)().to_string());
    } else {
        session.terminal.line(&display::reference_page(entry, args.markdown, session.terminal.page()));
    }
    Ok(OK)
}

/// The reference page has the rest.
fn first_sentence(about: &str) -> &str {
    about.find(". ").map_or(about, |end| &about[..=end])
}

//! `ops`: lists the operators, or prints the reference page of one.

use searchmill_engine::{Failure, Session, closest};
use serde_json::json;

use crate::args::OpsArgs;
use crate::display::{self, Terminal};
use crate::exit::OK;

pub(super) fn ops(terminal: &Terminal, session: &Session, args: &OpsArgs) -> Result<u8, Failure> {
    let registry = session.registry();
    let Some(name) = &args.name else {
        let mut rows = Vec::new();
        for entry in registry.iter() {
            let (name, about, effect) = (entry.name, entry.about, display::effect(entry));
            if terminal.is_json() {
                terminal.json(&json!({"name": name, "version": entry.version, "effect": effect, "about": about}));
            } else {
                // The first sentence; the reference page shows the whole text.
                let first = about.find(". ").map_or(about, |end| &about[..=end]);
                rows.push(vec![name.to_owned(), effect, first.to_owned()]);
            }
        }
        if !terminal.is_json() {
            terminal.table(&["operator", "effect", "what it does"], &rows);
            terminal.note("`searchmill ops NAME` prints an operator's reference page");
        }
        return Ok(OK);
    };
    let Some(entry) = registry.get(name) else {
        let names: Vec<&str> = registry.iter().map(|entry| entry.name).collect();
        let help = match closest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("operators: {}", names.join(", ")),
        };
        return Err(Failure::usage(format!("there is no operator `{name}`")).with_help(help));
    };
    terminal.tell(&(entry.schema)(), &display::reference_page(entry, args.markdown, terminal.page()));
    Ok(OK)
}

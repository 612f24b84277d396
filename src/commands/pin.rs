//! `pin` and `unpin`: protect artifacts from `gc`.

use searchmill_engine::{Failure, PinOptions, Session};

use crate::args::{PinArgs, UnpinArgs};
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn pin(terminal: &Terminal, session: &Session, args: &PinArgs) -> Result<u8, Failure> {
    let Some(what) = args.what.as_ref().filter(|_| !args.list) else { return list(terminal, session) };
    let options = PinOptions { run: args.run.clone(), name: args.name.clone(), lineage: args.lineage };
    let pin = session.store().pin(what, &options)?;
    terminal.tell(&pin, &format!("{}: {} ({})", pin.name, pin.artifact.digest().short(), pin.from));
    Ok(OK)
}

pub(super) fn unpin(terminal: &Terminal, session: &Session, args: &UnpinArgs) -> Result<u8, Failure> {
    let pin = session.store().unpin(&args.name)?;
    terminal.tell(&pin, &format!("{} is no longer pinned", pin.name));
    Ok(OK)
}

fn list(terminal: &Terminal, session: &Session) -> Result<u8, Failure> {
    let pins = session.store().pins()?;
    if terminal.is_json() {
        for pin in &pins {
            terminal.json(&pin);
        }
        return Ok(OK);
    }
    let mut rows = Vec::new();
    for pin in pins {
        let lineage = if pin.lineage { "with its lineage" } else { "" };
        rows.push(vec![pin.name, pin.artifact.digest().short(), pin.from, lineage.to_owned()]);
    }
    terminal.table(&["pin", "artifact", "from", ""], &rows);
    Ok(OK)
}

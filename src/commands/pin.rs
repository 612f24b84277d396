//! `pin` and `unpin`: protect artifacts from `gc`.

use searchmill_engine::{Failure, Pin, Session};

use crate::args::{PinArgs, UnpinArgs};
use crate::display::Terminal;
use crate::exit::OK;

pub(super) fn pin(terminal: &Terminal, session: &Session, args: &PinArgs) -> Result<u8, Failure> {
    let Some(what) = args.what.as_ref().filter(|_| !args.list) else { return list(terminal, session) };
    let pin = session.pin(what, args.run.as_deref(), args.name.as_deref(), args.lineage)?;
    terminal.tell(&pin, &format!("{}: {} ({})", pin.name, pin.artifact.digest().short(), pin.from));
    Ok(OK)
}

pub(super) fn unpin(terminal: &Terminal, session: &Session, args: &UnpinArgs) -> Result<u8, Failure> {
    let pin = session.unpin(&args.name)?;
    terminal.tell(&pin, &format!("{} is no longer pinned", pin.name));
    Ok(OK)
}

fn list(terminal: &Terminal, session: &Session) -> Result<u8, Failure> {
    let pins = session.pins()?;
    if terminal.is_json() {
        for pin in &pins {
            terminal.json(&pin);
        }
        return Ok(OK);
    }
    let row = |pin: &Pin| {
        let lineage = if pin.lineage { "with its lineage" } else { "" };
        vec![pin.name.clone(), pin.artifact.digest().short(), pin.from.clone(), lineage.to_owned()]
    };
    terminal.table(&["pin", "artifact", "from", ""], &pins.iter().map(row).collect::<Vec<_>>());
    Ok(OK)
}

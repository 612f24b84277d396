//! `pin` and `unpin`: artifacts that are kept whatever happens.

use searchmill_engine::store::{Pin, StoreError};

use super::Session;
use super::artifact::find;
use crate::args::{PinArgs, UnpinArgs};
use crate::exit::{Failure, OK};

pub(super) fn pin(session: &Session<'_>, args: &PinArgs) -> Result<u8, Failure> {
    let store = session.existing_store()?;
    let Some(what) = args.what.as_ref().filter(|_| !args.list) else { return list(session) };
    let root = find(&store, what, args.run.as_deref())?;
    if store.check(&root.artifact).is_err() {
        let message = format!("the artifact {} is not whole in the store", root.artifact.digest().short());
        return Err(Failure::usage(message).with_help("run its pipeline again, then pin it"));
    }
    let pin = Pin {
        name: args.name.clone().unwrap_or_else(|| what.clone()),
        artifact: root.artifact,
        key: root.key,
        from: root.name,
        lineage: args.lineage,
        pinned: searchmill_engine::execute::unix_time(),
    };
    store.pin(&pin).map_err(as_usage)?;
    if session.terminal.is_json() {
        session.terminal.line(&serde_json::to_string(&pin).unwrap_or_default());
    } else {
        session.terminal.line(&format!("{}: {} ({})", pin.name, pin.artifact.digest().short(), pin.from));
    }
    Ok(OK)
}

pub(super) fn unpin(session: &Session<'_>, args: &UnpinArgs) -> Result<u8, Failure> {
    let pin = session.existing_store()?.unpin(&args.name).map_err(as_usage)?;
    let unknown = || Failure::usage(format!("there is no pin `{}`", args.name)).with_help("`searchmill pin --list`");
    let pin = pin.ok_or_else(unknown)?;
    if session.terminal.is_json() {
        session.terminal.line(&serde_json::to_string(&pin).unwrap_or_default());
    } else {
        session.terminal.line(&format!("{} is no longer pinned", pin.name));
    }
    Ok(OK)
}

fn list(session: &Session<'_>) -> Result<u8, Failure> {
    let pins = session.existing_store()?.pins()?;
    if session.terminal.is_json() {
        for pin in &pins {
            session.terminal.line(&serde_json::to_string(pin).unwrap_or_default());
        }
        return Ok(OK);
    }
    let row = |pin: &Pin| {
        let lineage = if pin.lineage { "with its lineage" } else { "" };
        vec![pin.name.clone(), pin.artifact.digest().short(), pin.from.clone(), lineage.to_owned()]
    };
    session.terminal.table(&["pin", "artifact", "from", ""], &pins.iter().map(row).collect::<Vec<_>>());
    Ok(OK)
}

/// A name that is taken or is none is the user's affair, a disk that refuses is not.
fn as_usage(error: StoreError) -> Failure {
    match error {
        StoreError::Location(message) => Failure::usage(message),
        other => Failure::Store(other),
    }
}

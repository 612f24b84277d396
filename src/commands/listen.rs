//! What all servers share: the address, the access rules, the end.

use std::net::{SocketAddr, TcpListener};

use searchmill_engine::Failure;

use crate::args::EntranceArgs;
use crate::serve::http::access::{Door, bind};

/// Binds the address, with the access rules of a server there.
pub(super) fn entrance(args: &EntranceArgs) -> Result<(TcpListener, Door), Failure> {
    entrance_at(args.listen, args.token.as_deref(), "SEARCHMILL_TOKEN")
}

/// Binds the address; `by` names what sets the token.
pub(super) fn entrance_at(listen: SocketAddr, token: Option<&str>, by: &str) -> Result<(TcpListener, Door), Failure> {
    let listener = bind(listen)?;
    // An empty variable is one that is not set.
    let token = token.map(str::trim).filter(|token| !token.is_empty());
    let Some(door) = Door::new(listener.local_addr()?, token.map(str::to_owned)) else {
        let failure = Failure::usage(format!("{listen} can be reached from other machines, and there is no token"));
        let help = format!("set {by} (requests carry it as `Authorization: Bearer …`), or listen on 127.0.0.1");
        return Err(failure.with_help(help));
    };
    Ok((listener, door))
}

/// Waits until the server is to stop.
pub(super) async fn stopped() {
    super::run::wait().await;
}

//! What all servers share: the address, the access rules, the end.

use std::net::TcpListener;

use searchmill_engine::Failure;

use crate::args::EntranceArgs;
use crate::serve::http::access::Door;

/// Binds the address, with the access rules of a server there.
pub(super) fn entrance(args: &EntranceArgs) -> Result<(TcpListener, Door), Failure> {
    entrance_at(args.listen, args.token.as_deref(), "SEARCHMILL_TOKEN")
}

/// Binds the address; `by` names what sets the token.
pub(super) fn entrance_at(
    listen: std::net::SocketAddr,
    token: Option<&str>,
    by: &str,
) -> Result<(TcpListener, Door), Failure> {
    let listener = TcpListener::bind(listen)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| Failure::usage(format!("cannot listen on {listen}: {error}")))?;
    let token = token.map(str::trim).filter(|token| !token.is_empty()).map(str::to_owned);
    let door = Door::new(listener.local_addr()?, token).ok_or_else(|| {
        Failure::usage(format!("{listen} can be reached from other machines, and there is no token"))
            .with_help(format!("set {by} (requests carry it as `Authorization: Bearer …`), or listen on 127.0.0.1"))
    })?;
    Ok((listener, door))
}

/// Waits until the server is to stop.
pub(super) async fn stopped() {
    super::run::wait().await;
}

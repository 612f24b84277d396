//! A client of one MCP server: handshake, list of tools, calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use searchmill_engine::operator::{Attempt, CallFailure, FailureKind};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::super::service::bad;
use super::http::HttpServer;
use super::message::{Fault, STATELESS, Session, agreed, hello, ready, request};
use super::program::ProgramServer;

/// Pages of a list of tools (at most): a server that lies about the next page ends there.
const MOST_PAGES: usize = 64;

/// How the server is reached.
pub(super) enum Server {
    Http(HttpServer),
    Program(Box<ProgramServer>),
}

/// A client.
pub(super) struct Client {
    server: Server,
    session: Mutex<Option<Arc<Session>>>,
    serial: AtomicU64,
    /// The definitions that the rollouts were told; a server with others is not called.
    pub(super) told: OnceLock<Vec<Value>>,
}

impl Client {
    pub(super) fn new(server: Server) -> Self {
        Self { server, session: Mutex::default(), serial: AtomicU64::new(1), told: OnceLock::new() }
    }

    /// Returns the tools of the server, as it lists them, sorted by name.
    pub(super) async fn list(&self, attempt: &Attempt) -> Result<Vec<Value>, CallFailure> {
        // Not compared: this list is what calls are compared with later (`told`).
        let session = self.session(attempt, false).await?;
        Ok(self.listed(&session, attempt).await?)
    }

    /// Calls a tool.
    pub(super) async fn call(&self, tool: &str, arguments: &Value, attempt: &Attempt) -> Result<Value, CallFailure> {
        let params = json!({"name": tool, "arguments": arguments});
        let session = self.session(attempt, true).await?;
        let (result, _) = match self.request("tools/call", params.clone(), Some(&session), attempt).await {
            Err(Fault::Gone) => {
                // The server has forgotten the session: once more, with a new one, which another call may have opened.
                self.session.lock().await.take_if(|known| Arc::ptr_eq(known, &session));
                let session = self.session(attempt, true).await?;
                self.request("tools/call", params, Some(&session), attempt).await?
            }
            outcome => outcome?,
        };
        // Without a handshake, a result may ask the client for input; earlier revisions have no `resultType`.
        match result.get("resultType").and_then(Value::as_str) {
            None | Some("complete") => Ok(result),
            Some(kind) => {
                let message = format!("it wants `{kind}`, which no rollout can give");
                Err(CallFailure::new(FailureKind::Refused, message, None))
            }
        }
    }

    /// Returns the session, after a handshake if there is none. Before calls, compares the tools with those that the
    /// rollouts were told.
    async fn session(&self, attempt: &Attempt, calls: bool) -> Result<Arc<Session>, CallFailure> {
        let mut known = self.session.lock().await;
        // Locked over the handshake: other calls wait for this session instead of opening their own.
        let alive = !matches!(&self.server, Server::Program(program) if !program.is_running());
        if let Some(session) = known.as_ref().filter(|_| alive) {
            return Ok(Arc::clone(session));
        }
        let session = match self.request("initialize", hello(), None, attempt).await {
            Ok((result, id)) => {
                let session = agreed(&result, id)?;
                // The protocol demands the notification before normal requests (basic/lifecycle).
                match &self.server {
                    // The answer to a notification says nothing.
                    Server::Http(server) => drop(server.post(&ready(), Some(&session), attempt, None).await?),
                    Server::Program(program) => program.notify(&ready()),
                }
                session
            }
            // A server of the revision without a handshake does not know the method.
            Err(Fault::Rpc(_)) => Session { revision: STATELESS.to_owned(), id: None },
            Err(fault) => return Err(fault.into()),
        };
        if calls && let Some(told) = self.told.get() {
            changed(told, &self.listed(&session, attempt).await?)?;
        }
        // Only now: while the tools are other ones, each call compares again and fails.
        let session = Arc::new(session);
        *known = Some(Arc::clone(&session));
        Ok(session)
    }

    async fn listed(&self, session: &Session, attempt: &Attempt) -> Result<Vec<Value>, Fault> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        // A cursor that never ends must not hold the node up.
        for _ in 0..MOST_PAGES {
            let params = cursor.map_or_else(|| json!({}), |cursor: Value| json!({"cursor": cursor}));
            let (page, _) = self.request("tools/list", params, Some(session), attempt).await?;
            let Some(found) = page.get("tools").and_then(Value::as_array) else {
                return Err(Fault::Failed(bad("its list of tools is no list")));
            };
            tools.extend(found.iter().cloned());
            cursor = page.get("nextCursor").filter(|cursor| !cursor.is_null()).cloned();
            if cursor.is_none() {
                // Servers list them in any order; the model is always offered the same one.
                tools.sort_by_key(|tool: &Value| tool["name"].as_str().unwrap_or_default().to_owned());
                return Ok(tools);
            }
        }
        Err(Fault::Failed(bad(format!("its list of tools has more than {MOST_PAGES} pages"))))
    }

    async fn request(
        &self,
        method: &str,
        params: Value,
        session: Option<&Session>,
        attempt: &Attempt,
    ) -> Result<(Value, Option<String>), Fault> {
        // Ids only have to differ: no other memory depends on their order.
        let id = self.serial.fetch_add(1, Ordering::Relaxed);
        let message = request(id, method, params, session);
        match &self.server {
            Server::Http(server) => Box::pin(server.request(&message, id, session, attempt)).await,
            Server::Program(program) => program.request(&message, id).await.map(|result| (result, None)),
        }
    }
}

/// What the model reads of a tool.
fn definition<'t>(tools: &'t [Value], name: &Value) -> Option<[Option<&'t Value>; 2]> {
    let tool = tools.iter().find(|tool| tool.get("name") == Some(name))?;
    // Other fields (annotations, output schemas) reach no model: they may change.
    Some([tool.get("description"), tool.get("inputSchema")])
}

/// Fails if a tool that the rollouts were told is gone or has another definition.
fn changed(told: &[Value], found: &[Value]) -> Result<(), CallFailure> {
    for tool in told {
        let name = tool.get("name").unwrap_or(&Value::Null);
        if definition(told, name) != definition(found, name) {
            let message = format!(
                "its tool {name} is not what it was when the rollouts began: `--force` this node to begin anew with \
                 the tools as they are"
            );
            let failure = CallFailure::new(FailureKind::Refused, message, None);
            return Err(CallFailure { same_for_all: true, ..failure });
        }
    }
    Ok(())
}

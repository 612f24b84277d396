//! The tool `http`: a search or fetch service.

use bytes::Bytes;
use reqwest::header::CONTENT_TYPE;
use searchmill_engine::operator::{Attempt, CallFailure, Context, OperatorError, RowFailure};
use serde_json::{Map, Value, json};

use super::params::{HttpMethod, HttpParams};
use super::results::{self, Layout};
use super::service::{Exchange, Service};
use super::template;
use super::wire::Wire;
use crate::protocol::OfferedCall;
use crate::tool::{Called, ToolResult};
use crate::words::brief;

/// A service over HTTP.
pub(super) struct HttpTool {
    params: HttpParams,
    service: Service,
    wire: Wire,
    layout: Layout,
}

impl HttpTool {
    /// Resolves the secrets. `place` is the service's in the declaration.
    pub(super) fn open(
        params: &HttpParams,
        place: usize,
        layout: Layout,
        context: &Context,
    ) -> Result<Self, OperatorError> {
        let (headers, secrets) = (&params.headers, &params.secret_headers);
        let wire = Wire::open(headers, secrets, params.api_key.as_ref(), params.timeout_seconds, context)?;
        let service = Service { place, prices: params.prices.clone().unwrap_or_default() };
        Ok(Self { params: params.clone(), service, wire, layout })
    }

    /// Runs a call.
    pub(super) async fn call(&self, call: OfferedCall<'_>, context: &Context) -> Result<Called, RowFailure> {
        let mut arguments = Map::new();
        // What no template uses is not sent: it must not make another call of the same request.
        for name in self.params.used() {
            // The arguments have the defaults of the schema.
            let default = self.params.parameters.pointer(&format!("/properties/{name}/default"));
            // `null` leaves an argument out, also one that has a default.
            match call.arguments.get(name).or(default) {
                None | Some(Value::Null) => {}
                Some(value) => drop(arguments.insert(name.to_owned(), value.clone())),
            }
        }
        let sending = Sending { tool: self, arguments };
        // URL and templates are in the identity of the service: calls of one service differ in their arguments alone.
        let request = json!({"arguments": sending.arguments}).to_string();
        self.service.call(call.tool, &sending, request, context).await
    }
}

/// One call with its arguments.
struct Sending<'a> {
    tool: &'a HttpTool,
    arguments: Map<String, Value>,
}

impl Exchange for Sending<'_> {
    type Answer = ToolResult;

    async fn attempt(&self, context: &Context, attempt: &Attempt) -> Result<String, CallFailure> {
        let params = &self.tool.params;
        let url = template::url(&params.url, &self.arguments);
        let mut request = match params.method {
            HttpMethod::Get => context.http().get(url),
            HttpMethod::Post => context.http().post(url),
        };
        if let Some(body) = params.body.as_ref().and_then(|body| template::body(body, &self.arguments)) {
            request = request.header(CONTENT_TYPE, "application/json").body(Bytes::from(body.to_string()));
        }
        let wire = &self.tool.wire;
        let answered = wire.accepted(wire.send(request, attempt, |_, _| false).await?)?;
        Ok(String::from_utf8_lossy(&answered.body).into_owned())
    }

    /// An answer that should be JSON and is not (the page of a proxy) is no answer.
    fn read(&self, text: &str) -> Result<ToolResult, String> {
        let HttpParams { results: places, max_chars, .. } = &self.tool.params;
        let Some(places) = places else { return Ok(Ok(results::whole(text, *max_chars))) };
        let answer =
            serde_json::from_str(text).map_err(|error| format!("its answer is not JSON ({error}): {}", brief(text)))?;
        Ok(results::placed(&answer, places, *max_chars, self.tool.layout))
    }
}

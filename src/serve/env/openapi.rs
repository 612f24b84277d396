//! The routes with what they take and return, and the OpenAPI document made of them (OpenAPI 3.1,
//! spec.openapis.org/oas/v3.1.0).

use axum::Json;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use self::Part::{Episodes, Mcp, Retrieval, Server};
use super::episodes::action::{Action, Outcome, State};
use super::episodes::questions::Wanted;
use super::state::View;

/// What a route is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Retrieval,
    Mcp,
    Episodes,
    Server,
}

/// Fields of a body, or params of an address: name, type, whether it is required.
type Fields = &'static [(&'static str, &'static str, bool)];

const ONE: Fields = &[("query", "string", true), ("top_n", "count?", false), ("return_score", "boolean?", false)];
const MANY: Fields = &[("query", "strings", true), ("top_n", "count?", false), ("return_score", "boolean?", false)];
const RETRIEVE: Fields =
    &[("queries", "strings", true), ("topk", "integer?", false), ("return_scores", "boolean?", false)];
const QUERIES: Fields = &[("queries", "strings", true), ("k", "count?", false)];
const COLBERT: Fields = &[("query", "string", true), ("k", "count", false)];
const TEXTS: Fields = &[("query", "strings", true)];
const SESSION: Fields = &[("session_id", "string", true)];

/// A route.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// Clients that send it.
    pub(super) used_by: &'static str,
    about: &'static str,
    part: Part,
    /// Fields of the body; of a `GET` and of `/messages`, params of the address.
    fields: Fields,
}

const fn route(
    method: &'static str,
    path: &'static str,
    used_by: &'static str,
    part: Part,
    about: &'static str,
    fields: Fields,
) -> Route {
    Route { method, path, used_by, about, part, fields }
}

/// All routes, in the order of the docs.
pub(super) const ROUTES: [Route; 26] = [
    route("POST", "/search", "ReSearch, FlashRAG", Retrieval, "Searches for one query.", ONE),
    route("POST", "/batch_search", "ReSearch, FlashRAG", Retrieval, "Searches for many queries.", MANY),
    route("GET", "/health", "ReSearch, OpenEnv", Retrieval, "Tells that the server runs.", &[]),
    route("POST", "/retrieve", "Search-R1, verl, SkyRL, slime", Retrieval, "Searches for many queries.", RETRIEVE),
    route("POST", "/queries", "R1-Searcher", Retrieval, "Searches for many queries.", QUERIES),
    route("GET", "/api/search", "ColBERT, SearchLM", Retrieval, "Searches for one query.", COLBERT),
    route("POST", "/mcp", "MCP, OpenEnv", Mcp, "MCP over streamable HTTP: one JSON-RPC message.", &[]),
    route("GET", "/sse", "MCP of 2024", Mcp, "MCP over SSE: opens the stream of answers.", &[]),
    route("POST", "/messages", "MCP of 2024", Mcp, "MCP over SSE: one JSON-RPC message.", SESSION),
    route("POST", "/reset", "OpenEnv", Episodes, "Starts an episode.", &[]),
    route("POST", "/step", "OpenEnv", Episodes, "Takes a message of the model.", &[]),
    route("GET", "/state", "OpenEnv", Episodes, "Returns the state of an episode.", &[("episode_id", "string", false)]),
    route("GET", "/schema", "OpenEnv", Episodes, "Returns the schemas of actions and observations.", &[]),
    route("GET", "/metadata", "OpenEnv", Episodes, "Describes the environment.", &[]),
    route("GET", "/ws", "OpenEnv", Episodes, "WebSocket with an episode per connection.", &[]),
    route("GET", "/tasks.jsonl", "NeMo Gym", Episodes, "Returns the questions as rows of a data set.", &[]),
    route("POST", "/seed_session", "NeMo Gym", Episodes, "Starts a session; its cookie names it.", &[]),
    route("POST", "/verify", "NeMo Gym", Episodes, "Judges the response of a model.", &[("response", "object", true)]),
    route("POST", "/close_session", "NeMo Gym", Episodes, "Ends a session.", &[]),
    route("GET", "/reverify_mode", "NeMo Gym", Episodes, "Tells that judging needs no session.", &[]),
    route("POST", "/get_reward", "R1-Searcher", Episodes, "Returns the rewards of texts.", TEXTS),
    route("POST", "/reload", "searchmill", Server, "Opens the indexes again.", &[]),
    route("GET", "/openapi.json", "OpenAPI", Server, "Returns this document.", &[]),
    route("GET", "/metrics", "Prometheus", Server, "Returns metrics.", &[]),
    route("GET", "/", "searchmill", Server, "Lists indexes and routes.", &[]),
    route("POST", "/messages/", "MCP of 2024", Mcp, "The same as `/messages`.", SESSION),
];

/// Lists the routes for the page at `/`.
pub(super) fn listed() -> Value {
    let routes = ROUTES.iter();
    routes.map(|route| json!({"method": route.method, "path": route.path, "used_by": route.used_by})).collect()
}

/// `/openapi.json`. The routes of episodes are in it only if the server has them: OpenEnv's validator reads from them in
/// which mode a server runs.
pub(super) async fn document(view: View) -> Json<Value> {
    let with_episodes = view.env.world.is_some();
    // OpenAPI keeps shared schemas in `components`, JSON Schema by itself in `$defs`.
    let settings = SchemaSettings::draft2020_12().with(|own| own.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let (outcome, state) = (generator.subschema_for::<Outcome>(), generator.subschema_for::<State>());
    let (wanted, action) = (generator.subschema_for::<Wanted>(), generator.subschema_for::<Action>());
    let mut paths = Map::new();
    for route in ROUTES.iter().filter(|route| with_episodes || route.part != Episodes) {
        let body = match route.path {
            "/reset" => Some(json!(wanted)),
            "/step" => Some(json!({"type": "object", "required": ["action", "episode_id"],
                "properties": {"action": action, "episode_id": {"type": "string"}}})),
            "/mcp" | "/messages" | "/messages/" => Some(json!({"type": "object"})),
            _ if route.method == "POST" && route.path != "/reload" => Some(object(route.fields)),
            _ => None,
        };
        let answer = match route.path {
            "/reset" | "/step" => json!(outcome),
            "/state" => json!(state),
            _ => json!({}),
        };
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_lowercase()] = operation(route, body, &answer);
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "searchmill", "version": env!("CARGO_PKG_VERSION"),
            "description": "Search indexes with the APIs of trainers of search agents."},
        "paths": paths,
        "components": {
            "schemas": generator.definitions(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        // The empty entry makes the token optional: a server on loopback may have none.
        "security": [{}, {"token": []}],
    }))
}

fn object(fields: &[(&str, &str, bool)]) -> Value {
    let properties: Map<String, Value> =
        fields.iter().map(|(name, kind, _)| ((*name).to_owned(), schema(kind))).collect();
    let required: Vec<&str> = fields.iter().filter(|(_, _, required)| *required).map(|(name, ..)| *name).collect();
    json!({"type": "object", "properties": properties, "required": required})
}

fn schema(kind: &str) -> Value {
    let (kind, or_null) = kind.strip_suffix('?').map_or((kind, false), |kind| (kind, true));
    let mut schema = match kind {
        "strings" => json!({"type": "array", "items": {"type": "string"}}),
        "count" => json!({"type": "integer", "minimum": 1}),
        _ => json!({"type": kind}),
    };
    // OpenAPI 3.1 has no `nullable`: null is one of the types.
    if or_null {
        schema["type"] = json!([schema["type"], "null"]);
    }
    schema
}

fn json_of(schema: &Value) -> Value {
    json!({"application/json": {"schema": schema}})
}

fn operation(route: &Route, body: Option<Value>, answer: &Value) -> Value {
    let is_of_address = route.method == "GET" || route.path.starts_with("/messages");
    let fields = if is_of_address { route.fields } else { &[] };
    let mut parameters = Vec::new();
    for (name, kind, required) in fields {
        parameters.push(json!({"name": name, "in": "query", "required": required, "schema": schema(kind)}));
    }
    let kind = if route.path == "/metrics" { "text/plain" } else { "application/x-ndjson" };
    let text = json!({kind: {"schema": {"type": "string"}}});
    let (status, content) = match route.path {
        "/metrics" | "/tasks.jsonl" => ("200", Some(text)),
        "/sse" => ("200", Some(json!({"text/event-stream": {"schema": {"type": "string"}}}))),
        "/ws" => ("101", None),
        "/messages" | "/messages/" => ("202", None),
        _ => ("200", Some(json_of(answer))),
    };
    let mut answered = json!({"description": "The answer.",
        "headers": {"X-Searchmill-Index": {"description": "Digests of the indexes.", "schema": {"type": "string"}}}});
    if let Some(content) = content {
        answered["content"] = content;
    }
    let problem = json!({"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]});
    let mut operation = json!({
        "summary": route.about,
        "operationId": format!("{}_{}", route.method.to_lowercase(), route.path.replace(['/', '.'], "_")),
        "tags": [route.used_by],
        "parameters": parameters,
        "responses": {
            status: answered,
            "default": {"description": "A rejected request, and why.", "content": json_of(&problem)},
        },
    });
    if route.path == "/mcp" {
        operation["responses"]["202"] = json!({"description": "A notification was accepted."});
    }
    if let Some(body) = body {
        let required = !matches!(route.path, "/reset");
        operation["requestBody"] = json!({"required": required, "content": json_of(&body)});
    }
    operation
}

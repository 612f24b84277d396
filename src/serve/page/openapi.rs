//! What programs can ask the page: an OpenAPI document of the routes.

use axum::Json;
use serde_json::{Map, Value, json};

/// A question: method, address, what it answers, and its params in the query.
type Route = (&'static str, &'static str, &'static str, &'static [&'static str]);

/// Which rows of a table, and in which order.
const CHOSEN: &[&str] = &["port", "where", "sort", "scores", "columns", "from", "to", "texts", "whole"];

/// What `POST /api/labels` answers.
const LABEL: &str = "Keeps a label: run, node, port, row, mark (good, bad, unsure or null), note, author.";
const ROW: &[&str] = &["port", "where", "sort", "scores", "id", "at", "texts"];
const COLUMN: &[&str] = &["port", "where", "scores", "name"];
const COMPARED: &[&str] = &["a", "b", "node", "with"];

/// The routes, as in `router`: a test compares them.
pub(super) const ROUTES: &[Route] = &[
    ("get", "/api/pipelines", "Pipelines with their last runs, runs that go on, and schedules.", &[]),
    ("get", "/api/plan", "What the next run of a pipeline would do, as `plan --json`.", &["pipeline"]),
    ("get", "/api/runs", "Runs, the newest first.", &["pipeline", "before", "limit"]),
    ("get", "/api/runs/{run}", "A run with its nodes, params and graph.", &[]),
    ("get", "/api/runs/{run}/events", "Events of a run as they come (server-sent events), from a byte on.", &["from"]),
    ("get", "/api/runs/{run}/nodes/{node}", "A node with its result, checks, params and inputs.", &[]),
    ("get", "/api/runs/{run}/nodes/{node}/rows", "Rows of an output; keys to sort by and columns a line each.", CHOSEN),
    ("get", "/api/runs/{run}/nodes/{node}/row", "One row, by id or place.", ROW),
    ("get", "/api/runs/{run}/nodes/{node}/column", "What a column holds: histogram or common values.", COLUMN),
    ("get", "/api/runs/{run}/nodes/{node}/rounds", "Questions by rounds of the node's loop.", &["name"]),
    ("get", "/api/artifacts/{artifact}", "An artifact with its files and the runs that have it.", &[]),
    ("get", "/api/compare", "What differs between two runs or two nodes, as `diff --json`.", COMPARED),
    ("get", "/api/labels", "What people say of rows, the newest first.", &["artifact", "row"]),
    ("post", "/api/labels", LABEL, &[]),
    ("post", "/api/schedules", "Acts on a schedule: name, action (pause, resume, trigger).", &[]),
    ("get", "/api/openapi.json", "This document.", &[]),
];

/// Answers `GET /api/openapi.json`.
pub(super) async fn document() -> Json<Value> {
    let mut paths: Map<String, Value> = Map::new();
    for (method, path, about, query) in ROUTES {
        let mut params = Vec::new();
        for part in path.split('/') {
            if let Some(name) = part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                params.push(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}));
            }
        }
        for name in *query {
            params.push(json!({"name": name, "in": "query", "schema": {"type": "string"}}));
        }
        let kind = if path.ends_with("/events") { "text/event-stream" } else { "application/json" };
        let content = json!({kind: {"schema": {}}});
        let mut operation = json!({
            "summary": about,
            "parameters": params,
            "responses": {
                "200": {"description": "The answer.", "content": content},
                "default": {"$ref": "#/components/responses/Problem"},
            },
        });
        if *method == "post" {
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": {"type": "object"}}}});
        }
        let entry = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        entry[*method] = operation;
    }
    let problem = json!({
        "type": "object",
        "properties": {"error": {"type": "string"}, "help": {"type": ["string", "null"]}},
    });
    Json(json!({
        "openapi": "3.1.0",
        "info": {"title": "searchmill ui", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "responses": {
                "Problem": {"description": "What cannot be answered.", "content": {"application/json": {"schema": problem}}},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        // The token is needed if the server has one (`--token-file`).
        "security": [{}, {"token": []}],
    }))
}

#[cfg(test)]
mod tests {
    use super::ROUTES;

    #[test]
    fn the_document_has_the_routes_of_the_server() {
        let server = include_str!("mod.rs");
        let mut served: Vec<&str> = Vec::new();
        for line in server.lines() {
            let Some(rest) = line.trim().strip_prefix(".route(\"/api/") else { continue };
            served.push(rest.split('"').next().unwrap_or_default());
        }
        let mut told: Vec<&str> = ROUTES.iter().map(|(_, path, ..)| path.trim_start_matches("/api/")).collect();
        told.dedup();
        served.sort_unstable();
        told.sort_unstable();
        assert_eq!(told, served);
    }
}

//! Endpoints, services and tools that a run calls, and the servers of `serve`.

mod budgets;
mod endpoint_limits;
mod failing_endpoints;
mod live_search;
mod outside;
mod prices;
mod prompt_tools;
mod rollout_functions;
pub(super) mod serve_env;
mod serve_episodes;
mod serve_mcp;
mod serve_model;
mod serve_upkeep;
mod services;
mod tools;

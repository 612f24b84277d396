//! Tools beside the search tool: `open` (documents that a search showed), `http` (a search or fetch service), `mcp` (the
//! tools of an MCP server), `python` (a function of the user), `prompt` (another language model); and the reranker, a
//! function or a prompt between a search and what the model sees.
//!
//! A call of a service goes through `Context::observe`: its answer is remembered by service and request, so that no
//! other row, node or model pays for it again. What is remembered is the service's own words; what the model sees is
//! read from them. A failure is told to the model, counted, and remembered for its row alone.

mod function;
mod function_params;
mod http;
mod mcp;
mod open;
mod params;
mod prompt_params;
mod prompt_service;
mod recorded;
mod rerank;
mod rerank_params;
mod rerank_prompt;
mod results;
mod service;
mod template;
mod toolbox;
mod wire;

pub use function_params::FunctionParams;
pub use open::Opener;
pub use params::{HttpMethod, HttpParams, McpParams, OpenParams, ResultPlaces, TOOL_NAME, ToolParams, is_tool_name};
pub use prompt_params::{PromptToolParams, RerankPromptParams};
pub use recorded::{Recorded, RecordedCall, RecordedSearch, calls, offered, searches};
pub(crate) use recorded::{result as recorded_result, shown_after};
pub use rerank::RankingFunction;
pub use rerank_params::RerankParams;
pub use results::content_id;
pub use toolbox::{SearchTool, ToolInputs, Toolbox, recorded_offers};

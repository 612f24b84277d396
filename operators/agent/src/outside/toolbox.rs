//! All tools of a rollout: the search tool, and those beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use futures::FutureExt;
use futures::future::BoxFuture;
use searchmill_engine::operator::{Context, FailureKind, OperatorError, RowFailure};
use serde_json::Value;

use super::function::{Fault, FunctionTool};
use super::http::HttpTool;
use super::mcp::McpTool;
use super::open::Opener;
use super::params::ToolParams;
use super::prompt_service::PromptTool;
use super::recorded::Recorded;
use super::rerank::Reranker;
use super::rerank_params::RerankParams;
use super::results::Layout;
use crate::protocol::{OfferedCall, ToolOffer};
use crate::tool::{Called, Moment, SEARCH, Searcher, Tool, ToolResult, failure_of, nothing_to_search, query};

/// The tools.
pub struct Toolbox {
    search: Option<Searcher>,
    live: Option<Live>,
    opener: Option<Opener>,
    recorded: Option<Recorded>,
    http: BTreeMap<String, HttpTool>,
    functions: BTreeMap<String, FunctionTool>,
    prompts: BTreeMap<String, PromptTool>,
    reranker: Option<Reranker>,
    fault: Fault,
    mcp: Vec<(BTreeSet<String>, McpTool)>,
}

/// A tool that answers the searches of a protocol in which they are text.
struct Live {
    /// `None` if recorded rollouts answer in its place.
    tool: Option<ToolOffer>,
    /// Passages shown of a search (at most).
    top_k: usize,
}

/// The search tool of a rollout.
pub struct SearchTool<'a> {
    pub searcher: Option<Searcher>,
    pub name: &'a str,
    /// The step between it and what the model sees.
    pub rerank: Option<&'a RerankParams>,
    /// If its searches are text and the only tool answers them: the passages shown of each (at most).
    pub live: Option<usize>,
}

/// What the tools read of the node's inputs.
#[derive(Default)]
pub struct ToolInputs {
    pub opener: Option<Opener>,
    /// Answers in place of the services.
    pub recorded: Option<Recorded>,
}

impl Toolbox {
    /// Opens the tools and returns what the model is offered beside the search tool. Asks MCP servers
    /// for their tools, unless that is remembered or recorded.
    ///
    /// # Errors
    /// If a secret is unknown, an MCP server cannot be used, or two tools have one name.
    pub fn open(
        tools: &[ToolParams],
        inputs: ToolInputs,
        search: SearchTool<'_>,
        context: &Context,
    ) -> Result<(Self, Vec<ToolOffer>), OperatorError> {
        let (SearchTool { searcher, name, rerank, live }, ToolInputs { opener, recorded }) = (search, inputs);
        // One place for all functions and the reranker: the first error of any of them fails the node.
        let fault = Fault::default();
        // Its place in the declaration is behind those of the tools.
        let place = tools.iter().filter_map(ToolParams::service).count();
        let reranker = rerank.map(|rerank| Reranker::open(rerank, place, name, &fault, context)).transpose()?;
        let (http, functions, prompts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (search, mcp) = (searcher, Vec::new());
        let live = live.map(|top_k| Live { tool: None, top_k });
        let mut toolbox = Self { search, live, opener, recorded, http, functions, prompts, reranker, fault, mcp };
        let offers = match &toolbox.recorded {
            Some(recorded) => recorded_offers(tools, recorded.offers(), name),
            None => toolbox.connect(tools, context)?,
        };
        if let Some(live) = &mut toolbox.live {
            if toolbox.recorded.is_none() {
                live.tool = Some(searching(offers)?);
            }
            // The model is offered nothing: in this protocol its searches are text.
            return Ok((toolbox, Vec::new()));
        }
        let mut names: BTreeSet<&str> = toolbox.search.iter().map(|_| name).collect();
        if let Some(twice) = offers.iter().find(|offer| !names.insert(&offer.name)) {
            let error = OperatorError::pipeline(format!("two tools have the name `{}`", twice.name));
            return Err(error.with_help("give the tools of an MCP server a `prefix`, or choose some with `tools`"));
        }
        Ok((toolbox, offers))
    }

    /// Opens the services.
    fn connect(&mut self, tools: &[ToolParams], context: &Context) -> Result<Vec<ToolOffer>, OperatorError> {
        let layout = if self.live.is_some() { Layout::Passages } else { Layout::Numbered };
        let (mut offers, mut place) = (Vec::new(), 0);
        for tool in tools {
            offers.extend(tool.offer());
            match tool {
                // It calls no service: it has no place in the declaration.
                ToolParams::Open(_) => continue,
                ToolParams::Http(http) => {
                    self.http.insert(http.name.clone(), HttpTool::open(http, place, layout, context)?);
                }
                ToolParams::Python(python) => {
                    let tool = FunctionTool::open(python, place, layout, &self.fault, context)?;
                    self.functions.insert(python.name.clone(), tool);
                }
                ToolParams::Prompt(prompt) => {
                    self.prompts.insert(prompt.name.clone(), PromptTool::open(prompt, place, context)?);
                }
                ToolParams::Mcp(mcp) => {
                    let server = McpTool::open(mcp, place, context)?;
                    // The prompt lists these tools: they must be known before the first row.
                    let found = context.block_on(server.offers(context))?;
                    self.mcp.push((found.iter().map(|offer| offer.name.clone()).collect(), server));
                    offers.extend(found);
                }
            }
            place += 1;
        }
        Ok(offers)
    }

    /// Searches; the reranker orders what was found.
    async fn search(&self, query: &str, moment: Moment<'_>) -> Result<Called, RowFailure> {
        let called = match (&self.search, &self.live, &self.recorded) {
            (Some(search), _, _) => search.search(query.to_owned()).await?.into(),
            // The record has what the model was shown: it is ordered already.
            (None, Some(_), Some(recorded)) => return Ok(recorded.search(query, moment.messages)),
            (None, Some(live), None) => self.search_live(live, query, moment).await?,
            (None, None, _) => nothing_to_search().into(),
        };
        match (&self.reranker, &called.result) {
            (Some(reranker), Ok(found)) if !found.is_empty() => {
                // The search was paid for, whatever the reranker does.
                let mut ordered = reranker.call(query, found, moment.context).await.map_err(|mut failure| {
                    failure.usage += called.usage;
                    failure
                })?;
                ordered.usage += called.usage;
                Ok(ordered)
            }
            _ => Ok(called),
        }
    }

    /// Asks the tool. Its failures are those of the search: the model knows no tool by name.
    async fn search_live(&self, live: &Live, query: &str, moment: Moment<'_>) -> Result<Called, RowFailure> {
        let Some((name, arguments)) = live.tool.as_ref().and_then(|tool| Some((&tool.name, tool.asking(query)?)))
        else {
            return Ok(nothing_to_search().into());
        };
        let call = OfferedCall { id: SEARCH, tool: name, arguments: &arguments };
        let mut called = self.offered(call, moment).await?;
        match &mut called.result {
            Ok(found) => found.truncate(live.top_k),
            Err(error) => {
                if let Some(reason) = error.strip_prefix(failure_of(name, "").as_str()) {
                    *error = failure_of(SEARCH, reason);
                }
            }
        }
        Ok(called)
    }

    async fn run(&self, arguments: &Value, moment: Moment<'_>) -> Result<Called, RowFailure> {
        match OfferedCall::of(arguments) {
            Some(call) => self.offered(call, moment).await,
            None => self.search(query(arguments), moment).await,
        }
    }

    async fn offered(&self, call: OfferedCall<'_>, moment: Moment<'_>) -> Result<Called, RowFailure> {
        // Before the record: documents are an input of the node, and no service is called.
        if let Some(opener) = self.opener.as_ref().filter(|opener| opener.name() == call.tool) {
            let opened = opener.call(call, moment.messages);
            return opened.map(Called::from).map_err(|error| RowFailure::new(FailureKind::Data, error.message));
        }
        // The record answers for every service: none is called.
        if let Some(recorded) = &self.recorded {
            return Ok(recorded.call(call, moment.messages));
        }
        if let Some(http) = self.http.get(call.tool) {
            return http.call(call, moment.context).await;
        }
        if let Some(function) = self.functions.get(call.tool) {
            return function.call(call, moment.context).await;
        }
        if let Some(prompt) = self.prompts.get(call.tool) {
            return prompt.call(call, moment.context).await;
        }
        match self.mcp.iter().find(|(names, _)| names.contains(call.tool)) {
            Some((_, server)) => server.call(call, moment.context).await,
            None => Ok(Called::from(ToolResult::Err(format!("there is no tool `{}`", call.tool)))),
        }
    }
}

impl Tool for Toolbox {
    fn call<'a>(&'a self, arguments: Value, moment: Moment<'a>) -> BoxFuture<'a, Result<Called, RowFailure>> {
        async move { self.run(&arguments, moment).await }.boxed()
    }

    fn fault(&self) -> Option<OperatorError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns what the models of recorded rollouts were offered beside the search tool `search`: what the params say, and
/// the tools of MCP servers, which only the record knows.
pub fn recorded_offers(tools: &[ToolParams], recorded: &[ToolOffer], search: &str) -> Vec<ToolOffer> {
    let mut declared: Vec<ToolOffer> = tools.iter().filter_map(ToolParams::offer).collect();
    if !tools.iter().any(|tool| matches!(tool, ToolParams::Mcp(_))) {
        return declared;
    }
    // In the order of the record: the prompt of a replay must list them as the model read them.
    let mut offers = Vec::new();
    for offer in recorded.iter().filter(|offer| offer.name != search) {
        offers.push(declared.iter().find(|own| own.name == offer.name).unwrap_or(offer).clone());
    }
    declared.retain(|offer| recorded.iter().all(|known| known.name != offer.name));
    offers.extend(declared);
    offers
}

/// Returns the only tool that takes a query.
fn searching(offers: Vec<ToolOffer>) -> Result<ToolOffer, OperatorError> {
    let names = offers.iter().map(|offer| format!("`{}`", offer.name)).collect::<Vec<_>>().join(", ");
    let mut able: Vec<ToolOffer> = offers.into_iter().filter(ToolOffer::takes_query).collect();
    match (able.pop(), able.is_empty()) {
        (Some(only), true) => Ok(only),
        (found, _) => {
            let count = if found.is_none() { "none" } else { "more than one" };
            let message = format!("of the tools {names}, {count} takes a query, and the protocol has one search");
            let help = "choose one with `tools` of the MCP server; its query is the argument `query` or `q`, or its only \
                required text";
            Err(OperatorError::pipeline(message).with_help(help))
        }
    }
}

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
use super::prompt_tool::PromptTool;
use super::recorded::Recorded;
use super::rerank::Reranker;
use super::rerank_params::RerankParams;
use crate::protocol::{OfferedCall, ToolOffer};
use crate::tool::{Called, Moment, Searcher, Tool, ToolResult, nothing_to_search, query};

/// The tools.
pub struct Toolbox {
    search: Option<Searcher>,
    opener: Option<Opener>,
    recorded: Option<Recorded>,
    http: BTreeMap<String, HttpTool>,
    functions: BTreeMap<String, FunctionTool>,
    prompts: BTreeMap<String, PromptTool>,
    reranker: Option<Reranker>,
    fault: Fault,
    mcp: Vec<(BTreeSet<String>, McpTool)>,
}

/// The search tool of a rollout.
pub struct SearchTool<'a> {
    pub searcher: Option<Searcher>,
    pub name: &'a str,
    /// The step between it and what the model sees.
    pub rerank: Option<&'a RerankParams>,
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
        let (SearchTool { searcher, name, rerank }, ToolInputs { opener, recorded }) = (search, inputs);
        let fault = Fault::default();
        // Its place in the declaration is behind those of the tools.
        let place = tools.iter().filter_map(ToolParams::service).count();
        let reranker = rerank.map(|rerank| Reranker::open(rerank, (place, name), &fault, context)).transpose()?;
        let (http, functions, prompts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (search, mcp) = (searcher, Vec::new());
        let mut toolbox = Self { search, opener, recorded, http, functions, prompts, reranker, fault, mcp };
        let offers = match &toolbox.recorded {
            Some(recorded) => recorded_offers(tools, recorded.offers(), name),
            None => toolbox.connect(tools, context)?,
        };
        distinct(&offers, toolbox.search.as_ref().map(|_| name))?;
        Ok((toolbox, offers))
    }

    /// Opens the services.
    fn connect(&mut self, tools: &[ToolParams], context: &Context) -> Result<Vec<ToolOffer>, OperatorError> {
        let (mut offers, mut place) = (Vec::new(), 0);
        for tool in tools {
            offers.extend(tool.offer());
            match tool {
                ToolParams::Open(_) => continue,
                ToolParams::Http(http) => {
                    self.http.insert(http.name.clone(), HttpTool::open(http, place, context)?);
                }
                ToolParams::Python(python) => {
                    let tool = FunctionTool::open(python, place, &self.fault, context)?;
                    self.functions.insert(python.name.clone(), tool);
                }
                ToolParams::Prompt(prompt) => {
                    self.prompts.insert(prompt.name.clone(), PromptTool::open(prompt, place, context)?);
                }
                ToolParams::Mcp(mcp) => {
                    let server = McpTool::open(mcp, place, context)?;
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
    async fn search(&self, query: &str, context: &Context) -> Result<Called, RowFailure> {
        let Some(search) = &self.search else { return Ok(nothing_to_search().into()) };
        match (&self.reranker, search.search(query.to_owned()).await?) {
            (Some(reranker), Ok(found)) if !found.is_empty() => reranker.call(query, &found, context).await,
            (_, found) => Ok(found.into()),
        }
    }

    async fn run(&self, arguments: &Value, moment: Moment<'_>) -> Result<Called, RowFailure> {
        let Some(call) = OfferedCall::of(arguments) else {
            return self.search(query(arguments), moment.context).await;
        };
        if let Some(opener) = self.opener.as_ref().filter(|opener| opener.name() == call.tool) {
            let opened = opener.call(call, moment.messages);
            return opened.map(Called::from).map_err(|error| RowFailure::new(FailureKind::Data, error.message));
        }
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
    let declared = || tools.iter().filter_map(ToolParams::offer);
    if !tools.iter().any(|tool| matches!(tool, ToolParams::Mcp(_))) {
        return declared().collect();
    }
    let of_params = |name: &str| declared().find(|offer| offer.name == name);
    let others = recorded.iter().filter(|offer| offer.name != search);
    let mut offers: Vec<_> = others.map(|offer| of_params(&offer.name).unwrap_or_else(|| offer.clone())).collect();
    let missing = declared().filter(|offer| recorded.iter().all(|known| known.name != offer.name));
    offers.extend(missing);
    offers
}

fn distinct(offers: &[ToolOffer], search: Option<&str>) -> Result<(), OperatorError> {
    let mut names: BTreeSet<&str> = search.into_iter().collect();
    match offers.iter().find(|offer| !names.insert(&offer.name)) {
        None => Ok(()),
        Some(offer) => {
            let error = OperatorError::pipeline(format!("two tools have the name `{}`", offer.name));
            Err(error.with_help("give the tools of an MCP server a `prefix`, or choose some with `tools`"))
        }
    }
}

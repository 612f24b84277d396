//! The tools of `rollout` beside its search tool: inputs, issues, opening, the count of failures.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::RecordBatch;
use searchmill_agent::outside::{Opener, RecordedCall, RerankParams, ToolParams, calls, searches};
use searchmill_agent::protocol::Protocol;
use searchmill_agent::tool::SEARCH;
use searchmill_data::python::PythonFunction;
use searchmill_engine::operator::{
    Accept, Arity, Declaration, Inputs, OperatorError, ParamIssue, Ports, Repeatability, Source,
};
use searchmill_schemas::{RecordKind, Trajectory, from_batch};

use crate::shared::issues::refused;

/// The input whose rollouts answer in place of the services.
pub(super) const RECORDED: &str = "recorded";

/// Adds the inputs of the tools.
pub(super) fn with_ports(tools: &[ToolParams], mut ports: Ports) -> Ports {
    if tools.iter().any(is_open) {
        let documents = Accept::Rows(vec![RecordKind::Document, RecordKind::Chunk]);
        let about = "Tool `open` only: documents that it shows, or their chunks: sections then open alone. Held in \
            memory.";
        ports = ports.input_of("documents", documents, Arity::One, about);
    }
    if tools.iter().any(|tool| !is_open(tool)) {
        let recorded = Accept::Rows(vec![RecordKind::Trajectory]);
        let about = "Tools `http`, `mcp`, `python` and `prompt` only: rollouts whose tool calls answer those of the \
            services; none is called. A call that is not recorded is told as an error.";
        ports = ports.input_of(RECORDED, recorded, Arity::Optional, about);
    }
    ports
}

/// Declares the services. `search` is the name of the search tool; `live`: a tool answers the searches of a protocol in
/// which they are text.
pub(super) fn declared(
    tools: &[ToolParams],
    rerank: Option<&RerankParams>,
    search: &str,
    live: bool,
    declaration: Declaration,
) -> Declaration {
    let (checked, search, reranks) = (tools.to_vec(), search.to_owned(), rerank.is_some());
    let declaration = declaration.checks_inputs(move |inputs| {
        let has_index = inputs.contains(&"search");
        let both = "the index and the tool would both answer the searches: the protocol has one search";
        let help = "leave out `search` of `from`, or `tools`; `protocol: tool_call` offers both";
        let mut issues = refused(&[(live && has_index, "tools", both, help)]);
        let clash = checked.iter().position(|tool| tool.name() == Some(search.as_str()));
        if let Some(place) = clash.filter(|_| has_index && !live) {
            issues.push(twice(place, &checked[place]));
        }
        let none = "there is no search whose passages it could order";
        let lone = reranks && !has_index && !live;
        issues.extend(refused(&[(lone, "rerank", none, "add an index: `from: {search: NODE}`")]));
        issues
    });
    let services = tools.iter().filter_map(ToolParams::service);
    let services: Vec<_> = services.chain(rerank.and_then(RerankParams::service)).collect();
    // `open` shows an input of the node and calls no service.
    if services.is_empty() {
        return declaration;
    }
    // Before tools answered searches, `searchlm` had no search in such a node: the keys of its results must differ.
    let role = if live { "searches by " } else { "" };
    let identities: Vec<String> = services.iter().map(|service| format!("{role}{}", service.identity)).collect();
    let functions: Vec<PythonFunction> =
        tools.iter().filter_map(ToolParams::function).chain(rerank.and_then(RerankParams::function)).collect();
    let unseen: Vec<String> = functions.iter().map(PythonFunction::unseen).collect();
    let asks = !functions.is_empty();
    let declaration = functions.into_iter().fold(declaration, |declaration, function| {
        let (read, fetched) = (function.clone(), function);
        declaration.reads(move |directory| read.sources(directory)).fetches(move |context| fetched.fetch(context))
    });
    let (checked, ranks, read) = (tools.to_vec(), rerank.cloned(), tools.to_vec());
    declaration
        .checks_files(move |directory| file_issues(&checked, ranks.as_ref(), directory))
        .unseen((!unseen.is_empty()).then(|| unseen.join("; ")))
        // A live service may give another answer tomorrow.
        .repeatability(Repeatability::Not)
        .runs_programs(asks || tools.iter().any(ToolParams::is_program))
        .asks_programs(asks)
        .answered_by(RECORDED, "tools")
        .observes(services)
        .reads(move |directory| {
            let files = read.iter().flat_map(|tool| tool.files(directory));
            identities.iter().cloned().map(Source::Identity).chain(files).collect()
        })
}

/// Returns why files of Python functions cannot be called.
fn file_issues(tools: &[ToolParams], rerank: Option<&RerankParams>, directory: &Path) -> Vec<ParamIssue> {
    let of_tools = tools.iter().enumerate().filter_map(|(place, tool)| {
        let issue = tool.file_issue(directory)?;
        Some(ParamIssue { path: format!("tools.{place}.{}", issue.path), ..issue })
    });
    let of_rerank =
        rerank.and_then(|rerank| rerank.function()?.file_issue("rerank.python", rerank.python.as_ref()?, directory));
    of_tools.chain(of_rerank).collect()
}

fn is_open(tool: &ToolParams) -> bool {
    matches!(tool, ToolParams::Open(_))
}

/// Name of the tool's kind in the params.
fn kind(tool: &ToolParams) -> &'static str {
    match tool {
        ToolParams::Open(_) => "open",
        ToolParams::Python(_) => "python",
        ToolParams::Prompt(_) => "prompt",
        ToolParams::Http(_) => "http",
        ToolParams::Mcp(_) => "mcp",
    }
}

fn twice(place: usize, tool: &ToolParams) -> ParamIssue {
    let message = format!("two tools have the name `{}`", tool.name().unwrap_or_default());
    ParamIssue::new(format!("tools.{place}.{}.name", kind(tool)), message)
}

/// Returns what keeps tools from answering the searches of a protocol in which they are text.
fn live_issues(tools: &[ToolParams]) -> Vec<ParamIssue> {
    if tools.len() > 1 {
        let issue = ParamIssue::new("tools.1", "the protocol has one search, so there can be one tool");
        return vec![issue.with_help("leave out the others; `protocol: tool_call` offers several")];
    }
    let mut issues = Vec::new();
    for tool in tools {
        if is_open(tool) {
            let message = "opens what a call names, and the protocol has searches alone; use `protocol: tool_call`";
            issues.push(ParamIssue::new("tools.0.open", message));
        } else if tool.offer().is_some_and(|offer| !offer.takes_query()) {
            let message = "must have an argument for the query of a search";
            let issue = ParamIssue::new(format!("tools.0.{}.parameters", kind(tool)), message);
            issues.push(issue.with_help("name it `query` or `q`, with `type: string`"));
        }
    }
    issues
}

/// Returns issues of the tools; `live`: one answers the searches of a protocol in which they are text.
pub(super) fn issues(tools: &[ToolParams], live: bool) -> Vec<ParamIssue> {
    let mut issues = if live { live_issues(tools) } else { Vec::new() };
    let mut names = BTreeSet::new();
    for (place, tool) in tools.iter().enumerate() {
        for issue in tool.check() {
            issues.push(ParamIssue { path: format!("tools.{place}.{}", issue.path), ..issue });
        }
        if tool.name().is_some_and(|name| !names.insert(name)) {
            issues.push(twice(place, tool));
        }
    }
    issues
}

/// Returns issues of the reranker; `cuts`: with a limit for what the model sees of a search.
pub(super) fn rerank_issues(rerank: Option<&RerankParams>, cuts: bool) -> Vec<ParamIssue> {
    let Some(rerank) = rerank else { return Vec::new() };
    let mut issues = Vec::new();
    for issue in rerank.check() {
        // An issue of all params has no path of its own.
        let path = format!("rerank.{}", issue.path).trim_end_matches('.').to_owned();
        issues.push(ParamIssue { path, ..issue });
    }
    // An audit takes the order of the passages from the record, which lacks those that were cut off.
    let (no_place, help) = ("has no place beside `rerank`", "limit the passages with `rerank.keep`");
    issues.extend(refused(&[(cuts, "max_observation_tokens", no_place, help)]));
    issues
}

/// Opens the tool `open`, if it is among the tools.
pub(super) fn opener(tools: &[ToolParams], inputs: &Inputs) -> Result<Option<Opener>, OperatorError> {
    let open = tools.iter().find_map(|tool| if let ToolParams::Open(open) = tool { Some(open) } else { None });
    open.map(|open| Opener::open(open, inputs.rows("documents")?)).transpose()
}

/// The calls of tools in the rollouts of a node, by tool.
pub(super) struct Calls {
    tallies: Mutex<BTreeMap<String, Tally>>,
    /// The protocol, if its searches are text that a tool answers.
    in_text: Option<Arc<dyn Protocol>>,
}

#[derive(Default)]
struct Tally {
    calls: u64,
    failed: u64,
    /// Why they failed, and how many did for that.
    reasons: BTreeMap<String, u64>,
}

/// Reasons of a warning, the most frequent ones.
const REASONS: usize = 3;
/// Characters of a reason.
const REASON: usize = 240;
/// Different reasons that are counted (at most): those of a tool may hold what it was asked.
const DIFFERENT: usize = 1000;

impl Calls {
    /// Counts the searches of a protocol in which they are text, or the calls of a conversation.
    pub(super) fn of(in_text: Option<Arc<dyn Protocol>>) -> Self {
        Self { tallies: Mutex::default(), in_text }
    }

    /// Counts the calls of a rollout, computed or remembered.
    pub(super) fn count(&self, rollout: &RecordBatch) {
        let rollouts: Vec<Trajectory> = from_batch(rollout).unwrap_or_default();
        for rollout in &rollouts {
            match &self.in_text {
                Some(protocol) => {
                    for search in searches(protocol.as_ref(), &rollout.messages) {
                        if search.is_of_service() {
                            self.add(SEARCH, search.failure());
                        }
                    }
                }
                None => {
                    for call in calls(&rollout.messages).filter(RecordedCall::is_of_service) {
                        self.add(call.tool, call.failure());
                    }
                }
            }
        }
    }

    fn add(&self, tool: &str, failure: Option<&str>) {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.entry(tool.to_owned()).or_default();
        tally.calls += 1;
        let Some(failure) = failure else { return };
        tally.failed += 1;
        let reason: String = failure.chars().take(REASON).collect();
        if tally.reasons.len() < DIFFERENT || tally.reasons.contains_key(&reason) {
            *tally.reasons.entry(reason).or_default() += 1;
        }
    }

    /// Returns a warning for each tool that failed: its rollouts are rows like others.
    pub(super) fn warnings(&self) -> Vec<String> {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let mut warnings = Vec::new();
        for (tool, Tally { calls, failed, reasons }) in tallies.iter().filter(|(_, tally)| tally.failed > 0) {
            let frequent = most_frequent(reasons);
            warnings.push(format!("warning: {failed} of {calls} calls of `{tool}` failed: {frequent}"));
        }
        warnings
    }
}

/// Formats the most frequent reasons with their numbers; the number of a single one is left out.
fn most_frequent(reasons: &BTreeMap<String, u64>) -> String {
    let mut frequent: Vec<(&String, &u64)> = reasons.iter().collect();
    // Stable: equally frequent reasons stay in the order of their texts.
    frequent.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    if let [(only, _)] = frequent[..] {
        return only.clone();
    }
    let shown = frequent.iter().take(REASONS).map(|(reason, count)| format!("{count} × {reason}"));
    let others = frequent.len().saturating_sub(REASONS);
    let rest = if others > 0 { format!("; and {others} other reasons") } else { String::new() };
    shown.collect::<Vec<_>>().join("; ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_most_frequent_reasons_are_told() {
        let counted = |reasons: &[(&str, u64)]| {
            most_frequent(&reasons.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect())
        };
        assert_eq!(counted(&[("late", 7)]), "late");
        assert_eq!(counted(&[("b", 1), ("a", 1)]), "1 × a; 1 × b");
        let many = counted(&[("a", 1), ("b", 9), ("c", 3), ("d", 3), ("e", 2)]);
        assert_eq!(many, "9 × b; 3 × c; 3 × d; and 2 other reasons");
    }
}

//! `rollout`: a policy answers questions with a search tool; the whole conversation is recorded.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_agent::episode::{Limits, Rules};
use searchmill_agent::observation_limit::{ObservationLimit, Starts};
use searchmill_agent::outside::{
    Recorded, RerankParams, SearchTool, TOOL_NAME, ToolInputs, ToolParams, Toolbox, is_tool_name, offered,
    recorded_offers,
};
use searchmill_agent::policy::{Api, PolicyParams};
use searchmill_agent::protocol::{ProtocolParams, ProtocolSettings, QUESTION, ToolDefinition, ToolOffer};
use searchmill_agent::recheck::{RolloutRecheck, RulesOf};
use searchmill_agent::rollout::{Agent, Rolled};
use searchmill_agent::tokens::RewrittenHistory;
use searchmill_agent::tool::Searcher;
use searchmill_engine::operator::{
    Accept, Arity, AsyncMapKernel, Context, Declaration, Example, FailureKind, Inputs, Kernel, Operator, OperatorError,
    ParamIssue, Ports, Recheck, RowFailure, RowOutput, RowShape, Tables, TreeKind, allow_names, named_or_tagged,
};
use searchmill_models::inference::PlainTokenizer;
use searchmill_retrieval::{Search, SearchSettings};
use searchmill_schemas::{CutObservations, Question, RecordKind, from_batch, to_batch};
use searchmill_text::chunking::Memo;
use serde::{Deserialize, Serialize};

mod calls_in_text;
mod columns;
mod endings;
pub(crate) mod recorded;
mod tools;

pub use recorded::Record;

use calls_in_text::CallsInText;
use columns::{
    More, labelled, passing_rollouts, predicate_columns, rollout_columns, said, unreserved, with_extra, with_more,
};

use super::shared::columns::carried_fields;
use super::shared::issues::{refused, unmet};
use super::shared::until::Passing;
pub use super::shared::until::Until;
pub use crate::chunk::{Count, TokenizerPath};

/// Lets a policy answer questions with a search tool.
pub struct Rollout;

/// Parameters of `rollout`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct RolloutParams {
    /// The policy: `{endpoint: {base_url: …, model: …}}`, `{model: {…}}`, `{evidence: {…}}`, or just `model` or
    /// `evidence`.
    pub policy: PolicyParams,
    /// Format of search calls and of the answer: `tool_call`, or a protocol in which the whole rollout is one text:
    /// `research`, `r1-searcher`, `search-r1`, `tool-tags`, or `{custom: {…}}`; or a chat in turns in which the model also
    /// chooses among the passages of a search: `searchlm`.
    #[serde(default, deserialize_with = "named_or_tagged")]
    #[schemars(transform = allow_names)]
    pub protocol: ProtocolParams,
    /// Number of rollouts per question.
    #[serde(default = "one")]
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub samples: u32,
    /// Draws rollouts until enough of them match: `{rows: 5000, where: "f1 >= 0.8", per_question: 2, at_most: 20000}`.
    /// `samples` then is the maximum per question. `where` may use the columns of a trajectory, its answer metrics `em`,
    /// `f1`, `acc`, `precision` and `recall` against the golden answers, and `grounded`. No rollout is paid for again
    /// if this changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-searchmill-row-key" = false))]
    pub until: Option<Until>,
    /// Maximum number of model calls per rollout.
    #[serde(default = "ten")]
    pub max_turns: u32,
    /// Maximum number of searches per rollout, calls of other tools included; further ones return an error that names
    /// the limit.
    #[serde(default)]
    pub max_searches: Option<u32>,
    /// Before the last call that a limit allows, send a message that asks the model to answer now, and offer it no
    /// tools. Otherwise the rollout ends at the limit.
    #[serde(default = "yes")]
    pub ask_for_answer: bool,
    /// Maximum number of tokens of a rollout after its prompt, search results included, as the policy counts them
    /// (`null`: no limit). A rollout that reached it ends before its next turn, with the finish reason
    /// `max_total_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<u64>,
    /// Maximum number of tokens of one search result as the model reads it, its tags included (`null`: no limit). A longer
    /// one is cut at its end: its closing tags stay, and passages of which nothing is left do not count as shown. With a
    /// limit, trajectories have the column `cut_observations`: `message` (position in `messages`) and `tokens` (length
    /// before the cut) of each result that was cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_observation_tokens: Option<u32>,
    /// Unit of `max_observation_tokens`: `{tokenizer: …}`, `words` or `characters`. Default: tokens of the policy's model;
    /// policies other than `model` must name the unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// What a message with an invalid action does: `tell` shows the model an error, and it goes on; `end` ends the
    /// rollout with the finish reason `invalid_action`. Default: a call with a mistake is told; a message with neither
    /// a search nor an answer ends the rollout, but is told in the protocol `search-r1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invalid_action: Option<InvalidAction>,
    /// First message of every conversation, instead of searchmill's system prompt.
    #[serde(default)]
    pub system_prompt: Option<String>,
    /// Template of the message with the question, instead of the protocol's own; `{question}` is replaced by the
    /// question. With `api: completions`, the whole prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_prompt: Option<String>,
    /// Name of the search tool in the model's prompt.
    #[serde(default = "search")]
    pub tool_name: String,
    /// Definition of the search tool, for `protocol: tool_call`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<ToolDefinition>,
    /// Tools beside the search tool: `{open: {…}}` (documents that a search showed),
    /// `{http: {…}}` (a search or fetch service), `{mcp: {…}}` (the tools of an MCP server), `{python: {…}}` (a function of
    /// yours), `{prompt: {…}}` (another language model). `max_searches` then limits the calls of all tools together. An answer of a service is paid once: equal calls of other rollouts, nodes and
    /// models get the remembered answer, until `--force`. A failure is told to the model as an error, and counted in
    /// the column `tool_errors`.
    ///
    /// In every other protocol, one tool takes the place of the index. It must take a query: the argument `query` or `q`, or
    /// its only required text. The protocol says how a query is written and how passages are shown. The model sees the first
    /// `search.top_k` results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolParams>,
    /// A step between a search and what the model sees: `{python: "rerank.py:rerank", keep: 5}`, a function, or `{prompt:
    /// {…}, keep: 5}`, another language model, orders the `top_k` passages anew. A reranker that fails is an error that the model reads, counted in the column `tool_errors`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerank: Option<RerankParams>,
    /// Search settings: `{top_k: …, pool: …, fusion: …}`.
    #[serde(default)]
    pub search: SearchSettings,
    /// Additional columns to record (default: none).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// With `record: tokens`: what to do if earlier turns reach the model in other tokens than those it read or wrote.
    /// Causes: a chat template that leaves out old thoughts (Qwen3), a server that tokenises its own text again, an
    /// end-of-turn token before a text goes on. `fork` (default) starts a new branch; `reject` rejects the row. The
    /// run's summary counts the branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rewritten_history: Option<RewrittenHistory>,
}

/// What an invalid action does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum InvalidAction {
    /// The model reads an error and goes on.
    Tell,
    /// The rollout ends.
    End,
}

fn one() -> u32 {
    1
}

fn ten() -> u32 {
    10
}

fn yes() -> bool {
    true
}

fn search() -> String {
    "search".to_owned()
}

impl Operator for Rollout {
    type Params = RolloutParams;
    const NAME: &'static str = "rollout";
    const VERSION: u32 = 9;
    const ABOUT: &'static str = "Lets a policy (a model behind an endpoint, a model run in this process, or a teacher that knows the evidence) answer questions with a search tool.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Four rollouts per question with a served model, over two indexes",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: [bm25, dense]}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-30b-a3b-instruct-2507, api_key: \"${secret:OPENAI_API_KEY}\", prices: {prompt: 0.2, completion: 0.6}, limits: {requests_per_minute: 500}}}\n    samples: 4\n    max_turns: 10\n    max_searches: 6\n  resources: {concurrency: 64}\n",
        },
        Example {
            title: "Warm-up data from a teacher that knows the evidence",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with: {policy: evidence, samples: 2, max_total_tokens: 8192, invalid_action: tell}\n",
        },
        Example {
            title: "A trained student, run in this process",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: test, search: bm25, model: student}\n  with: {policy: {model: {temperature: 0, max_tokens: 256}}}\n",
        },
        Example {
            title: "A base model in Search-R1's format, as plain text",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with: {protocol: search-r1, policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen2.5-3b, api: completions}}, search: {top_k: 3}, max_turns: 5, max_total_tokens: 4096, invalid_action: end}\n",
        },
        Example {
            title: "SearchLM's exploration: the model chooses among 20 passages of each search",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25, model: warm}\n  with: {protocol: searchlm, policy: {model: {temperature: 0.8, top_p: 0.95, max_tokens: 256}}, search: {top_k: 20}, samples: 8, max_turns: 9}\n",
        },
        Example {
            title: "SearchLM's branch v1: the first three passages without a choice; and its reading of identifiers",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with: {protocol: {searchlm: {ranking: false, most: 3, identifiers: published}}, policy: evidence, search: {top_k: 10}}\n",
        },
        Example {
            title: "DeepSearch-RL's tool definition, and a prompt of your own",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with:\n    policy: evidence\n    tool: {name: retrieve, description: Retrieves chunks., parameters: {type: object, properties: {query: {type: string}, with_meta: {type: boolean}}, required: [query]}}\n    user_prompt: \"Question: {question}\"\n",
        },
        Example {
            title: "Tokens and their log-probabilities, for reinforcement learning",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25, model: student}\n  with: {policy: {model: {temperature: 1, max_tokens: 256}}, samples: 8, max_observation_tokens: 500, record: tokens, rewritten_history: reject}\n",
        },
        Example {
            title: "The same from a server, started with `--logprobs-mode processed_logprobs`",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with: {policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b, temperature: 1, logprobs: processed}}, max_observation_tokens: 400, count: words, record: tokens}\n",
        },
        Example {
            title: "Live web search, a fetch service and documents to open, beside the index",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25, documents: corpus}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-30b-a3b-instruct-2507}}\n    max_searches: 12\n    tools:\n      - open: {page_chars: 6000}\n      - http: {name: web_search, description: Searches the web., url: \"https://google.serper.dev/search\", method: POST, body: {q: \"{query}\", num: 5}, secret_headers: {X-API-KEY: \"${secret:SERPER_API_KEY}\"}, parameters: {type: object, properties: {query: {type: string}}, required: [query]}, results: {list: /organic, id: /link, title: /title, text: /snippet}, prices: {call: 0.001}}\n      - http: {name: read_page, description: Reads a web page as text., url: \"https://r.jina.ai/{+url}\", parameters: {type: object, properties: {url: {type: string}}, required: [url]}, max_chars: 8000}\n",
        },
        Example {
            title: "The tools of MCP servers, over HTTP and as a program",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-30b-a3b-instruct-2507}}\n    tools:\n      - mcp: {url: \"http://127.0.0.1:8765/mcp\", tools: [search], prefix: corpus_}\n      - mcp: {command: [uvx, mcp-server-fetch], environment: [HTTPS_PROXY], timeout_seconds: 60}\n  resources: {concurrency: 16}\n",
        },
        Example {
            title: "Until 5,000 answers are right, at most two of a question",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b, temperature: 1}}\n    samples: 8\n    until: {rows: 5000, where: \"f1 >= 0.8\", per_question: 2, at_most: 20000}\n",
        },
        Example {
            title: "A reranker and a tool in Python",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b}}\n    search: {top_k: 20}\n    rerank: {python: \"steps/rerank.py:Reranker\", keep: 5, arguments: {batch: 16}, interpreter: [python3], files: [steps/weights.txt], environment: [HF_HOME], timeout_seconds: 60}\n    tools:\n      - python: {name: convert, description: Converts a length to metres., function: \"steps/units.py:convert\", parameters: {type: object, properties: {value: {type: number}, unit: {type: string}}, required: [value]}, arguments: {digits: 3}}\n",
        },
        Example {
            title: "A language model as reranker, and an expert that the model can ask",
            yaml: "rollouts:\n  op: rollout\n  from: {questions: train, search: bm25}\n  with:\n    policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b}}\n    search: {top_k: 20}\n    rerank:\n      keep: 5\n      prompt:\n        user: \"Order the passages by how well they answer: {{ query }}\\n{% for d in documents %}[{{ d.number }}] {{ d.text }}\\n{% endfor %}\"\n        policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b, temperature: 0}}\n    tools:\n      - prompt:\n          name: ask_expert\n          description: Asks an expert. It knows nothing of this conversation.\n          parameters: {type: object, properties: {question: {type: string}, context: {type: string}}, required: [question]}\n          system: Answer briefly, and say if you do not know.\n          user: \"{{ question }}{% if context %}\\n\\n{{ context }}{% endif %}\"\n          policy: {endpoint: {base_url: \"http://127.0.0.1:8001/v1\", model: qwen3-235b, temperature: 0, prices: {prompt: 0.2, completion: 0.6}}}\n          output: [{answer: text}, {sure: bool}]\n",
        },
        Example {
            title: "The no-retrieval baseline: the same model without a search tool",
            yaml: "closed_book:\n  op: rollout\n  from: {questions: validation}\n  with: {policy: {endpoint: {base_url: \"http://127.0.0.1:8000/v1\", model: qwen3-4b-instruct-2507, temperature: 0}}}\n",
        },
    ];

    fn declare(params: &RolloutParams) -> Declaration {
        let (rechecked, search) = (params.clone(), params.search.clone());
        let declaration = Declaration::external(tools::with_ports(&params.tools, ports(params)))
            .issues(issues(params))
            .checks_variants("search", move |kinds| search.check_kinds("search.", kinds))
            // For the model, or for the encoders of the indexes.
            .uses_gpus(true)
            .rows(RowShape {
                columns: columns(&params.policy),
                samples: params.samples,
                goal: params.until.as_ref().map(Until::goal),
            })
            .rechecks(move |inputs, context| recheck(&rechecked, inputs, context));
        let more = more_columns(params);
        let variant = recorded::variant(params.record.is_some(), &params.policy);
        let declaration = declaration.variant(variant).gives(move |inputs| {
            let mut columns = Tables::new();
            if let Some(questions) = inputs.get("questions")
                && let Ok(own) = rollout_columns(more)
            {
                let rollouts = carried_fields(&own, &unreserved(questions), RecordKind::Question);
                columns.insert("trajectories".to_owned(), rollouts);
            }
            columns
        });
        let mut declaration = params.policy.declared(declaration);
        if let Some(count) = &params.count {
            declaration = count.declared(declaration);
        }
        let checked = params.until.clone();
        let declaration = declaration.checks_columns(move |_| {
            checked.iter().filter_map(|until| until.column_issue(&predicate_columns(more).ok()?)).collect()
        });
        tools::declared(&params.tools, params.rerank.as_ref(), tool_name(params), is_live(params), declaration)
    }

    fn open(params: &RolloutParams, inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        let trees = inputs.trees("search");
        let searcher = match trees.as_slice() {
            [] => None,
            trees => Some(Searcher::new(Search::open(trees, &params.search, context)?, context.threads())),
        };
        let (searching, live) = (searcher.is_some(), is_live(params).then_some(params.search.top_k));
        let search = SearchTool { searcher, name: tool_name(params), rerank: params.rerank.as_ref(), live };
        // Their protocol offers no tools: it is the same whatever these are.
        let in_text = is_live(params).then(|| Arc::clone(&rules(params, true, &[], None).protocol));
        let recorded = inputs.rows_optional(tools::RECORDED);
        let recorded = recorded.map(|rows| Recorded::open(rows, in_text.as_deref())).transpose()?;
        let read = ToolInputs { opener: tools::opener(&params.tools, inputs)?, recorded };
        let (toolbox, offers) = Toolbox::open(&params.tools, read, search, context)?;
        let rules = rules(params, searching, &offers, observation_limit(params, inputs, context)?);
        if matches!(params.policy, PolicyParams::Evidence(_)) {
            log_if_nothing_is_known(inputs, context)?;
        }
        let record = params.record.map(|Record::Tokens| params.rewritten_history.unwrap_or_default());
        let policy = params.policy.drawn_by(context.seed());
        let policy = policy.open(Arc::clone(&rules.protocol), tool_name(params), record, inputs, context)?;
        let agent = Agent { rules, policy, tool: Box::new(toolbox) };
        let columns = columns(&params.policy);
        let in_text = is_live(params).then(|| Arc::clone(&agent.rules.protocol));
        let calls = counts_errors(params).then(|| tools::Calls::of(in_text));
        let more = more_columns(params);
        let passing = params.until.as_ref().map(|until| until.open(&predicate_columns(more)?)).transpose()?;
        // Only a server that is sent tool definitions can fail to parse their calls.
        let parses = matches!(params.policy, PolicyParams::Endpoint(_)) && agent.rules.protocol.tools() != "[]";
        let in_text = parses.then(CallsInText::default);
        let samples = params.samples;
        Ok(Kernel::AsyncMap(Arc::new(RolloutKernel { agent, samples, columns, calls, in_text, passing })))
    }
}

fn more_columns(params: &RolloutParams) -> More {
    let (cuts, tokens) = (params.max_observation_tokens.is_some(), params.record.is_some());
    More { tools: counts_errors(params), cuts, tokens }
}

/// Whether a tool answers the searches of a protocol in which they are text.
fn is_live(params: &RolloutParams) -> bool {
    params.protocol != ProtocolParams::ToolCall && !params.tools.is_empty()
}

/// Whether rollouts have the column `tool_errors`.
fn counts_errors(params: &RolloutParams) -> bool {
    !params.tools.is_empty() || params.rerank.is_some()
}

/// Opens the check of recorded rollouts: repeats searches, and derives prompts, questions and answers again.
fn recheck(params: &RolloutParams, inputs: &Inputs, context: &Context) -> Result<Box<dyn Recheck>, OperatorError> {
    let trees = inputs.trees("search");
    let search = if trees.is_empty() { None } else { Some(Search::open(&trees, &params.search, context)?) };
    let questions = inputs.rows("questions")?.read_all::<Question>()?;
    let questions = questions.into_iter().map(|question| (question.id.clone(), question)).collect();
    let observations = observation_limit(params, inputs, context)?;
    let rules = rules_of(params, search.is_some(), observations);
    let (opener, reranks) = (tools::opener(&params.tools, inputs)?, params.rerank.is_some());
    let live = is_live(params) && search.is_none();
    Ok(Box::new(RolloutRecheck { rules, opener, search, live, reranks, questions }))
}

fn ports(params: &RolloutParams) -> Ports {
    let about = "Indexes of the search tool; without an index, the policy has no tool (closed book).";
    let ports = Ports::new().rows_in("questions", &[RecordKind::Question], "Questions to answer.");
    let ports = ports.input_of("search", Accept::Tree(TreeKind::Index), Arity::AnyNumber, about);
    let ports = params.policy.with_port(ports);
    ports.rows_out("trajectories", RecordKind::Trajectory, "One row per question and sample.")
}

pub(crate) fn issues(params: &RolloutParams) -> Vec<ParamIssue> {
    let mut issues = params.policy.check();
    issues.extend(params.search.check("search."));
    let own_name = params.tool.as_ref().and_then(|tool| tool.name.as_deref());
    issues.extend(unmet(&[
        (params.max_total_tokens != Some(0), "max_total_tokens", "must be at least 1"),
        (params.samples > 0, "samples", "must be at least 1"),
        (params.max_turns > 0, "max_turns", "must be at least 1"),
        (is_tool_name(&params.tool_name), "tool_name", TOOL_NAME),
        (own_name.is_none_or(is_tool_name), "tool.name", TOOL_NAME),
    ]));
    issues.extend(protocol_issues(params));
    issues.extend(observation_issues(params));
    issues.extend(recorded::issues(params.record.is_some(), params.rewritten_history.is_some(), &params.policy));
    issues.extend(params.until.iter().flat_map(|until| until.issues(params.samples, true)));
    issues.extend(tools::rerank_issues(params.rerank.as_ref(), params.max_observation_tokens.is_some()));
    issues.extend(tools::issues(&params.tools, is_live(params)));
    issues
}

/// Returns issues of the protocol with its prompt, tool and policy.
fn protocol_issues(params: &RolloutParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    for (below, message) in params.protocol.check() {
        issues.push(ParamIssue::new(format!("protocol.{below}"), message));
    }
    if let Some(tool) = &params.tool {
        for (below, message) in tool.check() {
            issues.push(ParamIssue::new(format!("tool.{below}"), message));
        }
    }
    let offers = params.protocol == ProtocolParams::ToolCall;
    let no_tool = "only `protocol: tool_call` offers a tool; the others search by tags in the text";
    let uncut = params.max_observation_tokens.is_none() || !matches!(params.protocol, ProtocolParams::SearchLm(_));
    let asks = params.user_prompt.as_ref().is_none_or(|prompt| prompt.contains(QUESTION));
    issues.extend(unmet(&[
        (offers || params.tool.is_none(), "tool", no_tool),
        (offers || params.tool_name == search(), "tool_name", no_tool),
        (uncut, "max_observation_tokens", "the protocol `searchlm` shows the passages that the model chose"),
        (asks, "user_prompt", "must contain `{question}`"),
    ]));
    if params.policy.api() == Api::Completions {
        if !params.protocol.is_one_text() {
            let path = if matches!(params.policy, PolicyParams::Model(_)) { "model" } else { "endpoint" };
            let message = match params.protocol {
                ProtocolParams::ToolCall => "plain text has no tool calls",
                _ => "the protocol is a chat, and plain text has no turns",
            };
            let issue = ParamIssue::new(format!("policy.{path}.api"), message);
            issues.push(issue.with_help("write `api: chat`, or choose a protocol such as `search-r1`"));
        }
        let own = matches!(&params.protocol, ProtocolParams::Custom(format) if format.system.is_some());
        let no_system = "a plain-text prompt has no system message";
        let help = "write the whole prompt into `user_prompt`, or `prompt` of the protocol";
        issues.extend(refused(&[
            (params.system_prompt.is_some(), "system_prompt", no_system, help),
            (own, "protocol.custom.system", no_system, help),
        ]));
    }
    issues
}

/// Returns issues of `max_observation_tokens` and `count`.
fn observation_issues(params: &RolloutParams) -> Vec<ParamIssue> {
    let mut issues: Vec<_> = params.count.as_ref().and_then(Count::issues).into_iter().collect();
    match params.max_observation_tokens {
        Some(0) => issues.push(ParamIssue::new("max_observation_tokens", "must be at least 1")),
        Some(_) if params.count.is_none() && !matches!(params.policy, PolicyParams::Model(_)) => {
            let issue = ParamIssue::new("max_observation_tokens", "this policy's tokenizer is not known");
            issues.push(issue.with_help("name it: `count: {tokenizer: PATH}` (or `count: words`)"));
        }
        None if params.count.is_some() => {
            issues.push(ParamIssue::new("count", "has no effect without `max_observation_tokens`"));
        }
        _ => {}
    }
    issues
}

/// Opens `max_observation_tokens`: counted by `count`, else by the tokenizer of the policy's model.
pub(crate) fn observation_limit(
    params: &RolloutParams,
    inputs: &Inputs,
    context: &Context,
) -> Result<Option<Arc<ObservationLimit>>, OperatorError> {
    let Some(most) = params.max_observation_tokens else { return Ok(None) };
    let starts: Box<Starts> = match (&params.count, &params.policy) {
        (Some(count), _) => {
            let counter = count.counter(context)?;
            Box::new(move |text: &str| {
                let mut memo = Memo::default();
                let mut tally = counter.tally(&mut memo, text);
                let starts = tally.starts(text);
                tally.fault().map_or(Ok(starts), Err)
            })
        }
        (None, PolicyParams::Model(model)) => {
            let (folder, _) = model.source().folders(&inputs.trees("model"), context)?;
            let tokenizer = PlainTokenizer::open(&folder)?;
            Box::new(move |text: &str| tokenizer.starts(text))
        }
        (None, _) => return Err(OperatorError::pipeline("`max_observation_tokens` needs `count`")),
    };
    Ok(Some(Arc::new(ObservationLimit { most: most as usize, starts })))
}

/// Builds the rules from the params; `searching`: with the search tool; `offers`: with these tools beside it.
pub(crate) fn rules(
    params: &RolloutParams,
    searching: bool,
    offers: &[ToolOffer],
    observations: Option<Arc<ObservationLimit>>,
) -> Arc<Rules> {
    let protocol = params.protocol.open(&ProtocolSettings {
        tool: (searching || is_live(params)).then_some(tool_name(params)),
        definition: params.tool.as_ref(),
        offers,
        shows_ids: params.tools.iter().any(|tool| matches!(tool, ToolParams::Open(_))),
        system_prompt: params.system_prompt.as_deref(),
        user_prompt: params.user_prompt.as_deref(),
        max_searches: params.max_searches,
        plain: params.policy.api() == Api::Completions,
        tells_invalid: params.invalid_action == Some(InvalidAction::Tell),
    });
    let limits = Limits {
        max_turns: params.max_turns,
        max_searches: params.max_searches,
        ask_for_answer: params.ask_for_answer,
        max_total_tokens: params.max_total_tokens,
        ends_at_invalid: params.invalid_action == Some(InvalidAction::End),
    };
    Arc::new(Rules { protocol, limits, observations })
}

/// Returns the rules of recorded rollouts. The tools of MCP servers are known from the record alone.
fn rules_of(params: &RolloutParams, searching: bool, observations: Option<Arc<ObservationLimit>>) -> RulesOf {
    if !params.tools.iter().any(|tool| matches!(tool, ToolParams::Mcp(_))) {
        // The same for all rollouts: opened once.
        let offers = recorded_offers(&params.tools, &[], tool_name(params));
        let rules = rules(params, searching, &offers, observations);
        return Box::new(move |_| Arc::clone(&rules));
    }
    let params = params.clone();
    Box::new(move |recorded| {
        let offers = recorded_offers(&params.tools, &offered(recorded), tool_name(&params));
        rules(&params, searching, &offers, observations.clone())
    })
}

/// Name of the search tool.
pub(crate) fn tool_name(params: &RolloutParams) -> &str {
    params.tool.as_ref().and_then(|tool| tool.name.as_deref()).unwrap_or(&params.tool_name)
}

/// Warns if no question has evidence, so that the evidence teacher can only give up. Most likely a column was not
/// mapped.
fn log_if_nothing_is_known(inputs: &Inputs, context: &Context) -> Result<(), OperatorError> {
    let questions = inputs.rows("questions")?;
    for batch in questions.batches() {
        let batch = batch?;
        let evidence = batch.column_by_name("evidence").and_then(|column| column.as_list_opt::<i32>());
        if evidence.is_none_or(|evidence| !evidence.values().is_empty()) {
            return Ok(());
        }
    }
    if questions.rows > 0 {
        context.progress().log(
            "no question has `evidence`, so the teacher answers none of them: map a column to it in `read` \
             (`searchmill kinds question`)",
        );
    }
    Ok(())
}

/// Question columns that affect a rollout; the others are copied into it. An endpoint receives the question's text, a
/// local model seeds its sampling by id, and the teacher reads answers, evidence, and the search plan in the metadata.
fn columns(policy: &PolicyParams) -> Vec<String> {
    let names: &[&str] = match policy {
        PolicyParams::Endpoint(_) => &["question"],
        PolicyParams::Model(_) => &["id", "question"],
        PolicyParams::Evidence(_) => &["id", "question", "golden_answers", "question_type", "evidence"],
    };
    let plan = matches!(policy, PolicyParams::Evidence(params) if params.plan.is_some()).then_some("metadata");
    names.iter().copied().chain(plan).map(str::to_owned).collect()
}

struct RolloutKernel {
    agent: Agent,
    samples: u32,
    columns: Vec<String>,
    /// Calls of tools beside the search tool, if there are any. Rollouts then have the column `tool_errors`.
    calls: Option<tools::Calls>,
    /// Calls that the server left in the text, if it parses calls.
    in_text: Option<CallsInText>,
    /// The predicate of `until`.
    passing: Option<Passing>,
}

impl AsyncMapKernel for RolloutKernel {
    fn samples(&self) -> u32 {
        self.samples
    }

    fn reads(&self) -> Vec<String> {
        self.columns.clone()
    }

    fn label(&self, row: &RecordBatch, sample: u32, output: RowOutput) -> Option<RowOutput> {
        labelled(row, sample, output)
    }

    fn said(&self, rows: &RecordBatch) -> Result<Vec<(String, String)>, OperatorError> {
        said(rows)
    }

    fn figures(&self, output: &RowOutput) -> Vec<(&'static str, f64)> {
        // Called once for each row of the output.
        for (calls, (_, rollout)) in self.calls.iter().zip(&output.batches) {
            calls.count(rollout);
        }
        let endings = output.batches.iter().flat_map(|(_, rollout)| endings::figures(rollout));
        endings.chain(recorded::figures(output)).collect()
    }

    fn fault(&self) -> Option<OperatorError> {
        self.agent.tool.fault()
    }

    fn counts(&self, output: &RowOutput) -> Result<u64, OperatorError> {
        self.passing.as_ref().map_or(Ok(0), |passing| passing_rollouts(passing, output))
    }

    fn summary(&self, sums: &BTreeMap<&'static str, f64>) -> String {
        let mut lines = Vec::new();
        if let Some(calls) = &self.calls {
            lines.extend(calls.warnings());
        }
        lines.extend(self.in_text.as_ref().and_then(CallsInText::warning));
        lines.extend(endings::hints(sums));
        lines.extend(recorded::summary(sums));
        lines.join("\n")
    }

    fn run<'a>(
        &'a self,
        row: &'a RecordBatch,
        sample: u32,
        context: &'a Context,
    ) -> BoxFuture<'a, Result<RowOutput, RowFailure>> {
        async move {
            let mut questions = from_batch::<Question>(row).map_err(|error| unusable(error.0))?;
            let Some(question) = questions.pop() else { return Err(unusable("there is no question in the row")) };
            // No call is paid for a question without text.
            if question.question.trim().is_empty() {
                return Err(unusable("the question is empty"));
            }
            let Rolled { trajectory, tokens, cuts, usage, tool_errors } =
                self.agent.answer(question, sample, context).await?;
            if let Some(in_text) = &self.in_text {
                in_text.count(&trajectory, context);
            }
            let batch = to_batch(&[trajectory]).map_err(|error| unusable(error.0))?;
            let errors = self.calls.is_some().then(|| vec![i32::try_from(tool_errors).unwrap_or(i32::MAX)]);
            let cuts = cuts.map(|cut_observations| vec![CutObservations { cut_observations }]);
            let batch = with_more(batch, errors, cuts, tokens.map(|tokens| vec![tokens]))
                .and_then(|batch| with_extra(&batch, row));
            let batch = batch.map_err(|error| unusable(error.message))?;
            Ok(RowOutput { batches: vec![("trajectories".to_owned(), batch)], usage })
        }
        .boxed()
    }
}

fn unusable(message: impl Into<String>) -> RowFailure {
    RowFailure::new(FailureKind::Data, message)
}

#[cfg(test)]
mod tests;

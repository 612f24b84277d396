//! Arguments of `serve`.

use std::path::PathBuf;

use clap::{Args as Arguments, Subcommand, ValueEnum};

#[derive(Arguments)]
pub(crate) struct ServeArgs {
    #[command(subcommand)]
    pub(crate) what: ServeWhat,
}

#[derive(Subcommand)]
pub(crate) enum ServeWhat {
    /// Serve a model over an OpenAI-compatible API: `/v1/chat/completions`, `/v1/completions` (both with streaming),
    /// `/v1/models`.
    ///
    /// On a loopback address, only requests addressed to this machine are accepted; on any other address, a token is
    /// required. Use a proxy for TLS.
    Model(ServeModelArgs),
    /// Serve search indexes with the retrieval APIs of ReSearch, FlashRAG, Search-R1, verl, R1-Searcher and ColBERT, over
    /// MCP, and as an environment for OpenEnv and NeMo Gym.
    ///
    /// The results equal those of `retrieve` with the same indexes, `top_k`, `pool`, `fusion` and `candidates`. On a
    /// loopback address, only requests addressed to this machine are accepted; on any other address, a token is
    /// required. `GET /` lists the routes. SIGHUP and `POST /reload` open the indexes again, for example after a run.
    Env(Box<ServeEnvArgs>),
}

/// Where a server listens, and who is let in.
#[derive(Arguments)]
pub(crate) struct EntranceArgs {
    /// Address to listen on; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub(crate) listen: std::net::SocketAddr,
    /// Token required in requests (`Authorization: Bearer TOKEN`), like an API key; prefer the environment variable.
    #[arg(long, env = "SEARCHMILL_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
}

/// How several indexes are searched as one.
#[derive(Arguments)]
pub(crate) struct FusionArgs {
    /// Number of chunks to take from each index before fusion. No effect with a single index.
    #[arg(long, value_name = "CHUNKS", default_value_t = searchmill_retrieval::default_pool())]
    pub(crate) pool: usize,
    /// How to fuse the rankings of several indexes, as in `retrieve`: `rrf`, `weighted`, `concat`, `none`, or a map with settings
    /// such as `{weighted: {weights: [0.3, 0.7]}}`.
    #[arg(long, default_value = "rrf")]
    pub(crate) fusion: String,
    /// Number of chunks from each other index that a `late` index ranks, as in `retrieve` (0: it compares the query with
    /// every chunk).
    #[arg(long, value_name = "CHUNKS", default_value_t = 0)]
    pub(crate) candidates: usize,
}

#[derive(Arguments)]
pub(crate) struct ServeEnvArgs {
    /// Folder of an index, or a node (`NODE`, `NODE.PORT`), pin or artifact in the store. Several are fused; their order
    /// breaks ties.
    #[arg(value_name = "INDEX", required = true)]
    pub(crate) indexes: Vec<String>,
    #[command(flatten)]
    pub(crate) entrance: EntranceArgs,
    /// Documents per query, unless the request sets it (default: as in the original servers, 3 for `/retrieve` and
    /// `/queries`, 10 for the other routes).
    #[arg(long, value_name = "DOCUMENTS")]
    pub(crate) top_k: Option<usize>,
    #[command(flatten)]
    pub(crate) fusion: FusionArgs,
    /// Python function that orders the passages anew, as `FILE.py:NAME`: `def rerank(query, documents)`, or a class that loads
    /// a model once, as `rerank` of `rollout`. It gets `--pool` chunks of a query; an answer has the first ones
    /// of its order.
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) rerank: Option<String>,
    /// Maximum number of documents per query; requests for more are rejected (400).
    #[arg(long, value_name = "DOCUMENTS", default_value_t = 1000)]
    pub(crate) max_top_k: usize,
    /// Maximum number of queries per request; requests with more are rejected (413).
    #[arg(long, value_name = "QUERIES", default_value_t = 8192)]
    pub(crate) max_queries: usize,
    /// Maximum number of documents per request (queries × documents per query); requests for more are rejected (413).
    #[arg(long, value_name = "DOCUMENTS", default_value_t = 262_144)]
    pub(crate) max_documents: usize,
    /// Maximum number of waiting queries; while it is reached, requests are rejected (429).
    #[arg(long, value_name = "QUERIES", default_value_t = 16384)]
    pub(crate) queue: usize,
    /// Maximum size of a request body in MiB; longer ones are rejected (413).
    #[arg(long, value_name = "MIB", default_value_t = 8)]
    pub(crate) max_body_mib: usize,
    /// Memory for the indexes in MiB; indexes that need more are rejected (default: the available memory).
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Questions of the episodes: a node (`NODE`, `NODE.PORT`), pin or artifact in the store. Adds the routes of OpenEnv,
    /// NeMo Gym and R1-Searcher's rewards.
    #[arg(long, value_name = "QUESTIONS")]
    pub(crate) questions: Option<String>,
    /// YAML file with the rules of the episodes: the params of `rollout` without `policy` and `samples`, `reward` with the
    /// params of a `reward` node, and `api: completions` for prompts of plain text.
    #[arg(long, value_name = "FILE")]
    pub(crate) episodes: Option<PathBuf>,
    /// Protocol of the episodes, instead of the file's: `tool_call`, `research`, `r1-searcher`, `search-r1`, `tool-tags`.
    #[arg(long)]
    pub(crate) protocol: Option<String>,
    /// Reward of the episodes, instead of the file's: a system such as `search-r1-v0.2`, or a map such as
    /// `{sum: [{f1: 1}]}`.
    #[arg(long)]
    pub(crate) reward: Option<String>,
    /// Maximum number of open episodes; resets beyond it are rejected (429).
    #[arg(long, value_name = "EPISODES", default_value_t = 4096)]
    pub(crate) max_episodes: usize,
    /// Seconds without a step after which an episode, or an idle WebSocket, is closed.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    pub(crate) episode_idle: u64,
    /// File to which every search is appended as a line of JSON: time, route, digests of the indexes, queries, ids.
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// Serve MCP on stdin and stdout instead of HTTP.
    #[arg(long)]
    pub(crate) stdio: bool,
}

#[derive(Arguments)]
pub(crate) struct ServeModelArgs {
    /// Hugging Face folder, `.gguf` file, or a node (`NODE`, `NODE.PORT`), pin or artifact in the store.
    pub(crate) model: String,
    /// PEFT LoRA adapter for the model, specified in the same way.
    #[arg(long, value_name = "ADAPTER")]
    pub(crate) adapter: Option<String>,
    #[command(flatten)]
    pub(crate) entrance: EntranceArgs,
    /// Model name in the API (default: MODEL as given).
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Maximum number of conversations processed at the same time.
    #[arg(long, default_value_t = 16)]
    pub(crate) rows: usize,
    /// Maximum length of a conversation in tokens (default: the model's maximum number of positions).
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<usize>,
    /// Maximum length of an answer in tokens, unless the request sets it.
    #[arg(long, value_name = "TOKENS", default_value_t = 1024)]
    pub(crate) max_tokens: usize,
    /// Number of compute threads (default: number of processors).
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Memory for weights, keys and values in MiB; a model that needs more is rejected (default on a GPU: its free
    /// memory).
    #[arg(long, value_name = "MIB")]
    pub(crate) memory_mib: Option<u64>,
    /// Run on the first GPU in CUDA_VISIBLE_DEVICES: `searchmill-worker-cuda serve model … --gpu`.
    #[arg(long)]
    pub(crate) gpu: bool,
    /// Computation precision; bf16 is fastest on a GPU.
    #[arg(long, value_enum, default_value = "f32")]
    pub(crate) dtype: DtypeArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DtypeArg {
    F32,
    Bf16,
}

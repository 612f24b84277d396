//! Parameters of the policies, and parsing of `policy:`.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use searchmill_engine::operator::{EndpointUse, Limits, ParamIssue, Prices, Repeatability, Secret, is_web_address};
use searchmill_models::device::Precision;
use searchmill_models::training::recorded::NEUTRAL;
use searchmill_schemas::SampledWith;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::model::{Api, ModelParams};

/// The policy that answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyParams {
    /// A model behind an OpenAI-compatible chat-completions server.
    Endpoint(EndpointParams),
    /// A teacher that knows the gold evidence, searches for it, and answers only if it was retrieved.
    Evidence(EvidenceParams),
    /// A decoder run in this process.
    Model(ModelParams),
}

/// A model behind an OpenAI-compatible chat-completions server (vLLM, SGLang, llama.cpp, Ollama, OpenAI, …).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct EndpointParams {
    /// Base URL of the API, for example `http://127.0.0.1:8000/v1`. Not part of the cache key, so results stay valid
    /// when the model moves to another server; see `identify_by_url`.
    #[schemars(extend("x-searchmill-key" = false))]
    pub base_url: String,
    /// Model name on the server.
    pub model: String,
    /// Which API is called: `chat` (`/chat/completions`), or `completions` (`/completions`), which continues plain text
    /// as a base model needs it. With `chat`, a protocol of one text continues its last message
    /// (`continue_final_message`: vLLM, SGLang).
    #[serde(default, skip_serializing_if = "Api::is_chat")]
    pub api: Api,
    /// Text that identifies the weights behind the name (a commit, a date). Part of the cache key; otherwise unused.
    #[serde(default)]
    pub revision: Option<String>,
    /// Include `base_url` in the cache key: separate results for each server.
    #[serde(default)]
    pub identify_by_url: bool,
    /// API key, sent as bearer token; write `${secret:NAME}`.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub api_key: Option<Secret>,
    /// Sampling temperature (`null`: the server's default).
    #[serde(default = "temperature")]
    pub temperature: Option<f64>,
    /// Nucleus sampling (default: not sent).
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Maximum number of tokens per model turn (`null`: the server's default).
    #[serde(default = "max_tokens")]
    pub max_tokens: Option<u32>,
    /// Sampling seed, for servers that support one: sample `i` of a question sends `seed + i` (default: not sent).
    #[serde(default)]
    pub seed: Option<i64>,
    /// With `record: tokens`: distribution of the server's log-probabilities (default: `raw`). With `processed`, tokens can
    /// be recorded at any temperature, `top_p` and `top_k`; with `raw`, only at temperature 0 or 1 and without the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ServerLogprobs>,
    /// Additional fields of the request body (`top_k`, `chat_template_kwargs`, `max_completion_tokens`, …).
    #[serde(default)]
    pub extra: BTreeMap<String, Value>,
    /// Send the model's reasoning of earlier turns back (`reasoning_content`). Models that think between tool calls
    /// need it; most others reject or ignore it.
    #[serde(default)]
    pub resend_reasoning: bool,
    /// Stream answers as server-sent events: some gateways drop long idle connections.
    #[serde(default)]
    pub stream: bool,
    /// Timeout of one model turn in seconds. Not part of the cache key.
    #[serde(default = "timeout_seconds")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub timeout_seconds: f64,
    /// Prices: `{prompt: 0.15, completion: 0.60}` per million tokens, `call` per call, `currency` (USD). Used by
    /// `plan`, budgets and the cost report of a run. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub prices: Option<Prices>,
    /// Rate limits: `{requests_per_minute: …, tokens_per_minute: …, concurrency: …}`. All nodes of a run with the
    /// same `base_url` share them; if they differ, the strictest applies. Not part of the cache key.
    #[serde(default)]
    #[schemars(extend("x-searchmill-key" = false))]
    pub limits: Limits,
    /// Seconds without a response, with calls in flight, after which the run warns. No call is cancelled. Not part of
    /// the cache key.
    #[serde(default = "stall_seconds")]
    #[schemars(extend("x-searchmill-key" = false))]
    pub stall_seconds: f64,
}

/// Distribution of a server's log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServerLogprobs {
    /// The model's own, before temperature, `top_k` and `top_p` (vLLM's default).
    Raw,
    /// The one that was sampled from. vLLM: start it with `--logprobs-mode processed_logprobs`. `searchmill serve model`
    /// does so on request (`logprobs_mode`).
    Processed,
}

/// A teacher that knows the gold evidence. It searches for it with the real indexes, one hop at a time, and gives the
/// gold answer only if every piece of evidence was retrieved. Otherwise, and for questions without evidence (after
/// two searches), it answers "Insufficient Information". Its token counts are word counts (separated by whitespace).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "snake_case")]
pub struct EvidenceParams {
    /// When evidence counts as retrieved.
    pub matches: EvidenceMatch,
    /// Maximum number of searches per piece of evidence, each with a different query.
    pub attempts: u32,
    /// Allow several parallel searches in some turns.
    pub parallel: bool,
    /// Amount of text between the searches.
    pub wording: EvidenceWording,
    /// Seed of the wording, combined with the `seed` of the node, the question's id and the sample's number.
    pub seed: u64,
    /// Field of the question's `metadata` with a search plan: a list of `{search, reference, keyword}`. The teacher follows
    /// its order, searches for `search`, looks for the document of the evidence most like `reference` (ROUGE-L), and says
    /// `keyword` when it was found. A question without a plan is rejected (default: the teacher plans).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// When a piece of evidence counts as retrieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceMatch {
    /// A tool result contains its sentence, ignoring case and spaces; a sentence of fewer than five words also needs
    /// its document. Evidence without a sentence counts by document.
    #[default]
    Fact,
    /// A passage of its document was shown, by id or title. Evidence without id and title counts by its sentence.
    Document,
}

/// Amount of text that the teacher writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceWording {
    /// Names its query, what it found, and why that is enough, in varied sentences.
    #[default]
    Varied,
    /// Names its query (first in the words of the question), quotes the sentences found, and answers, always in the
    /// same words. Easier to learn for small students.
    Plain,
}

impl Default for EvidenceParams {
    fn default() -> Self {
        let (matches, wording) = (EvidenceMatch::default(), EvidenceWording::default());
        Self { matches, attempts: 3, parallel: false, wording, seed: 0, plan: None }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a default of an optional field")]
fn temperature() -> Option<f64> {
    Some(0.7)
}

#[expect(clippy::unnecessary_wraps, reason = "a default of an optional field")]
fn max_tokens() -> Option<u32> {
    Some(4096)
}

fn timeout_seconds() -> f64 {
    120.0
}

fn stall_seconds() -> f64 {
    60.0
}

/// Field of the request body for the number of most probable tokens to sample from.
const TOP_K: &str = "top_k";

/// Fields of the request body that `extra` must not set, separated by spaces.
// `n`: only the first choice of an answer is read; more would be paid for in vain.
const OWN_FIELDS: &str = "\
    add_generation_prompt continue_final_message max_tokens messages model n prompt seed separate_reasoning stop \
    stream stream_options temperature tools top_p";

impl PolicyParams {
    /// How the model is given its prompt.
    pub fn api(&self) -> Api {
        match self {
            Self::Endpoint(endpoint) => endpoint.api,
            Self::Model(model) => model.api,
            Self::Evidence(_) => Api::Chat,
        }
    }

    /// Where answers are reproducible byte for byte. A row of `model` depends only on its seed if f32 is computed on
    /// a CPU; elsewhere it depends on the other rows of its batch.
    pub fn repeatability(&self) -> Repeatability {
        match self {
            Self::Evidence(_) => Repeatability::Everywhere,
            Self::Model(model) if model.dtype == Precision::F32 => Repeatability::Processor,
            Self::Model(_) | Self::Endpoint(_) => Repeatability::Not,
        }
    }

    /// Returns the temperature, `top_p` and `top_k` (0: all) that tokens are sampled with; `None`: none are sampled.
    pub fn sampled_with(&self) -> Option<(f64, f64, i64)> {
        match self {
            Self::Evidence(_) => None,
            Self::Model(model) => {
                Some((model.temperature, model.top_p, i64::try_from(model.top_k).unwrap_or(i64::MAX)))
            }
            Self::Endpoint(endpoint) => {
                let sampling = endpoint.sampling();
                Some((sampling.temperature, sampling.top_p, sampling.top_k))
            }
        }
    }

    /// Returns issues that types cannot express, with paths below `policy`.
    pub fn check(&self) -> Vec<ParamIssue> {
        match self {
            Self::Endpoint(endpoint) => endpoint.check(),
            Self::Evidence(evidence) if evidence.attempts == 0 => {
                vec![ParamIssue::new("policy.evidence.attempts", "must be at least 1")]
            }
            Self::Evidence(_) => Vec::new(),
            Self::Model(model) => model.check(),
        }
    }
}

impl EndpointParams {
    /// Describes the endpoint for the engine.
    pub fn endpoint(&self) -> EndpointUse {
        EndpointUse {
            name: self.address().to_owned(),
            address: self.address().to_owned(),
            model: self.model.clone(),
            identity: self.identity(),
            limits: self.limits.clone(),
            prices: self.prices.clone(),
            stall_after: Duration::from_secs_f64(self.stall_seconds),
        }
    }

    /// Base URL of the server, without a trailing slash.
    pub fn address(&self) -> &str {
        self.base_url.trim_end_matches('/')
    }

    /// Identity of the weights, as far as the params specify it.
    fn identity(&self) -> Value {
        let url = self.identify_by_url.then_some(self.address());
        serde_json::json!({"model": self.model, "revision": self.revision, "url": url})
    }

    /// Settings that tokens are sampled with, as far as the request sets them.
    pub(super) fn sampling(&self) -> SampledWith {
        // Servers write "all tokens" as -1 or 0; the record writes it as 0.
        let top_k = self.extra.get(TOP_K).and_then(Value::as_i64).unwrap_or(0).max(0);
        let other: BTreeMap<_, _> = self.extra.iter().filter(|(name, _)| *name != TOP_K).collect();
        SampledWith {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_k,
            other: (!other.is_empty()).then(|| serde_json::json!(other).to_string()),
            logprobs: if self.sends_processed() { "processed" } else { "raw" }.to_owned(),
            revision: self.revision.clone(),
        }
    }

    /// Whether the server's log-probabilities are those of the distribution that was sampled from.
    pub(super) fn sends_processed(&self) -> bool {
        self.logprobs == Some(ServerLogprobs::Processed)
    }

    /// Returns issues of recording tokens, with paths below `policy`.
    pub fn check_recording(&self) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        for name in ["return_token_ids", "logprobs", "top_logprobs", "logprobs_mode"] {
            if self.extra.contains_key(name) {
                issues.push(issue(&format!("extra.{name}"), "this field is set by `record: tokens`"));
            }
        }
        let Some(temperature) = self.temperature else {
            let issue = issue("temperature", "`record: tokens` records the temperature, so it must be set");
            issues.push(issue.with_help("write the temperature to sample with, for example 1"));
            return issues;
        };
        // At temperature 0, log-probabilities are the model's own by definition.
        if temperature == 0.0 || self.sends_processed() {
            return issues;
        }
        let shaped = NEUTRAL.iter().find(|(name, neutral)| match self.extra.get(*name).and_then(Value::as_f64) {
            Some(count) if *name == TOP_K => count > 0.0,
            Some(value) => (value - neutral).abs() > 0.0,
            None => false,
        });
        let field = match shaped {
            _ if (temperature - 1.0).abs() >= f64::EPSILON => "temperature".to_owned(),
            _ if self.top_p.is_some_and(|share| share < 1.0) => "top_p".to_owned(),
            Some((name, _)) => format!("extra.{name}"),
            None => return issues,
        };
        let message = "with this value, the server's raw log-probabilities are not those of the sampled tokens";
        let help = "write `logprobs: processed` (vLLM: start it with `--logprobs-mode processed_logprobs`), or sample \
                    at temperature 1 from all tokens";
        issues.push(issue(&field, message).with_help(help));
        issues
    }

    fn check(&self) -> Vec<ParamIssue> {
        let is_patient = self.timeout_seconds > 0.0 && self.timeout_seconds <= 86_400.0;
        let is_alert = self.stall_seconds > 0.0 && self.stall_seconds <= 86_400.0;
        let rules = [
            (is_web_address(&self.base_url), "base_url", "must be a URL such as `http://127.0.0.1:8000/v1`"),
            (!self.model.trim().is_empty(), "model", "must name a model"),
            (self.temperature.is_none_or(|t| t >= 0.0), "temperature", "must not be negative"),
            (self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0), "top_p", "must be above 0 and at most 1"),
            (self.max_tokens != Some(0), "max_tokens", "must be at least 1"),
            (is_patient, "timeout_seconds", "must be above 0 and at most 86400 (a day)"),
            (is_alert, "stall_seconds", "must be above 0 and at most 86400 (a day)"),
        ];
        let mut issues = Vec::new();
        for (holds, field, message) in rules {
            if !holds {
                issues.push(issue(field, message));
            }
        }
        if let Some(name) = self.prices.as_ref().and_then(Prices::fault) {
            issues.push(issue(&format!("prices.{name}"), "must not be negative"));
        }
        if let Some(name) = self.limits.fault() {
            issues.push(issue(&format!("limits.{name}"), "must be above 0"));
        }
        for name in self.extra.keys().filter(|name| OWN_FIELDS.split(' ').any(|own| own == *name)) {
            issues.push(issue(&format!("extra.{name}"), "this field is set by searchmill: use the param instead"));
        }
        issues
    }
}

fn issue(field: &str, message: &str) -> ParamIssue {
    ParamIssue::new(format!("policy.endpoint.{field}"), message)
}

/// The policy: `evidence`, `{evidence: {…}}`, `model`, `{model: {…}}` or `{endpoint: {…}}`.
#[derive(JsonSchema)]
#[schemars(rename = "Policy", rename_all = "snake_case")]
#[expect(dead_code, reason = "its schema is all that is used")]
enum PolicyForm {
    /// The teacher with default options.
    #[schemars(rename = "evidence")]
    EvidenceByName,
    /// A model behind an OpenAI-compatible chat-completions server.
    Endpoint(EndpointParams),
    /// A teacher that knows the gold evidence, searches for it, and answers only if it was retrieved.
    Evidence(EvidenceParams),
    /// A decoder from another node, with default sampling.
    #[schemars(rename = "model")]
    ModelByName,
    /// A decoder run in this process.
    Model(ModelParams),
}

impl JsonSchema for PolicyParams {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        PolicyForm::schema_name()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        PolicyForm::json_schema(generator)
    }
}

// By hand: a derived enum takes a bare name only for a variant without options.
impl<'de> Deserialize<'de> for PolicyParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PolicyVisitor)
    }
}

/// Reads `evidence`, `{evidence: {…}}`, `model`, `{model: {…}}` or `{endpoint: {…}}`.
struct PolicyVisitor;

const POLICIES: &[&str] = &["endpoint", "evidence", "model"];

impl<'de> Visitor<'de> for PolicyVisitor {
    type Value = PolicyParams;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("`evidence`, `model`, `{evidence: {…}}`, `{model: {…}}` or `{endpoint: {base_url: …, model: …}}`")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<PolicyParams, E> {
        match name {
            "evidence" => Ok(PolicyParams::Evidence(EvidenceParams::default())),
            "model" => Ok(PolicyParams::Model(ModelParams::default())),
            "endpoint" => Err(E::custom("an endpoint needs `{endpoint: {base_url: …, model: …}}`")),
            _ => Err(E::unknown_variant(name, POLICIES)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PolicyParams, A::Error> {
        let name: String = map.next_key()?.ok_or_else(|| A::Error::custom("no policy is given"))?;
        let policy = match name.as_str() {
            "endpoint" => PolicyParams::Endpoint(map.next_value()?),
            // A policy without options is written `{evidence: }`, too: YAML reads that as null.
            "evidence" => PolicyParams::Evidence(map.next_value::<Option<EvidenceParams>>()?.unwrap_or_default()),
            "model" => PolicyParams::Model(map.next_value::<Option<ModelParams>>()?.unwrap_or_default()),
            _ => return Err(A::Error::unknown_variant(&name, POLICIES)),
        };
        match map.next_key::<String>()? {
            None => Ok(policy),
            Some(second) => Err(A::Error::custom(format!("only one policy may be given, not also `{second}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<Value, String> {
        let policy: PolicyParams = serde_json::from_value(value).map_err(|error| error.to_string())?;
        serde_json::to_value(policy).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_is_a_word_or_a_map_and_reads_back() {
        let by_name = read(json!("evidence")).expect("a policy");
        assert_eq!(by_name, read(json!({"evidence": {}})).expect("a policy"));
        assert_eq!(by_name, read(json!({"evidence": null})).expect("a policy"));
        assert_eq!(by_name, read(by_name.clone()).expect("a policy"));
        assert_eq!(read(json!("model")), read(json!({"model": {"temperature": 0.7}})));
        let endpoint = read(json!({"endpoint": {"base_url": "http://h/v1", "model": "m", "temperature": null}}));
        let endpoint = endpoint.expect("a policy");
        assert_eq!(endpoint["endpoint"]["temperature"], Value::Null);
        assert_eq!(endpoint["endpoint"]["max_tokens"], 4096);
        assert_eq!(endpoint, read(endpoint.clone()).expect("a policy"));
    }

    #[test]
    fn a_slash_at_the_end_of_a_url_is_no_other_server() {
        let of = |url: &str| {
            let value = json!({"endpoint": {"base_url": url, "model": "m", "identify_by_url": true}});
            match serde_json::from_value(value).expect("a policy") {
                PolicyParams::Endpoint(endpoint) => endpoint.endpoint(),
                _ => panic!("an endpoint"),
            }
        };
        assert_eq!(of("http://h/v1/").identity, of("http://h/v1").identity);
        assert_ne!(of("http://h/v2").identity, of("http://h/v1").identity);
    }

    #[test]
    fn what_is_not_a_policy_is_refused_in_words() {
        let refused = |value| read(value).expect_err("an error");
        assert!(refused(json!("evidnce")).contains("unknown variant `evidnce`"));
        assert!(refused(json!("endpoint")).contains("base_url"));
        assert!(refused(json!({})).contains("no policy"));
        assert!(refused(json!({"evidence": {}, "model": {}})).contains("only one policy"));
        assert!(refused(json!({"evidence": {"paralel": true}})).contains("unknown field `paralel`"));
        assert!(refused(json!(3)).contains("expected `evidence`"));
    }

    #[test]
    fn impossible_endpoints_are_named_by_field() {
        let value = json!({"endpoint": {"base_url": "localhost", "model": " ", "temperature": -1, "top_p": 2,
            "max_tokens": 0, "timeout_seconds": 0, "extra": {"messages": []}}});
        let policy: PolicyParams = serde_json::from_value(value).expect("a policy");
        let paths: Vec<_> = policy.check().into_iter().map(|issue| issue.path).collect();
        let model: PolicyParams =
            serde_json::from_value(json!({"model": {"top_p": 0, "max_tokens": 0, "stop": [""]}})).expect("a policy");
        let wrong: Vec<_> = model.check().into_iter().map(|issue| issue.path).collect();
        assert_eq!(wrong, ["policy.model.top_p", "policy.model.max_tokens", "policy.model.stop"]);
        let fields = ["base_url", "model", "temperature", "top_p", "max_tokens", "timeout_seconds", "extra.messages"];
        assert_eq!(paths, fields.map(|field| format!("policy.endpoint.{field}")));
    }
}

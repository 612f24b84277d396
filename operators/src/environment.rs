//! The environment of an episode, outside a pipeline: the rules of a `rollout` and the reward of a `reward` node, for
//! servers that let an external trainer play the episodes.

use std::sync::Arc;

use schemars::{JsonSchema, schema_for};
use searchmill_agent::episode::{Episode, Rules};
use searchmill_agent::policy::Api;
use searchmill_agent::protocol::ProtocolParams;
use searchmill_agent::reward::System;
use searchmill_engine::operator::{Context, Inputs, OperatorError, ParamIssue, read_params};
use searchmill_retrieval::SearchSettings;
use searchmill_schemas::{Question, Trajectory};
use serde_json::{Map, Value, json};

pub use crate::reward::Rewarded;
use crate::reward::{Judge, RewardParams};
use crate::rollout::{self, RolloutParams};

/// Params of `rollout` that belong to the trainer or to the server.
const ELSEWHERE: [(&str, &str); 7] = [
    ("policy", "the trainer plays the policy"),
    ("samples", "the trainer decides how often it resets"),
    ("until", "the trainer decides how often it resets"),
    ("rerank", "the server offers its search alone"),
    ("tools", "the server offers its search alone"),
    ("record", "the trainer has its own tokens"),
    ("rewritten_history", "the trainer has its own tokens"),
];

/// Settings beside the params of `rollout`.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "its schema is all that is used")]
struct Beside {
    /// The reward of a finished episode.
    reward: Option<RewardForm>,
    /// How the trainer gives the model its prompt.
    api: Option<Api>,
}

/// The name of a system, or the params of `reward`.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "its schema is all that is used")]
enum RewardForm {
    Name(System),
    Params(RewardParams),
}

/// Name of the policy in the episodes.
pub const PLAYER: &str = "external";

/// Rules and reward of episodes.
pub struct Environment {
    /// Protocol and limits.
    pub rules: Arc<Rules>,
    /// Passages per search.
    pub top_k: usize,
    /// Name of the search tool in the model's prompt.
    pub tool: String,
    judge: Option<Judge>,
    system: Option<System>,
}

impl Environment {
    /// Returns the JSON Schema of the settings.
    pub fn schema() -> Value {
        let mut schema = schema_for!(RolloutParams).to_value();
        let beside = schema_for!(Beside).to_value();
        for part in ["properties", "$defs"] {
            if let (Some(all), Some(more)) = (schema[part].as_object_mut(), beside[part].as_object()) {
                all.extend(more.clone());
            }
        }
        // `rollout` requires `policy`, which `open` adds.
        schema["required"] = json!([]);
        schema
    }

    /// Opens the environment of these settings: the params of `rollout` without `policy` and `samples`, under `reward`
    /// the params of a `reward` node or the name of a system, and `api: completions` for prompts of plain text.
    ///
    /// # Errors
    /// Fails with the path of a setting that is unknown or wrong, or whose tokenizer cannot be read.
    pub fn open(mut settings: Map<String, Value>, context: &Context) -> Result<Self, ParamIssue> {
        let reward = match settings.remove("reward") {
            None | Some(Value::Null) => None,
            Some(settings) => Some(reward(settings)?),
        };
        if let Some((name, why)) = ELSEWHERE.iter().find(|(name, _)| settings.contains_key(*name)) {
            return Err(ParamIssue::new(*name, format!("has no place here: {why}")));
        }
        let api = match settings.remove("api") {
            None | Some(Value::Null) => json!("chat"),
            Some(api) => api,
        };
        // The trainer plays the policy: an endpoint that is never called.
        let trainer = json!({"endpoint": {"base_url": "http://localhost", "model": "trainer", "api": api}});
        settings.insert("policy".to_owned(), trainer);
        let params: RolloutParams = read_params(Value::Object(settings)).map_err(of_trainer)?;
        if let Some(issue) = rollout::issues(&params).into_iter().next() {
            return Err(of_trainer(issue));
        }
        let own = SearchSettings { top_k: params.search.top_k, ..SearchSettings::default() };
        if params.search != own {
            let message = "`search` takes `top_k` alone here; `pool` and `fusion` are options of the server";
            return Err(ParamIssue::new("search", message));
        }
        if matches!(params.protocol, ProtocolParams::SearchLm(_)) {
            let message = "the protocol `searchlm` asks the model beside the conversation, which no trainer can play";
            return Err(ParamIssue::new("protocol", message));
        }
        let limit = rollout::observation_limit(&params, &Inputs::new(), context).map_err(|error| at("count", error))?;
        let rules = rollout::rules(&params, true, &[], limit);
        let system = reward.as_ref().and_then(|reward| reward.system);
        if let Some(system) = system
            && !system.protocols().contains(&rules.protocol.name())
        {
            let wanted: Vec<String> = system.protocols().iter().map(|name| format!("`{name}`")).collect();
            let message = format!("this reward reads rollouts of protocol {}", wanted.join(" or "));
            return Err(ParamIssue::new("reward", message));
        }
        let judge = reward.map(|reward| Judge::open(reward, context)).transpose();
        let judge = judge.map_err(|error| at("reward", error))?;
        Ok(Self { rules, top_k: params.search.top_k, tool: rollout::tool_name(&params).to_owned(), judge, system })
    }

    /// Returns the definitions of the tools, as the chat API takes them.
    pub fn tools(&self) -> Vec<Value> {
        serde_json::from_str(self.rules.protocol.tools()).unwrap_or_default()
    }

    /// Whether a finished episode has a reward.
    pub fn rewards(&self) -> bool {
        self.judge.is_some()
    }

    /// Returns the reward of a finished episode; `None` without a reward in the settings.
    ///
    /// # Errors
    /// Returns why the episode cannot be judged, for example without golden answers.
    pub fn reward(&self, episode: &Trajectory) -> Result<Option<Rewarded>, String> {
        self.judge.as_ref().map(|judge| judge.reward(episode)).transpose()
    }

    /// Returns why no episode of this question can be judged, if so.
    pub fn unrewarded(&self, question: &Question) -> Option<String> {
        self.judge.as_ref()?;
        // An episode without turns: if it cannot be judged, the question lacks something, such as golden answers.
        let probe = Episode::new(Arc::clone(&self.rules), &question.question);
        self.reward(&probe.trajectory(question.clone(), 0, PLAYER, None)).err()
    }

    /// Returns the published reward of such a text; `None` unless the reward is one of R1-Searcher's.
    pub fn reward_of_text(&self, query: &str, golden: &[String]) -> Option<f64> {
        self.system?.published_text(query, golden)
    }

    /// Whether the rewards of such texts are pairs of the reward and 0, as those of stage 1 are.
    pub fn has_pairs(&self) -> bool {
        self.system == Some(System::R1SearcherLlamaStage1)
    }
}

/// The params of a reward: a map, or the name of a system.
fn reward(settings: Value) -> Result<RewardParams, ParamIssue> {
    let params = if settings.is_string() { json!({"system": settings}) } else { settings };
    let issue = match read_params::<RewardParams>(params) {
        Ok(params) => match crate::reward::issues(&params).into_iter().next() {
            None => return Ok(params),
            Some(issue) => issue,
        },
        Err(issue) => issue,
    };
    Err(ParamIssue { path: format!("reward.{}", issue.path), ..issue })
}

/// Returns an issue of the trainer's `policy` as one of the settings, which have its params at the top.
fn of_trainer(issue: ParamIssue) -> ParamIssue {
    let path = issue.path.strip_prefix("policy.endpoint.").unwrap_or(&issue.path).to_owned();
    ParamIssue { path, ..issue }
}

/// Places an error at a setting.
fn at(path: &str, error: OperatorError) -> ParamIssue {
    ParamIssue { help: error.help, ..ParamIssue::new(path, error.message) }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::Harness;

    use super::*;

    fn open(settings: Value) -> Result<Environment, String> {
        let Value::Object(settings) = settings else { unreachable!("a map") };
        let opened = Environment::open(settings, &Harness::new().context());
        opened.map_err(|issue| format!("`{}`: {}", issue.path, issue.message))
    }

    #[test]
    fn settings_are_those_of_rollout_and_reward() {
        let opened = open(json!({"protocol": "search-r1", "reward": "search-r1-v0.2", "search": {"top_k": 3}}));
        let opened = opened.expect("an environment");
        assert_eq!((opened.rules.protocol.name(), opened.top_k, opened.rewards()), ("search-r1", 3, true));
        for (settings, about) in [
            (json!({"policy": "evidence"}), "the trainer plays the policy"),
            (json!({"protocl": "research"}), "protocl"),
            (json!({"max_turns": 0}), "max_turns"),
            (json!({"reward": "best"}), "best"),
            (json!({"reward": {}}), "the node has no reward"),
            (json!({"reward": "research"}), "rollouts of protocol `research`"),
            (json!({"reward": {"sum": [{"column": "judged"}]}}), "`column`"),
            (json!({"search": {"pool": 9}}), "`pool` and `fusion`"),
        ] {
            let told = open(settings.clone()).err().unwrap_or_else(|| panic!("{settings} is no error"));
            assert!(told.contains(about), "{settings}: {told}");
        }
    }

    #[test]
    fn a_question_without_golden_answers_has_no_reward() {
        let opened = open(json!({"reward": {"sum": [{"f1": 1}]}})).expect("an environment");
        let mut question = Question { golden_answers: vec!["Rome".to_owned()], ..Question::default() };
        assert_eq!(opened.unrewarded(&question), None);
        question.golden_answers.clear();
        assert!(opened.unrewarded(&question).is_some_and(|why| why.contains("no golden answer")));
        let free = open(json!({})).expect("an environment");
        assert_eq!(free.unrewarded(&question), None);
    }
}

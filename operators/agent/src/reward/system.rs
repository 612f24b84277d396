//! The systems by name: their protocols and their rules.

use schemars::JsonSchema;
use searchmill_text::answer_metrics::r1_searcher;
use searchmill_text::normalize::normalize_answer;
use serde::{Deserialize, Serialize};

use crate::reward::outcome::Reward;
use crate::reward::r1_text::{LLAMA_END, QWEN_END, first};
use crate::reward::search_r1_format::FormatScores;
use crate::reward::search_r1_text::Agreement;
use crate::reward::transcript::Transcript;
use crate::reward::{
    deepsearch_rl, r1_llama_stage_1, r1_llama_stage_2, r1_qwen, research, search_r1_em, search_r1_format,
    search_r1_verl,
};

/// A public search-agent system with a reward of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// ReSearch (Agent-RL/ReSearch at 4bdb872). Published: 0 outside the format, F1 of the boxed answer, 0.1 if that
    /// is 0. Mended: 0 outside the format, else 0.1 + 0.9 · F1. Protocol `research`.
    Research,
    /// R1-Searcher, stage 1 for Llama (RUCAIBox/R1-Searcher at 631167c). Published: 1 if the answer covers the golden
    /// one, else −1, plus 0.5 for searches and 0.5 for the tags. Mended: 2 · F1 − 1 instead of the cover. Protocol
    /// `r1-searcher`.
    #[serde(rename = "r1-searcher-llama-stage-1")]
    R1SearcherLlamaStage1,
    /// R1-Searcher, stage 2 for Llama: F1, minus 1 outside the format. Protocol `r1-searcher`.
    #[serde(rename = "r1-searcher-llama-stage-2")]
    R1SearcherLlamaStage2,
    /// R1-Searcher for Qwen: F1, minus 2 outside a stricter format. Protocol `r1-searcher`.
    R1SearcherQwen,
    /// Search-R1, versions 0.1 and 0.2 (PeterGriffinJin/Search-R1 at a14dc3a): 1 for an exact answer, else 0. Protocol
    /// `search-r1`.
    #[serde(rename = "search-r1-v0.2")]
    SearchR1V02,
    /// Search-R1's variant that takes substrings (`compute_score_subem`): 1 if a golden answer is a substring of the
    /// answer, both normalised, else 0. Protocol `search-r1`.
    SearchR1Subem,
    /// Search-R1, version 0.3, by default with the scores of its scripts (`format_scores`): 1 for an exact answer, 0.8 outside
    /// the format; 0.2 for a wrong one in the format, 0.1 outside. Protocol `search-r1`.
    #[serde(rename = "search-r1-v0.3")]
    SearchR1V03,
    /// verl's port of Search-R1's reward (volcengine/verl at b178a3c): 1 for an exact answer, a quarter with more than
    /// 10 answer tags, else 0. Protocols `search-r1`, `tool-tags` and `tool_call`.
    SearchR1Verl,
    /// DeepSearch-RL as of its seed (ninehills/deepsearch-rl at 8fc901e): F1. Protocol `tool_call`.
    DeepsearchRlSeed,
    /// DeepSearch-RL's later sum (at 78d7101): 2 · F1, plus 0.5 for an answer, plus 0.5 · `short_think`. Protocol
    /// `tool_call`.
    DeepsearchRl,
}

/// What some rules need beside the rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Given {
    /// The score of its thoughts, from 0 to 1.
    pub short_think: f64,
    /// Scores of Search-R1's format.
    pub format_scores: FormatScores,
}

/// Which form of a system's rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// As the system's code computes it, its faults included.
    Published,
    /// Without the faults that a model learns to use, or that punish it for retrieved texts.
    #[default]
    Mended,
}

impl System {
    /// Returns the protocols whose rollouts the rule understands.
    pub fn protocols(self) -> &'static [&'static str] {
        match self {
            Self::Research => &["research"],
            Self::R1SearcherLlamaStage1 | Self::R1SearcherLlamaStage2 | Self::R1SearcherQwen => &["r1-searcher"],
            Self::SearchR1V02 | Self::SearchR1Subem | Self::SearchR1V03 => &["search-r1"],
            Self::SearchR1Verl => &["search-r1", "tool-tags", "tool_call"],
            Self::DeepsearchRlSeed | Self::DeepsearchRl => &["tool_call"],
        }
    }

    /// Returns the golden answers that a rule reads: the published rules of R1-Searcher and DeepSearch-RL read one.
    pub fn read(self, rule: Rule, golden: &[String]) -> &[String] {
        let all = rule == Rule::Mended || !matches!(self.protocols(), ["r1-searcher" | "tool_call"]);
        if all { golden } else { &golden[..golden.len().min(1)] }
    }

    /// Whether anything of a golden answer is left after the system's normalisation.
    pub fn has_text(self, answer: &str) -> bool {
        match self.protocols() {
            ["r1-searcher"] => !r1_searcher::normalize(answer).is_empty(),
            _ => !normalize_answer(answer).is_empty(),
        }
    }

    /// Whether the rule rewards short thoughts, and [`System::reward`] needs their score.
    pub fn rewards_short_thoughts(self) -> bool {
        self == Self::DeepsearchRl
    }

    /// Whether the rule has [`Given::format_scores`].
    pub fn has_format_scores(self) -> bool {
        self == Self::SearchR1V03
    }

    /// Returns the reward of a rollout.
    pub fn reward(self, rule: Rule, transcript: &Transcript, golden: &[String], given: &Given) -> Reward {
        let scores = &given.format_scores;
        match (self, rule) {
            (Self::Research, Rule::Published) => research::published(transcript, golden),
            (Self::Research, Rule::Mended) => research::mended(transcript, golden),
            (Self::R1SearcherLlamaStage1, Rule::Published) => r1_llama_stage_1::published(transcript, golden),
            (Self::R1SearcherLlamaStage1, Rule::Mended) => r1_llama_stage_1::mended(transcript, golden),
            (Self::R1SearcherLlamaStage2, Rule::Published) => r1_llama_stage_2::published(transcript, golden),
            (Self::R1SearcherLlamaStage2, Rule::Mended) => r1_llama_stage_2::mended(transcript, golden),
            (Self::R1SearcherQwen, Rule::Published) => r1_qwen::published(transcript, golden),
            (Self::R1SearcherQwen, Rule::Mended) => r1_qwen::mended(transcript, golden),
            (Self::SearchR1V02, Rule::Published) => search_r1_em::published(transcript, Agreement::Exact, golden),
            (Self::SearchR1V02, Rule::Mended) => search_r1_em::mended(transcript, Agreement::Exact, golden),
            (Self::SearchR1Subem, Rule::Published) => search_r1_em::published(transcript, Agreement::Substring, golden),
            (Self::SearchR1Subem, Rule::Mended) => search_r1_em::mended(transcript, Agreement::Substring, golden),
            (Self::SearchR1V03, Rule::Published) => search_r1_format::published(transcript, scores, golden),
            (Self::SearchR1V03, Rule::Mended) => search_r1_format::mended(transcript, scores, golden),
            (Self::SearchR1Verl, Rule::Published) => search_r1_verl::published(transcript, golden),
            (Self::SearchR1Verl, Rule::Mended) => search_r1_verl::mended(transcript, golden),
            (Self::DeepsearchRlSeed, Rule::Published) => deepsearch_rl::published_seed(transcript, golden),
            (Self::DeepsearchRlSeed, Rule::Mended) => deepsearch_rl::mended_seed(transcript, golden),
            (Self::DeepsearchRl, Rule::Published) => deepsearch_rl::published(transcript, golden, given.short_think),
            (Self::DeepsearchRl, Rule::Mended) => deepsearch_rl::mended(transcript, golden, given.short_think),
        }
    }

    /// Returns the published reward of a text that a reward server receives; `None` unless the system is R1-Searcher,
    /// whose trainer asks such a server.
    pub fn published_text(self, query: &str, golden: &[String]) -> Option<f64> {
        let golden = first(golden);
        let reward = match self {
            Self::R1SearcherLlamaStage1 => r1_llama_stage_1::published_text(query, [LLAMA_END; 2], golden),
            Self::R1SearcherLlamaStage2 => r1_llama_stage_2::published_text(query, [LLAMA_END; 2], golden),
            Self::R1SearcherQwen => r1_qwen::published_text(query, [QWEN_END; 2], golden),
            _ => return None,
        };
        Some(reward.value())
    }
}

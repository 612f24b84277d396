//! Rewards of public search-agent systems: each as its code computes it (`published`), and without its faults
//! (`mended`).
//!
//! A mended rule reads only what the model wrote, so that neither the prompt nor a retrieved text can earn or cost
//! anything; it takes the best of all golden answers, and never falls when F1 rises in the same format.

pub mod deepsearch_rl;
mod outcome;
mod pieces;
pub mod r1_llama_stage_1;
pub mod r1_llama_stage_2;
pub mod r1_qwen;
mod r1_text;
pub mod research;
pub mod search_r1_em;
pub mod search_r1_format;
mod search_r1_text;
pub mod search_r1_verl;
mod system;
#[cfg(test)]
mod tests;
mod transcript;
mod turns;

pub use outcome::Reward;
pub use r1_text::question_in;
pub use search_r1_text::Agreement;
pub use system::{Given, Rule, System};
pub use transcript::{Author, Span, Transcript};

/// Returns why a rollout's text is not in the format of its protocol. Protocols without a grammar of their own need an
/// answer and no refused action.
pub fn format_fault(protocol: &str, transcript: &Transcript, prediction: &str) -> Option<&'static str> {
    match protocol {
        "research" => research::fault(transcript),
        "r1-searcher" => r1_text::fault(transcript),
        "search-r1" => search_r1_text::fault(transcript),
        _ if transcript.spans.iter().any(|span| span.refusal) => Some("an action was refused"),
        _ => prediction.trim().is_empty().then_some("no answer"),
    }
}

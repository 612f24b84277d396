//! Agents: policies answer, protocols define the format, tools search, and episodes hold the rules. Also judges what a
//! trajectory's answer rests on (`grounding`), and what it earns in training (`reward`).
//!
//! [`episode::Episode`] holds the rules of a rollout. It does no I/O and nothing asynchronous: `step` takes an event
//! and returns a command. It decides what the model is offered, which of its calls run, when the rollout ends, and why.
//! Messages are only ever added. Only text that the model wrote is parsed.
//!
//! It has three drivers:
//!
//! - [`rollout::Agent`] carries out the commands with a policy and a tool.
//! - [`recheck`] replays the recorded messages of the model and compares all others: the prompt, tool responses,
//!   counts, the extracted answer.
//! - Unit tests pass events in.
//!
//! A `Protocol` is the format in which a model calls tools, receives results and marks its answer. `protocol/mod.rs`
//! lists the protocols. Of a protocol, a model knows the `ChatFormat` alone. Below the policies, a `ChatModel` takes
//! messages and gives one reply: `map`, `judge`, prompt tools and rerankers ask it without a protocol. A `Policy`
//! answers: `endpoint` (a server), `model` (a decoder in this process), `evidence` (a teacher that knows the gold
//! evidence). A `Tool` runs searches on blocking threads; [`outside`] has the tools beside the search tool. [`prompt`]
//! has the templates and answers of prompts that users write, for `map`, tools and rerankers.
//!
//! A rollout is exact everywhere with the policy `evidence`, and exact on one kind of processor with `model` in f32.
//! With an endpoint it is not repeatable.

pub mod chance;
mod content_encoding;
pub mod episode;
pub mod grounding;
pub mod observation_limit;
pub mod outside;
pub mod policy;
pub mod prompt;
pub mod protocol;
pub mod recheck;
mod retry_after;
pub mod reward;
pub mod rollout;
pub mod tokens;
pub mod tool;
mod words;

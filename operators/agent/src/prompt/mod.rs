//! Prompts of users: templates of messages, the fields of an answer, and asking until an answer fits. `map` asks about
//! rows, tools and rerankers of `rollout` about calls.

mod answer;
mod ask;
mod names;
mod output;
mod template;

pub use answer::{Answer, object_in, said};
pub use ask::{Asked, Unfit, ask, hint};
pub use output::{Output, short_of};
use searchmill_engine::operator::{OperatorError, ParamIssue};
pub use template::{Parts, Prompt, PromptMessage, PromptRole, Prompts, Reader, missing};

/// The error of a node whose prompt or output is unusable; checks of the pipeline report it before.
pub fn unusable(issue: ParamIssue) -> OperatorError {
    let error = OperatorError::pipeline(format!("`{}`: {}", issue.path, issue.message));
    match issue.help {
        Some(help) => error.with_help(help),
        None => error,
    }
}

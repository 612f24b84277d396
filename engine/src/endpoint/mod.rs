//! The calls of a run to endpoints outside: what they may cost, how fast they may go, which answers are known, and what
//! is never shown.
//!
//! Operators reach it only through `Context::call` and `Context::observe` (`operator::calls`, `operator::observe`).
//!
//! - A run has one `rate_limiter` per address: requests and tokens per minute, concurrent calls, pauses after status 429,
//!   a watch for silence.
//! - `standing`: the first call of a node to an endpoint goes alone; the others wait for its outcome, at most 5 s. If it is
//!   refused for a reason that all calls share (no such model, no such address, a refused key), no other call is made.
//!   After 8 calls of a node in a row that failed for good, the endpoint gets no more calls from it. Failures of one row
//!   alone (a text that is too long) do not count, and any answer begins the count anew. The remaining rows are postponed,
//!   not rejected, and the node fails.
//! - `money`: prices, usage, and the budget of a run. If it is used up, a call is refused, its row is postponed, and the
//!   run ends with exit code 4. `failure` counts failed attempts apart from the calls.
//! - `session` is what a node's calls share. Its traits are implemented by `execute`: the journal of known answers, the
//!   right to make calls.
//! - `redactor` removes the secrets of a plan from rejects, summaries, events, the ledger and the answers of endpoints.
//!   `user_info` does so for names and passwords in URLs.

mod failure;
mod money;
mod rate_limiter;
mod redactor;
mod service_address;
mod session;
mod standing;
mod user_info;

pub use failure::{CallFailure, Counts, FailedCalls, FailureKind, RowFailure};
pub(crate) use money::{Budget, Refusal, SpendLedger, is_zero};
pub use money::{BudgetLimits, PeriodLimits, Prices, Usage};
pub use rate_limiter::{EndpointUse, Limits};
pub(crate) use rate_limiter::{RateLimiter, Turn};
pub use redactor::{Redactor, is_setting};
pub use service_address::is_web_address;
pub(crate) use service_address::{refers_to_service, services_in, with_addresses};
pub use session::KeptCall;
pub(crate) use session::{Alive, Begun, CallJournal, CallPermit, EndpointSession, ObservedSession, OpenCall};
pub use user_info::{has_user_info, without_user_info};

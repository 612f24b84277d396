//! All that an operator's author sees: the contract, its ports, its context, its errors, and the registry.

mod calls;
mod context;
mod contract;
mod declaration;
mod deliver;
mod error;
mod failure;
mod rate_limiter;
mod kernel;
pub(crate) mod listing;
mod money;
mod endpoint_session;
mod params;
mod port;
mod recheck;
mod redactor;
mod registry;
mod repeatability;
mod rows;
mod shorthand;
mod sources;
pub mod testing;
mod user_info;

pub use calls::{Attempt, Call, CallFailure};
pub use context::{
    CheckpointStore, Context, ContextParts, NoCheckpoint, NoPieces, Pieces, Progress, ProgressSink, RetryPolicy,
    SecretLookup, http_client,
};
pub use contract::{Example, Operator};
pub use declaration::Declaration;
pub use deliver::{Deliver, MANIFEST_ENDING};
pub use endpoint_session::KeptCall;
pub(crate) use endpoint_session::{Begun, CallJournal, EndpointSession, OpenCall, Tenure};
pub use error::{Blame, OperatorError, missing_credentials};
pub use failure::{FailureKind, RowFailure};
pub use kernel::{
    AsyncMapKernel, BlockingKernel, Kernel, MapKernel, MapOutput, QueryInputs, QueryKernel, QueryOutput, RowOutput,
    RowShape,
};
pub use listing::FileStat;
pub(crate) use money::Budget;
pub use money::{BudgetLimits, Prices, Usage};
pub use params::{ParamIssue, Params, Secret};
pub use port::{Accept, Arity, InputPort, OutputPort, OutputType, PortType, Ports, TreeKind};
pub(crate) use rate_limiter::RateLimiter;
pub use rate_limiter::{EndpointUse, Limits};
pub use recheck::{Recheck, Rechecked, RowDifference};
pub use redactor::Redactor;
pub use registry::{BoundOperator, OperatorEntry, Registry, entry};
pub use repeatability::{Computed, Effect, Repeatability, processor};
pub use rows::{InputArtifact, Inputs, OutputSink, Outputs, RowsInput, TreeInput};
pub use shorthand::{allow_names, named_or_tagged};
pub use sources::{NoSources, Source, SourceFiles, SourceProblem};
pub use user_info::{has_user_info, without_user_info};

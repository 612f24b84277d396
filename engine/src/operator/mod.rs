//! All that an operator's author sees: the contract, its ports, its context, its errors, and the registry.

mod calls;
mod context;
mod contract;
mod error;
mod failure;
mod gate;
mod kernel;
pub(crate) mod listing;
mod money;
mod outside;
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

pub use calls::Admission;
pub use context::{
    CheckpointStore, Context, ContextParts, NoCheckpoint, NoPieces, Pieces, Progress, ProgressSink, RetryPolicy,
    SecretLookup, http_client,
};
pub use contract::{Example, MANIFEST_ENDING, Operator};
pub use error::{Blame, OperatorError, missing_credentials};
pub use failure::{FailureKind, RowFailure};
pub use gate::{EndpointUse, Gate, Limits, Silence};
pub use kernel::{
    Kernel, MapKernel, MapOutput, QueryInputs, QueryKernel, QueryOutput, RowKernel, RowOutput, RowShape, WholeKernel,
};
pub use listing::FileStat;
pub use money::{Budget, Prices, Purse, Usage};
pub use outside::{Begun, CallJournal, KeptCall, OpenCall, Outside, Tenure};
pub use params::{ParamIssue, Params, Secret};
pub use port::{Accept, Arity, InputPort, OutputPort, OutputType, PortType, Ports, TreeKind};
pub use recheck::{Recheck, Rechecked, RowDifference};
pub use redactor::Redactor;
pub use registry::{BoundOperator, OperatorEntry, Registry, entry};
pub use repeatability::{Computed, Effect, Repeatability, processor};
pub use rows::{InputArtifact, Inputs, OutputSink, Outputs, RowsInput, TreeInput};
pub use shorthand::{allow_names, named_or_tagged};
pub use sources::{NoSources, Source, SourceFiles, SourceProblem};
pub use user_info::{has_user_info, without_user_info};

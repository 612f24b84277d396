//! All that an operator's author sees: the contract, its ports, its context, its errors, and the registry.
//!
//! This module needs only `endpoint` and `error` of the engine. It stands before `spec`, which uses its [`RetryPolicy`].
//!
//! # Contract
//!
//! An [`Operator`] has a params type, a name, a version, a sentence about it, examples, and two functions. `declare`
//! returns a [`Declaration`]: ports, effect, repeatability, issues of the params, and, for the few operators that need
//! them, sources, downloads, endpoint, row shape, destination and recheck. It is called once, when params are bound.
//! Only its sources are listed again for every key. `open` returns a [`Kernel`]. `registry` erases the params type, in
//! one function.
//!
//! | kernel | for | how it runs |
//! |---|---|---|
//! | `Map` | row 7 needs nothing from row 8 | slices of 16 to 1,024 rows on a thread pool |
//! | `AsyncMap` | the same, with external calls | `concurrency` rows in flight, each cached when it ends |
//! | `Query` | relational steps | a DataFusion plan on one partition, with spilling |
//! | `Blocking` | sources, indexes, reports, training | one call with all inputs, on a blocking thread |
//!
//! `Map` and `AsyncMap` write rows in input order. `Map` skips parts of the input whose result is stored. `AsyncMap` is
//! separate because single asynchronous rows with a cache share little with batches on a thread pool. A `Query` spills
//! beyond 512 MiB (or `resources.memory`). A result that spilled rows may have reordered is recorded as not repeatable.
//! The parts of a union run one after the other.
//!
//! Every operator has an output `rejects` that it does not declare. A failed row becomes a row of `rejects`.
//!
//! # Context
//!
//! Operators reach the outside only through [`Context`]: seed, cancellation, scratch folder, progress, secrets, HTTP
//! client, threads, retry policy, checkpoints, sources, `call`.
//!
//! Every paid call goes through `Context::call`. It looks the call up in the journal, waits for the rate limiter,
//! counts the call, retries it, and stores the answer before it is parsed. Operators see neither budget nor limiter nor
//! journal: these are in `endpoint`, and `calls` and `observe` are the only doors to them.
//!
//! # Effects
//!
//! [`Repeatability`] has four degrees: exact everywhere, on one kind of processor, on one device, not repeatable. An
//! operator declares its degree by its params. At run time `Context::computed_on` lowers it, for example for a GPU or
//! an encoder inside an index. The result records the degree and the processor or device. Neither is part of the key,
//! so machines share trained and paid results.
//!
//! [`Deliver`] writes finished outputs to their destination, also after cached runs, if a user deleted or changed the
//! file. Results are content; delivery is an effect. Keeping them apart keeps delivery out of the key.
//!
//! [`Redactor`] removes the secrets of a plan from rejects, summaries, events, the ledger and the answers of endpoints.

mod calls;
mod context;
mod contract;
mod declaration;
mod deliver;
mod functions;
mod goal;
mod kernel;
pub(crate) mod listing;
mod nesting;
mod observe;
mod params;
mod port;
mod recheck;
mod registry;
mod repeatability;
mod rows;
mod shorthand;
mod sources;
mod splitmix64;
mod tables;
pub mod testing;

pub use calls::{Attempt, Call};
// What an author sees of the calls to endpoints, and errors.
pub use crate::endpoint::{
    BudgetLimits, CallFailure, Counts, EndpointUse, FailedCalls, FailureKind, KeptCall, Limits, PeriodLimits, Prices,
    Redactor, RowFailure, Usage, has_user_info, is_setting, is_web_address, without_user_info,
};
pub use crate::error::{Blame, OperatorError, missing_credentials, root_cause};
pub use context::{
    CheckpointStore, Context, ContextParts, Nothing, Pieces, ProgressSink, Retry, RetryPolicy, SecretLookup,
    http_client,
};
pub use contract::{ENDED, Example, HANDS_ON, Operator};
pub use declaration::Declaration;
pub use deliver::{Deliver, MANIFEST_ENDING};
pub(crate) use functions::storable;
pub use goal::{COUNTED, DRAWN, Goal};
pub(crate) use goal::{Draw, Next};
pub use kernel::{
    AsyncMapKernel, BlockingKernel, Kernel, MapKernel, MapOutput, QueryInputs, QueryKernel, QueryOutput, RowOutput,
    RowShape,
};
pub use listing::{FileStat, pattern_folder, where_links_lead};
pub(crate) use nesting::word_at;
pub use nesting::{SHORTER, check_nesting, stack_size};
pub use observe::Observed;
pub(crate) use params::texts;
pub use params::{ParamIssue, Params, Secret, read_params};
pub use port::{Accept, Arity, InputPort, OutputPort, OutputType, PortType, Ports, TreeKind};
pub use recheck::{Recheck, Rechecked, RowDifference};
pub use registry::{BoundOperator, CommandSources, OperatorEntry, Registry, entry};
pub use repeatability::{Computed, Effect, Repeatability, processor};
pub use rows::{InputArtifact, Inputs, OutputSink, Outputs, RowsInput, TreeInput};
pub use shorthand::{allow_names, named_or_tagged};
pub use sources::{Source, SourceFiles, SourceProblem, open_regular};
pub use splitmix64::spread;
pub use tables::{TableRules, Tables, query_session};
pub(crate) use tables::{planned, query_config};

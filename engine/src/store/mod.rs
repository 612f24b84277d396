//! The store: artifacts, results, row memos, run records, leases. No other code of the engine writes files.
//!
//! Everything becomes visible through one rename of flushed data. A killed process therefore leaves files under `tmp/`
//! only, which the next run sweeps.

mod artifact;
mod asking;
mod block;
mod call_cache;
mod checkpoint;
mod collect;
mod columns;
mod compact;
mod error;
mod floor;
mod folder;
mod tombstones;
mod guard;
mod heartbeat;
mod intake;
mod keep;
mod layout;
mod lease;
mod makers;
mod manifest;
mod memo;
mod part;
mod pieces;
mod pins;
mod process;
mod reader;
mod remote;
mod results;
mod row_codec;
mod runs;
mod schedules;
mod seal;
mod segment;
mod table;
mod unique;
mod writer;

pub use artifact::{Artifact, ArtifactId, ArtifactType, Part};
pub use block::{Block, Blocks};
pub use call_cache::{CallCache, CallState};
pub use checkpoint::Checkpoint;
pub use collect::{Collected, Garbage, KeepPolicy, Swept};
pub use columns::{ColumnLineage, ColumnUse, Transformation};
pub use error::StoreError;
pub use intake::{Admission, Intake, artifact_place, memo_place, record_place};
pub use layout::{STORE_FORMAT, Store};
pub use lease::{Lease, StoreUse, device_lock};
pub use makers::Makers;
pub use manifest::{NodeResult, Origin, OutputRecord, SourceFile};
pub use memo::{Memo, MemoDamage};
pub use pieces::KeptPieces;
pub use pins::Pin;
pub use reader::Damage;
pub use results::RecordState;
pub use runs::{LedgerDamage, LedgerSeal, NodeOutcome, NodeRun, RUN_FILES, RunRecord, RunWriter, run_time};
pub use schedules::{LogLock, ScheduleLease, Schedules, Switch};
pub use tombstones::Collection;
pub use writer::{StoreSink, Written, as_stored};

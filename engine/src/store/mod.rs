//! The store: artifacts, results, row memos, run records, leases. No other code of the engine writes files. `layout`
//! lists the files. `remote` describes shared stores.
//!
//! **Artifacts.** An id is the digest of the type and of the files' digests. Rows alone decide where a table is cut:
//! after a row that its first column selects (one in 4,096, after at least 2,048 rows), after 16,384 rows, or past 32
//! MiB. Equal rows give equal bytes for any batches, and a changed row changes only its part. Several threads encode
//! (Parquet, zstd), flush and hash parts.
//!
//! **Commit.** Write under `tmp/`, flush, rename to the path given by the content. Write the result record with its
//! checksum, flush it, rename it, flush its folder. Only then is the node reported as done. If a power cut removes a
//! renamed artifact, the result is a cache miss. A killed process leaves files under `tmp/`, and at most a torn last
//! record of a memo, which readers ignore. The next run removes the files once the owner's lock is free (files of other
//! machines after one day).
//!
//! **Looking up.** A result is a hit if the description of every artifact matches its id and all files have their
//! sizes. A file newer than its description is read. A record whose type, rows or bytes differ from its artifact counts
//! as damaged. After damage the node runs again, with the reason "damaged" or "gone". Before a kernel opens its inputs,
//! their files are read and compared (`Store::intact`): once per run, and immediately before the kernel if it is
//! external or uses a model. The same holds for outputs before they are delivered. The folder of an index, model or
//! report contains only described, regular files; any other entry counts as damage. A damaged file is marked by its
//! time, and its maker runs again without taking over stored parts.
//!
//! **Ids.** Documents, chunks, questions, trajectories, pairs and examples have unique ids per table.
//! `artifacts::unique` checks the finished parts before a commit, with 8-byte hashes of at most 8 M ids at a time, and
//! exactly where hashes collide. A repeated id fails the node and reports both rows.
//!
//! **Memos** (`memo`). Each process appends to its own locked segments. Readers
//! index all segments and read single records. More than 16 abandoned segments of one size class are merged into one.
//! The answers of a model have a memo of their own, shared by all nodes. They are stored as they came, also those that
//! this version cannot parse: those count once a later version can. A call in flight is waited for: in this process,
//! and in others of this machine by a lock on one byte (`memo::in_flight`). The process that gets the lock first reads
//! what the others appended. Machines that share a store exclude each other by node, not by call. Cached answers cost
//! the run nothing; the row still reports their cost.
//!
//! **Stamps and floors.** Of two records of a key, the newer stamp counts. `--force` raises a floor (`memo::floor`):
//! older rows and answers no longer count for that node. A result below the floor of its forced key is a miss, so the
//! next run resumes an interrupted forced run. The run that finishes the node closes the floor.
//!
//! **Damage.** A damaged record affects only itself, and the loss is reported. Intact records are copied, and the
//! damaged file remains as `*.damaged` (in a shared store it is fetched again). If more than 5 % of the answers of a
//! model are damaged, the node fails before it pays; `run --rebuy` permits it to pay again. Checksums: result records
//! (`records::results`), lines of run histories, pins, floors, schedules and digests of sources (`records::checksum`),
//! spending, checkpoints, artifacts and segments. An audit reads all of them (`records::record_damage`).
//!
//! **Leases** (`lease`). Concurrent runs wait for each other instead of computing twice. A file lock excludes processes
//! of one machine. A claim file `<key>.held`, renewed every 2 seconds, excludes machines on one file system. A claim
//! object excludes machines that share a store. A holder that has not renewed its claim for 15 seconds of the waiter's
//! monotonic clock counts as dead. Clocks are never compared. If the holder was alive, work is done twice and results
//! stay correct.
//!
//! **Checkpoints.** One file per node key, replaced by a rename after a flush, removed once the result is recorded. The
//! writer holds the node's lease. Training stores weights, the optimiser's means and all figures there. Everything else
//! is a function of seed and step, so a resumed training gives the same bits.
//!
//! **Collection** (`gc`). One rename moves a result's record to `collected/`; its artifacts follow by a
//! rename under `tmp/`. Files go only while no other process holds `leases/store`; runs, exports and imports share it.
//! Beside a run, only records go, and files go with the next collection. What no record, kept run or pin names is an
//! orphan, and goes once it is old.
//!
//! **Releasing** (`gc::release`). Outputs that can be made again, such as models of middle rounds, are removed on
//! record. A result with such an output still counts; whoever needs the files finds them released, and their maker runs
//! again.
//!
//! **Labels.** Marks and notes of people about rows, in a file that only grows (`records::labels`). They are no inputs:
//! no key depends on them.
//!
//! **Reading.** Calls that only read create no store. A folder with other contents does not become a store.

// The order is the order of use where it has one: `layout` is `Store`, which every room extends.
mod error;
mod files;
mod nofollow;
mod paths;
mod layout;
mod artifacts;
mod records;
mod memo;
mod lease;
mod gc;
mod import;
mod remote;

pub use artifacts::artifact::{Artifact, ArtifactId, ArtifactType, Part};
pub use artifacts::checkpoint::Checkpoint;
pub use artifacts::lend::{Lent, lend};
pub(crate) use artifacts::reader::outside_id;
pub(crate) use artifacts::table::column_list;
pub(crate) use artifacts::writer::as_stored;
pub use artifacts::writer::{StoreSink, Written};
pub(crate) use error::IoContext;
pub use error::{Damage, StoreError};
pub use gc::collect::{Collected, Garbage, KeepPolicy, Swept};
pub use gc::loop_rounds::Middle;
pub use gc::producers::Makers;
pub use gc::release::{Release, Releasing, Trash};
pub use import::{Admission, Intake};
pub use layout::{STORE_FORMAT, Store};
pub use lease::claim_file::Neighbours;
pub(crate) use lease::device_lock;
pub use lease::{Lease, StoreUse};
pub use memo::call_cache::{CallCache, CallState};
pub use memo::map_blocks::{Block, Blocks};
pub use memo::pieces::KeptPieces;
pub use memo::{Memo, MemoDamage};
pub use nofollow::fresh_folder;
pub(crate) use paths::{artifact_place, description_place, memo_place, record_place, release_place};
pub use records::labels::{Label, Mark};
pub use records::node_result::{
    ColumnLineage, ColumnUse, NodeResult, Origin, OutputRecord, SourceFile, Transformation,
};
pub use records::pages::ShownPage;
pub use records::pins::Pin;
pub use records::record_damage::RecordDamage;
pub use records::results::RecordState;
pub use records::runs::{CheckOutcome, LedgerDamage, LedgerSeal, NodeOutcome, NodeRun, RunRecord, RunWriter};
pub(crate) use records::runs::{RUN_FILES, run_time};
pub use records::schedules::{LogLock, ScheduleLease, Schedules, Switch};
pub use records::spending::Spending;
pub use records::tombstones::Collection;

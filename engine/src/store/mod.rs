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
//! **Ids.** Documents, chunks, questions, trajectories, pairs and examples have unique ids per table. `unique` checks the
//! finished parts before a commit, with 8-byte hashes of at most 8 M ids at a time, and exactly where hashes collide. A
//! repeated id fails the node and reports both rows.
//!
//! **Memos** (`memo`, `segment`, `compact`, `call_cache`). Each process appends to its own locked segments. Readers
//! index all segments and read single records. More than 16 abandoned segments of one size class are merged into one.
//! The answers of a model have a memo of their own, shared by all nodes. They are stored as they came, also those that this
//! version cannot parse: those count once a later version can. A call in flight is waited for: in this
//! process, and in others of this machine by a lock on one byte (`asking`). The process that gets the lock first reads
//! what the others appended. Machines that share a store exclude each other by node, not by call. Cached answers cost
//! the run nothing; the row still reports their cost.
//!
//! **Stamps and floors.** Of two records of a key, the newer stamp counts. `--force` raises a floor (`floor`): older
//! rows and answers no longer count for that node. A result below the floor of its forced key is a miss, so the next
//! run resumes an interrupted forced run. The run that finishes the node closes the floor.
//!
//! **Damage.** A damaged record affects only itself, and the loss is reported. Intact records are copied, and the
//! damaged file remains as `*.damaged` (in a shared store it is fetched again). If more than 5 % of the answers of a
//! model are damaged, the node fails before it pays; `run --rebuy` permits it to pay again. Checksums: result records
//! (`results`), ledger lines, pins, floors, schedules and digests of sources (`seal`), spending, checkpoints, artifacts and
//! segments. An audit reads all of them (`record_damage`).
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
//! **Collection** (`collect`, `keep`). One rename moves a result's record to `collected/`; its artifacts follow by a
//! rename under `tmp/`. Files go only while no other process holds `leases/store`; runs, exports and imports share it.
//! Beside a run, only records go, and files go with the next collection. What no record, kept run or pin names is an
//! orphan, and goes once it is old.
//!
//! **Releasing** (`release`). Outputs that can be made again, such as models of middle rounds, are removed on record. A
//! result with such an output still counts; whoever needs the files finds them released, and their maker runs again.
//!
//! **Labels.** Marks and notes of people about rows, in a file that only grows (`labels`). They are no inputs: no key
//! depends on them.
//!
//! **Reading.** Calls that only read create no store. A folder with other contents does not become a store.

mod artifact;
mod asking;
mod block;
mod call_cache;
mod check_outcome;
mod checkpoint;
mod collect;
mod columns;
mod compact;
mod description;
mod error;
mod files;
mod floor;
mod folder;
mod tombstones;
mod guard;
mod heartbeat;
mod intake;
mod keep;
mod labels;
mod layout;
mod lease;
mod lend;
mod makers;
mod manifest;
mod memo;
mod middle;
mod nofollow;
mod output_folder;
mod outside;
mod pages;
mod part;
mod pieces;
mod pins;
mod place;
mod process;
mod reader;
mod record_damage;
mod release;
mod remote;
mod results;
mod row_codec;
mod runs;
mod schedules;
mod seal;
mod segment;
mod spending;
mod table;
mod unique;
mod writer;

pub use artifact::{Artifact, ArtifactId, ArtifactType, Part};
pub use block::{Block, Blocks};
pub use call_cache::{CallCache, CallState};
pub use check_outcome::CheckOutcome;
pub use checkpoint::Checkpoint;
pub use collect::{Collected, Garbage, KeepPolicy, Swept};
pub use columns::{ColumnLineage, ColumnUse, Transformation};
pub use error::StoreError;
pub use guard::Neighbours;
pub use intake::{Admission, Intake};
pub use labels::{Label, Mark};
pub use layout::{STORE_FORMAT, Store};
pub use lease::{Lease, StoreUse, device_lock};
pub use lend::{Lent, lend};
pub use makers::Makers;
pub use manifest::{NodeResult, Origin, OutputRecord, SourceFile};
pub use memo::{Memo, MemoDamage};
pub use middle::Middle;
pub use nofollow::fresh_folder;
pub use outside::outside_id;
pub use pages::ShownPage;
pub use pieces::KeptPieces;
pub use pins::Pin;
pub use place::{artifact_place, description_place, memo_place, record_place, release_place};
pub use reader::Damage;
pub use record_damage::RecordDamage;
pub use release::{Release, Releasing, Trash};
pub use results::RecordState;
pub use runs::{LedgerDamage, LedgerSeal, NodeOutcome, NodeRun, RUN_FILES, RunRecord, RunWriter, run_time};
pub use schedules::{LogLock, ScheduleLease, Schedules, Switch};
pub use spending::Spending;
pub use tombstones::Collection;
pub use writer::{StoreSink, Written, as_stored};

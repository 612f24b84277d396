//! Content digests, canonical encoding, node keys, row keys, and key comparison. No other code of the engine hashes for
//! identity.
//!
//! # Keys
//!
//! A **node key** is the BLAKE3 digest of a canonical encoding (typed, length-prefixed, map keys sorted) of the
//! preimage: key format, operator, version, params with defaults, inputs (port, type, content), outputs (port, kind,
//! schema version), sources (file name, content, index of the source), seed.
//!
//! Not part of a key: paths of sources, times, `resources`, `retry`, `on_error`, names of nodes and pipelines, and
//! params marked `x-searchmill-key: false` (URLs, secrets, timeouts). `--limit` is part of the identity of sources. The
//! seed is part of the key of `Seeded` and `External` operators: a user who sets a seed expects the rollouts of that
//! seed.
//!
//! Inputs are identified by content. If a node runs again and gives the same bytes, the nodes after it stay cached. The
//! preimage is stored with the result. `why` and `plan` show the difference of two preimages as a closed list,
//! [`Reason`].
//!
//! A **row key** contains the node's identity without its row input, and the content of the columns that decide the
//! row's result (`AsyncMapKernel::reads`). It also contains the row's number among equal rows, and the sample's number.
//! Columns that are only copied into the result (ids, golden answers, metadata) are not part of it:
//! `AsyncMapKernel::label` writes the current values into a cached row, or rejects it.
//!
//! A **call key** contains the identity of the model and the request. The identity (`EndpointUse::identity`) is the
//! name, the `revision`, and with `identify_by_url` the server. The key also contains the node's seed, the sample, the
//! number among equal rows, and how often the row has sent that request. The request leaves out what only affects the
//! transport (`stream`). No operator, version, node or pipeline is part of it, so an equal request is never paid twice.
//!
//! A **block key** contains the node's identity without its row input, and the digest of one part of that input. A
//! **piece key** does the same for a piece that the node cuts itself. For operators that are exact on one kind of
//! processor, row, block and piece keys are kept apart by processor kind and from GPUs.
//!
//! # Sources
//!
//! **The key describes what was read.** The files of a source are listed once per key (`operator::listing`: regular
//! files only, stores skipped) and passed to the operator as `Context::source_files`. `Context::watched` hashes bytes
//! while they are read. After the kernel, before anything is recorded, `execute::kernels::kernel_run` compares the
//! sources again: the file list, the `ctime`, and the content of files too young for their time stamp. After a change
//! nothing is recorded, and the node runs again under its new key, at most 3 times (then exit code 5). Rows and pieces
//! of the node are cached only while its sources are unchanged. A worker checks before it stores blocks.
//!
//! Digests of local files are cached by size, mtime, ctime, inode and device in `sources.json`. Files changed in the
//! last minute (a write through a memory map updates the time late) and files on read-only images are always read.
//!
//! **Remote sources** (`s3://`, `https://`, `hf://datasets/…`) are identified by their address. `run --refresh-sources`
//! reads them again and replaces the result of the same key. Servers are not asked for versions: `plan` would wait for
//! the network, and not all servers report versions correctly. A version that is read before the content would also be
//! a weaker key.
//!
//! **Files of the Hub** (`Source::Fetched`) are fetched by a run before the key is computed, and then identified by
//! content. A branch (`Source::Awaited`) is resolved to a commit first. Until then `plan` reports that the node waits.
//!
//! **Programs** of the system are identified by their `--version` output, queried once per run, or else by content.

mod boundary;
mod canonical;
mod digest;
mod identity;
mod node_key;
mod row_key;
mod seen;
mod source;

pub(crate) use boundary::{is_boundary, mark};
pub(crate) use canonical::encode;
pub use digest::{DIGEST_NAME, Digest, hash_bytes, hash_file};
pub(crate) use digest::{hash_reader, sha256_bytes, sha256_file};
pub use identity::{identity_params, row_params};
pub use node_key::{
    InputIdentity, KEY_FORMAT, NodeIdentity, NodeKey, OutputIdentity, Preimage, Reason, SourceIdentity,
};
pub(crate) use node_key::{diff, differing_leaves};
pub(crate) use row_key::{Beside, base_on, block_key, calls_base, piece_key, pieces_base, told_base};
pub use row_key::{CallPlace, RowIdentity, RowKey, RowKeys, call_key};
pub use seen::{SeenFile, SeenSource, SeenSources};
pub use source::{AskVersion, SourceDigests, StatRecord};

pub use crate::operator::SourceProblem;

//! Content digests, canonical encoding, node keys, row keys, and key comparison. No other code hashes for identity.

mod boundary;
mod canonical;
mod diff;
mod digest;
mod identity;
mod node_key;
mod preimage;
mod row_key;
mod seen;
mod sha256;
mod source;

pub use boundary::{is_boundary, mark};
pub use canonical::encode;
pub use diff::{Reason, diff};
pub use digest::{DIGEST_NAME, Digest, hash_bytes, hash_file, hash_reader};
pub use identity::{identity_params, row_params};
pub use node_key::{InputIdentity, KEY_FORMAT, NodeIdentity, NodeKey, OutputIdentity, SourceIdentity};
pub use preimage::Preimage;
pub use row_key::{CallPlace, RowIdentity, RowKey, RowKeys, block_key, call_key, calls_base, piece_key};
pub use seen::{SeenFile, SeenSource, SeenSources};
pub use sha256::{sha256_bytes, sha256_file};
pub use source::{AskVersion, SourceDigests, StatRecord};

pub use crate::operator::SourceProblem;

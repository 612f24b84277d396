//! The only code that hashes: content digests, canonical encoding, node keys, row keys, and the difference of two keys.

mod boundary;
mod canonical;
mod diff;
mod digest;
mod identity;
mod node_key;
mod preimage;
mod row_key;
mod source;

pub use boundary::is_boundary;
pub use canonical::encode;
pub use diff::{Reason, diff};
pub use digest::{Digest, hash_bytes, hash_file, hash_reader};
pub use identity::{identity_params, row_params};
pub use node_key::{InputIdentity, KEY_FORMAT, NodeIdentity, NodeKey, OutputIdentity, SourceIdentity};
pub use preimage::Preimage;
pub use row_key::{RowKey, RowKeys, block_key};
pub use source::{Located, SourceDigests, SourceProblem, StatRecord};

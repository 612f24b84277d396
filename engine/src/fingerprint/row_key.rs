//! Row and block keys: a node's identity without its row input, and the columns of one row that the operator reads, or
//! the digest of one part of the input.

use arrow::array::{Array, RecordBatch};
use arrow::json::writer::{LineDelimited, WriterBuilder};
use serde_json::Value;

use super::canonical::encode;
use super::digest::{Digest, hash_bytes};

/// The key of one row's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey(pub Digest);

/// Makes the row keys of one node.
#[derive(Clone, Debug)]
pub struct RowKeys {
    base: Digest,
    columns: Vec<String>,
}

impl RowKeys {
    /// `base` is what all rows of the node have in common: the digest of an identity with the side inputs only, without
    /// the row input.
    #[must_use]
    pub fn new(base: Digest, columns: Vec<String>) -> Self {
        Self { base, columns }
    }

    /// The key of a row (a batch of one) and a sample.
    ///
    /// # Errors
    /// When a column that the operator reads is missing or cannot be encoded: then the row is not memoised.
    pub fn key(&self, row: &RecordBatch, sample: u32) -> Result<RowKey, String> {
        let schema = row.schema();
        let mut indices = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            match schema.index_of(name) {
                Ok(index) => indices.push(index),
                Err(_) => return Err(format!("the row has no column `{name}`")),
            }
        }
        let read = row.project(&indices).map_err(|error| error.to_string())?;
        let content = encode(&as_json(&read)?);
        let mut bytes = self.base.as_bytes().to_vec();
        bytes.extend(sample.to_be_bytes());
        bytes.extend(content);
        Ok(RowKey(hash_bytes(&bytes)))
    }
}

/// The key of what a node makes of one part of its row input: `base` is the node's identity without that input.
#[must_use]
pub fn block_key(base: &Digest, part: &Digest) -> RowKey {
    let mut bytes = b"block/1".to_vec();
    bytes.extend(base.as_bytes());
    bytes.extend(part.as_bytes());
    RowKey(hash_bytes(&bytes))
}

/// The key of what a node makes of one piece of its row input: `base` is the node's identity without that input.
#[must_use]
pub fn piece_key(base: &Digest, content: &[u8]) -> RowKey {
    let mut bytes = b"piece/1".to_vec();
    bytes.extend(base.as_bytes());
    bytes.extend(content);
    RowKey(hash_bytes(&bytes))
}

/// The key of one call for one row: its place among the row's calls, and what was asked.
#[must_use]
pub fn call_key(row: &RowKey, ordinal: u32, request: &[u8]) -> RowKey {
    let mut bytes = b"call/1".to_vec();
    bytes.extend(row.0.as_bytes());
    bytes.extend(ordinal.to_be_bytes());
    bytes.extend(request);
    RowKey(hash_bytes(&bytes))
}

fn as_json(row: &RecordBatch) -> Result<Value, String> {
    if row.columns().iter().any(|column| column.len() != 1) {
        return Err("a row key is made of exactly one row".to_owned());
    }
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    writer.write(row).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

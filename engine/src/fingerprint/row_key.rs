//! Row, block, piece and call keys.
//!
//! A row key combines a node's identity without its row input with the columns that decide the row's result. A block
//! key uses the digest of one part of the input instead, a call key what is sent.

use std::collections::HashMap;

use arrow::array::{Array, RecordBatch};
use arrow::json::writer::{LineDelimited, WriterBuilder};
use serde_json::{Map, Value, json};

use super::canonical::encode;
use super::digest::{Digest, hash_bytes};
use super::node_key::{InputIdentity, SourceIdentity};
use crate::endpoint::{EndpointUse, services_in};
use crate::spec::service_of;

/// The key of one row's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowKey(pub Digest);

/// Computes the row keys of one node.
#[derive(Clone, Debug)]
pub struct RowKeys {
    base: Digest,
    columns: Vec<String>,
    /// Number of equal rows seen so far, by the first bytes of their content's digest.
    seen: HashMap<u64, u32>,
}

/// Identifies a row: the content of the columns that decide its result, and its position among equal rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowIdentity {
    content: Digest,
    /// Number of equal rows before it: equal rows are separate requests.
    pub occurrence: u32,
}

impl RowKeys {
    /// Creates row keys. `base` is common to all rows of the node: the digest of its identity with the side inputs, but
    /// without the row input. `columns` decide a row's result.
    pub fn new(base: Digest, columns: Vec<String>) -> Self {
        Self { base, columns, seen: HashMap::new() }
    }

    /// Identifies the next row (a batch of one row). Rows must be passed in input order, each once.
    ///
    /// # Errors
    /// Fails if a column is missing or cannot be encoded; the row is then not cached.
    pub fn identify(&mut self, row: &RecordBatch) -> Result<RowIdentity, String> {
        let schema = row.schema();
        let mut indices = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            indices.push(schema.index_of(name).map_err(|_| format!("the row has no column `{name}`"))?);
        }
        let read = row.project(&indices).map_err(|error| error.to_string())?;
        // As JSON: the same values in another Arrow type give the same key.
        let content = hash_bytes(&encode(&as_json(&read)?));
        let seen = self.seen.entry(content.prefix()).or_default();
        let occurrence = *seen;
        *seen += 1;
        Ok(RowIdentity { content, occurrence })
    }

    /// Returns the key of a row and a sample.
    pub fn key(&self, row: &RowIdentity, sample: u32) -> RowKey {
        // Of fixed widths: pieces that follow each other cannot be read in two ways.
        let (sample, occurrence) = (sample.to_be_bytes(), row.occurrence.to_be_bytes());
        key_of(&[b"row/2", self.base.as_bytes(), &sample, &occurrence, row.content.as_bytes()])
    }
}

fn key_of(pieces: &[&[u8]]) -> RowKey {
    RowKey(hash_bytes(&pieces.concat()))
}

/// Returns the base of rows, parts and pieces that only one kind of processor, or one device, computes to the same
/// bytes: a result that mixed them could be reproduced nowhere.
pub(crate) fn base_on(base: &Digest, device: &str) -> Digest {
    key_of(&[b"on/1", base.as_bytes(), device.as_bytes()]).0
}

/// Returns the base of the pieces of nodes with that base: a separate memo, as its payloads are not rows.
pub(crate) fn pieces_base(base: &Digest) -> Digest {
    key_of(&[b"pieces/1", base.as_bytes()]).0
}

/// Returns the key of a node's result for one part of its row input. `base` is the node's identity without that input.
pub(crate) fn block_key(base: &Digest, part: &Digest) -> RowKey {
    key_of(&[b"block/1", base.as_bytes(), part.as_bytes()])
}

/// Returns the key of a node's result for one piece of its row input. `base` is the node's identity without that input.
pub(crate) fn piece_key(base: &Digest, content: &[u8]) -> RowKey {
    key_of(&[b"piece/1", base.as_bytes(), content])
}

/// What stands beside an endpoint in the key of its node, and may decide its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beside<'a> {
    /// Services of the node; null without services.
    pub services: &'a Value,
    /// Inputs of the node, those of services among them.
    pub inputs: &'a [InputIdentity],
    /// Files that the node reads, those of services among them.
    pub sources: &'a [SourceIdentity],
}

/// Returns the base of the calls to one model or service outside. Its `identity` says which weights answer, as far as the
/// params define it. If its address names services of the node, they decide the answers, with what they read: a name
/// alone does not identify weights that were made here. What a node only observes may use a service without naming it.
pub(crate) fn calls_base(endpoint: &EndpointUse, beside: &Beside<'_>, is_observed: bool) -> Digest {
    let text = format!("{} {}", endpoint.address, endpoint.identity);
    let all: Vec<&String> = beside.services.as_object().into_iter().flat_map(Map::keys).collect();
    let mut names = all.clone();
    names.retain(|name| services_in(&text).any(|named| named == *name));
    if names.is_empty() && is_observed {
        names = all;
    }
    if names.is_empty() {
        return key_of(&[b"calls/2", &encode(&endpoint.identity)]).0;
    }
    let mut inputs = Vec::new();
    for input in beside.inputs {
        if service_of(&input.port).is_some_and(|service| names.iter().any(|name| *name == service)) {
            inputs.push(json!([input.port, input.digest.hex()]));
        }
    }
    // `--limit` decides which rows are sent, not what is answered.
    let sources = beside.sources.iter().filter(|source| source.name != "--limit");
    let sources: Vec<Value> = sources.map(|source| json!([source.name, source.content])).collect();
    let services = names.into_iter().map(|name| (name.clone(), beside.services[name.as_str()].clone()));
    let services: Map<String, Value> = services.collect();
    let identity = json!({
        "endpoint": endpoint.identity,
        "address": endpoint.address,
        "services": services,
        "inputs": inputs,
        "sources": sources,
    });
    key_of(&[b"calls/2", &encode(&identity)]).0
}

/// Distinguishes calls that send the same request to the same model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallPlace {
    /// Seed of the node.
    pub seed: u64,
    /// Number of the sample.
    pub sample: u32,
    /// [`RowIdentity::occurrence`] of the row.
    pub occurrence: u32,
    /// Number of earlier calls of the row with this request.
    pub repeat: u32,
}

/// Returns the key of a call to the model of `base`. The request decides it, not the row, node, version or pipeline.
pub fn call_key(base: &Digest, request: &Digest, place: &CallPlace) -> RowKey {
    let numbers = [place.sample, place.occurrence, place.repeat].map(u32::to_be_bytes);
    key_of(&[b"call/2", base.as_bytes(), request.as_bytes(), &place.seed.to_be_bytes(), numbers.as_flattened()])
}

/// Returns the base of the failures of a service that one row was told. `base` belongs to the calls of the service.
pub(crate) fn told_base(base: &Digest, row: Option<&RowKey>) -> Digest {
    key_of(&[b"told/1", base.as_bytes(), row.map_or(&[][..], |row| row.0.as_bytes())]).0
}

fn as_json(row: &RecordBatch) -> Result<Value, String> {
    if row.columns().iter().any(|column| column.len() != 1) {
        return Err("a row key needs exactly one row".to_owned());
    }
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    writer.write(row).and_then(|()| writer.finish()).map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| error.to_string())
}

//! Weights from `.safetensors` files: one, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::safetensors::SliceSafetensors;
use candle_core::{DType, Device, Tensor};
use searchmill_engine::operator::OperatorError;
use serde::Deserialize;

use super::config::DecoderConfig;
use crate::files::broken;

/// File of weights without shards.
pub(crate) const SINGLE: &str = "model.safetensors";
/// Index of the shards' weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// Returns the `.safetensors` files of a model folder, each with the names of its tensors (empty: any).
fn files(folder: &Path) -> Result<Vec<(PathBuf, BTreeSet<String>)>, OperatorError> {
    let index = folder.join(INDEX);
    if folder.join(SINGLE).is_file() {
        return Ok(vec![(folder.join(SINGLE), BTreeSet::new())]);
    }
    if !index.is_file() {
        return Err(OperatorError::machine(format!("the model folder {} has no {SINGLE}", folder.display()))
            .with_help(format!(
                "a model folder holds `config.json`, `tokenizer.json`, and `{SINGLE}` or `{INDEX}` with its shards"
            )));
    }
    let text = std::fs::read(&index).map_err(|error| broken(&index, error))?;
    let read: ShardIndex = serde_json::from_slice(&text).map_err(|error| broken(&index, error))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in read.weight_map {
        shards.entry(file).or_default().insert(tensor);
    }
    let mut files = Vec::new();
    for (file, tensors) in shards {
        let path = folder.join(&file);
        // The index comes from the network: it must not name files elsewhere.
        if Path::new(&file).components().count() != 1 {
            return Err(broken(&index, format!("the shard `{file}` is not a file of this folder")));
        }
        if !path.is_file() {
            let (count, first) = (tensors.len(), tensors.first().cloned().unwrap_or_default());
            let problem = format!("the shard is missing; it should hold {count} tensors, `{first}` first");
            return Err(broken(&path, problem).with_help("download the model again, with all its files"));
        }
        files.push((path, tensors));
    }
    Ok(files)
}

/// Loads all tensors of a model folder.
///
/// # Errors
/// When a file is missing or not safetensors, or a shard lacks a tensor of the index. The message names file and tensor.
pub(crate) fn read_folder(folder: &Path, device: &Device, dtype: DType) -> Result<Tensors, OperatorError> {
    let mut all = Tensors::new();
    for (path, expected) in files(folder)? {
        let tensors = read_file(&path, device, dtype)?;
        if let Some(missing) = expected.iter().find(|name| !tensors.contains_key(*name)) {
            return Err(broken(&path, format!("missing tensor `{missing}`, which {INDEX} assigns to this shard")));
        }
        all.extend(tensors);
    }
    Ok(all)
}

/// Loads all tensors of a file.
///
/// # Errors
/// When it is not a complete safetensors file.
pub(crate) fn read_file(path: &Path, device: &Device, dtype: DType) -> Result<Tensors, OperatorError> {
    let bytes = std::fs::read(path).map_err(|error| broken(path, error))?;
    let file = SliceSafetensors::new(&bytes).map_err(|error| {
        broken(path, format!("not a complete safetensors file: {error}")).with_help("download it again")
    })?;
    let mut tensors = Tensors::new();
    for (name, _) in file.tensors() {
        let tensor = file.load(&name, device).and_then(|tensor| tensor.to_dtype(dtype));
        let tensor = tensor.map_err(|error| broken(path, format!("cannot read tensor `{name}`: {error}")))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Checks tensors against the configuration. Drops redundant ones (copies of tied embeddings, tables of rotary frequencies).
///
/// # Errors
/// When a tensor is missing, unexpected, or of another shape. The message names it, and with `origin` where it comes from.
pub(crate) fn checked(config: &DecoderConfig, tensors: Tensors, origin: &str) -> Result<Tensors, OperatorError> {
    let mut left = tensors;
    let mut taken = Tensors::new();
    for (name, shape) in config.tensors() {
        let Some(tensor) = left.remove(&name) else {
            return Err(OperatorError::data(format!("{origin}: missing tensor `{name}`"))
                .with_help("check that the checkpoint is complete and belongs to config.json"));
        };
        if tensor.dims() != shape {
            let rows = tensor.dims().first().copied().unwrap_or(0);
            // The usual mistake: a vocabulary that was enlarged after config.json was written.
            if shape[0] == config.vocab_size && rows != config.vocab_size {
                let message =
                    format!("{origin}: `{name}` has {rows} rows, but the vocabulary of config.json has {}", shape[0]);
                return Err(
                    OperatorError::data(message).with_help("set `vocab_size` in config.json to the checkpoint's")
                );
            }
            let dims = tensor.dims();
            let message = format!("{origin}: `{name}` has the shape {dims:?}, config.json expects {shape:?}");
            return Err(OperatorError::data(message));
        }
        taken.insert(name, tensor);
    }
    left.retain(|name, _| !name.ends_with(".rotary_emb.inv_freq") && name != "lm_head.weight");
    match left.keys().next() {
        None => Ok(taken),
        Some(extra) => Err(OperatorError::data(format!(
            "{origin}: unexpected tensor `{extra}`: config.json describes a model without it"
        ))
        .with_help(
            "config.json may belong to another model, or the checkpoint to a family other than Qwen2, Qwen3 and Llama",
        )),
    }
}

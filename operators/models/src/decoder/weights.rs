//! Weights from `.safetensors` files: one, or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use candle_core::safetensors::SliceSafetensors;
use candle_core::{DType, Device, Tensor};
use searchmill_engine::operator::OperatorError;
use serde::Deserialize;

use super::config::DecoderConfig;

/// The file of weights that are not cut into shards.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The file that says which shard has which weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

fn broken(path: &Path, problem: impl std::fmt::Display) -> OperatorError {
    OperatorError::data(format!("{}: {problem}", path.display()))
}

/// The `.safetensors` files of a model folder, each with the names of the tensors that it must have (none known: any).
fn files(folder: &Path) -> Result<Vec<(PathBuf, BTreeSet<String>)>, OperatorError> {
    let index = folder.join(INDEX);
    if folder.join(SINGLE).is_file() {
        return Ok(vec![(folder.join(SINGLE), BTreeSet::new())]);
    }
    if !index.is_file() {
        return Err(OperatorError::machine(format!("the model folder {} has no {SINGLE}", folder.display()))
            .with_help(format!(
                "a model folder holds config.json, tokenizer.json, and {SINGLE} or {INDEX} with its shards"
            )));
    }
    let text = std::fs::read(&index).map_err(|error| broken(&index, error))?;
    let read: ShardIndex = serde_json::from_slice(&text).map_err(|error| broken(&index, error))?;
    let mut shards: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in read.weight_map {
        shards.entry(file).or_default().insert(tensor);
    }
    shards.into_iter().map(|(file, tensors)| shard(folder, &index, file, tensors)).collect()
}

fn shard(
    folder: &Path,
    index: &Path,
    file: String,
    tensors: BTreeSet<String>,
) -> Result<(PathBuf, BTreeSet<String>), OperatorError> {
    let path = folder.join(&file);
    if Path::new(&file).components().count() != 1 {
        return Err(broken(index, format!("the shard `{file}` is not a file of that folder")));
    }
    if path.is_file() {
        return Ok((path, tensors));
    }
    let (count, first) = (tensors.len(), tensors.first().cloned().unwrap_or_default());
    Err(broken(&path, format!("the shard is missing; it should hold {count} tensors, `{first}` first"))
        .with_help("fetch the model again, with all its files"))
}

/// All tensors of a model folder.
///
/// # Errors
/// When a file is missing or cannot be read as safetensors, or a shard lacks what the index promises; the message names
/// the file and the tensor.
pub(crate) fn read_folder(folder: &Path, device: &Device, dtype: DType) -> Result<Tensors, OperatorError> {
    let mut all = Tensors::new();
    for (path, expected) in files(folder)? {
        let tensors = read_file(&path, device, dtype)?;
        if let Some(missing) = expected.iter().find(|name| !tensors.contains_key(*name)) {
            return Err(broken(&path, format!("there is no tensor `{missing}`, which {INDEX} puts there")));
        }
        all.extend(tensors);
    }
    Ok(all)
}

/// All tensors of one file.
///
/// # Errors
/// When it cannot be read as safetensors.
pub(crate) fn read_file(path: &Path, device: &Device, dtype: DType) -> Result<Tensors, OperatorError> {
    let bytes = std::fs::read(path).map_err(|error| broken(path, error))?;
    let file = SliceSafetensors::new(&bytes).map_err(|error| {
        broken(path, format!("this is no whole safetensors file: {error}")).with_help("fetch it again")
    })?;
    let mut tensors = Tensors::new();
    for (name, _) in file.tensors() {
        let tensor = file.load(&name, device).and_then(|tensor| tensor.to_dtype(dtype));
        let tensor = tensor.map_err(|error| broken(path, format!("the tensor `{name}` cannot be read: {error}")))?;
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// Checks tensors against the configuration, and drops those that are there for nothing (the copy of tied embeddings,
/// tables of rotary frequencies).
///
/// # Errors
/// Names the tensor that is missing, too many, or of another shape; `place` is where they come from.
pub(crate) fn checked(config: &DecoderConfig, tensors: Tensors, place: &str) -> Result<Tensors, OperatorError> {
    let mut left = tensors;
    let mut taken = Tensors::new();
    for (name, shape) in config.tensors() {
        let tensor = left.remove(&name).ok_or_else(|| missing(&name, place))?;
        check_shape(config, &name, &shape, &tensor, place)?;
        taken.insert(name, tensor);
    }
    let needless = |name: &str| name.ends_with(".rotary_emb.inv_freq") || name == "lm_head.weight";
    match left.keys().find(|name| !needless(name)) {
        None => Ok(taken),
        Some(extra) => Err(OperatorError::data(format!(
            "{place}: the tensor `{extra}` has no place in the model of its config.json"
        ))
        .with_help("is config.json that of another model, or the checkpoint not of the Qwen2, Qwen3 or Llama family?")),
    }
}

fn missing(name: &str, place: &str) -> OperatorError {
    OperatorError::data(format!("{place}: there is no tensor `{name}`"))
        .with_help("is the checkpoint complete, and config.json its own?")
}

fn check_shape(
    config: &DecoderConfig,
    name: &str,
    shape: &[usize],
    tensor: &Tensor,
    place: &str,
) -> Result<(), OperatorError> {
    if tensor.dims() == shape {
        return Ok(());
    }
    let rows = tensor.dims().first().copied().unwrap_or(0);
    if shape[0] == config.vocab_size && rows != config.vocab_size {
        let message = format!("{place}: `{name}` has {rows} rows, but the vocabulary of config.json has {}", shape[0]);
        return Err(OperatorError::data(message).with_help("set vocab_size in config.json to the checkpoint's"));
    }
    Err(OperatorError::data(format!(
        "{place}: `{name}` has the shape {:?}, config.json asks for {shape:?}",
        tensor.dims()
    )))
}

//! Files shared with an external trainer: examples for it, a folder for its model, a file for its metrics.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use searchmill_engine::fresh_folder;
use searchmill_engine::operator::OperatorError;
use searchmill_models::{on_path, paths_in};
use serde_json::Value;

/// Paths passed to the trainer.
pub(super) struct Files {
    pub(super) examples: PathBuf,
    pub(super) held_out: PathBuf,
    pub(super) output: PathBuf,
    pub(super) metrics: PathBuf,
}

/// Files of a checkpoint that are not part of the model: optimiser states, settings with paths of this machine.
const LEFT_BEHIND: [&str; 9] = [
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state.pth",
    "training_args.bin",
    "trainer_state.json",
    "args.json",
    "README.md",
    "logging.jsonl",
];
/// Files of a model that some checkpoints lack.
const TOKENIZER: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];
const ADAPTER: &str = "adapter_config.json";
/// Levels of folders below the output in which a model is looked for.
const DEEPEST: usize = 6;

impl Files {
    pub(super) fn at(folder: &Path) -> Self {
        let output = folder.join("output");
        Self {
            examples: folder.join("examples.jsonl"),
            held_out: folder.join("held_out.jsonl"),
            metrics: output.join("logging.jsonl"),
            output,
        }
    }

    /// Creates the folder anew and writes the rows.
    pub(super) fn make(folder: &Path, examples: &[String], held_out: &[String]) -> Result<Self, OperatorError> {
        let files = Self::at(&std::path::absolute(folder).map_err(on_path(folder))?);
        // A killed training starts over: nothing of it may be taken for the new one's.
        fresh_folder(folder).map_err(on_path(folder))?;
        fs::create_dir_all(&files.output).map_err(on_path(&files.output))?;
        write_lines(&files.examples, examples)?;
        write_lines(&files.held_out, held_out)?;
        Ok(files)
    }
}

fn write_lines(path: &Path, lines: &[String]) -> Result<(), OperatorError> {
    let mut file = BufWriter::new(fs::File::create(path).map_err(on_path(path))?);
    for line in lines {
        writeln!(file, "{line}").map_err(on_path(path))?;
    }
    // Dropping the writer would flush too, and lose the error of a full disk.
    file.flush().map_err(on_path(path))
}

/// Whether the folder holds a model or an adapter.
pub(super) fn holds_model(folder: &Path) -> bool {
    folder.join("config.json").is_file() || folder.join(ADAPTER).is_file()
}

/// Takes a trained model over from a folder to `to`. Copies the tokenizer from the base model if the trainer left none.
/// `moves`: its files are moved, but for those that are reached through a link: they may be the user's.
///
/// # Errors
/// When the folder holds no model, or its weights are truncated.
pub(super) fn take_model(from: &Path, base: &Path, to: &Path, moves: bool) -> Result<(), OperatorError> {
    if !holds_model(from) {
        let message = format!("the trainer left no model in {}: expected `config.json` or `{ADAPTER}`", from.display());
        return Err(OperatorError::data(message).with_help("save the model as transformers or PEFT do"));
    }
    let mut names: Vec<String> = Vec::new();
    for path in paths_in(from)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_file() && !LEFT_BEHIND.contains(&name.as_str()) && !name.starts_with("rng_state") {
            names.push(name);
        }
    }
    let mut has_weights = false;
    // All weights are checked before the first file is moved: a truncated one leaves the trainer's folder as it is.
    for name in names.iter().filter(|name| name.ends_with(".safetensors")) {
        read_header(&from.join(name))?;
        has_weights = true;
    }
    if !has_weights {
        let message = format!("the trainer left no .safetensors file in {}", from.display());
        let help = "save the weights as safetensors (`--safe_serialization true`)";
        return Err(OperatorError::data(message).with_help(help));
    }
    for name in &names {
        let (from, to) = (from.join(name), to.join(name));
        if moves && !from.is_symlink() {
            // Some trainers write weights that only their owner may read.
            let created = fs::File::create(&to).and_then(|file| file.metadata()).map_err(on_path(&to))?;
            // Renaming fails between file systems.
            if fs::rename(&from, &to).is_err() {
                fs::copy(&from, &to).map_err(on_path(&from))?;
            }
            fs::set_permissions(&to, created.permissions()).map_err(on_path(&to))?;
        } else {
            fs::copy(&from, &to).map_err(on_path(&to))?;
        }
    }
    for name in TOKENIZER {
        let (from, to) = (base.join(name), to.join(name));
        if !to.is_file() && from.is_file() {
            // The content alone: others may read the new file even if the base model is private.
            let content = fs::read(&from).map_err(on_path(&from))?;
            fs::write(&to, content).map_err(on_path(&to))?;
        }
    }
    if to.join(ADAPTER).is_file() { settle_adapter(&to.join(ADAPTER)) } else { Ok(()) }
}

/// Rejects a link in place of the folder that the trainer was given: what lies behind it may be of an earlier training.
///
/// # Errors
/// When it is one.
pub(super) fn check_output(output: &Path) -> Result<(), OperatorError> {
    if !output.is_symlink() {
        return Ok(());
    }
    let target = fs::read_link(output).map_err(on_path(output))?;
    let message = format!("the trainer replaced its output folder by a link to {}", target.display());
    Err(OperatorError::pipeline(message).with_help("let it write into `{output}`, or copy the model there at its end"))
}

/// Removes from an adapter's settings what differs between runs: the path of its base, and the order of a set.
fn settle_adapter(path: &Path) -> Result<(), OperatorError> {
    fn broken(error: serde_json::Error) -> OperatorError {
        OperatorError::data(format!("{ADAPTER}: {error}"))
    }
    let text = fs::read(path).map_err(on_path(path))?;
    let mut config: serde_json::Map<String, Value> = serde_json::from_slice(&text).map_err(broken)?;
    // Unequal files of equal trainings would look as if the training could not be repeated.
    config.insert("base_model_name_or_path".to_owned(), Value::Null);
    if let Some(Value::Array(targets)) = config.get_mut("target_modules") {
        targets.sort_by_key(ToString::to_string);
    }
    let text = serde_json::to_string_pretty(&config).map_err(broken)? + "\n";
    fs::write(path, text).map_err(on_path(path))
}

/// Returns the folder of the model that a program left: `output` itself, or the one below it with the highest step in
/// its path.
///
/// # Errors
/// When there is none, or several of the same step.
pub(super) fn newest_model(output: &Path) -> Result<PathBuf, OperatorError> {
    if holds_model(output) && !weights(output)?.is_empty() {
        return Ok(output.to_owned());
    }
    let Some((_, newest)) = models_by_step(output)?.pop_last() else { return Ok(output.to_owned()) };
    if let [one] = newest.as_slice() {
        return Ok(one.clone());
    }
    let names: Vec<_> = newest.iter().map(|path| path.display().to_string()).collect();
    let message = format!("the trainer left several models of one step: {}", names.join(", "));
    Err(OperatorError::data(message).with_help("let it leave one, or copy the wanted one into `{output}` itself"))
}

/// Returns the folders of models below `output`, by the step in their paths.
///
/// # Errors
/// When a folder cannot be read.
pub(super) fn models_by_step(output: &Path) -> Result<BTreeMap<u64, Vec<PathBuf>>, OperatorError> {
    let mut models: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for path in folders_below(output, DEEPEST)? {
        // A tokenizer or settings may be saved in a folder of their own, without weights.
        if holds_model(&path) && !weights(&path)?.is_empty() {
            models.entry(step_of(path.strip_prefix(output).unwrap_or(&path))).or_default().push(path);
        }
    }
    Ok(models)
}

/// Copies the TensorBoard files of a trainer below `to`, under the folders that they were in.
///
/// # Errors
/// If one cannot be copied.
pub(super) fn keep_tensorboard(output: &Path, to: &Path) -> Result<(), OperatorError> {
    let mut folders = folders_below(output, DEEPEST)?;
    folders.insert(0, output.to_owned());
    for folder in folders {
        for from in paths_in(&folder)? {
            let name = from.file_name().unwrap_or_default();
            // A link could name a file that is none of the trainer's.
            let is_file = fs::symlink_metadata(&from).map_err(on_path(&from))?.is_file();
            if !is_file || !name.to_string_lossy().contains("tfevents") {
                continue;
            }
            // TensorBoard names a curve after its folder: `runs/sft` must stay one.
            let to = to.join("tensorboard").join(folder.strip_prefix(output).unwrap_or(Path::new("")));
            fs::create_dir_all(&to).map_err(on_path(&to))?;
            fs::copy(&from, to.join(name)).map_err(on_path(&to))?;
        }
    }
    Ok(())
}

/// Returns all folders below one, in the order of their names. Leaves links out, which may name a folder again.
fn folders_below(folder: &Path, levels: usize) -> Result<Vec<PathBuf>, OperatorError> {
    if levels == 0 {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for path in paths_in(folder)? {
        // Of the entry itself, not of what a link leads to. A folder that cannot be looked at is an error: the model
        // may be in it.
        if fs::symlink_metadata(&path).map_err(on_path(&path))?.is_dir() {
            let below = folders_below(&path, levels - 1)?;
            all.push(path);
            all.extend(below);
        }
    }
    Ok(all)
}

/// Returns the last whole number in a path: 34 in `checkpoint-34`, 120 in `global_step_120/actor/huggingface`.
fn step_of(path: &Path) -> u64 {
    let text = path.display().to_string();
    let mut step = 0;
    for digits in text.split(|character: char| !character.is_ascii_digit()) {
        // The parts between other characters are empty; more digits than a step has are no step.
        step = digits.parse().unwrap_or(step);
    }
    step
}

/// Returns the safetensors files of a folder.
fn weights(folder: &Path) -> Result<Vec<PathBuf>, OperatorError> {
    let mut files = paths_in(folder)?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    Ok(files)
}

/// Returns the number of weights in a model folder or an adapter.
///
/// # Errors
/// When a file of weights is truncated.
pub(super) fn elements(folder: &Path) -> Result<u64, OperatorError> {
    let mut count = 0;
    for path in weights(folder)? {
        for tensor in read_header(&path)?.values() {
            // `__metadata__` is an entry of the header without a shape.
            let Some(Value::Array(shape)) = tensor.get("shape") else { continue };
            count += shape.iter().map(Value::as_u64).product::<Option<u64>>().unwrap_or_default();
        }
    }
    Ok(count)
}

/// Compares the header of a safetensors file with the file's length, to detect a truncated file. Returns the header.
fn read_header(path: &Path) -> Result<serde_json::Map<String, Value>, OperatorError> {
    let mut file = fs::File::open(path).map_err(on_path(path))?;
    let length = file.metadata().map_err(on_path(path))?.len();
    let mut count = [0; 8];
    if file.read_exact(&mut count).is_err() {
        return Err(truncated(path, "no header"));
    }
    let count = u64::from_le_bytes(count);
    // Checked before the buffer is allocated: the number may be garbage.
    if count > length.saturating_sub(8) {
        return Err(truncated(path, "the header is longer than the file"));
    }
    let mut header = vec![0; usize::try_from(count).unwrap_or_default()];
    file.read_exact(&mut header).map_err(on_path(path))?;
    let header: serde_json::Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| truncated(path, &format!("header: {error}")))?;
    let ends = header.values().filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    let announced = ends.max().unwrap_or_default() + 8 + count;
    if announced != length {
        return Err(truncated(path, &format!("header says {announced} bytes, found {length}")));
    }
    Ok(header)
}

fn truncated(path: &Path, problem: &str) -> OperatorError {
    OperatorError::data(format!("{} is not a complete safetensors file: {problem}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), "{}").unwrap();
        let tensor = candle_core::Tensor::zeros((3, 4), candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        tensor.save_safetensors("w", folder.join("model.safetensors")).unwrap();
    }

    #[test]
    fn the_newest_model_is_found_in_the_layouts_of_trainers() {
        for (folders, wanted) in [
            (&["checkpoint-9", "checkpoint-34"][..], "checkpoint-34"),
            (
                &["global_step_20/actor/huggingface", "global_step_120/actor/huggingface"],
                "global_step_120/actor/huggingface",
            ),
            (&["p/models/m/checkpoints/0009", "p/models/m/checkpoints/0010"], "p/models/m/checkpoints/0010"),
            (&["merged"], "merged"),
            (&["", "checkpoint-3"], ""),
        ] {
            let made = tempfile::tempdir().unwrap();
            for folder in folders {
                model(&made.path().join(folder));
            }
            // verl leaves a configuration without weights there.
            fs::create_dir_all(made.path().join("global_step_999/actor/huggingface")).unwrap();
            fs::write(made.path().join("global_step_999/actor/huggingface/config.json"), "{}").unwrap();
            let found = newest_model(made.path()).unwrap();
            assert_eq!(found, made.path().join(wanted), "{folders:?}");
            assert_eq!(elements(&found).unwrap(), 12);
        }
        let made = tempfile::tempdir().unwrap();
        model(&made.path().join("step_3/actor"));
        model(&made.path().join("step_3/critic"));
        let message = newest_model(made.path()).unwrap_err().message;
        assert!(message.contains("several models of one step: ") && message.contains("step_3/critic"), "{message}");
        let none = tempfile::tempdir().unwrap();
        assert_eq!(newest_model(none.path()).unwrap(), none.path(), "`take_model` reports it");
    }

    #[test]
    fn a_truncated_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensor = candle_core::Tensor::zeros((3, 4), candle_core::DType::F32, &candle_core::Device::Cpu).unwrap();
        tensor.save_safetensors("w", &path).unwrap();
        read_header(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for (cut, told) in [(bytes.len() - 1, "header says"), (9, "longer than the file"), (3, "no header")] {
            fs::write(&path, &bytes[..cut]).unwrap();
            let message = read_header(&path).unwrap_err().message;
            assert!(message.contains(told), "{message}");
        }
    }
}

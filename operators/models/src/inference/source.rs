//! Source of a decoder: a folder, a `.gguf` file, the Hugging Face hub, or another node of the pipeline.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use searchmill_engine::operator::{Context, Declaration, OperatorError, ParamIssue, Source, TreeInput};
use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use crate::decoder::{ADAPTER_CONFIG, Decoder, DecoderConfig, INDEX, SINGLE};
use crate::files::broken;
use crate::gguf;
use crate::location::{ModelPlace, Needs, main_branch};

/// A decoder and an adapter for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct ModelSource {
    /// A folder, a `.gguf` file, or a Hugging Face id (`Qwen/Qwen3-0.6B`) of a Qwen2, Qwen2.5, Qwen3 or Llama model. Weights of a
    /// `.gguf` file are dequantised to 32-bit numbers. Without it, the model comes from the input `model`.
    pub model: Option<String>,
    /// Branch, tag or commit of a Hugging Face model. A commit never changes.
    #[serde(default = "main_branch")]
    pub revision: String,
    /// Folder of a PEFT LoRA adapter for the model.
    pub adapter: Option<String>,
}

/// The variant of a model that is an adapter for another one.
pub const ADAPTER: &str = "adapter";

/// The variant of a model that is one of its own.
pub const WHOLE: &str = "whole";

/// How an adapter is named.
pub const NAME_BOTH: &str = "name both: `model: [base, adapter]`";

/// The input that binds a model.
const INPUT: &str = "model";

/// Required files of a model folder, apart from the weights.
const FILES: &[&str] = &["config.json", "tokenizer.json"];
/// Optional files next to a `.gguf` file, which replace its own content. All but the first are optional in any model.
const BESIDE: &[&str] = &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];
const NEEDS: Needs = Needs { files: FILES, whole_folder: true, beside: BESIDE };

/// Reports an adapter without its base, as far as it is known before the run what is bound to `model`.
pub fn lone_adapter(kinds: &[Option<&str>]) -> Vec<ParamIssue> {
    if kinds.is_empty() || kinds.iter().any(|kind| *kind != Some(ADAPTER)) {
        return Vec::new();
    }
    vec![ParamIssue::new("", "`model` is an adapter without its base").with_help(NAME_BOTH)]
}

impl ModelSource {
    /// Returns the issues, with paths below `path`.
    pub fn check(&self, path: &str) -> Vec<ParamIssue> {
        let mut issues = Vec::new();
        for (name, text, message) in [
            ("model", &self.model, "must name a folder or a Hugging Face id"),
            ("adapter", &self.adapter, "must name a folder"),
        ] {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                issues.push(ParamIssue::new(format!("{path}.{name}"), message));
            }
        }
        issues
    }

    fn place(&self, directory: &Path) -> Option<ModelPlace> {
        Some(ModelPlace::of(self.model.as_deref()?, &self.revision, directory))
    }

    /// Returns the files outside the pipeline that it reads; relative paths start at `directory`.
    pub fn sources(&self, directory: &Path) -> Vec<Source> {
        let mut sources = self.place(directory).map(|place| place.sources(NEEDS)).unwrap_or_default();
        if let Some(adapter) = &self.adapter {
            sources.push(Source::Path(adapter.clone()));
        }
        sources
    }

    /// Declares the files that it reads, what must be fetched, and that the input `model` is no adapter alone.
    pub fn declared(self, declaration: Declaration) -> Declaration {
        let (fetched, has_base) = (self.clone(), self.model.is_some());
        declaration
            .reads(move |directory| self.sources(directory))
            .fetches(move |context| fetched.fetch(context))
            .checks_variants(INPUT, move |kinds| if has_base { Vec::new() } else { lone_adapter(kinds) })
    }

    /// Resolves the revision of a repository to a commit.
    ///
    /// # Errors
    /// When the Hub cannot be reached.
    pub fn fetch(&self, context: &Context) -> Result<(), OperatorError> {
        match self.place(&context.resolve("")) {
            Some(place) => place.fetch(context),
            None => Ok(()),
        }
    }

    /// Returns those of a node's inputs that are used. Of several whole models without an adapter, only the last one is:
    /// `[base, student]` names the student, whether it is an adapter of its base or a whole model.
    pub fn used<'t>(&self, trees: &[&'t TreeInput]) -> Vec<&'t TreeInput> {
        // In a loop, `[base, policy]` binds an adapter after the first round or, with `merge`, a whole model.
        let has_adapter = self.adapter.is_some() || trees.iter().any(|tree| is_adapter(&tree.path));
        let first = if has_adapter { 0 } else { trees.len().saturating_sub(1) };
        trees[first..].to_vec()
    }

    /// Returns the folders of the model and of its adapter, downloaded if needed. `trees` are the node's inputs: a model, an
    /// adapter, or both; see [`ModelSource::used`].
    ///
    /// # Errors
    /// When there is no model, more than one adapter, an adapter and more than one model, or the download fails.
    pub fn folders(
        &self,
        trees: &[&TreeInput],
        context: &Context,
    ) -> Result<(PathBuf, Option<PathBuf>), OperatorError> {
        let (mut adapters, mut models) = (Vec::new(), Vec::new());
        for tree in self.used(trees) {
            if is_adapter(&tree.path) { adapters.push(tree.path.clone()) } else { models.push(tree.path.clone()) }
        }
        if let Some(place) = self.place(&context.resolve("")) {
            models.push(Self::fetched(&place, context)?);
        }
        if let Some(adapter) = &self.adapter {
            adapters.push(context.resolve(adapter));
        }
        match (one(adapters, "adapter")?, one(models, "model")?) {
            (adapter, Some(model)) => Ok((model, adapter)),
            (Some(_), None) => {
                let message = "an adapter is given without the model that it was trained for";
                Err(OperatorError::pipeline(message).with_help(NAME_BOTH))
            }
            (None, None) => Err(OperatorError::pipeline("no model is given").with_help(
                "bind one by `from: {model: …}` (with an adapter also its base: `model: [base, adapter]`), or name a \
                 folder or a Hugging Face id as `model`",
            )),
        }
    }

    /// Returns what identifies the weights: the commit of a repository and the digests of the node's inputs. `None` if a
    /// part is only known by its path.
    pub fn revision(&self, trees: &[&TreeInput], context: &Context) -> Option<String> {
        let mut parts = Vec::new();
        if let Some(place) = self.place(&context.resolve("")) {
            // A folder or a file is only known by its path.
            parts.push(place.commit()?);
        }
        parts.extend(trees.iter().map(|tree| tree.digest.clone()));
        parts.retain(|part| !part.is_empty());
        if self.adapter.is_some() || parts.is_empty() { None } else { Some(parts.join("+")) }
    }

    fn fetched(place: &ModelPlace, context: &Context) -> Result<PathBuf, OperatorError> {
        let opened = place.open(NEEDS, context)?;
        if !matches!(place, ModelPlace::Hub(_)) {
            return Ok(opened.path);
        }
        // Weights last: their presence means that the other files are complete.
        for file in &BESIDE[1..] {
            opened.has(file, context)?;
        }
        if opened.has(SINGLE, context)? {
            return Ok(opened.path);
        }
        if !opened.has(INDEX, context)? {
            return Err(missing(&opened.path, INDEX));
        }
        for shard in shards(&opened.path)? {
            if !opened.has(&shard, context)? {
                return Err(missing(&opened.path, &shard));
            }
        }
        Ok(opened.path)
    }
}

fn missing(folder: &Path, file: &str) -> OperatorError {
    OperatorError::data(format!("{}: the repository has no {file}", folder.display()))
        .with_help("the repository must hold weights as .safetensors files")
}

/// Returns the files of a model folder or of a `.gguf` file: those that inference and training read.
///
/// # Errors
/// When there are no weights, or the index of shards is broken.
pub fn model_files(path: &Path) -> Result<Vec<PathBuf>, OperatorError> {
    let gguf = gguf::file_of(path)?;
    let folder = match &gguf {
        Some(file) => file.parent().unwrap_or(Path::new("")),
        None => path,
    };
    let mut files = vec![folder.join("config.json")];
    files.extend(BESIDE.iter().map(|name| folder.join(name)));
    files.retain(|path| path.is_file());
    let others = files.len();
    if let Some(file) = &gguf {
        files.push(file.clone());
    } else if folder.join(SINGLE).is_file() {
        files.push(folder.join(SINGLE));
    } else {
        if folder.join(INDEX).is_file() {
            files.push(folder.join(INDEX));
        }
        files.extend(shards(folder)?.into_iter().map(|shard| folder.join(shard)));
    }
    if files.len() == others {
        let message = format!("{} has no weights (`{SINGLE}`, or shards with `{INDEX}`)", folder.display());
        return Err(OperatorError::data(message));
    }
    Ok(files)
}

/// Checks that the files of a model folder are complete: the configuration is that of a decoder, and weights have the
/// length that their headers announce. (A `.gguf` file is checked when it is opened.)
///
/// # Errors
/// When a file is cut off or broken.
pub fn check_files(folder: &Path) -> Result<(), OperatorError> {
    if gguf::file_of(folder)?.is_some() {
        return Ok(());
    }
    Decoder::read_config(folder)?;
    for file in model_files(folder)?.iter().filter(|file| file.extension().is_some_and(|end| end == "safetensors")) {
        check_weights(file).map_err(|problem| broken(file, problem))?;
    }
    Ok(())
}

fn check_weights(path: &Path) -> Result<(), String> {
    let mut file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let length = file.metadata().map_err(|error| error.to_string())?.len();
    let mut size = [0; 8];
    let cut_off = "the file is cut off before the end of its header";
    file.read_exact(&mut size).map_err(|_| cut_off)?;
    let header = u64::from_le_bytes(size);
    // Checked before the buffer is allocated: the number may be garbage.
    if header > length.saturating_sub(8) {
        return Err(cut_off.to_owned());
    }
    let mut text = vec![0; usize::try_from(header).map_err(|error| error.to_string())?];
    file.read_exact(&mut text).map_err(|_| cut_off)?;
    let tensors: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|error| format!("its header is not JSON: {error}"))?;
    let ends = tensors.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    let expected = 8 + header + ends.max().unwrap_or(0);
    if length == expected {
        return Ok(());
    }
    Err(format!("its header announces {expected} bytes, the file has {length}"))
}

fn is_adapter(folder: &Path) -> bool {
    folder.join(ADAPTER_CONFIG).is_file()
}

/// Returns the only item of a list, if any.
fn one(mut items: Vec<PathBuf>, what: &str) -> Result<Option<PathBuf>, OperatorError> {
    if items.len() > 1 {
        let help = "give a model, or a model and an adapter for it: `model: [base, adapter]`";
        return Err(OperatorError::pipeline(format!("expected one {what}, found {}", items.len())).with_help(help));
    }
    Ok(items.pop())
}

/// Returns the shards named by a folder's index.
fn shards(folder: &Path) -> Result<BTreeSet<String>, OperatorError> {
    let index = read_json(&folder.join(INDEX))?;
    // The map names the file of each tensor: a set of the files, in the order of their names.
    let mut files = BTreeSet::new();
    if let Some(map) = index["weight_map"].as_object() {
        files.extend(map.values().filter_map(|file| file.as_str().map(str::to_owned)));
    }
    Ok(files)
}

/// Reads a JSON file; null if it does not exist.
fn read_json(path: &Path) -> Result<serde_json::Value, OperatorError> {
    match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text)
            .map_err(|error| OperatorError::data(format!("{} is not JSON: {error}", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(serde_json::Value::Null),
        Err(error) => Err(OperatorError::machine(format!("cannot read {}: {error}", path.display()))),
    }
}

/// Reads the tokens that end a turn from the model's files.
///
/// # Errors
/// When a file is broken: a model that does not stop gives other answers.
pub(super) fn stop_tokens(
    folder: &Path,
    config: &DecoderConfig,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, OperatorError> {
    let mut tokens = BTreeSet::new();
    if let Some(ids) = &config.eos_token_id {
        tokens.extend(ids.all());
    }
    // One id, or a list.
    let generation = &read_json(&folder.join("generation_config.json"))?["eos_token_id"];
    let listed = generation.as_array().map_or(std::slice::from_ref(generation), Vec::as_slice);
    for id in listed.iter().filter_map(serde_json::Value::as_u64) {
        tokens.extend(u32::try_from(id));
    }
    let eos = &read_json(&folder.join("tokenizer_config.json"))?["eos_token"];
    if let Some(named) = eos.as_str().or(eos["content"].as_str()) {
        tokens.extend(tokenizer.token_to_id(named));
    }
    // The end of a message in ChatML and in Llama's format. Base models name only the end of a text.
    for end in ["<|im_end|>", "<|eot_id|>"] {
        tokens.extend(tokenizer.token_to_id(end));
    }
    Ok(tokens.into_iter().collect())
}

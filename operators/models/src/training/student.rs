//! The model in training: which of its weights are trained, and how they are saved.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use schemars::JsonSchema;
use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use crate::decoder::{
    ADAPTER_CONFIG, ADAPTER_WEIGHTS, Adapter, AdapterConfig, Decoder, DecoderConfig, SINGLE, Tensors,
    adapter_tensor_name, failed, layer_name,
};
use crate::device::Compute;
use crate::files::on_path;

/// Which weights are trained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum Tuning {
    /// All weights; the output is a full model.
    #[default]
    Full,
    /// A low-rank adapter of some modules (Hu et al. 2021); the output is a PEFT adapter.
    Lora(LoraParams),
}

impl Tuning {
    /// Returns the number of trained parameters of a model.
    pub fn trained_parameters(&self, config: &DecoderConfig) -> u64 {
        let Self::Lora(lora) = self else { return config.parameter_count() as u64 };
        let mut count = 0;
        for (_, outputs, inputs) in modules(config, &lora.targets()) {
            count += (lora.rank * (outputs + inputs)) as u64;
        }
        count
    }
}

/// Options of LoRA, with the defaults of ms-swift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct LoraParams {
    /// Rank of the adapter.
    #[schemars(range(min = 1))]
    pub rank: usize,
    /// The adapter's output is multiplied by alpha / rank.
    pub alpha: f64,
    /// Dropout of the adapter's inputs (0 to under 1).
    pub dropout: f64,
    /// Adapted modules: `all-linear`, or any of `q_proj`, `k_proj`, `v_proj`, `o_proj`, `gate_proj`, `up_proj`,
    /// `down_proj`.
    pub target_modules: Vec<String>,
    /// Output the full model with the adapter merged into it, instead of the adapter.
    pub merge: bool,
}

impl Default for LoraParams {
    fn default() -> Self {
        let target_modules = vec![ALL_LINEAR.to_owned()];
        Self { rank: 8, alpha: 32.0, dropout: 0.05, target_modules, merge: false }
    }
}

/// All linear layers except the output layer.
pub const ALL_LINEAR: &str = "all-linear";
/// The linear layers of a block.
pub const MODULES: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

impl LoraParams {
    /// Returns the adapted modules in the order of the network.
    pub fn targets(&self) -> Vec<&'static str> {
        let mut targets = MODULES.to_vec();
        targets.retain(|name| self.target_modules.iter().any(|target| target == ALL_LINEAR || target == name));
        targets
    }

    /// Checks that an adapter is one of these options. Dropout and the form of the output may differ.
    fn check(&self, adapter: &Adapter, model: &DecoderConfig) -> Result<(), OperatorError> {
        let (rank, alpha) = (adapter.config.r, adapter.config.scale() * adapter.config.r as f64);
        let wanted: BTreeSet<String> = modules(model, &self.targets()).into_iter().map(|(module, ..)| module).collect();
        let differs = if rank != self.rank {
            format!("has rank {rank}, and `tuning.lora.rank` is {}", self.rank)
        // The adapter's alpha is its scale times its rank: equal up to rounding.
        } else if (alpha - self.alpha).abs() > 1e-9 * alpha.abs() {
            format!("has alpha {alpha}, and `tuning.lora.alpha` is {}", self.alpha)
        } else if !adapter.modules.keys().eq(&wanted) {
            format!("adapts {}, and `tuning.lora.target_modules` names others", adapter.config.target_modules)
        } else {
            return Ok(());
        };
        let message = format!("the adapter that is trained further {differs}");
        Err(OperatorError::pipeline(message)
            .with_help("write what the adapter has, or begin a new one from its base alone"))
    }
}

/// The model in training.
pub struct Student {
    pub decoder: Decoder,
    /// Trained weights, by their names in the output file.
    pub weights: BTreeMap<String, Var>,
    adapter: Option<(AdapterConfig, bool)>,
    pub compute: Compute,
}

impl Student {
    /// Loads a model folder. Trained weights are kept in f32, frozen ones in the precision of the computation.
    pub fn load(folder: &Path, tuning: &Tuning, seed: u64, compute: &Compute) -> Result<Self, OperatorError> {
        if let Tuning::Lora(params) = tuning {
            return Self::adapted(Decoder::load(folder, &compute.device, compute.dtype)?, params, seed, compute);
        }
        let loaded = Decoder::load(folder, &compute.device, DType::F32)?;
        let (mut weights, mut tensors) = (BTreeMap::new(), Tensors::new());
        for (name, tensor) in loaded.parameters() {
            let weight = Var::from_tensor(&tensor).map_err(failed)?;
            tensors.insert(name.clone(), weight.as_tensor().clone());
            weights.insert(name, weight);
        }
        // The network is built again on the variables, so that it computes with what the optimiser sets.
        let decoder = Decoder::from_weights(loaded.config().clone(), tensors)?.computing_in(compute.dtype);
        Ok(Self { decoder, weights, adapter: None, compute: compute.clone() })
    }

    /// Attaches a new adapter to a model.
    pub(crate) fn adapted(
        decoder: Decoder,
        params: &LoraParams,
        seed: u64,
        compute: &Compute,
    ) -> Result<Self, OperatorError> {
        let mut pairs = BTreeMap::new();
        for (number, (module, outputs, inputs)) in modules(decoder.config(), &params.targets()).into_iter().enumerate()
        {
            let pair = pair(params.rank, outputs, inputs, seed, number as u64, &compute.device).map_err(failed)?;
            pairs.insert(module, pair);
        }
        Self::training(decoder, params, pairs, compute)
    }

    /// Loads a model folder and an adapter of it that is trained further.
    ///
    /// # Errors
    /// If the adapter is not what `params` describe, or a folder cannot be read.
    pub fn going_on(
        folder: &Path,
        adapter: &Path,
        params: &LoraParams,
        compute: &Compute,
    ) -> Result<Self, OperatorError> {
        let decoder = Decoder::load(folder, &compute.device, compute.dtype)?;
        // Checked before it is trained: a saved adapter with other settings would be another experiment.
        let adapter = Adapter::load(adapter, decoder.config(), &compute.device, DType::F32)?;
        params.check(&adapter, decoder.config())?;
        let mut pairs = BTreeMap::new();
        for (module, (a, b)) in adapter.modules {
            let pair = (Var::from_tensor(&a).map_err(failed)?, Var::from_tensor(&b).map_err(failed)?);
            pairs.insert(module, pair);
        }
        Self::training(decoder, params, pairs, compute)
    }

    /// Loads a model that is only evaluated, with its adapter if it has one.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn frozen(folder: &Path, adapter: Option<&Path>, compute: &Compute) -> Result<Self, OperatorError> {
        let mut decoder = Decoder::load(folder, &compute.device, DType::F32)?;
        if let Some(adapter) = adapter {
            decoder.attach(&Adapter::load(adapter, decoder.config(), &compute.device, DType::F32)?)?;
        }
        let decoder = decoder.computing_in(compute.dtype);
        Ok(Self { decoder, weights: BTreeMap::new(), adapter: None, compute: compute.clone() })
    }

    /// Attaches the adapter whose parts are trained.
    fn training(
        mut decoder: Decoder,
        params: &LoraParams,
        pairs: BTreeMap<String, (Var, Var)>,
        compute: &Compute,
    ) -> Result<Self, OperatorError> {
        let config = AdapterConfig::new(params.rank, params.alpha, params.dropout, &params.targets());
        let mut adapter = Adapter { config: config.clone(), modules: BTreeMap::new() };
        let mut weights = BTreeMap::new();
        for (module, (a, b)) in pairs {
            adapter.modules.insert(module.clone(), (a.as_tensor().clone(), b.as_tensor().clone()));
            weights.insert(adapter_tensor_name(&module, "lora_A"), a);
            weights.insert(adapter_tensor_name(&module, "lora_B"), b);
        }
        // The adapter's tensors are the variables, so that the network sees each update.
        decoder.attach(&adapter)?;
        Ok(Self { decoder, weights, adapter: Some((config, params.merge)), compute: compute.clone() })
    }

    /// Whether the output layer is trained.
    pub(crate) fn trains_head(&self) -> bool {
        self.adapter.is_none()
    }

    /// Returns the number of trained parameters.
    pub fn trainable(&self) -> usize {
        self.weights.values().map(|var| var.elem_count()).sum()
    }

    /// Writes a model folder or an adapter that transformers, PEFT and vLLM can load. Tokenizer and chat template are copied
    /// from the base model.
    pub fn write(&self, from: &Path, to: &Path) -> Result<(), OperatorError> {
        for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"] {
            copy(from, to, name)?;
        }
        if let Some((config, false)) = &self.adapter {
            let text =
                serde_json::to_string_pretty(config).map_err(|error| OperatorError::engine(error.to_string()))?;
            let path = to.join(ADAPTER_CONFIG);
            std::fs::write(&path, text + "\n").map_err(on_path(&path))?;
            return write_tensors(&self.tensors(), &to.join(ADAPTER_WEIGHTS));
        }
        copy(from, to, "generation_config.json")?;
        let (from, path) = (from.join("config.json"), to.join("config.json"));
        let text = std::fs::read(&from).map_err(on_path(&from))?;
        let mut config: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(bad_config)?;
        // The weights are written in f32. Newer releases of transformers write `dtype`; beside it, a second key would
        // contradict it.
        let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        config.insert(key.to_owned(), "float32".into());
        let text = serde_json::to_string_pretty(&config).map_err(bad_config)? + "\n";
        std::fs::write(&path, text).map_err(on_path(&path))?;
        let tensors = if self.adapter.is_some() { self.merged().map_err(failed)? } else { self.tensors() };
        write_tensors(&tensors, &to.join(SINGLE))
    }

    fn tensors(&self) -> Tensors {
        self.weights.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect()
    }

    /// Returns the model's weights with the adapter merged into them.
    fn merged(&self) -> candle_core::Result<Tensors> {
        let mut tensors = self.decoder.merged_parameters()?;
        for tensor in tensors.values_mut() {
            *tensor = tensor.to_dtype(DType::F32)?;
        }
        Ok(tensors)
    }
}

/// Returns names, outputs and inputs of the adapted modules, layer by layer.
fn modules(config: &DecoderConfig, targets: &[&str]) -> Vec<(String, usize, usize)> {
    let mut modules = Vec::new();
    for layer in 0..config.num_hidden_layers {
        for (name, outputs, inputs) in config.projections() {
            if targets.iter().any(|target| name.ends_with(target)) {
                modules.push((layer_name(layer, name), outputs, inputs));
            }
        }
    }
    modules
}

/// Creates the adapter of a module as PEFT does: `a` (rank × inputs) uniform in ±1/√inputs, `b` 0.
fn pair(
    rank: usize,
    outputs: usize,
    inputs: usize,
    seed: u64,
    number: u64,
    device: &Device,
) -> candle_core::Result<(Var, Var)> {
    // A stream of its own for each module: what it starts with does not depend on the other ones.
    let mut chance = ChaCha8Rng::seed_from_u64(seed);
    chance.set_stream(number);
    let bound = 1.0 / (inputs as f32).sqrt();
    let numbers: Vec<f32> = (0..rank * inputs).map(|_| chance.random_range(-bound..bound)).collect();
    let a = Var::from_vec(numbers, (rank, inputs), device)?;
    Ok((a, Var::from_tensor(&Tensor::zeros((outputs, rank), DType::F32, device)?)?))
}

/// Copies a file's content, not its permissions: others may read the new one even if the base model is private.
fn copy(from: &Path, to: &Path, name: &str) -> Result<(), OperatorError> {
    let (from, to) = (from.join(name), to.join(name));
    if !from.is_file() {
        return Ok(());
    }
    let content = std::fs::read(&from).map_err(on_path(&from))?;
    std::fs::write(&to, content).map_err(on_path(&to))
}

fn bad_config(error: serde_json::Error) -> OperatorError {
    OperatorError::data(format!("config.json: {error}"))
}

/// Writes tensors in the form that transformers reads.
fn write_tensors(tensors: &Tensors, path: &Path) -> Result<(), OperatorError> {
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let tensors = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    // The library replaces the file by one that only its owner may read.
    let created = std::fs::File::create(path).and_then(|file| file.metadata()).map_err(on_path(path))?;
    safetensors::serialize_to_file(tensors, Some(metadata), path)
        .map_err(|error| OperatorError::machine(format!("cannot write {}: {error}", path.display())))?;
    std::fs::set_permissions(path, created.permissions()).map_err(on_path(path))
}

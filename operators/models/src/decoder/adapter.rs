//! LoRA adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use searchmill_engine::operator::OperatorError;
use serde::{Deserialize, Serialize};

use super::config::{DecoderConfig, layer_name};
use super::weights;
use crate::files::broken;

pub(crate) const CONFIG: &str = "adapter_config.json";
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";
const PREFIX: &str = "base_model.model.";

/// Content of `adapter_config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdapterConfig {
    pub peft_type: String,
    /// Rank.
    pub r: usize,
    pub lora_alpha: f64,
    #[serde(default)]
    pub lora_dropout: f64,
    /// Divide by the square root of the rank instead of the rank (Kalajdzievski 2023, arXiv:2312.03732).
    #[serde(default)]
    pub(crate) use_rslora: bool,
    #[serde(default)]
    pub base_model_name_or_path: Option<String>,
    #[serde(default)]
    pub target_modules: serde_json::Value,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

impl AdapterConfig {
    /// Creates the configuration of a new adapter of these modules (`q_proj`, …).
    pub fn new(rank: usize, alpha: f64, dropout: f64, targets: &[&str]) -> Self {
        // What PEFT and vLLM expect to be there.
        let rest = [
            ("bias", serde_json::json!("none")),
            ("task_type", serde_json::json!("CAUSAL_LM")),
            ("inference_mode", serde_json::json!(true)),
            ("fan_in_fan_out", serde_json::json!(false)),
            ("modules_to_save", serde_json::Value::Null),
        ];
        Self {
            peft_type: "LORA".to_owned(),
            r: rank,
            lora_alpha: alpha,
            lora_dropout: dropout,
            use_rslora: false,
            base_model_name_or_path: None,
            target_modules: targets.iter().map(|name| (*name).to_owned()).collect(),
            rest: rest.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        }
    }

    /// Returns the factor of the adapter's product.
    pub fn scale(&self) -> f64 {
        // An adapter of rank 0 is reported with its tensors.
        let rank = self.r.max(1) as f64;
        self.lora_alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }

    /// Returns a feature of the adapter that is not supported, if any.
    fn unknown(&self) -> Option<String> {
        if self.peft_type != "LORA" {
            return Some(format!("the adapter is of type {}, not LORA", self.peft_type));
        }
        for name in
            ["use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "layer_replication"]
        {
            // PEFT writes all settings, those that are off with an empty value.
            if self.rest.get(name).is_some_and(|value| !is_nothing(value)) {
                return Some(format!("`{name}` is not supported"));
            }
        }
        match self.rest.get("bias") {
            Some(bias) if !is_nothing(bias) && bias != "none" => Some(format!("the bias {bias} is not supported")),
            _ => None,
        }
    }
}

fn is_nothing(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::Null | serde_json::Value::Bool(false) => true,
        serde_json::Value::Array(items) => items.is_empty(),
        serde_json::Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// An adapter: `a` (rank × inputs) and `b` (outputs × rank) of each adapted module, by the module's full name
/// (`model.layers.0.self_attn.q_proj`).
#[derive(Clone)]
pub struct Adapter {
    pub config: AdapterConfig,
    pub modules: BTreeMap<String, (Tensor, Tensor)>,
}

/// Returns the name of an adapter's tensor in PEFT's files; `part` is `lora_A` or `lora_B`.
pub fn tensor_name(module: &str, part: &str) -> String {
    format!("{PREFIX}{module}.{part}.weight")
}

impl Adapter {
    /// Loads an adapter's folder.
    ///
    /// # Errors
    /// When a file is missing or broken, or the adapter does not fit the model. The message names file and tensor.
    pub fn load(folder: &Path, model: &DecoderConfig, device: &Device, dtype: DType) -> Result<Self, OperatorError> {
        let (path, file) = (folder.join(CONFIG), folder.join(WEIGHTS));
        let text = std::fs::read(&path).map_err(|error| broken(&path, error))?;
        let config: AdapterConfig = serde_json::from_slice(&text).map_err(|error| broken(&path, error))?;
        if let Some(problem) = config.unknown() {
            return Err(broken(&path, problem).with_help("merge the adapter into its model and use the merged model"));
        }
        let tensors = weights::read_file(&file, device, dtype)?;
        Self { config, modules: BTreeMap::new() }.filled(tensors, model, &file)
    }

    /// Takes the tensors of all modules. An adapter need not have all modules, but both tensors of each.
    fn filled(
        mut self,
        mut tensors: weights::Tensors,
        model: &DecoderConfig,
        file: &Path,
    ) -> Result<Self, OperatorError> {
        for layer in 0..model.num_hidden_layers {
            for (name, outputs, inputs) in model.projections() {
                let module = layer_name(layer, name);
                let [first, second] = ["lora_A", "lora_B"].map(|part| tensor_name(&module, part));
                let (a, b) = match (tensors.remove(&first), tensors.remove(&second)) {
                    (None, None) => continue,
                    (Some(a), Some(b)) => (a, b),
                    (None, _) => return Err(broken(file, format!("missing tensor `{first}`"))),
                    (_, None) => return Err(broken(file, format!("missing tensor `{second}`"))),
                };
                for (name, tensor, shape) in
                    [(first, &a, [self.config.r, inputs]), (second, &b, [outputs, self.config.r])]
                {
                    if tensor.dims() != shape {
                        let problem = format!("`{name}` has the shape {:?}, not {shape:?}", tensor.dims());
                        return Err(broken(file, problem).with_help("use the model that the adapter was trained for"));
                    }
                }
                self.modules.insert(module, (a, b));
            }
        }
        match tensors.keys().next() {
            Some(extra) => Err(broken(file, format!("unexpected tensor `{extra}`: the model has no such module"))),
            None if self.modules.is_empty() => Err(broken(file, "no adapter weights")),
            None => Ok(self),
        }
    }
}

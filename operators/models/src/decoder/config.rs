//! A decoder's `config.json`, with the field names of Hugging Face's configurations.

use searchmill_engine::operator::OperatorError;
use serde::Deserialize;

/// A family of decoders, with the differences between their blocks in [`DecoderConfig::has_bias`] and
/// [`DecoderConfig::query_key_norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Qwen2 and Qwen2.5 (Qwen team 2024, arXiv:2412.15115): biases of queries, keys and values.
    Qwen2,
    /// Qwen3, dense (Qwen team 2025, arXiv:2505.09388): queries and keys of each head are normalised; biases only if the
    /// configuration has them.
    Qwen3,
    /// Llama 2 and 3 (Grattafiori et al. 2024, arXiv:2407.21783), and models with their layout.
    Llama,
}

/// Configuration of a decoder.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct DecoderConfig {
    /// The family, as Hugging Face writes it: `qwen2`, `qwen3` or `llama`.
    pub model_type: Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_positions")]
    pub max_position_embeddings: usize,
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f64,
    rope_theta: Option<f64>,
    rope_scaling: Option<RopeScaling>,
    /// Replaces `rope_theta` and `rope_scaling` in newer versions.
    rope_parameters: Option<RopeScaling>,
    #[serde(default)]
    pub tie_word_embeddings: bool,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    #[serde(default = "default_activation")]
    hidden_act: String,
    #[serde(default)]
    use_sliding_window: bool,
    pub eos_token_id: Option<TokenIds>,
}

/// `rope_scaling` of a configuration (`rope_parameters` in newer ones).
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct RopeScaling {
    #[serde(default = "default_rope_type", alias = "type")]
    pub(super) rope_type: String,
    rope_theta: Option<f64>,
    pub(super) factor: Option<f64>,
    pub(super) low_freq_factor: Option<f64>,
    pub(super) high_freq_factor: Option<f64>,
    pub(super) original_max_position_embeddings: Option<f64>,
    pub(super) attention_factor: Option<f64>,
    pub(super) beta_fast: Option<f64>,
    pub(super) beta_slow: Option<f64>,
}

fn default_rope_type() -> String {
    "default".to_owned()
}

impl RopeScaling {
    fn check(&self) -> Result<(), String> {
        let kind = self.rope_type.as_str();
        if !matches!(kind, "default" | "linear" | "llama3" | "yarn") {
            return Err(format!("the rope scaling `{kind}` is not supported (default, linear, llama3, yarn)"));
        }
        match self.factor {
            None if kind != "default" => Err(format!("the rope scaling `{kind}` has no factor")),
            Some(factor) if factor < 1.0 => {
                Err(format!("the rope scaling's factor is {factor}, it must be at least 1"))
            }
            _ => Ok(()),
        }
    }
}

/// One token, or a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum TokenIds {
    One(u32),
    Many(Vec<u32>),
}

impl TokenIds {
    /// Returns all tokens.
    pub(crate) fn all(&self) -> &[u32] {
        match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        }
    }
}

fn default_positions() -> usize {
    4096
}

fn default_eps() -> f64 {
    1e-6
}

fn default_activation() -> String {
    "silu".to_owned()
}

impl DecoderConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// When it is not JSON, of an unsupported family, or inconsistent. The message names `file`.
    pub fn parse(text: &[u8], file: &str) -> Result<Self, OperatorError> {
        let config: Self = serde_json::from_slice(text).map_err(|error| {
            OperatorError::data(format!("{file}: {error}"))
                .with_help("the model must be a decoder of the Qwen2, Qwen2.5, Qwen3 or Llama family")
        })?;
        // Models in the wild have inconsistent files; found here, the message names the field.
        config.check().map_err(|problem| OperatorError::data(format!("{file}: {problem}")))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let counts = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.key_value_heads()),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} is 0"));
        }
        if self.hidden_act != "silu" {
            return Err(format!("the activation `{}` is not supported (`silu`)", self.hidden_act));
        }
        // Rejected rather than ignored: the model would see what it was not trained with.
        if self.use_sliding_window {
            return Err("attention over a sliding window (use_sliding_window) is not supported".to_owned());
        }
        let (heads, shared) = (self.num_attention_heads, self.key_value_heads());
        if !heads.is_multiple_of(shared) {
            return Err(format!("{shared} key-value heads do not divide {heads} attention heads"));
        }
        // A head's size is its own setting in newer families; else it is the heads' share of the dimensions.
        if self.head_dim.is_none() && !self.hidden_size.is_multiple_of(heads) {
            return Err(format!("{heads} attention heads do not divide {} dimensions", self.hidden_size));
        }
        // Each half of a head is one coordinate of the rotated pairs.
        if !self.head_dimensions().is_multiple_of(2) {
            return Err(format!("rotary positions need an even head_dim, not {}", self.head_dimensions()));
        }
        match self.rope() {
            Some(scaling) => scaling.check(),
            None => Ok(()),
        }
    }

    /// Returns the number of key/value heads.
    pub fn key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Returns the size of a head.
    pub fn head_dimensions(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Returns the base of the rotary frequencies.
    pub fn rope_theta(&self) -> f64 {
        // transformers 5 writes it there.
        let newer = self.rope_parameters.as_ref().and_then(|rope| rope.rope_theta);
        newer.or(self.rope_theta).unwrap_or(10_000.0)
    }

    /// Returns the rope scaling, if any.
    pub fn rope(&self) -> Option<&RopeScaling> {
        self.rope_scaling.as_ref().or(self.rope_parameters.as_ref())
    }

    /// Whether a linear map has a bias.
    fn has_bias(&self, projection: &str) -> bool {
        let in_attention = projection.starts_with("self_attn.");
        match self.model_type {
            Family::Qwen2 => in_attention && projection != "self_attn.o_proj",
            _ if in_attention => self.attention_bias.unwrap_or(false),
            Family::Qwen3 => false,
            Family::Llama => self.mlp_bias.unwrap_or(false),
        }
    }

    /// Whether the queries and keys of each head are normalised (root mean square).
    pub(super) fn query_key_norm(&self) -> bool {
        self.model_type == Family::Qwen3
    }

    /// Returns names and shapes of all weights, in the order of the network.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, self.hidden_size])];
        let (hidden, head) = (self.hidden_size, self.head_dimensions());
        for layer in 0..self.num_hidden_layers {
            all.push((layer_name(layer, "input_layernorm.weight"), vec![hidden]));
            for (name, outputs, inputs) in self.projections() {
                all.push((layer_name(layer, &format!("{name}.weight")), vec![outputs, inputs]));
                if self.has_bias(name) {
                    all.push((layer_name(layer, &format!("{name}.bias")), vec![outputs]));
                }
            }
            if self.query_key_norm() {
                all.push((layer_name(layer, "self_attn.q_norm.weight"), vec![head]));
                all.push((layer_name(layer, "self_attn.k_norm.weight"), vec![head]));
            }
            all.push((layer_name(layer, "post_attention_layernorm.weight"), vec![hidden]));
        }
        all.push(("model.norm.weight".to_owned(), vec![self.hidden_size]));
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab_size, self.hidden_size]));
        }
        all
    }

    /// Returns a layer's linear maps: name within the layer, outputs, inputs.
    pub fn projections(&self) -> [(&'static str, usize, usize); 7] {
        let (hidden, wide) = (self.hidden_size, self.intermediate_size);
        let queries = self.num_attention_heads * self.head_dimensions();
        let keys = self.key_value_heads() * self.head_dimensions();
        [
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", wide, hidden),
            ("mlp.up_proj", wide, hidden),
            ("mlp.down_proj", hidden, wide),
        ]
    }

    /// Returns the number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Returns the bytes of keys and values per token.
    pub(crate) fn cache_bytes_per_token(&self, number_bytes: usize) -> usize {
        2 * self.num_hidden_layers * self.key_value_heads() * self.head_dimensions() * number_bytes
    }
}

/// Returns the full name of a layer's tensor.
pub fn layer_name(layer: usize, name: &str) -> String {
    format!("model.layers.{layer}.{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(changes: serde_json::Value) -> Result<DecoderConfig, String> {
        let mut config = json!({"model_type": "qwen3", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16});
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        DecoderConfig::parse(config.to_string().as_bytes(), "config.json").map_err(|error| error.to_string())
    }

    #[test]
    fn families_differ_in_biases_and_norms() {
        let names = |family: &str| {
            let config = parse(json!({"model_type": family})).unwrap();
            config.tensors().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let has = |family: &str, name: &str| names(family).contains(&format!("model.layers.1.self_attn.{name}"));
        assert!(has("qwen2", "q_proj.bias") && !has("qwen2", "o_proj.bias") && !has("qwen2", "q_norm.weight"));
        assert!(has("qwen3", "k_norm.weight") && !has("qwen3", "q_proj.bias"));
        assert!(!has("llama", "q_norm.weight") && !has("llama", "q_proj.bias"));
        assert!(names("qwen3").contains(&"lm_head.weight".to_owned()));
        assert!(parse(json!({"tie_word_embeddings": true})).unwrap().tensors().len() + 1 == names("qwen3").len());
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (changes, told) in [
            (json!({"model_type": "gpt2"}), "unknown variant `gpt2`"),
            (json!({"num_key_value_heads": 3}), "3 key-value heads do not divide 4"),
            (json!({"hidden_act": "gelu"}), "`gelu` is not supported"),
            (json!({"head_dim": 15}), "even head_dim"),
            (json!({"vocab_size": 0}), "vocab_size is 0"),
            (json!({"use_sliding_window": true}), "sliding window"),
            (json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}), "`dynamic`"),
        ] {
            let error = parse(changes).unwrap_err();
            assert!(error.starts_with("config.json: ") && error.contains(told), "{error}");
        }
    }

    #[test]
    fn newer_configurations_are_read() {
        let config = parse(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).unwrap();
        assert_eq!(config.rope_theta(), 5e5);
        assert_eq!(
            config.parameter_count(),
            100 * 32 * 2 + 32 + 2 * (2 * 32 + 64 * 32 * 2 + 2 * 32 * 32 + 3 * 32 * 48 + 32)
        );
    }
}

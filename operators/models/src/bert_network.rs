//! BERT's forward pass on the CPU: texts are concatenated without padding, buffers are reused between batches, and the
//! loops between matrix products are vectorised.
//!
//! Devlin et al. 2019 (arXiv:1810.04805), with the names of Hugging Face's checkpoints.

use std::collections::HashMap;

use candle_core::{DType, Device, Tensor};
use searchmill_kernels::matrix::{View, multiply};
use searchmill_kernels::vectorized::{Activation, activate, add_and_normalize, softmax_rows};
use serde::Deserialize;

/// Content of `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BertConfig {
    pub(super) hidden_size: usize,
    pub(super) max_position_embeddings: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(default, with = "HiddenAct")]
    hidden_act: Activation,
    #[serde(default = "default_eps")]
    layer_norm_eps: f32,
}

fn default_eps() -> f32 {
    1e-12
}

#[derive(Deserialize)]
#[serde(remote = "Activation")]
enum HiddenAct {
    #[serde(rename = "gelu")]
    Gelu,
    #[serde(rename = "gelu_new", alias = "gelu_pytorch_tanh", alias = "gelu_fast")]
    GeluTanh,
    #[serde(rename = "relu")]
    Relu,
}

/// A linear layer: `weight` is outputs × inputs, row by row.
pub(super) struct Dense {
    pub(super) weight: Vec<f32>,
    pub(super) bias: Vec<f32>,
    pub(super) inputs: usize,
}

impl Dense {
    /// Computes rows of outputs from rows of `inputs` numbers.
    pub(super) fn apply(&self, rows: &[f32], out: &mut Vec<f32>) {
        let (count, outputs) = (rows.len() / self.inputs, self.bias.len());
        out.clear();
        // The product is added to the biases.
        for _ in 0..count {
            out.extend_from_slice(&self.bias);
        }
        let rows = View::new(rows, count, self.inputs);
        let weight = View::new(&self.weight, outputs, self.inputs).transposed();
        multiply(out, outputs, &rows, &weight, 1.0, true);
    }
}

pub(super) struct Norm {
    pub(super) scale: Vec<f32>,
    pub(super) shift: Vec<f32>,
}

/// A layer of linear layers `D` and norms `N`.
pub(super) struct Layer<D = Dense, N = Norm> {
    pub(super) query_key_value: D,
    pub(super) attention_output: D,
    pub(super) attention_norm: N,
    pub(super) intermediate: D,
    pub(super) output: D,
    pub(super) output_norm: N,
}

/// A loaded network.
pub(super) struct BertNetwork {
    pub(super) words: Vec<f32>,
    pub(super) positions: Vec<f32>,
    pub(super) types: Vec<f32>,
    pub(super) norm: Norm,
    pub(super) layers: Vec<Layer>,
    pub(super) hidden: usize,
    pub(super) heads: usize,
    pub(super) activation: Activation,
    pub(super) eps: f32,
}

/// Buffers of a thread, reused between batches.
#[derive(Default)]
pub(super) struct Scratch {
    projected: Vec<f32>,
    scores: Vec<f32>,
    context: Vec<f32>,
    wide: Vec<f32>,
    narrow: Vec<f32>,
}

/// The tokens of one text.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) ids: &'a [u32],
    /// Token types.
    pub(super) types: &'a [u32],
    /// Number of first tokens that all tokens attend to. The others see these but are not seen.
    pub(super) attended: usize,
}

impl<'a> Text<'a> {
    /// Returns a text whose tokens all attend to each other.
    pub(super) fn whole(ids: &'a [u32], types: &'a [u32]) -> Self {
        Self { ids, types, attended: ids.len() }
    }
}

impl BertNetwork {
    /// Reads the weights of a `.safetensors` file.
    pub(super) fn load(file: &[u8], config: &BertConfig) -> Result<Self, String> {
        let tensors = candle_core::safetensors::load_buffer(file, &Device::Cpu).map_err(|error| error.to_string())?;
        let weights = Weights::new(tensors)?;
        let hidden = config.hidden_size;
        if config.num_attention_heads == 0 || !hidden.is_multiple_of(config.num_attention_heads) {
            return Err(format!("{} attention heads do not divide {hidden} dimensions", config.num_attention_heads));
        }
        // The embeddings first: an error about them says most about a model of another shape.
        let words = weights.rows("embeddings.word_embeddings.weight", hidden)?;
        let positions = weights.rows("embeddings.position_embeddings.weight", hidden)?;
        let types = weights.rows("embeddings.token_type_embeddings.weight", hidden)?;
        let norm = weights.norm("embeddings.LayerNorm", hidden)?;
        let mut layers = Vec::with_capacity(config.num_hidden_layers);
        for number in 0..config.num_hidden_layers {
            layers.push(weights.layer(&format!("encoder.layer.{number}"), hidden)?);
        }
        Ok(Self {
            words,
            positions,
            types,
            norm,
            layers,
            hidden,
            heads: config.num_attention_heads,
            activation: config.hidden_act,
            eps: config.layer_norm_eps,
        })
    }

    /// Returns the last layer's vectors of all tokens of all texts, concatenated.
    pub(super) fn forward(&self, texts: &[Text<'_>], scratch: &mut Scratch) -> Result<Vec<f32>, String> {
        let mut tokens = self.embed(texts)?;
        for layer in &self.layers {
            self.attend(layer, &mut tokens, texts, scratch);
            layer.intermediate.apply(&tokens, &mut scratch.wide);
            activate(self.activation, &mut scratch.wide);
            layer.output.apply(&scratch.wide, &mut scratch.narrow);
            self.residual(&mut tokens, &scratch.narrow, &layer.output_norm);
        }
        Ok(tokens)
    }

    fn embed(&self, texts: &[Text<'_>]) -> Result<Vec<f32>, String> {
        let hidden = self.hidden;
        let mut tokens = Vec::with_capacity(texts.iter().map(|text| text.ids.len()).sum::<usize>() * hidden);
        for text in texts {
            for (index, (id, kind)) in text.ids.iter().zip(text.types).enumerate() {
                let word = self.row(&self.words, *id as usize, "token")?;
                let position = self.row(&self.positions, index, "position")?;
                let kind = self.row(&self.types, *kind as usize, "token type")?;
                let parts = word.iter().zip(kind).zip(position);
                tokens.extend(parts.map(|((word, kind), position)| word + kind + position));
            }
        }
        // The first norm has no residual.
        let nothing = vec![0.0; tokens.len()];
        self.residual(&mut tokens, &nothing, &self.norm);
        Ok(tokens)
    }

    fn row<'a>(&self, table: &'a [f32], row: usize, of: &str) -> Result<&'a [f32], String> {
        let vector = table.get(row * self.hidden..(row + 1) * self.hidden);
        vector.ok_or_else(|| format!("the model has no {of} {row}"))
    }

    fn residual(&self, tokens: &mut [f32], more: &[f32], norm: &Norm) {
        add_and_normalize(tokens, more, &norm.scale, &norm.shift, self.eps);
    }

    /// Self-attention within each text.
    fn attend(&self, layer: &Layer, tokens: &mut [f32], texts: &[Text<'_>], scratch: &mut Scratch) {
        layer.query_key_value.apply(tokens, &mut scratch.projected);
        scratch.context.clear();
        scratch.context.resize(tokens.len(), 0.0);
        let mut start = 0;
        for text in texts {
            for head in 0..self.heads {
                self.attend_head(start, text, head, scratch);
            }
            start += text.ids.len();
        }
        layer.attention_output.apply(&scratch.context, &mut scratch.narrow);
        self.residual(tokens, &scratch.narrow, &layer.attention_norm);
    }

    fn attend_head(&self, start: usize, text: &Text<'_>, head: usize, scratch: &mut Scratch) {
        let (hidden, size) = (self.hidden, self.hidden / self.heads);
        let (length, seen) = (text.ids.len(), text.attended);
        // A token has its query, key and value behind each other, of all heads each.
        let own = &scratch.projected[start * 3 * hidden + head * size..];
        let query = View::strided(own, length, size, 3 * hidden);
        let key = View::strided(&own[hidden..], seen, size, 3 * hidden);
        let value = View::strided(&own[2 * hidden..], seen, size, 3 * hidden);
        scratch.scores.clear();
        scratch.scores.resize(length * seen, 0.0);
        let scale = 1.0 / (size as f32).sqrt();
        multiply(&mut scratch.scores, seen, &query, &key.transposed(), scale, false);
        softmax_rows(&mut scratch.scores, seen);
        let scores = View::new(&scratch.scores, length, seen);
        let context = &mut scratch.context[start * hidden + head * size..];
        multiply(context, hidden, &scores, &value, 1.0, false);
    }
}

/// A checkpoint's tensors, with any prefix of their names.
struct Weights {
    tensors: HashMap<String, Tensor>,
    prefix: String,
}

impl Weights {
    fn new(tensors: HashMap<String, Tensor>) -> Result<Self, String> {
        let mark = "embeddings.word_embeddings.weight";
        // `bert.` and the like: a checkpoint of a model with a head has its BERT one level down.
        let prefix = tensors.keys().filter_map(|name| name.strip_suffix(mark)).min().map(str::to_owned);
        let prefix = prefix.ok_or_else(|| format!("missing tensor `{mark}`: the model must be of the BERT family"))?;
        Ok(Self { tensors, prefix })
    }

    fn find(&self, name: &str) -> Result<&Tensor, String> {
        let name = format!("{}{name}", self.prefix);
        self.tensors.get(&name).ok_or_else(|| format!("missing tensor `{name}`"))
    }

    fn numbers(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let tensor = self.find(name)?;
        if tensor.dims() != shape {
            return Err(format!("`{name}` has the shape {:?}, not {shape:?}", tensor.dims()));
        }
        let numbers = tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1());
        numbers.map_err(|error| error.to_string())
    }

    /// Returns a table with rows of `hidden` numbers.
    fn rows(&self, name: &str, hidden: usize) -> Result<Vec<f32>, String> {
        let rows = self.find(name)?.dims().first().copied().unwrap_or(0);
        self.numbers(name, &[rows, hidden])
    }

    fn norm(&self, name: &str, hidden: usize) -> Result<Norm, String> {
        // Old checkpoints use the names gamma and beta.
        let scale = self.either(&format!("{name}.weight"), &format!("{name}.gamma"), hidden)?;
        let shift = self.either(&format!("{name}.bias"), &format!("{name}.beta"), hidden)?;
        Ok(Norm { scale, shift })
    }

    fn either(&self, new: &str, old: &str, hidden: usize) -> Result<Vec<f32>, String> {
        // The message names the new one.
        self.numbers(new, &[hidden]).or_else(|error| self.numbers(old, &[hidden]).map_err(|_| error))
    }

    fn dense(&self, name: &str, inputs: usize) -> Result<Dense, String> {
        let weight = format!("{name}.weight");
        let outputs = self.find(&weight)?.dims().first().copied().unwrap_or(0);
        let bias = self.numbers(&format!("{name}.bias"), &[outputs])?;
        Ok(Dense { weight: self.numbers(&weight, &[outputs, inputs])?, bias, inputs })
    }

    fn layer(&self, name: &str, hidden: usize) -> Result<Layer, String> {
        let mut query_key_value = Dense { weight: Vec::new(), bias: Vec::new(), inputs: hidden };
        for part in ["query", "key", "value"] {
            let one = self.dense(&format!("{name}.attention.self.{part}"), hidden)?;
            query_key_value.weight.extend(one.weight);
            query_key_value.bias.extend(one.bias);
        }
        let intermediate = self.dense(&format!("{name}.intermediate.dense"), hidden)?;
        let output = self.dense(&format!("{name}.output.dense"), intermediate.bias.len())?;
        let attention_output = self.dense(&format!("{name}.attention.output.dense"), hidden)?;
        if [&attention_output, &output].iter().any(|dense| dense.bias.len() != hidden)
            || query_key_value.bias.len() != 3 * hidden
        {
            return Err(format!("the layers of `{name}` do not have {hidden} dimensions"));
        }
        Ok(Layer {
            query_key_value,
            attention_output,
            attention_norm: self.norm(&format!("{name}.attention.output.LayerNorm"), hidden)?,
            intermediate,
            output,
            output_norm: self.norm(&format!("{name}.output.LayerNorm"), hidden)?,
        })
    }
}

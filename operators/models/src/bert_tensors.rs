//! BERT's forward pass by tensor operations on any device. Texts are padded to the longest of the batch, and the padding is
//! masked.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::{layer_norm, softmax_last_dim};
use searchmill_kernels::vectorized::Activation;

use super::bert_network::{self, BertNetwork, Dense, Norm, Text};
use super::device::Compute;
use super::pooling::Pooling;

struct Linear {
    weight: Tensor,
    bias: Tensor,
}

type Layer = bert_network::Layer<Linear, (Tensor, Tensor)>;

/// A network on a device.
pub(super) struct BertTensors {
    words: Tensor,
    positions: Tensor,
    types: Tensor,
    norm: (Tensor, Tensor),
    layers: Vec<Layer>,
    heads: usize,
    activation: Activation,
    eps: f32,
}

/// Copies numbers to a device.
struct Loader<'a> {
    compute: &'a Compute,
}

impl Loader<'_> {
    fn rows(&self, numbers: &[f32], width: usize) -> Result<Tensor> {
        let tensor = Tensor::from_slice(numbers, (numbers.len() / width, width), &self.compute.device)?;
        tensor.to_dtype(self.compute.dtype)
    }

    fn row(&self, numbers: &[f32]) -> Result<Tensor> {
        Tensor::from_slice(numbers, numbers.len(), &self.compute.device)?.to_dtype(self.compute.dtype)
    }

    fn dense(&self, dense: &Dense) -> Result<Linear> {
        Ok(Linear { weight: self.rows(&dense.weight, dense.inputs)?, bias: self.row(&dense.bias)? })
    }

    fn norm(&self, norm: &Norm) -> Result<(Tensor, Tensor)> {
        Ok((self.row(&norm.scale)?, self.row(&norm.shift)?))
    }
}

impl Linear {
    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        rows.matmul(&self.weight.t()?)?.broadcast_add(&self.bias)
    }
}

impl BertTensors {
    /// Copies a network's weights to a device.
    pub(super) fn new(network: &BertNetwork, compute: &Compute) -> Result<Self> {
        let load = Loader { compute };
        let mut layers = Vec::with_capacity(network.layers.len());
        for layer in &network.layers {
            layers.push(Layer {
                query_key_value: load.dense(&layer.query_key_value)?,
                attention_output: load.dense(&layer.attention_output)?,
                attention_norm: load.norm(&layer.attention_norm)?,
                intermediate: load.dense(&layer.intermediate)?,
                output: load.dense(&layer.output)?,
                output_norm: load.norm(&layer.output_norm)?,
            });
        }
        Ok(Self {
            words: load.rows(&network.words, network.hidden)?,
            positions: load.rows(&network.positions, network.hidden)?,
            types: load.rows(&network.types, network.hidden)?,
            norm: load.norm(&network.norm)?,
            layers,
            heads: network.heads,
            activation: network.activation,
            eps: network.eps,
        })
    }

    pub(super) fn device(&self) -> &Device {
        self.words.device()
    }

    /// Returns the concatenated vectors of the texts.
    pub(super) fn pooled(&self, texts: &[Text<'_>], pooling: Pooling) -> Result<Vec<f32>> {
        let tokens = self.forward(texts)?;
        let vectors = match pooling {
            Pooling::Cls => tokens.narrow(1, 0, 1)?.squeeze(1)?,
            Pooling::Mean => {
                let lengths = self.counts(texts, |text| text.ids.len())?;
                let there = self.first(&lengths, tokens.dim(1)?)?;
                let sums = tokens.broadcast_mul(&there.unsqueeze(2)?)?.sum(1)?;
                sums.broadcast_div(&lengths.to_dtype(DType::F32)?)?
            }
        };
        vectors.flatten_all()?.to_vec1()
    }

    /// Returns the last layer's vectors of all tokens of all texts, concatenated.
    pub(super) fn tokens(&self, texts: &[Text<'_>]) -> Result<Vec<f32>> {
        // The padding is cut off again.
        let (padded, mut tokens) = (self.forward(texts)?, Vec::new());
        for (row, text) in texts.iter().enumerate() {
            let own = padded.narrow(0, row, 1)?.narrow(1, 0, text.ids.len())?;
            tokens.extend(own.flatten_all()?.to_vec1::<f32>()?);
        }
        Ok(tokens)
    }

    /// Computes rows × columns × dimensions in f32; what stands in the padding means nothing.
    fn forward(&self, texts: &[Text<'_>]) -> Result<Tensor> {
        let columns = texts.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let rows = texts.len();
        let seen = self.first(&self.counts(texts, |text| text.attended)?, columns)?;
        // A bias that no score can outweigh masks the padding.
        let bias = seen.affine(1e30, -1e30)?.reshape((rows, 1, 1, columns))?;
        let mut tokens = self.embed(texts, columns)?;
        for layer in &self.layers {
            let heard = layer.attention_output.apply(&self.attend(layer, &tokens, &bias)?)?;
            tokens = self.normed((tokens + heard)?, &layer.attention_norm)?;
            let wide = self.activated(layer.intermediate.apply(&tokens)?)?;
            tokens = self.normed((tokens + layer.output.apply(&wide)?)?, &layer.output_norm)?;
        }
        tokens.reshape((rows, columns, ()))?.to_dtype(DType::F32)
    }

    /// Returns a number of each text: rows × 1.
    fn counts(&self, texts: &[Text<'_>], of: impl Fn(&Text<'_>) -> usize) -> Result<Tensor> {
        let counts: Vec<u32> = texts.iter().map(|text| of(text) as u32).collect();
        Tensor::from_vec(counts, (texts.len(), 1), self.device())
    }

    /// Returns rows × columns: 1 in the first `counts` columns of each row, else 0.
    fn first(&self, counts: &Tensor, columns: usize) -> Result<Tensor> {
        let places = Tensor::arange(0, columns as u32, self.device())?.unsqueeze(0)?;
        places.broadcast_lt(counts)?.to_dtype(DType::F32)
    }

    /// Computes (rows · columns) × dimensions.
    fn embed(&self, texts: &[Text<'_>], columns: usize) -> Result<Tensor> {
        let (mut ids, mut types, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for (row, text) in texts.iter().enumerate() {
            ids.extend_from_slice(text.ids);
            types.extend_from_slice(text.types);
            positions.extend(0..columns as u32);
            // Filled up with token 0, which no token of the text attends to.
            ids.resize((row + 1) * columns, 0);
            types.resize((row + 1) * columns, 0);
        }
        let words = self.words.index_select(&Tensor::new(ids, self.device())?, 0)?;
        let types = self.types.index_select(&Tensor::new(types, self.device())?, 0)?;
        let positions = self.positions.index_select(&Tensor::new(positions, self.device())?, 0)?;
        self.normed(((words + types)? + positions)?, &self.norm)
    }

    fn normed(&self, rows: Tensor, (scale, shift): &(Tensor, Tensor)) -> Result<Tensor> {
        layer_norm(&rows.contiguous()?, scale, shift, self.eps)
    }

    fn activated(&self, rows: Tensor) -> Result<Tensor> {
        match self.activation {
            Activation::Gelu => rows.gelu_erf(),
            Activation::GeluTanh => rows.gelu(),
            Activation::Relu => rows.relu(),
        }
    }

    fn attend(&self, layer: &Layer, tokens: &Tensor, bias: &Tensor) -> Result<Tensor> {
        let (rows, columns) = (bias.dim(0)?, bias.dim(3)?);
        let (count, hidden) = tokens.dims2()?;
        let size = hidden / self.heads;
        let all = layer.query_key_value.apply(tokens)?.reshape((rows, columns, 3, self.heads, size))?;
        let scores = by_head(&all, 0)?.matmul(&by_head(&all, 1)?.t()?)?.to_dtype(DType::F32)?;
        let scores = (scores * (1.0 / (size as f64).sqrt()))?.broadcast_add(bias)?;
        let shares = softmax_last_dim(&scores)?.to_dtype(tokens.dtype())?;
        shares.matmul(&by_head(&all, 2)?)?.transpose(1, 2)?.contiguous()?.reshape((count, hidden))
    }
}

/// Returns queries (0), keys (1) or values (2): rows × heads × columns × size.
fn by_head(all: &Tensor, number: usize) -> Result<Tensor> {
    all.narrow(2, number, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous()
}

//! The decoder's forward pass for generation by tensor operations, on any device. Operations are few and large, because the
//! number of launches limits a GPU. Each layer has one tensor of keys and values with one place per row.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops::{rms_norm, softmax_last_dim};
use candle_nn::rotary_emb::rope_thd;

use super::device_cache::DeviceCache;
use super::layer::{Layer, Stack};
use super::network::Piece;
use super::shape::Shape;
use super::slot::Slot;
use super::step_plan::{Singles, StepPlan, Text};
use crate::decoder::{Decoder, Rope};

/// A decoder ready to generate.
pub(super) struct TensorNetwork {
    pub(super) shape: Shape,
    embedding: Tensor,
    layers: Vec<Layer<Tensor>>,
    norm: Tensor,
    head: Tensor,
    rope: std::sync::Arc<Rope>,
    eps: f32,
    cache: DeviceCache,
}

impl Stack<Tensor> {
    fn apply(&self, rows: &Tensor) -> Result<Tensor> {
        let out = rows.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => out.broadcast_add(bias),
            None => Ok(out),
        }
    }
}

impl TensorNetwork {
    /// Takes a decoder's weights on their device, with its adapter merged into them, and creates a cache for `places` rows of at
    /// most `context` tokens.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn new(decoder: &Decoder, places: usize, context: usize) -> Result<Self> {
        let config = decoder.config();
        let shape = Shape::of(config);
        let embedding = decoder.embedding.clone();
        let cache = DeviceCache::new(shape, places, context, embedding.dtype(), embedding.device().clone());
        let mut layers = Vec::with_capacity(decoder.blocks.len());
        for block in &decoder.blocks {
            layers.push(Layer::new(block, |weight| Ok(weight.clone()))?);
        }
        Ok(Self {
            shape,
            layers,
            norm: decoder.norm.clone(),
            head: decoder.head_weight().clone(),
            rope: std::sync::Arc::clone(&decoder.rope),
            eps: config.rms_norm_eps as f32,
            embedding,
            cache,
        })
    }

    fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// Creates an empty slot.
    pub(super) fn empty(&self) -> Result<Slot> {
        self.cache.empty()
    }

    /// Creates a slot with a copy of the first `count` tokens of another one.
    pub(super) fn beginning(&self, slot: &Slot, count: usize) -> Result<Slot> {
        self.cache.beginning(slot, count)
    }

    /// Like [`super::network::Network::read`].
    ///
    /// # Errors
    /// When the device fails; the slots are then invalid.
    pub(super) fn read(&mut self, pieces: &mut [Piece<'_>], logits: &mut Vec<f32>) -> Result<()> {
        let longest = pieces.iter().map(|piece| piece.slot.tokens.len() + piece.tokens.len()).max().unwrap_or(0);
        // Before the plan: the addresses of tokens depend on the capacity.
        self.cache.reserve(longest)?;
        let plan = StepPlan::new(pieces, &self.shape, &self.rope, &self.cache)?;
        let tokens: Vec<u32> = pieces.iter().flat_map(|piece| piece.tokens.iter().copied()).collect();
        let tokens = Tensor::new(tokens, self.device())?;
        let mut hidden = self.embedding.index_select(&tokens, 0)?;
        for (number, layer) in self.layers.iter().enumerate() {
            let heard = self.attend(layer, number, &rms_norm(&hidden, &layer.input_norm, self.eps)?, &plan)?;
            hidden = (hidden + layer.output.apply(&heard)?)?;
            let both = layer.gate_up.apply(&rms_norm(&hidden, &layer.feed_norm, self.eps)?)?;
            let (gate, up) = (both.narrow(1, 0, self.shape.wide)?, both.narrow(1, self.shape.wide, self.shape.wide)?);
            hidden = (hidden + layer.down.apply(&(gate.silu()? * up)?)?)?;
        }
        for piece in pieces.iter_mut() {
            piece.slot.tokens.extend_from_slice(piece.tokens);
        }
        self.finish(pieces, &hidden, logits)
    }

    fn attend(&self, layer: &Layer<Tensor>, number: usize, tokens: &Tensor, plan: &StepPlan) -> Result<Tensor> {
        let s = &self.shape;
        let all = layer.query_key_value.apply(tokens)?;
        let (mut queries, mut keys) = (heads(&all, 0, s.heads, s.size)?, heads(&all, s.heads, s.shared, s.size)?);
        let values = heads(&all, s.heads + s.shared, s.shared, s.size)?;
        if let Some((of_queries, of_keys)) = &layer.head_norms {
            queries = rms_norm(&queries, of_queries, self.eps)?;
            keys = rms_norm(&keys, of_keys, self.eps)?;
        }
        for part in [&mut queries, &mut keys] {
            *part = rope_thd(&part.unsqueeze(0)?.contiguous()?, &plan.cosines, &plan.sines)?.squeeze(0)?;
        }
        // Written before the attention: a token sees itself.
        self.cache.write(number, &keys, &values, &plan.written)?;
        let mut parts = Vec::new();
        if let Some(singles) = &plan.singles {
            parts.push(self.listen_alone(number, &queries, singles)?);
        }
        for text in &plan.texts {
            parts.push(self.listen(number, &queries, text)?);
        }
        let heard = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(&parts, 0)? };
        select(&heard, plan.order.as_ref())
    }

    /// Computes the attention of rows that read one token each: tokens × (heads · size).
    fn listen_alone(&self, layer: usize, queries: &Tensor, singles: &Singles) -> Result<Tensor> {
        let s = &self.shape;
        let queries = select(queries, singles.spread.as_ref())?;
        let queries = queries.contiguous()?.reshape((singles.places, s.shared, s.heads / s.shared, s.size))?;
        let (keys, values) = self.cache.rows(layer, singles.first, singles.places, singles.longest)?;
        let scores = queries.matmul(&keys.t()?)?;
        let heard = self.shares(scores, &singles.bias)?.matmul(&values)?;
        select(&heard.reshape((singles.places, s.heads * s.size))?, singles.back.as_ref())
    }

    /// Computes the attention of the tokens of a row: tokens × (heads · size).
    fn listen(&self, layer: usize, queries: &Tensor, text: &Text) -> Result<Tensor> {
        let s = &self.shape;
        let group = s.heads / s.shared;
        let queries = queries.narrow(0, text.first, text.count)?.reshape((text.count, s.shared, group, s.size))?;
        let queries = queries.permute((1, 2, 0, 3))?.contiguous()?;
        let mut parts = Vec::new();
        for block in &text.blocks {
            let (count, seen) = (block.bias.dim(0)?, block.bias.dim(1)?);
            let (keys, values) = self.cache.rows(layer, text.place, 1, seen)?;
            let asked = queries.narrow(2, block.first, count)?.contiguous()?;
            let scores = asked.reshape((1, s.shared, group * count, s.size))?.matmul(&keys.t()?)?;
            let shares = self.shares(scores.reshape((s.shared, group, count, seen))?, &block.bias)?;
            let heard = shares.reshape((1, s.shared, group * count, seen))?.matmul(&values)?;
            parts.push(heard.reshape((s.shared, group, count, s.size))?);
        }
        let heard = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(&parts, 2)? };
        heard.permute((2, 0, 1, 3))?.contiguous()?.reshape((text.count, s.heads * s.size))
    }

    fn shares(&self, scores: Tensor, bias: &Tensor) -> Result<Tensor> {
        let dtype = scores.dtype();
        // In f32, whatever the precision: bf16 has too few digits for a sum of many powers.
        let scores = (scores.to_dtype(DType::F32)? * (1.0 / (self.shape.size as f64).sqrt()))?;
        softmax_last_dim(&scores.broadcast_add(bias)?)?.to_dtype(dtype)
    }

    fn finish(&self, pieces: &[Piece<'_>], hidden: &Tensor, logits: &mut Vec<f32>) -> Result<()> {
        let (mut end, mut wanted) = (0, Vec::new());
        for piece in pieces {
            end += piece.tokens.len();
            wanted.extend((end - piece.wanted..end).map(|token| token as u32));
        }
        logits.clear();
        if wanted.is_empty() {
            return Ok(());
        }
        // While decoding, all rows are wanted: no copy.
        let all = wanted.len() == hidden.dim(0)?;
        let wanted = if all { None } else { Some(Tensor::new(wanted, self.device())?) };
        let rows = rms_norm(&select(hidden, wanted.as_ref())?, &self.norm, self.eps)?;
        *logits = rows.matmul(&self.head.t()?)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        Ok(())
    }
}

/// Returns `count` heads of each token, from head `first`: tokens × count × size.
fn heads(all: &Tensor, first: usize, count: usize, size: usize) -> Result<Tensor> {
    all.narrow(1, first * size, count * size)?.reshape((all.dim(0)?, count, size))
}

/// Returns these rows in this order (`None`: all as they are).
fn select(rows: &Tensor, places: Option<&Tensor>) -> Result<Tensor> {
    match places {
        Some(places) => rows.index_select(places, 0),
        None => Ok(rows.clone()),
    }
}

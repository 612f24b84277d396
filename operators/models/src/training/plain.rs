//! Forward and backward passes in f32 on the CPU: the loops of [`searchmill_kernels::training`] over a student's weights.

use std::collections::BTreeMap;
use std::ops::Deref;

use candle_core::{CpuStorage, Layout as Place, Result, Storage, Tensor};
use searchmill_kernels::attention::{Attention, Heads};
use searchmill_kernels::training::{
    self, Layer, LayerGradients, LowRank, MAPS, Map, MapGradients, Predicted, Sizes, norm, norm_backward,
};

use super::batch::{Batch, Outcome, Settings, logits_at_once};
use super::optimizer::Gradients;
use super::student::Student;
use crate::decoder::{Angles, Block, DecoderConfig, Dropout, Layout, Linear, adapter_tensor_name, layer_name};

/// A weight's numbers, held for reading.
struct Held<'a> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    place: &'a Place,
}

impl<'a> Held<'a> {
    fn of(tensor: &'a Tensor) -> Self {
        let (storage, place) = tensor.storage_and_layout();
        Self { storage: Box::new(storage), place }
    }

    fn numbers(&self) -> Result<&[f32]> {
        let (Storage::Cpu(CpuStorage::F32(numbers)), Some((start, end))) =
            (&**self.storage, self.place.contiguous_offsets())
        else {
            candle_core::bail!("a weight does not lie in memory as plain f32")
        };
        Ok(&numbers[start..end])
    }
}

/// One linear map's weights.
struct HeldMap<'a> {
    weight: Held<'a>,
    bias: Option<Held<'a>>,
    low_rank: Option<(Held<'a>, Held<'a>)>,
    linear: &'a Linear,
}

impl<'a> HeldMap<'a> {
    fn of(linear: &'a Linear) -> Self {
        Self {
            weight: Held::of(&linear.weight),
            bias: linear.bias.as_ref().map(Held::of),
            low_rank: linear.adapter.as_ref().map(|adapter| (Held::of(&adapter.a), Held::of(&adapter.b))),
            linear,
        }
    }

    /// The map, with the masks of this pass's dropout over `tokens` tokens.
    fn map(&self, tokens: usize, dropout: Option<Dropout>) -> Result<Map<'_>> {
        let inputs = self.linear.weight.dim(1)?;
        let low_rank = match (&self.low_rank, &self.linear.adapter) {
            (Some((a, b)), Some(adapter)) => {
                let masked = dropout.filter(|_| adapter.dropout > 0.0);
                let mask = masked.map(|dropout| dropout.mask(tokens * inputs, adapter.dropout, adapter.number));
                Some(LowRank { a: a.numbers()?, b: b.numbers()?, scale: adapter.scale as f32, mask })
            }
            _ => None,
        };
        let bias = self.bias.as_ref().map(Held::numbers).transpose()?;
        Ok(Map { weight: self.weight.numbers()?, bias, inputs, low_rank })
    }
}

/// One layer's weights.
struct HeldLayer<'a> {
    input_norm: Held<'a>,
    feed_norm: Held<'a>,
    head_norms: Option<(Held<'a>, Held<'a>)>,
    maps: Vec<HeldMap<'a>>,
    sizes: Sizes,
}

/// The linear maps in the order of [`training::Layer::maps`].
fn linears(block: &Block) -> [&Linear; MAPS] {
    [&block.query, &block.key, &block.value, &block.output, &block.gate, &block.up, &block.down]
}

impl<'a> HeldLayer<'a> {
    fn of(block: &'a Block, config: &DecoderConfig) -> Self {
        let size = config.head_dimensions();
        Self {
            input_norm: Held::of(&block.input_norm),
            feed_norm: Held::of(&block.feed_norm),
            head_norms: block.head_norms.as_ref().map(|(queries, keys)| (Held::of(queries), Held::of(keys))),
            maps: linears(block).into_iter().map(HeldMap::of).collect(),
            sizes: Sizes {
                queries: config.num_attention_heads * size,
                keys: config.key_value_heads() * size,
                eps: config.rms_norm_eps as f32,
            },
        }
    }

    fn layer(&self, tokens: usize, dropout: Option<Dropout>) -> Result<Layer<'_>> {
        let maps: Vec<Map<'_>> = self.maps.iter().map(|map| map.map(tokens, dropout)).collect::<Result<_>>()?;
        let Ok(maps) = maps.try_into() else { candle_core::bail!("a layer has seven linear maps") };
        let head_norms = match &self.head_norms {
            Some((queries, keys)) => Some((queries.numbers()?, keys.numbers()?)),
            None => None,
        };
        let (input_norm, feed_norm) = (self.input_norm.numbers()?, self.feed_norm.numbers()?);
        Ok(Layer { input_norm, feed_norm, head_norms, maps, sizes: self.sizes })
    }
}

/// A student's weights, and where the tokens of a batch stand.
struct Network<'a> {
    student: &'a Student,
    batch: &'a Batch,
    layers: Vec<HeldLayer<'a>>,
    embedding: Held<'a>,
    norm: Held<'a>,
    head: Held<'a>,
    angles: std::sync::Arc<Angles>,
    dropout: Option<Dropout>,
}

impl<'a> Network<'a> {
    fn new(student: &'a Student, batch: &'a Batch) -> Self {
        let decoder = &student.decoder;
        Self {
            student,
            batch,
            layers: decoder.blocks().iter().map(|block| HeldLayer::of(block, decoder.config())).collect(),
            embedding: Held::of(decoder.embedding()),
            norm: Held::of(decoder.norm()),
            head: Held::of(decoder.head_weight()),
            angles: decoder.angles(&batch.layout),
            dropout: batch.layout.dropout,
        }
    }

    fn width(&self) -> usize {
        self.student.decoder.config().hidden_size
    }

    fn eps(&self) -> f32 {
        self.student.decoder.config().rms_norm_eps as f32
    }

    fn layer(&self, number: usize) -> Result<Layer<'_>> {
        self.layers[number].layer(self.batch.tokens.len(), self.dropout)
    }

    fn place(&self) -> training::Place<'_> {
        let (config, layout): (_, &Layout) = (self.student.decoder.config(), &self.batch.layout);
        let shape = Heads {
            rows: layout.rows,
            columns: layout.columns,
            heads: config.num_attention_heads,
            size: config.head_dimensions(),
            keys: layout.columns,
            shared: config.key_value_heads(),
        };
        training::Place { attention: Attention { spans: &layout.spans, shape }, turns: self.angles.turns() }
    }

    fn embed(&self) -> Result<Vec<f32>> {
        let (width, table) = (self.width(), self.embedding.numbers()?);
        let mut out = Vec::with_capacity(self.batch.tokens.len() * width);
        for token in &self.batch.tokens {
            let Some(row) = table.get(*token as usize * width..(*token as usize + 1) * width) else {
                candle_core::bail!("token {token} is none of the vocabulary")
            };
            out.extend_from_slice(row);
        }
        Ok(out)
    }

    /// The vectors from which tokens are predicted.
    fn wanted(&self, hidden: &[f32]) -> Vec<f32> {
        let row = |target: &(u32, u32, f32)| &hidden[target.0 as usize * self.width()..][..self.width()];
        self.batch.targets.iter().flat_map(row).copied().collect()
    }

    /// Rows of logits made at once.
    fn at_once(&self) -> usize {
        let decoder = &self.student.decoder;
        (logits_at_once(&self.student.compute.device) / decoder.config().vocab_size).max(16)
    }
}

/// The loss without gradients.
pub(crate) fn evaluate(student: &Student, batch: &Batch) -> Result<Outcome> {
    // On a thread of the pool: one that waits outside must be woken up after each of many short loops.
    rayon::scope(|_| evaluate_in_pool(student, batch))
}

fn evaluate_in_pool(student: &Student, batch: &Batch) -> Result<Outcome> {
    let network = Network::new(student, batch);
    let mut hidden = network.embed()?;
    for number in 0..network.layers.len() {
        hidden = network.layer(number)?.forward(hidden, network.place()).0;
    }
    let rows = network.wanted(&norm(&hidden, network.norm.numbers()?, network.eps()));
    let (tokens, weights) = batch.wanted();
    let predicted = Predicted { tokens: &tokens, weights: &weights };
    let judged = training::judge(&rows, network.head.numbers()?, network.width(), predicted, network.at_once());
    Ok(Outcome { loss: judged.loss, right: judged.right })
}

/// The loss; gradients are added to `gradients`.
pub(crate) fn pass(student: &Student, batch: &Batch, settings: Settings, gradients: &mut Gradients) -> Result<Outcome> {
    let network = Network::new(student, batch);
    let mut sums = Sums::new(student);
    // With checkpointing the inputs of the layers are kept, and what is within them is made again.
    let (mut hidden, mut inputs, mut kept) = (network.embed()?, Vec::new(), Vec::new());
    for number in 0..network.layers.len() {
        if settings.checkpointing {
            inputs.push(hidden.clone());
            hidden = network.layer(number)?.forward(hidden, network.place()).0;
        } else {
            let layer = network.layer(number)?;
            let (out, activations) = layer.forward(hidden, network.place());
            kept.push((layer, activations));
            hidden = out;
        }
    }
    let (outcome, mut gradient) = head(&network, &hidden, settings.scale, &mut sums)?;
    for number in (0..network.layers.len()).rev() {
        let (layer, activations) = if let Some(kept) = kept.pop() {
            kept
        } else {
            let layer = network.layer(number)?;
            let activations = layer.forward(inputs.pop().unwrap_or_default(), network.place()).1;
            (layer, activations)
        };
        gradient = layer.backward(&activations, network.place(), gradient, &mut sums.layers[number]);
    }
    sums.embed(&batch.tokens, &gradient, network.width());
    sums.give(student, gradients)?;
    Ok(outcome)
}

/// Loss, and the gradient of the last layer's output.
fn head(network: &Network<'_>, hidden: &[f32], scale: f64, sums: &mut Sums) -> Result<(Outcome, Vec<f32>)> {
    let (width, eps, weight) = (network.width(), network.eps(), network.norm.numbers()?);
    let rows = network.wanted(&norm(hidden, weight, eps));
    let (tokens, weights) = network.batch.wanted();
    let predicted = Predicted { tokens: &tokens, weights: &weights };
    let how = (network.at_once(), scale as f32);
    let (judged, of_rows) =
        training::learn(&rows, network.head.numbers()?, width, predicted, how, sums.head_or_embedding());
    let mut gradient = vec![0.0; hidden.len()];
    for (target, row) in network.batch.targets.iter().zip(of_rows.chunks_exact(width)) {
        let out = &mut gradient[target.0 as usize * width..][..width];
        out.iter_mut().zip(row).for_each(|(out, number)| *out += number);
    }
    let gradient = norm_backward(hidden, weight, eps, &gradient, &mut sums.norm);
    Ok((Outcome { loss: judged.loss, right: judged.right }, gradient))
}

/// Gradients of what learns; the others are empty.
struct Sums {
    embedding: Vec<f32>,
    norm: Vec<f32>,
    /// Empty where the embedding's weights make the logits.
    head: Vec<f32>,
    layers: Vec<LayerGradients>,
}

impl Sums {
    fn new(student: &Student) -> Self {
        let full = student.trains_head();
        let zeros = |tensor: &Tensor| if full { vec![0.0; tensor.elem_count()] } else { Vec::new() };
        let low = |tensor: &Tensor| if full { Vec::new() } else { vec![0.0; tensor.elem_count()] };
        let map = |linear: &Linear| MapGradients {
            weight: zeros(&linear.weight),
            bias: linear.bias.as_ref().map(zeros).unwrap_or_default(),
            a: linear.adapter.as_ref().map(|adapter| low(&adapter.a)).unwrap_or_default(),
            b: linear.adapter.as_ref().map(|adapter| low(&adapter.b)).unwrap_or_default(),
        };
        let layer = |block: &Block| LayerGradients {
            input_norm: zeros(&block.input_norm),
            feed_norm: zeros(&block.feed_norm),
            query_norm: block.head_norms.as_ref().map(|norms| zeros(&norms.0)).unwrap_or_default(),
            key_norm: block.head_norms.as_ref().map(|norms| zeros(&norms.1)).unwrap_or_default(),
            maps: linears(block).map(map),
        };
        let decoder = &student.decoder;
        let tied = decoder.config().tie_word_embeddings;
        Self {
            embedding: zeros(decoder.embedding()),
            norm: zeros(decoder.norm()),
            head: if tied { Vec::new() } else { zeros(decoder.head_weight()) },
            layers: decoder.blocks().iter().map(layer).collect(),
        }
    }

    fn head_or_embedding(&mut self) -> &mut [f32] {
        if self.head.is_empty() { &mut self.embedding } else { &mut self.head }
    }

    fn embed(&mut self, tokens: &[u32], gradient: &[f32], width: usize) {
        if self.embedding.is_empty() {
            return;
        }
        for (token, row) in tokens.iter().zip(gradient.chunks_exact(width)) {
            let sum = &mut self.embedding[*token as usize * width..][..width];
            sum.iter_mut().zip(row).for_each(|(sum, number)| *sum += number);
        }
    }

    fn named(self, config: &DecoderConfig) -> BTreeMap<String, Vec<f32>> {
        let mut all = BTreeMap::from([
            ("model.embed_tokens.weight".to_owned(), self.embedding),
            ("model.norm.weight".to_owned(), self.norm),
            ("lm_head.weight".to_owned(), self.head),
        ]);
        for (number, layer) in self.layers.into_iter().enumerate() {
            let name = |part: &str| layer_name(number, part);
            all.insert(name("input_layernorm.weight"), layer.input_norm);
            all.insert(name("post_attention_layernorm.weight"), layer.feed_norm);
            all.insert(name("self_attn.q_norm.weight"), layer.query_norm);
            all.insert(name("self_attn.k_norm.weight"), layer.key_norm);
            for ((part, ..), map) in config.projections().into_iter().zip(layer.maps) {
                let module = name(part);
                all.insert(format!("{module}.weight"), map.weight);
                all.insert(format!("{module}.bias"), map.bias);
                all.insert(adapter_tensor_name(&module, "lora_A"), map.a);
                all.insert(adapter_tensor_name(&module, "lora_B"), map.b);
            }
        }
        all.retain(|_, numbers| !numbers.is_empty());
        all
    }

    fn give(self, student: &Student, gradients: &mut Gradients) -> Result<()> {
        let mut named = self.named(student.decoder.config());
        for (name, var) in &student.weights {
            let Some(numbers) = named.remove(name) else { continue };
            let gradient = Tensor::from_vec(numbers, var.shape(), var.device())?;
            let sum = match gradients.remove(name) {
                Some(sum) => (sum + gradient)?,
                None => gradient,
            };
            gradients.insert(name.clone(), sum);
        }
        Ok(())
    }
}

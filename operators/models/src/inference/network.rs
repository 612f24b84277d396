//! The decoder's forward pass for generation on the CPU: weights as plain rows of numbers, a few fused loops instead of many
//! small tensor operations, and results that do not depend on the rest of the batch.

use rayon::prelude::*;
use searchmill_kernels::loops::{attend_one, rms_norm, rotate, silu_product};
use searchmill_kernels::product::{Matrix, multiply, project};
use searchmill_kernels::training::add;

use super::layer::{Layer, Stack};
use super::shape::Shape;
use super::slot::Slot;
use crate::decoder::{Angles, Decoder, Rope};
use candle_core::{DType, Result, Tensor};

/// A decoder ready to generate.
pub(super) struct Network {
    pub(super) shape: Shape,
    embedding: Vec<f32>,
    layers: Vec<Layer<Vec<f32>>>,
    norm: Vec<f32>,
    /// `None`: tied to the embedding.
    head: Option<Vec<f32>>,
    rope: std::sync::Arc<Rope>,
    eps: f32,
}

/// New tokens of a row.
pub(super) struct Piece<'a> {
    pub(super) slot: &'a mut Slot,
    pub(super) tokens: &'a [u32],
    /// Number of last tokens whose logits are returned.
    pub(super) wanted: usize,
}

/// Buffers reused between steps.
#[derive(Default)]
pub(super) struct Scratch {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    projected: Vec<f32>,
    turned: Vec<f32>,
    heard: Vec<f32>,
    wide: Vec<f32>,
    narrow: Vec<f32>,
}

fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

impl Stack<Vec<f32>> {
    fn apply(&self, rows: &[f32], out: &mut Vec<f32>) {
        project(rows, Matrix { numbers: &self.weight, inputs: self.inputs }, out);
        if let Some(bias) = &self.bias {
            for row in out.chunks_exact_mut(bias.len()) {
                add(row, bias);
            }
        }
    }
}

/// Normalises each row into `out`.
fn normed(rows: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    out.resize(rows.len(), 0.0);
    rms_norm(rows, weight, eps, out);
}

impl Network {
    /// Copies a decoder's weights in f32, with its adapter merged into them.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn new(decoder: &Decoder) -> Result<Self> {
        let config = decoder.config();
        let shape = Shape::of(config);
        let head = if config.tie_word_embeddings { None } else { Some(numbers(decoder.head_weight())?) };
        Ok(Self {
            shape,
            embedding: numbers(&decoder.embedding)?,
            layers: decoder.blocks.iter().map(|block| Layer::new(block, numbers)).collect::<Result<_>>()?,
            norm: numbers(&decoder.norm)?,
            head,
            rope: std::sync::Arc::clone(&decoder.rope),
            eps: config.rms_norm_eps as f32,
        })
    }

    /// Reads the tokens of the pieces into their slots. Writes the requested logits, concatenated in the order of the pieces.
    pub(super) fn read(&self, pieces: &mut [Piece<'_>], scratch: &mut Scratch, logits: &mut Vec<f32>) {
        // Taken out, so that the other buffers can be written beside it.
        let mut hidden = std::mem::take(&mut scratch.hidden);
        hidden.clear();
        let mut positions = Vec::new();
        for piece in pieces.iter() {
            let seen = piece.slot.tokens.len();
            positions.extend((seen..seen + piece.tokens.len()).map(|position| position as u32));
            for token in piece.tokens {
                let start = *token as usize * self.shape.hidden;
                hidden.extend_from_slice(&self.embedding[start..start + self.shape.hidden]);
            }
        }
        let angles = self.rope.angles(&positions);
        for (number, layer) in self.layers.iter().enumerate() {
            self.attend(layer, number, &angles, pieces, &mut hidden, scratch);
            self.feed(layer, &mut hidden, scratch);
        }
        // After all layers: until then, the length of a slot is the number of tokens read before.
        for piece in pieces.iter_mut() {
            piece.slot.tokens.extend_from_slice(piece.tokens);
        }
        self.finish(pieces, &hidden, scratch, logits);
        scratch.hidden = hidden;
    }

    fn attend(
        &self,
        layer: &Layer<Vec<f32>>,
        number: usize,
        angles: &Angles,
        pieces: &mut [Piece<'_>],
        hidden: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let shape = &self.shape;
        normed(hidden, &layer.input_norm, self.eps, &mut scratch.normed);
        layer.query_key_value.apply(&scratch.normed, &mut scratch.projected);
        let (queries, keys) = (shape.heads * shape.size, shape.shared * shape.size);
        let width = queries + 2 * keys;
        self.turn(layer, angles, queries, keys, scratch);
        let mut at = 0;
        for piece in pieces.iter_mut() {
            for _ in piece.tokens {
                let turned = &scratch.turned[at * (queries + keys)..][..queries + keys];
                let values = &scratch.projected[at * width + queries + keys..][..keys];
                piece.slot.push(shape, number, &turned[queries..], values);
                at += 1;
            }
        }
        self.listen(number, pieces, scratch);
        layer.output.apply(&scratch.heard, &mut scratch.narrow);
        add(hidden, &scratch.narrow);
    }

    /// Normalises (in families that do) and rotates the queries and keys of each token, into `turned`.
    fn turn(&self, layer: &Layer<Vec<f32>>, angles: &Angles, queries: usize, keys: usize, scratch: &mut Scratch) {
        let (width, both) = (queries + 2 * keys, queries + keys);
        let tokens = scratch.projected.len() / width;
        scratch.wide.resize(tokens * both, 0.0);
        for (token, out) in scratch.projected.chunks_exact(width).zip(scratch.wide.chunks_exact_mut(both)) {
            match &layer.head_norms {
                None => out.copy_from_slice(&token[..both]),
                Some((of_queries, of_keys)) => {
                    let (out_queries, out_keys) = out.split_at_mut(queries);
                    rms_norm(&token[..queries], of_queries, self.eps, out_queries);
                    rms_norm(&token[queries..both], of_keys, self.eps, out_keys);
                }
            }
        }
        scratch.turned.resize(tokens * both, 0.0);
        rotate(&scratch.wide[..tokens * both], both, 0, angles.turns(), false, &mut scratch.turned[..tokens * both]);
    }

    /// Computes the attention of each token to those before it, head by head.
    fn listen(&self, layer: usize, pieces: &[Piece<'_>], scratch: &mut Scratch) {
        let shape = &self.shape;
        let group = shape.heads / shape.shared;
        let (queries, keys) = (shape.heads * shape.size, shape.shared * shape.size);
        // The slot of each token, and the number of keys that it sees: its own, and those before it.
        let (mut seen, mut longest) = (Vec::new(), 1);
        for piece in pieces {
            for token in 0..piece.tokens.len() {
                let count = piece.slot.tokens.len() + token + 1;
                seen.push((&*piece.slot, count));
                longest = longest.max(count);
            }
        }
        scratch.heard.clear();
        scratch.heard.resize(seen.len() * queries, 0.0);
        let turned = &scratch.turned;
        // Small tasks run on one thread.
        let least = (1 << 14) / (longest * group * shape.size) + 1;
        let tasks = scratch.heard.par_chunks_mut(group * shape.size).enumerate().with_min_len(least);
        tasks.for_each_init(Vec::new, |scores, (task, out)| {
            let (token, head) = (task / shape.shared, task % shape.shared);
            let (slot, count) = seen[token];
            let cached = slot.head(shape, layer, head);
            let asked = &turned[token * (queries + keys) + head * group * shape.size..][..group * shape.size];
            scores.clear();
            scores.resize(group * count, 0.0);
            let keys = Matrix { numbers: &cached.keys[..count * shape.size], inputs: shape.size };
            multiply(asked, keys, scores, count);
            attend_one(scores, &cached.values[..count * shape.size], shape.size, out);
        });
    }

    fn feed(&self, layer: &Layer<Vec<f32>>, hidden: &mut [f32], scratch: &mut Scratch) {
        normed(hidden, &layer.feed_norm, self.eps, &mut scratch.normed);
        layer.gate_up.apply(&scratch.normed, &mut scratch.projected);
        let wide = self.shape.wide;
        scratch.wide.clear();
        scratch.wide.resize(scratch.projected.len() / 2, 0.0);
        let rows = scratch.projected.par_chunks(2 * wide).zip(scratch.wide.par_chunks_mut(wide)).with_min_len(8);
        rows.for_each(|(row, out)| silu_product(&row[..wide], &row[wide..], out));
        layer.down.apply(&scratch.wide, &mut scratch.narrow);
        add(hidden, &scratch.narrow);
    }

    fn finish(&self, pieces: &[Piece<'_>], hidden: &[f32], scratch: &mut Scratch, logits: &mut Vec<f32>) {
        let width = self.shape.hidden;
        scratch.narrow.clear();
        let mut end = 0;
        for piece in pieces {
            end += piece.tokens.len();
            scratch.narrow.extend_from_slice(&hidden[(end - piece.wanted) * width..end * width]);
        }
        normed(&scratch.narrow, &self.norm, self.eps, &mut scratch.normed);
        let head = self.head.as_ref().unwrap_or(&self.embedding);
        project(&scratch.normed, Matrix { numbers: head, inputs: width }, logits);
    }
}

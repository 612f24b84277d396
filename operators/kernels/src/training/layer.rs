//! A transformer layer: attention and a gated feed-forward network, each with a norm before it and a residual connection.

use super::add;
use super::linear::{Map, MapGradients};
use super::rows::{norm, norm_backward, rotate, silu_product, silu_product_backward};
use crate::attention::Attention;
use crate::loops::Turns;

/// Number of linear maps of a layer.
pub const MAPS: usize = 7;
/// Indexes into [`Layer::maps`].
pub const QUERY: usize = 0;
pub const KEY: usize = 1;
pub const VALUE: usize = 2;
pub const OUTPUT: usize = 3;
pub const GATE: usize = 4;
pub const UP: usize = 5;
pub const DOWN: usize = 6;

/// Weights of a layer.
#[derive(Clone, Debug)]
pub struct Layer<'a> {
    pub input_norm: &'a [f32],
    pub feed_norm: &'a [f32],
    /// Weights of the norms of queries and keys, as long as a head.
    pub head_norms: Option<(&'a [f32], &'a [f32])>,
    pub maps: [Map<'a>; MAPS],
    pub sizes: Sizes,
}

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Query heads × head size.
    pub queries: usize,
    /// Key heads × head size.
    pub keys: usize,
    /// Added to the mean square in norms.
    pub eps: f32,
}

/// Positions of the tokens, and the keys that each of them sees.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub attention: Attention<'a>,
    pub turns: Turns<'a>,
}

/// Results of the forward pass that the backward pass needs.
#[derive(Clone, Debug)]
pub struct Activations {
    input: Vec<f32>,
    normed: Vec<f32>,
    /// Queries and keys before their norms, if they have norms.
    unnormed: Option<(Vec<f32>, Vec<f32>)>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    heard: Vec<f32>,
    middle: Vec<f32>,
    fed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    inner: Vec<f32>,
}

/// Sums of the gradients of a layer's weights; empty ones are not computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerGradients {
    pub input_norm: Vec<f32>,
    pub feed_norm: Vec<f32>,
    pub query_norm: Vec<f32>,
    pub key_norm: Vec<f32>,
    pub maps: [MapGradients; MAPS],
}

impl Layer<'_> {
    /// Computes the layer's output (tokens × width, like the input), and the activations for [`Self::backward`].
    pub fn forward(&self, input: Vec<f32>, place: Place<'_>) -> (Vec<f32>, Activations) {
        let (maps, eps) = (&self.maps, self.sizes.eps);
        let normed = norm(&input, self.input_norm, eps);
        let (queries, keys, values) =
            (maps[QUERY].forward(&normed), maps[KEY].forward(&normed), maps[VALUE].forward(&normed));
        let (queries, keys, unnormed) = match self.head_norms {
            None => (queries, keys, None),
            Some((of_queries, of_keys)) => {
                (norm(&queries, of_queries, eps), norm(&keys, of_keys, eps), Some((queries, keys)))
            }
        };
        let queries = rotate(&queries, self.sizes.queries, place.turns, false);
        let keys = rotate(&keys, self.sizes.keys, place.turns, false);
        let heard = place.attention.forward(&queries, &keys, &values);
        let mut middle = input.clone();
        maps[OUTPUT].forward_onto(&heard, &mut middle, true);
        let fed = norm(&middle, self.feed_norm, eps);
        let (gate, up) = (maps[GATE].forward(&fed), maps[UP].forward(&fed));
        let inner = silu_product(&gate, &up);
        let mut out = middle.clone();
        maps[DOWN].forward_onto(&inner, &mut out, true);
        let activations =
            Activations { input, normed, unnormed, queries, keys, values, heard, middle, fed, gate, up, inner };
        (out, activations)
    }

    /// Returns the gradient of the layer's input, given that of its output. Adds those of its weights to `sums`.
    pub fn backward(
        &self,
        activations: &Activations,
        place: Place<'_>,
        mut gradient: Vec<f32>,
        sums: &mut LayerGradients,
    ) -> Vec<f32> {
        let eps = self.sizes.eps;
        // The feed-forward network. The gradient of its output is also that of the sum before it.
        let mut of_inner = vec![0.0; activations.inner.len()];
        self.maps[DOWN].backward(&activations.inner, &gradient, &mut of_inner, false, &mut sums.maps[DOWN]);
        let (of_gate, of_up) = silu_product_backward(&activations.gate, &activations.up, &of_inner);
        // The widest buffers of the layer are freed before attention needs its own.
        drop(of_inner);
        let mut of_fed = vec![0.0; activations.fed.len()];
        self.maps[GATE].backward(&activations.fed, &of_gate, &mut of_fed, false, &mut sums.maps[GATE]);
        self.maps[UP].backward(&activations.fed, &of_up, &mut of_fed, true, &mut sums.maps[UP]);
        drop((of_gate, of_up));
        add(&mut gradient, &norm_backward(&activations.middle, self.feed_norm, eps, &of_fed, &mut sums.feed_norm));
        drop(of_fed);
        // Attention, likewise.
        let mut of_heard = vec![0.0; activations.heard.len()];
        self.maps[OUTPUT].backward(&activations.heard, &gradient, &mut of_heard, false, &mut sums.maps[OUTPUT]);
        let [of_queries, of_keys, of_values] =
            place.attention.backward(&activations.queries, &activations.keys, &activations.values, &of_heard);
        let mut of_queries = rotate(&of_queries, self.sizes.queries, place.turns, true);
        let mut of_keys = rotate(&of_keys, self.sizes.keys, place.turns, true);
        if let (Some((norm_queries, norm_keys)), Some((queries, keys))) = (self.head_norms, &activations.unnormed) {
            of_queries = norm_backward(queries, norm_queries, eps, &of_queries, &mut sums.query_norm);
            of_keys = norm_backward(keys, norm_keys, eps, &of_keys, &mut sums.key_norm);
        }
        let mut of_normed = vec![0.0; activations.normed.len()];
        // The first one writes, the others add: the same order in every run.
        for (map, gradient, adds) in [(QUERY, of_queries, false), (KEY, of_keys, true), (VALUE, of_values, true)] {
            self.maps[map].backward(&activations.normed, &gradient, &mut of_normed, adds, &mut sums.maps[map]);
        }
        add(&mut gradient, &norm_backward(&activations.input, self.input_norm, eps, &of_normed, &mut sums.input_norm));
        gradient
    }
}

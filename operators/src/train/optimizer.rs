//! AdamW with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101), in f32, and clipping by the norm of
//! all gradients together.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor, Var};
use rayon::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Numbers that one thread takes at once. Fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 1 << 14;

/// Settings of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct AdamParams {
    /// Decay of the mean of gradients.
    pub(crate) beta1: f64,
    /// Decay of the mean of squared gradients.
    pub(crate) beta2: f64,
    /// Added to the denominator.
    pub(crate) epsilon: f64,
    /// Weight decay; norms and biases are left out.
    pub(crate) weight_decay: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// The running means of one weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub(super) mean: Vec<f32>,
    pub(super) square: Vec<f32>,
}

/// The optimiser's state: steps taken, and the means of each weight.
#[derive(Clone, Debug)]
pub(super) struct AdamW {
    params: AdamParams,
    pub(super) steps: u64,
    pub(super) moments: BTreeMap<String, Moments>,
}

/// Gradients by weight.
pub(super) type Gradients = BTreeMap<String, Tensor>;

/// The norm of all gradients together.
pub(super) fn norm(gradients: &Gradients) -> Result<f64> {
    let mut whole = 0.0;
    for gradient in gradients.values() {
        let numbers = gradient.flatten_all()?.to_vec1::<f32>()?;
        let sums: Vec<f64> = numbers.par_chunks(BLOCK).map(sum_of_squares).collect();
        whole += sums.iter().sum::<f64>();
    }
    Ok(whole.sqrt())
}

fn sum_of_squares(numbers: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (chunks, rest) = numbers.as_chunks::<8>();
    for chunk in chunks {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*number) * f64::from(*number);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|number| f64::from(*number) * f64::from(*number)).sum::<f64>()
}

/// One step's factors.
#[derive(Clone, Copy)]
struct Factors {
    keep: f32,
    beta1: f32,
    beta2: f32,
    step: f32,
    root: f32,
    epsilon: f32,
    scale: f32,
}

impl AdamW {
    pub(super) fn new(params: AdamParams) -> Self {
        Self { params, steps: 0, moments: BTreeMap::new() }
    }

    /// Takes one step with the gradients times `scale`.
    pub(super) fn step(
        &mut self,
        weights: &BTreeMap<String, Var>,
        gradients: &Gradients,
        rate: f64,
        scale: f64,
    ) -> Result<()> {
        self.steps += 1;
        let power = self.steps as f64;
        for (name, gradient) in gradients {
            let Some(var) = weights.get(name) else { continue };
            let decays = !(name.ends_with("norm.weight") || name.rsplit('.').next() == Some("bias"));
            let decay = if decays { self.params.weight_decay } else { 0.0 };
            let factors = Factors {
                keep: (1.0 - rate * decay) as f32,
                beta1: self.params.beta1 as f32,
                beta2: self.params.beta2 as f32,
                step: (rate / (1.0 - self.params.beta1.powf(power))) as f32,
                root: (1.0 - self.params.beta2.powf(power)).sqrt() as f32,
                epsilon: self.params.epsilon as f32,
                scale: scale as f32,
            };
            let mut numbers = var.flatten_all()?.to_vec1::<f32>()?;
            let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
            let moments = self.moments.entry(name.clone()).or_default();
            moments.mean.resize(numbers.len(), 0.0);
            moments.square.resize(numbers.len(), 0.0);
            let state = moments.mean.par_chunks_mut(BLOCK).zip(moments.square.par_chunks_mut(BLOCK));
            let blocks = numbers.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK)).zip(state);
            blocks.for_each(|((numbers, gradient), (mean, square))| update(numbers, gradient, mean, square, factors));
            var.set(&Tensor::from_vec(numbers, var.shape(), var.device())?)?;
        }
        Ok(())
    }
}

fn update(numbers: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32], f: Factors) {
    pulp::Arch::new().dispatch(|| {
        let state = mean.iter_mut().zip(square.iter_mut());
        for ((number, gradient), (mean, square)) in numbers.iter_mut().zip(gradient).zip(state) {
            let slope = gradient * f.scale;
            *mean = *mean * f.beta1 + slope * (1.0 - f.beta1);
            *square = *square * f.beta2 + slope * slope * (1.0 - f.beta2);
            *number = *number * f.keep - f.step * *mean / (square.sqrt() / f.root + f.epsilon);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// Three steps of `torch.optim.AdamW([0.5, -1.0], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)` (torch 2.8.0) with the
    /// gradients below.
    #[test]
    fn steps_are_those_of_torch() {
        let params = AdamParams { beta2: 0.99, ..AdamParams::default() };
        let mut adam = AdamW::new(params);
        let var = Var::from_tensor(&Tensor::new(&[0.5_f32, -1.0], &Device::Cpu).unwrap()).unwrap();
        let weights = BTreeMap::from([("w".to_owned(), var.clone())]);
        for gradient in [[1.0_f32, -2.0], [0.5, 3.0], [-0.1, 0.0]] {
            let gradients = Gradients::from([("w".to_owned(), Tensor::new(&gradient, &Device::Cpu).unwrap())]);
            adam.step(&weights, &gradients, 0.1, 1.0).unwrap();
        }
        let found = var.to_vec1::<f32>().unwrap();
        for (found, wanted) in found.iter().zip(TORCH) {
            assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        }
    }

    const TORCH: [f32; 2] = [0.228_417_4, -0.915_964_5];

    #[test]
    fn norms_are_of_all_gradients_together() {
        let tensor = |numbers: Vec<f32>| Tensor::new(numbers, &Device::Cpu).unwrap();
        let gradients = Gradients::from([("a".to_owned(), tensor(vec![3.0])), ("b".to_owned(), tensor(vec![1.0; 16]))]);
        assert!((norm(&gradients).unwrap() - 5.0).abs() < 1e-12);
    }
}

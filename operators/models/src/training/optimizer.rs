//! AdamW with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101) in f32, and the global gradient norm.

use std::collections::BTreeMap;

use candle_core::{DType, Result, Tensor, Var};
use rayon::prelude::*;
use schemars::JsonSchema;
use searchmill_kernels::adamw::{Factors, sum_of_squares, update};
use serde::{Deserialize, Serialize};

/// Numbers per task. Fixed, so that sums do not depend on the number of threads.
const BLOCK: usize = 1 << 14;

/// Settings of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "snake_case")]
pub struct AdamParams {
    /// Decay rate of the mean of gradients.
    pub beta1: f64,
    /// Decay rate of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub epsilon: f64,
    /// Weight decay; norms and biases have none.
    pub weight_decay: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.1 }
    }
}

/// The running means of one weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    pub mean: Vec<f32>,
    pub square: Vec<f32>,
}

/// State of the optimiser: the number of steps, and the running means of each weight.
#[derive(Clone, Debug)]
pub struct AdamW {
    params: AdamParams,
    pub steps: u64,
    /// Running means of weights on the CPU.
    moments: BTreeMap<String, Moments>,
    /// Running means (of gradients, of their squares) of weights on other devices.
    tensors: BTreeMap<String, (Tensor, Tensor)>,
}

/// Gradients by weight.
pub type Gradients = BTreeMap<String, Tensor>;

/// Adds a gradient to those of earlier passes.
pub(super) fn add(gradients: &mut Gradients, name: &str, gradient: Tensor) -> Result<()> {
    let sum = match gradients.remove(name) {
        Some(sum) => (sum + gradient)?,
        None => gradient,
    };
    gradients.insert(name.to_owned(), sum);
    Ok(())
}

/// Returns the global norm of the gradients.
pub fn norm(gradients: &Gradients) -> Result<f64> {
    let (mut whole, mut elsewhere) = (0.0, Vec::new());
    for gradient in gradients.values() {
        if !gradient.device().is_cpu() {
            elsewhere.push(gradient.to_dtype(DType::F32)?.sqr()?.sum_all()?);
            continue;
        }
        // In blocks of a fixed size, whose sums are added in order: the number of threads does not count.
        let numbers = gradient.flatten_all()?.to_vec1::<f32>()?;
        let sums: Vec<f64> = numbers.par_chunks(BLOCK).map(sum_of_squares).collect();
        whole += sums.iter().sum::<f64>();
    }
    if !elsewhere.is_empty() {
        // Read together, so that the device is synchronised once.
        whole += Tensor::stack(&elsewhere, 0)?.to_vec1::<f32>()?.into_iter().map(f64::from).sum::<f64>();
    }
    Ok(whole.sqrt())
}

impl AdamW {
    pub fn new(params: AdamParams) -> Self {
        Self { params, steps: 0, moments: BTreeMap::new(), tensors: BTreeMap::new() }
    }

    /// Returns the running means of all weights that were updated.
    pub fn moments(&self) -> Result<BTreeMap<String, Moments>> {
        let mut all = self.moments.clone();
        for (name, (mean, square)) in &self.tensors {
            let (mean, square) = (mean.flatten_all()?.to_vec1()?, square.flatten_all()?.to_vec1()?);
            all.insert(name.clone(), Moments { mean, square });
        }
        Ok(all)
    }

    /// Restores the running means of a weight.
    pub fn restore(&mut self, var: &Var, name: String, moments: Moments) -> Result<()> {
        if var.device().is_cpu() {
            self.moments.insert(name, moments);
            return Ok(());
        }
        let mean = Tensor::from_vec(moments.mean, var.shape(), var.device())?;
        self.tensors.insert(name, (mean, Tensor::from_vec(moments.square, var.shape(), var.device())?));
        Ok(())
    }

    /// Updates the weights with the gradients times `scale`.
    pub fn step(
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
            // Norms and biases do not decay, as in transformers' trainer.
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
            if var.device().is_cpu() {
                let moments = self.moments.entry(name.clone()).or_default();
                step_on_cpu(var, gradient, moments, factors)?;
            } else {
                let known = self.tensors.remove(name);
                self.tensors.insert(name.clone(), step_on_device(var, gradient, known, factors)?);
            }
        }
        Ok(())
    }
}

fn step_on_cpu(var: &Var, gradient: &Tensor, moments: &mut Moments, factors: Factors) -> Result<()> {
    let mut numbers = var.flatten_all()?.to_vec1::<f32>()?;
    let gradient = gradient.flatten_all()?.to_vec1::<f32>()?;
    // Empty before the first step.
    moments.mean.resize(numbers.len(), 0.0);
    moments.square.resize(numbers.len(), 0.0);
    let state = moments.mean.par_chunks_mut(BLOCK).zip(moments.square.par_chunks_mut(BLOCK));
    let blocks = numbers.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK)).zip(state);
    blocks.for_each(|((numbers, gradient), (mean, square))| update(numbers, gradient, mean, square, factors));
    var.set(&Tensor::from_vec(numbers, var.shape(), var.device())?)
}

/// Updates a weight by tensor operations on its device. Returns the new running means.
fn step_on_device(
    var: &Var,
    gradient: &Tensor,
    known: Option<(Tensor, Tensor)>,
    factors: Factors,
) -> Result<(Tensor, Tensor)> {
    let (mean, square) = match known {
        Some(known) => known,
        None => (var.zeros_like()?.detach(), var.zeros_like()?.detach()),
    };
    let (beta1, beta2) = (f64::from(factors.beta1), f64::from(factors.beta2));
    let slope = (gradient.detach().to_dtype(DType::F32)? * f64::from(factors.scale))?;
    let mean = ((mean * beta1)? + (&slope * (1.0 - beta1))?)?;
    let square = ((square * beta2)? + (slope.sqr()? * (1.0 - beta2))?)?;
    let root = ((square.sqrt()? / f64::from(factors.root))? + f64::from(factors.epsilon))?;
    let number = ((var.detach() * f64::from(factors.keep))? - ((&mean * f64::from(factors.step))? / root)?)?;
    var.set(&number)?;
    Ok((mean, square))
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

    /// The tensor operations of other devices give the same steps.
    #[test]
    fn steps_of_tensors_are_those_of_the_loops() {
        let var = |numbers: &[f32]| Var::from_tensor(&Tensor::new(numbers, &Device::Cpu).unwrap()).unwrap();
        let (one, other) = (var(&[0.5, -1.0, 3.0]), var(&[0.5, -1.0, 3.0]));
        let (mut moments, mut known) = (Moments::default(), None);
        for number in 1..6 {
            let step = 0.1 / (1.0 - 0.9_f32.powi(number));
            let root = (1.0 - 0.99_f32.powi(number)).sqrt();
            let f = Factors { keep: 0.99, beta1: 0.9, beta2: 0.99, step, root, epsilon: 1e-8, scale: 0.5 };
            let gradient = Tensor::new(&[1.0_f32, -0.3 * number as f32, 0.0], &Device::Cpu).unwrap();
            step_on_cpu(&one, &gradient, &mut moments, f).unwrap();
            known = Some(step_on_device(&other, &gradient, known, f).unwrap());
        }
        let apart =
            |a: &Tensor, b: &Tensor| (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(apart(&one, &other) < 1e-6);
        let mean = Tensor::new(moments.mean, &Device::Cpu).unwrap();
        assert!(apart(&mean, &known.unwrap().0) < 1e-6);
    }

    const TORCH: [f32; 2] = [0.228_417_4, -0.915_964_5];

    #[test]
    fn norms_are_of_all_gradients_together() {
        let tensor = |numbers: Vec<f32>| Tensor::new(numbers, &Device::Cpu).unwrap();
        let gradients = Gradients::from([("a".to_owned(), tensor(vec![3.0])), ("b".to_owned(), tensor(vec![1.0; 16]))]);
        assert!((norm(&gradients).unwrap() - 5.0).abs() < 1e-12);
    }
}

//! Dropout with masks that depend only on a seed, so that a training can be repeated and resumed bit for bit.

use candle_core::{Result, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use searchmill_kernels::training::Mask;

/// Dropout masks of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Differs between passes: mixed from the training's seed, the step and the pass.
    pub seed: u64,
}

impl Dropout {
    /// Sets a share of the numbers to 0 and scales the others up (Srivastava et al. 2014). `number` distinguishes the masks of
    /// a pass.
    pub fn apply(self, rows: &Tensor, share: f64, number: u64) -> Result<Tensor> {
        if !rows.device().is_cpu() {
            return self.on_device(rows, share, number);
        }
        let count = rows.elem_count();
        let factors = self.mask(count, share, number).factors(count);
        rows * Tensor::from_vec(factors, rows.shape(), rows.device())?.to_dtype(rows.dtype())?
    }

    /// Returns the mask of `count` numbers.
    pub fn mask(self, count: usize, share: f64, number: u64) -> Mask {
        Mask::draw(ChaCha8Rng::seed_from_u64(self.seed).get_seed(), number, share, count)
    }

    /// Like [`Self::apply`] with random numbers of the device, because drawing them on the CPU would take longer than the
    /// network.
    fn on_device(self, rows: &Tensor, share: f64, number: u64) -> Result<Tensor> {
        // Steele, Lea and Flood 2014: multiples of this constant are far apart.
        rows.device().set_seed(self.seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))?;
        let drawn = Tensor::rand(0.0_f32, 1.0, rows.shape(), rows.device())?;
        let mask = drawn.ge(share as f32)?.to_dtype(rows.dtype())?;
        rows * (mask / (1.0 - share))?
    }
}

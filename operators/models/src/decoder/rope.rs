//! Rotary positions (Su et al. 2021, arXiv:2104.09864) and their scaling for longer texts.

use std::f64::consts::PI;
use std::sync::OnceLock;

use candle_core::{DType, Device, Tensor};
use searchmill_kernels::loops::Turns;

use super::config::{DecoderConfig, RopeScaling};

/// A decoder's rotary frequencies.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    /// Factor of sines and cosines (1 except for yarn).
    amplitude: f32,
}

/// Cosines and sines of the angles of some positions, `half` numbers each.
#[derive(Clone, Debug)]
pub struct Angles {
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
    pub half: usize,
    /// Both tables on a device, in f32.
    tables: OnceLock<(Tensor, Tensor)>,
}

impl Angles {
    /// Returns the angles as the loops take them.
    pub fn turns(&self) -> Turns<'_> {
        Turns { cosines: &self.cosines, sines: &self.sines, half: self.half }
    }

    /// Returns cosines and sines on a device (always the same one): positions × half, in `dtype`.
    pub fn tables(&self, device: &Device, dtype: DType) -> candle_core::Result<(Tensor, Tensor)> {
        if self.tables.get().is_none() {
            let shape = (self.cosines.len() / self.half, self.half);
            let cosines = Tensor::from_slice(&self.cosines, shape, device)?;
            let sines = Tensor::from_slice(&self.sines, shape, device)?;
            // Another thread may have set equal tables first.
            drop(self.tables.set((cosines, sines)));
        }
        let Some((cosines, sines)) = self.tables.get() else { candle_core::bail!("the angles are gone") };
        Ok((cosines.to_dtype(dtype)?, sines.to_dtype(dtype)?))
    }
}

impl Rope {
    pub fn new(config: &DecoderConfig) -> Self {
        let size = config.head_dimensions();
        let plain = plain(config.rope_theta(), size);
        let (frequencies, amplitude) = match config.rope() {
            Some(scaling) => scaled(&plain, scaling, config, size),
            None => (plain, 1.0),
        };
        Self {
            frequencies: frequencies.into_iter().map(|frequency| frequency as f32).collect(),
            amplitude: amplitude as f32,
        }
    }

    /// Computes the angles of positions, in order.
    pub fn angles(&self, positions: &[u32]) -> Angles {
        let half = self.frequencies.len();
        let (mut cosines, mut sines) = (Vec::with_capacity(positions.len() * half), Vec::new());
        sines.reserve(positions.len() * half);
        for position in positions {
            for frequency in &self.frequencies {
                let (sine, cosine) = (*position as f32 * frequency).sin_cos();
                cosines.push(cosine * self.amplitude);
                sines.push(sine * self.amplitude);
            }
        }
        Angles { cosines, sines, half, tables: OnceLock::new() }
    }
}

fn plain(theta: f64, size: usize) -> Vec<f64> {
    (0..size / 2).map(|i| theta.powf(-((2 * i) as f64) / size as f64)).collect()
}

fn scaled(plain: &[f64], scaling: &RopeScaling, config: &DecoderConfig, size: usize) -> (Vec<f64>, f64) {
    let factor = scaling.factor.unwrap_or(1.0);
    match scaling.rope_type.as_str() {
        "linear" => (plain.iter().map(|frequency| frequency / factor).collect(), 1.0),
        "llama3" => {
            let [low, high, original] = LLAMA3;
            let options = [
                scaling.low_freq_factor.unwrap_or(low),
                scaling.high_freq_factor.unwrap_or(high),
                scaling.original_max_position_embeddings.unwrap_or(original),
            ];
            (plain.iter().map(|frequency| llama3(*frequency, factor, options)).collect(), 1.0)
        }
        "yarn" => yarn(plain, factor, scaling, config, size),
        _ => (plain.to_vec(), 1.0),
    }
}

/// Parameters of Llama 3.1's scaling besides the factor: `low_freq_factor`, `high_freq_factor` and
/// `original_max_position_embeddings`.
pub(crate) const LLAMA3: [f64; 3] = [1.0, 4.0, 8192.0];

/// Llama 3.1's scaling: long waves are stretched, short ones are kept, and those between are interpolated.
pub(crate) fn llama3(frequency: f64, factor: f64, [low, high, original]: [f64; 3]) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength < original / high {
        return frequency;
    }
    if wavelength > original / low {
        return frequency / factor;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071), with the defaults of the paper.
fn yarn(plain: &[f64], factor: f64, scaling: &RopeScaling, config: &DecoderConfig, size: usize) -> (Vec<f64>, f64) {
    let original = scaling.original_max_position_embeddings.unwrap_or(config.max_position_embeddings as f64);
    // The dimensions that turn `beta_fast` and `beta_slow` times over the original length: between them, frequencies are
    // blended.
    let [fast, slow] = [scaling.beta_fast.unwrap_or(32.0), scaling.beta_slow.unwrap_or(1.0)]
        .map(|turns| size as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * config.rope_theta().ln()));
    let (low, high) = (fast.floor().max(0.0), slow.ceil().min(size as f64 - 1.0));
    let width = if high > low { high - low } else { 0.001 };
    let mut blended = Vec::with_capacity(plain.len());
    for (i, frequency) in plain.iter().enumerate() {
        let stretched = ((i as f64 - low) / width).clamp(0.0, 1.0);
        blended.push(frequency / factor * stretched + frequency * (1.0 - stretched));
    }
    let amplitude = scaling.attention_factor.unwrap_or(if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 });
    (blended, amplitude)
}

//! Loops over many numbers, compiled for the processor's widest vector unit.
#![expect(clippy::inline_always, reason = "only what is inlined is compiled for the vector unit of the loop it is in")]

use pulp::Arch;

/// Number of partial sums and maxima. Fixed, so that the order of additions does not depend on the vector width.
const LANES: usize = 16;

/// Activation between the two layers of a feed-forward block.
#[derive(Clone, Copy, Debug, Default)]
pub enum Activation {
    /// x · Φ(x), with the error function (Hendrycks and Gimpel 2016, arXiv:1606.08415).
    #[default]
    Gelu,
    /// The tanh approximation of x · Φ(x).
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// Applies the activation to each number.
pub fn activate(activation: Activation, numbers: &mut [f32]) {
    let arch = Arch::new();
    match activation {
        Activation::Gelu => arch.dispatch(|| numbers.iter_mut().for_each(|number| *number = gelu(*number))),
        Activation::GeluTanh => arch.dispatch(|| numbers.iter_mut().for_each(|number| *number = gelu_tanh(*number))),
        Activation::Relu => arch.dispatch(|| numbers.iter_mut().for_each(|number| *number = number.max(0.0))),
    }
}

/// Replaces each row of `width` numbers by its softmax.
pub fn softmax_rows(numbers: &mut [f32], width: usize) {
    Arch::new().dispatch(|| {
        for row in numbers.chunks_exact_mut(width) {
            softmax(row);
        }
    });
}

#[inline(always)]
pub(crate) fn softmax(row: &mut [f32]) {
    // Less the highest one, so that no power overflows.
    let highest = fold(row, f32::NEG_INFINITY, f32::max, f32::max);
    for number in row.iter_mut() {
        *number = exp(*number - highest);
    }
    let whole = 1.0 / sum(row);
    for number in row.iter_mut() {
        *number *= whole;
    }
}

/// Adds `more` to `rows`, then applies layer normalisation to each row (as long as `scale`; Ba et al. 2016,
/// arXiv:1607.06450).
pub fn add_and_normalize(rows: &mut [f32], more: &[f32], scale: &[f32], shift: &[f32], eps: f32) {
    let width = scale.len();
    Arch::new().dispatch(|| {
        for (row, more) in rows.chunks_exact_mut(width).zip(more.chunks_exact(width)) {
            for (number, more) in row.iter_mut().zip(more) {
                *number += more;
            }
            let mean = sum(row) / width as f32;
            for number in row.iter_mut() {
                *number -= mean;
            }
            // From the differences: a mean of squares less the square of the mean would lose digits.
            let variance = sum_of_squares(row) / width as f32;
            let factor = 1.0 / (variance + eps).sqrt();
            for ((number, scale), shift) in row.iter_mut().zip(scale).zip(shift) {
                *number = *number * factor * scale + shift;
            }
        }
    });
}

/// Folds each of [`LANES`] lanes with `step`, then joins the lanes.
#[inline(always)]
pub fn fold(numbers: &[f32], start: f32, step: impl Fn(f32, f32) -> f32, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *number);
        }
    }
    for (lane, number) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *number);
    }
    lanes.into_iter().fold(start, join)
}

#[inline(always)]
pub fn sum(numbers: &[f32]) -> f32 {
    fold(numbers, 0.0, |sum, number| sum + number, |a, b| a + b)
}

#[inline(always)]
pub fn sum_of_squares(numbers: &[f32]) -> f32 {
    fold(numbers, 0.0, |sum, number| sum + number * number, |a, b| a + b)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    // sqrt(2 / π)
    let inner = 0.797_884_6 * (x + 0.044_715 * x * x * x);
    let tanh = 1.0 - 2.0 / (exp(2.0 * inner) + 1.0);
    0.5 * x * (1.0 + tanh)
}

/// The error function with an error of at most 1.5e-7: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
#[inline(always)]
fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let polynomial = ((((1.061_405_4 * t - 1.453_152_1) * t + 1.421_413_8) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    (1.0 - polynomial * exp(-magnitude * magnitude)).copysign(x)
}

/// Computes eˣ with an error of at most two units in the last place: 2ⁿ · eʳ with |r| ≤ ln 2 / 2, and a polynomial for eʳ with
/// the coefficients of Moshier's Cephes library. x is clamped to ±87.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 87.0);
    // Adding 1.5 · 2²³ rounds to a whole number and leaves it in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = x - n * 0.693_359_4 + n * 2.121_944_4e-4;
    let polynomial =
        ((((1.987_569_1e-4 * r + 1.398_199_9e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r + 1.666_666_5e-1) * r
            + 0.5;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    (polynomial * r * r + r + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range() -> impl Iterator<Item = f32> {
        (-86_000..86_000).map(|n| n as f32 / 1000.0)
    }

    #[test]
    fn exp_and_erf_are_close_to_the_true_functions() {
        for x in range() {
            let true_exp = f64::from(x).exp();
            assert!((f64::from(exp(x)) - true_exp).abs() <= 3e-7 * true_exp, "exp({x})");
        }
        // Tabulated values of the error function.
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_9), (1.0, 0.842_700_8), (2.0, 0.995_322_3), (-1.0, -0.842_700_8)]
        {
            assert!((erf(x) - expected).abs() < 4e-7, "erf({x}) = {}", erf(x));
        }
        assert_eq!(exp(-1e9), exp(-87.0));
    }

    #[test]
    fn activations() {
        let mut numbers = vec![-10.0, -1.0, 0.0, 1.0, 10.0];
        activate(Activation::Gelu, &mut numbers);
        for (found, expected) in numbers.iter().zip([0.0, -0.158_655_26, 0.0, 0.841_344_7, 10.0]) {
            assert!((found - expected).abs() < 2e-6, "{found} {expected}");
        }
        let mut tanh = vec![-1.0, 1.0];
        activate(Activation::GeluTanh, &mut tanh);
        assert!((tanh[0] + 0.158_808).abs() < 1e-5 && (tanh[1] - 0.841_192).abs() < 1e-5, "{tanh:?}");
        let mut relu = vec![-1.0, 2.0];
        activate(Activation::Relu, &mut relu);
        assert_eq!(relu, [0.0, 2.0]);
    }

    #[test]
    fn rows_are_normalised_whatever_their_length() {
        for width in [1, 5, 16, 40] {
            let mut rows: Vec<f32> = (0..2 * width).map(|n| (n * 7 % 11) as f32).collect();
            softmax_rows(&mut rows, width);
            for row in rows.chunks(width) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
        let mut rows: Vec<f32> = (0..40).map(|n| (n * 7 % 11) as f32).collect();
        let more: Vec<f32> = (0..40).map(|n| (n % 3) as f32).collect();
        add_and_normalize(&mut rows, &more, &[2.0; 20], &[1.0; 20], 1e-12);
        for row in rows.chunks(20) {
            let mean = row.iter().sum::<f32>() / 20.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 20.0;
            assert!((mean - 1.0).abs() < 1e-5 && (variance - 4.0).abs() < 1e-4, "{mean} {variance}");
        }
    }
}

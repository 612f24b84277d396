//! An AdamW step over a block of numbers (Loshchilov and Hutter 2019, arXiv:1711.05101).

/// Factors of a step.
#[derive(Clone, Copy, Debug)]
pub struct Factors {
    /// Factor of the weights: 1 − learning rate × weight decay.
    pub keep: f32,
    /// Decay rate of the mean of gradients.
    pub beta1: f32,
    /// Decay rate of the mean of squared gradients.
    pub beta2: f32,
    /// Learning rate / (1 − beta1ᵗ).
    pub step: f32,
    /// √(1 − beta2ᵗ).
    pub root: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// Factor of the gradients (clipping).
    pub scale: f32,
}

/// Updates `numbers` and the running means of their gradients and squared gradients.
pub fn update(numbers: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32], f: Factors) {
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

/// Returns the sum of squares of a block of numbers.
pub fn sum_of_squares(numbers: &[f32]) -> f64 {
    // Eight sums in place of one: an addition need not wait for the one before it.
    let mut lanes = [0.0_f64; 8];
    let (chunks, rest) = numbers.as_chunks::<8>();
    for chunk in chunks {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*number) * f64::from(*number);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|number| f64::from(*number) * f64::from(*number)).sum::<f64>()
}

//! The learning rate of each step: warm-up, then decay.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Decay of the learning rate after the warm-up, as in transformers' schedules of the same names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Decay {
    /// Half a cosine wave to 0.
    #[default]
    Cosine,
    /// A straight line to 0.
    Linear,
    /// No decay.
    Constant,
}

/// Learning rate of each step.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub peak: f64,
    pub warmup: u64,
    pub total: u64,
    pub decay: Decay,
}

impl Rate {
    /// Returns the rate of a step; steps count from 0. After the last step the rate stays what it was there at the end.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.peak * step as f64 / self.warmup as f64;
        }
        let share = (step - self.warmup) as f64 / self.total.saturating_sub(self.warmup).max(1) as f64;
        // A training may go on after the steps that the schedule was made for.
        let share = share.min(1.0);
        self.peak
            * match self.decay {
                Decay::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * share).cos()),
                Decay::Linear => 1.0 - share,
                Decay::Constant => 1.0,
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_transformers() {
        // get_cosine_schedule_with_warmup and get_linear_schedule_with_warmup, 2 of 10 steps, 4.56.
        let rate = |decay| Rate { peak: 1.0, warmup: 2, total: 10, decay };
        let near = |decay, wanted: [f64; 5]| {
            for (step, wanted) in [0, 1, 2, 6, 9].into_iter().zip(wanted) {
                assert!((rate(decay).at(step) - wanted).abs() < 1e-6, "{decay:?} {step}");
            }
        };
        near(Decay::Cosine, [0.0, 0.5, 1.0, 0.5, 0.038_060_2]);
        near(Decay::Linear, [0.0, 0.5, 1.0, 0.5, 0.125]);
        near(Decay::Constant, [0.0, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!([10, 15, 1000].map(|step| rate(Decay::Cosine).at(step)), [0.0; 3], "the rate does not rise again");
    }
}

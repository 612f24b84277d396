//! Axes: round ticks, and where values lie.

/// Numbers of an axis, from its first to its last tick.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    pub(super) ticks: Vec<f64>,
    step: f64,
}

impl Scale {
    /// Covers the values with about `count` steps of 1, 2, 2.5 or 5 times a power of ten (Heckbert 1990).
    pub(super) fn covering(values: impl IntoIterator<Item = f64>, count: usize) -> Self {
        let (mut low, mut high) = ends(values).unwrap_or((0.0, 1.0));
        // A single value lies in the middle.
        if high / 2.0 - low / 2.0 <= (1e-12 * low.abs().max(high.abs())).max(f64::MIN_POSITIVE) {
            let reach = if low.abs() < 1e-300 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - reach, high + reach);
        }
        // Halves, so that the difference of the largest numbers is finite.
        let step = round(2.0 * (high / 2.0 - low / 2.0) / count.max(1) as f64);
        if !step.is_finite() || step <= 0.0 {
            return Self { ticks: vec![low, high], step: high / 2.0 - low / 2.0 };
        }
        // A tolerance: rounding may leave 0.3 / 0.1 just below 3, which would add an empty step.
        let (first, last) = ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil());
        let ticks = (0..=(last - first) as usize).map(|place| (first + place as f64) * step).collect();
        Self { ticks, step }
    }

    /// Where a value lies, from 0 at the first tick to 1 at the last.
    pub(super) fn place(&self, value: f64) -> f64 {
        let (first, last) = (self.first(), self.last());
        ((value / 2.0 - first / 2.0) / (last / 2.0 - first / 2.0)).clamp(0.0, 1.0)
    }

    pub(super) fn first(&self) -> f64 {
        self.ticks.first().copied().unwrap_or(0.0)
    }

    pub(super) fn last(&self) -> f64 {
        self.ticks.last().copied().unwrap_or(1.0)
    }

    /// Returns the label of a tick, with as many decimals as the step has.
    pub(super) fn label(&self, value: f64) -> String {
        let largest = self.first().abs().max(self.last().abs());
        let (unit, letter) = match largest {
            size if size >= 1e15 => return format!("{value:.2e}"),
            size if size >= 1e10 => (1e9, "G"),
            size if size >= 1e7 => (1e6, "M"),
            size if size >= 1e4 => (1e3, "k"),
            size if size < 1e-4 => return if value == 0.0 { "0".to_owned() } else { format!("{value:.1e}") },
            _ => (1.0, ""),
        };
        let (value, step) = (value / unit, self.step / unit);
        let decimals = (0..9).find(|decimals| {
            let shifted = step * 10_f64.powi(*decimals);
            (shifted - shifted.round()).abs() < 1e-6 * shifted.abs().max(1.0)
        });
        let decimals = decimals.unwrap_or(9) as usize;
        // No minus before a zero.
        let value = if value.abs() < step / 1e6 { 0.0 } else { value };
        if value == 0.0 { "0".to_owned() } else { format!("{value:.decimals$}{letter}") }
    }
}

/// Returns the lowest and the highest value; `None` without values.
pub(super) fn ends(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high { None } else { Some((low, high)) }
}

/// Returns the next of 1, 2, 2.5 and 5 times a power of ten.
fn round(step: f64) -> f64 {
    let power = 10_f64.powi(step.log10().floor() as i32);
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| step <= factor * power * (1.0 + 1e-9));
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(values: &[f64]) -> Vec<String> {
        let scale = Scale::covering(values.iter().copied(), 5);
        scale.ticks.iter().map(|tick| scale.label(*tick)).collect()
    }

    #[test]
    fn ticks_are_round_and_cover_the_values() {
        assert_eq!(labels(&[0.0, 1.0]), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[-0.12, 0.31]), ["-0.2", "-0.1", "0", "0.1", "0.2", "0.3", "0.4"]);
        assert_eq!(labels(&[0.0, 61_000.0]), ["0", "20k", "40k", "60k", "80k"]);
        assert_eq!(labels(&[3.0, 3.0]), ["1", "2", "3", "4", "5"]);
        assert_eq!(labels(&[0.0]), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
        assert_eq!(labels(&[]), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(&[0.0, 2.4e9]), ["0", "500M", "1000M", "1500M", "2000M", "2500M"]);
        assert_eq!(labels(&[0.0, 2e-6]), ["0", "5.0e-7", "1.0e-6", "1.5e-6", "2.0e-6"]);
    }

    #[test]
    fn numbers_of_any_size_get_an_axis() {
        for values in
            [[f64::MIN, f64::MAX], [0.0, f64::MIN_POSITIVE], [1e300, 1e300], [1.0, 1.0 + 1e-15], [-5e-324, 5e-324]]
        {
            let scale = Scale::covering(values, 5);
            assert!((2..=20).contains(&scale.ticks.len()), "{values:?}: {scale:?}");
            assert!(values.into_iter().all(|value| (0.0..=1.0).contains(&scale.place(value))), "{values:?}");
            assert!(scale.ticks.iter().all(|tick| scale.label(*tick).len() < 20));
        }
    }

    proptest! {
        #[test]
        fn values_lie_in_their_order(a in -1e9_f64..1e9, b in -1e9_f64..1e9) {
            let scale = Scale::covering([a, b], 5);
            prop_assert!(scale.first() <= a.min(b) + 1e-6 * a.abs().max(b.abs()));
            prop_assert!(scale.last() >= a.max(b) - 1e-6 * a.abs().max(b.abs()));
            prop_assert!((2..=10).contains(&scale.ticks.len()), "{:?}", scale);
            prop_assert_eq!(a <= b, scale.place(a) <= scale.place(b));
        }
    }
}

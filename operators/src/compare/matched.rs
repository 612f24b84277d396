//! The questions that two systems share.

use super::side::{Question, Side};

/// Differences below this share of the values are those of rounding.
const ROUNDING: f64 = 1e-12;

/// The questions of a system and of the baseline, by their places.
pub(super) struct Matching {
    /// Questions of both, sorted by id, so that draws do not depend on the order of the rows.
    pub(super) both: Vec<(usize, usize)>,
    /// Questions of the baseline alone, in its order.
    pub(super) base_only: Vec<usize>,
    /// Questions of the system alone, in its order.
    pub(super) side_only: Vec<usize>,
}

impl Matching {
    pub(super) fn of(base: &Side, side: &Side) -> Self {
        let mut matching = Self { both: Vec::new(), base_only: Vec::new(), side_only: Vec::new() };
        for (index, id) in base.questions.keys().enumerate() {
            match side.questions.get_index_of(id) {
                Some(other) => matching.both.push((index, other)),
                None => matching.base_only.push(index),
            }
        }
        matching.both.sort_by_key(|(index, _)| base.questions.get_index(*index).map(|(id, _)| id));
        for (index, id) in side.questions.keys().enumerate() {
            if !base.questions.contains_key(id) {
                matching.side_only.push(index);
            }
        }
        matching
    }
}

/// Means of a question, of the baseline and of a system.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Means {
    pub(super) base: f64,
    pub(super) side: f64,
}

impl Means {
    /// Returns the means if both systems have the metric.
    pub(super) fn of(base: &Question, side: &Question, metric: usize) -> Option<Self> {
        Some(Self { base: base.mean(metric)?, side: side.mean(metric)? })
    }

    /// The system's mean less the baseline's; 0 if only rounding tells them apart.
    pub(super) fn delta(self) -> f64 {
        let delta = self.side - self.base;
        // Equal values summed in another order may differ in their last bit, and would count as a win.
        if delta.abs() <= ROUNDING * self.base.abs().max(self.side.abs()) { 0.0 } else { delta }
    }

    /// How much better the system is.
    pub(super) fn gain(self, higher: bool) -> f64 {
        if higher { self.delta() } else { -self.delta() }
    }
}

//! Statistics of the rewards: mean, spread, and how many questions teach a group-relative method nothing.

use std::collections::BTreeMap;
use std::fmt::Write;

use indexmap::IndexMap;
use searchmill_engine::operator::Outputs;

use super::rewarded::Rewarded;

/// Running statistics. Memory grows with the number of questions, not of rollouts.
#[derive(Default)]
pub(super) struct Statistics {
    /// Rows without a reward.
    pub(super) rejected: usize,
    rewarded: usize,
    mean: f64,
    /// Sum of the squared distances from the mean (Welford 1962).
    squares: f64,
    parts: IndexMap<String, f64>,
    questions: BTreeMap<String, Group>,
}

/// Rewards of a question.
struct Group {
    first: f64,
    rollouts: u32,
    equal: bool,
}

impl Statistics {
    pub(super) fn add(&mut self, question: &str, reward: &Rewarded) {
        self.rewarded += 1;
        let distance = reward.value - self.mean;
        self.mean += distance / self.rewarded as f64;
        self.squares += distance * (reward.value - self.mean);
        for (name, value) in &reward.parts {
            match self.parts.get_mut(name) {
                Some(sum) => *sum += value,
                None => _ = self.parts.insert(name.clone(), *value),
            }
        }
        // `entry` would copy the name for every rollout.
        match self.questions.get_mut(question) {
            Some(group) => {
                group.rollouts += 1;
                // Without a tolerance: the parts of all rollouts are added in the same order.
                group.equal &= group.first == reward.value;
            }
            None => {
                self.questions.insert(question.to_owned(), Group { first: reward.value, rollouts: 1, equal: true });
            }
        }
    }

    pub(super) fn report(&self, outputs: &mut Outputs) {
        outputs.figure("rewarded", self.rewarded as f64);
        outputs.figure("rejected", self.rejected as f64);
        if self.rewarded == 0 {
            return;
        }
        // Of the sample; 0 for a single rollout.
        let deviation = if self.rewarded < 2 { 0.0 } else { (self.squares / (self.rewarded - 1) as f64).sqrt() };
        outputs.figure("reward_mean", self.mean);
        outputs.figure("reward_deviation", deviation);
        let mut text = format!("{:<14} {:>8}  {:>8}\n", "", "mean", "std");
        writeln!(text, "{:<14} {:>8.4}  {:>8.4}", "reward", self.mean, deviation).ok();
        // A single part would repeat the line above.
        for (name, sum) in self.parts.iter().filter(|_| self.parts.len() > 1) {
            writeln!(text, "  {name:<12} {:>8.4}", sum / self.rewarded as f64).ok();
        }
        writeln!(text, "{} rollouts of {} questions, {} rejected", self.rewarded, self.questions.len(), self.rejected)
            .ok();
        // Questions with several rollouts, and those of them whose rollouts all have the same reward.
        let several = self.questions.values().filter(|group| group.rollouts > 1);
        let (several, equal) = (several.clone().count(), several.filter(|group| group.equal).count());
        outputs.figure("questions_with_several_rollouts", several as f64);
        if several > 0 {
            outputs.figure("share_without_signal", equal as f64 / several as f64);
            let share = 100.0 * equal as f64 / several as f64;
            let meaning = "all rollouts have the same reward (no signal for group-relative methods)";
            writeln!(text, "{equal} of {several} questions with several rollouts ({share:.1} %): {meaning}").ok();
        }
        outputs.summary(&text);
    }
}

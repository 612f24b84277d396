//! Conversation statistics by outcome: turns, tool calls, tokens and reasoning of all, successful and failed rows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::scored::Scored;
use crate::shared::statistics::Spread;

/// A value for all rows, for successes and for failures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ByOutcome<T> {
    pub(crate) all: T,
    pub(crate) success: T,
    pub(crate) failure: T,
}

impl<T> ByOutcome<T> {
    /// Computes the value for each of the three groups.
    pub(crate) fn of(rows: &[Scored], compute: impl Fn(&[&Scored]) -> T) -> Self {
        let (success, failure): (Vec<&Scored>, Vec<&Scored>) = rows.iter().partition(|row| row.success);
        Self { all: compute(&rows.iter().collect::<Vec<_>>()), success: compute(&success), failure: compute(&failure) }
    }

    /// The values for all, success and failure.
    pub(crate) fn parts(&self) -> [&T; 3] {
        [&self.all, &self.success, &self.failure]
    }
}

/// Prompt, completion and total tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Tokens {
    pub(crate) prompt: ByOutcome<Spread>,
    pub(crate) completion: ByOutcome<Spread>,
    pub(crate) total: ByOutcome<Spread>,
}

impl Tokens {
    fn of(rows: &[Scored], usage: impl Fn(&Scored) -> [i64; 2]) -> Self {
        Self {
            prompt: spreads(rows, |row| usage(row)[0] as f64),
            completion: spreads(rows, |row| usage(row)[1] as f64),
            total: spreads(rows, |row| usage(row).iter().sum::<i64>() as f64),
        }
    }
}

/// Number of rows per value (number of turns, reason of the end).
pub(crate) type Distribution<K = i32> = BTreeMap<K, usize>;

/// Statistics of the conversations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Dynamics {
    /// Number of rows.
    pub(crate) total: ByOutcome<usize>,
    /// Number of rows with an exact match.
    pub(crate) exact: usize,
    /// The five answer metrics.
    pub(crate) metrics: Vec<ByOutcome<Spread>>,
    pub(crate) finish_reasons: ByOutcome<Distribution<String>>,
    /// Number of rows in which the limit of tokens cut a message of the model.
    pub(crate) cut: usize,
    pub(crate) turns: ByOutcome<Spread>,
    pub(crate) turn_distribution: ByOutcome<Distribution>,
    pub(crate) tool_calls: ByOutcome<Spread>,
    pub(crate) tool_call_total: ByOutcome<i64>,
    pub(crate) tool_call_distribution: ByOutcome<Distribution>,
    pub(crate) last_tokens: Tokens,
    pub(crate) all_tokens: Tokens,
    /// Characters of reasoning, over the rows with reasoning.
    pub(crate) reasoning: ByOutcome<Spread>,
    /// Number of rows with reasoning.
    pub(crate) reasoning_rows: ByOutcome<usize>,
    /// Number of rows per F1 bin of width 0.1; an F1 of 1 falls into the last bin.
    pub(crate) f1_histogram: [usize; 10],
}

fn spreads(rows: &[Scored], value: impl Fn(&Scored) -> f64) -> ByOutcome<Spread> {
    ByOutcome::of(rows, |part| Spread::of(part.iter().map(|row| value(row))))
}

fn distribution<K: Ord>(rows: &[Scored], value: impl Fn(&Scored) -> K) -> ByOutcome<Distribution<K>> {
    ByOutcome::of(rows, |part| {
        let mut counts = Distribution::new();
        for row in part {
            *counts.entry(value(row)).or_default() += 1;
        }
        counts
    })
}

impl Dynamics {
    /// Computes the statistics of these rows.
    pub(crate) fn of(rows: &[Scored]) -> Self {
        // An F1 of 1 falls into the last bin.
        let mut f1_histogram = [0; 10];
        for row in rows {
            f1_histogram[((row.scores.f1 * 10.0) as usize).min(9)] += 1;
        }
        Self {
            total: ByOutcome::of(rows, |part| part.len()),
            exact: rows.iter().filter(|row| row.scores.em == 1.0).count(),
            metrics: (0..5).map(|metric| spreads(rows, |row| row.scores.values()[metric])).collect(),
            finish_reasons: distribution(rows, |row| row.finish_reason.clone()),
            cut: rows.iter().filter(|row| row.is_cut).count(),
            turns: spreads(rows, |row| f64::from(row.turns)),
            turn_distribution: distribution(rows, |row| row.turns),
            tool_calls: spreads(rows, |row| f64::from(row.tool_calls)),
            tool_call_total: ByOutcome::of(rows, |part| part.iter().map(|row| i64::from(row.tool_calls)).sum()),
            tool_call_distribution: distribution(rows, |row| row.tool_calls),
            last_tokens: Tokens::of(rows, |row| row.last_tokens),
            all_tokens: Tokens::of(rows, |row| row.all_tokens),
            reasoning: ByOutcome::of(rows, |part| Spread::of(reasoning(part))),
            reasoning_rows: ByOutcome::of(rows, |part| reasoning(part).count()),
            f1_histogram,
        }
    }
}

fn reasoning<'a>(part: &'a [&Scored]) -> impl Iterator<Item = f64> + 'a {
    part.iter().filter_map(|row| row.reasoning).map(|characters| characters as f64)
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::{searched, trajectory};

    use super::*;

    #[test]
    fn groups_by_outcome() {
        let won = Scored::of(&searched(trajectory("a", 0, "x", "x"), "d", "t"), 0.8);
        let lost = Scored::of(&trajectory("b", 0, "x", "y"), 0.8);
        let dynamics = Dynamics::of(&[won, lost]);
        assert_eq!(dynamics.total, ByOutcome { all: 2, success: 1, failure: 1 });
        assert_eq!(dynamics.finish_reasons.success, [("answered".to_owned(), 1)].into());
        assert_eq!(dynamics.turns.all.mean, Some(1.5));
        assert!((dynamics.turns.all.stdev.unwrap() - 0.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(dynamics.turns.success, Spread { mean: Some(2.0), stdev: Some(0.0) });
        assert_eq!(dynamics.tool_call_total.all, 1);
        assert_eq!(dynamics.turn_distribution.failure, Distribution::from([(1, 1)]));
        assert_eq!(dynamics.all_tokens.total.all.mean, Some(120.0));
        assert_eq!((dynamics.f1_histogram[0], dynamics.f1_histogram[9]), (1, 1));
        assert_eq!(dynamics.reasoning_rows.all, 0);
    }

    #[test]
    fn nothing_has_no_mean() {
        assert_eq!(Dynamics::of(&[]).metrics[0].all, Spread { mean: None, stdev: None });
    }
}

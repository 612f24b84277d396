//! The fixed order in which samples are drawn until enough rows count, and when it ends.
//!
//! Sample 0 of every row is drawn in input order, then sample 1 of every row that needs more, and so on. The order ends
//! with the sample that reaches the goal. It depends on results alone: never on which of them arrives first.

/// Figure of a result that was drawn up to a goal: number of samples.
pub const DRAWN: &str = "samples_drawn";
/// Figure of a result that was drawn up to a goal: number of rows that count.
pub const COUNTED: &str = "rows_that_pass";

/// When no more samples are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Rows that must count.
    pub rows: u64,
    /// Rows of one input row that count (at most); no further samples of it are drawn.
    pub per_row: Option<u64>,
    /// Samples that are drawn (at most).
    pub at_most: Option<u64>,
}

/// The results of one input row.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    /// Rows that count.
    counted: u64,
    /// Samples whose results are not known yet.
    open: u32,
}

/// Whether the next sample of a row is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It is.
    Drawn,
    /// The row needs no more samples.
    Enough,
    /// Results of the row that are not known yet decide it.
    Wait,
}

/// Decides which samples are drawn. Samples are admitted in the fixed order, [known](Self::known) in any order, and
/// [counted](Self::count) in the fixed order again.
#[derive(Debug)]
pub(crate) struct Draw {
    goal: Goal,
    rows: Vec<Drawn>,
    /// Samples admitted.
    admitted: u64,
    /// Samples counted: the prefix of the fixed order.
    prefix: u64,
    /// Rows that count in all known results.
    known: u64,
    /// Rows that count in the prefix.
    counted: u64,
    /// The most rows that counted in one result, at least 1.
    largest: u64,
}

impl Draw {
    pub(crate) fn new(goal: Goal) -> Self {
        Self { goal, rows: Vec::new(), admitted: 0, prefix: 0, known: 0, counted: 0, largest: 1 }
    }

    /// Decides about the next sample of the row at this place in the input.
    pub(crate) fn next(&self, row: usize) -> Next {
        // Without a limit per row, or before its first sample, no result of the row decides.
        let (Some(most), Some(drawn)) = (self.goal.per_row, self.rows.get(row)) else { return Next::Drawn };
        match drawn {
            Drawn { counted, .. } if *counted >= most => Next::Enough,
            Drawn { open: 0, .. } => Next::Drawn,
            // It may give the rows that are missing.
            _ => Next::Wait,
        }
    }

    /// Whether `at_most` allows another sample.
    pub(crate) fn may_admit(&self) -> bool {
        self.goal.at_most.is_none_or(|most| self.admitted < most)
    }

    /// Whether some row needs more samples, as far as results are known.
    pub(crate) fn needs_more(&self) -> bool {
        self.goal.per_row.is_none_or(|most| self.rows.iter().any(|row| row.counted < most))
    }

    /// Admits the next sample of a row.
    pub(crate) fn admit(&mut self, row: usize) {
        if self.rows.len() <= row {
            self.rows.resize(row + 1, Drawn::default());
        }
        self.rows[row].open += 1;
        self.admitted += 1;
    }

    /// Takes note of a result in which `rows` rows pass. Returns how many of them count.
    pub(crate) fn known(&mut self, row: usize, rows: u64) -> u64 {
        let Some(drawn) = self.rows.get_mut(row) else { return 0 };
        drawn.open = drawn.open.saturating_sub(1);
        let left = self.goal.per_row.map_or(u64::MAX, |most| most.saturating_sub(drawn.counted));
        let counts = rows.min(left);
        drawn.counted += counts;
        self.known += counts;
        self.largest = self.largest.max(counts);
        counts
    }

    /// Adds the next sample of the fixed order to the prefix.
    pub(crate) fn count(&mut self, counts: u64) {
        self.prefix += 1;
        self.counted += counts;
    }

    /// Whether the prefix reaches the goal.
    pub(crate) fn is_reached(&self) -> bool {
        self.counted >= self.goal.rows
    }

    /// Whether a new sample may be paid for. Beyond the prefix, at most as many samples are open as the goal certainly
    /// needs, or as `at_once`; and none if the known results reach the goal.
    pub(crate) fn may_pay(&self, at_once: usize) -> bool {
        let missing = self.goal.rows.saturating_sub(self.counted).div_ceil(self.largest);
        self.known < self.goal.rows && self.admitted - self.prefix <= missing.max(at_once as u64)
    }

    /// Number of samples in the prefix, and of rows that count in it.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.prefix, self.counted)
    }

    /// Says where drawing ended, with a warning if that was before the goal; `is_broke`: a budget ended it.
    pub(crate) fn text(&self, is_broke: bool) -> String {
        let (samples, rows, wanted) = (self.prefix, self.counted, self.goal.rows);
        if self.is_reached() {
            return format!("`until`: {rows} rows pass after {samples} samples");
        }
        let why = match (is_broke, self.may_admit()) {
            (true, _) => "the budget is used up",
            (false, true) => "every question has all its samples",
            (false, false) => "`at_most` is reached",
        };
        format!("warning: `until`: only {rows} of {wanted} rows pass after {samples} samples: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws from results that are known at once: rows that pass, by row and sample.
    fn drawn(goal: Goal, results: &[&[u64]]) -> (Vec<(usize, usize)>, Draw) {
        let mut draw = Draw::new(goal);
        let mut order = Vec::new();
        for sample in 0..results.first().map_or(0, |samples| samples.len()) {
            for (row, samples) in results.iter().enumerate() {
                if draw.is_reached() || !draw.may_admit() {
                    return (order, draw);
                }
                if draw.next(row) == Next::Drawn {
                    draw.admit(row);
                    let counts = draw.known(row, samples[sample]);
                    draw.count(counts);
                    order.push((row, sample));
                }
            }
        }
        (order, draw)
    }

    const GOAL: Goal = Goal { rows: 3, per_row: Some(1), at_most: None };

    #[test]
    fn rounds_pass_over_rows_that_have_enough_and_end_at_the_goal() {
        let results: [&[u64]; 4] = [&[0, 0, 1], &[1, 1, 1], &[0, 1, 0], &[0, 0, 1]];
        let (order, draw) = drawn(GOAL, &results);
        assert_eq!(order, [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (2, 1), (3, 1), (0, 2)]);
        assert_eq!(draw.text(false), "`until`: 3 rows pass after 8 samples");
        let (order, draw) = drawn(Goal { at_most: Some(5), ..GOAL }, &results);
        assert_eq!((order.len(), draw.totals()), (5, (5, 1)));
        assert!(draw.text(false).ends_with("only 1 of 3 rows pass after 5 samples: `at_most` is reached"));
        let (order, draw) = drawn(Goal { rows: 9, ..GOAL }, &results);
        assert_eq!((order.len(), draw.totals()), (9, (9, 4)));
        assert!(draw.text(false).ends_with("every question has all its samples") && !draw.needs_more());
    }

    #[test]
    fn a_looser_condition_draws_nothing_that_a_stricter_one_did_not() {
        let mut state = 7_u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 4
        };
        for per_row in [None, Some(1), Some(2)] {
            for _ in 0..200 {
                let strict: Vec<Vec<u64>> =
                    (0..6).map(|_| (0..5).map(|_| random().saturating_sub(2)).collect()).collect();
                let loose: Vec<Vec<u64>> =
                    strict.iter().map(|row| row.iter().map(|passing| passing + random() / 3).collect()).collect();
                let goal = Goal { rows: 4, per_row, at_most: None };
                let of = |results: &[Vec<u64>]| {
                    let results: Vec<&[u64]> = results.iter().map(Vec::as_slice).collect();
                    drawn(goal, &results).0
                };
                let (strict, loose) = (of(&strict), of(&loose));
                assert!(loose.iter().all(|sample| strict.contains(sample)), "{loose:?} of {strict:?}");
            }
        }
    }

    #[test]
    fn what_is_paid_beyond_the_prefix_is_bounded() {
        let mut draw = Draw::new(Goal { rows: 5, per_row: None, at_most: None });
        // The first result is late: five samples are certainly needed, and no more are paid for.
        for row in 0..5 {
            draw.admit(row);
            assert!(draw.may_pay(2));
        }
        draw.admit(5);
        assert!(!draw.may_pay(2) && draw.may_pay(8));
        for row in 1..5 {
            assert_eq!(draw.known(row, 1), 1);
        }
        assert!(draw.may_pay(8), "one row is missing");
        draw.known(5, 1);
        assert!(!draw.may_pay(8), "whatever the first result is, these are enough");
    }

    #[test]
    fn a_row_waits_for_its_own_results_alone() {
        let mut draw = Draw::new(GOAL);
        draw.admit(0);
        draw.admit(1);
        draw.known(1, 0);
        assert_eq!([0, 1, 2].map(|row| draw.next(row)), [Next::Wait, Next::Drawn, Next::Drawn]);
        assert_eq!(draw.known(0, 7), 1, "one row of a question counts");
        assert_eq!(draw.next(0), Next::Enough);
    }
}

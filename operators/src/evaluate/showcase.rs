//! Trajectories that the report shows in full: best, lucky, near misses and worst.

use searchmill_schemas::Trajectory;

use super::scored::Scored;

/// A trajectory to show, and the reason.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// Title of its shelf.
    pub(crate) why: &'static str,
    pub(crate) scored: Scored,
    pub(crate) trajectory: Trajectory,
}

/// Selects a few notable trajectories while all of them stream.
pub(crate) struct Showcase {
    size: usize,
    shelves: [Vec<(Rank, Shown)>; 4],
}

/// Lower ranks are shown first; ties are broken by trajectory id, independent of the input order.
type Rank = [f64; 3];

/// Titles of the shelves.
const TITLES: [&str; 4] = [
    "Best: right, and supported by what was retrieved",
    "Lucky: right, but nothing retrieved supports it",
    "Near misses: partly right",
    "Failures: wrong, those that had seen the evidence first",
];

/// Returns the shelf of a row, and its rank there.
fn ranked(row: &Scored) -> Option<(usize, Rank)> {
    let (f1, turns) = (row.scores.f1, f64::from(row.turns));
    match (row.success, row.grounded) {
        (true, true) => Some((0, [-f1, -f64::from(row.tool_calls), turns])),
        (true, false) => Some((1, [-f1, turns, 0.0])),
        (false, _) if f1 > 0.0 => Some((2, [-f1, 0.0, 0.0])),
        (false, grounded) if f1 == 0.0 => Some((3, [f64::from(!grounded), -turns, 0.0])),
        _ => None,
    }
}

impl Showcase {
    /// Selects at most `size` trajectories per shelf.
    pub(crate) fn new(size: usize) -> Self {
        Self { size, shelves: Default::default() }
    }

    /// Considers one trajectory.
    pub(crate) fn offer(&mut self, scored: &Scored, trajectory: &Trajectory) {
        let Some((shelf, rank)) = ranked(scored) else { return };
        let (why, shelf) = (TITLES[shelf], &mut self.shelves[shelf]);
        let position = shelf
            .partition_point(|(other, shown)| (other.as_slice(), &shown.scored.id) <= (rank.as_slice(), &scored.id));
        // Trajectories are large: only those that are shown so far are copied.
        if position < self.size {
            shelf.insert(position, (rank, Shown { why, scored: scored.clone(), trajectory: trajectory.clone() }));
            shelf.truncate(self.size);
        }
    }

    /// Returns the selected trajectories, shelf by shelf.
    pub(crate) fn into_shown(self) -> Vec<Shown> {
        self.shelves.into_iter().flatten().map(|(_, shown)| shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::{searched, trajectory};

    use super::*;

    fn shown(order: &[usize]) -> Vec<(&'static str, String)> {
        let made = [
            trajectory("lucky", 0, "x", "x"),
            searched(trajectory("best", 0, "Ada", "Ada"), "d", "Ada was here"),
            searched(trajectory("good", 0, "Ada", "Ada"), "d", "Ada was here"),
            trajectory("near", 0, "Ada Lovelace", "Ada"),
            trajectory("wrong", 0, "x", "y"),
            searched(trajectory("seen", 0, "Ada", "Bob"), "d", "Ada was here"),
        ];
        let mut showcase = Showcase::new(1);
        for &place in order {
            showcase.offer(&Scored::of(&made[place], 0.8), &made[place]);
        }
        showcase
            .into_shown()
            .into_iter()
            .map(|s| (s.why.split(':').next().unwrap(), s.trajectory.question_id))
            .collect()
    }

    #[test]
    fn shelves_hold_what_stands_out_whatever_the_order() {
        let expected = [("Best", "best"), ("Lucky", "lucky"), ("Near misses", "near"), ("Failures", "seen")]
            .map(|(a, b)| (a, b.to_owned()));
        assert_eq!(shown(&[0, 1, 2, 3, 4, 5]), expected);
        assert_eq!(shown(&[5, 4, 3, 2, 1, 0]), expected);
    }
}

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
    shelves: [Shelf; 4],
}

/// Lower ranks are shown first; ties are broken by trajectory id, independent of the input order.
type Rank = [f64; 3];

struct Shelf {
    title: &'static str,
    /// Rank of a row that qualifies, otherwise `None`.
    rank: fn(&Scored) -> Option<Rank>,
    held: Vec<(Rank, Shown)>,
}

impl Shelf {
    fn new(title: &'static str, rank: fn(&Scored) -> Option<Rank>) -> Self {
        Self { title, rank, held: Vec::new() }
    }

    fn offer(&mut self, scored: &Scored, trajectory: &Trajectory, size: usize) {
        let Some(rank) = (self.rank)(scored) else { return };
        let before =
            |(other, shown): &(Rank, Shown)| (other.as_slice(), &shown.scored.id) <= (rank.as_slice(), &scored.id);
        let place = self.held.partition_point(before);
        if place < size {
            let shown = Shown { why: self.title, scored: scored.clone(), trajectory: trajectory.clone() };
            self.held.insert(place, (rank, shown));
            self.held.truncate(size);
        }
    }
}

impl Showcase {
    /// Keeps at most `size` trajectories per shelf.
    pub(crate) fn new(size: usize) -> Self {
        let best = |row: &Scored| {
            (row.success && row.grounded).then(|| [-row.scores.f1, -f64::from(row.tool_calls), f64::from(row.turns)])
        };
        let lucky = |row: &Scored| (row.success && !row.grounded).then(|| [-row.scores.f1, f64::from(row.turns), 0.0]);
        let near = |row: &Scored| (!row.success && row.scores.f1 > 0.0).then(|| [-row.scores.f1, 0.0, 0.0]);
        let worst = |row: &Scored| {
            (!row.success && row.scores.f1 == 0.0)
                .then(|| [f64::from(u8::from(!row.grounded)), -f64::from(row.turns), 0.0])
        };
        let shelves = [
            Shelf::new("Best: right, and supported by what was retrieved", best),
            Shelf::new("Lucky: right, but nothing retrieved supports it", lucky),
            Shelf::new("Near misses: partly right", near),
            Shelf::new("Failures: wrong, those that had seen the evidence first", worst),
        ];
        Self { size, shelves }
    }

    /// Considers one trajectory.
    pub(crate) fn offer(&mut self, scored: &Scored, trajectory: &Trajectory) {
        for shelf in &mut self.shelves {
            shelf.offer(scored, trajectory, self.size);
        }
    }

    /// Returns the selected trajectories, shelf by shelf.
    pub(crate) fn into_shown(self) -> Vec<Shown> {
        self.shelves.into_iter().flat_map(|shelf| shelf.held).map(|(_, shown)| shown).collect()
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

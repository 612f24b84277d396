//! The figures of a system beside the baseline: means, differences, wins and tests, by group.

use std::collections::BTreeMap;

use searchmill_engine::operator::OperatorError;

use super::matched::{Matching, Means};
use super::params::{By, CompareParams};
use super::side::Side;
use super::sign_flip::{Flips, Test, holm, sign_flip};
use crate::shared::html::plot::Estimate;
use crate::shared::relation::{GROUPS, Label, require_few_groups};
use crate::shared::statistics::{Bootstrap, Clusters};

/// A system beside the baseline.
pub(super) struct Comparison {
    pub(super) system: String,
    pub(super) matching: Matching,
    /// All questions first, then those of each column of `group_by`.
    pub(super) groups: Vec<Group>,
}

/// Some of the questions.
pub(super) struct Group {
    /// Place in `group_by`; `None` for all questions.
    pub(super) column: Option<usize>,
    pub(super) label: String,
    /// One for each metric.
    pub(super) figures: Vec<Figure>,
}

/// One metric over some of the questions.
#[derive(Clone, Debug, Default)]
pub(super) struct Figure {
    pub(super) base: f64,
    pub(super) side: f64,
    /// Mean difference; its count is that of the questions.
    pub(super) delta: Estimate,
    pub(super) wins: usize,
    pub(super) losses: usize,
    pub(super) ties: usize,
    pub(super) test: Option<Test>,
    /// The p-value, corrected for the number of tests.
    pub(super) holm: Option<f64>,
}

impl Comparison {
    /// Compares a system with the baseline; `number` counts the comparisons of a node.
    pub(super) fn new(
        params: &CompareParams,
        base: &Side,
        side: &Side,
        matching: Matching,
        bootstrap: &Bootstrap,
        number: usize,
    ) -> Result<Self, OperatorError> {
        let by = params.by();
        let mut members_of = vec![(None, "all".to_owned(), matching.both.clone())];
        for (column, key) in params.group_by.iter().enumerate() {
            let mut members: BTreeMap<&Label, Vec<(usize, usize)>> = BTreeMap::new();
            for pair in &matching.both {
                members.entry(&base.questions[pair.0].groups[column]).or_default().push(*pair);
            }
            // The streams below leave room for `GROUPS` groups a column: more would share random numbers.
            require_few_groups(members.len(), column, key)?;
            members_of.extend(members.into_iter().map(|(label, pairs)| (Some(column), label.text.clone(), pairs)));
        }
        let mut groups = Vec::new();
        for (index, (column, label, questions)) in members_of.into_iter().enumerate() {
            // Two streams for each group that a node may have: one of resamples, one of signs.
            let stream = ((number * GROUPS * (params.group_by.len() + 1) + index) * 2) as u64;
            let flips = Flips { permutations: params.permutations, seed: bootstrap.seed, stream: stream + 1 };
            let (mut means, mut deltas) = (Vec::new(), Vec::new());
            for (of_base, of_side) in questions {
                let Some((id, one)) = base.questions.get_index(of_base) else { continue };
                let other = &side.questions[of_side];
                let of_question: Vec<_> = (0..by.len()).map(|metric| Means::of(one, other, metric)).collect();
                deltas.push((id.as_str(), of_question.iter().map(|means| means.map(Means::delta)).collect()));
                means.push(of_question);
            }
            let estimates = Clusters::new(by.len(), deltas).estimates(bootstrap, stream).into_iter().enumerate();
            let figures = estimates.map(|(metric, delta)| Figure::of(&by[metric], metric, &means, delta, flips));
            groups.push(Group { column, label, figures: figures.collect() });
        }
        Ok(Self { system: side.name.clone(), matching, groups })
    }
}

impl Group {
    /// `all`, or `<column>=<value>`.
    pub(super) fn name(&self, params: &CompareParams) -> String {
        match self.column {
            Some(column) => format!("{}={}", params.group_by[column], self.label),
            None => self.label.clone(),
        }
    }
}

impl Figure {
    fn of(by: &By, metric: usize, means: &[Vec<Option<Means>>], delta: Estimate, flips: Flips) -> Self {
        let known: Vec<Means> = means.iter().filter_map(|means| means[metric]).collect();
        // Without any, the means are 0; the pages show a dash then.
        let count = known.len().max(1) as f64;
        let mut figure = Self {
            base: known.iter().map(|means| means.base).sum::<f64>() / count,
            side: known.iter().map(|means| means.side).sum::<f64>() / count,
            delta,
            ..Self::default()
        };
        let gains: Vec<f64> = known.iter().map(|means| means.gain(by.higher)).collect();
        for gain in &gains {
            figure.wins += usize::from(*gain > 0.0);
            figure.losses += usize::from(*gain < 0.0);
            figure.ties += usize::from(*gain == 0.0);
        }
        figure.test = sign_flip(&gains, flips);
        figure
    }
}

/// Corrects the p-values of all questions together, and those of each column of `group_by` together.
pub(super) fn corrected(comparisons: &mut [Comparison], columns: usize) {
    // Each table of the report is one family of tests.
    for column in std::iter::once(None).chain((0..columns).map(Some)) {
        let (mut figures, mut values) = (Vec::new(), Vec::new());
        for group in comparisons.iter_mut().flat_map(|one| &mut one.groups) {
            if group.column != column {
                continue;
            }
            for figure in &mut group.figures {
                if let Some(test) = figure.test {
                    values.push(test.p);
                    figures.push(figure);
                }
            }
        }
        for (figure, p) in figures.into_iter().zip(holm(&values)) {
            figure.holm = Some(p);
        }
    }
}

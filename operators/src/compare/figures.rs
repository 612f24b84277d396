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
        let mut groups = Vec::new();
        for (place, (column, label, questions)) in grouped(params, base, &matching)?.into_iter().enumerate() {
            let stream = ((number * GROUPS * (params.group_by.len() + 1) + place) * 2) as u64;
            let flips = Flips { permutations: params.permutations, seed: bootstrap.seed, stream: stream + 1 };
            let means = means(base, side, &questions, by.len());
            let ids = questions.iter().filter_map(|(place, _)| base.questions.get_index(*place));
            let deltas = ids.zip(&means).map(|((id, _), means)| (id.as_str(), deltas(means)));
            let estimates = Clusters::new(by.len(), deltas).estimates(bootstrap, stream);
            let figure = |(metric, delta): (usize, Estimate)| Figure::of(&by[metric], metric, &means, delta, flips);
            let figures = estimates.into_iter().enumerate().map(figure).collect();
            groups.push(Group { column, label, figures });
        }
        Ok(Self { system: side.name.clone(), matching, groups })
    }
}

impl Group {
    /// `all`, or `<column>=<value>`.
    pub(super) fn name(&self, params: &CompareParams) -> String {
        self.column.map_or_else(|| self.label.clone(), |column| format!("{}={}", params.group_by[column], self.label))
    }
}

type Questions = Vec<(usize, usize)>;

fn grouped(
    params: &CompareParams,
    base: &Side,
    matching: &Matching,
) -> Result<Vec<(Option<usize>, String, Questions)>, OperatorError> {
    let mut groups = vec![(None, "all".to_owned(), matching.both.clone())];
    for (column, key) in params.group_by.iter().enumerate() {
        let mut members: BTreeMap<&Label, Questions> = BTreeMap::new();
        for pair in &matching.both {
            members.entry(&base.questions[pair.0].groups[column]).or_default().push(*pair);
        }
        require_few_groups(members.len(), column, key)?;
        groups.extend(members.into_iter().map(|(label, pairs)| (Some(column), label.text.clone(), pairs)));
    }
    Ok(groups)
}

fn means(base: &Side, side: &Side, questions: &Questions, metrics: usize) -> Vec<Vec<Option<Means>>> {
    let of = |(one, other): &(usize, usize)| {
        let (one, other) = (&base.questions[*one], &side.questions[*other]);
        (0..metrics).map(|metric| Means::of(one, other, metric)).collect()
    };
    questions.iter().map(of).collect()
}

fn deltas(means: &[Option<Means>]) -> Vec<Option<f64>> {
    means.iter().map(|means| means.map(Means::delta)).collect()
}

impl Figure {
    fn of(by: &By, metric: usize, means: &[Vec<Option<Means>>], delta: Estimate, flips: Flips) -> Self {
        let found: Vec<Means> = means.iter().filter_map(|means| means[metric]).collect();
        let count = found.len().max(1) as f64;
        let gains: Vec<f64> = found.iter().map(|means| means.gain(by.higher)).collect();
        Self {
            base: found.iter().map(|means| means.base).sum::<f64>() / count,
            side: found.iter().map(|means| means.side).sum::<f64>() / count,
            delta,
            wins: gains.iter().filter(|gain| **gain > 0.0).count(),
            losses: gains.iter().filter(|gain| **gain < 0.0).count(),
            ties: gains.iter().filter(|gain| **gain == 0.0).count(),
            test: sign_flip(&gains, flips),
            holm: None,
        }
    }
}

/// Corrects the p-values of all questions together, and those of each column of `group_by` together.
pub(super) fn corrected(comparisons: &mut [Comparison], columns: usize) {
    for column in std::iter::once(None).chain((0..columns).map(Some)) {
        let groups = comparisons.iter_mut().flat_map(|one| &mut one.groups).filter(|group| group.column == column);
        let mut figures: Vec<(&mut Figure, f64)> = groups
            .flat_map(|group| &mut group.figures)
            .filter_map(|figure| figure.test.map(|test| (figure, test.p)))
            .collect();
        let values: Vec<f64> = figures.iter().map(|(_, p)| *p).collect();
        for ((figure, _), p) in figures.iter_mut().zip(holm(&values)) {
            figure.holm = Some(p);
        }
    }
}

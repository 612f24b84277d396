//! Measures by group: answer scores, pass@k and baselines, each with an interval.

use std::collections::BTreeMap;

use searchmill_text::answer_metrics::AnswerScores;
use searchmill_text::baseline::{BASELINES, Baselines};

use super::family::{self, Family};
use super::own::{self, OwnMeasures};
use super::scored::{QUESTION_TYPE, Scored};
use super::verdicts;
use crate::shared::html::plot::Estimate;
use crate::shared::relation::Label;
use crate::shared::statistics::{Bootstrap, Clusters, Measure, named, pass_at_k};

/// Measures of one group of scored rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// The column; `None` for `all`.
    pub(crate) column: Option<String>,
    /// The value without the column.
    pub(crate) label: String,
    /// Number of scored trajectories (or questions, if there are no trajectories).
    pub(crate) rows: usize,
    /// Number of questions.
    pub(crate) questions: usize,
    /// Measures of the trajectories; empty without trajectories.
    pub(crate) measures: Vec<Measure>,
    /// The five answer metrics of each baseline over the same rows, in the order of [`BASELINES`].
    pub(crate) baselines: Vec<Vec<Measure>>,
}

impl Group {
    /// `all`, or `<column>=<value>`.
    pub(crate) fn name(&self) -> String {
        match &self.column {
            Some(column) => format!("{column}={}", self.label),
            None => self.label.clone(),
        }
    }

    /// Returns the estimate with this name.
    pub(crate) fn measure(&self, name: &str) -> Option<Estimate> {
        named(&self.measures, name)
    }

    /// Returns a baseline's estimate with this name.
    pub(crate) fn baseline(&self, which: usize, name: &str) -> Option<Estimate> {
        named(self.baselines.get(which)?, name)
    }
}

/// Measures besides the five answer metrics. `f1_over_…` is the paired difference to a baseline: if its interval
/// contains 0, the score does not show an effect of retrieval.
const FURTHER: [&str; 9] = [
    "success",
    "grounded",
    "f1_over_best_constant",
    "f1_over_majority_by_type",
    "turns",
    "tool_calls",
    "total_tokens",
    "seen_document_recall",
    "seen_all_documents",
];

/// What to measure besides the metrics that every evaluation has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Further<'a> {
    /// Families of answer metrics.
    pub(crate) families: &'a [Family],
    /// Columns of verdicts.
    pub(crate) verdicts: &'a [String],
    /// The user's own.
    pub(crate) own: &'a OwnMeasures,
}

fn names(further: Further<'_>) -> Vec<String> {
    let known = AnswerScores::NAMES.iter().chain(&FURTHER).map(|name| (*name).to_owned());
    let others = family::names(further.families).chain(verdicts::names(further.verdicts));
    known.chain(others).chain(own::names(further.own)).collect()
}

/// Figures of the node that are no measures.
pub(crate) const COUNTS: [&str; 3] = ["trajectories", "failed_rollouts", "tool_errors"];

/// Returns the name of the figure with a baseline's F1.
pub(crate) fn baseline_figure(baseline: &str) -> String {
    format!("baseline_{baseline}_f1")
}

/// Whether a figure of an evaluation may have this name.
pub(crate) fn is_taken(name: &str) -> bool {
    let known = AnswerScores::NAMES.iter().chain(&FURTHER).chain(&COUNTS).any(|known| *known == name);
    known || BASELINES.iter().any(|baseline| baseline_figure(baseline) == name)
}

/// Values of a row, in the order of [`names`].
fn values(row: &Scored, further: Further<'_>, baselines: &Baselines) -> Vec<Option<f64>> {
    let baseline = baselines.scores.get(&row.question_id);
    let mut values: Vec<_> = row.scores.values().into_iter().map(Some).collect();
    values.extend([
        Some(f64::from(row.success)),
        Some(f64::from(row.grounded)),
        baseline.map(|scores| row.scores.f1 - scores[0].f1),
        baseline.map(|scores| row.scores.f1 - scores[1].f1),
        Some(f64::from(row.turns)),
        Some(f64::from(row.tool_calls)),
        Some(row.all_tokens.iter().sum::<i64>() as f64),
        row.seen_recall,
        row.seen_recall.map(|recall| f64::from(recall >= 1.0)),
    ]);
    values.extend(row.further.iter().copied().map(Some));
    values.extend(verdicts::values(&row.verdicts));
    values.extend(own::values(row, further.own));
    values
}

/// Computes all measures: group `all` first, then the values of each grouping in order. `rows` must be sorted by
/// question, and have these further values.
pub(crate) fn measure_groups(
    rows: &[Scored],
    group_by: &[String],
    pass_at: &[u32],
    further: Further<'_>,
    baselines: &Baselines,
    bootstrap: &Bootstrap,
) -> Vec<Group> {
    let mut groups: Vec<(Option<String>, String, Vec<&Scored>)> = vec![(None, "all".into(), rows.iter().collect())];
    for (index, column) in group_by.iter().enumerate() {
        let mut members: BTreeMap<&Label, Vec<&Scored>> = BTreeMap::new();
        for row in rows {
            members.entry(&row.groups[index]).or_default().push(row);
        }
        groups.extend(members.into_iter().map(|(label, members)| (Some(column.clone()), label.text.clone(), members)));
    }
    let mut measured = Vec::with_capacity(groups.len());
    for (index, (column, label, members)) in groups.into_iter().enumerate() {
        // Four streams a group: means, pass@k, baselines, and one for kappas, quantiles and ranked lists.
        let stream = index as u64 * 4;
        let names = names(further);
        let rows = members.iter().map(|row| (row.question_id.as_str(), values(row, further, baselines)));
        let clusters = Clusters::new(names.len(), rows);
        let mut measures = clusters.measures(names, bootstrap, stream);
        measures.extend(verdicts::kappas(&members, further.verdicts, bootstrap, stream + 3));
        measures.extend(own::quantiles(&members, further.own, bootstrap, stream + 3));
        // Other columns may tell the samples of a question apart; pass@k needs all of them.
        if column.as_deref().is_none_or(|column| column == QUESTION_TYPE) {
            measures.extend(measure_passes(&members, pass_at, bootstrap, stream + 1));
        }
        let questions: Vec<&str> = members.iter().map(|row| row.question_id.as_str()).collect();
        let baselines = measure_baselines(&questions, baselines, bootstrap, stream + 2);
        measured.push(Group { column, label, rows: members.len(), questions: clusters.len(), measures, baselines });
    }
    measured
}

/// Measures groups of questions without trajectories, for which only baselines are defined. `asked`: id and type.
pub(crate) fn measure_questions(asked: &[(&str, &str)], baselines: &Baselines, bootstrap: &Bootstrap) -> Vec<Group> {
    let mut types: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, kind) in asked {
        types.entry(kind).or_default().push(id);
    }
    let mut groups = vec![(None, "all", asked.iter().map(|(id, _)| *id).collect())];
    groups.extend(types.into_iter().map(|(kind, ids)| (Some(QUESTION_TYPE.to_owned()), kind, ids)));
    let mut measured = Vec::with_capacity(groups.len());
    for (index, (column, label, ids)) in groups.into_iter().enumerate() {
        let (rows, label) = (ids.len(), label.to_owned());
        // The streams of `measure_groups`.
        let baselines = measure_baselines(&ids, baselines, bootstrap, index as u64 * 4 + 2);
        measured.push(Group { column, label, rows, questions: rows, measures: Vec::new(), baselines });
    }
    measured
}

fn measure_baselines(ids: &[&str], baselines: &Baselines, bootstrap: &Bootstrap, stream: u64) -> Vec<Vec<Measure>> {
    // Questions without golden answers have no baseline.
    let known: Vec<_> = ids.iter().filter_map(|id| Some((*id, baselines.scores.get(*id)?))).collect();
    let mut measured = Vec::with_capacity(BASELINES.len());
    for which in 0..BASELINES.len() {
        let rows = known.iter().map(|(id, scores)| (*id, scores[which].values().map(Some).to_vec()));
        let names = AnswerScores::NAMES.map(str::to_owned);
        measured.push(Clusters::new(names.len(), rows).measures(names, bootstrap, stream));
    }
    measured
}

/// pass@k: the mean over questions with at least k samples.
fn measure_passes(members: &[&Scored], pass_at: &[u32], bootstrap: &Bootstrap, stream: u64) -> Vec<Measure> {
    let mut questions: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for row in members {
        let entry = questions.entry(&row.question_id).or_default();
        *entry = (entry.0 + 1, entry.1 + usize::from(row.success));
    }
    let ks = if pass_at.is_empty() { doublings(questions.values().map(|(n, _)| *n).max()) } else { pass_at.to_vec() };
    let rows = questions.iter().map(|(id, (n, c))| (*id, ks.iter().map(|k| pass_at_k(*n, *c, *k as usize)).collect()));
    Clusters::new(ks.len(), rows).measures(ks.iter().map(|k| format!("pass@{k}")), bootstrap, stream)
}

/// Returns 1, 2, 4, … up to `most`.
fn doublings(most: Option<usize>) -> Vec<u32> {
    let most = most.and_then(|most| u32::try_from(most).ok()).unwrap_or(0);
    std::iter::successors(Some(1_u32), |k| k.checked_mul(2)).take_while(|k| *k <= most).collect()
}

#[cfg(test)]
mod tests {
    use searchmill_fixtures::trajectories::trajectory;

    use super::*;

    const BOOTSTRAP: Bootstrap = Bootstrap { resamples: 100, confidence: 0.95, seed: 0 };

    fn rows() -> Vec<Scored> {
        let made = [("a", 0, "x"), ("a", 1, "y"), ("b", 0, "x"), ("b", 1, "x")];
        let row = |(id, sample, prediction)| {
            let scored = Scored::of(&trajectory(id, sample, "x", prediction), 0.8);
            Scored { groups: vec![Label::of_text("1")], ..scored }
        };
        made.map(row).into()
    }

    #[test]
    fn groups_and_passes() {
        let further = Further { families: &[], verdicts: &[], own: &OwnMeasures::new() };
        let by = ["turns".to_owned()];
        let groups = measure_groups(&rows(), &by, &[], further, &Baselines::default(), &BOOTSTRAP);
        let names: Vec<_> = groups.iter().map(Group::name).collect();
        assert_eq!(names, ["all", "turns=1"]);
        let all = &groups[0];
        assert_eq!((all.rows, all.questions), (4, 2));
        assert_eq!(all.measure("em").unwrap().value, 0.75);
        assert_eq!(all.measure("pass@1").unwrap().value, 0.75);
        assert_eq!(all.measure("pass@2").unwrap().value, 1.0);
        assert_eq!(all.measure("pass@2").unwrap().count, 2);
        assert!(all.measure("pass@4").is_none() && all.measure("seen_document_recall").is_none());
    }

    #[test]
    fn doubling_ends_at_the_most() {
        assert_eq!(doublings(Some(8)), [1, 2, 4, 8]);
        assert_eq!(doublings(Some(7)), [1, 2, 4]);
        assert!(doublings(None).is_empty());
    }
}

//! Result of an evaluation, and its conversion to rows and JSON.

use std::collections::BTreeMap;

use searchmill_schemas::Metric;
use searchmill_text::answer_metrics::AnswerScores;
use searchmill_text::baseline::{BASELINES, Baselines};
use serde_json::{Value, json};

use super::dynamics::{ByOutcome, Distribution, Dynamics};
use super::measure::Group;
use super::own::OwnMeasures;
use super::retrieval::RetrievalFigures;
use super::showcase::Shown;
use crate::shared::statistics::{Bootstrap, Spread, measures_json, metric_rows};

/// Result of an evaluation.
pub(crate) struct Evaluation {
    /// Heading of the report.
    pub(crate) title: String,
    /// F1 from which a trajectory is a success.
    pub(crate) threshold: f64,
    /// Bootstrap settings of the intervals.
    pub(crate) bootstrap: Bootstrap,
    /// Whether trajectories were evaluated, or only questions.
    pub(crate) has_trajectories: bool,
    /// Group `all` first.
    pub(crate) groups: Vec<Group>,
    /// Baselines to compare the scores with.
    pub(crate) baselines: Baselines,
    /// Statistics of the conversations.
    pub(crate) dynamics: Dynamics,
    /// Figures of the ranked lists, if `hits` is connected.
    pub(crate) retrieval: Option<RetrievalFigures>,
    /// Failed rollouts (outages) by kind; never scored.
    pub(crate) failed_rollouts: BTreeMap<String, usize>,
    /// Number of calls that the services of a rollout's tools failed to answer, if the rollouts count them.
    pub(crate) tool_errors: Option<usize>,
    /// Number of trajectories (or questions) without golden answers; not scored.
    pub(crate) without_gold: usize,
    /// Number of scored trajectories whose golden answers are empty after normalisation.
    pub(crate) emptied_gold: usize,
    /// Number of questions in the question table without a trajectory.
    pub(crate) unanswered: usize,
    /// Number of scored trajectories without a verdict, for each column of verdicts.
    pub(crate) without_verdict: Vec<(String, usize)>,
    /// The user's measures.
    pub(crate) own: OwnMeasures,
    /// Trajectories shown in full.
    pub(crate) shown: Vec<Shown>,
}

impl Evaluation {
    /// The group `all`.
    pub(crate) fn all(&self) -> &Group {
        &self.groups[0]
    }

    /// The columns that the scores are broken down by, each with its groups.
    pub(crate) fn groupings(&self) -> impl Iterator<Item = (&str, &[Group])> {
        let by_column = self.groups.chunk_by(|one, other| one.column == other.column);
        // The group `all` has no column, so it is not a grouping.
        by_column.filter_map(|groups| Some((groups[0].column.as_deref()?, groups)))
    }

    /// Number of failed rollouts.
    pub(crate) fn failed(&self) -> usize {
        self.failed_rollouts.values().sum()
    }

    /// Number of questions with an answer metric or a baseline.
    pub(crate) fn questions(&self) -> usize {
        self.all().questions
    }

    /// Whether answers were scored, not only ranked lists.
    pub(crate) fn has_answers(&self) -> bool {
        self.questions() > 0 && (self.has_trajectories || self.retrieval.is_none())
    }

    /// Converts every figure to a row: groups in order, each with its measures, baselines and retrieval figures.
    pub(crate) fn metrics(&self) -> Vec<Metric> {
        let mut rows = Vec::new();
        for group in &self.groups {
            let group_name = group.name();
            rows.extend(metric_rows(&group_name, &group.measures));
            for (name, measures) in BASELINES.iter().zip(&group.baselines) {
                let of = if group_name == "all" { String::new() } else { format!(" {group_name}") };
                rows.extend(metric_rows(&format!("baseline:{name}{of}"), measures));
            }
        }
        for group in self.retrieval.iter().flat_map(|retrieval| &retrieval.groups) {
            rows.extend(metric_rows(&group.name, &group.measures));
        }
        rows
    }

    /// Builds `report.json`: DeepSearch-RL's statistics under their original names, and all other figures.
    pub(crate) fn json(&self) -> Value {
        let (dynamics, reasoning) = (&self.dynamics, self.dynamics.reasoning.all);
        let metrics: BTreeMap<_, _> = AnswerScores::NAMES.iter().zip(&dynamics.metrics).collect();
        let mut tool_calls = counted_json(&dynamics.tool_calls, &dynamics.tool_call_distribution);
        tool_calls["total"] = json!(dynamics.tool_call_total);
        let mut figures = json!({
            "total": dynamics.total.all,
            "success_count": dynamics.total.success,
            "failure_count": dynamics.total.failure,
            "success_em": dynamics.exact,
            "metrics": metrics,
            "finish_reasons": dynamics.finish_reasons,
            "cut": dynamics.cut,
            "rounds": counted_json(&dynamics.turns, &dynamics.turn_distribution),
            "tool_calls": tool_calls,
            "tokens_last_turn": dynamics.last_tokens,
            "tokens_all_turns": dynamics.all_tokens,
            "reasoning": {"mean": reasoning.mean, "stdev": reasoning.stdev, "count": dynamics.reasoning_rows.all},
            "f1_histogram": dynamics.f1_histogram,
            "title": self.title,
            "questions": self.questions(),
            "success_threshold": self.threshold,
            "confidence": self.bootstrap.confidence,
            "resamples": self.bootstrap.resamples,
            "seed": self.bootstrap.seed,
            "failed_rollouts": {"total": self.failed(), "by_kind": self.failed_rollouts},
            "without_golden_answers": self.without_gold,
            "questions_without_trajectory": self.unanswered,
            "groups": self.groups.iter().map(group_json).collect::<Vec<_>>(),
            "baselines": {
                "best_constant": {"answer": Some(&self.baselines.constant).filter(|answer| !answer.is_empty())},
                "majority_by_type": {"answers": self.baselines.majority},
            },
            "retrieval": self.retrieval.as_ref().map(retrieval_json),
            "samples": self.shown.iter().map(|shown| json!({"why": shown.why, "id": shown.trajectory.id})).collect::<Vec<_>>(),
        });
        if !self.without_verdict.is_empty() {
            let absent: BTreeMap<_, _> = self.without_verdict.iter().cloned().collect();
            figures["without_verdict"] = json!(absent);
        }
        figures
    }
}

fn group_json(group: &Group) -> Value {
    let baselines = group.baselines.iter().map(|measures| measures_json(measures));
    let baselines: BTreeMap<_, _> = BASELINES.iter().zip(baselines).collect();
    json!({
        "group": group.name(),
        "rows": group.rows,
        "questions": group.questions,
        "measures": measures_json(&group.measures),
        "baselines": baselines,
    })
}

fn retrieval_json(retrieval: &RetrievalFigures) -> Value {
    let groups = retrieval.groups.iter();
    json!({
        "questions": retrieval.questions,
        "questions_without_evidence": retrieval.without_evidence,
        "questions_without_hits": retrieval.without_hits,
        "hits_of_unknown_questions": retrieval.strangers,
        "groups": groups.map(|g| json!({"group": g.name, "measures": measures_json(&g.measures)})).collect::<Vec<_>>(),
        "recall_curve": retrieval.curve.iter().map(|point| point[0]).collect::<Vec<_>>(),
        "all_found_curve": retrieval.curve.iter().map(|point| point[1]).collect::<Vec<_>>(),
    })
}

fn counted_json(spread: &ByOutcome<Spread>, distribution: &ByOutcome<Distribution>) -> Value {
    json!({"all": spread.all, "success": spread.success, "failure": spread.failure, "distribution": distribution})
}

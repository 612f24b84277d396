//! Check of recorded verdicts: what follows from the rollouts alone.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use searchmill_engine::operator::{Inputs, OperatorError, Recheck, Rechecked, RowDifference};
use searchmill_schemas::{Trajectory, from_batch};

use super::verdict::{PORT, Verdict};

/// Compares judged rollouts with those that were given, and the verdicts on empty predictions. The judge's own words are
/// compared with its remembered answers.
pub(super) struct JudgeRecheck {
    rollouts: BTreeMap<String, Trajectory>,
}

impl JudgeRecheck {
    pub(super) fn open(inputs: &Inputs) -> Result<Self, OperatorError> {
        let rollouts = inputs.rows(PORT)?.read_all::<Trajectory>()?;
        Ok(Self { rollouts: rollouts.into_iter().map(|rollout| (rollout.id.clone(), rollout)).collect() })
    }
}

impl Recheck for JudgeRecheck {
    fn port(&self) -> &'static str {
        PORT
    }

    fn check(&self, rows: &RecordBatch) -> Result<Rechecked, OperatorError> {
        let verdicts = Verdict::of_rows(rows).ok_or_else(|| OperatorError::data("the rows hold no verdicts"))?;
        let mut found = Rechecked::default();
        for (judged, verdict) in from_batch::<Trajectory>(rows)?.into_iter().zip(verdicts) {
            found.compared += 1;
            match self.rollouts.get(&judged.id) {
                None => {
                    let (recorded, derived) = ("judged".to_owned(), "not given".to_owned());
                    found.differences.push(difference(&judged, "rollout", recorded, derived));
                }
                Some(original) if *original != judged => {
                    found.differences.push(difference(&judged, "rollout", json(&judged), json(original)));
                }
                Some(_) => {}
            }
            // No judge is asked about an empty prediction, so its verdict is known.
            let blank = judged.prediction.trim().is_empty();
            if blank && verdict != Verdict::no_answer() {
                let (recorded, derived) = (format!("{verdict:?}"), format!("{:?}", Verdict::no_answer()));
                found.differences.push(difference(&judged, "verdict", recorded, derived));
            }
        }
        Ok(found)
    }
}

fn difference(judged: &Trajectory, what: &str, recorded: String, derived: String) -> RowDifference {
    RowDifference { row: judged.id.clone(), what: what.to_owned(), recorded, derived }
}

fn json(rollout: &Trajectory) -> String {
    serde_json::to_string(rollout).unwrap_or_default()
}

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
            let mut differences = Vec::new();
            match self.rollouts.get(&judged.id) {
                None => differences.push(("rollout", "judged".to_owned(), "not given".to_owned())),
                Some(original) if *original != judged => {
                    let [recorded, derived] = [&judged, original].map(serde_json::to_string);
                    differences.push(("rollout", recorded.unwrap_or_default(), derived.unwrap_or_default()));
                }
                Some(_) => {}
            }
            // No judge is asked about an empty prediction, so its verdict is known.
            let known = Verdict::no_answer();
            if judged.prediction.trim().is_empty() && verdict != known {
                differences.push(("verdict", format!("{verdict:?}"), format!("{known:?}")));
            }
            for (what, recorded, derived) in differences {
                let row = judged.id.clone();
                found.differences.push(RowDifference { row, what: what.to_owned(), recorded, derived });
            }
        }
        Ok(found)
    }
}

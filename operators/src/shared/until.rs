//! `until`: samples are drawn until enough rows match an SQL predicate.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use schemars::JsonSchema;
use searchmill_engine::operator::{Goal, OperatorError, ParamIssue};
use serde::{Deserialize, Serialize};

use super::relation::{Keys, check_expression};

/// Place of the predicate in the params.
const WHERE: &str = "until.where";

/// Draws samples until enough rows match a predicate: sample 0 of every question (row of the input) in input order, then
/// sample 1 of every question that needs more, and so on, up to `samples`. The output holds all drawn rows in this
/// order, those that do not match included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub struct Until {
    /// Number of rows that must match `where`.
    pub rows: u64,
    /// SQL predicate over the columns of the output.
    #[serde(rename = "where")]
    pub predicate: String,
    /// Matching rows of one question that count (default: all). No further samples of a question are drawn that has as
    /// many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_question: Option<u64>,
    /// Samples that are drawn, failed ones included (at most; default: `samples` of every question).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
}

impl Until {
    /// Returns when no more samples are drawn.
    pub(crate) fn goal(&self) -> Goal {
        Goal { rows: self.rows, per_row: self.per_question, at_most: self.at_most }
    }

    /// Returns issues, given the number of samples per question; `one_row`: a sample is at most one row.
    pub(crate) fn issues(&self, samples: u32, one_row: bool) -> Vec<ParamIssue> {
        let mut issues: Vec<ParamIssue> = check_expression(WHERE, &self.predicate).into_iter().collect();
        let counts = [("rows", Some(self.rows)), ("per_question", self.per_question), ("at_most", self.at_most)];
        for (name, count) in counts {
            if count == Some(0) {
                issues.push(ParamIssue::new(format!("until.{name}"), "must be at least 1"));
            }
        }
        // A sample of more than one row may reach these numbers with fewer samples.
        if let Some(wanted) = self.per_question
            && one_row
            && wanted > u64::from(samples)
        {
            let message = format!("no question can have {wanted} rows with `samples: {samples}`");
            let help = "`samples` is the number of samples of a question (at most): write a larger one";
            issues.push(ParamIssue::new("until.per_question", message).with_help(help));
        }
        if let Some(most) = self.at_most
            && one_row
            && most < self.rows
        {
            let message = format!("{most} samples cannot give {} rows", self.rows);
            issues.push(ParamIssue::new("until.at_most", message));
        }
        issues
    }

    /// Returns an issue if the predicate does not fit the columns.
    pub(crate) fn column_issue(&self, schema: &SchemaRef) -> Option<ParamIssue> {
        bound(&self.predicate, schema).err().map(ParamIssue::from)
    }

    /// Opens the predicate.
    ///
    /// # Errors
    /// Fails if it does not fit the columns.
    pub(crate) fn open(&self, schema: &SchemaRef) -> Result<Passing, OperatorError> {
        bound(&self.predicate, schema)?;
        Ok(Passing { predicate: self.predicate.clone(), keys: Mutex::default() })
    }
}

fn bound(predicate: &str, schema: &SchemaRef) -> Result<Keys, OperatorError> {
    let keys = Keys::new(schema, WHERE, &[predicate])?;
    // The type of an expression is known from a batch without rows.
    let values = keys.values(&RecordBatch::new_empty(Arc::clone(schema)))?;
    let kind = values[0].data_type();
    if *kind == DataType::Boolean {
        return Ok(keys);
    }
    let message = format!("`{WHERE}`: not a condition: it is {kind}");
    Err(OperatorError::pipeline(message).with_help("compare with a value: `score >= 4`"))
}

/// Counts the rows that match the predicate.
pub(crate) struct Passing {
    predicate: String,
    /// The predicate, bound to the columns of the last batch.
    keys: Mutex<Option<(SchemaRef, Arc<Keys>)>>,
}

impl Passing {
    /// Returns the number of matching rows.
    ///
    /// # Errors
    /// Fails if the predicate cannot be computed.
    pub(crate) fn count(&self, batch: &RecordBatch) -> Result<u64, OperatorError> {
        let values = self.keys(&batch.schema())?.values(batch).map_err(|error| {
            let message = format!("`{WHERE}`: {}", error.message);
            OperatorError { message, ..error }
        })?;
        let passing = values.first().and_then(|values| values.as_boolean_opt());
        // Null does not pass.
        Ok(passing.map_or(0, |passing| passing.true_count() as u64))
    }

    fn keys(&self, schema: &SchemaRef) -> Result<Arc<Keys>, OperatorError> {
        let mut last = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, keys)) = &*last
            && known == schema
        {
            return Ok(Arc::clone(keys));
        }
        let keys = Arc::new(bound(&self.predicate, schema)?);
        *last = Some((Arc::clone(schema), Arc::clone(&keys)));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, Int64Array};
    use serde_json::json;

    use super::*;

    fn until(more: serde_json::Value) -> Until {
        let mut params = json!({"rows": 4, "where": "f1 >= 0.8"});
        params.as_object_mut().expect("params").extend(more.as_object().expect("params").clone());
        serde_json::from_value(params).expect("params")
    }

    fn batch() -> RecordBatch {
        let f1: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.8), Some(0.7), None, Some(1.0)]));
        RecordBatch::try_from_iter([("f1", f1)]).expect("a batch")
    }

    #[test]
    fn rows_that_are_null_do_not_pass() {
        let passing = until(json!({})).open(&batch().schema()).expect("a predicate");
        assert_eq!(passing.count(&batch()).expect("a count"), 2);
        let other: ArrayRef = Arc::new(Int64Array::from(vec![1, 0]));
        let other = RecordBatch::try_from_iter([("f1", other)]).expect("a batch");
        assert_eq!(passing.count(&other).expect("a count"), 1, "another schema");
    }

    #[test]
    fn mistakes_are_named_by_param() {
        let paths = |more, samples| -> Vec<String> {
            until(more).issues(samples, true).into_iter().map(|issue| issue.path).collect()
        };
        assert_eq!(paths(json!({"per_question": 2, "at_most": 4}), 2), [""; 0]);
        assert_eq!(paths(json!({"per_question": 2}), 1), ["until.per_question"]);
        assert_eq!(paths(json!({"rows": 0, "at_most": 0, "per_question": 0}), 1).len(), 3);
        assert_eq!(paths(json!({"at_most": 3}), 1), ["until.at_most"]);
        assert_eq!(paths(json!({"where": "f1 >="}), 1), ["until.where"]);
        assert_eq!(paths(json!({"where": "f1 > random()"}), 1), ["until.where"]);
        let told =
            |text: &str| until(json!({"where": text})).column_issue(&batch().schema()).map(|issue| issue.message);
        assert_eq!(told("f1 > 0.5 AND f1 < 1"), None);
        assert_eq!(told("f2 > 0.5").as_deref(), Some("there is no column `f2`"));
        assert_eq!(told("f1 + 1").as_deref(), Some("not a condition: it is Float64"));
    }
}

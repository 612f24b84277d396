//! Assigns rows to groups by columns or SQL expressions, and checks params against columns before anything runs.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::DFSchema;
use datafusion::physical_plan::PhysicalExpr;
use indexmap::IndexMap;
use searchmill_engine::operator::{OperatorError, ParamIssue, Tables, query_session};
use searchmill_engine::plan::explain;

use super::expression::key;
use super::functions::register;

/// Columns or SQL expressions, bound to the schema of the batches.
pub(crate) struct Keys(Vec<Arc<dyn PhysicalExpr>>);

impl Keys {
    /// Binds columns or expressions, which the user wrote in `param`.
    pub(crate) fn new<S: AsRef<str>>(schema: &SchemaRef, param: &str, by: &[S]) -> Result<Self, OperatorError> {
        let session = query_session()?;
        register(&session);
        let schema = DFSchema::try_from(Arc::clone(schema))?;
        let mut keys = Vec::with_capacity(by.len());
        for text in by {
            let expression = key(&session, &schema, param, text.as_ref())?;
            let bound = session.create_physical_expr(expression, &schema);
            keys.push(bound.map_err(|error| explain(param, error, &[]))?);
        }
        Ok(Self(keys))
    }

    /// Returns the values of a batch, a column for each key.
    pub(crate) fn values(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>, OperatorError> {
        self.0.iter().map(|key| Ok(key.evaluate(batch)?.into_array(batch.num_rows())?)).collect()
    }
}

/// Returns the issue of a param that `bind` binds to the columns of an input; `None` while they are unknown.
pub(crate) fn columns_checked<T>(
    tables: &Tables,
    port: &str,
    bind: impl FnOnce(&SchemaRef) -> Result<T, OperatorError>,
) -> Option<ParamIssue> {
    bind(tables.get(port)?).err().map(ParamIssue::from)
}

/// Returns an issue for each key of the list `path` that does not fit these columns.
pub(crate) fn unknown_keys(schema: &SchemaRef, path: &str, keys: &[impl AsRef<str>]) -> Vec<ParamIssue> {
    // Each alone, so that every wrong key has its issue.
    let bound = keys.chunks(1).enumerate().map(|(index, key)| Keys::new(schema, &format!("{path}.{index}"), key));
    bound.filter_map(|bound| bound.err().map(ParamIssue::from)).collect()
}

/// Returns the same for the only key of a param.
pub(crate) fn unknown_key(schema: &SchemaRef, path: &str, key: &str) -> Option<ParamIssue> {
    let issue = Keys::new(schema, path, &[key]).err().map(ParamIssue::from)?;
    Some(ParamIssue { path: path.to_owned(), ..issue })
}

/// Group keys, bound to the schema of the batches.
pub(crate) struct Grouping {
    keys: Keys,
    converter: Option<RowConverter>,
    /// Labels by key values: two groups may have the same label (`a/b` and `c`, `a` and `b/c`).
    labels: IndexMap<Box<[u8]>, String>,
}

impl Grouping {
    /// Groups by these columns or expressions, which the user wrote in `param`.
    pub(crate) fn new(schema: &SchemaRef, param: &str, by: &[String]) -> Result<Self, OperatorError> {
        Ok(Self { keys: Keys::new(schema, param, by)?, converter: None, labels: IndexMap::new() })
    }

    /// Returns the group of each row as an index into [`Self::labels`].
    pub(crate) fn assign(&mut self, batch: &RecordBatch) -> Result<Vec<u32>, OperatorError> {
        let columns = self.keys.values(batch)?;
        // One converter for all batches: only then are its bytes of equal keys equal.
        let converter = match self.converter.take() {
            Some(converter) => converter,
            None => RowConverter::new(columns.iter().map(|c| SortField::new(c.data_type().clone())).collect())?,
        };
        let values = self.converter.insert(converter).convert_columns(&columns)?;
        let options = FormatOptions::default().with_null("null");
        let written = columns.iter().map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let written = written.collect::<Result<Vec<_>, _>>()?;
        let mut groups = Vec::with_capacity(batch.num_rows());
        for row in 0..batch.num_rows() {
            let values = values.row(row);
            // A label is written for the first row of a group alone.
            let group = if let Some(group) = self.labels.get_index_of(values.as_ref()) {
                group
            } else {
                let label: Result<Vec<_>, _> = written.iter().map(|column| column.value(row).try_to_string()).collect();
                self.labels.insert_full(values.as_ref().into(), label?.join("/")).0
            };
            groups.push(group as u32);
        }
        Ok(groups)
    }

    /// Labels of the groups in order of first appearance: the key values joined by `/`, NULL as `null`.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &String> {
        self.labels.values()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn groups_are_values_and_labels_are_only_shown() {
        let a: ArrayRef = Arc::new(StringArray::from(vec![Some("a/b"), Some("a"), None, Some("null"), Some("a/b")]));
        let b: ArrayRef = Arc::new(StringArray::from(vec!["c", "b/c", "x", "x", "c"]));
        let batch = RecordBatch::try_from_iter([("a", a), ("b", b)]).expect("a batch");
        let mut grouping = Grouping::new(&batch.schema(), "by", &["a".to_owned(), "b".to_owned()]).expect("keys");
        assert_eq!(grouping.assign(&batch).expect("groups"), [0, 1, 2, 3, 0]);
        assert_eq!(grouping.assign(&batch.slice(1, 3)).expect("groups"), [1, 2, 3], "also in another batch");
        assert_eq!(grouping.labels().collect::<Vec<_>>(), ["a/b/c", "a/b/c", "null/x", "null/x"]);
    }

    #[test]
    fn keys_may_read_json_and_their_errors_name_the_param() {
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some(r#"{"lang": "pl"}"#), Some("no json"), None]));
        let batch = RecordBatch::try_from_iter([("metadata", text)]).expect("a batch");
        let by = |text: &str| Grouping::new(&batch.schema(), "by", &[text.to_owned()]);
        let mut grouping = by("metadata->>'lang'").expect("keys");
        assert_eq!(grouping.assign(&batch).expect("groups"), [0, 1, 1]);
        let error = by("metadata->>'lang' = 'pl'").err().expect("an arrow without parentheses");
        assert!(error.message.starts_with("`by`: ") && error.help.is_some(), "{error:?}");
    }
}

//! `join`: joins the rows of two inputs on key columns.

use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::DFSchema;
use datafusion::error::DataFusionError;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, JoinType, ident};
use datafusion::prelude::{DataFrame, SessionContext};
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, ParamIssue, Ports, QueryInputs,
    QueryKernel, QueryOutput,
};
use serde::{Deserialize, Serialize};

use super::shared::html::plot::shorten;
use super::shared::relation::{ROW, explain, numbered, with_columns_of};

const LEFT: &str = "left";
const RIGHT: &str = "right";
/// Number of keys that a warning tells of each input.
const KEYS_TOLD: usize = 3;
/// Characters of a key in that warning.
const KEY_CHARACTERS: usize = 60;
const RIGHT_ROW: &str = "__right_row";

/// Joins the rows of `left` and `right` with equal key columns. Rows are in the order of `left`; the matches of one
/// row of `left` are in the order of `right`. NULL keys match nothing, as in SQL. If rows of `left` match several
/// rows of `right`, the run reports the growth in rows (figure `rows_times`).
pub(crate) struct Join;

/// Which rows to output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// Each matching pair.
    #[default]
    Inner,
    /// Each matching pair, and rows of `left` without a match (their columns of `right` are NULL).
    Left,
    /// Rows of `left` with a match, once each, without columns of `right`.
    Semi,
    /// Rows of `left` without a match.
    Anti,
}

/// Parameters of `join`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct JoinParams {
    /// Key columns of `left`, and of `right` unless `right_on` is set.
    pub(crate) on: Vec<String>,
    /// Key columns of `right`, in the order of `on`, if they have other names.
    #[serde(default)]
    pub(crate) right_on: Vec<String>,
    /// Which rows to output.
    #[serde(default)]
    pub(crate) how: How,
    /// Suffix for columns of `right` whose names `left` also has. The key columns of `right` are dropped.
    #[serde(default = "suffix")]
    pub(crate) suffix: String,
    /// Record kind of the output (default: that of `left`). All columns of `left` keep their names, so the rows
    /// remain valid for its kind.
    #[serde(rename = "as", default)]
    pub(crate) kind: Option<RowKind>,
}

fn suffix() -> String {
    "_right".to_owned()
}

impl JoinParams {
    fn right_keys(&self) -> &[String] {
        if self.right_on.is_empty() { &self.on } else { &self.right_on }
    }
}

impl Operator for Join {
    type Params = JoinParams;
    const NAME: &'static str = "join";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Joins the rows of two inputs on key columns.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Rollouts with their scores as columns (still trajectories)",
            yaml: "scored: {op: join, from: {left: rollouts, right: scores}, with: {on: [id], right_on: [trajectory_id]}}",
        },
        Example {
            title: "Questions that are not in the evaluation set",
            yaml: "clean: {op: join, from: {left: train, right: val}, with: {on: [question], how: anti}}",
        },
    ];

    fn declare(params: &JoinParams) -> Declaration {
        let ports = Ports::new().any_rows_in(LEFT, "rows that determine the order");
        let ports = ports.any_rows_in(RIGHT, "rows to look up");
        let ports = match params.kind {
            Some(kind) => ports.rows_out("rows", kind.into(), "joined rows"),
            None => ports.same_out("rows", LEFT, "joined rows"),
        };
        Declaration::pure(ports).issues(issues(params)).query(params.clone())
    }

    fn open(params: &JoinParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Query(Box::new(params.clone())))
    }
}

fn issues(params: &JoinParams) -> Vec<ParamIssue> {
    let mut issues = Vec::new();
    if params.on.is_empty() {
        issues.push(ParamIssue::new("on", "name at least one key column"));
    }
    if params.right_keys().len() != params.on.len() {
        let message = format!("{} columns, but `on` names {}", params.right_on.len(), params.on.len());
        issues.push(ParamIssue::new("right_on", message));
    }
    if params.suffix.is_empty() {
        issues.push(ParamIssue::new("suffix", "may not be empty: two columns would have one name"));
    }
    issues
}

impl QueryKernel for JoinParams {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        _inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            let (left, right) = (session.table(LEFT).await?, session.table(RIGHT).await?);
            require_keys(left.schema(), "on", &self.on)?;
            let right_param = if self.right_on.is_empty() { "on" } else { "right_on" };
            require_keys(right.schema(), right_param, self.right_keys())?;
            let right = self.renamed(left.schema(), right)?;
            let frame = with_columns_of(self.kind.unwrap_or_default(), self.joined(left, right)?)?;
            Ok(vec![QueryOutput { port: "rows".to_owned(), frame }])
        }
        .boxed()
    }

    fn expects_once(&self) -> Option<&str> {
        Some(LEFT)
    }

    fn told_without_match<'a>(&'a self, session: &'a SessionContext) -> BoxFuture<'a, Option<String>> {
        async move {
            if self.how == How::Anti {
                // No match may be what is asked for.
                return None;
            }
            let mut told = "no row of `left` has a match".to_owned();
            for (table, keys) in [(LEFT, self.on.as_slice()), (RIGHT, self.right_keys())] {
                // The warning is worth having without them.
                if let Some(values) = first_keys(session, table, keys).await {
                    told += &format!(". First values of `{}` in `{table}`: {values}", keys.join("`, `"));
                }
            }
            Some(told + ". Texts must be equal, capitals and spaces included")
        }
        .boxed()
    }

    fn restores_order(&self) -> bool {
        true
    }
}

impl JoinParams {
    /// Renames the columns of `right` for the output; its keys become `__key0`, `__key1`, ….
    fn renamed(&self, left: &DFSchema, right: DataFrame) -> Result<DataFrame, OperatorError> {
        let keys = self.right_keys();
        // Keys often have the same name on both sides, which would be ambiguous in the condition.
        let mut columns: Vec<Expr> =
            keys.iter().enumerate().map(|(index, name)| ident(name).alias(key_name(index))).collect();
        for field in right.schema().fields().iter().filter(|field| !keys.contains(field.name())) {
            let name = field.name();
            if !left.has_column_with_unqualified_name(name) {
                columns.push(ident(name).alias(name));
                continue;
            }
            let new = format!("{name}{}", self.suffix);
            if [left, right.schema()].iter().any(|schema| schema.has_column_with_unqualified_name(&new)) {
                let message = format!("both inputs have `{name}`, and one of them has `{new}` too");
                return Err(OperatorError::pipeline(message).with_help("give another `suffix`"));
            }
            columns.push(ident(name).alias(new));
        }
        Ok(right.select(columns)?)
    }

    /// Joins both sides: `right` is held in memory, and the rows of `left` stream.
    fn joined(&self, left: DataFrame, right: DataFrame) -> Result<DataFrame, DataFusionError> {
        let has_pairs = matches!(self.how, How::Inner | How::Left);
        let kind = match self.how {
            How::Inner => JoinType::Inner,
            // DataFusion holds the left side of a join in memory, so `right` is on the left here.
            How::Left => JoinType::Right,
            How::Semi => JoinType::RightSemi,
            How::Anti => JoinType::RightAnti,
        };
        let mut columns = columns_of(&left);
        // Without the keys of `right`, which stand first and equal those of `left`.
        if has_pairs {
            columns.extend(columns_of(&right).into_iter().skip(self.on.len()));
        }
        let agree = self.on.iter().enumerate().map(|(index, name)| ident(key_name(index)).eq(ident(name)));
        // The row numbers of both sides order the pairs: a join promises no order.
        let joined = right.with_column(RIGHT_ROW, row_number())?.join_on(numbered(left)?, kind, agree)?;
        let mut order = vec![ident(ROW).sort(true, true)];
        if has_pairs {
            order.push(ident(RIGHT_ROW).sort(true, true));
        }
        joined.sort(order)?.select(columns)
    }
}

/// Returns the keys of the first rows of an input, in one line; `None` if they cannot be shown.
async fn first_keys(session: &SessionContext, table: &str, keys: &[String]) -> Option<String> {
    let columns: Vec<Expr> = keys.iter().map(ident).collect();
    let frame = session.table(table).await.ok()?.select(columns).ok()?.limit(0, Some(KEYS_TOLD)).ok()?;
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in frame.collect().await.ok()? {
        for row in 0..batch.num_rows() {
            let mut cells = Vec::new();
            for column in batch.columns() {
                let cell = ArrayFormatter::try_new(column.as_ref(), &options).ok()?.value(row).try_to_string().ok()?;
                let mut shown = String::new();
                for c in cell.chars() {
                    // A line break would end the line of the warning.
                    if c.is_control() {
                        shown.extend(c.escape_default());
                    } else {
                        shown.push(c);
                    }
                }
                cells.push(shorten(&shown, KEY_CHARACTERS));
            }
            rows.push(format!("`{}`", cells.join("`, `")));
        }
    }
    Some(rows.join("; "))
}

fn columns_of(frame: &DataFrame) -> Vec<Expr> {
    frame.schema().columns().into_iter().map(Expr::Column).collect()
}

fn key_name(index: usize) -> String {
    format!("__key{index}")
}

fn require_keys(schema: &DFSchema, param: &str, keys: &[String]) -> Result<(), OperatorError> {
    for name in keys {
        if !schema.has_column_with_unqualified_name(name) {
            return Err(explain(param, datafusion::common::field_not_found(None::<&str>, name, schema), &[]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas::{Document, Trajectory, text_column};
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn document(id: &str, title: Option<&str>) -> Document {
        Document { id: id.to_owned(), title: title.map(str::to_owned), text: format!("text {id}"), metadata: None }
    }

    fn run(left: &[Trajectory], right: &[Document], params: Value) -> Result<Outcome, OperatorError> {
        let bound = inputs([("left", rows_input(left)), ("right", rows_input(right))]);
        Harness::new().run(&entry::<Join>(), params, &bound)
    }

    fn texts(outcome: &Outcome, column: &str) -> Vec<Option<String>> {
        let batch = outcome.batch("rows");
        let array = text_column(&batch, column).expect("text");
        (0..array.len()).map(|row| array.is_valid(row).then(|| array.value(row).to_owned())).collect()
    }

    #[test]
    fn pairs_come_in_left_then_right_order_and_stay_trajectories() {
        let left = trajectories(4);
        let right = [document("q2", Some("b")), document("q0", None), document("q2", Some("a")), document("x", None)];
        let params = json!({"on": ["question_id"], "right_on": ["id"]});
        let outcome = run(&left, &right, params).expect("runs");
        let rows: Vec<Trajectory> = outcome.read("rows");
        assert_eq!(rows, [left[0].clone(), left[2].clone(), left[2].clone()], "nested columns and all");
        assert_eq!(texts(&outcome, "title"), [None, Some("b".to_owned()), Some("a".to_owned())]);
        assert_eq!(outcome.batch("rows").column_by_name("metadata_right").expect("renamed").null_count(), 3);
        assert!(outcome.batch("rows").column_by_name("__row").is_none());
        assert!(outcome.batch("rows").column_by_name("metadata").expect("left's own").as_string::<i32>().is_valid(0));
    }

    #[test]
    fn left_semi_and_anti() {
        let left = trajectories(3);
        let right = [document("q1", Some("t")), document("q1", Some("u"))];
        let ids_of = |how: &str| {
            let params = json!({"on": ["question_id"], "right_on": ["id"], "how": how});
            let rows: Vec<Trajectory> = run(&left, &right, params).expect("runs").read("rows");
            ids(&rows).iter().map(|&id| id.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(ids_of("left"), ["q0@0", "q1@0", "q1@0", "q2@0"]);
        assert_eq!(ids_of("semi"), ["q1@0"]);
        assert_eq!(ids_of("anti"), ["q0@0", "q2@0"]);
    }

    #[test]
    fn order_is_kept_at_size() {
        let left = trajectories(9_000);
        let right: Vec<_> = (0..9_000).rev().map(|place| document(&format!("q{place}"), None)).collect();
        let params = json!({"on": ["question_id"], "right_on": ["id"]});
        let rows: Vec<Trajectory> = run(&left, &right, params).expect("runs").read("rows");
        assert_eq!(ids(&rows), ids(&left));
    }

    #[test]
    fn null_keys_agree_with_nothing_and_empty_inputs_work() {
        let left = trajectories(3);
        let right = [document("a", None), document("b", None)];
        let params = json!({"on": ["metadata"], "how": "anti"});
        let none: Vec<Trajectory> = run(&left, &right, params.clone()).expect("runs").read("rows");
        assert_eq!(none.len(), 3);
        assert_eq!(run(&left, &[], params.clone()).expect("runs").read::<Trajectory>("rows").len(), 3);
        assert!(run(&[], &right, params).expect("runs").read::<Trajectory>("rows").is_empty());
    }

    #[test]
    fn wrong_keys_are_named() {
        let error = run(&trajectories(1), &[], json!({"on": ["question"]})).expect_err("right lacks it");
        assert_eq!(error.message, "`on`: there is no column `question`");
        let error = run(&trajectories(1), &[], json!({"on": ["id"], "right_on": ["tilte"]})).expect_err("typo");
        assert!(error.help.expect("help").starts_with("did you mean `title`?"));
        assert!(run(&[], &[], json!({"on": []})).is_err());
        assert!(run(&[], &[], json!({"on": ["id"], "right_on": ["id", "title"]})).is_err());
    }
}

//! `filter`: keeps the rows that match an SQL predicate.

use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Ports, QueryInputs, QueryKernel,
    QueryOutput,
};
use serde::{Deserialize, Serialize};

use super::shared::relation::{ROWS, check_expression, check_types, explain, register_functions, require_repeatable};
use datafusion::prelude::SessionContext;

/// Keeps the rows for which `where` is true, in their order, with all their columns. Rows for which it is NULL are
/// dropped, as in SQL.
pub(crate) struct Filter;

/// Parameters of `filter`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct FilterParams {
    /// An SQL predicate over the columns: `tool_calls > 1 AND question_type <> 'null'`. Put column names with
    /// characters other than a-z, 0-9 and _ in double quotes, text in single quotes.
    #[serde(rename = "where")]
    pub(crate) predicate: String,
}

impl Operator for Filter {
    type Params = FilterParams;
    const NAME: &'static str = "filter";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Keeps the rows that match an SQL predicate.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Successful scores that needed more than one search",
            yaml: "good: {op: filter, from: scores, with: {where: \"f1 >= 0.8 AND grounded\"}}",
        },
        Example {
            title: "Rollouts that ended with an answer after two or three tool calls",
            yaml: "answered: {op: filter, from: rollouts, with: {where: \"finish_reason = 'answered' AND tool_calls BETWEEN 2 AND 3\"}}",
        },
    ];

    fn declare(params: &FilterParams) -> Declaration {
        let ports = Ports::new().any_rows_in(ROWS, "rows to filter").same_out(ROWS, ROWS, "rows that match `where`");
        Declaration::pure(ports).issues(check_expression("where", &params.predicate)).query(params.clone())
    }

    fn open(params: &FilterParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Query(Box::new(params.clone())))
    }
}

impl QueryKernel for FilterParams {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        _inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            register_functions(session);
            let rows = session.table(ROWS).await?;
            let predicate = rows.parse_sql_expr(&self.predicate).map_err(|error| explain("where", error, &[]))?;
            // `random()` or `now()` would select other rows than those in the cache.
            require_repeatable("where", &predicate)?;
            let frame = rows.filter(predicate).map_err(|error| explain("where", error, &[]))?;
            check_types(session, "where", frame.logical_plan(), &[])?;
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame }])
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
    use searchmill_engine::operator::{Blame, entry};
    use searchmill_schemas::Trajectory;
    use serde_json::json;

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn run(rows: &[Trajectory], predicate: &str) -> Result<Vec<Trajectory>, OperatorError> {
        let outcome = Harness::new().run(
            &entry::<Filter>(),
            json!({"where": predicate}),
            &inputs([("rows", rows_input(rows))]),
        )?;
        Ok(outcome.read("rows"))
    }

    #[test]
    fn rows_pass_whole_and_in_order() {
        let rows = trajectories(50);
        let kept = run(&rows, "tool_calls >= 2 AND question_type = 'comparison'").expect("runs");
        let wanted: Vec<_> = rows
            .iter()
            .filter(|row| row.tool_calls >= 2 && row.question_type.as_deref() == Some("comparison"))
            .cloned()
            .collect();
        assert!(wanted.len() > 2);
        assert_eq!(kept, wanted, "nested messages, evidence and calls included");
    }

    #[test]
    fn a_null_predicate_drops_the_row_and_unicode_compares() {
        let mut rows = trajectories(3);
        rows[0].question_type = None;
        rows[1].question = "Où est née Zoë? 東京".to_owned();
        assert_eq!(ids(&run(&rows, "question_type <> 'x'").expect("runs")), ["q1@0"]);
        assert_eq!(ids(&run(&rows, "question LIKE '%東京%'").expect("runs")), ["q1@0"]);
        assert_eq!(
            ids(&run(&rows, "array_length(messages) > 0 AND messages[1]['role'] = 'system'").expect("runs")).len(),
            3
        );
    }

    #[test]
    fn empty_in_empty_out() {
        assert!(run(&[], "turns > 1").expect("runs").is_empty());
        assert!(run(&trajectories(4), "false").expect("runs").is_empty());
    }

    #[test]
    fn a_renamed_column_is_offered_by_its_new_name() {
        let error = run(&trajectories(1), "rounds > 1").expect_err("no such column");
        assert_eq!(error.message, "`where`: there is no column `rounds`");
        assert!(error.help.expect("help").starts_with("did you mean `turns`? columns: `id`, "));
    }

    #[test]
    fn errors_name_the_column_and_a_near_one() {
        let error = run(&trajectories(1), "tool_call > 1").expect_err("no such column");
        assert_eq!(error.message, "`where`: there is no column `tool_call`");
        assert!(error.help.expect("help").starts_with("did you mean `tool_calls`? columns: `id`, "));
        assert_eq!(error.blame, Blame::Pipeline);
        for wrong in ["turns >", "random() < 0.5", "now() > '2020-01-01'", "nosuch(id)", "question"] {
            let error = run(&trajectories(1), wrong).expect_err(wrong);
            assert!(error.message.contains("where"), "{wrong}: {}", error.message);
            assert_eq!(error.blame, Blame::Pipeline, "{wrong}");
        }
    }
}

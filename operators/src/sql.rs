//! `sql`: runs a DataFusion query over any number of named inputs.

use datafusion::prelude::{SQLOptions, SessionContext};
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_data::row_kind::RowKind;
use searchmill_engine::operator::{
    Accept, Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, Ports, QueryInputs, QueryKernel,
    QueryOutput,
};
use serde::{Deserialize, Serialize};

use super::shared::relation::{
    check_query, check_tables, check_types, explain, register_functions, require_repeatable_plan, with_columns_of,
};

/// Output port of the result.
const ROWS: &str = "rows";

/// Runs one SQL query over its inputs, which are tables named as in `from:`. The dialect is DataFusion's. Without
/// `ORDER BY`, rows follow the inputs' order, but joins and aggregates guarantee no order.
pub(crate) struct Sql;

/// Parameters of `sql`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct SqlParams {
    /// One query (`SELECT …` or `WITH … SELECT …`) over the inputs named in `from:`.
    pub(crate) query: String,
    /// Record kind of the output. Columns of the kind that the query lacks become null if the kind allows it; `evidence`
    /// becomes empty.
    #[serde(rename = "as", default)]
    pub(crate) kind: RowKind,
}

impl Operator for Sql {
    type Params = SqlParams;
    const NAME: &'static str = "sql";
    const VERSION: u32 = 3;
    const ABOUT: &'static str = "Runs an SQL query over named inputs.";
    const EXAMPLES: &'static [Example] = &[
        Example {
            title: "Success by question type",
            yaml: "by_type: {op: sql, from: {s: scores}, with: {query: \"SELECT question_type, avg(f1) AS f1, count(*) AS n FROM s GROUP BY question_type ORDER BY question_type\"}}",
        },
        Example {
            title: "Rollouts of the questions that were answered well, still as trajectories",
            yaml: "good: {op: sql, from: {t: rollouts, s: scores}, with: {as: trajectory, query: \"SELECT t.* FROM t JOIN s ON s.trajectory_id = t.id WHERE s.f1 >= 0.8 ORDER BY t.id\"}}",
        },
    ];

    fn declare(params: &SqlParams) -> Declaration {
        let ports = Ports::new().named_inputs(Accept::AnyRows);
        let ports = ports.rows_out(ROWS, params.kind.into(), "rows of the result");
        let query = params.query.clone();
        Declaration::pure(ports)
            .issues(check_query("query", &params.query))
            .query(params.clone())
            .checks_inputs(move |inputs| check_tables("query", &query, inputs).into_iter().collect())
    }

    fn open(params: &SqlParams, _inputs: &Inputs, _context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Query(Box::new(params.clone())))
    }
}

impl QueryKernel for SqlParams {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            register_functions(session);
            // A query must not define, change or write anything.
            let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
            let planned = session.sql_with_options(&self.query, options).await;
            let frame = planned.map_err(|error| explain("query", error, &inputs.tables))?;
            require_repeatable_plan("query", frame.logical_plan())?;
            check_types(session, "query", frame.logical_plan(), &inputs.tables)?;
            let frame = with_columns_of(self.kind, frame)?;
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame }])
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use arrow::array::{AsArray, RecordBatch};
    use arrow::datatypes::{Float64Type, Int64Type};
    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, Outcome, inputs, rows_input};
    use searchmill_schemas::{Document, Question, Trajectory};
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::trajectories;

    fn documents() -> Vec<Document> {
        let row = |place: usize| Document {
            id: format!("q{place}"),
            title: (place != 1).then(|| format!("Título {place}")),
            text: "…".to_owned(),
            metadata: None,
        };
        (0..4).map(row).collect()
    }

    fn run(params: Value, rows: &[Trajectory]) -> Result<Outcome, OperatorError> {
        let bound = inputs([("t", rows_input(rows)), ("d", rows_input(&documents()))]);
        Harness::new().run(&entry::<Sql>(), params, &bound)
    }

    #[test]
    fn named_inputs_join_and_aggregate() {
        let query = "SELECT d.title, count(*) AS n, sum(t.tool_calls) AS calls FROM t JOIN d ON d.id = t.question_id \
                     GROUP BY d.title ORDER BY d.title NULLS FIRST";
        let batch: RecordBatch = run(json!({"query": query}), &trajectories(9)).expect("runs").batch("rows");
        assert_eq!(batch.num_rows(), 4);
        assert!(batch.column(0).is_null(0), "the untitled document is a group of its own");
        assert_eq!(batch.column_by_name("n").expect("n").as_primitive::<Int64Type>().values(), &[1, 1, 1, 1]);
        assert_eq!(batch.column_by_name("calls").expect("calls").as_primitive::<Int64Type>().values(), &[2, 1, 3, 1]);
    }

    #[test]
    fn a_declared_kind_keeps_nested_columns() {
        let rows = trajectories(5);
        let params = json!({"query": "SELECT * FROM t WHERE turns > 2 ORDER BY id", "as": "trajectory"});
        let outcome = run(params, &rows).expect("runs");
        let wanted: Vec<_> = rows.iter().filter(|row| row.turns > 2).cloned().collect();
        assert_eq!(outcome.read::<Trajectory>("rows"), wanted);
        let error = run(json!({"query": "SELECT id FROM t", "as": "document"}), &rows).expect_err("no text");
        assert_eq!(error.message, "the result is declared as document rows but lacks `text`");
    }

    #[test]
    fn columns_of_the_kind_that_may_lack_values_are_filled() {
        let query = "SELECT d.id, coalesce(d.title, d.text) AS question, string_to_array('a|b', '|') AS golden_answers FROM d ORDER BY d.id DESC";
        let outcome = run(json!({"query": query, "as": "question"}), &trajectories(1)).expect("runs");
        let questions: Vec<Question> = outcome.read("rows");
        let told: Vec<_> = questions.iter().map(|row| (row.id.as_str(), row.question.as_str())).collect();
        assert_eq!(told, [("q3", "Título 3"), ("q2", "Título 2"), ("q1", "…"), ("q0", "Título 0")]);
        assert!(questions.iter().all(|row| row.golden_answers == ["a", "b"] && row.evidence.is_empty()));
        assert!(questions.iter().all(|row| row.question_type.is_none() && row.metadata.is_none()));
        let query = "SELECT d.id, d.text AS question, string_to_array('a', '|') AS golden_answer FROM d";
        let error = run(json!({"query": query, "as": "question"}), &trajectories(1)).expect_err("a slip");
        assert_eq!(error.message, "the result is declared as question rows but lacks `golden_answers`");
    }

    #[test]
    fn texts_are_compared_by_their_n_grams() {
        let query = "SELECT ngram_jaccard('The red fox, again', 'the red  fox', 2) AS a, ngram_jaccard(title, 'x', 1) AS b, \
                     ngram_jaccard('a', 'A', 3) AS c FROM d ORDER BY id LIMIT 2";
        let batch = run(json!({"query": query}), &trajectories(1)).expect("runs").batch("rows");
        let column = |name: &str| batch.column_by_name(name).expect(name).as_primitive::<Float64Type>().clone();
        assert_eq!((column("a").value(0), column("b").value(0), column("c").value(0)), (2.0 / 3.0, 0.0, 1.0));
        assert!(column("b").is_null(1), "a title that is null");
        let error = run(json!({"query": "SELECT ngram_jaccard('a', 'b', 0) FROM d"}), &trajectories(1)).expect_err("0");
        assert!(error.message.contains("at least 1 word"), "{}", error.message);
    }

    #[test]
    fn texts_and_lists_of_texts_get_one_unicode_form() {
        let query = "SELECT nfkc('cafe\u{301}') AS a, nfkc(title) AS b, array_to_string(nfkc(string_to_array('ＡＢ|oﬃce', '|')), '+') AS c \
                     FROM d ORDER BY id LIMIT 2";
        let batch = run(json!({"query": query}), &trajectories(1)).expect("runs").batch("rows");
        let column = |name: &str| batch.column_by_name(name).expect(name).as_string::<i32>().clone();
        assert_eq!(
            (column("a").value(0), column("b").value(0), column("c").value(0)),
            ("café", "Título 0", "AB+office")
        );
        assert!(column("b").is_null(1), "a title that is null");
        let error = run(json!({"query": "SELECT nfkc(1) FROM d"}), &trajectories(1)).expect_err("a number");
        assert!(error.message.contains("a text or a list of texts"), "{}", error.message);
    }

    #[test]
    fn errors_name_inputs_columns_and_params() {
        let message = |query: &str| {
            let error = run(json!({"query": query}), &trajectories(2)).expect_err(query);
            (error.message, error.help.unwrap_or_default())
        };
        assert_eq!(message("SELECT * FROM x").0, "`query`: there is no input `x`");
        assert!(message("SELECT * FROM x").1.ends_with("inputs: `t`, `d`"));
        assert_eq!(message("SELECT turn FROM t").0, "`query`: there is no column `turn`");
        assert!(message("SELECT turn FROM t").1.starts_with("did you mean `turns`?"));
        assert_eq!(message("SELECT id FROM t, d").0, "`query`: the column `id` is in more than one input");
        let arrow = message("SELECT id FROM d WHERE metadata->>'lang' = 'pl'");
        assert!(arrow.1.starts_with("write parentheses"), "{arrow:?}");
        assert!(message("SELECT random() FROM t").0.contains("`random()` gives another value"));
        assert!(message("SELECT id FROM t WHERE id IN (SELECT id FROM d WHERE random() > 0.5)").0.contains("random()"));
        for wrong in ["SELEC", "DROP TABLE t", "COPY t TO '/tmp/x.csv'", "SELECT 1; SELECT 2", ""] {
            assert!(message(wrong).0.starts_with("query: "), "{wrong}");
        }
    }

    #[test]
    fn empty_inputs_give_empty_results() {
        let outcome = run(json!({"query": "SELECT t.id FROM t"}), &[]).expect("runs");
        assert_eq!(outcome.rows.get("rows").map_or(0, |all| all.iter().map(RecordBatch::num_rows).sum::<usize>()), 0);
    }
}

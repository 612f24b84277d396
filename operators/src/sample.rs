//! `sample`: keeps a seeded random part of the rows, in input order.

use arrow::datatypes::DataType;
use datafusion::error::DataFusionError;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, ExprFunctionExt, WindowFunctionDefinition, cast, ident, lit};
use datafusion::prelude::{DataFrame, SessionContext};
use futures::FutureExt;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use searchmill_engine::operator::{
    Context, Declaration, Example, Inputs, Kernel, Operator, OperatorError, ParamIssue, Ports, QueryInputs,
    QueryKernel, QueryOutput,
};
use serde::{Deserialize, Serialize};

use super::shared::relation::{KEPT, ROW, ROWS, check_keys, keep, key, numbered, register_functions, row_random};

/// Keeps a random part of the rows, without repeats, in input order. The draw depends only on the node's seed and the
/// rows' positions: a larger sample of the same rows contains the smaller one.
pub(crate) struct Sample;

/// Parameters of `sample`. One of `n` and `fraction` must be given.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) struct SampleParams {
    /// Number of rows to keep (per group, if `by` is set); all rows if there are fewer.
    #[serde(default)]
    pub(crate) n: Option<u64>,
    /// Share of the rows to keep (per group, if `by` is set), from 0 to 1. The count is rounded to the nearest whole
    /// number, halves up.
    #[serde(default)]
    pub(crate) fraction: Option<f64>,
    /// Sample each group separately: column names or SQL expressions. NULL is a group.
    #[serde(default)]
    pub(crate) by: Vec<String>,
}

impl Operator for Sample {
    type Params = SampleParams;
    const NAME: &'static str = "sample";
    const VERSION: u32 = 2;
    const ABOUT: &'static str = "Keeps a seeded random part of the rows.";
    const EXAMPLES: &'static [Example] = &[
        Example { title: "500 questions", yaml: "few: {op: sample, from: train, with: {n: 500}}" },
        Example {
            title: "A tenth of each question type",
            yaml: "tenth: {op: sample, from: train, with: {fraction: 0.1, by: [question_type]}}",
        },
    ];

    fn declare(params: &SampleParams) -> Declaration {
        let ports =
            Ports::new().any_rows_in(ROWS, "rows to sample").same_out(ROWS, ROWS, "sampled rows, in input order");
        let declaration = Declaration::seeded(ports).issues(issues(params));
        // Any seed will do: the columns do not depend on it.
        declaration.query(SampleKernel { params: params.clone(), seed: 0 })
    }

    fn open(params: &SampleParams, _inputs: &Inputs, context: &Context) -> Result<Kernel, OperatorError> {
        Ok(Kernel::Query(Box::new(SampleKernel { params: params.clone(), seed: context.seed() })))
    }
}

fn issues(params: &SampleParams) -> Vec<ParamIssue> {
    let mut issues = check_keys("by", &params.by);
    match (params.n, params.fraction) {
        (None, None) => issues.push(ParamIssue::new("n", "give `n` (rows) or `fraction` (0 to 1)")),
        (Some(_), Some(_)) => issues.push(ParamIssue::new("fraction", "give either `n` or `fraction`, not both")),
        (None, Some(part)) if !(0.0..=1.0).contains(&part) => {
            issues.push(ParamIssue::new("fraction", format!("must be between 0 and 1, found {part}")));
        }
        _ => {}
    }
    issues
}

struct SampleKernel {
    params: SampleParams,
    seed: u64,
}

impl QueryKernel for SampleKernel {
    fn plan<'a>(
        &'a self,
        session: &'a SessionContext,
        _inputs: &'a QueryInputs,
    ) -> BoxFuture<'a, Result<Vec<QueryOutput>, OperatorError>> {
        async move {
            register_functions(session);
            let rows = session.table(ROWS).await?;
            let keys = self.params.by.iter().map(|text| key(session, rows.schema(), "by", text));
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            let numbers = self.drawn(numbered(rows.clone())?, keys)?;
            Ok(vec![QueryOutput { port: ROWS.to_owned(), frame: keep(rows, numbers)? }])
        }
        .boxed()
    }

    fn restores_order(&self) -> bool {
        true
    }
}

const RANDOM: &str = "__random";
const PLACE: &str = "__place";
const SIZE: &str = "__size";

impl SampleKernel {
    /// Numbers of the sampled rows: in each group, those with the smallest random numbers.
    fn drawn(&self, rows: DataFrame, keys: Vec<Expr>) -> Result<DataFrame, DataFusionError> {
        let names: Vec<String> = (0..keys.len()).map(|index| format!("__key{index}")).collect();
        let mut columns: Vec<Expr> = keys.into_iter().zip(&names).map(|(key, name)| key.alias(name)).collect();
        columns.push(ident(ROW).alias(KEPT));
        columns.push(row_random(self.seed).call(vec![ident(ROW)]).alias(RANDOM));
        let groups: Vec<Expr> = names.iter().map(ident).collect();
        // Equal random numbers are as good as impossible; the row's number makes the order total.
        let order = vec![ident(RANDOM).sort(true, true), ident(KEPT).sort(true, true)];
        let place = row_number().partition_by(groups.clone()).order_by(order).build()?;
        let size = WindowFunction::new(WindowFunctionDefinition::AggregateUDF(count_udaf()), vec![lit(1)]);
        let size = Expr::from(size).partition_by(groups).build()?;
        let placed = rows.select(columns)?.with_column(PLACE, place)?.with_column(SIZE, size)?;
        // Ranks are from 1.
        let is_within = match (self.params.n, self.params.fraction) {
            (Some(n), _) => ident(PLACE).lt_eq(lit(n)),
            (None, fraction) => {
                // Places are whole numbers: those up to the exact count plus a half are as many as the rounded count.
                let wanted = cast(ident(SIZE), DataType::Float64) * lit(fraction.unwrap_or(1.0)) + lit(0.5);
                cast(ident(PLACE), DataType::Float64).lt_eq(wanted)
            }
        };
        placed.filter(is_within)?.select(vec![ident(KEPT)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use searchmill_engine::operator::entry;
    use searchmill_engine::operator::testing::{Harness, inputs, rows_input};
    use searchmill_schemas::Trajectory;
    use serde_json::{Value, json};

    use super::*;
    use crate::shared::relation::testing::{ids, trajectories};

    fn run_seeded(rows: &[Trajectory], params: Value, seed: u64) -> Result<Vec<Trajectory>, OperatorError> {
        let mut harness = Harness::new();
        harness.seed = seed;
        Ok(harness.run(&entry::<Sample>(), params, &inputs([("rows", rows_input(rows))]))?.read("rows"))
    }

    fn run(rows: &[Trajectory], params: Value) -> Vec<Trajectory> {
        run_seeded(rows, params, 0).expect("runs")
    }

    #[test]
    fn a_sample_is_exact_ordered_repeatable_and_nested() {
        let rows = trajectories(10_000);
        let hundred = run(&rows, json!({"n": 100}));
        assert_eq!(hundred.len(), 100);
        let mut wanted = rows.iter();
        assert!(hundred.iter().all(|row| wanted.any(|other| other == row)), "whole rows in input order, none twice");
        assert_eq!(hundred, run(&rows, json!({"n": 100})));
        assert_ne!(ids(&hundred), ids(&run_seeded(&rows, json!({"n": 100}), 1).expect("runs")));
        let more = run(&rows, json!({"n": 150}));
        let more: BTreeSet<_> = ids(&more).into_iter().collect();
        assert!(ids(&hundred).iter().all(|id| more.contains(id)), "a larger sample contains the smaller");
        assert_eq!(run(&rows[..5], json!({"n": 9})), rows[..5]);
    }

    #[test]
    fn groups_are_drawn_apart_null_included() {
        let rows = trajectories(1_000);
        let count = |rows: &[Trajectory]| {
            let mut counts = BTreeMap::new();
            for row in rows {
                *counts.entry(row.question_type.clone()).or_insert(0_usize) += 1;
            }
            counts
        };
        let all = count(&rows);
        assert_eq!(all.len(), 3);
        assert!(count(&run(&rows, json!({"n": 7, "by": ["question_type"]}))).values().all(|&n| n == 7));
        for (group, n) in count(&run(&rows, json!({"fraction": 0.125, "by": ["question_type"]}))) {
            assert_eq!(n, (all[&group] as f64 * 0.125).round() as usize, "{group:?}");
        }
    }

    #[test]
    fn edges() {
        let rows = trajectories(4);
        assert!(run(&[], json!({"n": 3})).is_empty());
        assert!(run(&rows, json!({"n": 0})).is_empty());
        assert!(run(&rows, json!({"fraction": 0.0})).is_empty());
        assert_eq!(run(&rows, json!({"fraction": 1})), rows);
        for wrong in
            [json!({}), json!({"n": 1, "fraction": 0.5}), json!({"fraction": 1.5}), json!({"n": 1, "by": ["("]})]
        {
            assert!(run_seeded(&rows, wrong.clone(), 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_row_is_drawn_equally_often() {
        let rows = trajectories(10);
        let mut drawn = BTreeMap::new();
        for seed in 0..200 {
            for row in run_seeded(&rows, json!({"n": 3}), seed).expect("runs") {
                *drawn.entry(row.id).or_insert(0) += 1;
            }
        }
        assert!(drawn.len() == 10 && drawn.values().all(|&n| (30..=90).contains(&n)), "{drawn:?}");
    }
}

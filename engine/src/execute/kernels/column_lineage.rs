//! Derives column lineage from a logical plan: for each result column, the input columns it is computed from; for the
//! whole result, the columns that filter, join, group and order its rows.

use std::collections::BTreeSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, TableReference};
use datafusion::logical_expr::{Distinct, Expr, Join, JoinType, LogicalPlan, UNNAMED_TABLE, Unnest};

use crate::store::{ColumnLineage, ColumnUse, Transformation};

type Uses = BTreeSet<ColumnUse>;

/// Returns the lineage of the columns of `plan`; `tables` are the input ports.
pub(crate) fn column_lineage(plan: &LogicalPlan, tables: &[String]) -> ColumnLineage {
    let mut reader = Reader { tables, rows: Uses::new() };
    let columns = reader.plan(plan);
    let names = plan.schema().fields().iter().map(|field| field.name().clone());
    ColumnLineage { fields: names.zip(columns).collect(), rows: reader.rows }
}

struct Reader<'a> {
    tables: &'a [String],
    rows: Uses,
}

impl Reader<'_> {
    /// Returns the uses of each column of the plan, in order.
    fn plan(&mut self, plan: &LogicalPlan) -> Vec<Uses> {
        match plan {
            LogicalPlan::TableScan(scan) => self.table(&scan.table_name, plan.schema()),
            LogicalPlan::SubqueryAlias(alias) if is_table(&alias.input) && self.is_input(&alias.alias) => {
                self.table(&alias.alias, plan.schema())
            }
            LogicalPlan::Projection(projection) => {
                let below = self.plan(&projection.input);
                self.each(&projection.expr, projection.input.schema(), &below)
            }
            LogicalPlan::Filter(filter) => {
                let below = self.plan(&filter.input);
                self.decide(&filter.predicate, filter.input.schema(), &below, Transformation::Filter);
                below
            }
            LogicalPlan::Sort(sort) => {
                let below = self.plan(&sort.input);
                for key in &sort.expr {
                    self.decide(&key.expr, sort.input.schema(), &below, Transformation::Sort);
                }
                below
            }
            LogicalPlan::Aggregate(aggregate) => {
                let below = self.plan(&aggregate.input);
                let schema = aggregate.input.schema();
                for key in &aggregate.group_expr {
                    self.decide(key, schema, &below, Transformation::GroupBy);
                }
                let width = plan.schema().fields().len() - aggregate.aggr_expr.len();
                let mut columns = self.grouping(&aggregate.group_expr, width, schema, &below);
                columns.extend(self.each(&aggregate.aggr_expr, schema, &below));
                columns
            }
            LogicalPlan::Window(window) => {
                let below = self.plan(&window.input);
                let windows = self.each(&window.window_expr, window.input.schema(), &below);
                [below, windows].concat()
            }
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(union) => {
                let mut columns = vec![Uses::new(); plan.schema().fields().len()];
                for input in &union.inputs {
                    for (column, found) in columns.iter_mut().zip(self.plan(input)) {
                        column.extend(found);
                    }
                }
                columns
            }
            LogicalPlan::Distinct(Distinct::On(distinct)) => {
                let below = self.plan(&distinct.input);
                let schema = distinct.input.schema();
                for key in &distinct.on_expr {
                    self.decide(key, schema, &below, Transformation::GroupBy);
                }
                for key in distinct.sort_expr.iter().flatten() {
                    self.decide(&key.expr, schema, &below, Transformation::Sort);
                }
                self.each(&distinct.select_expr, schema, &below)
            }
            LogicalPlan::Unnest(unnest) => self.unnest(unnest),
            LogicalPlan::RecursiveQuery(query) => self.plan(&query.static_term),
            LogicalPlan::Values(_) | LogicalPlan::EmptyRelation(_) => vec![Uses::new(); plan.schema().fields().len()],
            other => self.through(other),
        }
    }

    fn is_input(&self, name: &TableReference) -> bool {
        self.tables.iter().any(|table| table == name.table())
    }

    /// Returns the columns of an input table.
    fn table(&self, name: &TableReference, schema: &DFSchema) -> Vec<Uses> {
        // A table of the query's own: a common table expression, for example.
        if !self.is_input(name) {
            return vec![Uses::new(); schema.fields().len()];
        }
        let mut columns = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let (port, column) = (name.table().to_owned(), field.name().clone());
            columns.push(Uses::from([ColumnUse { port, column, how: Transformation::Identity }]));
        }
        columns
    }

    /// Handles a step that preserves the columns of its single input (limit, distinct, alias). For any other step,
    /// every output column may depend on every input column.
    fn through(&mut self, plan: &LogicalPlan) -> Vec<Uses> {
        let width = plan.schema().fields().len();
        match plan.inputs().as_slice() {
            [only] if only.schema().fields().len() == width && !matches!(plan, LogicalPlan::Extension(_)) => {
                self.plan(only)
            }
            inputs => {
                let mut all = Uses::new();
                for input in inputs {
                    for column in self.plan(input) {
                        all.extend(column.iter().map(|used| with(used, Transformation::Transformation)));
                    }
                }
                vec![all; width]
            }
        }
    }

    fn each(&mut self, expressions: &[Expr], schema: &DFSchema, below: &[Uses]) -> Vec<Uses> {
        expressions.iter().map(|expr| self.expression(expr, schema, below)).collect()
    }

    fn join(&mut self, join: &Join) -> Vec<Uses> {
        let (left, right) = (self.plan(&join.left), self.plan(&join.right));
        for (key, other) in &join.on {
            self.decide(key, join.left.schema(), &left, Transformation::Join);
            self.decide(other, join.right.schema(), &right, Transformation::Join);
        }
        if let Some(filter) = &join.filter {
            self.decide(filter, join.left.schema(), &left, Transformation::Join);
            self.decide(filter, join.right.schema(), &right, Transformation::Join);
        }
        // The column of a mark join comes from no input column; the keys above decide it.
        let mark = vec![Uses::new()];
        match join.join_type {
            JoinType::LeftSemi | JoinType::LeftAnti => left,
            JoinType::RightSemi | JoinType::RightAnti => right,
            JoinType::LeftMark => [left, mark].concat(),
            JoinType::RightMark => [right, mark].concat(),
            _ => [left, right].concat(),
        }
    }

    fn unnest(&mut self, unnest: &Unnest) -> Vec<Uses> {
        let below = self.plan(&unnest.input);
        let mut opened: BTreeSet<usize> = unnest.struct_type_columns.iter().copied().collect();
        opened.extend(unnest.list_type_columns.iter().map(|(index, _)| *index));
        let mut columns = Vec::with_capacity(unnest.dependency_indices.len());
        for index in &unnest.dependency_indices {
            let mut column = below.get(*index).cloned().unwrap_or_default();
            if opened.contains(index) {
                column = column.iter().map(|used| with(used, Transformation::Transformation)).collect();
            }
            columns.push(column);
        }
        columns
    }

    /// Returns the group columns of an aggregate: one per key and, with grouping sets, those that identify the set.
    fn grouping(&mut self, keys: &[Expr], width: usize, schema: &DFSchema, below: &[Uses]) -> Vec<Uses> {
        let mut columns: Vec<Uses> = match keys {
            [Expr::GroupingSet(set)] => {
                set.distinct_expr().into_iter().map(|key| self.expression(key, schema, below)).collect()
            }
            keys => self.each(keys, schema, below),
        };
        // The columns that identify the set come from no input column.
        columns.resize(width, Uses::new());
        columns
    }

    /// Returns the uses of one expression.
    fn expression(&mut self, expr: &Expr, schema: &DFSchema, below: &[Uses]) -> Uses {
        match expr {
            Expr::Alias(alias) => self.expression(&alias.expr, schema, below),
            Expr::Column(column) => uses_of(column, schema, below),
            Expr::AggregateFunction(_) => self.gathered(expr, schema, below, Transformation::Aggregation),
            Expr::WindowFunction(window) => {
                let mut uses = Uses::new();
                for key in &window.params.partition_by {
                    uses.extend(self.gathered(key, schema, below, Transformation::Window));
                }
                for key in &window.params.order_by {
                    uses.extend(self.gathered(&key.expr, schema, below, Transformation::Window));
                }
                for argument in &window.params.args {
                    uses.extend(self.gathered(argument, schema, below, Transformation::Aggregation));
                }
                uses
            }
            _ => self.gathered(expr, schema, below, Transformation::Transformation),
        }
    }

    /// Collects all columns below an expression, with transformation `how` or the stronger one found below.
    fn gathered(&mut self, expr: &Expr, schema: &DFSchema, below: &[Uses], how: Transformation) -> Uses {
        let mut uses = Uses::new();
        let mut subqueries = Vec::new();
        let walked = expr.apply(|part| {
            match part {
                Expr::Column(column) => {
                    uses.extend(uses_of(column, schema, below).iter().map(|found| with(found, how)));
                }
                Expr::ScalarSubquery(query) => subqueries.push(query.subquery.clone()),
                Expr::Exists(exists) => subqueries.push(exists.subquery.subquery.clone()),
                Expr::InSubquery(within) => subqueries.push(within.subquery.subquery.clone()),
                Expr::SetComparison(comparison) => subqueries.push(comparison.subquery.subquery.clone()),
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        });
        if let Err(error) = walked {
            tracing::debug!("column lineage of {expr}: {error}");
        }
        for query in subqueries {
            for column in self.plan(&query) {
                uses.extend(column.iter().map(|used| with(used, how)));
            }
        }
        uses
    }

    /// Adds the columns that decide which rows the result has, or in which order.
    fn decide(&mut self, expr: &Expr, schema: &DFSchema, below: &[Uses], how: Transformation) {
        let uses = self.gathered(expr, schema, below, how);
        self.rows.extend(uses.into_iter().map(|used| ColumnUse { how, ..used }));
    }
}

/// Whether this is an input table as the engine registers it: a scan of files or of rows in memory.
fn is_table(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(scan) => scan.table_name.table() == UNNAMED_TABLE,
        LogicalPlan::Projection(projection) => {
            is_table(&projection.input) && projection.expr.iter().all(|expr| matches!(expr, Expr::Column(_)))
        }
        _ => false,
    }
}

fn uses_of(column: &Column, schema: &DFSchema, below: &[Uses]) -> Uses {
    schema.maybe_index_of_column(column).and_then(|place| below.get(place)).cloned().unwrap_or_default()
}

/// Combines two uses of a value: the weaker transformation wins. Indirect uses stay indirect.
fn with(used: &ColumnUse, how: Transformation) -> ColumnUse {
    let how = if used.how.is_direct() { used.how.max(how) } else { used.how };
    ColumnUse { how, ..used.clone() }
}

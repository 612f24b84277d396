//! Shared parts of the relational operators: SQL expressions over rows, row order, kinds of results, messages.

mod direction;
mod expression;
mod functions;
mod groups;
mod kind;
mod labels;
mod order;
mod random;
mod share;
#[cfg(test)]
pub(crate) mod testing;

pub(crate) use direction::{directed, direction_advice};
pub(crate) use expression::{
    check_expression, check_key, check_keys, check_query, check_tables, key, require_repeatable,
    require_repeatable_plan, tables_of,
};
pub(crate) use functions::{folded, register as register_functions};
pub(crate) use groups::{Grouping, Keys, columns_checked, unknown_key, unknown_keys};
pub(crate) use kind::with_columns_of;
pub(crate) use labels::{GROUPS, Label, UNKNOWN, labels, require_few_groups};
pub(crate) use order::{KEPT, ROW, keep, numbered};
pub(crate) use random::{below, row_random};
pub(crate) use searchmill_engine::plan::{check_types, explain};
pub(crate) use share::allot;

/// Port and table name of the rows of `filter`, `dedup`, `sample` and `rebalance`.
pub(crate) const ROWS: &str = "rows";

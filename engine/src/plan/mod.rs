//! Plans: the pipeline bound to operators, typed and checked, in an executable order.
//!
//! `bind` looks operators up, deserialises their params, asks them for ports and sources, and orders the graph. Where
//! the order is free, it is the order of the file. `edges` verifies every edge: kind, number, missing inputs. `bind`
//! also rejects URLs with user info, because results, runs and messages contain URLs. Only this module can create a
//! [`Plan`], so every plan is checked.
//!
//! `paths` checks files outside the pipeline. Files that are read must exist. A destination must not overlap what the
//! pipeline reads, its own files, another destination, or the store. Paths start at the working directory, not at the
//! folder of the pipeline; `-C` changes it.
//!
//! `result_checks` has the queries behind the `checks:` of a node, and checks these against its outputs.
//!
//! `datafusion_error` words the errors of SQL that users wrote.
//!
//! `columns` checks queries, predicates and prompts against the columns that are known before anything runs.
//!
//! If an input takes one table and is connected to all variants of a node, `gather` puts a node between them that joins
//! the tables.
//!
//! An input can take the rejects behind another input. If it is left open, `bind` connects it to the rejects of the
//! external nodes behind that input. They are then part of the node's key.
//!
//! What a service of a node reads is an input of the node, at a port that begins with `service.`. The kernel does not
//! see it.
//!
//! `loops` has the loops about which rows decide (`best:`, `stop:`), and `settle` the plan once it is known how one ended.
//! `loop_output` finds what loops hand on by the names that users give it.

mod schema;
mod graph;
mod loops;
mod rejects;
mod gather;
mod settle;
mod loop_output;
mod select;
mod datafusion_error;
mod columns;
mod edges;
mod paths;
mod services;
mod unsupported_settings;
mod result_checks;
mod pipeline_test;
mod bind;

pub(crate) use bind::bind;
pub use datafusion_error::{check_types, explain, missing_input, parse_fault};
pub use graph::{Input, Node, Plan, Tie};
pub(crate) use loop_output::OfLoop;
pub use loops::{End, Loop};
pub(crate) use paths::check_store;
/// The index of a node in a plan. Plans of one text have the same nodes at the same indices.
pub use petgraph::graph::NodeIndex;
pub(crate) use result_checks::{Offenders, ROWS, unfit_column};
pub(crate) use schema::pipeline_schema;
pub use select::Selection;
pub(crate) use select::{asked_for, asked_of_loops, named_by, select, with_all_before, with_all_before_but};
pub(crate) use services::with_files_of_services;
pub(crate) use settle::NotReached;

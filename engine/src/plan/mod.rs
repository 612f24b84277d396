//! What will be done: the pipeline bound to operators, typed and checked, in an order that works.

mod bind;
mod check;
mod graph;
mod honoured;
mod places;
mod schema;
mod select;

pub use bind::bind;
pub use check::{meant_node, nearest, suggest};
pub use graph::{Input, Node, Plan};
pub use places::check_store;
pub use schema::pipeline_schema;
pub use select::{Selection, select, with_all_before};

//! What will be done: the pipeline bound to operators, typed and checked, in an order that works.

mod bind;
mod check;
mod graph;
mod schema;
mod select;

pub use bind::bind;
pub use check::nearest;
pub use graph::{Input, Node, Plan};
pub use schema::pipeline_schema;
pub use select::{Selection, select};

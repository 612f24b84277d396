//! All output to the terminal.

pub(crate) mod audit;
pub mod diagnostic;
mod drawing;
mod ending;
pub(crate) mod lineage;
mod live;
mod matrix;
pub(crate) mod money;
pub(crate) mod planned;
mod print;
mod reference;
pub(crate) mod rounds;
mod row;
mod safe;
mod schedule;
mod style;
mod table;
mod terminal;
mod wrap;
pub(crate) mod pipeline_test;

pub use terminal::{Terminal, code_of_output, leave_now, no_threads, start_logging, usage, worker_pipe, wrong_machine};

pub(crate) use drawing::Drawing;
pub(crate) use reference::{effect, kind_page, reference_page};
pub(crate) use row::{conversation, passage, reject};
pub(crate) use table::{TextTable, added_columns, bytes, duration, json_lines, preview, quoted};

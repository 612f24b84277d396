//! What a pipeline file can say: each operator and setting through the program.

mod checks;
mod compare;
mod diagnostics;
mod extra_columns;
mod foreign_files;
mod ineffective_settings;
mod known_columns;
mod late_interaction;
mod loop_checks;
mod loop_ends;
mod loop_names;
mod map;
mod map_python;
mod matrix;
mod mistakes;
mod outputs;
mod pipeline_tests;
mod remote_files;
pub(super) mod repeat;
mod scale;
mod shipped;
mod systems;
mod training;
mod until;

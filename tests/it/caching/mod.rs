//! What runs again after which change, what is reused, and what is removed.

mod blocks;
mod forced;
mod gc;
mod paid_rows;
mod releasing;
mod reruns;
mod reuse;
mod shared_store;
mod sources;
mod undeclared_files;
mod version;
mod why;

//! The smaller commands, a new user's first hour, the Python package, and the documents.

mod commands;
mod cookbook;
mod example;
mod first_hour;
mod first_use;
mod init;
mod python_package;
pub(super) mod schedule;
mod show;

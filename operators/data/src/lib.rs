//! External data: sources and their layouts, documents of files, file formats, destinations, external programs and
//! Python functions, the Hugging Face Hub.
//!
//! Operators call this crate; it defines no operator. Credentials and endpoints come from the environment only, never
//! from params.
//!
//! # Programs
//!
//! `program` runs the programs of `exec` and of external trainers: with a cleared environment and `LANG=C.UTF-8`,
//! without a shell, in a process group of its own. A guard kills the group if searchmill is gone. No other operator
//! starts programs.
//!
//! `program/sources.rs` derives the part of the cache key that a command contributes, by the same rules for all
//! programs:
//!
//! - A user's scripts and programs are identified by content, wherever `PATH` finds them. A script's interpreter counts
//!   too.
//! - Programs in system folders, and interpreters, are identified by their `--version` output (queried once per run) or
//!   by a `version` in the params. If they do not answer, content identifies them. No other program is started for its
//!   version.
//! - Files, folders, patterns and own tools that words name are sources. So are those after a `=` and after `-m`. In
//!   the script of `sh -c`, quotes are parsed and `> file` is skipped. Relative paths start at the working directory
//!   (`searchmill -C`).
//! - A program sees paths. The names of these files in the key are therefore paths from the working directory, and
//!   empty folders count.
//!
//! Words do not say all. On Linux, a filter of system calls reports the files that a program and its descendants open
//! (`program/observer.rs`). A file of the user that the key does not cover stops the program (`program/opened.rs`), and
//! bytecode of the user's modules is hidden from Python.
//!
//! `validate` reports what no key contains.
//!
//! `python` calls functions of the user in such programs, many calls a process.
//!
//! # The Hub
//!
//! The cache has the layout of the Hub's own tools. A repository is identified by a commit, from `refs/` of the cache
//! or else from the Hub, which a run asks once and notes there. Only the Hub's own 404 means that a model lacks an
//! optional file.

pub mod decoded;
pub mod destination;
pub mod documents;
pub mod hub;
pub mod program;
pub mod python;
pub mod row_kind;
pub mod source;

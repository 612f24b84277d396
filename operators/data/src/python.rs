//! Python functions of users: what identifies them, and processes that call them.
//!
//! A function is started as `INTERPRETER -c SCRIPT`; the script is ours (`python/*.py`), needs Python 3.9 and the
//! standard library, and imports the user's file. One process answers many calls. It talks over duplicated descriptors:
//! what the function prints goes to the node's log, and its stdin is empty. `program.rs` starts and guards the process.
//!
//! The sources of a function are its file, every module of the project that it imports at any depth, a lock file, the
//! named `files` and the Python version. Python finds the modules (`imports.py`) without running the user's code; the
//! answer is remembered with the metadata of all files that it depends on (`imports.rs`). At run time, the process
//! reports which columns the loaded function takes, and the modules of the project that it loaded; a module that is no
//! source fails the node, and so does another file of the user that the process read (`program/opened.rs`).
//!
//! A function may be an operator that an installed package brings as an entry point: it is known by a digest of that
//! package's files. One that is marked with `searchmill.map` types its columns by its signature (`signature.py`).
//!
//! A file with a PEP 723 block (`# /// script`) runs in the environment that `uv` makes for it (`environment.rs`).

mod answer;
mod cache;
mod captured;
mod code;
mod environment;
mod function;
mod imports;
mod known;
mod pool;
mod seen;
mod signature;
mod sources;
mod wire;
mod worker;

pub use answer::{Called, CalledBatch, Failure, JsonRows, Why};
pub use code::Code;
pub use function::PythonFunction;
pub use pool::{Pool, Width};
pub use signature::Signature;

#[cfg(test)]
mod tests;

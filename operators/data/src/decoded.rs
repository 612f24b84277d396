//! Decodes foreign files with Arrow and Parquet, which panic on some that are damaged.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Decodes with a library; its panic is an error like any other.
///
/// # Errors
/// Fails if it fails or panics.
pub fn decoded<T, E: Display>(decode: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged: its lengths do not fit together".to_owned()),
    }
}

//! External data: sources and their layouts, file formats, destinations, external programs, the Hugging Face Hub.
//!
//! Operators call this crate; it defines no operator. Credentials and endpoints come from the environment only, never
//! from params.

pub mod destination;
pub mod hub;
pub mod program;
pub mod row_kind;
pub mod source;

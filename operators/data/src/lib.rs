//! Data from and to the outside: sources and their layouts, file formats, destinations, other programs, the Hugging Face
//! Hub.

pub mod destination;
pub mod hub;
pub mod program;
pub mod row_kind;
pub mod source;

//! Reads external data: locations, formats, and the conversion of records to rows.

pub mod cells;
pub mod column;
pub mod decode;
mod form;
pub mod foreign;
pub mod format;
pub mod identity;
pub mod layout;
pub mod lines;
pub mod location;
pub mod mapping;
pub mod notes;
pub mod ordered;
pub mod record;
pub mod shape;
pub mod store;
pub mod stream;
pub mod table;
mod template;
pub mod values;

//! Reads external data: locations, formats, and the conversion of records to rows.

pub mod cells;
pub mod column;
mod conversation;
pub mod decode;
pub mod fields;
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
pub mod parquet_file;
mod python_list;
mod quotes;
mod recognised;
pub mod record;
pub mod shape;
pub mod store;
pub mod stream;
pub mod strict;
pub mod table;
mod template;
pub mod values;

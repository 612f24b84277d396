//! Data from outside: where it lies, how it is written, and how its records become rows.

pub(crate) mod cells;
pub(crate) mod column;
pub(crate) mod decode;
mod form;
pub(crate) mod format;
pub(crate) mod hub;
pub(crate) mod identity;
pub(crate) mod layout;
pub(crate) mod lines;
pub(crate) mod location;
pub(crate) mod mapping;
pub(crate) mod notes;
pub(crate) mod ordered;
pub(crate) mod record;
pub(crate) mod shape;
pub(crate) mod store;
pub(crate) mod stream;
pub(crate) mod table;
mod template;
#[cfg(test)]
pub(crate) mod test_server;
pub(crate) mod values;

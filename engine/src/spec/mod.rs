//! YAML text to a [`Spec`]: what was written, with its places, all errors in one go.

mod pipeline;
mod value;

pub use pipeline::{Binding, NodeSpec, OnError, Overrides, Reference, Resources, Spec};
pub use value::{Key, Spanned, Value, locate};

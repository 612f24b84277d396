//! TODO

pub(super) mod clock;
pub(super) mod options;
pub(super) mod progress;
pub(super) mod request;
pub(super) mod resources;
pub(super) mod stop;

//! What a run is told, and what it has: options, which nodes are asked for, the machine, the order to stop, the clock.

pub(super) mod clock;
pub(super) mod stop;
pub(super) mod progress;
pub(super) mod resources;
pub(super) mod request;
pub(super) mod device;
pub(super) mod workers;
pub(super) mod options;

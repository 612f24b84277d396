//! Episodes that external trainers play: their APIs (`openenv` with its WebSocket `socket`, `nemo_gym`, rewards of texts in
//! `r1_reward`), the open `sessions`, and the `driver` that plays one.

pub(super) mod action;
pub(super) mod driver;
pub(super) mod nemo_gym;
pub(super) mod openenv;
pub(super) mod questions;
pub(super) mod r1_reward;
pub(super) mod sessions;
pub(super) mod socket;

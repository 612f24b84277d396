//! The model of a test: a server on loopback that plays the script in place of all endpoints.

mod player;

pub(crate) use player::{Player, Refused};

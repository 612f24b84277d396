//! Kills, faults and damage; several processes and machines in one store.

mod bit_rot;
mod concurrency;
mod containers;
mod disk_faults;
mod kills;
mod links;
mod map_kills;
mod mutations;
mod random_kills;
mod tampering;
mod workers;

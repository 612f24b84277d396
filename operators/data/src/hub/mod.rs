//! The Hugging Face Hub: files of data sets, and models at a commit.

mod client;
pub mod dataset;
mod model;

pub use client::Hub;
pub use model::HubModel;

//! The Hugging Face Hub, with its own cache layout: files of data sets, and models at a commit.

pub mod dataset;
pub mod model;

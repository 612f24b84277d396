//! Rules about the sources, and laws that every operator obeys.

mod circles;
mod laws;
mod tidy;
mod words;

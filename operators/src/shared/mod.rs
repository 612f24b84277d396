//! What two or more operators share. An operator's own code stands in its file; algorithms stand in the crates below.
//!
//! `conversion` renders training examples, `html` draws pages and figures, `relation` holds what relational operators
//! share, `near` compares texts, `issues` tells what is wrong with params.

pub(super) mod answered;
pub(super) mod columns;
pub(super) mod conversion;
pub(super) mod forest;
pub(super) mod html;
pub(super) mod issues;
pub(super) mod near;
pub(super) mod numbers;
pub(super) mod relation;
pub(super) mod statistics;
pub(super) mod unfit;
pub(super) mod until;

//! Looks again at recorded results. `replay` recomputes them in a separate store, `spot_check` checks single rows, and
//! `answers` compares external rows with the cached answers.

pub(super) mod rerun;
pub(super) mod restored;
pub(super) mod answers;
pub(super) mod spot_check;
pub(super) mod replay;

//! The one integration binary.

mod diagnostics;

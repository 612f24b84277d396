//! The page of `ui`, by HTTP and in a browser.

mod bundle;
mod faults;
mod pictures;
mod views;

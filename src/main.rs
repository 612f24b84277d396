//! The `searchmill` command.

use std::process::ExitCode;

/// Training and Arrow take and give back large buffers all the time: with the system's allocator each of them is a page
/// fault per 4 KiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    searchmill::cli()
}

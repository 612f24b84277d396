//! The `searchmill` command.

use std::process::ExitCode;

/// Training and Arrow allocate and free large buffers frequently. The system allocator would cause a page fault per 4
/// KiB.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    searchmill::cli()
}
